import argparse
from typing import Any

import pytest

from app.cli.reading import library_of, naming_parts
from app.documents.document import Document
from core.errors import ContextTooSmall, InvalidSetting
from tests.app.fakes import document_of

WORDS = 100  # in each chapter, and on each page


def book(num_chapters: int = 4, *, marked: bool = True) -> Document:
    page = "word " * WORDS
    starts = [at * len(page) for at in range(num_chapters)] if marked else []
    return document_of(*[page] * num_chapters, name="book.pdf", chapter_starts=starts)


def asked(**options: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"chapters": None, "pages": None} | options)


def hint(documents: list[Document], capacity: int, possible: int) -> str:
    with pytest.raises(ContextTooSmall) as caught, naming_parts(str.split, library_of(documents, asked())):
        raise ContextTooSmall(460, capacity, possible=possible)
    assert f"{460 - capacity:,} too many" in caught.value.problem
    return caught.value.hint


def test_what_is_too_long_names_parts_that_fit() -> None:
    found = hint([book()], 300, 300)
    assert found.startswith("Ask about a part: --pages 1-2 (200 tokens), --chapters 1-2 (200 tokens)")
    assert hint([book(marked=False)], 300, 300).startswith("Ask about a part: --pages 1-2 (200 tokens), --pages 3-4")
    assert hint([book(8)], 300, 800) != hint([book(8)], 300, 300)


def test_chosen_parts_are_read_alone() -> None:
    assert library_of([book()], asked()).text == book().text
    assert len(library_of([book()], asked(chapters=(2, 3))).text.split()) == 2 * WORDS
    assert len(library_of([book()], asked(pages=(4, 4))).text.split()) == WORDS


@pytest.mark.parametrize(
    ("documents", "options", "problem"),
    [
        ([book(), book()], {"pages": (1, 1)}, "--pages is for one file"),
        ([book()], {"chapters": (1, 5)}, "book.pdf has 4 chapters. Ask for chapters from 1 to 4"),
        ([book(marked=False)], {"chapters": (1, 1)}, "has 0 chapters. Choose pages"),
        ([book()], {"pages": (5, 9)}, "book.pdf has 4 pages."),
    ],
)
def test_other_parts_are_refused(documents: list[Document], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        library_of(documents, asked(**options))
