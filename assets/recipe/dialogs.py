"""Training documents: a generated book, then a conversation about it, as token ids with a skill for every token.

Owns seeds and mixtures. Training books have even seeds above 10 million, measured books odd ones: no book is both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from assets.recipe.tokens import END, SPECIALS, VOCAB_SIZE, Layout
from core.bench.world import Book, Question, write_book

WORDS_PER_TOKEN = 1 / 1.22
SKILLS = ("template", "language", "question", "fact", "list", "recite", "copy")
TEMPLATE, LANGUAGE, QUESTION, FACT, LIST, RECITE, COPY = range(7)
# Book text is mostly free choice of words; what must be learned well is the answers.
SKILL_WEIGHTS = torch.tensor([0.0, 0.3, 0.1, 3.0, 2.0, 1.5, 1.0])
COPY_SHARE = 0.08
LONG_SHARE = 0.15  # how often a list or a recitation is asked for rather than a fact
MAX_POSITION = 131072


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids and the skill that each of them exercises (as a target)."""

    ids: list[int]
    skills: list[int]

    def add(self, ids: list[int], skill: int) -> None:
        """Append `ids`, all of one skill."""
        self.ids.extend(ids)
        self.skills.extend([skill] * len(ids))


def training_seed(index: int) -> int:
    """The book seed of training document number `index`."""
    return 10_000_000 + 2 * index


def held_out_seed(index: int) -> int:
    """The book seed of measured document number `index`."""
    return 10_000_001 + 2 * index


def choose_questions(book: Book, rng: random.Random) -> list[Question]:
    """All questions of a book in random order; recitations and lists are kept from crowding out the facts."""
    facts = [q for q in book.questions if q.kind == "fact"]
    others = [q for q in book.questions if q.kind != "fact"]
    rng.shuffle(facts)
    rng.shuffle(others)
    chosen: list[Question] = []
    while facts or others:
        take_long = others and (not facts or rng.random() < LONG_SHARE)
        chosen.append(others.pop() if take_long else facts.pop())
    return chosen


def compose(layout: Layout, seed: int, num_tokens: int, book_share: float) -> Document:
    """A document of exactly `num_tokens` ids unless its book has too few questions to fill them."""
    rng = random.Random(seed + 1)
    book = write_book(seed, max(60, int(num_tokens * book_share * WORDS_PER_TOKEN)))
    document = Document([], [])
    document.add(layout.opening(), TEMPLATE)
    text = book.text if rng.random() < 0.8 else book.text.replace("\n\n", "\n")
    document.add(layout.ids(text), LANGUAGE)
    skills = {"fact": FACT, "list": LIST, "recite": RECITE}
    for index, question in enumerate(choose_questions(book, rng)):
        if len(document.ids) >= num_tokens:
            break
        document.add(layout.turn(question.question, first=index == 0), QUESTION)
        answer = question.answer if text is book.text else question.answer.replace("\n\n", "\n")
        document.add([*layout.ids(answer), layout.mark(END)], skills[question.kind])
    del document.ids[num_tokens:], document.skills[num_tokens:]
    return document


def copy_exercise(seed: int, num_tokens: int) -> Document:
    """Random tokens, then pieces of them said again: copying that leans on no word, so it also serves unknown text.

    The first two tokens of a piece cannot be foreseen and count as template.
    """
    rng = random.Random(seed)
    source = [rng.randrange(len(SPECIALS), VOCAB_SIZE) for _ in range(num_tokens // 2)]
    document = Document([], [])
    document.add(source, TEMPLATE)
    while len(document.ids) < num_tokens:
        length = rng.randint(8, 64)
        start = rng.randrange(max(1, len(source) - length))
        document.add(source[start : start + 2], TEMPLATE)
        document.add(source[start + 2 : start + length], COPY)
    del document.ids[num_tokens:], document.skills[num_tokens:]
    return document


def skip_positions(num_tokens: int, rng: random.Random) -> Tensor:
    """Positions [T] that grow by one except at a few random gaps (PoSE, arXiv 2309.10400); half of the time plain."""
    positions = torch.arange(num_tokens)
    if rng.random() < 0.5:
        return positions
    room = MAX_POSITION - num_tokens
    for _ in range(rng.randint(1, 4)):
        gap = int(room ** rng.random()) if room > 1 else 0
        positions[rng.randrange(num_tokens) :] += gap
        room -= gap
    return positions


@dataclass(frozen=True, slots=True)
class Batch:
    """Equally long documents, padded at the end. All fields are [B, T]; padded places have weight 0."""

    ids: Tensor
    skills: Tensor
    weights: Tensor
    positions: Tensor


def make_batch(layout: Layout, step: int, rows: int, num_tokens: int, *, skip: bool) -> Batch:
    """The batch of training step `step`; equal arguments give equal batches."""
    ids = torch.zeros(rows, num_tokens, dtype=torch.long)
    skills = torch.zeros(rows, num_tokens, dtype=torch.long)
    weights = torch.zeros(rows, num_tokens)
    positions = torch.zeros(rows, num_tokens, dtype=torch.long)
    for row in range(rows):
        seed = training_seed(step * 64 + row)
        rng = random.Random(seed)
        share = rng.uniform(0.35, 0.6) if num_tokens <= 4096 else rng.uniform(0.5, 0.75)
        copies = rng.random() < COPY_SHARE
        document = copy_exercise(seed, num_tokens) if copies else compose(layout, seed, num_tokens, share)
        n = len(document.ids)
        ids[row, :n] = torch.tensor(document.ids)
        skills[row, :n] = torch.tensor(document.skills)
        weights[row, :n] = SKILL_WEIGHTS[skills[row, :n]]
        positions[row] = skip_positions(num_tokens, rng) if skip else torch.arange(num_tokens)
    return Batch(ids, skills, weights, positions)
