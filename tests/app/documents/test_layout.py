"""Printed lines to text: paragraphs, columns and tables, of a PDF or of a picture, and what only looks like them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest

from app.documents.layout import page_text
from app.documents.printed import Corner, Found, Place, PrintedLine, printed_lines

WORDS = (
    "the old pilot stood on the quay, and he counted the boats that came in with the tide, as he had done on every "
    "evening of his life; nobody in the harbour knew why he did it. When the last boat was in he took his lamp, went "
    "up to the house on the hill, and wrote the number into a book, which he kept in a drawer under the window, "
)


def line(text: str, x: float, y: float, size: float = 10.0, letter: float = 5.0) -> PrintedLine:
    """`letter`: its width."""
    return PrintedLine(text, Place(x, y), Place(x + letter * len(text), y), size)


def column(texts: Sequence[str], x: float = 72, top: float = 700, letter: float = 5.0) -> list[PrintedLine]:
    return [line(text, x, top - 12 * number, letter=letter) for number, text in enumerate(texts)]


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


def rows(lines: Sequence[PrintedLine], *, scanned: bool = False) -> list[str]:
    """The lines of the text, without borders of cells and blank lines."""
    return [row.replace(" | ", " ") for row in page_text(lines, scanned=scanned).split("\n") if row]


# -------------------- paragraphs


def test_more_room_than_usual_parts_paragraphs() -> None:
    first = column(["one", "two", "three", "four"])
    assert page_text(first) == "one\ntwo\nthree\nfour"
    assert page_text([*first, *column(["five", "six"], top=646)]) == "one\ntwo\nthree\nfour\n\nfive\nsix"


def test_the_first_line_of_a_paragraph_may_stand_to_the_right() -> None:
    long = "Words and words and words."
    lines = column([long] * 4)
    lines[2] = line(long, 87, lines[2].start.y)
    assert page_text(lines) == f"{long}\n{long}\n\n{long}\n{long}"
    unended = [replace(one, text=one.text.rstrip(".")) for one in lines]
    assert "\n\n" not in page_text(unended), "the second line of a list's entry"
    code = column(["if x:", "y", "z", long])
    code[1] = line("y", 87, code[1].start.y)
    assert "\n\n" not in page_text(code)


def test_headers_and_footers_stand_where_they_are_printed_whenever_they_are_drawn() -> None:
    body, header, footer = column("abcdef"), line("The Pilot", 72, 780), line("7", 300, 40)
    for drawn in ([header, *body, footer], [header, footer, *body], [*body, header, footer], [footer, *body, header]):
        assert page_text(drawn) == "The Pilot\n\na\nb\nc\nd\ne\nf\n\n7"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_page_that_is_turned_by_a_quarter_reads_as_one_that_is_not(sign: int) -> None:
    lines = [*column(["one line", "two line", "three line", "four line"]), line("five line", 72, 640)]
    turned = [
        replace(
            one,
            **{end: Place(-sign * place.y, sign * place.x) for end, place in (("start", one.start), ("end", one.end))},
        )
        for one in lines
    ]
    assert page_text(turned) == page_text(lines) == "one line\ntwo line\nthree line\nfour line\n\nfive line"


# -------------------- columns

LEFT, RIGHT = prose(14), prose(34)[20:]
VERSE, ITS_TRANSLATION = ([text[:1].upper() + text[1:] for text in side] for side in (LEFT, RIGHT))
NAMES, NUMBERS = [f"the name of boat {number}" for number in range(20)], [f"{n} tons, 1890" for n in range(20)]
LONG, SHORT = [f"l{number}" for number in range(20)], ["r0", "r1", "r2", "r3"]
HEADING = line("A heading that stands across the whole of this page", 72, 500, size=14, letter=7)


def across(left: Sequence[str], right: Sequence[str], top: float = 700, down: float = 0) -> list[PrintedLine]:
    """Two columns drawn line by line across the page, the right one so far down."""
    sides = column(left, 72, top, 4.6), column(right, 320, top - down, 4.6)
    return sorted(chain(*sides), key=lambda one: (-round(one.start.y), one.start.x))


def row_by_row(left: Sequence[str], right: Sequence[str]) -> list[str]:
    return [f"{one} {other}" for one, other in zip(left, right, strict=True)]


@pytest.mark.parametrize(
    ("drawn", "read"),
    [
        (across(LEFT, RIGHT), [*LEFT, *RIGHT]),
        (across(LEFT, RIGHT, down=5), [*LEFT, *RIGHT]),
        ([*across(LEFT, RIGHT), HEADING, *across(LEFT, RIGHT, 450)],
         [*LEFT, *RIGHT, HEADING.text, *LEFT, *RIGHT]),
        ([replace(one, start=one.end, end=one.start) for one in across(LEFT, RIGHT)], [*RIGHT, *LEFT]),
        ([*column(LONG), *column(SHORT, 320)], [*LONG, *SHORT]),
        ([*column(SHORT, top=508), *column(LONG, 320)], [*SHORT, *LONG]),
        (across(NAMES, NUMBERS), row_by_row(NAMES, NUMBERS)),
        (across(VERSE, ITS_TRANSLATION), row_by_row(VERSE, ITS_TRANSLATION)),
    ],
    ids=["line by line", "at different heights", "under a heading", "from right to left", "end of a chapter",
         "under a picture", "a table", "verse beside its translation"],
)  # fmt: skip
def test_columns_are_read_one_after_the_other_and_nothing_else_is_torn_apart(
    drawn: list[PrintedLine], read: list[str]
) -> None:
    assert rows(drawn) == read


# -------------------- tables

EDGES = (72, 200, 330, 430)


def table(*rows: str, step: float = 12, letter: float = 4.3, fixed: bool = False) -> list[PrintedLine]:
    """Rows of cells between bars. The letters' widths differ, as in print, or are `fixed`."""
    return [
        line(
            text,
            EDGES[at],
            700 - step * number,
            letter=6 * (1 - 1 / len(text)) if fixed else letter + 0.3 * (number + at),
        )
        for number, row in enumerate(rows)
        for at, text in enumerate(row.split("|"))
        if text
    ]


BOATS = ("Boat|Tons|Year", "Gannet|17|1890", "Tern|9|1887")


@pytest.mark.parametrize(
    "rows",
    [
        BOATS,
        ("1.|Go down", "2.|Take the boat", "3.|Row out"),
        ("17|40|9", "12|38|7", "25|4|1"),
        ("quay|where boats lie", "tide|the level of the sea", "boat|what swims"),
    ],
)
@pytest.mark.parametrize("fixed", [False, True])
def test_the_cells_of_a_table_have_borders(rows: tuple[str, ...], fixed: bool) -> None:
    assert page_text(table(*rows, letter=2.8, fixed=fixed)) == "\n".join(rows).replace("|", " | ")


def test_the_further_lines_of_a_cell_stay_below_it() -> None:
    cells = table("Gannet|the old pilot's", "Tern|the harbour's own", "Osprey|no one's boat")
    wrapped = [*cells[:2], line("only boat", 200, 694), *cells[2:]]
    assert page_text(wrapped).startswith("Gannet | the old pilot's\nonly boat\nTern | the harbour's own")


@pytest.mark.parametrize(
    "drawn",
    [
        table(*BOATS, step=60),
        [one if at % 2 == 0 else line(one.text, 200 + 20 * at, one.start.y) for at, one in enumerate(table(*BOATS))],
        *(table(*rows.split("\n"), letter=2.8) for rows in (
            "The quay|7\nThe tide|19\nThe storm|40",
            "List of boats|II\nList of quays|IV\nThe tide|3",
            "The quay . . . .|one|7\nThe tide . . .|two|3\nThe storm . . .|three|2",
            "column|= 1em and more\nposition|= the left side\ndistance|= half an em",
            "print(boat)|# the name\nprint(tons)|# the weight\nprint(year)|# of the boat",
            "boat|a|b|c\ntide|d|e|f\nquay|g|h|i",
            "boat|ab|cd|ef\ntide|gh|ij|kl\nquay|mn|op|qr",
        )),
    ],
)  # fmt: skip
def test_what_only_looks_like_a_table_has_no_borders(drawn: list[PrintedLine]) -> None:
    assert " | " not in page_text(drawn)


# -------------------- lines found on a picture


def found(text: str, x: float, y: float, width: float | None = None) -> Found:
    """A line whose upper left corner is at (x, y), in pixels."""
    right = x + (width or 9 * len(text))
    return Found(text, [(x, y), (right, y), (right, y + 20), (x, y + 20)])


def askew(line: Found, degrees: float) -> Found:
    across, down = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    corners: list[Corner] = [(x * across - y * down, x * down + y * across) for x, y in line.corners]
    return Found(line.text, corners)


def two_columns(top: int) -> list[Found]:
    """Row by row."""
    return [
        found(f"{side}{row} of it", x, top + 30 * row, 300) for row in range(6) for side, x in (("l", 40), ("r", 380))
    ]


IN_TURN = [f"{side}{row} of it" for side in "lr" for row in range(6)]
ACROSS = [
    found(f"A {what} across both columns of the page", 40, y, 640) for what, y in (("title", 40), ("heading", 300))
]


@pytest.mark.parametrize(
    ("lines", "read"),
    [
        (two_columns(100), IN_TURN),
        ([ACROSS[0], *two_columns(100), ACROSS[1], *two_columns(340)],
         [ACROSS[0].text, *IN_TURN, ACROSS[1].text, *IN_TURN]),
        ([found(text, x, 30 * row) for row in range(8) for text, x in ((f"entry number {row}", 40), (f"{row}9", 640))],
         [f"entry number {row} {row}9" for row in range(8)]),
        ([askew(found(text, x, 30 * row, width), 1.5) for text, x, width in (("The pilot", 40, 300), ("7", 1_100, 40))
          for row in range(8)], ["The pilot 7"] * 8),
    ],
    ids=["columns", "what runs across them", "a narrow column of a table", "a page askew"],
)  # fmt: skip
def test_lines_on_a_picture_get_the_order_in_which_people_read_them(lines: list[Found], read: list[str]) -> None:
    assert rows(printed_lines(lines, 0.36), scanned=True) == read
