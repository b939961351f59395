"""What an engine should write, token by token, and whether what it wrote could be that."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from math import inf

from core.caches.tokens import Context
from core.config import SamplingParams
from core.decoding.sampling import to_probs
from core.engine import Engine
from tests.exactness.uniformity import ChiSquare

LanguageModel = dict[tuple[int, ...], float]
FALSE_ALARM = 1e-5  # of one chi-square test


def sequence_law(engine: Engine, prompt: list[int], sampling: SamplingParams, num_tokens: int) -> LanguageModel:
    """The exact joint law of the first tokens behind a prompt: the full cache's own logits, sequence by sequence."""
    law: LanguageModel = {(): 1.0}
    for _ in range(num_tokens):
        longer: LanguageModel = {}
        for tokens, probability in law.items():
            text = [*prompt, *tokens]
            for _ in engine.read(text):
                pass
            probs = to_probs(engine._levels.parts.full.logits(Context(text), 1)[0], sampling)
            engine.settle(text)
            for token in probs.nonzero().flatten().tolist():
                longer[(*tokens, token)] = probability * float(probs[token])
        law = longer
    return law


def marginal(law: LanguageModel, start: int, stop: int) -> LanguageModel:
    """The law of tokens [start, stop) alone."""
    found: LanguageModel = defaultdict(float)
    for tokens, probability in law.items():
        found[tokens[start:stop]] += probability
    return dict(found)


def chi_square(counts: Mapping[tuple[int, ...], int], law: LanguageModel) -> ChiSquare:
    """Whether what was counted can have been drawn from `law`: cells of at least 5 expected, the rest pooled."""
    runs = sum(counts.values())
    cells = [(counts.get(key, 0), runs * p) for key, p in law.items() if runs * p >= 5]
    rest = (runs - sum(c for c, _ in cells), runs - sum(e for _, e in cells))
    if rest[1] >= 5:
        cells.append(rest)
    impossible = any(law.get(key, 0.0) == 0 for key in counts)
    return ChiSquare("", runs, inf if impossible else sum((c - e) ** 2 / e for c, e in cells), len(cells) - 1)


def fits(counts: Mapping[tuple[int, ...], int], law: LanguageModel) -> bool:
    """False once in 1 / FALSE_ALARM runs where the law is the right one."""
    return chi_square(counts, law).p_value > FALSE_ALARM


def counted(sequences: list[tuple[int, ...]], start: int, stop: int) -> Counter[tuple[int, ...]]:
    """How often tokens [start, stop) were which."""
    return Counter(tokens[start:stop] for tokens in sequences)
