"""A wider target: heads that had stayed idle learn to walk from a phrase to its sentence and along it.

A trained target of 336 dimensions quotes badly: what it keeps of a sentence are its first three tokens, and of those it
keeps a blur. Six of its 24 heads attend to everything alike. So the hidden state grows by 144 dimensions that nothing
else writes to, and the idle heads get work there, from exact random codes instead of learned ones:

- layer 0: every token carries its code and those of the five tokens before it;
- layer 1: every token gets a signature of its sentence (parts of the codes where the sentence begins), and every token
  of an answer the hash of the five tokens at the end of the phrase in the question;
- layer 2: that hash is looked up in the text, and the signature of the sentence that stands there is brought back;
- layer 3: two heads copy: after the token that is here, and the one before it, in the sentence of that signature; or in
  the one that the answer is in by itself.

A score is large when a key is large as well as when it matches. So everything that is compared has the same length in
all tokens: codes consist of blocks of three dimensions, each of one length, and a signature is made of whole blocks.

Growing a net without changing what it computes is Net2Net's idea (Chen, Goodfellow and Shlens, arXiv 1511.05641); what
idle heads said on average stays, as a constant. One older head, an induction head of layer 1, is given up. Scores are
taken from a base line that lies between a full match and a partial one, because keys are as large as RMSNorm leaves
them: without it a partial match of a large key beats a full match of a small one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from assets.recipe.circuits import (
    NEAREST_PHASES,
    NEAREST_STRENGTHS,
    OFFSET_STRENGTHS,
    Builder,
    orthonormal,
    regions_of,
)
from assets.recipe.measure import ATTENTION
from assets.recipe.shapes import HEAD_DIM
from assets.recipe.tokens import ASSISTANT, BOS, END, SPECIALS, USER, Layout

CODE_SIZES = (14, 14, 9, 9, 9, 9)  # of the token itself, and of those one to five before it
SHORT, BLOCK = 9, 3  # the first dimensions of a code are a code of their own, of blocks of the same length
FLAG_NAMES = ("close", "bos", "line", "boundary", "behind_boundary", "ends_quote", "question")
SOUGHT, SIGNATURE, FOUND = 37, 18, 18
CODE_SIZE, HASH_SIZE, FLAG_SIZE = 0.4, 0.7, 0.2  # lengths in the hidden state, where everything else has about 6
IDLE = {0: (4, 5), 1: (0,), 2: (2,), 3: (4, 5)}  # heads that get new work; layer 1's was an induction head
LOOK_BACK = {0: 1, 1: 2, 3: 3}  # heads of layer 0 that look back already, and how far: they carry codes as well
START_HEAD = 2  # of layer 1: looks at the beginning of the sentence
KEPT_RANK, START_RANK = 46, 31  # of what those heads carry; it is nearly all
# Of the phrase: weights of its last five tokens; nats of a full match; the base line as a share of it; what the first
# token of all gets, where a head rests.
PHRASE_WEIGHTS, PHRASE_NATS, PHRASE_BASE, PHRASE_REST = (1.35, 1.25, 1.05, 0.65, 0.5), 200.0, 0.45, 8.0
CLOSE_NATS, CLOSE_BASE, CLOSE_REST, QUESTION_NATS = 60.0, 445.0, 12.0, 600.0
# Blocks of a signature: how many tokens before the first, and which block of that code.
SIGNED = ((0, 0), (2, 0), (3, 0), (4, 0), (5, 0), (3, 1))
START_NATS = 40.0  # that a place where a sentence begins is above others, in a head that was trained to find it
STOP = re.compile(r"""[.!?]["')]*$""")  # ends a token behind which a sentence may begin,
BEGINS = re.compile(r"""Ġ["'(]*[A-Z0-9]|Ġ["'(]$""")  # with such a token, or with any after a line break
LINE_BREAKS = ("Ċ", "ĊĊ")
OUTPUT_RANK, OUTPUT_GAIN = 62, 2.5  # directions that a copied token is named with, and its logit


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """What a copying head of layer 3 compares: shares of the token, the one before, the signature, the beginning."""

    token: float
    before: float
    signature: float
    beginning: float
    base: float
    nats: float
    rest: float


QUOTING = Copying(token=60, before=33, signature=112, beginning=45, base=0.33, nats=424, rest=15)
GOING_ON = Copying(token=60, before=25, signature=40, beginning=0, base=0.85, nats=250, rest=12)


class Added:
    """Where the new dimensions are."""

    def __init__(self, start: int) -> None:
        edges = list(accumulate((*CODE_SIZES, len(FLAG_NAMES), SOUGHT, SIGNATURE, FOUND), initial=start))
        parts = [slice(a, b) for a, b in pairwise(edges)]
        self.codes, flags = parts[: len(CODE_SIZES)], parts[len(CODE_SIZES)]
        self.flag = {name: flags.start + index for index, name in enumerate(FLAG_NAMES)}
        self.sought, self.signature, self.found = parts[-3:]
        self.start, self.stop = start, edges[-1]

    @classmethod
    def to(cls, grown: LlamaForCausalLM) -> Added:
        """Those of a model that has them."""
        return cls(grown.config.hidden_size - cls(0).stop)

    def short(self, back: int) -> tuple[slice, float]:
        """Where the short code of the token `back` before this one is, and the factor that makes it as long as any."""
        start, size = self.codes[back].start, CODE_SIZES[back]
        return slice(start, start + SHORT), math.sqrt(size / SHORT)


def widen(model: LlamaForCausalLM, hidden: int) -> LlamaForCausalLM:
    """The same function with `hidden` dimensions: the new ones are zero everywhere."""
    config = LlamaConfig(**{**model.config.to_dict(), "hidden_size": hidden})
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
        self.model = widen(model, self.at.stop)
        self.layers = self.model.model.layers
        self.squares = squares
        self.says = self._mean_outputs()
        self.old_regions = regions_of(self.old)
        self.builder = Builder(self.model, self.old_regions)
        self.constant = self.old_regions.constant

    # -------------------- measuring

    def _inputs(self, model: LlamaForCausalLM, *, normed: bool) -> list[Tensor]:
        """The hidden states [N, hidden] before every layer, or what its norm makes of them, over all samples."""
        texts = [layer_inputs(model, ids, normed=normed) for ids in self.samples]
        return [torch.cat(parts) for parts in zip(*texts, strict=True)]

    def _mean_outputs(self) -> dict[int, Tensor]:
        """What the heads that get new work add on average, by layer: [hidden]."""
        sums = {number: torch.zeros(self.at.stop) for number in IDLE}
        hooks = []
        for number, heads in IDLE.items():
            projection = self.layers[number].self_attn.o_proj

            def add(_: object, inputs: tuple[Tensor], number: int = number, heads: tuple[int, ...] = heads) -> None:
                mean = inputs[0][0].sum(0)
                for head in heads:
                    part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
                    sums[number] += self.layers[number].self_attn.o_proj.weight[:, part] @ mean[part]

            hooks.append(projection.register_forward_pre_hook(add))
        with torch.no_grad():
            for ids in self.samples:
                self.model(ids, logits_to_keep=1)
        for hook in hooks:
            hook.remove()
        return {number: total / len(self.tokens) for number, total in sums.items()}

    def _begin(self, number: int) -> Tensor:
        """Keep the old dimensions of a layer's input as large as they were; what its attention sees, [N, hidden]."""
        squares = float(self._inputs(self.model, normed=False)[number].square().sum(1).mean())
        norm = self.layers[number].input_layernorm.weight
        norm[: self.old] *= math.sqrt(squares / self.squares[number])
        return self._inputs(self.model, normed=True)[number]

    def _one(self, seen: Tensor) -> float:
        """What the constant dimension is after the norm, on average."""
        return float(seen[:, self.constant].mean())

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

    def _say(self, layer: int, head: int, row: int, one: float, share: float = 1.0) -> None:
        """Let a head add a constant: what idle heads said on average."""
        v, o = self.builder.part(layer, "v", head), self.builder.part(layer, "o", head)
        v[row] = 0
        v[row, self.constant] = 1 / one
        o[:, row] = share * self.says[layer]

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
        stems: dict[str, tuple[Tensor, ...]] = {}
        sizes = (SHORT, CODE_SIZES[0] - SHORT)
        pieces = [tokenizer.id_to_token(number) for number in range(len(weight))]
        for number, piece in enumerate(pieces):
            stem = piece.removeprefix("Ġ").lower()
            stem = stem[:-1] if len(stem) > 1 and stem.endswith('"') else stem
            base = stems.setdefault(stem, tuple(F.normalize(torch.randn(size), dim=0) for size in sizes))
            parts = [
                math.sqrt(len(part) / CODE_SIZES[0])
                * F.normalize(0.85 * part + 0.5 * F.normalize(torch.randn(len(part)), dim=0), dim=0)
                for part in base
            ]
            parts[0] = math.sqrt(BLOCK / CODE_SIZES[0]) * F.normalize(parts[0].view(-1, BLOCK), dim=1).flatten()
            weight[number, self.at.codes[0]] = CODE_SIZE * torch.cat(parts)
            if len(piece) > 1 and piece.endswith('"'):
                weight[number, self.at.flag["ends_quote"]] = FLAG_SIZE
            boundary, behind = (1.5, -1.0) if piece in LINE_BREAKS else (float(bool(STOP.search(piece))), -0.5)
            weight[number, self.at.flag["boundary"]] = boundary * FLAG_SIZE
            if not BEGINS.match(piece) and piece not in SPECIALS:
                weight[number, self.at.flag["behind_boundary"]] = behind * FLAG_SIZE
        plain = [self.layout.mark(mark) for mark in (BOS, USER, ASSISTANT, END)]
        weight[[*plain, pieces.index("Ċ")], self.at.codes[0]] = 0  # nothing is looked up behind them
        for name, token, size in (
            ("close", pieces.index('".'), 2.0),
            ("close", pieces.index("."), 1.0),
            ("bos", self.layout.mark(BOS), 1.0),
            ("line", pieces.index("Ċ"), 1.0),
            ("question", self.layout.mark(USER), 1.0),
            ("question", pieces.index("Quote"), 1.0),
        ):
            weight[token, self.at.flag[name]] = size * FLAG_SIZE

    def summaries(self) -> None:
        """Layer 0: the codes of the five tokens before each."""
        seen = self._begin(0)
        one, unit, at = self._one(seen), self._unit(seen), self.at
        short, longer = at.short(0)
        for head, back in LOOK_BACK.items():
            self._truncate(0, head, seen, KEPT_RANK)
            v, o = self.builder.part(0, "v", head), self.builder.part(0, "o", head)
            size = CODE_SIZES[back]
            rows = slice(KEPT_RANK, KEPT_RANK + size)
            source = at.codes[0] if size == CODE_SIZES[0] else short
            v[rows, source] = torch.eye(size) / unit * (1.0 if size == CODE_SIZES[0] else longer)
            o[at.codes[back], rows] = torch.eye(size)
            if back == 1:
                for row, (name, into) in enumerate(
                    (("boundary", "behind_boundary"), ("ends_quote", "close")), start=rows.stop
                ):
                    v[row, at.flag[name]] = 1 / unit
                    o[at.flag[into], row] = 1
        for head, back in zip(IDLE[0], (4, 5), strict=True):
            self.builder.look_back(0, head, back, OFFSET_STRENGTHS, one)
            v, o = self._blank(0, head, "v", "o")
            v[:SHORT, short] = torch.eye(SHORT) / unit * longer
            o[at.codes[back], :SHORT] = torch.eye(SHORT)
        self._say(0, IDLE[0][0], HEAD_DIM - 1, one)

    def phrase_map(self) -> list[Tensor]:
        """Maps [SOUGHT, size] of the codes of five tokens to the hash of a phrase, weighted."""
        sizes = (CODE_SIZES[0], *[SHORT] * 4)
        mixed = orthonormal(SOUGHT, sum(sizes)) * math.sqrt(sum(sizes) / SOUGHT)
        weights = torch.tensor(PHRASE_WEIGHTS) / torch.tensor(PHRASE_WEIGHTS).norm()
        return [part * weight for part, weight in zip(mixed.split(sizes, dim=1), weights, strict=True)]

    def _code_of(self, back: int, size: int) -> tuple[slice, float]:
        return (self.at.codes[back], 1.0) if CODE_SIZES[back] == size else self.at.short(back)

    def sentences(self, phrase: list[Tensor]) -> None:
        """Layer 1: the signature of the sentence, and the phrase that the question ends with."""
        self.builder.part(1, "o", IDLE[1][0]).zero_()
        seen = self._begin(1)
        one, unit, at, free = self._one(seen), self._unit(seen), self.at, self.builder.free
        head, bos, resting = IDLE[1][0], self._bos(seen), at.flag["bos"]
        self._blank(1, head, "q", "k")
        self.builder.look_back(1, head, 0.0, NEAREST_STRENGTHS, one, NEAREST_PHASES)
        q, k = self.builder.part(1, "q", head), self.builder.part(1, "k", head)
        root = math.sqrt(HEAD_DIM)
        q[free[:3], self.constant] = root / one
        k[free[0], at.flag["close"]] = CLOSE_NATS / (FLAG_SIZE * unit)
        k[free[1], self.constant] = -CLOSE_BASE / one
        k[:, resting] -= (k @ bos) / bos[resting]  # the first token of all has no share in this
        k[free[2], resting] = CLOSE_REST / bos[resting]
        v, o = self._blank(1, head, "v", "o")
        for number, part in enumerate(phrase):
            where, factor = self._code_of(number + 1, part.shape[1])
            v[:SOUGHT, where] = part * HASH_SIZE / CODE_SIZE / unit * factor
        o[at.sought, :SOUGHT] = torch.eye(SOUGHT)
        self._say(1, head, HEAD_DIM - 1, one)
        self._truncate(1, START_HEAD, seen, START_RANK)
        v, o = self.builder.part(1, "v", START_HEAD), self.builder.part(1, "o", START_HEAD)
        v[START_RANK, at.flag["question"]] = 1 / unit
        o[at.flag["question"], START_RANK] = 1
        rows = slice(START_RANK + 1, START_RANK + 1 + SIGNATURE)
        block = CODE_SIZE * math.sqrt(BLOCK / SHORT) * unit  # its length after the norm
        for number, (back, which) in enumerate(SIGNED):
            into = rows.start + BLOCK * number
            where, factor = at.short(back)
            part = slice(where.start + BLOCK * which, where.start + BLOCK * (which + 1))
            v[into : into + BLOCK, part] = torch.eye(BLOCK) * HASH_SIZE / math.sqrt(len(SIGNED)) / block * factor
        o[at.signature, rows] = torch.eye(SIGNATURE)
        self._see_starts(seen, unit)

    def _see_starts(self, seen: Tensor, unit: float) -> None:
        """Raise the scores of places where a sentence begins, by what is the same in all queries of the head."""
        queries = seen @ self.builder.part(1, "q", START_HEAD).T
        mean, variance = queries.mean(0), queries.var(0)
        steady = torch.zeros(HEAD_DIM)
        for row in self.builder.free:  # those that no distance turns far
            if mean[row].square() > 25 * variance[row]:
                steady[row] = mean[row] / variance[row].clamp(min=1e-6)
        raised = START_NATS / (FLAG_SIZE * unit) * math.sqrt(HEAD_DIM)
        self.builder.part(1, "k", START_HEAD)[:, self.at.flag["behind_boundary"]] += steady / (steady @ mean) * raised

    def lookup(self, phrase: list[Tensor]) -> None:
        """Layer 2: where the phrase stands in the text, and the signature of the sentence there."""
        seen = self._begin(2)
        one, unit, at, free = self._one(seen), self._unit(seen), self.at, self.builder.free
        (head,), bos, resting = IDLE[2], self._bos(seen), at.flag["bos"]
        q, k = self._blank(2, head, "q", "k")
        root = math.sqrt(HEAD_DIM)
        q[free[:SOUGHT], at.sought] = torch.eye(SOUGHT) * root * PHRASE_NATS / (HASH_SIZE * unit)
        for number, part in enumerate(phrase):
            where, factor = self._code_of(number, part.shape[1])
            k[free[:SOUGHT], where] = part / CODE_SIZE / unit * factor
        base = free[SOUGHT]
        q[base, self.constant] = root / one
        k[base, self.constant] = -PHRASE_BASE * PHRASE_NATS / one
        k[base, at.flag["question"]] = -QUESTION_NATS / (FLAG_SIZE * unit)  # the question has the phrase as well
        k[base, resting] = (PHRASE_REST - float(k[base] @ bos)) / bos[resting]
        v, o = self._blank(2, head, "v", "o")
        v[:SIGNATURE, at.signature] = torch.eye(SIGNATURE)
        o[at.found, :SIGNATURE] = torch.eye(SIGNATURE) / unit
        self._say(2, head, HEAD_DIM - 1, one)

    def copying(self) -> None:
        """Layer 3: the token that followed, in the sentence that was found or in the one that is being said again."""
        seen = self._begin(3)
        one, unit, at, free = self._one(seen), self._unit(seen), self.at, self.builder.free
        bos, resting = self._bos(seen), at.flag["bos"]
        naming_in, naming_out = self._naming(seen, bos)
        root = math.sqrt(HEAD_DIM)
        for head, plan, told in zip(IDLE[3], (QUOTING, GOING_ON), (at.found, at.signature), strict=True):
            q, k = self._blank(3, head, "q", "k")
            nats = plan.nats / (plan.token + plan.before + plan.signature)
            start = 0
            for asked, given, share, size in (
                ((at.codes[0], 1.0), (at.codes[1], 1.0), plan.token, CODE_SIZE),
                (at.short(1), (at.codes[2], 1.0), plan.before, CODE_SIZE),
                ((told, 1.0), (at.signature, 1.0), plan.signature, HASH_SIZE),
            ):
                width = given[0].stop - given[0].start
                rows = free[start : start + width]
                q[rows, asked[0]] = torch.eye(width) * root * nats * share * asked[1] / (size * unit)
                k[rows, given[0]] = torch.eye(width) * given[1] / (size * unit)
                start += width
            q[free[start], at.flag["line"]] = root * nats * plan.beginning / (FLAG_SIZE * unit)
            k[free[start], at.flag["behind_boundary"]] = 1 / (FLAG_SIZE * unit)
            base = free[start + 1]
            q[base, self.constant] = root / one
            k[base, self.constant] = -plan.base * plan.nats / one
            k[base, resting] = (plan.rest - float(k[base] @ bos)) / bos[resting]
            v, o = self._blank(3, head, "v", "o")
            v[:OUTPUT_RANK], o[:, :OUTPUT_RANK] = naming_in, naming_out
            self._say(3, head, HEAD_DIM - 1, one, share=1 / len(IDLE[3]))

    def _naming(self, seen: Tensor, bos: Tensor) -> tuple[Tensor, Tensor]:
        """Maps [rank, hidden] and [hidden, rank] from an attended token to its direction before the output layer."""
        directions = self.model.lm_head.weight * self.model.model.norm.weight
        directions = (directions - directions.mean(0)).double()
        length = directions.norm(dim=1)
        directions = directions / length[:, None]
        mean, wanted = seen.double().mean(0), directions[self.tokens]
        centred, wanted = seen.double() - mean, wanted - wanted.mean(0)
        gram = centred.T @ centred / len(centred)
        ridge = torch.eye(len(gram)) * gram.diagonal().mean()
        solved = torch.linalg.solve(gram + 1e-4 * ridge * len(gram), centred.T @ wanted / len(centred))
        root = torch.linalg.cholesky(gram + 1e-6 * ridge)
        u, s, vt = torch.linalg.svd(root.T @ solved)
        into = torch.linalg.solve_triangular(root.T, u[:, :OUTPUT_RANK], upper=True)
        out = s[:OUTPUT_RANK, None] * vt[:OUTPUT_RANK]
        own = ((centred @ into @ out) * directions[self.tokens]).sum(1).mean() * length.mean()
        gain = OUTPUT_GAIN / (float(own) / self._last_size())
        naming = into.T.float()
        naming[:, self.constant] -= (into.T @ mean).float() / self._one(seen)
        naming[:, self.at.flag["bos"]] -= (naming @ bos) / bos[self.at.flag["bos"]]
        return naming, gain * out.T.float()

    def balance(self) -> None:
        """Give queries and keys of the new heads equal lengths, row by row: a step of training moves both alike."""
        for number, heads in IDLE.items():
            for head in heads if number else ():
                q, k = self.builder.part(number, "q", head), self.builder.part(number, "k", head)
                share = (q.norm(dim=1) / k.norm(dim=1).clamp(min=1e-9)).sqrt()
                share = torch.where(q.norm(dim=1) * k.norm(dim=1) > 0, share, torch.ones_like(share))[:, None]
                q /= share
                k *= share

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


def held_back(model: LlamaForCausalLM) -> dict[str, Tensor]:
    """Masks by parameter name, 0 where a grown target is not trained: what the codes and the new heads look for.

    Their scores are differences of hundreds of nats, and AdamW moves every weight by the same amount however well it
    stands: trained freely, they found nothing any more after thirty steps. What they say is trained, and all the rest.
    """
    old, masks = Added.to(model).start, dict[str, Tensor]()

    def hold(layer: int, names: str, head: int, start: int = 0) -> None:
        part = slice(head * HEAD_DIM + start, (head + 1) * HEAD_DIM)
        for name in names:
            mask = masks.setdefault(
                f"model.layers.{layer}.self_attn.{name}_proj.weight",
                torch.ones_like(getattr(model.model.layers[layer].self_attn, f"{name}_proj").weight),
            )
            (mask.T if name == "o" else mask)[part] = 0

    for head in IDLE[0]:
        hold(0, "qkvo", head)
    for head in LOOK_BACK:
        hold(0, "vo", head, KEPT_RANK)
    hold(1, "qkvo", IDLE[1][0])
    hold(1, "qk", START_HEAD)
    hold(1, "vo", START_HEAD, START_RANK)
    hold(2, "qkvo", IDLE[2][0])
    for head in IDLE[3]:
        hold(3, "qk", head)
    masks["model.embed_tokens.weight"] = torch.ones_like(model.model.embed_tokens.weight)
    masks["model.embed_tokens.weight"][:, old:] = 0
    for number, layer in enumerate(model.model.layers):
        for name, weight in (
            ("input_layernorm", layer.input_layernorm.weight),
            ("mlp.down_proj", layer.mlp.down_proj.weight),
            ("self_attn.o_proj", layer.self_attn.o_proj.weight),
        ):
            masks.setdefault(f"model.layers.{number}.{name}.weight", torch.ones_like(weight))[old:] = 0
    return masks


class RestingKeys:
    """Keeps the new heads' keys of the first token of all, where they rest, as they were when this was made.

    That key is what is left of hundreds of nats that cancel, and all that trains moves it: within two hundred steps it
    rose by 26 nats, and heads rested where they were to look. Only the first token has the flag that is mended by.
    """

    def __init__(self, model: LlamaForCausalLM, layout: Layout) -> None:
        self._model, self._first = model, torch.tensor([[layout.mark(BOS)]])
        self._flag = Added.to(model).flag["bos"]
        self._kept = self.measured()[1]

    def restore(self) -> None:
        """Mend the keys."""
        seen, keys = self.measured()
        for (number, head), key in keys.items():
            weight = self._rows(number, head)
            weight.data[:, self._flag] += (self._kept[number, head] - key) / seen[number][self._flag]

    def _rows(self, number: int, head: int) -> Tensor:
        projection = self._model.model.layers[number].self_attn.k_proj
        return projection.weight[head * HEAD_DIM : (head + 1) * HEAD_DIM]

    @torch.no_grad()
    def measured(self) -> tuple[list[Tensor], dict[tuple[int, int], Tensor]]:
        """What attention sees of the first token in every layer, [hidden], and the new heads' keys [HEAD_DIM] of it."""
        seen = [inputs[0] for inputs in layer_inputs(self._model, self._first, normed=True)]
        heads = [(number, head) for number, heads in IDLE.items() if number for head in heads]
        return seen, {(number, head): self._rows(number, head) @ seen[number] for number, head in heads}


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
    phrase = grower.phrase_map()
    grower.sentences(phrase)
    grower.lookup(phrase)
    grower.copying()
    grower.balance()
    return grower.model.requires_grad_(True)
