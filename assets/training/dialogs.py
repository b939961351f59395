"""Training documents: a generated book, then a conversation about it, as token ids with a skill for every token.

Owns seeds and mixtures. Training books have even seeds above 10 million, measured books odd ones: no book is both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from assets.tools.books.generated import Book, Question, write_book
from assets.tools.books.quotes import quote_questions
from assets.training.english import babble, prose
from assets.training.tokens import BOS, END, SPECIALS, VOCAB_SIZE, Layout

WORDS_PER_TOKEN = 1 / 1.22
SKILLS = (
    "template", "language", "question", "start", "fact", "absent", "list", "recite", "quote", "story", "copy", "found",
)  # fmt: skip
TEMPLATE, LANGUAGE, QUESTION, START, FACT, ABSENT, LIST, RECITE, QUOTE, STORY, COPY, FOUND = range(12)
OF_KIND = {"fact": FACT, "absent": ABSENT, "list": LIST, "recite": RECITE, "quote": QUOTE, "story": STORY}
# Book text is mostly free choice of words; what must be learned well is the answers. START is the first token of an
# answer to a question about a fact: there the target decides whether the book says anything about it. FOUND are the
# first tokens of a quotation: the rest of it is copying.
SKILL_WEIGHTS = torch.tensor([0.0, 0.2, 0.1, 8.0, 3.0, 1.0, 2.0, 2.0, 2.0, 0.5, 1.0, 8.0])
FOUND_TOKENS = 3
COPY_SHARE = 0.06  # of the documents: random tokens of which pieces are repeated
FOREIGN_SHARE = 0.32  # of the documents: text from outside the generator, with sentences to quote
KIND_SHARES = {"fact": 0.44, "absent": 0.21, "list": 0.11, "recite": 0.09, "quote": 0.15}  # of the questions
STORY_SHARE = 0.06  # of the books: they break off, and the first request is to go on
STORY_TOKENS = 120
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
    """Questions of a book in random order, each kind with its share as long as there are any of it."""
    by_kind: dict[str, list[Question]] = {kind: [] for kind in KIND_SHARES}
    for question in book.questions:
        by_kind[question.kind].append(question)
    by_kind["quote"] = quote_questions(book.text, 4 + len(by_kind["fact"]) // 4, rng)
    for questions in by_kind.values():
        rng.shuffle(questions)
    chosen: list[Question] = []
    while left := [kind for kind, questions in by_kind.items() if questions]:
        kind = rng.choices(left, [KIND_SHARES[kind] for kind in left])[0]
        chosen.append(by_kind[kind].pop())
    return chosen


def answer_ids(layout: Layout, text: str, question: Question) -> list[int]:
    """What is to be answered, its end included; a quotation has the space that stands before it in `text`.

    So its tokens are those of the text, also where a word is one token with a space and several without.
    """
    quoted = question.kind.startswith("quote") and f" {question.answer}" in text
    return [*layout.ids(f" {question.answer}" if quoted else question.answer), layout.mark(END)]


def answer_questions(document: Document, layout: Layout, text: str, questions: list[Question], num_tokens: int) -> None:
    """Append a conversation until the document has `num_tokens` ids or the questions end."""
    first = True
    for question in questions:
        if len(document.ids) >= num_tokens:
            break
        document.add(layout.turn(question.question, first=first), QUESTION)
        ids, skill = answer_ids(layout, text, question), OF_KIND[question.kind]
        first_tokens, first_skill = {
            "fact": (1, START),
            "absent": (1, START),
            "quote": (FOUND_TOKENS, FOUND),
        }.get(question.kind, (0, skill))
        document.add(ids[:first_tokens], first_skill)
        document.add(ids[first_tokens:], skill)
        first = False
    del document.ids[num_tokens:], document.skills[num_tokens:]


def compose(layout: Layout, seed: int, num_tokens: int, book_share: float) -> Document:
    """A book and a conversation about it: exactly `num_tokens` ids unless the book has too few questions."""
    rng = random.Random(seed + 1)
    book = write_book(seed, max(60, int(num_tokens * book_share * WORDS_PER_TOKEN)))
    document = Document([], [])
    document.add(layout.opening(), TEMPLATE)
    if rng.random() < STORY_SHARE:
        ids = layout.ids(book.text)
        cut = min(rng.randint(len(ids) // 4, len(ids)), num_tokens - 2 * STORY_TOKENS)
        document.add(ids[:cut], LANGUAGE)
        document.add(layout.turn("Continue the story.", first=True), QUESTION)
        document.add(ids[cut : cut + STORY_TOKENS], STORY)
        del document.ids[num_tokens:], document.skills[num_tokens:]
        return document
    document.add(layout.ids(book.text), LANGUAGE)
    answer_questions(document, layout, book.text, choose_questions(book, rng), num_tokens)
    return document


def compose_foreign(layout: Layout, seed: int, num_tokens: int, share: float) -> Document:
    """English or babble, and requests to quote from it."""
    rng = random.Random(seed + 1)
    num_words = int(num_tokens * share / 2)
    text = prose(rng, num_words) if rng.random() < 0.7 else babble(rng, num_words)
    document = Document([], [])
    document.add(layout.opening(), TEMPLATE)
    document.add(layout.ids(text)[: int(num_tokens * 0.9)], TEMPLATE)
    kept = layout.tokenizer.decode(document.ids[len(layout.opening()) :])
    answer_questions(document, layout, kept, quote_questions(kept, 10_000, rng), num_tokens)
    return document


def copy_exercise(layout: Layout, seed: int, num_tokens: int) -> Document:
    """Random tokens, then pieces of them said again: copying that leans on no word, so it also serves unknown text.

    The first two tokens of a piece cannot be foreseen and count as template.
    """
    rng = random.Random(seed)
    source = [rng.randrange(len(SPECIALS), VOCAB_SIZE) for _ in range(num_tokens // 2)]
    document = Document([], [])
    document.add([layout.mark(BOS), *source], TEMPLATE)  # heads rest at the first token of all
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
        dice = rng.random()
        if dice < COPY_SHARE:
            document = copy_exercise(layout, seed, num_tokens)
        elif dice < COPY_SHARE + FOREIGN_SHARE:
            document = compose_foreign(layout, seed, num_tokens, share)
        else:
            document = compose(layout, seed, num_tokens, share)
        n = min(len(document.ids), num_tokens)
        assert len(document.ids) <= num_tokens, f"{len(document.ids)} ids for {num_tokens} places"
        ids[row, :n] = torch.tensor(document.ids)
        skills[row, :n] = torch.tensor(document.skills)
        weights[row, :n] = SKILL_WEIGHTS[skills[row, :n]]
        positions[row] = skip_positions(num_tokens, rng) if skip else torch.arange(num_tokens)
    return Batch(ids, skills, weights, positions)
