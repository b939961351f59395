"""What an exact answer must be, found without the engine under test.

Greedy tokens are held against plain decoding by an engine that nobody has used, and for a share of answers against
transformers' own `generate`. Where they part, transformers' logits tell a tie within rounding from a mismatch. Sampled
tokens become uniform numbers by the probabilities of one pass of transformers, without any cache (see `uniformity`).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.caches.tokens import common_prefix
from core.config import GenerationConfig, SamplingParams
from core.decoding.sampling import to_probs
from core.engine_info import NEAR_TIE_GAP
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Finished, StopReason
from core.generation.text import ChatText
from tests.exactness.listening import Committed
from tests.exactness.uniformity import ORDERS, Stretch, following, leaning, transformed
from tests.exactness.worlds import World

TIE = NEAR_TIE_GAP[torch.float32]  # gap of logits that rounding explains
MASS_TIE = 1e-4  # the same in probability, where top-p cuts
SAME_PROBABILITY = 1e-3  # largest difference between the engine's and the reference's probability of a token
AHEAD = 8  # tokens that plain decoding writes beyond those asked for: the answer may be continued
SHARE_BY_STOCK = 0.1  # of greedy answers that transformers' generate writes too


@dataclass(slots=True)
class Verdict:
    """What was found out about one stretch of an answer."""

    greedy_tokens: int = 0
    sampled_tokens: int = 0
    by_stock: int = 0  # greedy tokens that transformers' generate wrote too
    near_ties: int = 0
    at_a_cut: int = 0  # sampled tokens left out: rounding decides whether top-k or top-p keeps them
    mismatches: list[str] = field(default_factory=list)
    worst_gap: float = 0.0  # largest difference of probability of a sampled token to the reference's
    stretch: Stretch | None = None
    u: list[float] = field(default_factory=list)  # of sampled tokens, by token id; NaN: rounding decides


class Reference:
    """Judges the answers of one case."""

    def __init__(self, world: World, context: int, seed: int) -> None:
        self._world, self._context = world, context + 4 * LONGEST_ROUND
        self._rng = random.Random(seed)
        self._plain: dict[tuple[int, ...], list[int]] = {}  # by prompt

    def greedy(self, base: Sequence[int], tokens: Sequence[int]) -> Verdict:
        """Greedy `tokens` behind `base`, which is a prompt or a text that was sampled."""
        verdict, at, start = Verdict(greedy_tokens=len(tokens)), 0, list(base)
        while at < len(tokens):
            rest = list(tokens[at:])
            expected = self.plain(start, len(rest))
            if self._rng.random() < SHARE_BY_STOCK:
                expected = self._world.stock_text(start, len(rest))
                verdict.by_stock += len(rest)
            shared = common_prefix(expected, rest)
            at += shared
            if at == len(tokens):
                break
            logits = self._world.logits([*base, *tokens[:at]], 1)[0]
            gap = float(logits.max() - logits[tokens[at]])
            other = float(logits.max() - logits[expected[shared]])
            if max(gap, other) > TIE:
                verdict.mismatches.append(
                    f"token {at} of {len(tokens)} is {tokens[at]} ({gap:.3g} below the best), "
                    f"plain decoding writes {expected[shared]} ({other:.3g} below)"
                )
                break
            verdict.near_ties += 1
            at += 1
            start = [*base, *tokens[:at]]
        return verdict

    def plain(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Plain decoding, by an engine of its own for each prompt."""
        known = self._plain.get(tuple(prompt), [])
        if len(known) < num_tokens:
            engine = self._world.plain_engine(self._context)
            config = GenerationConfig(method="autoregressive", max_new_tokens=num_tokens + AHEAD)
            *_, finished = engine.generate(list(prompt), config)
            assert isinstance(finished, Finished) and len(finished.token_ids) == num_tokens + AHEAD
            known = self._plain[tuple(prompt)] = list(finished.token_ids)
        return known[:num_tokens]

    def sampled(
        self,
        base: Sequence[int],
        new: Sequence[Committed],
        sampling: SamplingParams,
        method: str,
        written: Sequence[float],
    ) -> Verdict:
        """Sampled tokens behind `base`.

        Args:
            new: the tokens.
            written: where these continue an answer with its seed, u of its tokens so far.
        """
        tokens, verdict = [one.record.token_id for one in new], Verdict(sampled_tokens=len(new))
        if not tokens:
            return verdict
        whole, count = [*base, *tokens[:-1]], len(tokens)
        logits = self._world.logits(whole, count)
        p = to_probs(logits, sampling).double()
        p = p / p.sum(-1, keepdim=True)
        at = torch.arange(count)
        drawn = torch.tensor(tokens)
        at_cut = near_cut(logits, sampling)
        own = p[at, drawn]
        told = torch.tensor([one.record.p for one in new], dtype=torch.float64)
        verdict.at_a_cut = int(at_cut.sum())
        sure = ~at_cut
        if bool(((own == 0) & sure).any()):
            where = int(((own == 0) & sure).nonzero()[0])
            verdict.mismatches.append(f"token {where} of {count} is {tokens[where]}, which has no probability")
            return verdict
        gaps = (own - told).abs()[sure]
        verdict.worst_gap = float(gaps.max()) if len(gaps) else 0.0
        if verdict.worst_gap > SAME_PROBABILITY:
            where = int(((own - told).abs() * sure).argmax())
            verdict.mismatches.append(
                f"token {where} of {count} ({tokens[where]}) has probability {own[where]:.5f}, "
                f"the engine drew it with {told[where]:.5f}"
            )
        q = torch.stack([p[n] if one.q is None else one.q.double() for n, one in enumerate(new)])
        small = 1e-9
        keys = {"token id": -torch.arange(p.shape[1]).expand_as(p), "p": p, "q / p": (q + small) / (p + small)}
        uniform = torch.tensor([self._rng.random() for _ in tokens], dtype=torch.float64)
        u = {name: transformed(p, drawn, keys[name], uniform)[sure].tolist() for name in ORDERS}
        by_id = torch.full((count,), torch.nan, dtype=torch.float64)
        by_id[sure] = torch.tensor(u["token id"], dtype=torch.float64)
        lean = {}
        guessed = torch.tensor([one.q is not None for one in new]) & sure
        if bool(guessed.any()):
            lean["leaning to the last guess"] = leaning(p[guessed], p[guessed], q[guessed], drawn[guessed])
        twice = torch.tensor([one.q is not None and one.below is not None for one in new]) & sure
        if bool(twice.any()):
            below = torch.stack([one.below.double() for n, one in enumerate(new) if twice[n] and one.below is not None])
            lean["leaning to the guess below"] = leaning(p[twice], q[twice], below, drawn[twice])
        if written:
            lean["following what was written"] = following(by_id, torch.tensor(written, dtype=torch.float64))
        verdict.stretch = Stretch(method, u, lean, next((last for last in written[-1:] if not math.isnan(last)), None))
        verdict.u = by_id.tolist()
        return verdict


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
        prompt: tokens of the prompt; before: those of the answer that were there already.
    """
    for count in range(before + 1, len(tokens) + 1):
        if tokens[count - 1] in text.eos_ids:
            return count, "end_of_text"
        shown = text.decode(list(tokens[:count]))
        if any(stop in shown for stop in config.stop_strings):
            return count, "stop_string"
        if count - before == config.max_new_tokens:
            return count, "max_new_tokens"
        if prompt + count + LONGEST_ROUND > context:
            return count, "context_full"
    return None


def shown_text(text: ChatText, tokens: Sequence[int], stop_strings: Sequence[str]) -> str:
    """An answer as it is shown: without the end-of-text token, up to the first stop string."""
    kept = list(tokens[:-1] if tokens and tokens[-1] in text.eos_ids else tokens)
    whole = text.decode(kept)
    found = [at for stop in stop_strings if (at := whole.find(stop)) >= 0]
    return whole[: min(found)] if found else whole
