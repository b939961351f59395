"""The last part of the target's training: answering about books of tens of thousands of tokens.

A step through such a book costs minutes on a CPU, nearly all of them in reading it. Here the book is read once, without
gradients, by the weights as they are, and many questions are asked about it; only the questions and their answers are
backpropagated through. So a few minutes give hundreds of answers in the company of every distractor that a long book
has, which is where short training leaves off: a match gets a smaller share of the attention the more tokens there are,
and whether a book says something at all is decided by that share. Ordinary batches in between keep the reading itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, LlamaForCausalLM

from assets.tools.books.generated import Question, write_book
from assets.tools.books.quotes import quote_questions
from assets.training.dialogs import (
    SKILL_WEIGHTS,
    WORDS_PER_TOKEN,
    Batch,
    Document,
    answer_questions,
    choose_questions,
    make_batch,
    training_seed,
)
from assets.training.english import babble, prose
from assets.training.measure import ATTENTION
from assets.training.run import Run, by_skill, token_losses
from assets.training.shapes import HEAD_DIM
from assets.training.tokens import Layout
from core.models.hf_attention import cache_argument

ops = torch.ops.aten
ASKING = "recipe_asking"
FIRST_SEED = 5_000_000  # of the texts that are asked about
FIRST_BATCH = 200_000  # of the ordinary batches in between, behind those of all legs
LONGEST_ROW = 256  # tokens of a question and its answer: longer answers are cut
SHORT_ROW = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How the questions about long books are trained.

    `first`: number of the first text, so that parts ask about different ones. `lengths`: tokens of the books, in turn.
    `foreign_every`: each so many-th book is English or babble to quote from. `short_rows` and `long_rows`: questions of
    a step, those with short answers and those with lists and recitations.
    """

    books: int
    first: int
    lengths: tuple[int, ...]
    foreign_every: int
    steps_per_book: int
    short_rows: int
    long_rows: int
    batch_tokens: int  # of the ordinary batch after each book

    @property
    def steps_per_text(self) -> int:
        """Those about a book, and the ordinary one."""
        return self.steps_per_book + 1


@dataclass(frozen=True, slots=True)
class OpenBook:
    """Keys and values [H, S, D] of a book that was read, for every layer."""

    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the book."""
        return self.layers[0][0].shape[1]


@torch.no_grad()
def open_book(model: LlamaForCausalLM, ids: list[int], chunk: int = 2048) -> OpenBook:
    """Read a text without gradients, each chunk as a question about all before it: no mask as wide as the text."""
    shape = (2, model.config.num_key_value_heads, len(ids), HEAD_DIM)
    kept = [torch.empty(shape) for _ in model.model.layers]
    for start in range(0, len(ids), chunk):
        part = torch.tensor([ids[start : start + chunk]])
        end = start + part.shape[1]
        cache = DynamicCache(config=model.config)
        with opened(model, OpenBook(tuple((keys[:, :start], values[:, :start]) for keys, values in kept))):
            model(
                part,
                position_ids=torch.arange(start, end)[None],
                logits_to_keep=1,
                **{cache_argument(model): cache},
            )
        for rows, layer in zip(kept, cache.layers, strict=True):
            rows[:, :, start:end] = torch.cat([layer.keys, layer.values])
    return OpenBook(tuple((keys, values) for keys, values in kept))


@contextmanager
def opened(model: LlamaForCausalLM, book: OpenBook) -> Iterator[None]:
    """Within it every row that the model is given stands behind the book."""
    if not book.num_tokens:
        model.set_attn_implementation(ATTENTION)
        yield
        return
    for layer, kept in zip(model.model.layers, book.layers, strict=True):
        layer.self_attn.open_book = kept
    model.set_attn_implementation(ASKING)
    try:
        yield
    finally:
        model.set_attn_implementation(ATTENTION)
        for layer in model.model.layers:
            del layer.self_attn.open_book


class MergedAttention(torch.autograd.Function):
    """Attention of questions to a book and to themselves, two parts merged by log-sum-exp.

    Neither part's scores are ever in memory: torch's fused kernel gives each part, and its backward pass gives each
    part's gradient when it is told the merged output and log-sum-exp. The book's keys and values get none.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, book_keys: Tensor, book_values: Tensor, scaling: float
    ) -> Tensor:
        """q, k, v [B, H, T, D]; book_keys, book_values [H, S, D] -> [B, H, T, D]."""
        to_self, lse_self = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scaling)
        to_book, lse_book = ops._scaled_dot_product_flash_attention_for_cpu(
            _folded(q), book_keys[None], book_values[None], 0.0, False, scale=scaling
        )
        lse_book = _unfolded(lse_book[..., None], q.shape[0])[..., 0]  # [B, H, T]
        lse = torch.logaddexp(lse_self, lse_book)
        out = to_self * (lse_self - lse).exp()[..., None]
        out += _unfolded(to_book, q.shape[0]) * (lse_book - lse).exp()[..., None]
        ctx.save_for_backward(q, k, v, book_keys, book_values, out, lse)
        ctx.scaling = scaling
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of q, k and v."""
        q, k, v, book_keys, book_values, out, lse = ctx.saved_tensors
        backward = ops._scaled_dot_product_flash_attention_for_cpu_backward
        gradient = gradient.contiguous()
        dq, dk, dv = backward(gradient, q, k, v, out, lse, 0.0, True, scale=ctx.scaling)
        folded = (_folded(gradient), _folded(q), book_keys[None], book_values[None], _folded(out))
        from_book, _, _ = backward(*folded, _folded(lse[..., None])[..., 0], 0.0, False, scale=ctx.scaling)
        return dq + _unfolded(from_book, q.shape[0]), dk, dv, None, None, None


def _folded(rows: Tensor) -> Tensor:
    """[B, H, T, D] -> [1, H, B * T, D]."""
    return rows.transpose(0, 1).flatten(1, 2)[None].contiguous()


def _unfolded(rows: Tensor, num_rows: int) -> Tensor:
    """[1, H, B * T, D] -> [B, H, T, D]."""
    return rows[0].unflatten(1, (num_rows, -1)).transpose(0, 1)


def asking_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Attention of questions [B, H, T, D] to the one book that stands before all of them, and each to itself.

    The book's keys and values are constants. It is on the module as `open_book`: (keys, values), [H, S, D] each.
    """
    query, key, value = (rows.contiguous() for rows in (query, key, value))
    return MergedAttention.apply(query, key, value, *module.open_book, scaling).transpose(1, 2), None


AttentionInterface.register(ASKING, asking_attention)


def answer_losses(model: LlamaForCausalLM, book: OpenBook, batch: Batch) -> Tensor:
    """Cross-entropy of every next token of questions and answers about an open book: [B, T - 1] nats."""
    with opened(model, book):
        return token_losses(model, batch)


# -------------------- what is asked


def text_and_questions(number: int, num_tokens: int, *, foreign: bool) -> tuple[str, list[Question]]:
    """Text number `number`, a book or one from outside the generator, and its questions in random order."""
    seed = training_seed(FIRST_SEED + number)
    rng = random.Random(seed + 1)
    if not foreign:
        book = write_book(seed, int(num_tokens * WORDS_PER_TOKEN))
        return book.text, choose_questions(book, rng)
    text = prose(rng, num_tokens // 2) if rng.random() < 0.7 else babble(rng, num_tokens // 2)
    return text, quote_questions(text, 1000, rng)


def make_rows(layout: Layout, text: str, questions: list[Question]) -> Iterator[Document]:
    """Every question with its answer, as the first turn after a text."""
    for question in questions:
        document = Document([], [])
        answer_questions(document, layout, text, [question], LONGEST_ROW)
        yield document


def pad(documents: list[Document], start: int) -> Batch:
    """Documents as rows whose first token is at position `start`."""
    longest = max(len(document.ids) for document in documents)
    ids = torch.zeros(len(documents), longest, dtype=torch.long)
    skills, weights = torch.zeros_like(ids), torch.zeros(len(documents), longest)
    for row, document in enumerate(documents):
        n = len(document.ids)
        ids[row, :n] = torch.tensor(document.ids)
        skills[row, :n] = torch.tensor(document.skills)
        weights[row, :n] = SKILL_WEIGHTS[skills[row, :n]]
    positions = torch.arange(start, start + longest).expand(len(documents), -1)
    return Batch(ids, skills, weights, positions)


def make_steps(layout: Layout, text: str, questions: list[Question], plan: Asking, start: int) -> Iterator[list[Batch]]:
    """The batches of each step about one text: short answers together, long ones together."""
    short: list[Document] = []
    long: list[Document] = []
    for document in make_rows(layout, text, questions):
        (short if len(document.ids) <= SHORT_ROW else long).append(document)
    for step in range(plan.steps_per_book):
        chosen = (
            short[step * plan.short_rows : (step + 1) * plan.short_rows],
            long[step * plan.long_rows : (step + 1) * plan.long_rows],
        )
        if chosen[0]:
            yield [pad(documents, start) for documents in chosen if documents]


# -------------------- training


def ask_about(run: Run, plan: Asking, number: int) -> None:
    """Read text number `number` and take its steps, then one ordinary step."""
    started = time.monotonic()
    length = plan.lengths[number % len(plan.lengths)]
    foreign = number % plan.foreign_every == plan.foreign_every - 1
    text, questions = text_and_questions(plan.first + number, length, foreign=foreign)
    book = open_book(run.model, [*run.layout.opening(), *run.layout.ids(text)][:length])
    if foreign:  # what is asked for must be in what was kept
        kept = run.layout.tokenizer.decode(run.layout.ids(text)[: length - len(run.layout.opening())])
        questions = [question for question in questions if question.answer in kept]
    read_seconds = time.monotonic() - started
    shown: dict[str, list[float]] = {}
    for batches in make_steps(run.layout, text, questions, plan, book.num_tokens):
        total = sum(float(batch.weights[:, 1:].sum()) for batch in batches)
        run.zero_gradients()
        for batch in batches:
            losses = answer_losses(run.model, book, batch)
            ((losses * batch.weights[:, 1:]).sum() / total).backward()
            for skill, nats in by_skill(losses.detach(), batch).items():
                shown.setdefault(skill, []).append(nats)
        run.step_on()
    batch = make_batch(run.layout, FIRST_BATCH + plan.first + number, 1, plan.batch_tokens, skip=True)
    losses, weights = token_losses(run.model, batch), batch.weights[:, 1:]
    run.update((losses * weights).sum() / weights.sum())
    run.step = (number + 1) * plan.steps_per_text  # a text with few questions leaves steps out
    means = {skill: round(sum(nats) / len(nats), 3) for skill, nats in shown.items()}
    seconds = round(time.monotonic() - started, 1)
    run.log(event="asked", book=number, length=book.num_tokens, read=round(read_seconds, 1), seconds=seconds, **means)


def train_asking(run: Run, plan: Asking, minutes: float) -> None:
    """Ask about the books that are left, or as many as the time allows; saved after each."""
    deadline = time.monotonic() + 60 * minutes
    while run.step < run.steps and time.monotonic() < deadline:
        ask_about(run, plan, run.step // plan.steps_per_text)
        run.save()
