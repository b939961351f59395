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

from app.documents.document import Document
from app.documents.page_image import DRAWING, DRAWING_COVER, Box, PageImage, PageNotDrawn, draw_cover, draw_page, locate
from app.documents.parsers.drawing import MAX_HEIGHT, MAX_LETTERS, MAX_PIXELS, read
from app.documents.readers import read_document
from tests.app.documents.conftest import MakePdf

WIDTH = 595  # of an image of the pages of `make_pdf`: one pixel a point
LEFT = "the carved teapot was lost in the great spring tide"
RIGHT = "and nobody in the harbour ever asked for it again"


def drawn(file: Path, number: int = 1, num_pages: int = 1, width: int = WIDTH) -> PageImage:
    return draw_page(file, file.name, number, num_pages, width)


def pixels(image: PageImage) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(image.image)))


def boxes_of(image: PageImage, document: Document, words: str, number: int = 1, nth: int = 0) -> list[Box]:
    """The rectangles of the nth place of some words on a page."""
    page = document.pages[number - 1]
    text, at = document.page_text(page), -1
    for _ in range(nth + 1):
        at = text.index(words, at + 1)
    return image.marks(text, [(at, at + len(words))])[0]


def columns(*columns: list[str], top: int = 700) -> bytes:
    """A page of columns 250 points apart, lines 14 points apart; the first line's letters stand on `top`."""
    lines = [
        f"BT /F1 11 Tf {50 + 250 * number} {top - 14 * row} Td ({line}) Tj ET"
        for number, column in enumerate(columns)
        for row, line in enumerate(column)
    ]
    return "\n".join(lines).encode()


def inside(box: Box, left: float, top: float, right: float, bottom: float) -> bool:
    return left <= box.left < box.right <= right and top <= box.top < box.bottom <= bottom


# -------------------- images


def test_a_page_is_drawn_as_wide_as_it_was_asked_for(make_pdf: MakePdf) -> None:
    image = drawn(make_pdf(["Words on a page."]), width=800)
    assert (image.width, image.media) == (800, "image/webp") and abs(image.height - 800 * 842 / 595) <= 1
    shown = pixels(image)
    assert shown.size == (image.width, image.height)
    assert shown.convert("L").getextrema()[0] < 60, "no ink"
    assert shown.getpixel((2, 2)) == (255, 255, 255)


@pytest.mark.parametrize("size", [(14_400, 14_400), (100, 14_400), (14_400, 100), (3, 3), (0.5, 14_400)])
def test_a_page_of_five_metres_has_an_image_with_bounds(tmp_path: Path, size: tuple[float, float]) -> None:
    writer, file = PdfWriter(), tmp_path / "big.pdf"
    writer.add_blank_page(*size)
    writer.write(file)
    image = drawn(file, width=2_400)
    assert 1 <= image.width <= 2_400 and 1 <= image.height <= MAX_HEIGHT + 1
    assert image.width * image.height <= 1.01 * MAX_PIXELS


def test_a_cover_has_limits(make_pdf: MakePdf) -> None:
    fill = b"0 0 m 595 842 l 0 842 l h f " * 200_000
    assert draw_cover(make_pdf(fill), "book.pdf", replace(DRAWING_COVER, silence_seconds=0.3)) == ""


# -------------------- bad input, and limits


def test_a_damaged_file_is_refused_in_a_line_with_an_action(make_pdf: MakePdf, tmp_path: Path) -> None:
    whole = make_pdf(["One."], ["Two."]).read_bytes()
    for name, content in {"cut.pdf": whole[:300], "none.pdf": b"", "no.pdf": b"no PDF at all" * 99}.items():
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(PageNotDrawn, match="cannot be drawn: the file is damaged") as caught:
            drawn(file)
        assert caught.value.hint == "Its text is shown." and "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="limits that the system enforces at once")
def test_the_limits_hold(make_pdf: MakePdf) -> None:
    file = make_pdf(["One."])
    for limits in (replace(DRAWING, memory_bytes=64 << 20), replace(DRAWING, silence_seconds=0.0)):
        with pytest.raises(PageNotDrawn, match="too long or too much memory"):
            draw_page(file, "book.pdf", 1, 1, WIDTH, limits)


def test_an_endless_drawing_ends(make_pdf: MakePdf) -> None:
    fill = b"0 0 m 595 842 l 0 842 l h f " * 200_000
    with pytest.raises(PageNotDrawn, match="too long or too much memory"):
        draw_page(make_pdf(fill), "book.pdf", 1, 1, 2_400, replace(DRAWING, silence_seconds=0.5))


def test_a_page_of_too_many_letters_is_shown_without_places(make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_pdf(["x" * 100] * 50)
    assert len(drawn(file).letters) > 5_000 and MAX_LETTERS > 5_000
    monkeypatch.setattr("app.documents.parsers.drawing.MAX_LETTERS", 99)
    with file.open("rb") as stream:
        (page,) = read(stream, "0", "1", "300")
    assert page["kind"] == "drawn" and (page["letters"], page["boxes"]) == ("", [])


# -------------------- where words stand


def test_a_quotation_is_marked_exactly_where_its_words_are(make_pdf: MakePdf) -> None:
    file = make_pdf(["It began at noon, as ever.", f"There {LEFT} of May.", "Then it ended."])
    image, document = drawn(file), read_document(file)
    (box,) = boxes_of(image, document, LEFT)
    assert inside(box, 50, 842 - 800 + 14 - 10, 400, 842 - 800 + 14 + 4), "the second line"
    ink = pixels(image).convert("L").point(lambda shade: 255 if shade < 200 else 0)  # type: ignore[operator]
    marked = ink.crop(box).getbbox()
    assert marked is not None and marked[2] - marked[0] >= box.right - box.left - 2, "ink from end to end"
    (before,) = boxes_of(image, document, "There")
    (after,) = boxes_of(image, document, "of May")
    assert before.right <= box.left and box.right <= after.left


def test_in_two_columns_nothing_of_the_other_column_is_marked(make_pdf: MakePdf) -> None:
    left = [
        "It was long ago that, as",
        "they say, the carved teapot",
        "was lost in the great spring",
        "tide of that year.",
    ]
    right = [
        "The tide came back, and",
        "nobody in the harbour ever",
        "asked for it, not once, and",
        "so it is lost to this day.",
    ]
    file = make_pdf(columns(left, right))
    image, document = drawn(file), read_document(file)
    over_lines = boxes_of(image, document, "the carved teapot was lost in the great spring tide")
    assert [round((box.bottom - (842 - 700)) / 14) for box in over_lines] == [1, 2, 3]
    assert all(box.right < 300 for box in over_lines)
    over_columns = boxes_of(image, document, "tide of that year.\n\nThe tide came back")
    assert [(box.left > 290, box.top > 150) for box in over_columns] == [(False, True), (True, False)]


def test_where_the_place_is_not_certain_nothing_is_marked() -> None:
    assert locate("ho ho ho ho", "ho ho ho ho", [(3, 5)]) == [range(3, 5)], "all around decides"
    assert locate("ho ho ho ho", "ho ho ho", [(3, 5)]) == [None], "one was dropped, and which is not known"
    assert locate("one two three", "four", [(0, 4)]) == [None]
    assert locate("one two three", "... !", [(0, 5)]) == [None], "no letters"
    assert locate("", "words", [(0, 5)]) == [None]


def test_a_word_divided_at_the_end_of_a_line_is_marked_on_both(make_pdf: MakePdf) -> None:
    lines = [
        "The old harbour master had a won-",
        "derful carved teapot on his shelf, and he",
        "polished it on every day of the week.",
    ]
    file = make_pdf(lines)
    image, document = drawn(file), read_document(file)
    assert "wonderful" in document.text
    first, second = boxes_of(image, document, "wonderful carved")
    assert first.left > 150 and inside(second, 49, first.bottom, 150, first.bottom + 14)


def test_a_header_that_was_dropped_is_not_taken_for_the_words(make_pdf: MakePdf) -> None:
    page = [
        "THE SPRING TIDE",
        "",
        "It was lost in that night, and",
        "THE SPRING TIDE",
        "was to blame, they say,",
        "but who would know?",
    ]
    pages = [
        [page[0], "", *(f"Other words of page {n}, line {row}, to fill it." for row in range(12))] for n in range(5)
    ]
    file = make_pdf(*pages[:2], [*page, *pages[2][2:]], *pages[3:])
    document = read_document(file)
    image = drawn(file, 3, 5)
    assert document.page_text(document.pages[2]).count("THE SPRING TIDE") == 1, "the header was dropped"
    (box,) = boxes_of(image, document, "THE SPRING TIDE", 3)
    assert box.top > 42 + 2 * 14, "not the header"


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_marks_turn_with_the_page(make_pdf: MakePdf, turn: int) -> None:
    file = make_pdf(["It began at noon.", LEFT, "Then it ended."])
    writer = PdfWriter(clone_from=file)
    writer.pages[0][NameObject("/Rotate")] = NumberObject(turn)
    writer.write(file)
    image = drawn(file, width=WIDTH if turn == 180 else 842)
    boxes = boxes_of(image, read_document(file), LEFT)
    firsts, lasts = ([pick(sides) for sides in zip(*boxes, strict=True)] for pick in (min, max))
    box = Box(*firsts[:2], *lasts[2:])
    ink = pixels(image).convert("L").point(lambda shade: 255 if shade < 200 else 0)  # type: ignore[operator]
    marked = ink.crop(box).getbbox()
    assert marked is not None and (marked[2] - marked[0] > 200) is (turn == 180), "along the line"
    assert box.right - box.left - marked[2] + marked[0] <= 4 and box.bottom - box.top - marked[3] + marked[1] <= 8
    around = ink.crop((box.left - 3, box.top - 3, box.right + 3, box.bottom + 3))
    assert sum(around.histogram()[1:]) - sum(ink.crop(box).histogram()[1:]) <= 20, "no other words beside it"


@given(st.text("abc -.\n", max_size=60), st.text("abc ", max_size=20), st.data())
def test_what_is_located_has_the_letters_of_the_part(text: str, header: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    paper = f"{header}\r\n{text}".replace("-", "\ufffe")
    (found,) = locate(paper, text, [(start, end)])
    if found is not None:
        assert [c for c in paper[found.start : found.stop] if c.isalnum()] == [
            c for c in text[start:end] if c.isalnum()
        ]
        assert found.start >= len(header) or header.strip(), "no header, so only the text can be meant"
