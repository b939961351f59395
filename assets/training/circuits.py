"""The structured ("mimetic") initialisation of the bundled pair.

Copying from the context needs two layers of attention that cooperate, and a small model spends most of a CPU's budget
until it stumbles on them. So the first weights already contain them, in the spirit of mimetic initialisation
(Trockman and Kolter, arXiv 2305.09828): layer 0 starts with heads that look 1, 2 and 3 tokens back and one that
gathers the rare words among the last dozen; layers 1 and 2 start with induction heads (Olsson et al., arXiv
2209.11895) that compare those summaries and copy the token that followed: two each, one in layer 1 of the target. What
nothing is written into starts at random, and everything is trained afterwards. Untrained it copies, but cannot answer.

To quote the sentence around a phrase, the target must walk back from the phrase to the sentence's first words. Layer 1
lets every token know the first three tokens of its sentence, layer 2 looks up the phrase of the question, layer 3
brings what was found to the start of the answer. To leave open what the book leaves open, a verb behind a name looks
for the same verb behind the same name. And a head of layer 2 looks for the same token among the last two dozen only, so
that an answer which has begun with a first name goes on with the surname of the question and not with one of the book.
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

from assets.tools.books.generated import write_book
from assets.training.shapes import HEAD_DIM
from assets.training.tokens import TOKENIZER_SEED, VOCAB_SIZE, Layout

PAIRS = HEAD_DIM // 2
NUM_LOCAL_PAIRS = 9
# Strength in nats of each rotary frequency, fastest first: sharp at one offset, or a window of about a dozen tokens.
# The slower frequencies only silence the places, up to 131,072 tokens away, where the faster ones come round again.
OFFSET_STRENGTHS = (30.0, 18.0, 15.0, 15.0, 15.0, 14.0, 12.0, 10.0)
WINDOW_STRENGTHS = (0.0, 1.6, 8.0, 14.0, 14.0, 14.0, 12.0, 10.0)
WINDOW_CENTRE = 5.0
RARE_NATS = 7.0  # how much less the window head cares for the most frequent tokens
BAG_GAIN = 1.4
LOOK_BACK_HEADS = (0, 1, 3)  # of layer 0: one, two and three tokens back
COPY_GAIN = 1.5
# Sum of squares of the hidden state before each layer, which RMSNorm divides by.
SQUARES = (3.0, 7.0, 12.5, 40.0)
# Of the two induction heads of a layer: features given to, and nats for, a match of the token itself, of the one
# before, of the one before that, and of the gathered rare words.
FEATURES = {336: ((18, 10, 6, 12), (12, 6, 4, 24)), 162: ((18, 14, 0, 14), (18, 14, 0, 14))}
NATS = ((16.0, 9.0, 5.0, 10.0), (12.0, 5.0, 4.0, 20.0))
# The nearest start of a sentence: falling with distance (a sine over 118 tokens), silent where that comes round again.
NEAREST_STRENGTHS = (0.0, 0.0, 0.0, 40.0, 200.0, 100.0, 60.0, 40.0)
NEAREST_BASE = 400.0  # taken from all keys alike, so that the length of a hidden state matters little
NEAREST_PHASES = (0.0, 0.0, 0.0, math.pi / 2)
BOUNDARY_NATS = 45.0
# The first dimensions of a token's code say exactly what a random code says only roughly.
FLAGS = {
    "boundary": (".", "Ġ.", "!", "?", '."', '!"', '?"', ".)", "ĊĊ", "Ċ"),
    "blank": ("ĊĊ",),
    "closing": ('".', "<|end|>"),
}
FLAGS |= {"newline": ("Ċ",), "speaker": ("<|assistant|>",), "opening": ("<|bos|>",)}
# Words that tell of a fact, as the question and as the book have them. Both of a pair get nearly the same code.
VERBS = {
    "keep": "kept", "come": "came", "earn": "earned", "live": "lived", "like": "liked", "trust": "trusted",
    "dream": "dreamed", "know": "knew", "belong": "belonged", "bear": "bore", "carry": "carried", "sink": "sank",
    "write": "wrote", "meet": "met", "owe": "owed", "cost": "cost", "hidden": "hidden", "made": "made",
    "lost": "lost", "born": "born", "afraid": "afraid", "inn": "inn",
}  # fmt: skip
FLAGS |= {"verb": tuple(f"Ġ{word}" for pair in VERBS.items() for word in pair)}
FLAG_SIZE = 0.6
OPENING_SIZE = 1.0  # nothing else is in the code of the first token of all, so it resembles no other
PHRASE_FEATURES, PHRASE_NATS = (18, 12, 8, 8), (16.0, 10.0, 6.0, 6.0)  # its last three tokens, and the rare words
PHRASE_BACK = 5  # from the start of the answer to the last token of the phrase
# "Keep" behind a name, in a question: does "kept" follow that name in the book? Compared are the verb, the two tokens
# before it, and, where "was" stands between, the one before that; or the first token of all is looked at, if too little
# agrees. Only verbs look.
TOLD_FEATURES = ((17, 12, 12), (17, 17))
TOLD_NATS = ((46.0, 20.0, 20.0), (46.0, 30.0))  # a verb's flag leaves 0.64 of its code: 30 nats
TOLD_ENOUGH = (61.0, 53.0)
NOT_A_VERB = 40.0
TOLD_GAIN = 1.5
GATE_NATS = 10.0
SINK = 10.0  # size of the key of the first token of all, where a head settles
# The name in the question: the token before the key is the query's own, at about RECENT_CENTRE tokens back; else the
# first token of all is looked at. Keys that are frequent tokens count less.
RECENT_CENTRE, RECENT_STRENGTHS = 9.0, (0.0, 2.0, 12.0, 14.0, 14.0, 14.0, 12.0, 10.0)
RECENT_BASE, RECENT_NATS, RECENT_ENOUGH, RECENT_RARE = 72.0, 26.0, 20.0, 20.0
RECENT_FEATURES = 40
NAMING_GAIN = 1.5
LOOKUP_GAIN = 1.6


@dataclass(frozen=True, slots=True)
class Regions:
    """Which hidden dimensions start as what; training is free to mix them."""

    own: slice
    prev1: slice
    prev2: slice
    prev3: slice
    bag: slice
    constant: int
    common: int
    start: tuple[slice, ...]  # the first three tokens of the sentence
    told: slice  # whether the book says what the verb here tells, found in two ways
    out: slice

    @property
    def width(self) -> int:
        """Dimensions of a token's code."""
        return self.own.stop - self.own.start


def regions_of(hidden: int) -> Regions:
    """The regions of a target (336) or a draft (162)."""
    sizes = {336: (64, 44, 36, 24, 36, 2, 28, 21, 15), 162: (48, 28, 18, 0, 18, 2)}[hidden]
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    parts = [slice(a, b) for a, b in pairwise(edges)]
    constant = parts[5].start
    out = slice(hidden - sizes[0], hidden)
    return Regions(
        *parts[:5],
        constant=constant,
        common=constant + 1,
        start=tuple(parts[6:9]),
        told=slice(edges[-1], edges[-1] + 2),
        out=out,
    )


def orthonormal(rows: int, columns: int) -> Tensor:
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


class Builder:
    """Writes heads into a model. `norm` is always the factor that RMSNorm will apply before the layer."""

    def __init__(self, model: LlamaForCausalLM, regions: Regions) -> None:
        self.model, self.at = model, regions
        self.free = [p + half for half in (0, PAIRS) for p in range(NUM_LOCAL_PAIRS, PAIRS)]  # 46 rows of a head

    def part(self, layer: int, name: str, head: int) -> Tensor:
        """What one head has of a projection: rows of q, k and v, columns of o; writing to it writes to the model."""
        weight = getattr(self.model.model.layers[layer].self_attn, f"{name}_proj").weight
        part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        return weight[:, part] if name == "o" else weight[part]

    def look_back(
        self,
        layer: int,
        head: int,
        offset: float,
        strengths: tuple[float, ...],
        norm: float,
        phases: tuple[float, ...] = (),
    ) -> None:
        """Attend to the token `offset` back: sum_p strengths[p] cos(w_p (delta - offset) + phases[p])."""
        q, k = self.part(layer, "q", head), self.part(layer, "k", head)
        q.zero_(), k.zero_()
        w = _frequencies(self.model.config.rope_parameters["rope_theta"])
        for p, strength in enumerate(strengths):
            amplitude = math.sqrt(strength * math.sqrt(HEAD_DIM)) / norm
            angle = -float(w[p]) * offset + (phases[p] if p < len(phases) else 0.0)
            q[p, self.at.constant] = amplitude * math.cos(angle)
            q[p + PAIRS, self.at.constant] = amplitude * math.sin(angle)
            k[p, self.at.constant] = amplitude

    def lower(self, layer: int, head: int, nats: float, norm: float) -> None:
        """Take `nats` from all scores, in proportion to the length that the norm gives the key."""
        gain = math.sqrt(nats * math.sqrt(HEAD_DIM)) / norm
        self.part(layer, "q", head)[self.free[-3], self.at.constant] = gain
        self.part(layer, "k", head)[self.free[-3], self.at.constant] = -gain

    def prefer_rare(self, layer: int, head: int, nats: float, norm: float) -> None:
        """Take up to `nats` from the scores of frequent tokens."""
        q, k = self.part(layer, "q", head), self.part(layer, "k", head)
        gain = math.sqrt(nats * math.sqrt(HEAD_DIM)) / norm
        q[self.free[-1], self.at.constant] = gain
        k[self.free[-1], self.at.common] = -gain

    def prefer(self, layer: int, head: int, wanted: list[tuple[slice, Tensor]], nats: float, norm: float) -> None:
        """Give `nats` to keys that look like every direction, [width of its region] each, in its region."""
        q, k = self.part(layer, "q", head), self.part(layer, "k", head)
        gain = math.sqrt(nats * math.sqrt(HEAD_DIM)) / norm
        q[self.free[-2], self.at.constant] = gain
        for region, direction in wanted:
            k[self.free[-2], region] += gain * direction

    def settle(self, layer: int, head: int, nats: float, norm: float) -> None:
        """Give `nats`, wherever it stands, to the first token of all: what is looked at where nothing scores more."""
        k, opening = self.part(layer, "k", head), _flag("opening", self.at.width)
        k[:, self.at.own] -= torch.outer(k[:, self.at.constant], opening)  # no share in what all tokens get
        self.part(layer, "q", head)[self.free[-2], self.at.constant] = nats * math.sqrt(HEAD_DIM) / SINK / norm
        k[self.free[-2], self.at.own] = SINK / norm * opening

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


def token_codes(pieces: list[str], rarity: Tensor, dims: int, cuts: list[int]) -> tuple[Tensor, Tensor]:
    """Unit codes [V, dims] per token and codes weighted by rarity [V, dims].

    Tokens that differ only in a leading space or in case share most of their code, so that a name at the start of an
    answer finds the same name within a sentence.
    """
    stems: dict[str, Tensor] = {}
    own, bag = [], []
    for piece in pieces:
        stem = piece.removeprefix("Ġ").lower()
        stem = VERBS.get(stem, stem)
        base = stems.setdefault(stem, torch.nn.functional.normalize(torch.randn(2 * dims), dim=0))
        code = torch.nn.functional.normalize(base[:dims], dim=0) * 0.87
        distinct = 0.5 if stem not in VERBS.values() else 0.2
        own.append(code + distinct * torch.nn.functional.normalize(torch.randn(dims), dim=0))
        bag.append(torch.nn.functional.normalize(base[dims:], dim=0))
    codes, flags = torch.stack(own), torch.zeros(len(pieces), len(FLAGS))
    for index, tokens in enumerate(FLAGS.values()):
        flags[[number for number, piece in enumerate(pieces) if piece in tokens], index] = _flag_size(index)
    parts = []  # every prefix that a look-back region keeps has the same length for all tokens: so has the hidden state
    for start, stop in pairwise(sorted({len(FLAGS), *cuts, dims})):
        share = math.sqrt((stop - start) / (dims - len(FLAGS)))
        parts.append(share * torch.nn.functional.normalize(codes[:, start:stop], dim=1))
    rest = torch.cat(parts, 1) * (1 - flags.square().sum(1, keepdim=True)).sqrt()
    return torch.cat((flags, rest), 1), torch.stack(bag) * rarity[:, None]


def _flag(name: str, width: int) -> Tensor:
    """The direction of a flag in a region of this width: 1 for the tokens that carry it, 0 for all others."""
    direction = torch.zeros(width)
    index = list(FLAGS).index(name)
    direction[index] = 1 / _flag_size(index)
    return direction


def _flag_size(index: int) -> float:
    return OPENING_SIZE if list(FLAGS)[index] == "opening" else FLAG_SIZE


def _select(dims: int, width: int) -> Tensor:
    """A map [dims, width] to a part of a code that has length 1 for every token without flags."""
    mapping = torch.zeros(dims, width)
    mapping[:, len(FLAGS) : len(FLAGS) + dims] = torch.eye(dims) * math.sqrt((width - len(FLAGS)) / dims)
    return mapping


def _shrink(small: int, large: int) -> Tensor:
    """A map [small, large] from a code to its first dimensions; flags stay as they are, and so does the length."""
    mapping = torch.eye(small, large)
    mapping[len(FLAGS) :] *= math.sqrt((large - len(FLAGS)) / (small - len(FLAGS)))
    return mapping


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
    at = regions_of(hidden)
    cuts = [region.stop - region.start for region in (at.prev1, at.prev2, at.prev3)]
    cuts += [len(FLAGS) + size for sizes in TOLD_FEATURES for size in sizes]
    own, bag = token_codes(pieces, rarity, at.width, [cut for cut in cuts if cut < at.width and cut])
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0, 0.003)
    embedding[:, at.own], embedding[:, at.constant] = own, 1.0
    embedding[:, at.out] += bag
    embedding[:, at.common] = (1 - rarity**2).sqrt()  # every embedding has the same norm, so scores stay comparable
    writer = Builder(model, at)
    norms = [math.sqrt(hidden / squares) for squares in SQUARES]
    maps = _write_summaries(writer, norms[0])
    copy = COPY_GAIN * orthonormal(at.width, at.width)
    for layer in range(1, min(model.config.num_hidden_layers, 3)):
        for head in (0, 1) if layer > 1 or not at.start else (0,):
            writer.match(layer, head, _compared(at, maps, FEATURES[hidden][head], NATS[head]), norms[layer])
            writer.carry(layer, head, at.own, at.out, copy, norms[layer])
    if at.start:
        _write_quoting(writer, maps, copy, norms)
        _write_telling(writer, norms)
        _write_naming(writer, maps, copy / COPY_GAIN, norms[2])
    model.lm_head.weight.normal_(0, 0.01)
    model.lm_head.weight[:, at.out] += own @ copy.T


def _write_quoting(writer: Builder, steps: list[Tensor], copy: Tensor, norms: list[float]) -> None:
    """From a phrase in the question to the first three tokens of the sentence that holds it."""
    at = writer.at
    regions = [at.own, at.prev1, at.prev2, at.prev3]
    widths = [region.stop - region.start for region in regions]
    starts = slice(at.start[0].start, at.start[-1].stop)
    flags = [region.start + index for region in regions for index in range(len(FLAGS))]
    flags += [*range(at.told.start, at.told.stop), at.constant, at.common]
    for number, layer in enumerate(writer.model.model.layers):  # nothing else may write there
        layer.mlp.down_proj.weight[flags] = 0
        for head in range(writer.model.config.num_attention_heads):
            if number > 0 or head not in LOOK_BACK_HEADS:
                layer.self_attn.o_proj.weight[flags, head * HEAD_DIM : (head + 1) * HEAD_DIM] = 0
    begins = [orthonormal(r.stop - r.start, at.width) * math.sqrt(at.width / (r.stop - r.start)) for r in at.start]
    for number, (region, begin) in enumerate(zip(at.start, begins, strict=True), start=1):
        head = number + 1
        writer.look_back(1, head, 0.0, NEAREST_STRENGTHS, norms[1], NEAREST_PHASES)
        writer.lower(1, head, NEAREST_BASE, norms[1])
        # where a blank line follows the end of the last sentence, the sentence starts behind it
        wanted = [
            (regions[number], _flag("boundary", widths[number])),
            (regions[number - 1], -_flag("blank", widths[number - 1])),
        ]
        writer.prefer(1, head, wanted, BOUNDARY_NATS, norms[1])
        writer.carry(1, head, at.own, region, begin, norms[1])
    pairs = []
    for index, (dims, nats) in enumerate(zip(PHRASE_FEATURES[:3], PHRASE_NATS[:3], strict=True)):
        cut = orthonormal(dims, widths[index + 1]) * math.sqrt(widths[index + 1] / dims)
        pairs.append(_Pair(cut @ steps[index], regions[index], cut, regions[index + 1], nats))
    width = at.bag.stop - at.bag.start
    cut = orthonormal(PHRASE_FEATURES[3], width) * math.sqrt(width / PHRASE_FEATURES[3])
    writer.match(2, 3, [*pairs, _Pair(cut, at.bag, cut, at.bag, PHRASE_NATS[3])], norms[2])
    found = LOOKUP_GAIN * torch.eye(starts.stop - starts.start)
    writer.carry(2, 3, starts, starts, found, norms[2])
    for number, (head, region) in enumerate(zip((0, 2, 3), at.start, strict=True)):
        writer.look_back(3, head, PHRASE_BACK + number, OFFSET_STRENGTHS, norms[3])
        writer.lower(3, head, 0.8 * sum(OFFSET_STRENGTHS), norms[3])
        writer.carry(3, head, region, region, LOOKUP_GAIN * torch.eye(region.stop - region.start), norms[3])
    mlp, first = writer.model.model.layers[3].mlp, 0
    norm = math.sqrt(writer.model.config.hidden_size / SQUARES[-1])
    for number, (region, begin) in enumerate(zip(at.start, begins, strict=True)):
        units = slice(first, first + region.stop - region.start)
        gate = torch.zeros(writer.model.config.hidden_size)
        gate[regions[number]] = _flag("newline", widths[number])
        gate[regions[number + 1]] = _flag("speaker", widths[number + 1])
        gate[at.constant] = -1.5  # only where both are there
        mlp.gate_proj.weight[units] = GATE_NATS / norm * gate
        mlp.up_proj.weight[units] = 0
        mlp.up_proj.weight[units, region] = torch.eye(region.stop - region.start) / norm
        mlp.down_proj.weight[:, units] = 0
        mlp.down_proj.weight[at.out, units] = copy @ begin.T / (GATE_NATS / 2) / 2
        first = units.stop


def _write_telling(writer: Builder, norms: list[float]) -> None:
    """Whether the book tells the fact that a question asks for: a flag at the verb, then at the answer."""
    at = writer.at
    regions = [at.own, at.prev1, at.prev2, at.prev3]
    widths = [region.stop - region.start for region in regions]
    pairs_of = (((0, 1), (1, 2), (2, 3)), ((0, 1), (1, 3)))  # query region -> key region
    for way, (layer, head) in enumerate(((1, 5), (1, 1))):
        pairs = []
        for (a, b), dims, nats in zip(pairs_of[way], TOLD_FEATURES[way], TOLD_NATS[way], strict=True):
            cuts = [_select(dims, widths[region]) for region in (a, b)]
            pairs.append(_Pair(cuts[0], regions[a], cuts[1], regions[b], nats))
        writer.match(layer, head, pairs, norms[layer])
        writer.settle(layer, head, TOLD_ENOUGH[way] + NOT_A_VERB, norms[layer])
        q = writer.part(layer, "q", head)
        q[writer.free[-2], at.own] = -NOT_A_VERB * math.sqrt(HEAD_DIM) / SINK / norms[layer] * _flag("verb", at.width)
        v, o = writer.part(layer, "v", head), writer.part(layer, "o", head)
        v.zero_(), o.zero_()
        v[0, at.constant] = 1 / norms[layer]
        v[0, at.own] = -1 / norms[layer] * _flag("opening", at.width)
        o[at.told.start + way, 0] = TOLD_GAIN
    writer.look_back(3, 1, 0.0, NEAREST_STRENGTHS, norms[3], NEAREST_PHASES)
    writer.lower(3, 1, NEAREST_BASE, norms[3])
    writer.prefer(3, 1, [(at.own, _flag("verb", at.width))], BOUNDARY_NATS, norms[3])
    writer.carry(3, 1, at.told, at.told, TOLD_GAIN * torch.eye(2), norms[3])


def _write_naming(writer: Builder, steps: list[Tensor], copy: Tensor, norm: float) -> None:
    """From a first name to the surname that followed it a moment ago, in the question."""
    at, layer, head = writer.at, 2, 4
    width = at.prev1.stop - at.prev1.start
    cut = orthonormal(RECENT_FEATURES, width) * math.sqrt(width / RECENT_FEATURES)
    writer.match(layer, head, [_Pair(cut @ steps[0], at.own, cut, at.prev1, RECENT_NATS)], norm)
    compared = [writer.part(layer, name, head).clone() for name in ("q", "k")]
    writer.look_back(layer, head, RECENT_CENTRE, RECENT_STRENGTHS, norm)
    for name, rows in zip(("q", "k"), compared, strict=True):
        writer.part(layer, name, head).add_(rows)
    writer.lower(layer, head, RECENT_BASE, norm)
    writer.prefer_rare(layer, head, RECENT_RARE, norm)
    writer.settle(layer, head, RECENT_ENOUGH, norm)
    writer.carry(layer, head, at.own, at.out, NAMING_GAIN * copy, norm)
    writer.part(layer, "v", head)[: at.width, at.own.start : at.own.start + len(FLAGS)] = (
        0  # the first token says nothing
    )


def _write_summaries(writer: Builder, norm: float) -> list[Tensor]:
    """Give layer 0 its heads; return the maps from the code of one token back to that of the token before it.

    The maps are nested, so that "the token before the query" and "the token two before the key" can be compared.
    """
    at = writer.at
    targets = [region for region in (at.prev1, at.prev2, at.prev3) if region.stop > region.start]
    widths = [at.width, *(region.stop - region.start for region in targets)]
    steps = [_shrink(small, large) for large, small in pairwise(widths[:3])]
    bag_width = at.bag.stop - at.bag.start
    bag_map = orthonormal(bag_width, at.width) * math.sqrt(at.width / bag_width)
    steps += [_shrink(small, large) for large, small in pairwise(widths[2:])]
    mapping = torch.eye(at.width)
    for offset, (head, region, step) in enumerate(zip(LOOK_BACK_HEADS, targets, steps, strict=False), start=1):
        mapping = step @ mapping
        writer.look_back(0, head, offset, OFFSET_STRENGTHS, norm)
        writer.carry(0, head, at.own, region, mapping, norm)
    writer.look_back(0, 2, WINDOW_CENTRE, WINDOW_STRENGTHS, norm)
    writer.prefer_rare(0, 2, RARE_NATS, norm)
    writer.carry(0, 2, at.out, at.bag, BAG_GAIN * bag_map, norm)
    return steps


def _compared(at: Regions, steps: list[Tensor], features: tuple[int, ...], nats: tuple[float, ...]) -> list[_Pair]:
    """What an induction head compares: the query's last tokens with those before the key, and the gathered words."""
    regions = [at.own, at.prev1, at.prev2, at.prev3]
    widths = [region.stop - region.start for region in (*regions[1:], at.bag)]
    cuts = [orthonormal(d, w) * math.sqrt(w / max(d, 1)) for d, w in zip(features, widths, strict=True)]
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
