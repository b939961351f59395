import pytest

from app.documents.layout import page_text
from app.documents.printed import PrintedLine
from tests.app.documents.test_layout import line

EDGES = (72, 200, 330, 430)


def table(*rows: str, step: float = 12, width: float = 4.3, fixed: bool = False) -> list[PrintedLine]:
    """Rows of cells between bars. The letters' widths differ, as in print."""
    return [
        line(
            text,
            EDGES[column],
            700 - step * number,
            width=6 * (len(text) - 1) if fixed else (width + 0.3 * (number + column)) * len(text),
        )
        for number, row in enumerate(rows)
        for column, text in enumerate(row.split("|"))
        if text
    ]


def test_the_cells_of_a_table_have_borders() -> None:
    text = page_text(table("Boat|Tons|Year", "Gannet|17|1890", "Tern|9|1887"))
    assert text == "Boat | Tons | Year\nGannet | 17 | 1890\nTern | 9 | 1887"


def test_the_further_lines_of_a_cell_stay_below_it() -> None:
    rows = table("Gannet|the old pilot's", "Tern|the harbour's own", "Osprey|no one's boat")
    wrapped = line("only boat", 200, 694)
    assert page_text([*rows[:2], wrapped, *rows[2:]]).split("\n")[:3] == [
        "Gannet | the old pilot's",
        "only boat",
        "Tern | the harbour's own",
    ]


def test_rows_far_apart_or_out_of_line_are_no_table() -> None:
    rows = ("Boat|Tons", "Gannet|heavy", "Tern|light")
    assert " | " in page_text(table(*rows))
    assert " | " not in page_text(table(*rows, step=60))
    crooked = [
        one if number % 2 == 0 else line(one.text, 200 + 20 * number, one.start.y)
        for number, one in enumerate(table(*rows))
    ]
    assert " | " not in page_text(crooked)


@pytest.mark.parametrize(
    "rows",
    [
        ["The quay|7", "The tide|19", "The storm|40"],
        ["List of boats|II", "List of quays|IV", "The tide|3"],
        ["The quay . . . .|one|7", "The tide . . .|two|3", "The storm . . .|three|2"],
        ["column|= 1em and more", "position|= the left side", "distance|= half an em"],
        ["print(boat)|# the name", "print(tons)|# the weight", "print(year)|# of the boat"],
        ["boat|a|b|c", "tide|d|e|f", "quay|g|h|i"],
        ["boat|ab|cd|ef", "tide|gh|ij|kl", "quay|mn|op|qr"],
    ],
)
def test_what_only_looks_like_a_table_has_no_borders(rows: list[str]) -> None:
    assert " | " not in page_text(table(*rows, width=2.8))


@pytest.mark.parametrize(
    "rows",
    [
        ["1.|Go down", "2.|Take the boat", "3.|Row out"],
        ["17|40|9", "12|38|7", "25|4|1"],
        ["quay|where boats lie", "tide|the level of the sea", "boat|what swims"],
    ],
)
def test_lists_definitions_and_numbers_are_tables(rows: list[str]) -> None:
    for fixed in (False, True):
        assert page_text(table(*rows, width=2.8, fixed=fixed)).split("\n") == [row.replace("|", " | ") for row in rows]
