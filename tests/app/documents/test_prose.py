import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.documents.prose import SOFT_HYPHEN, clean_lines, unwrap

LINES = st.lists(st.text(f"abc -{SOFT_HYPHEN}.—•\n", max_size=40).map(lambda text: " ".join(text.split())), max_size=12)
PAGES = st.lists(LINES, max_size=6)


def letters(text: str) -> str:
    return re.sub(rf"[\s{SOFT_HYPHEN}-]", "", text)


@given(PAGES)
def test_unwrapping_loses_no_letter(pages: list[list[str]]) -> None:
    assert letters(unwrap(pages)[0]) == letters("".join(line for page in pages for line in page))


@given(PAGES)
def test_pages_partition_the_prose_and_keep_their_own_words(pages: list[list[str]]) -> None:
    text, starts = unwrap(pages)
    assert len(starts) == len(pages)
    bounds = [*starts, len(text)]
    assert bounds == sorted(bounds)
    assert not pages or starts[0] == 0
    for page, start, end in zip(pages, starts, bounds[1:], strict=True):
        assert letters(text[start:end]) == letters("".join(page))


@given(st.text())
def test_any_text_is_cleaned_to_printable_unicode(text: str) -> None:
    for line in clean_lines(text):
        line.encode()
        assert "\n" not in line
        assert line == line.strip()


def test_a_paragraph_becomes_one_line() -> None:
    page = [
        "It was a bright cold day in the harbour, and the clocks",
        "were striking one after the other. Nobody counted them,",
        "for the ship had come.",
        "On the next morning the quay was empty, and the gulls sat",
        "on the bollards as if they had been told to wait there.",
    ]
    first, second = unwrap([page])[0].split("\n\n")
    assert first == " ".join(page[:3])
    assert second == " ".join(page[3:])


def test_a_paragraph_goes_on_over_the_page() -> None:
    first = [
        "The ship that came into the harbour in the night was a",
        "small one, and its sails were of the colour of the old",
    ]
    second = ["brick houses by the quay. Nobody had seen it before that", "night, and nobody saw it after."]
    text, starts = unwrap([first, second])
    assert text == " ".join(first + second)
    assert text[starts[1] :].startswith("brick houses")


def test_words_divided_at_the_end_of_a_line_are_whole_again() -> None:
    assert (
        unwrap([["They spoke of the har-", "bour and of the light-", "house"]])[0]
        == "They spoke of the harbour and of the lighthouse"
    )
    assert unwrap([["an ex" + SOFT_HYPHEN, "ample"]])[0] == "an example"


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        (["a well-known man and a well-", "known house"], "well-known house"),
        (["the Anglo-", "Saxon kings"], "Anglo-Saxon kings"),
        (["the years 1990-", "1995"], "1990-1995"),
        (["a state-of-the-", "art pump"], "state-of-the-art pump"),
        (["he stopped —", "then went on"], "he stopped —then went on"),
    ],
)
def test_hyphens_that_belong_to_a_word_stay(lines: list[str], joined: str) -> None:
    assert unwrap([lines])[0].endswith(joined)


def test_verse_keeps_its_lines() -> None:
    verse = [
        "I met a traveller from an antique land",
        "Who said to me",
        "Two vast legs of stone",
        "Stand in the desert",
    ]
    assert unwrap([verse])[0].split("\n") == verse


def test_headings_and_bullets_stand_alone() -> None:
    lines = [
        "It was the end of a long day at the harbour, at last over.",
        "Chapter 2",
        "The second day began with rain that fell on all the boats",
        "• one sail of the small boat, which had been torn the day",
        "• two oars",
    ]
    text = unwrap([lines])[0]
    assert "over.\n\nChapter 2\nThe second" in text
    assert "\n• one sail" in text
    assert "\n• two oars" in text
