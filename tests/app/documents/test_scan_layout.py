"""Lines on a picture get the order in which people read them."""

import math

from app.documents.layout import page_text
from app.documents.scan_layout import Corner, Found, printed_lines

HEIGHT, LETTER = 20, 9  # pixels


def line(text: str, x: float, y: float, width: float | None = None) -> Found:
    """A line whose upper left corner is at (x, y)."""
    right = x + (width or LETTER * len(text))
    return Found(text, [(x, y), (right, y), (right, y + HEIGHT), (x, y + HEIGHT)])


def turned(found: Found, degrees: float) -> Found:
    """The line on a page that lies askew."""
    across, down = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def turn(corner: Corner) -> Corner:
        x, y = corner
        return x * across - y * down, x * down + y * across

    return Found(found.text, [turn(corner) for corner in found.corners])


def order(found: list[Found]) -> list[str]:
    text = page_text(printed_lines(found, 0.36), scanned=True)
    return [row for row in text.split("\n") if row]


def columns(top: int, number: int = 6) -> list[Found]:
    """Two columns, row by row."""
    return [
        line(f"{side}{row} of the column", x, top + 30 * row, 300)
        for row in range(number)
        for side, x in (("left", 40), ("right", 380))
    ]


def test_columns_are_read_one_after_the_other() -> None:
    found = order(columns(100))
    assert found == [f"{side}{row} of the column" for side in ("left", "right") for row in range(6)]


def test_what_runs_across_parts_the_columns() -> None:
    page = [line("A title across both columns of the page", 40, 40, 640), *columns(100)]
    page += [line("A heading across both of them once more", 40, 300, 640), *columns(340)]
    found = order(page)
    assert found[0].startswith("A title") and found[13].startswith("A heading")
    assert found[1].startswith("left0") and found[7].startswith("right0") and found[14].startswith("left0")


def test_a_table_with_a_narrow_column_stays_in_rows() -> None:
    cells = [line(text, x, 30 * row) for row in range(8) for text, x in ((f"entry number {row}", 40), (f"{row}9", 640))]
    assert order(cells) == [f"entry number {row} {row}9" for row in range(8)]


def test_a_page_askew_is_set_straight() -> None:
    straight = [line("The old pilot stood", 40, 30 * row, 300) for row in range(8)]
    straight += [line(f"{row}", 1_100, 30 * row, 40) for row in range(8)]
    assert order([turned(one, 1.5) for one in straight]) == [f"The old pilot stood {row}" for row in range(8)]
