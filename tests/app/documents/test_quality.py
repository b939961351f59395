"""Warnings about text that was extracted without an error and means nothing."""

import random
from pathlib import Path

import pytest
from pypdf import PdfWriter

from app.documents import read_document
from app.documents.quality import garbled, hardly_any_text, is_garbled, ranges
from tests.app.documents.conftest import MakePdf
from tests.app.documents.test_pdf import add_image

ENGLISH = (
    "The old pilot stood on the quay and counted the boats that came in with the tide, as he had done on every "
    "evening of his life, and none of them was the one that he was waiting for. Nobody asked him why. "
) * 3
SHIFTED = "".join(chr((ord(char) - 29) % 128) if char.isalpha() else char for char in ENGLISH)
TABLE = "\n".join(f"{n} | {n * n} | {n * 3.7:.2f} | kg" for n in range(60))


@pytest.mark.parametrize(
    "page",
    [
        ENGLISH,
        "Größenordnungsmäßig verschieden waren Donaudampfschifffahrtsgesellschaften und Rheinschifffahrtsämter. " * 5,
        "Příliš žluťoučký kůň úpěl ďábelské ódy, čtvrtek, prst, krk, vlk, smrt, zmrzl, strčil skrz. " * 5,
        "港の古い水先案内人は岸壁に立って、潮とともに入ってくる船を数えた。" * 10,
        "Старый лоцман стоял на набережной и считал лодки, что пришли вместе. " * 10,
        TABLE,
        "x = a b + c d - e f\n" * 4,
        ENGLISH + "� ",
        "",
    ],
    ids=["English", "German", "Czech", "Japanese", "Russian", "table", "formula", "one lost letter", "empty"],
)
def test_good_pages_are_good(page: str) -> None:
    assert not is_garbled(page)


@pytest.mark.parametrize(
    "page",
    [
        SHIFTED,
        " ".join(ENGLISH.replace(" ", "")),
        ENGLISH.replace(" ", ""),
        ENGLISH.replace("e", "�"),
        "".join(chr(0xE000 + ord(char)) for char in ENGLISH),
        "(cid:12)(cid:7)(cid:44) " * 20,
        ENGLISH.translate(str.maketrans("aeiou", "bcdfg")),
    ],
    ids=["shifted", "spaced out", "run together", "replaced", "private", "glyph numbers", "no vowels"],
)
def test_broken_text_layers_are_garbled(page: str) -> None:
    assert is_garbled(page)


def test_garbled_pages_are_named() -> None:
    pages = [ENGLISH, SHIFTED, SHIFTED, ENGLISH, SHIFTED]
    starts = [sum(map(len, pages[:n])) for n in range(5)]
    assert garbled("".join(pages), starts) == (
        "Letters that make no words (a broken text layer or encoding): pages 2–3, 5.",
    )
    assert garbled(ENGLISH * 5, starts[:1]) == ()


def test_shuffled_letters_of_a_language_are_rarely_taken_for_garbled() -> None:
    """The other side of the coin: names and lists have odd letters, and 200 random ones by frequency must pass."""
    rng = random.Random(0)
    letters = [char for char in ENGLISH if char.isalpha()]
    pages = [" ".join("".join(rng.choices(letters, k=5)) for _ in range(60)) for _ in range(200)]
    assert sum(map(is_garbled, pages)) == 0  # 300 letters, 39% vowels: 16% is eight standard deviations away


def test_pages_of_images_with_a_stamp_look_like_a_scan() -> None:
    assert hardly_any_text([60, 60, 60, 900], [True] * 4) == ("Images with hardly any text (a scan?): pages 1–3.",)
    assert hardly_any_text([900, 900, 60, 60], [True] * 4) == ()
    assert hardly_any_text([0, 0, 3, 900], [False] * 4) == ("Hardly any text: pages 1–3.",)
    assert hardly_any_text([0, 900], [False] * 2) == ()


def test_a_stamped_scan_and_a_broken_text_layer_are_warnings_of_the_document(
    make_pdf: MakePdf, writer: PdfWriter
) -> None:
    path = make_pdf(*[[f"Digitized by a library, {n} of 4 leaves"] for n in range(4)])
    for page in range(4):
        add_image(writer, page)
    writer.write(path)
    assert read_document(path).warnings == ("Images with hardly any text (a scan?): pages 1–4.",)


def test_a_garbled_text_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SHIFTED)
    (warning,) = read_document(tmp_path / "a.txt").warnings
    assert warning.endswith("pages 1.")


def test_page_ranges_read_as_people_write_them() -> None:
    assert ranges([0, 2, 3, 4, 9]) == "1, 3–5, 10"
