"""What an exact answer must be, found without the engine under test.

Greedy tokens are held against transformers' own `generate`. Where they part, transformers' logits tell a tie within
rounding from a mismatch. Sampled tokens become uniform numbers by the probabilities of one pass of transformers,
without any cache (see `uniformity`).
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from core.caches.tokens import common_prefix
from core.config import GenerationConfig, SamplingParams
from core.decoding import methods
from core.decoding.sampling import TokenSampler, to_probs
from core.decoding.verify import Guess, Verdict
from core.engine_info import NEAR_TIE_GAP
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import StopReason, TokenRecord
from core.generation.text import ChatText
from tests.core.models.tiny_families import transformers_text
from tests.exactness.uniformity import ORDERS, Pool, following, leaning, transformed
from tests.exactness.worlds import World

TIE = NEAR_TIE_GAP[torch.float32]  # gap of logits that rounding explains
MASS_TIE = 1e-4  # the same in probability, where top-p cuts
SAME_PROBABILITY = 1e-3  # largest difference between the engine's and the reference's probability of a token
AHEAD = 8  # tokens that plain decoding writes beyond those asked for: the answer may be continued


@dataclass(slots=True)
class Outcome:
    counts: Counter[str] = field(default_factory=Counter)  # of cases, seconds, actions, answers, tokens, ...
    worst_gap: float = 0.0  # largest difference of probability of a sampled token to the reference's
    mismatches: list[str] = field(default_factory=list)
    acceptance: list[float] = field(default_factory=list)  # of level 2, by case in which anything was tested
    pool: Pool = field(default_factory=Pool)

    def merge(self, other: "Outcome") -> None:
        self.counts.update(other.counts)
        self.worst_gap = max(self.worst_gap, other.worst_gap)
        self.mismatches += other.mismatches
        self.acceptance += other.acceptance
        self.pool.merge(other.pool)


# -------------------- listening


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """A token, and the probabilities [V] with which something was guessed at its place, as its level has said.

    Only what is known before a token is drawn is kept of it, so nothing that is counted by it depends on the token.
    """

    record: TokenRecord
    q: Tensor | None  # of the guess that the last verifier was given; None: there was none
    below: Tensor | None  # of the guess that the level below was given there


class Listener:
    def __init__(self) -> None:
        self._q: list[Tensor | None] = []
        self._below: list[Tensor | None] = []
        self._level1: list[Tensor | None] = []

    def hear(self, level: str, guess: Guess, verdict: Verdict) -> None:
        """A level has verified a guess. The last level's verdict ends a round."""
        if level == "full":
            self._q, self._below, self._level1 = list(guess.probs), self._level1, []
        else:
            self._level1 += [*guess.probs, None][: verdict.num_accepted + 1]

    def committed(self, records: tuple[TokenRecord, ...]) -> list[Committed]:
        """The tokens of the round that has just ended."""
        none: list[Tensor | None] = [None] * len(records)
        heard = zip(records, [*self._q, *none], [*self._below[: len(self._q)], *none], strict=False)
        self._q = self._below = []
        return [Committed(*three) for three in heard]


@contextmanager
def listening() -> Iterator[Listener]:
    """Inside, decoders that are made tell the listener what they verify. One answer, or lane, may decode at a time."""
    listener, right = Listener(), methods.Speculative

    class Heard(right):  # type: ignore[misc, valid-type]
        def __init__(self, *parts: Any, **settings: Any) -> None:
            super().__init__(*parts, **settings)
            rule = self._rule

            def told(guess: Guess, p: Tensor, sampler: TokenSampler, level: str = "verifier") -> Verdict:
                verdict = rule(guess, p, sampler, level)
                listener.hear(level, guess, verdict)
                return verdict

            self._rule = told

    with patch.object(methods, "Speculative", Heard):
        yield listener


# -------------------- judging


class Reference:
    """Judges the answers of one case: counts in `outcome`, tells `wrong` of mismatches."""

    def __init__(self, world: World, seed: int, outcome: Outcome, wrong: Callable[[str], object]) -> None:
        self._world, self._rng, self._outcome, self._wrong = world, random.Random(seed), outcome, wrong
        self._plain: dict[tuple[int, ...], list[int]] = {}  # by prompt

    def greedy(self, base: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether `tokens` behind `base`, a prompt or a text that was sampled, are plain decoding's without a tie."""
        at, start, clean = 0, list(base), True
        while at < len(tokens):
            rest = list(tokens[at:])
            expected = self.plain(start, len(rest))
            shared = common_prefix(expected, rest)
            at += shared
            if at == len(tokens):
                break
            logits, clean = self._world.logits([*base, *tokens[:at]], 1)[0], False
            gap, other = (float(logits.max() - logits[token]) for token in (tokens[at], expected[shared]))
            if max(gap, other) > TIE:
                self._wrong(
                    f"token {at} of {len(tokens)} is {tokens[at]} ({gap:.3g} below the best), "
                    f"plain decoding writes {expected[shared]} ({other:.3g} below)"
                )
                break
            self._outcome.counts["near ties"] += 1
            at += 1
            start = [*base, *tokens[:at]]
        return clean

    def plain(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        known = self._plain.get(tuple(prompt), [])
        if len(known) < num_tokens:
            known = list(transformers_text(self._world.stock, prompt, num_tokens + AHEAD))
            self._plain[tuple(prompt)] = known
        return known[:num_tokens]

    def sampled(
        self,
        base: Sequence[int],
        new: Sequence[Committed],
        sampling: SamplingParams,
        method: str,
        written: Sequence[float],
    ) -> list[float]:
        """Judge sampled tokens behind `base`.

        Args:
            written: where they continue an answer with its seed, u of its tokens so far.
        Returns:
            u of each by token id; NaN: rounding decides whether top-k or top-p keeps it.
        """
        tokens, count = [one.record.token_id for one in new], len(new)
        unknown = [math.nan] * count
        if not tokens:
            return unknown
        logits = self._world.logits([*base, *tokens[:-1]], count)
        p = to_probs(logits, sampling).double()
        p = p / p.sum(-1, keepdim=True)
        drawn, sure = torch.tensor(tokens), ~near_cut(logits, sampling)
        own = p[torch.arange(count), drawn]
        told = torch.tensor([one.record.p for one in new], dtype=torch.float64)
        self._outcome.counts["tokens: left out at a cut"] += int((~sure).sum())
        if bool(((own == 0) & sure).any()):
            where = int(((own == 0) & sure).nonzero()[0])
            self._wrong(f"token {where} of {count} is {tokens[where]}, which has no probability")
            return unknown
        gaps = (own - told).abs() * sure
        self._outcome.worst_gap = max(self._outcome.worst_gap, float(gaps.max()))
        if float(gaps.max()) > SAME_PROBABILITY:
            where = int(gaps.argmax())
            self._wrong(
                f"token {where} of {count} ({tokens[where]}) has probability {own[where]:.5f}, "
                f"the engine drew it with {told[where]:.5f}"
            )
        q = torch.stack([p[n] if one.q is None else one.q.double() for n, one in enumerate(new)])
        keys = {
            "token id": -torch.arange(p.shape[1]).expand_as(p),
            "p": p,
            "q / p": (q + 1e-9) / (p + 1e-9),
        }
        uniform = torch.tensor([self._rng.random() for _ in tokens], dtype=torch.float64)
        u = {name: transformed(p, drawn, keys[name], uniform)[sure] for name in ORDERS}
        by_id = torch.full((count,), torch.nan, dtype=torch.float64)
        by_id[sure] = u["token id"]
        lean = {}
        guessed = torch.tensor([one.q is not None for one in new]) & sure
        if bool(guessed.any()):
            lean["leaning to the last guess"] = leaning(p[guessed], p[guessed], q[guessed], drawn[guessed])
        twice = guessed & torch.tensor([one.below is not None for one in new])
        if bool(twice.any()):
            below = torch.stack([one.below.double() for n, one in enumerate(new) if twice[n] and one.below is not None])
            lean["leaning to the guess below"] = leaning(p[twice], q[twice], below, drawn[twice])
        if written:
            lean["following what was written"] = following(by_id, torch.tensor(written, dtype=torch.float64))
        last = next((last for last in written[-1:] if not math.isnan(last)), None)
        self._outcome.pool.add(method, u, lean, last)
        return by_id.tolist()


def near_cut(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Where rounding may decide which tokens top-k and top-p keep, [n] bool."""
    scaled = logits.double() / sampling.temperature
    near = torch.zeros(len(logits), dtype=torch.bool)
    if 0 < sampling.top_k < logits.shape[1]:
        best = logits.topk(sampling.top_k + 1, -1).values
        near |= best[:, -2] - best[:, -1] < TIE
        scaled = scaled.masked_fill(logits < best[:, -2:-1], float("-inf"))
    if sampling.top_p < 1:
        mass = torch.softmax(scaled, -1).sort(-1, descending=True).values.cumsum(-1)
        near |= ((mass - sampling.top_p).abs() < MASS_TIE).any(-1)
    return near


def ending_of(
    text: ChatText, prompt: int, before: int, tokens: Sequence[int], config: GenerationConfig, context: int
) -> tuple[int, StopReason] | None:
    """Where an answer must end, in tokens, and why; None if it goes on.

    Args:
        prompt: tokens of the prompt; before: those of the answer that were there already, where no stop string counts.
    """
    there = len(text.decode(list(tokens[:before])).rstrip("\ufffd"))  # without the part of a character
    for count in range(before + 1, len(tokens) + 1):
        if tokens[count - 1] in text.eos_ids:
            return count, "end_of_text"
        shown = text.decode(list(tokens[:count]))
        if any(stop in shown[there:] for stop in config.stop_strings):
            return count, "stop_string"
        if count - before == config.max_new_tokens:
            return count, "max_new_tokens"
        if prompt + count + LONGEST_ROUND > context:
            return count, "context_full"
    return None


def shown_text(text: ChatText, tokens: Sequence[int], stop_strings: Sequence[str] = (), before: int = 0) -> str:
    """An answer as it is shown: without the end-of-text token, up to the first stop string behind `before` tokens."""
    whole = text.decode(list(tokens[:-1] if tokens and tokens[-1] in text.eos_ids else tokens))
    there = len(text.decode(list(tokens[:before])).rstrip("\ufffd"))
    return whole[: min((at for stop in stop_strings if (at := whole.find(stop, there)) >= 0), default=None)]
