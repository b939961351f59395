"""Texts and questions of the recall suite: unseen books and foreign English, cut to a length.

Chooses the measured texts and knows nothing of methods. Book seeds lie in [3,000,000, 4,000,000): training uses even
seeds from 10,000,000 on, and odd ones there for its own measurements. English comes from Python's language reference:
topics that training does not read; sentences that they share with other topics are not asked for.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import ceil
from pydoc_data.topics import topics
from typing import Literal

from assets.tools.bench.speed import long_enough_book
from assets.tools.books.generated import Question
from assets.tools.books.quotes import quote_questions
from core.generation.session import Conversation
from core.generation.text import ChatText

Skill = Literal["fact", "absent", "list", "quote", "quote_any", "recite"]
BOOK_SKILLS: tuple[Skill, ...] = ("fact", "absent", "list", "quote", "recite")
ENGLISH_SKILLS: tuple[Skill, ...] = ("quote_any",)

FIRST_SEED, NUM_SEEDS = 3_000_000, 1_000_000
LONG_CONTEXT = 65536  # from here on one text is enough, and fewer questions are asked
QUESTION_ROOM = 64  # tokens of question and chat template
MOST_TEXTS = 60  # of a context; if they hold too few questions of a kind, n is smaller


@dataclass(frozen=True, slots=True)
class Source:
    """A text that fits, and all questions about it, in random order."""

    text: str
    questions: Mapping[Skill, Sequence[Question]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A text in tokens and the questions about it."""

    book_ids: tuple[int, ...]
    asked: Mapping[Skill, tuple[Question, ...]]


def cut_at_paragraph(text: ChatText, written: str, num_tokens: int) -> str:
    """The most whole paragraphs of `written` that have at most num_tokens tokens; "" if not even one fits."""
    starts = text.offsets(written)
    if len(starts) <= num_tokens:
        return written
    return written[: max(0, written.rfind("\n\n", 0, starts[num_tokens] + 2))]


def stands_in(question: Question, kept: str, kept_lower: str) -> bool:
    """Whether a book's beginning still answers the question (or still does not, for an absent fact)."""
    if question.kind in ("fact", "list"):
        statements = [question.answer.removesuffix(".")] if question.kind == "fact" else question.values
        return all(statement.lower() in kept_lower for statement in statements)
    return question.kind == "absent" or question.answer in kept


def unwrapped(text: str) -> str:
    """Put each paragraph on one line. Indented ones, tables, code and headings stay unchanged, and are not quoted."""
    paragraphs = []
    for paragraph in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")):
        lines = paragraph.split("\n")
        as_it_is = paragraph[:1].isspace() or any(re.match(r"\s*(>>>|[+|]|(\S)\2{2,}$)", line) for line in lines)
        paragraphs.append(paragraph if as_it_is else " ".join(paragraph.split()))
    return "\n\n".join(paragraphs)


def measured_topics() -> list[str]:
    """Topics of the language reference that training does not read: every second one, starting with the second."""
    return sorted(topics)[1::2]


@cache
def trained_english() -> str:
    """The other topics of the language reference, on one line."""
    return " ".join(" ".join(topics[name].split()) for name in sorted(topics)[0::2])


def unseen_quotes(kept: str, most: int, rng: random.Random) -> list[Question]:
    """Questions for sentences that training has not read: several topics have the same sentence."""
    asked = quote_questions(kept, len(kept), rng)
    return [question for question in asked if question.answer not in trained_english()][:most]


def books(text: ChatText, context: int, seed: int, most_quotes: int) -> Iterator[Source]:
    """Unseen books."""
    first = random.Random(f"books {seed} {context}").randrange(NUM_SEEDS)
    for number in range(MOST_TEXTS):
        book_seed = FIRST_SEED + (first + number) % NUM_SEEDS
        rng = random.Random(book_seed)
        book = long_enough_book(text, context, book_seed)
        kept = cut_at_paragraph(text, book.text, context - QUESTION_ROOM)
        kept_lower = kept.lower()
        found: dict[Skill, list[Question]] = {skill: [] for skill in BOOK_SKILLS}
        for question in rng.sample(book.questions, len(book.questions)):
            if stands_in(question, kept, kept_lower):
                found[question.kind].append(question)
        found["quote"] = quote_questions(kept, most_quotes, rng)
        yield Source(kept, found)


def english_texts(text: ChatText, context: int, seed: int, most_quotes: int) -> Iterator[Source]:
    """English texts, each from its own topics, with sentences to quote; ends when no topics are left."""
    rng = random.Random(f"english {seed} {context}")
    names = measured_topics()
    rng.shuffle(names)
    room, parts, size = context - QUESTION_ROOM, list[str](), 0
    for name in names:
        parts.append(unwrapped(topics[name]))
        size += len(text.encode(parts[-1])) + 1
        if size >= room or name == names[-1]:
            kept = cut_at_paragraph(text, "\n\n".join(parts), room)
            yield Source(kept, {"quote_any": unseen_quotes(kept, most_quotes, rng)})
            parts, size = [], 0


def choose_readings(
    text: ChatText, context: int, sources: Iterator[Source], wanted: Mapping[Skill, int]
) -> Iterator[Reading]:
    """Spread the wanted numbers of questions over as few texts as possible, but over two below LONG_CONTEXT."""
    fewest = 1 if context >= LONG_CONTEXT else 2
    left = dict(wanted)
    for source in sources:
        book_ids = tuple(text.encode(source.text))
        asked: dict[Skill, tuple[Question, ...]] = {}
        for skill, number in left.items():
            most = min(number, ceil(wanted[skill] / fewest))
            fitting = (q for q in source.questions[skill] if fits(text, context, book_ids, q))
            asked[skill] = tuple(islice(fitting, most))
            left[skill] -= len(asked[skill])
        if any(asked.values()):
            yield Reading(book_ids=book_ids, asked=asked)
        if not any(left.values()):
            return


def fits(text: ChatText, context: int, book_ids: tuple[int, ...], question: Question) -> bool:
    """Whether text, question and template have at most `context` tokens."""
    return len(Conversation(book_ids).ask(question.question).prompt_ids(text)) <= context
