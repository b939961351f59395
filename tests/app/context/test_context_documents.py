"""The library: joined text, and the way back from it; and parts of documents by the words that people type."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.context_documents import ChapterPath, Chapters, Choice, Library, Pages, Whole, label, spans
from app.context.page_ranges import understood, written
from app.documents.document import BEGINNING, Chapter, Document
from core.errors import CoreError, InvalidSetting
from tests.app.fakes import document_of, library_of


@st.composite
def documents(draw: st.DrawFn) -> Document:
    pages = draw(st.lists(st.text("ab \n", max_size=6), min_size=1, max_size=6).filter(lambda pages: any(pages)))
    length = sum(map(len, pages))
    starts = draw(st.lists(st.integers(0, length - 1), unique=True, max_size=4).map(sorted))
    made = document_of(*pages, title=draw(st.text("xyz", min_size=1, max_size=3)), chapter_starts=starts)
    return replace(made, chapters=tuple(divided(draw, chapter) for chapter in made.chapters))


def divided(draw: st.DrawFn, chapter: Chapter, depth: int = 2) -> Chapter:
    """A chapter, perhaps with sub-chapters, which may have some, too; the first may be what stands before them."""
    between = st.integers(chapter.char_start + 1, chapter.char_end - 1)
    if not depth or chapter.char_end - chapter.char_start < 2 or draw(st.booleans()):
        return chapter
    cuts = draw(st.lists(between, min_size=1, max_size=3, unique=True).map(sorted))
    bounds = list(pairwise([chapter.char_start, *cuts, chapter.char_end]))
    title = draw(st.sampled_from([BEGINNING, "S"]))
    made = [Chapter(title=title, first_page=chapter.first_page, char_start=a, char_end=b) for a, b in bounds]
    return replace(chapter, sections=tuple(divided(draw, one, depth - 1) for one in made))


def leaves(document: Document) -> list[ChapterPath]:
    def below(path: ChapterPath, chapter: Chapter) -> list[ChapterPath]:
        inside = enumerate(chapter.sections, chapter.first_section)
        return [path, *(one for number, section in inside for one in below((*path, number), section))]

    return [one for number, chapter in enumerate(document.chapters, 1) for one in below((number,), chapter)]


@st.composite
def choices(draw: st.DrawFn, document: Document) -> Choice:
    paths = leaves(document)
    match draw(st.sampled_from(["whole", "pages", *(["chapters"] if paths else [])])):
        case "pages":
            first = draw(st.integers(1, len(document.pages)))
            return Pages(first, draw(st.integers(first, len(document.pages))))
        case "chapters":
            kept = draw(st.sets(st.sampled_from(paths), min_size=1, max_size=4))
            return Chapters(tuple(sorted(one for one in kept if not any(one[:n] in kept for n in range(1, len(one))))))
        case _:
            return Whole()


@st.composite
def shelves(draw: st.DrawFn) -> Library:
    one_to_three = st.lists(documents(), min_size=1, max_size=3, unique_by=lambda document: document.text)
    library = library_of(*draw(one_to_three))
    for index, book in enumerate(library.books):
        library = library.choose(index, draw(choices(book.document)))
    return library


# -------------------- the joined text


@given(shelves())
def test_the_joined_text_is_what_was_chosen_and_every_character_leads_back_to_its_page(library: Library) -> None:
    chosen = [spans(book.document, book.choice) for book in library.books]
    assert sum(p.end - p.start for p in library.pages) == sum(b - a for each in chosen for a, b in each)
    for placed in library.pages:
        document = library.books[placed.book].document
        page, start = document.pages[placed.number - 1], library.source(placed)
        end = start + placed.end - placed.start
        assert document.text[start:end] == library.text[placed.start : placed.end]
        assert page.char_start <= start and end <= page.char_end
        assert any(first <= start and end <= last for first, last in chosen[placed.book])
        for char in range(placed.start, placed.end):
            assert library.place(char) == (document, page)


@given(documents(), documents().filter(lambda document: document.text))
def test_a_book_at_the_end_changes_nothing_before_it(first: Document, second: Document) -> None:
    """What the model has read of the first book stays read: also part by part, as a tokenizer sees it."""
    library = Library().add(first)
    if first.text == second.text:
        return
    longer = library.add(second)
    assert longer.text.startswith(library.text) and longer.parts[: len(library.parts)] == library.parts


def test_the_same_text_is_refused_under_any_name() -> None:
    library = Library().add(document_of("words", title="a.txt"))
    with pytest.raises(CoreError, match=r"^b\.txt holds the same text as a\.txt\. Choose"):
        library.add(document_of("wo", "rds", title="b.txt"))
    with pytest.raises(CoreError, match=r"^a\.txt is already there\."):
        library.add(document_of("words", title="a.txt"))
    assert len(library.add(document_of("other words", title="a.txt")).books) == 2


def test_text_that_is_read_anew_leaves_chosen_what_is_there_under_the_same_headings() -> None:
    before = library_of(document_of("a\n", "b\n", "c\n", chapter_starts=[0, 2, 4]))
    again = document_of("a\n", "b, recognised\n", "c\n", chapter_starts=[0, 2, 16])
    fewer = document_of("a\n", "b, recognised\n", "c\n", chapter_starts=[0, 16])
    for choice in (Pages(2, 3), Chapters.run(2, 3), Whole()):
        chosen = before.choose(0, choice)
        (book,) = chosen.add(again, replaces=chosen.books[0].key).books
        assert book.choice == choice and book.document is again
        (book,) = chosen.add(fewer, replaces=chosen.books[0].key).books
        assert book.choice == (Whole() if isinstance(choice, Chapters) else choice)


@pytest.mark.parametrize(
    "choice",
    [Pages(0, 1), Pages(2, 1), Pages(1, 3), Chapters(()), Chapters(((2,), (1,))), Chapters(((3,),)), Chapters(((0,),))],
)
def test_what_a_document_has_not_cannot_be_chosen(choice: Choice) -> None:
    with pytest.raises(ValueError, match="of 2"):
        Library().add(document_of("one", "two", chapter_starts=[0, 3])).choose(0, choice)


# -------------------- choices as people type them

ROMAN = document_of(*"abcdefgh", labels=["i", "ii", "iii", "1", "2", "3", "A-1", "A-2"])
PLAIN = document_of(*"abcdefghij", chapter_starts=[0, 2, 5, 8])
PARTS = [
    Chapter(title=title, first_page=3, char_start=at, char_end=at + 1)
    for at, title in enumerate((BEGINNING, "2.1 Sails", "Section 2: Ropes"), 2)
]
DIVIDED = replace(
    PLAIN, chapters=(PLAIN.chapters[0], replace(PLAIN.chapters[1], sections=tuple(PARTS)), *PLAIN.chapters[2:])
)


@pytest.mark.parametrize(
    ("document", "typed", "choice"),
    [
        *((PLAIN, *case) for case in (
            ("", Whole()), (" ALL ", Whole()), ("2-5", Pages(2, 5)), ("pages 2 – 5", Pages(2, 5)),
            ("p. 10", Pages(10, 10)), ("pp.3-4", Pages(3, 4)), ("3 to 4", Pages(3, 4)), ("#2-#3", Pages(2, 3)),
            ("chapter 2", Chapters(((2,),))), ("Chapters 1, 3-4", Chapters(((1,), (3,), (4,)))),
            ("c1,2", Chapters(((1,), (2,)))), ("ch. 4 and 1", Chapters(((1,), (4,)))))),
        *((ROMAN, *case) for case in (
            ("ii-1", Pages(2, 4)), ("1-3", Pages(4, 6)), ("A-1", Pages(7, 7)), ("#1-#3", Pages(1, 3)),
            ("pages i to A-2", Pages(1, 8)), ("A-1-A-2", Pages(7, 8)),
            ("8", Pages(8, 8)))),
        *((DIVIDED, *case) for case in (
            ("chapter 2.1", Chapters(((2, 1),))), ("c1,2.0-2.2", Chapters(((1,), (2, 0), (2, 1), (2, 2)))),
            ("chapters 2.1 to 2.2, 2.2", Chapters(((2, 1), (2, 2)))), ("chapters 2, 2.1", Chapters(((2,),))))),
    ],
)  # fmt: skip
def test_what_people_type_is_understood_by_the_document_s_own_labels(
    document: Document, typed: str, choice: Choice
) -> None:
    assert understood(document, typed) == choice


NO_PARTS = ("9-2", "0", "11", "2-", "chapter 5", "c0", "²", "<b>", "1" * 30, "a-b-c")
NO_SUB_CHAPTERS = ("c2.3", "c1.1", "c2.1-3", "c2.2-2.1", "c2..1", "c2.1.1", "c2.-1", "c2.1.1.1.1.1.1")


@pytest.mark.parametrize("typed", (*NO_PARTS, *NO_SUB_CHAPTERS))
def test_what_is_no_part_is_said_with_what_there_is(typed: str) -> None:
    told = r"has no part .* Name pages from 1 to 10, such as 1-10, or chapters from 1"
    with pytest.raises(InvalidSetting, match=told):
        understood(DIVIDED if typed in NO_SUB_CHAPTERS else PLAIN, typed)


@pytest.mark.parametrize(
    ("document", "typed", "named"),
    [
        (ROMAN, "", "everything"), (ROMAN, "i-1", "pages i–1"), (ROMAN, "ii", "page ii"),
        (PLAIN, "c1-2", "chapters 1–2"), (PLAIN, "c1,3", "chapters 1, 3"),
        (DIVIDED, "c2.0", "chapter 2: C2 (beginning)"), (DIVIDED, "c2.1", "chapter 2.1 Sails"),
        (DIVIDED, "c2.0-2.1", "chapters 2 (beginning)–2.1"), (DIVIDED, "c2.2", "Section 2: Ropes"),
        (DIVIDED, "c3", "chapter 3: C3"),
    ],
)  # fmt: skip
def test_a_part_is_called_by_its_own_label_or_number(document: Document, typed: str, named: str) -> None:
    assert label(document, understood(document, typed)) == named


@given(st.data(), documents())
def test_what_a_button_stands_for_comes_back(data: st.DataObject, document: Document) -> None:
    choice = data.draw(choices(document))
    assert understood(document, written(choice)) == choice
