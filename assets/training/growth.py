"""A wider target: two more heads in every layer walk from a phrase to its sentence and along it.

A trained target of 336 dimensions quotes badly: what it keeps of a sentence are its first three tokens, and of those it
keeps a blur. So the hidden state grows by 176 dimensions that nothing else writes to, every layer by two heads, and
they get work with exact random codes instead of learned ones:

- layer 0: every token carries its code and those of the five tokens before it; the MLP concludes where a sentence and
  an answer begin;
- layer 1: every token gets a signature of its sentence (parts of the codes where the sentence begins), and every token
  of an answer the codes of the last five tokens of the phrase in the question; the two heads that tell whether the
  text has the verb of a question behind the same name compare exact codes from here on, and no longer what was learned;
- layer 2: that phrase is looked up in the text, and the signature of the sentence that stands there is brought back;
  the other head tells every token of an answer whether a quotation was asked for;
- layer 3: one head says the first token of the sentence of that signature, the other the token that followed the last
  four in it. A quotation is said as it stands, with the space before it, so its tokens are those of the text.

Growing a net without changing what it computes is Net2Net's idea (Chen, Goodfellow and Shlens, arXiv 1511.05641).
Three things make it work. The new dimensions are small: what RMSNorm divides by differs between tokens as it did, and
trained heads, whose scores are differences of hundreds of nats, stay as they are. One new dimension is the same in all
tokens; the one that the first weights had for that was written to by training. And a full match scores about zero,
all else less: the keys of the last layer differ by a factor of two in length, and no score that is compared with
another may depend on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from assets.training.circuits import FLAGS, NEAREST_PHASES, OFFSET_STRENGTHS, VERBS, Builder, regions_of
from assets.training.measure import ATTENTION
from assets.training.shapes import HEAD_DIM
from assets.training.tokens import ASSISTANT, BOS, END, SPECIALS, USER, Layout

CODE_SIZES = (14, 14, 12, 12, 12, 9)  # of the token itself, and of those one to five before it
SHORT, BLOCK = 12, 3  # the first dimensions of a code are a code of their own, of blocks of the same length
FLAG_NAMES = (
    "close", "bos", "ends_quote", "question", "line", "assistant", "behind_line", "boundary", "behind_boundary",
    "stop", "start", "answer", "answered", "just_answered", "second", "one",
)  # fmt: skip
SOUGHT, SIGNATURE, FOUND = 45, 21, 21
# Lengths in the hidden state, where everything else has about 4. Were they large, what RMSNorm divides by would differ
# between tokens, and trained heads, which compare scores of hundreds of nats, would attend elsewhere.
CODE_SIZE, HASH_SIZE, FLAG_SIZE = 0.1, 0.175, 0.05
NEW = (6, 7)  # heads of every layer
# A sentence begins where what a token, the one before it and the one before that say adds up to BEGUN.
STOP = re.compile(r"""[.!?]["')]*$""")
ENDING = {"stop": 1.0, "Ċ": 1.2, "ĊĊ": 1.6}  # a line break alone ends nothing, one behind a stop does
BEGINS, JOINED = re.compile(r"""Ġ["'(]*[A-Z0-9]|Ġ["'(]$"""), 0.4  # JOINED: no space before it
BEGUN, ENDED_BEFORE = 2.0, 0.4
SHARES = (50.0, 38.0, 28.0, 22.0)  # of the token that is here, and of the three before it, where a quotation goes on
CARRIED: dict[int, tuple[tuple[str, str, float], ...]] = {  # flags that these heads carry, into which, and how strongly
    1: (
        ("boundary", "behind_boundary", 1.0), ("ends_quote", "close", 1.0), ("line", "behind_line", 1.0),
        ("assistant", "line", 1.0),
    ),
    2: (("stop", "behind_boundary", ENDED_BEFORE), ("boundary", "second", 1.0), ("assistant", "behind_line", 1.0)),
    3: (("assistant", "just_answered", 0.5),),
    4: (("ends_quote", "line", 1.0), ("assistant", "just_answered", 0.5 * SHARES[3] / sum(SHARES[2:]))),
    5: (("ends_quote", "line", 1.0),),
}  # fmt: skip
LOOK_BACK = {0: 1, 1: 2, 3: 3}  # heads of layer 0 that look back already, and how far: they carry codes as well
KEPT_RANK = {1: 46, 2: 49, 3: 51}  # of what those look-back heads carry; it is nearly all
# Of the phrase: dimensions and weights of its last five tokens; nats of a full match, which are taken from every score
# again, so that it is zero and all else below; what the first token of all gets, where a head rests.
PHRASE = ((12, 1.3), (9, 1.2), (9, 1.05), (9, 0.8), (6, 0.6))
PHRASE_NATS, PHRASE_REST = 300.0, -130.0
# The nearest token with a flag: a nat less for every token of distance (the sine of NEAREST_PHASES), and silence where
# that comes round again.
NEAREST = (0.0, 0.0, 0.0, 75.0, 600.0, 400.0, 300.0, 250.0, 150.0)
NEAREST_MOST = sum(NEAREST[4:])
CLOSE_NATS, CLOSE_REST, START_NATS, START_REST = 160.0, -135.0, 250.0, -200.0
QUESTION_NATS = 600.0
# Trained heads that look up names and what followed them, (layer, number), and how much larger their scores are made.
# By the gradient of the answers' loss behind 32K tokens these four were too blunt, and no other. Asked there, the
# target of an earlier growth had 82 of 94 facts right; with factors of 1.2, 1.5 and 1.8 it had 86, 88 and 88.
BLUNT, SHARPER = ((1, 0), (2, 0), (2, 1), (2, 3)), 1.5
# Heads of layer 1 that tell whether the text has a name and a verb: which token of the question, counted back from the
# verb, is compared with which token of the text, counted back from what follows the verb ("was" may stand between).
TOLD = {5: ((0, 1), (1, 2), (2, 3)), 1: ((0, 1), (1, 3), (2, 4))}
TOLD_NATS, TOLD_REST = 400.0, -22.0
# What stands behind a name: of these no two codes have more than that cosine.
BEHIND_NAMES = {
    *VERBS.values(),
    *".,;:!?'",
    "'s",
    "and",
    "was",
    "to",
    "in",
    "had",
    "of",
    "with",
    "said",
    "at",
    "is",
    "on",
}
TOLD_APART = 0.5
ALIKE_ONLY, SAME = 0.2, 0.05  # what a token's code has of its own; both forms of a verb have nearly the same
VERB = -0.3  # of the flag "ends_quote", which nothing asks for behind layer 0: too little to be taken for one there
ASKED, ASKED_NATS, ASKED_REST = "assistant", 250.0, -300.0  # the flag that says it from layer 2 on
# Keys of less than that share of the usual length, how much those of their kind are alike (cosine), and what is taken
# from their scores.
FAINT, ALIKE, FAINT_NATS = 0.5, 0.6, 100.0
# Blocks of a signature: how many tokens before the first, and which block of that code.
SIGNED = ((0, 0), (2, 0), (3, 0), (4, 0), (4, 1), (3, 1), (2, 1))
CONCLUDED = (  # what the MLP of layer 0 makes of sums: where from, above which value, what is added to which flag
    ("behind_boundary", 1.8, "start", 1.0),
    ("behind_boundary", 2.2, "behind_boundary", -ENDED_BEFORE),  # a blank line behind a stop is no more than one alone
    ("line", 3.5, "answer", 1.0),
    ("behind_line", 2.5, "answered", 1.0),
)
STEP_WIDTH, STEP_GAIN = 0.2, 60.0
NEW_NEURONS = 2 * len(CONCLUDED)
NAMED_OFTEN = 3  # that many times every token of the vocabulary is among the samples of how tokens look
OUTPUT_RANK = 62  # directions that a copied token is named with


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """What a copying head of layer 3 compares, and the shares of a full match.

    `tokens`: the token that is here, and those before it, as (dimensions of the code, share).
    `signed`: dimensions of the signature.
    `second`: that a sentence has just begun there; for the second token of an answer, which those before it in the text
    do not precede.
    `beginning`: that a sentence begins there, where an answer does.
    `asked`: share of a full match that is missing in answers to other questions.
    `nats`: of a full match, all of which is taken from every score again: what does not match fully is below zero, and
    below `rest`, the score of the first token of all.
    `gain`: the logit of what is attended to.
    """

    signed: int
    signature: float
    nats: float
    rest: float
    gain: float
    tokens: tuple[tuple[int, float], ...] = ()
    beginning: float = 0.0
    second: float = 0.0
    asked: float = 0.0

    @property
    def full(self) -> float:
        """What a full match is."""
        return self.missing(0) + self.signature + self.beginning

    def missing(self, first: int) -> float:
        """Of it, what the tokens from number `first` on are."""
        return sum(share for _, share in self.tokens[first:])


BEGINNING = Copying(signed=SIGNATURE, signature=112, beginning=90, nats=480, rest=-65, gain=10)
QUOTING = Copying(
    tokens=tuple(zip((9, 9, 6, 6), SHARES, strict=True)),
    second=40,
    signed=12,
    signature=112,
    asked=1,
    nats=424,
    rest=-90,
    gain=5,
)


class Added:
    """Where the new dimensions are."""

    def __init__(self, start: int) -> None:
        edges = list(accumulate((*CODE_SIZES, len(FLAG_NAMES), SOUGHT, SIGNATURE, FOUND), initial=start))
        parts = [slice(a, b) for a, b in pairwise(edges)]
        self.codes, flags = parts[: len(CODE_SIZES)], parts[len(CODE_SIZES)]
        self.flag = {name: flags.start + index for index, name in enumerate(FLAG_NAMES)}
        self.sought, self.signature, self.found = parts[-3:]
        self.stop = edges[-1]

    def short(self, back: int, width: int = SHORT) -> tuple[slice, float]:
        """Where the short code of the token `back` before this one is, and the factor that makes it as long as any."""
        start, size = self.codes[back].start, CODE_SIZES[back]
        return slice(start, start + width), math.sqrt(size / width)


def widen(model: LlamaForCausalLM, hidden: int, mlp: int, heads: int) -> LlamaForCausalLM:
    """The same function with `hidden` dimensions, `mlp` in its MLPs and `heads`: the new ones are zero everywhere."""
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    config = LlamaConfig(**{**model.config.to_dict(), **sizes})
    wide, old = LlamaForCausalLM(config), model.config.hidden_size
    weights = wide.state_dict()
    for name, weight in model.state_dict().items():
        if weight.dim() == 1:  # RMSNorm divides by the mean square, which more dimensions lower
            weights[name].fill_(1.0)
            weights[name][:old] = weight * math.sqrt(old / hidden)
        else:
            weights[name].zero_()
            weights[name][: weight.shape[0], : weight.shape[1]] = weight
    wide.load_state_dict(weights)
    wide.set_attn_implementation(ATTENTION)
    return wide.eval().requires_grad_(False)


@torch.no_grad()
def layer_inputs(model: LlamaForCausalLM, ids: Tensor, *, normed: bool) -> list[Tensor]:
    """The hidden states [T, hidden] before every layer, or what its norm makes of them, for ids [1, T]."""
    seen: list[Tensor] = []
    hooks = [
        layer.input_layernorm.register_forward_hook(
            lambda _, before, after: seen.append((after if normed else before[0])[0].clone())
        )
        for layer in model.model.layers
    ]
    model(ids, logits_to_keep=1)
    for hook in hooks:
        hook.remove()
    return seen


class Grower:
    """Writes the heads, layer by layer; each layer is calibrated on what the layers below it give for sample texts."""

    def __init__(self, model: LlamaForCausalLM, layout: Layout, samples: Sequence[list[int]], seed: int) -> None:
        torch.manual_seed(seed)
        self.old = model.config.hidden_size
        self.at = Added(self.old)
        self.layout, self.samples = layout, [torch.tensor([ids]) for ids in samples]
        self.tokens = torch.cat([ids[0] for ids in self.samples])
        squares = [float(x.square().sum(1).mean()) for x in self._inputs(model, normed=False)]
        self.mlp = model.config.intermediate_size
        self.model = widen(model, self.at.stop, self.mlp + NEW_NEURONS, NEW[-1] + 1)
        self.layers = self.model.model.layers
        self.squares = squares
        self.constant = self.at.flag["one"]  # trained layers write to the old one: it is no constant any more
        self.builder = Builder(self.model, replace(regions_of(self.old), constant=self.constant))

    # -------------------- measuring

    def _inputs(self, model: LlamaForCausalLM, *, normed: bool) -> list[Tensor]:
        """The hidden states [N, hidden] before every layer, or what its norm makes of them, over all samples."""
        texts = [layer_inputs(model, ids, normed=normed) for ids in self.samples]
        return [torch.cat(parts) for parts in zip(*texts, strict=True)]

    def _begin(self, number: int) -> Tensor:
        """Keep the old dimensions of a layer's input as large as they were; what its attention sees, [N, hidden]."""
        squares = float(self._inputs(self.model, normed=False)[number].square().sum(1).mean())
        norm = self.layers[number].input_layernorm.weight
        norm[: self.old] *= math.sqrt(squares / self.squares[number])
        return self._inputs(self.model, normed=True)[number]

    def _one(self, seen: Tensor) -> float:
        """What the constant dimension is after the norm, where codes are of their median length."""
        return FLAG_SIZE * self._unit(seen)

    def _unit(self, seen: Tensor) -> float:
        """What a new dimension of size one becomes after the norm: median over tokens with a code."""
        lengths = seen[:, self.at.codes[0]].norm(dim=1) / CODE_SIZE
        return float(lengths[lengths > 0.5 * lengths.median()].median())

    def _bos(self, seen: Tensor) -> Tensor:
        return seen[self.tokens == self.layout.mark(BOS)][0]

    # -------------------- writing

    def _blank(self, layer: int, head: int, *names: str) -> tuple[Tensor, ...]:
        parts = tuple(self.builder.part(layer, name, head) for name in names)
        for part in parts:
            part.zero_()
        return parts

    def _truncate(self, layer: int, head: int, seen: Tensor, rank: int) -> None:
        """Carry the same with `rank` of the head's dimensions (nearly: the largest directions for these inputs)."""
        v, o = self.builder.part(layer, "v", head), self.builder.part(layer, "o", head)
        covariance = (seen.T @ seen / len(seen)).double()
        covariance += 1e-5 * covariance.diagonal().mean() * torch.eye(len(covariance))
        root = torch.linalg.cholesky(covariance)
        u, s, vt = torch.linalg.svd((o @ v).double() @ root)
        back = torch.linalg.solve_triangular(root.T, vt[:rank].T, upper=True).T
        scale = s[:rank].sqrt()
        o.zero_(), v.zero_()
        o[:, :rank] = (u[:, :rank] * scale).float()
        v[:rank] = (back * scale[:, None]).float()

    def codes(self) -> None:
        """Give every token its code, one shared in part by tokens that differ only in case, space or a quote."""
        tokenizer, weight = self.layout.tokenizer, self.model.model.embed_tokens.weight
        stems: dict[str, list[Tensor]] = {}
        sizes = (SHORT, CODE_SIZES[0] - SHORT)
        pieces = [tokenizer.id_to_token(number) for number in range(len(weight))]
        for number, piece in enumerate(pieces):
            stem = piece.removeprefix("Ġ").lower()
            stem = stem[:-1] if len(stem) > 1 and stem.endswith('"') else stem
            stem, own = VERBS.get(stem, stem), SAME if piece in FLAGS["verb"] else ALIKE_ONLY
            while stem not in stems:
                drawn = [F.normalize(torch.randn(size), dim=0) for size in sizes]
                others = [stems[other][0] for other in BEHIND_NAMES if other in stems]
                if stem not in BEHIND_NAMES or all(float(drawn[0] @ other) < TOLD_APART for other in others):
                    stems[stem] = drawn
            base = stems[stem]
            parts = [
                math.sqrt(len(part) / CODE_SIZES[0])
                * F.normalize(0.95 * part + own * F.normalize(torch.randn(len(part)), dim=0), dim=0)
                for part in base
            ]
            parts[0] = math.sqrt(BLOCK / CODE_SIZES[0]) * F.normalize(parts[0].view(-1, BLOCK), dim=1).flatten()
            weight[number, self.at.codes[0]] = CODE_SIZE * torch.cat(parts)
            weight[number, self.at.flag["close"]] = {'".': 2.0, ".": 1.0}.get(piece, 0.0) * FLAG_SIZE
            if piece == '".' or (len(piece) > 1 and piece.endswith('"')):
                weight[number, self.at.flag["ends_quote"]] = FLAG_SIZE
            if piece in FLAGS["verb"]:
                weight[number, self.at.flag["ends_quote"]] = VERB * FLAG_SIZE
            stop = float(bool(STOP.search(piece)))
            weight[number, self.at.flag["boundary"]] = ENDING.get(piece, ENDING["stop"] * stop) * FLAG_SIZE
            weight[number, self.at.flag["stop"]] = stop * FLAG_SIZE
            joined = JOINED if piece[0] not in "ĠĊ" and piece not in SPECIALS else 0.0
            begins = 1.0 if BEGINS.match(piece) else joined
            weight[number, self.at.flag["behind_boundary"]] = begins * FLAG_SIZE
        weight[:, self.constant] = FLAG_SIZE
        plain = [self.layout.mark(mark) for mark in (BOS, USER, ASSISTANT, END)]
        weight[[*plain, pieces.index("Ċ")], self.at.codes[0]] = 0  # nothing is looked up behind them
        for name, token, size in (
            ("stop", self.layout.mark(USER), 1.0),
            ("bos", self.layout.mark(BOS), 1.0),
            ("line", pieces.index("Ċ"), 1.0),
            ("assistant", self.layout.mark(ASSISTANT), 2.0),
            ("question", self.layout.mark(USER), 1.0),
            ("question", pieces.index("Quote"), 1.0),
        ):
            weight[token, self.at.flag[name]] = size * FLAG_SIZE

    def summaries(self) -> None:
        """Layer 0: the codes of the five tokens before each."""
        seen = self._begin(0)
        one, unit, at = self._one(seen), self._unit(seen), self.at
        for head, back in LOOK_BACK.items():
            self._truncate(0, head, seen, KEPT_RANK[back])
            v, o = self.builder.part(0, "v", head), self.builder.part(0, "o", head)
            size = CODE_SIZES[back]
            rows = slice(KEPT_RANK[back], KEPT_RANK[back] + size)
            own, longer = at.short(0, size)
            v[rows, own] = torch.eye(size) / unit * longer
            o[at.codes[back], rows] = torch.eye(size)
            self._carry_flags(v, o, back, rows.stop, unit)
        for head, back in zip(NEW, (4, 5), strict=True):
            self.builder.look_back(0, head, back, OFFSET_STRENGTHS, one)
            v, o = self._blank(0, head, "v", "o")
            size = CODE_SIZES[back]
            own, longer = at.short(0, size)
            v[:size, own] = torch.eye(size) / unit * longer
            o[at.codes[back], :size] = torch.eye(size)
            self._carry_flags(v, o, back, size, unit)
        self._conclude()

    def _carry_flags(self, v: Tensor, o: Tensor, back: int, first: int, unit: float) -> None:
        """Let the head that looks `back` tokens back carry flags as well, from row `first` on."""
        for row, (name, into, share) in enumerate(CARRIED.get(back, ()), start=first):
            v[row, self.at.flag[name]] = 1 / unit
            o[self.at.flag[into], row] = share

    def _conclude(self) -> None:
        """The MLP of layer 0: where a sentence begins, where an answer does, and what follows that place."""
        seen = self._mlp_inputs()
        one, unit, mlp = self._one(seen), self._unit(seen), self.layers[0].mlp
        for number, (summed, least, flag, size) in enumerate(CONCLUDED):
            for sign, edge in ((1, least - STEP_WIDTH / 2), (-1, least + STEP_WIDTH / 2)):  # a ramp up, another down
                row = self.mlp + 2 * number + (sign < 0)
                mlp.gate_proj.weight[row, self.at.flag[summed]] = STEP_GAIN / (FLAG_SIZE * unit)
                mlp.gate_proj.weight[row, self.constant] = -STEP_GAIN * edge / one
                mlp.up_proj.weight[row, self.constant] = 1 / one
                mlp.down_proj.weight[self.at.flag[flag], row] += sign * size * FLAG_SIZE / (STEP_GAIN * STEP_WIDTH)

    def _mlp_inputs(self) -> Tensor:
        """What the MLP of layer 0 sees, [N, hidden], over all samples."""
        seen: list[Tensor] = []
        hook = self.layers[0].post_attention_layernorm.register_forward_hook(
            lambda _, before, after: seen.append(after[0].clone())
        )
        for ids in self.samples:
            self.model(ids, logits_to_keep=1)
        hook.remove()
        return torch.cat(seen)

    def _phrase(self, before: int) -> Iterator[tuple[slice, slice, float]]:
        """Rows of the hash of a phrase, the code that they hold, and the factor that makes it as long as its weight.

        `before`: how many tokens before the place itself the phrase ends.
        """
        length, start = math.sqrt(sum(weight**2 for _, weight in PHRASE)), 0
        for number, (width, weight) in enumerate(PHRASE):
            where, factor = self.at.short(number + before, width)
            yield slice(start, start + width), where, factor * weight / length / CODE_SIZE
            start += width

    def sentences(self) -> None:
        """Layer 1: the signature of the sentence, and the phrase that the question ends with."""
        seen = self._begin(1)
        unit, at = self._unit(seen), self.at
        start, close = NEW
        self._nearest(1, start, seen, "behind_boundary", START_NATS, BEGUN * START_NATS, START_REST)
        v, o = self._blank(1, start, "v", "o")
        v[0, [at.flag["question"], at.flag["answered"]]] = 1 / unit  # nothing is looked up in an answer either
        o[at.flag["question"], 0] = 1
        block = CODE_SIZE * math.sqrt(BLOCK / SHORT) * unit  # its length after the norm
        for number, (back, which) in enumerate(SIGNED):
            into = 1 + BLOCK * number
            where, factor = at.short(back)
            part = slice(where.start + BLOCK * which, where.start + BLOCK * (which + 1))
            v[into : into + BLOCK, part] = torch.eye(BLOCK) * HASH_SIZE / math.sqrt(len(SIGNED)) / block * factor
        o[at.signature, 1 : 1 + SIGNATURE] = torch.eye(SIGNATURE)
        self._nearest(1, close, seen, "close", CLOSE_NATS, 2 * CLOSE_NATS, CLOSE_REST)
        v, o = self._blank(1, close, "v", "o")
        for rows, where, factor in self._phrase(before=1):  # where it is closed, one token behind it
            v[rows, where] = torch.eye(rows.stop - rows.start) * HASH_SIZE * factor / unit
        o[at.sought, :SOUGHT] = torch.eye(SOUGHT)
        self._telling(seen)

    def _telling(self, seen: Tensor) -> None:
        """Layer 1: whether the verb of a question stands behind the same name in the text, by exact codes.

        Only what the heads attend to is written; what they say of it stays as it was trained.
        """
        one, unit, at, free = self._one(seen), self._unit(seen), self.at, self.builder.free
        bos, resting = self._bos(seen), at.flag["bos"]
        root = math.sqrt(HEAD_DIM)
        for head, pairs in TOLD.items():
            q, k = self._blank(1, head, "q", "k")
            for number, (asked, given) in enumerate(pairs):
                rows = free[number * SHORT : (number + 1) * SHORT]
                for weight, back, size in ((q, asked, root * TOLD_NATS / len(pairs)), (k, given, 1.0)):
                    where, factor = at.short(back)
                    weight[rows, where] = torch.eye(SHORT) * size * factor / (CODE_SIZE * unit)
            base = free[len(pairs) * SHORT]
            q[base, self.constant] = 2 * root / one  # twice the base line for all that are no verbs
            q[base, at.flag["ends_quote"]] = -root / (VERB * FLAG_SIZE * unit)
            k[base, self.constant] = -TOLD_NATS / one
            k[base, resting] = (TOLD_REST - float(k[base] @ bos)) / bos[resting]

    def _nearest(self, layer: int, head: int, seen: Tensor, flag: str, nats: float, most: float, rest: float) -> None:
        """Let a head attend to the nearest token with a flag that has `most` nats of it.

        Such a token scores as many nats below zero as it is tokens away, others much less, the first of all `rest`.
        So keys that RMSNorm made longer than others change no order.
        """
        one, unit, at, free = self._one(seen), self._unit(seen), self.at, self.builder.free
        bos, resting = self._bos(seen), at.flag["bos"]
        self._blank(layer, head, "q", "k")
        self.builder.look_back(layer, head, 0.0, NEAREST, one, NEAREST_PHASES)
        q, k = self.builder.part(layer, "q", head), self.builder.part(layer, "k", head)
        q[free[:3], self.constant] = math.sqrt(HEAD_DIM) / one
        k[free[0], at.flag[flag]] = nats / (FLAG_SIZE * unit)
        k[free[1], self.constant] = -(NEAREST_MOST + most) / one
        k[:, resting] -= (k @ bos) / bos[resting]  # the first token of all has no share in this
        k[free[2], resting] = rest / bos[resting]

    def lookup(self) -> None:
        """Layer 2: where the phrase stands in the text, and the signature of the sentence there."""
        seen = self._begin(2)
        lengths = self._inputs(self.model, normed=False)[2][:, self.at.sought].norm(dim=1)
        sought = float(lengths[lengths > lengths.max() / 2].median())  # the norm of layer 1 was that of another token
        one, unit, at, free = self._one(seen), self._unit(seen), self.at, self.builder.free
        head, bos, resting = NEW[0], self._bos(seen), at.flag["bos"]
        q, k = self._blank(2, head, "q", "k")
        root = math.sqrt(HEAD_DIM)
        q[free[:SOUGHT], at.sought] = torch.eye(SOUGHT) * root * PHRASE_NATS / (sought * unit)
        for rows, where, factor in self._phrase(before=0):
            k[free[rows], where] = torch.eye(rows.stop - rows.start) * factor / unit
        base = free[SOUGHT]
        q[base, self.constant] = root / one
        k[base, self.constant] = -PHRASE_NATS / one
        k[base] -= FAINT_NATS * self._faintness(seen)
        k[base, at.flag["question"]] = -QUESTION_NATS / (FLAG_SIZE * unit)  # the question has the phrase as well
        k[base, resting] = (PHRASE_REST - float(k[base] @ bos)) / bos[resting]
        v, o = self._blank(2, head, "v", "o")
        v[:SIGNATURE, at.signature] = torch.eye(SIGNATURE)
        o[at.found, :SIGNATURE] = torch.eye(SIGNATURE) / unit
        self._nearest(2, NEW[1], seen, "line", ASKED_NATS, 3 * ASKED_NATS, ASKED_REST)  # where the answer begins
        v, o = self._blank(2, NEW[1], "v", "o")
        v[0, at.flag["answer"]] = FLAG_SIZE / self._size(seen, "answer")
        o[at.flag[ASKED], 0] = 1

    def _faintness(self, seen: Tensor) -> Tensor:
        """A functional [hidden] that is one, on average, where the new dimensions are faint, and about zero elsewhere.

        The trained layers make the first words of headings many times as long as all others. What RMSNorm leaves of
        the new dimensions there matches nothing, but a share of the base line is missing as well.
        """
        ones, wanted = seen[:, self.constant], torch.zeros(seen.shape[1])
        ones = ones.masked_fill(self.tokens == self.layout.mark(BOS), math.inf)
        old = F.normalize(seen[:, : self.old], dim=1)
        if ones.min() < FAINT * self._one(seen):
            faint = old @ old[ones.argmin()] > ALIKE
            others, mean = seen[~faint, : self.old].double(), seen[faint, : self.old].double().mean(0)
            gram = others.T @ others / len(others)
            gram += 1e-3 * gram.diagonal().mean() * torch.eye(self.old)
            solved = torch.linalg.solve(gram, mean)
            wanted[: self.old] = (solved / (solved @ mean)).float()
        return wanted

    def copying(self) -> None:
        """Layer 3: the first token of the sentence that was found, and the tokens that followed in it."""
        seen = self._begin(3)
        raw = self._inputs(self.model, normed=False)[3]
        answer, begun = self._size(raw, "answer"), self._size(raw, "start")
        every = [torch.randperm(len(self.model.lm_head.weight)) for _ in range(NAMED_OFTEN)]
        names = torch.cat([self.tokens, *every])
        named = torch.cat([seen, *(layer_inputs(self.model, ids[None], normed=True)[3] for ids in every)])
        one, unit, at, free = self._one(seen), self._unit(seen), self.at, self.builder.free
        bos, resting = self._bos(seen), at.flag["bos"]
        root, naming = math.sqrt(HEAD_DIM), self._naming(names, named, bos)
        for head, plan in zip(NEW, (BEGINNING, QUOTING), strict=True):
            q, k = self._blank(3, head, "q", "k")
            nats, start = plan.nats / plan.full, 0
            for asked, given, share in self._compared(plan):
                width = len(asked)
                rows = free[start : start + width]
                q[rows] += asked * root * nats * share / unit
                k[rows] += given / unit
                start += width
            begins = ("answer", "start", plan.beginning, answer, begun)
            goes_on = ("answered", "second", plan.second, FLAG_SIZE, FLAG_SIZE)
            for asked_flag, given_flag, share, asked_size, given_size in (begins, goes_on):
                if share:
                    q[free[start], at.flag[asked_flag]] = root * nats * share / (asked_size * unit)
                    k[free[start], at.flag[given_flag]] = 1 / (given_size * unit)
                    start += 1
            base = free[start]
            q[base, self.constant] = root / one
            # the first tokens of an answer are not preceded by those of the text
            q[base, self.constant] *= 1 + plan.asked
            for flag, missing in (
                (ASKED, plan.asked * plan.full),
                ("answered", plan.missing(1) - plan.second),
                ("just_answered", plan.missing(2)),
            ):
                q[base, at.flag[flag]] = -root * missing / plan.full / (FLAG_SIZE * unit)
            k[base, self.constant] = -plan.nats / one
            k[base, resting] = (plan.rest - float(k[base] @ bos)) / bos[resting]
            v, o = self._blank(3, head, "v", "o")
            v[:OUTPUT_RANK], o[:, :OUTPUT_RANK] = naming[0], plan.gain * naming[1]

    def _compared(self, plan: Copying) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Maps [width, hidden] of what a query and a key are compared by, for features of length one, and the share."""
        at, hidden = self.at, self.model.config.hidden_size
        for back, (width, share) in enumerate(plan.tokens):
            maps = []
            for number in (back, back + 1):
                where, factor = at.short(number, width)
                maps.append(torch.zeros(width, hidden))
                maps[-1][:, where] = torch.eye(width) * factor / CODE_SIZE
            yield maps[0], maps[1], share
        size = HASH_SIZE * math.sqrt(plan.signed / SIGNATURE)
        asked, given = torch.zeros(plan.signed, hidden), torch.zeros(plan.signed, hidden)
        asked[:, at.found.start : at.found.start + plan.signed] = torch.eye(plan.signed) / size
        given[:, at.signature.start : at.signature.start + plan.signed] = torch.eye(plan.signed) / size
        yield asked, given, plan.signature

    def _size(self, raw: Tensor, flag: str) -> float:
        """What a flag that the MLP of layer 0 sets is, on average, where it is set in `raw` [N, hidden]."""
        found = raw[:, self.at.flag[flag]]
        assert found.max() > FLAG_SIZE / 2, f"no sample has the flag {flag!r}: quotations must be among them"
        return float(found[found > FLAG_SIZE / 2].mean())

    def _naming(self, names: Tensor, seen: Tensor, bos: Tensor) -> tuple[Tensor, Tensor]:
        """Maps [rank, hidden] and [hidden, rank] from an attended token to what gives it a logit of one.

        Fitted to what attention sees, `seen` [N, hidden], of the tokens `names` [N]. A blank line, which is where a
        quotation ends, is called the end of the answer.
        """
        said = torch.arange(len(self.model.lm_head.weight))
        said[self.layout.tokenizer.token_to_id("ĊĊ")] = self.layout.mark(END)
        tokens = said[names]
        directions = self.model.lm_head.weight * self.model.model.norm.weight
        directions = (directions - directions.mean(0)).double()
        length = directions.norm(dim=1)
        directions = directions / length[:, None]
        mean, wanted = seen.double().mean(0), directions[tokens]
        centred, wanted = seen.double() - mean, wanted - wanted.mean(0)
        gram = centred.T @ centred / len(centred)
        ridge = torch.eye(len(gram)) * gram.diagonal().mean()
        solved = torch.linalg.solve(gram + 1e-4 * ridge * len(gram), centred.T @ wanted / len(centred))
        root = torch.linalg.cholesky(gram + 1e-6 * ridge)
        u, s, vt = torch.linalg.svd(root.T @ solved)
        into = torch.linalg.solve_triangular(root.T, u[:, :OUTPUT_RANK], upper=True)
        out = s[:OUTPUT_RANK, None] * vt[:OUTPUT_RANK]
        own = ((centred @ into @ out) * directions[tokens]).sum(1).mean() * length.mean()
        loudness = float(own) / self._last_size()
        naming = into.T.float()
        naming[:, self.constant] -= (into.T @ mean).float() / self._one(seen)
        naming[:, self.at.flag["bos"]] -= (naming @ bos) / bos[self.at.flag["bos"]]
        return naming, out.T.float() / loudness

    def _last_size(self) -> float:
        """Root mean square of the hidden state before the output layer."""
        sizes: list[Tensor] = []
        hook = self.model.model.norm.register_forward_pre_hook(
            lambda _, inputs: sizes.append(inputs[0][0].square().mean(-1).sqrt())
        )
        with torch.no_grad():
            for ids in self.samples[:2]:
                self.model(ids, logits_to_keep=1)
        hook.remove()
        return float(torch.cat(sizes).mean())


@torch.no_grad()
def sharpen(model: LlamaForCausalLM) -> None:
    """Multiply the scores of the heads that long texts blur."""
    for layer, head in BLUNT:
        model.model.layers[layer].self_attn.q_proj.weight[head * HEAD_DIM : (head + 1) * HEAD_DIM] *= SHARPER


def train_only_the_end(model: LlamaForCausalLM) -> None:
    """Let training move what the last layer says and the output, and nothing below.

    The scores of the new heads are differences of hundreds of nats. AdamW moves every weight by the same amount however
    well it stands: trained freely, the heads found nothing any more after thirty steps, and with only their own weights
    held the key of the first token of all, where they rest, had risen by 26 nats after two hundred.
    """
    last, part = model.model.layers[-1], model.model
    model.requires_grad_(False)
    for trained in (last.self_attn.o_proj, last.post_attention_layernorm, last.mlp, part.norm, model.lm_head):
        trained.requires_grad_(True)


@torch.no_grad()
def grow(model: LlamaForCausalLM, layout: Layout, samples: Sequence[list[int]], seed: int) -> LlamaForCausalLM:
    """A wider copy of `model` with the new heads, ready to be trained on.

    Args:
        model: a target of 336 dimensions with the starting circuits, trained or not.
        samples: token ids of conversations about texts, to calibrate on.
        seed: of the random codes.
    """
    model.set_attn_implementation(ATTENTION)
    grower = Grower(model, layout, samples, seed)
    grower.codes()
    grower.summaries()
    grower.sentences()
    grower.lookup()
    grower.copying()
    train_only_the_end(grower.model)
    return grower.model
