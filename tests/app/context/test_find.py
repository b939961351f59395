"""Find: what people mean by words, wherever a text is cut; and what it must not find."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.context.context_documents import Chapters, Pages
from app.context.find import AROUND, MOST_CHARS, MOST_MARKED, Hit, Words, excerpt, find, occurrences
from app.context.folding import fold
from app.documents import document as documents
from app.documents.document import Document
from tests.app.fakes import document_of, library_of

LETTERS = (
    "aAäÄsSßﬁeéE\u0301\u0308\u00ad\u200b \n\t\u00a0\u3000-–'’\"«1½.京都か\u3099が\u05e9\u05b8\u0644\u0640각İøŒ\ud800_"
)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(LETTERS, max_size=40),
    typed=st.text(LETTERS, max_size=4) | st.tuples(st.integers(0, 39), st.integers(1, 6)),
    exact=st.booleans(),
    whole=st.booleans(),
    size=st.integers(1, 7),
)
@example(text="東京 都", typed="京都", exact=False, whole=False, size=3)  # cut behind its space
def test_hits_have_the_words_lie_apart_and_are_the_same_in_stretches_of_any_length(
    text: str, typed: str | tuple[int, int], exact: bool, whole: bool, size: int
) -> None:
    """`typed`: words, or the place and length of some in the text."""
    typed = typed if isinstance(typed, str) else text[typed[0] : sum(typed)]
    words = Words(typed, exact, whole)
    hits = list(occurrences(words, text))
    wanted = fold(typed.strip(), exact=exact).strip(" ")
    assert all(fold(text[start:end], exact=exact).strip(" ") == wanted for start, end in hits)
    assert all(before[1] <= after[0] for before, after in pairwise(hits))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "MOST_CHARS", size)
        patch.setattr("app.context.find.fold", lambda *_, **__: wanted)  # the words themselves are never cut
        assert list(occurrences(words, text)) == hits


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        ("strasse", "Die Straße, STRASSE.", ["Straße", "STRASSE"]),
        ("CAFÉ", "cafe Cafe\u0301 café.", ["cafe", "Cafe\u0301", "café"]),
        ("old pilot", "the old\n    pilot, an old\u00a0pilot", ["old\n    pilot", "old\u00a0pilot"]),
        ("co-operate", "co\u2010operate co–operate cooperate", ["co\u2010operate", "co–operate"]),
        ("don't", "don’t don't dont", ["don’t", "don't"]),
        ("office", "o\ufb03ce of\u00adfice", ["o\ufb03ce", "of\u00adfice"]),
        ("§ 12", "See § 12 and §\u00a012, not § 13.", ["§ 12", "§\u00a012"]),
        ("3.14", "3.14, not 3514 nor 3,14", ["3.14"]),
        ("Łódź", "lodz", ["lodz"]),
        ("東京都", "東京\n都は東京 都", ["東京\n都", "東京 都"]),
        ("\uff21\uff22\uff23", "abc", ["abc"]),
        ("か", "かがか\u3099か", ["か", "か"]),
        ("שלום", "שָׁלוֹם עולם", ["שָׁלוֹם"]),
        ("كتاب", "كِتَاب كتـــاب", ["كِتَاب", "كتـــاب"]),
        ("कि", "की कि कु", ["कि"]),
        ("각", "가 각", ["각"]),
        ("가", "각", []),
        ("s", "ß s", ["s"]),
        ("aa", "aaaaa", ["aa", "aa"]),
        (".*", "a.*b", [".*"]),
        (" \n", "a \n b", []),
        ("\u0301", "é e\u0301", []),
        ("words", "", []),
        (Words("Café", exact=True), "café Cafe Café Cafe\u0301 CAFÉ", ["Café", "Cafe\u0301"]),
        (Words("e", exact=True), "é e\u0301 e", ["e"]),
        (Words("fi", exact=True), "\ufb01 fi", ["fi"]),
        (Words("light", whole=True), "light lighthouse moonlight light2 light_ (light)", ["light", "light"]),
        (Words("3.14", whole=True), "3.14 3.141 13.14", ["3.14"]),
        (Words("東京", whole=True), "東京都", ["東京"]),  # no spaces part these words
        (Words("cafe", whole=True), "cafe\u0301s cafe\u0301", ["cafe\u0301"]),
        (Words("a" * 1000), "b" + "a" * 500, ["a" * MOST_CHARS] * 2),  # searched by their beginning
    ],
)
def test_words_are_found_as_people_mean_them_and_exact_and_whole_ones_as_they_are(
    words: str | Words, text: str, expected: list[str]
) -> None:
    """Exact ones have their case and accents, whole ones no letter beside them."""
    words = Words(words) if isinstance(words, str) else words
    assert [text[start:end] for start, end in occurrences(words, text)] == expected


# -------------------- documents


def a_document(*pages: str, title: str = "The Pilot") -> Document:
    """Of two chapters."""
    labels = ["i", "ii", "1", "2"][: len(pages)]
    return document_of(*pages, title=title, labels=labels, chapter_starts=[0, len("".join(pages)) // 2])


def test_hits_have_pages_and_lines() -> None:
    books = library_of(a_document("A gull.\nA gull\n", "\nNo bird.\n", "", "x\ny\nthe\ngull gull")).books
    (result,) = find(Words("gull"), books, 10)
    assert [(hit.page.label, hit.page.number, hit.line) for hit in result.hits] == [
        ("i", 1, 1),
        ("i", 1, 2),
        ("2", 4, 4),
        ("2", 4, 4),
    ]
    text = books[0].document.text
    assert all(text[hit.start : hit.end] == "gull" for hit in result.hits)
    (across,) = find(Words("gull no bird"), books, 10)
    assert across.hits[0].page.label == "i" and across.total == 1


def test_what_is_not_chosen_is_found_and_said_to_be_out_of_the_context() -> None:
    document = a_document("gull ", "gull ", "gull ", "gull.")
    library = library_of(document)
    part = library.choose(0, Pages(2, 3)).books
    assert [hit.chosen for hit in find(Words("gull"), part, 10)[0].hits] == [False, True, True, False]
    half = library.choose(0, Chapters(((2,),))).books
    assert [hit.chosen for hit in find(Words("gull"), half, 10)[0].hits] == [False, False, True, True]
    across = library.choose(0, Pages(1, 1)).books
    assert [hit.chosen for hit in find(Words("gull gull"), across, 10)[0].hits] == [False, False], "half is not all"


def test_the_first_hits_come_and_all_are_counted() -> None:
    books = library_of(a_document("gull " * 5), a_document("no bird"), a_document("gull " * 7, title="Second")).books
    results = find(Words("gull"), books, 6)
    assert [(one.book.document.title, len(one.hits), one.total) for one in results] == [
        ("The Pilot", 5, 5),
        ("Second", 1, 7),
    ]
    assert find(Words("teapot"), books, 6) == ()


def test_excerpts_are_short_lines_with_whole_words() -> None:
    text = "Long ago there stood a lamp. " * 9 + "The old\n\n pilot" + " went home and slept." * 9
    document = a_document(text)
    (hit,) = find(Words("old pilot"), library_of(document).books, 1)[0].hits
    before, marked, after = excerpt(document, hit)
    assert marked == "old pilot" and before.startswith("… ") and before.endswith(" lamp. The ")
    assert after.startswith(" went home") and after.endswith(" …") and "\n" not in before + after
    assert max(map(len, (before, after))) <= AROUND + 2
    page = document.pages[0]
    whole = excerpt(document, Hit(page, 1, 0, len(text), chosen=True))
    assert (whole.before, whole.after) == ("", "") and len(whole.hit) <= MOST_MARKED + 1
