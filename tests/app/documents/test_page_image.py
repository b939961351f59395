"""Pages as images: what they show, within which limits, and that marks are exactly where their words are."""

import base64
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pypdf import PdfWriter
from pypdf.generic import NameObject, NumberObject

from app.documents.page_image import DRAWING, DRAWING_COVER, Box, PageImage, PageNotDrawn, draw_cover, draw_page, locate
from app.documents.parsers.drawing import MAX_HEIGHT, MAX_LETTERS, MAX_PIXELS, read
from app.documents.readers import read_document
from tests.app.documents.conftest import MakePdf

WIDTH = 595  # of an image of the pages of `make_pdf`: one pixel a point
LEFT = "the carved teapot was lost in the great spring tide"
ENDLESS = b"0 0 m 595 842 l 0 842 l h f " * 200_000


def drawn(file: Path, number: int = 1, num_pages: int = 1, width: int = WIDTH) -> PageImage:
    return draw_page(file, file.name, number, num_pages, width)


def ink_of(image: PageImage) -> Image.Image:
    """Where there are letters."""
    shown = Image.open(io.BytesIO(base64.b64decode(image.image)))
    assert shown.size == (image.width, image.height) and shown.getpixel((2, 2)) == (255, 255, 255)
    return shown.convert("L").point(lambda shade: 255 if shade < 200 else 0)  # type: ignore[operator]


def marked(file: Path, words: str, number: int = 1, num_pages: int = 1, width: int = WIDTH) -> list[Box]:
    """The rectangles of the only place of some words on a page."""
    document = read_document(file)
    text = document.page_text(document.pages[number - 1])
    assert text.count(words) == 1, text
    at = text.index(words)
    return drawn(file, number, num_pages, width).marks(text, [(at, at + len(words))])[0]


# -------------------- images, and their limits


@pytest.mark.parametrize("size", [(14_400, 14_400), (100, 14_400), (14_400, 100), (3, 3), (0.5, 14_400)])
def test_a_page_of_five_metres_has_an_image_with_bounds(tmp_path: Path, size: tuple[float, float]) -> None:
    writer = PdfWriter()
    writer.add_blank_page(*size)
    writer.write(tmp_path / "big.pdf")
    image = drawn(tmp_path / "big.pdf", width=2_400)
    assert 1 <= image.width <= 2_400 and 1 <= image.height <= MAX_HEIGHT + 1
    assert image.width * image.height <= 1.01 * MAX_PIXELS


def test_a_damaged_file_is_refused_in_a_line_with_an_action(make_pdf: MakePdf) -> None:
    file = make_pdf(["One."], ["Two."])
    for content in (file.read_bytes()[:300], b"", b"no PDF at all" * 99):
        file.write_bytes(content)
        with pytest.raises(PageNotDrawn, match="cannot be drawn: the file is damaged") as caught:
            drawn(file)
        assert caught.value.hint == "Its text is shown." and "\n" not in str(caught.value)


def test_an_endless_drawing_ends(make_pdf: MakePdf) -> None:
    file = make_pdf(ENDLESS)
    with pytest.raises(PageNotDrawn, match="too long or too much memory"):
        draw_page(file, "book.pdf", 1, 1, 2_400, replace(DRAWING, silence_seconds=0.5))
    assert draw_cover(file, "book.pdf", replace(DRAWING_COVER, silence_seconds=0.3)) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="limits that the system enforces at once")
def test_a_drawing_takes_no_more_memory_than_it_may(make_pdf: MakePdf) -> None:
    with pytest.raises(PageNotDrawn, match="too long or too much memory"):
        draw_page(make_pdf(["One."]), "book.pdf", 1, 1, WIDTH, replace(DRAWING, memory_bytes=64 << 20))


def test_a_page_of_too_many_letters_is_shown_without_places(make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_pdf(["x" * 100] * 50)
    assert len(drawn(file).letters) > 5_000 and MAX_LETTERS > 5_000
    monkeypatch.setattr("app.documents.parsers.drawing.MAX_LETTERS", 99)
    with file.open("rb") as stream:
        (page,) = read(stream, "0", "1", "300")
    assert page["kind"] == "drawn" and (page["letters"], page["boxes"]) == ("", [])


# -------------------- where words stand


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_a_quotation_is_marked_exactly_where_its_words_are(make_pdf: MakePdf, turn: int) -> None:
    file = make_pdf(["It began at noon, as ever.", f"There {LEFT} of May.", "Then it ended."])
    writer = PdfWriter(clone_from=file)
    writer.pages[0][NameObject("/Rotate")] = NumberObject(turn)
    writer.write(file)
    width = 842 if turn % 180 else WIDTH
    boxes = marked(file, LEFT, width=width)
    firsts, lasts = ([pick(sides) for sides in zip(*boxes, strict=True)] for pick in (min, max))
    box, ink = Box(*firsts[:2], *lasts[2:]), ink_of(drawn(file, width=width))
    shown = ink.crop(box).getbbox()
    assert shown is not None and (shown[2] - shown[0] > 200) is (turn % 180 == 0), "along the line"
    assert box.right - box.left - shown[2] + shown[0] <= 4 and box.bottom - box.top - shown[3] + shown[1] <= 8
    beside = ink.crop((box.left - 3, box.top - 3, box.right + 3, box.bottom + 3)).histogram()
    assert sum(beside[1:]) - sum(ink.crop(box).histogram()[1:]) <= 20, "no other words beside it"
    if not turn:
        (before,), (after,) = marked(file, "There"), marked(file, "of May")
        assert before.right <= box.left < box.right <= after.left and 46 <= box.top < box.bottom <= 60, (
            "the second line"
        )


def test_in_two_columns_nothing_of_the_other_column_is_marked(make_pdf: MakePdf) -> None:
    left = [
        "It was long ago that, as",
        "they say, the carved teapot",
        "was lost in the great spring",
        "tide of that year.",
    ]
    right = ["The tide came back, and", "nobody in the harbour ever", "asked for it, not once, and", "so it is lost."]
    shown = [
        f"BT /F1 11 Tf {x} {700 - 14 * row} Td ({line}) Tj ET"
        for x, column in ((50, left), (300, right))
        for row, line in enumerate(column)
    ]
    file = make_pdf("\n".join(shown).encode())
    over_lines = marked(file, LEFT)
    assert [round((box.bottom - (842 - 700)) / 14) for box in over_lines] == [1, 2, 3]
    assert all(box.right < 300 for box in over_lines)
    over_columns = marked(file, "tide of that year.\n\nThe tide came back")
    assert [(box.left > 290, box.top > 150) for box in over_columns] == [(False, True), (True, False)]


def test_a_word_divided_at_the_end_of_a_line_is_marked_on_both(make_pdf: MakePdf) -> None:
    lines = [
        "The old harbour master had a won-",
        "derful carved teapot on his shelf, and he",
        "polished it on every day.",
    ]
    first, second = marked(make_pdf(lines), "wonderful carved")
    assert first.left > 150 and 49 <= second.left < second.right <= 150
    assert first.bottom <= second.top < second.bottom <= first.bottom + 14


def test_a_header_that_was_dropped_is_not_taken_for_the_words(make_pdf: MakePdf) -> None:
    header = "THE SPRING TIDE"
    pages = [
        [header, "", *(f"Other words of page {n}, line {row}, to fill it." for row in range(12))] for n in range(5)
    ]
    pages[2][2:2] = ["It was lost in that night, and", header, "was to blame, they say,", "but who would know?"]
    (box,) = marked(make_pdf(*pages), header, 3, 5)
    assert box.top > 42 + 2 * 14, "not the header"


@pytest.mark.parametrize(
    ("letters", "text", "span", "place"),
    [
        ("ho ho ho ho", "ho ho ho ho", (3, 5), range(3, 5)),  # all around decides
        ("ho ho ho ho", "ho ho ho", (3, 5), None),  # one was dropped, and which is not known
        ("one two three", "four", (0, 4), None),
        ("one two three", "... !", (0, 5), None),
    ],
)
def test_where_the_place_is_not_certain_nothing_is_marked(
    letters: str, text: str, span: tuple[int, int], place: range | None
) -> None:
    assert locate(letters, text, [span]) == [place]


@given(st.text("abc -.\n", max_size=60), st.text("abc ", max_size=20), st.data())
def test_what_is_located_has_the_letters_of_the_part(text: str, header: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    paper = f"{header}\r\n{text}".replace("-", "\ufffe")
    (found,) = locate(paper, text, [(start, end)])
    if found is not None:
        assert list(filter(str.isalnum, paper[found.start : found.stop])) == list(filter(str.isalnum, text[start:end]))
        assert found.start >= len(header) or header.strip(), "no header, so only the text can be meant"
