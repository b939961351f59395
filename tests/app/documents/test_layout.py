from dataclasses import replace

from app.documents.layout import page_text
from app.documents.printed import Place, PrintedLine


def line(text: str, x: float, y: float, size: float = 10.0, width: float | None = None) -> PrintedLine:
    """A line whose letters are half as wide as high, unless a width is given."""
    right = x + (size * len(text) / 2 if width is None else width)
    return PrintedLine(text, Place(x, y), Place(right, y), size)


def column(*texts: str, x: float = 72, top: float = 700, step: float = 12) -> list[PrintedLine]:
    return [line(text, x, top - step * number) for number, text in enumerate(texts)]


def test_lines_at_their_usual_distance_are_one_paragraph_and_more_room_parts_them() -> None:
    first = column("one", "two", "three", "four")
    assert page_text(first) == "one\ntwo\nthree\nfour"
    assert page_text([*first, *column("five", "six", top=700 - 4 * 12 - 6)]) == "one\ntwo\nthree\nfour\n\nfive\nsix"


def test_the_first_line_of_a_paragraph_may_stand_to_the_right() -> None:
    long = "Words and words and words."
    lines = column(long, long, long, long)
    lines[2] = line(long, 87, lines[2].start.y)
    assert page_text(lines) == f"{long}\n{long}\n\n{long}\n{long}"
    unended = [replace(one, text=one.text.rstrip(".")) for one in lines]
    assert "\n\n" not in page_text(unended), "the second line of a list's entry"
    code = column("if x:", "y", "z", long)
    code[1] = line("y", 87, code[1].start.y)
    assert "\n\n" not in page_text(code)


def test_cells_of_a_table_that_are_drawn_one_by_one_make_rows() -> None:
    cells = [
        line(text, x, y)
        for y, row in ((700, "abc"), (688, "def"))
        for x, text in zip((72, 200, 330), row, strict=False)
    ]
    assert page_text(cells) == "a b c\nd e f"


def test_headers_and_footers_stand_where_they_are_printed_whenever_they_are_drawn() -> None:
    body = column("a", "b", "c", "d", "e", "f")
    header, footer = line("The Pilot", 72, 780), line("7", 300, 40)
    wanted = "The Pilot\n\na\nb\nc\nd\ne\nf\n\n7"
    assert page_text([header, *body, footer]) == wanted
    assert page_text([header, footer, *body]) == wanted
    assert page_text([*body, header, footer]) == wanted
    assert page_text([footer, *body, header]) == wanted


def test_a_page_that_is_turned_by_a_quarter_reads_as_one_that_is_not() -> None:
    lines = [*column("one line", "two line", "three line", "four line"), line("five line", 72, 640)]
    wanted = page_text(lines)
    assert wanted.count("\n\n") == 1
    for sign in (1, -1):

        def turned(place: Place, sign: int = sign) -> Place:
            return Place(-sign * place.y, sign * place.x)

        assert page_text([replace(one, start=turned(one.start), end=turned(one.end)) for one in lines]) == wanted


def words_of(text: str) -> list[str]:
    return text.split()


def test_columns_of_unequal_length_are_read_one_after_the_other() -> None:
    long, short = [f"l{number}" for number in range(20)], ["r0", "r1", "r2", "r3"]
    left, right = column(*long), column(*short, x=320)
    assert words_of(page_text([*left, *right])) == [*long, *short], "the last page of a chapter"
    below = column(*short, top=700 - 16 * 12)  # under a picture
    assert words_of(page_text([*below, *column(*long, x=320)])) == [*short, *long]
