"""The questions for a book: a seeded choice of every kind, with the answers."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import TypedDict

from assets.tools.books.generated import Book, Kind, Question
from assets.tools.books.quotes import quote_questions

COUNTS: Mapping[Kind, int] = {"fact": 20, "list": 4, "recite": 4, "absent": 8, "quote": 6}


class Row(TypedDict):
    """An entry of a questions file for `ask --questions`."""

    book: str  # file name
    kind: Kind
    question: str
    answer: str


def choose_questions(book: Book, name: str, seed: int, counts: Mapping[Kind, int] = COUNTS) -> list[Row]:
    """Questions about the book in the file `name`, by kind in the order of `counts`; as many as exist."""
    rng = random.Random(seed)
    headings = {book.title, *(chapter.text.partition("\n")[0] for chapter in book.chapters)}
    chosen: list[Question] = []
    for kind, count in counts.items():
        if kind == "quote":  # sentences, without headings, whose phrases other questions use
            asked = quote_questions(book.text, count + len(headings), rng)
            chosen += [question for question in asked if question.answer not in headings][:count]
        else:
            known = [question for question in book.questions if question.kind == kind]
            chosen += rng.sample(known, min(count, len(known)))
    return [Row(book=name, kind=q.kind, question=q.question, answer=q.answer) for q in chosen]


def to_json(rows: Sequence[Row]) -> bytes:
    """The questions file."""
    return (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()
