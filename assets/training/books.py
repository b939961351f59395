"""Writes the sample books and their questions anew: `python assets/training/books.py`.

Owns their seeds, which no model was trained or measured on, and their lengths. These are in words and not in tokens, so
that the books stay what they are when a tokenizer changes; their names say how long they are for the bundled model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from assets.tools.books.formats import FORMATS  # noqa: E402
from assets.tools.books.generated import Kind, write_book  # noqa: E402
from assets.tools.books.questions import Row, choose_questions, to_json  # noqa: E402

FOLDER = ROOT / "assets" / "books"
# The order matters: it is that of the random draws, and kinds that were added later come last.
QUESTIONS: Mapping[Kind, int] = {"fact": 10, "list": 2, "recite": 2, "absent": 4, "quote": 4}


class Sample(NamedTuple):
    """A book and the files that it is written to."""

    seed: int
    num_words: int  # as `write_book` takes them
    names: tuple[str, ...]


SAMPLES = (
    Sample(1874, 6_646, ("harbour-8k.pdf",)),
    Sample(1892, 26_328, ("harbour-32k.txt", "harbour-32k.epub")),
    Sample(1911, 99_000, ("harbour-120k.txt",)),
)


def main() -> None:
    """Write the books and questions.json."""
    rows: list[Row] = []
    for sample in SAMPLES:
        book = write_book(sample.seed, sample.num_words)
        for name in sample.names:
            (FOLDER / name).write_bytes(FORMATS[Path(name).suffix](book))
            rows += choose_questions(book, name, sample.seed, QUESTIONS)
    (FOLDER / "questions.json").write_bytes(to_json(rows))


if __name__ == "__main__":
    main()
