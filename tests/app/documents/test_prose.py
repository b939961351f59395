"""Lines of pages to prose: running lines go, paragraphs are whole, and text that means nothing is told."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.documents.prose import SOFT_HYPHEN, clean_lines, unwrap
from app.documents.quality import is_garbled
from app.documents.running_lines import drop_running_lines
from assets.tools.documents.makers import measure, num_lost
from tests.app.documents.conftest import MakePdf

LINES = st.lists(st.text(f"abc -{SOFT_HYPHEN}.—•\n", max_size=40).map(lambda text: " ".join(text.split())), max_size=12)


def letters(text: str) -> str:
    return re.sub(rf"[\s{SOFT_HYPHEN}-]", "", text)


@given(st.lists(LINES, max_size=6))
def test_pages_partition_the_prose_and_keep_all_of_their_own_letters(pages: list[list[str]]) -> None:
    text, starts = unwrap(pages)
    bounds = [*starts, len(text)]
    assert bounds == sorted(bounds) and len(starts) == len(pages) and bounds[0] == 0
    for page, start, end in zip(pages, starts, bounds[1:], strict=True):
        assert letters(text[start:end]) == letters("".join(page))


@given(st.text())
def test_any_text_is_cleaned_to_printable_unicode(text: str) -> None:
    for line in clean_lines(text):
        line.encode()
        assert "\n" not in line and line == line.strip()


FULL = "The ship that came into the harbour in the night was a small"
VERSE = "I met a traveller from an antique land\nWho said to me\nTwo vast legs of stone\nStand in the desert"


@pytest.mark.parametrize(
    ("printed", "prose"),
    [
        (f"{FULL}\n{FULL}\none.\n{FULL}\n{FULL}", f"{FULL} {FULL} one.\n\n{FULL} {FULL}"),
        (f"{FULL}\n{FULL}\fone, and\nits sails were old.", f"{FULL} {FULL} one, and\nits sails were old."),
        (VERSE, VERSE),
        ("the har-\nbour and the light-\nhouse", "the harbour and the lighthouse"),
        (f"an ex{SOFT_HYPHEN}\nample", "an example"),
        ("a well-known man and a well-\nknown house", "a well-known man and a well-known house"),
        ("the Anglo-\nSaxon kings", "the Anglo-Saxon kings"),
        ("the years 1990-\n1995", "the years 1990-1995"),
        ("a state-of-the-\nart pump", "a state-of-the-art pump"),
        ("he stopped —\nthen went on", "he stopped —then went on"),
        (f"{FULL} one.\nChapter 2\n{FULL}\n• one sail, {FULL}\n• two oars",
         f"{FULL} one.\n\nChapter 2\n{FULL}\n• one sail, {FULL}\n• two oars"),
    ],
)  # fmt: skip
def test_lines_become_paragraphs_and_divided_words_are_whole_again(printed: str, prose: str) -> None:
    assert unwrap([page.split("\n") for page in printed.split("\f")])[0] == prose


# -------------------- headers, footers and page numbers


def eight_lines(page: int) -> list[str]:
    """That no other page has."""
    rng = random.Random(page)
    words = ["sea", "wind", "gull", "rope", "sail", "mast", "quay", "tide", "salt", "lamp", "bell", "fish", "the", "of"]
    return [" ".join(rng.choice(words) for _ in range(9)) for _ in range(8)]


RUNNING = [
    [["THE HARBOUR", *eight_lines(n), f"Page {n} of 12"] for n in range(12)],
    [[*eight_lines(n), number] for n, number in enumerate(["ii", "iii", "iv", "v"])],
]
SONNETS = [[f"Sonnet {n + 5}", *eight_lines(n)] for n in range(9)]
TITLES = [
    [["Results", *eight_lines(n)[:3]] for n in range(9)],  # of slides
    [["A letter from home", *eight_lines(n)] if n % 10 == 0 else eight_lines(n) for n in range(31)],
]


@pytest.mark.parametrize("printed", [*RUNNING, *TITLES])
def test_headers_footers_and_page_numbers_go_and_a_title_that_short_pages_or_pages_far_apart_repeat_stays(
    printed: list[list[str]],
) -> None:
    only_text = [eight_lines(n) for n in range(len(printed))]
    assert drop_running_lines(printed) == (only_text if printed in RUNNING else printed)


def test_a_numbered_title_on_top_of_each_page_stays_where_pages_have_another_number() -> None:
    pages = [[*sonnet, str(n + 1)] for n, sonnet in enumerate(SONNETS)]
    assert drop_running_lines(pages) == SONNETS
    assert drop_running_lines(SONNETS) == [sonnet[1:] for sonnet in SONNETS]  # else it counts the pages


# -------------------- text that means nothing

ENGLISH = (
    "The old pilot stood on the quay and counted the boats that came in with the tide, as he had done on every "
    "evening of his life, and none of them was the one that he was waiting for. Nobody asked him why. "
) * 3
GOOD = {
    "English": ENGLISH,
    "German": "Größenordnungsmäßig verschieden waren Donaudampfschifffahrtsgesellschaften und Rheinschifffahrtsämter. "
    * 5,
    "Czech": "Příliš žluťoučký kůň úpěl ďábelské ódy, čtvrtek, prst, krk, vlk, smrt, zmrzl, strčil skrz. " * 5,
    "Japanese": "港の古い水先案内人は岸壁に立って、潮とともに入ってくる船を数えた。" * 10,
    "Russian": "Старый лоцман стоял на набережной и считал лодки, что пришли вместе. " * 10,
    "table": "\n".join(f"{n} | {n * n} | {n * 3.7:.2f} | kg" for n in range(60)),
    "formula": "x = a b + c d - e f\n" * 4,
    "one lost letter": ENGLISH + "� ",
    "empty": "",
}
BROKEN = {
    "shifted": "".join(chr((ord(char) - 29) % 128) if char.isalpha() else char for char in ENGLISH),
    "spaced out": " ".join(ENGLISH.replace(" ", "")),
    "run together": ENGLISH.replace(" ", ""),
    "replaced": ENGLISH.replace("e", "�"),
    "private": "".join(chr(0xE000 + ord(char)) for char in ENGLISH),
    "glyph numbers": "(cid:12)(cid:7)(cid:44) " * 20,
    "no vowels": ENGLISH.translate(str.maketrans("aeiou", "bcdfg")),
}


@pytest.mark.parametrize("name", [*GOOD, *BROKEN])
def test_broken_text_layers_are_garbled_and_good_pages_are_not(name: str) -> None:
    assert is_garbled((GOOD | BROKEN)[name]) is (name in BROKEN)


# -------------------- the tool that measures what a reader of PDFs loses


def test_a_file_that_is_read_whole_has_lost_nothing_and_hyphens_are_no_loss(make_pdf: MakePdf) -> None:
    lines = [f"The old pilot counted the boats on evening number {number} of his life." for number in range(9)]
    row = measure(make_pdf(*[["A header of the book", *lines, str(number)] for number in (1, 2, 3)]))
    assert (row.num_pages, row.lost_words, row.long_words, row.plain_long_words) == (3, 0.0, 0.0, 0.0)
    plain = ["the", "old", "well", "known", "light", "house", "by", "the", "sea"]
    assert num_lost(plain, plain[:-2], Counter()) == 2 and num_lost(plain, plain[:-2], Counter(["sea"])) == 1
    assert num_lost(plain, ["the", "old", "well", "known", "lighthouse", "by", "the", "sea"], Counter()) == 0
