"""The structured ("mimetic") initialisation of the bundled pair.

Copying from the context needs two layers of attention that cooperate, and a small model spends most of a CPU's budget
until it stumbles on them. So the first weights already contain them, in the spirit of mimetic initialisation
(Trockman and Kolter, arXiv 2305.09828): layer 0 starts with heads that look 1, 2 and 3 tokens back and one that
gathers the rare words among the last dozen; layers 1 and 2 start with two induction heads each (Olsson et al., arXiv
2209.11895) that compare those summaries and copy the token that followed. The MLPs, the other heads and layer 3 start
at random, and everything is trained afterwards; nothing is frozen or masked. Untrained it copies, but cannot answer.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from assets.recipe.shapes import HEAD_DIM
from assets.recipe.tokens import TOKENIZER_SEED, VOCAB_SIZE, Layout
from core.bench.world import write_book

PAIRS = HEAD_DIM // 2
NUM_LOCAL_PAIRS = 9
# Strength in nats of each rotary frequency, fastest first: sharp at one offset, or a window of about a dozen tokens.
# The slower frequencies only silence the places, up to 131,072 tokens away, where the faster ones come round again.
OFFSET_STRENGTHS = (30.0, 18.0, 15.0, 15.0, 15.0, 14.0, 12.0, 10.0)
WINDOW_STRENGTHS = (0.0, 1.6, 8.0, 14.0, 14.0, 14.0, 12.0, 10.0)
WINDOW_CENTRE = 5.0
RARE_NATS = 7.0  # how much less the window head cares for the most frequent tokens
BAG_GAIN = 1.4
COPY_GAIN = 1.5
# Sum of squares of the hidden state before each layer, which RMSNorm divides by.
SQUARES = (3.0, 6.5, 7.5, 8.5)
# Of the two induction heads of a layer: features given to, and nats for, a match of the token itself, of the one
# before, of the one before that, and of the gathered rare words.
FEATURES = {256: ((18, 10, 6, 12), (12, 6, 4, 24)), 192: ((18, 14, 0, 14), (18, 14, 0, 14))}
NATS = ((16.0, 9.0, 5.0, 10.0), (12.0, 5.0, 4.0, 20.0))


@dataclass(frozen=True, slots=True)
class _Regions:
    """Which hidden dimensions start as what; training is free to mix them."""

    own: slice
    prev1: slice
    prev2: slice
    prev3: slice
    bag: slice
    constant: int
    common: int
    out: slice


def _regions(hidden: int) -> _Regions:
    sizes = {256: (64, 48, 32, 16, 30), 192: (64, 28, 16, 0, 18)}[hidden]
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    parts = [slice(a, b) for a, b in pairwise(edges)]
    return _Regions(*parts, constant=edges[-1], common=edges[-1] + 1, out=slice(hidden - 64, hidden))


def _orthonormal(rows: int, columns: int) -> Tensor:
    """Random [rows, columns] with orthonormal rows (or columns, whichever is fewer)."""
    q, _ = torch.linalg.qr(torch.randn(max(rows, columns), min(rows, columns)))
    return q if rows >= columns else q.T


def _frequencies(theta: float) -> Tensor:
    return theta ** (-torch.arange(PAIRS, dtype=torch.float64) / PAIRS)


class _Pair(NamedTuple):
    """Two features to compare, and the score in nats when they agree. Maps are [features, width of the region]."""

    query_map: Tensor
    query_at: slice
    key_map: Tensor
    key_at: slice
    nats: float


class _Builder:
    """Writes heads into a model. `norm` is always the factor that RMSNorm will apply before the layer."""

    def __init__(self, model: LlamaForCausalLM, regions: _Regions) -> None:
        self.model, self.at = model, regions
        self.free = [p + half for half in (0, PAIRS) for p in range(NUM_LOCAL_PAIRS, PAIRS)]  # 46 rows of a head

    def part(self, layer: int, name: str, head: int) -> Tensor:
        weight = getattr(self.model.model.layers[layer].self_attn, f"{name}_proj").weight
        part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        return weight[:, part] if name == "o" else weight[part]

    def look_back(self, layer: int, head: int, offset: float, strengths: tuple[float, ...], norm: float) -> None:
        """Attend to the token `offset` back: score(delta) = sum_p strengths[p] cos(w_p (delta - offset))."""
        q, k = self.part(layer, "q", head), self.part(layer, "k", head)
        q.zero_(), k.zero_()
        w = _frequencies(self.model.config.rope_parameters["rope_theta"])
        for p, strength in enumerate(strengths):
            amplitude = math.sqrt(strength * math.sqrt(HEAD_DIM)) / norm
            angle = -float(w[p]) * offset
            q[p, self.at.constant] = amplitude * math.cos(angle)
            q[p + PAIRS, self.at.constant] = amplitude * math.sin(angle)
            k[p, self.at.constant] = amplitude

    def prefer_rare(self, layer: int, head: int, nats: float, norm: float) -> None:
        """Take up to `nats` from the scores of frequent tokens."""
        q, k = self.part(layer, "q", head), self.part(layer, "k", head)
        gain = math.sqrt(nats * math.sqrt(HEAD_DIM)) / norm
        q[self.free[-1], self.at.constant] = gain
        k[self.free[-1], self.at.common] = -gain

    def carry(self, layer: int, head: int, source: slice, into: slice, mapping: Tensor, norm: float) -> None:
        """Write mapping @ source of the attended token into the region `into`, undoing the norm before the layer."""
        v, o = self.part(layer, "v", head), self.part(layer, "o", head)
        v.zero_(), o.zero_()
        width = source.stop - source.start
        v[:width, source] = torch.eye(width) / norm
        o[into, :width] = mapping

    def match(self, layer: int, head: int, pairs: list[_Pair], norm: float) -> None:
        """Compare features of the query token with features of the key token through the slow frequencies."""
        q, k = self.part(layer, "q", head), self.part(layer, "k", head)
        q.zero_(), k.zero_()
        total = sum(pair.query_map.shape[0] for pair in pairs)
        assert total <= len(self.free), f"{total} features do not fit into {len(self.free)} rows"
        start = 0
        for pair in pairs:
            rows = self.free[start : start + pair.query_map.shape[0]]
            gain = math.sqrt(pair.nats * math.sqrt(HEAD_DIM)) / norm
            q[rows, pair.query_at] = gain * pair.query_map
            k[rows, pair.key_at] = gain * pair.key_map
            start += len(rows)


def token_codes(pieces: list[str], rarity: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """Unit codes [V, dims] per token and codes weighted by rarity [V, dims].

    Tokens that differ only in a leading space or in case share most of their code, so that a name at the start of an
    answer finds the same name within a sentence.
    """
    stems: dict[str, Tensor] = {}
    own, bag = [], []
    for piece in pieces:
        stem = piece.removeprefix("Ġ").lower()
        base = stems.setdefault(stem, torch.nn.functional.normalize(torch.randn(2 * dims), dim=0))
        code = torch.nn.functional.normalize(base[:dims], dim=0) * 0.87
        own.append(code + 0.5 * torch.nn.functional.normalize(torch.randn(dims), dim=0))
        bag.append(torch.nn.functional.normalize(base[dims:], dim=0))
    return torch.nn.functional.normalize(torch.stack(own), dim=1), torch.stack(bag) * rarity[:, None]


@torch.no_grad()
def structure(model: LlamaForCausalLM, pieces: list[str], rarity: Tensor, seed: int) -> None:
    """Write the starting circuit into `model`: local summaries in layer 0, induction heads above.

    Args:
        model: from `build`.
        pieces: the vocabulary in the order of ids.
        rarity: [V] in 0..1, 0 for function words, 1 for rare words.
        seed: of the random codes.
    """
    torch.manual_seed(seed)
    hidden = model.config.hidden_size
    at = _regions(hidden)
    own, bag = token_codes(pieces, rarity, 64)
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0, 0.003)
    embedding[:, at.own], embedding[:, at.constant] = own, 1.0
    embedding[:, at.out] += bag
    embedding[:, at.common] = (1 - rarity**2).sqrt()  # every embedding has the same norm, so scores stay comparable
    writer = _Builder(model, at)
    norms = [math.sqrt(hidden / squares) for squares in SQUARES]
    maps = _write_summaries(writer, norms[0])
    copy = COPY_GAIN * _orthonormal(64, 64)
    for layer in range(1, min(model.config.num_hidden_layers, 3)):
        for head in range(2):
            writer.match(layer, head, _compared(at, maps, FEATURES[hidden][head], NATS[head]), norms[layer])
            writer.carry(layer, head, at.own, at.out, copy, norms[layer])
    model.lm_head.weight.normal_(0, 0.01)
    model.lm_head.weight[:, at.out] += own @ copy.T


def _write_summaries(writer: _Builder, norm: float) -> list[Tensor]:
    """Give layer 0 its heads; return the maps from the code of one token back to that of the token before it.

    The maps are nested, so that "the token before the query" and "the token two before the key" can be compared.
    """
    at = writer.at
    targets = [region for region in (at.prev1, at.prev2, at.prev3) if region.stop > region.start]
    widths = [64, *(region.stop - region.start for region in targets)]
    steps = [_orthonormal(small, large) * math.sqrt(large / small) for large, small in pairwise(widths[:3])]
    bag_width = at.bag.stop - at.bag.start
    bag_map = _orthonormal(bag_width, 64) * math.sqrt(64 / bag_width)
    steps += [_orthonormal(small, large) * math.sqrt(large / small) for large, small in pairwise(widths[2:])]
    heads = (0, 1, 3)
    mapping = torch.eye(64)
    for offset, (head, region, step) in enumerate(zip(heads, targets, steps, strict=False), start=1):
        mapping = step @ mapping
        writer.look_back(0, head, offset, OFFSET_STRENGTHS, norm)
        writer.carry(0, head, at.own, region, mapping, norm)
    writer.look_back(0, 2, WINDOW_CENTRE, WINDOW_STRENGTHS, norm)
    writer.prefer_rare(0, 2, RARE_NATS, norm)
    writer.carry(0, 2, at.out, at.bag, BAG_GAIN * bag_map, norm)
    return steps


def _compared(at: _Regions, steps: list[Tensor], features: tuple[int, ...], nats: tuple[float, ...]) -> list[_Pair]:
    """What an induction head compares: the query's last tokens with those before the key, and the gathered words."""
    regions = [at.own, at.prev1, at.prev2, at.prev3]
    widths = [region.stop - region.start for region in (*regions[1:], at.bag)]
    cuts = [_orthonormal(d, w) * math.sqrt(w / max(d, 1)) for d, w in zip(features, widths, strict=True)]
    pairs = [
        _Pair(cut @ step, query_at, cut, key_at, strength)
        for cut, step, (query_at, key_at), strength in zip(cuts, steps, pairwise(regions), nats, strict=False)
    ]
    return [*pairs, _Pair(cuts[3], at.bag, cuts[3], at.bag, nats[3])]


def word_rarity(layout: Layout, num_books: int = 50) -> Tensor:
    """[V] 0 for tokens more frequent than 1 in 100 in sample books, 1 for words rarer than 1 in 500."""
    counts: Counter[int] = Counter()
    for index in range(num_books):
        counts.update(layout.ids(write_book(TOKENIZER_SEED + index, 1500).text))
    share = torch.tensor([counts[i] / counts.total() for i in range(VOCAB_SIZE)])
    rarity = ((-torch.log(share + 1e-5) - math.log(100)) / math.log(5)).clamp(0, 1)
    is_word = [layout.tokenizer.decode([i]).strip().isalnum() for i in range(VOCAB_SIZE)]
    return rarity * torch.tensor(is_word)
