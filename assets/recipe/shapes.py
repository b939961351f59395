"""Shapes of the bundled pair and their structured ("mimetic") initialisation.

Copying from the context needs two layers of attention that cooperate, and a small model spends most of a CPU's budget
until it stumbles on them. So the first weights already contain them, in the spirit of mimetic initialisation
(Trockman and Kolter, arXiv 2305.09828): layer 0 starts with heads that look 1, 2 and 3 tokens back and one that gathers
the last dozen tokens; layers 1 and 2 start with induction heads (Olsson et al., arXiv 2209.11895) that compare those
summaries and copy the token that followed. Everything is trained afterwards; nothing is frozen or masked.

The rotary base is 1e20, so nine of the 32 frequencies measure distances from 1 to 100,000 tokens and the other 23 hardly
turn within 131,072 positions: content is compared there, equally sharp at any distance.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from assets.recipe.tokens import TOKENIZER_SEED, VOCAB_SIZE, Layout
from core.bench.world import write_book

HEAD_DIM = 64
PAIRS = HEAD_DIM // 2
NUM_LOCAL_PAIRS = 9
ROPE_THETA = 1e20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one of the two models."""

    layers: int
    hidden: int
    heads: int
    mlp: int
    max_positions: int
    rope_theta: float


TARGET = Shape(layers=4, hidden=256, heads=4, mlp=512, max_positions=131072, rope_theta=ROPE_THETA)
DRAFT = Shape(layers=2, hidden=192, heads=3, mlp=320, max_positions=2048, rope_theta=ROPE_THETA)


def build(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A randomly initialised float32 model with silent output projections, attention through SDPA."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=4,
        pad_token_id=0,
        initializer_range=0.03,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(0.3)
            layer.self_attn.o_proj.weight.mul_(0.3)
    return model


@dataclass(frozen=True, slots=True)
class _Regions:
    """Which hidden dimensions start as what; training is free to mix them."""

    own: slice
    prev1: slice
    prev2: slice
    prev3: slice
    bag: slice
    constant: int
    out: slice


def _regions(hidden: int) -> _Regions:
    sizes = {256: (64, 48, 32, 16, 31), 192: (64, 32, 20, 0, 11)}[hidden]
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    parts = [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    return _Regions(*parts, constant=edges[-1], out=slice(hidden - 64, hidden))


def _orthonormal(rows: int, columns: int) -> Tensor:
    """Random [rows, columns] with orthonormal rows (or columns, whichever is fewer)."""
    q, _ = torch.linalg.qr(torch.randn(max(rows, columns), min(rows, columns)))
    return q if rows >= columns else q.T


def _frequencies(theta: float) -> Tensor:
    return theta ** (-torch.arange(PAIRS, dtype=torch.float64) / PAIRS)


class _Builder:
    """Writes heads into a model. `scale[l]` is the factor RMSNorm will apply before layer l."""

    def __init__(self, model: LlamaForCausalLM, regions: _Regions) -> None:
        self.model, self.at = model, regions
        self.free = [p + half for half in (0, PAIRS) for p in range(NUM_LOCAL_PAIRS, PAIRS)]  # 46 rows of a head

    def rows(self, layer: int, name: str, head: int) -> Tensor:
        weight = getattr(self.model.model.layers[layer].self_attn, f"{name}_proj").weight
        return weight[head * HEAD_DIM : (head + 1) * HEAD_DIM] if name != "o" else weight[:, head * HEAD_DIM : (head + 1) * HEAD_DIM]

    def look_back(self, layer: int, head: int, offset: float, strengths: tuple[float, ...], norm: float) -> None:
        """Attend to the token `offset` back: score(delta) = sum_p strengths[p] cos(w_p (delta - offset))."""
        q, k = self.rows(layer, "q", head), self.rows(layer, "k", head)
        q.zero_(), k.zero_()
        w = _frequencies(self.model.config.rope_parameters["rope_theta"])
        for p, strength in enumerate(strengths):
            amplitude = math.sqrt(strength * math.sqrt(HEAD_DIM)) / norm
            angle = -float(w[p]) * offset
            q[p, self.at.constant] = amplitude * math.cos(angle)
            q[p + PAIRS, self.at.constant] = amplitude * math.sin(angle)
            k[p, self.at.constant] = amplitude

    def carry(self, layer: int, head: int, source: slice, into: slice, mapping: Tensor, norm: float) -> None:
        """Write mapping @ source of the attended token into the region `into`, undoing the norm before the layer."""
        v, o = self.rows(layer, "v", head), self.rows(layer, "o", head)
        v.zero_(), o.zero_()
        width = source.stop - source.start
        v[:width, source] = torch.eye(width) / norm
        o[into, :width] = mapping

    def match(self, layer: int, head: int, pairs: list[tuple[Tensor, slice, Tensor, slice, float]], norm: float) -> None:
        """Compare features of the query token with features of the key token through the slow frequencies.

        Each pair is (map of the query side, its region, map of the key side, its region, nats when they agree).
        """
        q, k = self.rows(layer, "q", head), self.rows(layer, "k", head)
        q.zero_(), k.zero_()
        total = sum(p[0].shape[0] for p in pairs)
        assert total <= len(self.free), f"{total} features do not fit into {len(self.free)} rows"
        start = 0
        for q_map, q_at, k_map, k_at, nats in pairs:
            rows = self.free[start : start + q_map.shape[0]]
            gain = math.sqrt(nats * math.sqrt(HEAD_DIM)) / norm
            q[rows, q_at] = gain * q_map
            k[rows, k_at] = gain * k_map
            start += q_map.shape[0]


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


OFFSET_STRENGTHS = (30.0, 18.0, 15.0, 15.0, 15.0, 14.0, 12.0, 10.0)
BAG_STRENGTHS = (0.0, 1.6, 8.0, 14.0, 14.0, 14.0, 12.0, 10.0)


@torch.no_grad()
def structure(model: LlamaForCausalLM, pieces: list[str], rarity: Tensor, seed: int) -> None:
    """Write the starting circuit into `model`: local summaries in layer 0, induction heads above.

    Args:
        model: from `build`.
        pieces: the vocabulary in the order of ids.
        rarity: [V] in 0..1, near 0 for function words, 1 for names.
        seed: of the random codes.
    """
    torch.manual_seed(seed)
    hidden, layers = model.config.hidden_size, model.config.num_hidden_layers
    at = _regions(hidden)
    writer = _Builder(model, at)
    own, bag = token_codes(pieces, rarity, 64)
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0, 0.01)
    embedding[:, at.own], embedding[:, at.constant] = own, 1.0
    embedding[:, at.out] += bag
    norm = [math.sqrt(hidden / 2.5), math.sqrt(hidden / 6.0), math.sqrt(hidden / 7.0), math.sqrt(hidden / 8.0)]

    widths = [s.stop - s.start for s in (at.prev1, at.prev2, at.prev3, at.bag)]
    to1 = _orthonormal(widths[0], 64)                       # nested maps, so prev1's code can be compared with prev2's
    step2 = _orthonormal(widths[1], widths[0])
    gain1, gain2 = math.sqrt(64 / widths[0]), math.sqrt(widths[0] / widths[1])
    to2 = step2 @ to1
    bag_map = _orthonormal(widths[3], 64) * math.sqrt(64 / widths[3])
    writer.look_back(0, 0, 1, OFFSET_STRENGTHS, norm[0])
    writer.carry(0, 0, at.own, at.prev1, gain1 * to1, norm[0])
    writer.look_back(0, 1, 2, OFFSET_STRENGTHS, norm[0])
    writer.carry(0, 1, at.own, at.prev2, gain1 * gain2 * to2, norm[0])
    writer.look_back(0, 2, 5, BAG_STRENGTHS, norm[0])
    writer.carry(0, 2, at.out, at.bag, 2.5 * bag_map, norm[0])
    if widths[2]:
        step3 = _orthonormal(widths[2], widths[1])
        gain3 = math.sqrt(widths[1] / widths[2])
        writer.look_back(0, 3, 3, OFFSET_STRENGTHS, norm[0])
        writer.carry(0, 3, at.own, at.prev3, gain1 * gain2 * gain3 * step3 @ to2, norm[0])

    copy = 1.5 * _orthonormal(64, 64)
    for layer in range(1, min(layers, 3)):
        for head in range(2):
            dims = (18, 14, 0, 14) if widths[2] == 0 else ((18, 10, 6, 12), (12, 6, 4, 24))[head]
            nats = ((12.0, 9.0, 5.0, 8.0), (9.0, 5.0, 4.0, 20.0))[head]
            cut = [_orthonormal(d, w) * math.sqrt(w / max(d, 1)) for d, w in zip(dims, widths, strict=True)]
            pairs = [
                (gain1 * cut[0] @ to1, at.own, cut[0], at.prev1, nats[0]),
                (gain2 * cut[1] @ step2, at.prev1, cut[1], at.prev2, nats[1]),
            ]
            if widths[2]:
                pairs.append((gain3 * cut[2] @ step3, at.prev2, cut[2], at.prev3, nats[2]))
            pairs.append((cut[3], at.bag, cut[3], at.bag, nats[3]))
            writer.match(layer, head, pairs, norm[layer])
            writer.carry(layer, head, at.own, at.out, copy, norm[layer])
    head_weight = model.lm_head.weight
    head_weight.normal_(0, 0.01)
    head_weight[:, at.out] += 1.5 * own @ copy.T / 1.5


def word_rarity(layout: Layout, num_books: int = 50) -> Tensor:
    """[V] 0 for tokens more frequent than 1 in 200, 1 for those rarer than 1 in 2000, by their share of sample books."""
    counts: Counter[int] = Counter()
    for index in range(num_books):
        counts.update(layout.ids(write_book(TOKENIZER_SEED + index, 1500).text))
    share = torch.tensor([counts[i] / counts.total() for i in range(VOCAB_SIZE)])
    return ((-torch.log(share + 1e-5) - math.log(200)) / math.log(10)).clamp(0, 1)
