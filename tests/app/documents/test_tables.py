from app.documents.layout import page_text
from app.documents.printed import PrintedLine
from tests.app.documents.test_layout import line

EDGES = (72, 200, 330)


def table(*rows: str, step: float = 12, width: float = 4.3) -> list[PrintedLine]:
    """Rows of cells between bars. The letters' widths differ, as in print."""
    return [
        line(text, EDGES[column], 700 - step * number, width=(width + 0.3 * (number + column)) * len(text))
        for number, row in enumerate(rows)
        for column, text in enumerate(row.split("|"))
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


def test_two_rows_are_no_table() -> None:
    assert " | " not in page_text(table("Boat|Tons", "Gannet|17"))


def test_rows_far_apart_or_out_of_line_are_no_table() -> None:
    rows = ("Boat|Tons", "Gannet|heavy", "Tern|light")
    assert " | " in page_text(table(*rows))
    assert " | " not in page_text(table(*rows, step=60))
    crooked = [
        one if number % 2 == 0 else line(one.text, 200 + 20 * number, one.start.y)
        for number, one in enumerate(table(*rows))
    ]
    assert " | " not in page_text(crooked)


def test_items_contents_and_code_have_no_borders() -> None:
    assert " | " not in page_text(table("1.|Go down", "2.|Take the boat", "3.|Row out")), "a list"
    assert " | " not in page_text(table("The quay|7", "The tide|19", "The storm|40")), "a list of contents"
    dots = table("The quay . . . . . . .|7|a", "The tide . . . . .|19|b", "The storm . . . .|40|c")
    assert " | " not in page_text(dots)
    code = [
        line(text, x, 700 - 12 * number, width=6 * (len(text) - 1))
        for number in range(4)
        for text, x in ((f"move first{number}", 72), ("# comments here", 200))
    ]
    assert " | " not in page_text(code)
