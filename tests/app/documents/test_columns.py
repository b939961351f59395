"""Columns that a file draws line by line across the page, and what looks like them and is not."""

from dataclasses import replace
from itertools import chain

from app.documents.layout import page_text
from app.documents.printed import PrintedLine
from tests.app.documents.test_layout import line

WORDS = (
    "the old pilot stood on the quay, and he counted the boats that came in with the tide, as he had done on every "
    "evening of his life; nobody in the harbour knew why he did it. When the last boat was in he took his lamp, went "
    "up to the house on the hill, and wrote the number into a book, which he kept in a drawer under the window, "
)


def prose(number: int, width: int = 38) -> list[str]:
    """So many full lines of running text."""
    lines, held = list[str](), ""
    for word in (WORDS * 9).split():
        if len(held) + 1 + len(word) > width:
            lines.append(held)
            held = word
        else:
            held = f"{held} {word}".strip()
    return lines[:number]


def side(texts: list[str], x: float, top: float = 700, step: float = 12) -> list[PrintedLine]:
    return [line(text, x, top - step * number, width=4.6 * len(text)) for number, text in enumerate(texts)]


def across(*sides: list[PrintedLine]) -> list[PrintedLine]:
    """The sides drawn line by line across the page."""
    return sorted(chain(*sides), key=lambda one: (-round(one.start.y), one.start.x))


LEFT, RIGHT = prose(14), prose(34)[20:]


def test_columns_drawn_line_by_line_are_read_one_after_the_other() -> None:
    lines = across(side(LEFT, 72), side(RIGHT, 320))
    assert [one.text for one in lines[:2]] == [LEFT[0], RIGHT[0]]
    assert page_text(lines).split("\n") == [*LEFT, *RIGHT]


def test_columns_whose_lines_stand_at_different_heights_are_read_one_after_the_other_too() -> None:
    assert page_text(across(side(LEFT, 72), side(RIGHT, 320, top=695))).split("\n") == [*LEFT, *RIGHT]


def test_a_heading_over_the_whole_page_stays_between_the_columns_above_and_below() -> None:
    middle = line("A heading that stands across the whole of this page", 72, 500, size=14)
    below = 450
    lines = [*across(side(LEFT, 72), side(RIGHT, 320)), middle, *across(side(LEFT, 72, below), side(RIGHT, 320, below))]
    assert [text for text in page_text(lines).split("\n") if text] == [*LEFT, *RIGHT, middle.text, *LEFT, *RIGHT]


def test_columns_from_right_to_left_begin_at_the_right() -> None:
    lines = across(side(LEFT, 72), side(RIGHT, 320))
    to_the_left = [replace(one, start=one.end, end=one.start) for one in lines]
    assert page_text(to_the_left).split("\n") == [*RIGHT, *LEFT]


def rows(left: list[str], right: list[str]) -> list[str]:
    """What a page of both sides says if each row stays one line, whatever is between its cells."""
    return [f"{one} {other}" for one, other in zip(left, right, strict=True)]


def flat(text: str) -> list[str]:
    return [row.replace(" | ", " ") for row in text.split("\n") if row]


def test_a_table_is_not_torn_into_columns() -> None:
    names, numbers = [f"the name of boat {number}" for number in range(20)], [f"{n} tons, 1890" for n in range(20)]
    assert flat(page_text(across(side(names, 72), side(numbers, 320)))) == rows(names, numbers)


def test_verse_beside_its_translation_is_not_torn_apart() -> None:
    left = [text[:1].upper() + text[1:] for text in prose(14)]
    right = [text[:1].upper() + text[1:] for text in prose(34)[20:]]
    assert flat(page_text(across(side(left, 72), side(right, 320)))) == rows(left, right)
