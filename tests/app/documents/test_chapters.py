"""Chapters: where they begin, to the character, and what only looks like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter

from app.documents.chapters import (
    MAX_DEPTH,
    chapter_level,
    letters,
    make_chapters,
    markdown_headings,
    text_headings,
)
from app.documents.document import Chapter
from app.documents.messages import Heading
from app.documents.parsers.html import read_markup
from app.documents.readers import read_document
from tests.app.documents.conftest import MakeEpub, MakePdf
from tests.hostile.corpus import NAV, package, page

pytestmark = pytest.mark.usefixtures("in_this_process")

BODY = "The pilot counted the boats that came in with the tide, as he had done on every evening."
WORDS = st.text("abcdeäöü éß", min_size=1, max_size=12).map(str.strip).filter(bool)
PROSE = st.lists(WORDS, min_size=1, max_size=8).map(lambda words: "it was " + " ".join(words) + ".")


def chapters_of(text: str) -> tuple[Chapter, ...]:
    return make_chapters(text, (0,), text_headings(text))


def titles(text: str) -> list[str]:
    return [chapter.title for chapter in chapters_of(text)]


# -------------------- plain text


@pytest.mark.parametrize(
    "headings",
    [
        "Chapter 1/Chapter 2", "CHAPTER I./CHAPTER II.", "Chapter 9: The Quay/Chapter 10: The Tide", "Part 1/Part 2",
        "Chapter One/Chapter Twenty-One", "    CHAPTER I — The Quay/    CHAPTER II — The Tide",
        "第一章 港口/第二章 潮水", "Prologue/Chapter 1/EPILOGUE", "Kapitel 3: Der Hafen/Kapitel 4: Die Flut",
        "Chapitre III/Chapitre IV", "Chapter 3 The Quay/Chapter 4 “Tides”",
    ],
)  # fmt: skip
def test_headings_of_many_kinds_are_found(headings: str) -> None:
    text = "A title\n\n" + "".join(f"{heading}\n\n{BODY}\n\n" for heading in headings.split("/"))
    assert titles(text) == [heading.strip() for heading in headings.split("/")]


@pytest.mark.parametrize(
    ("below", "title"),
    [
        ("The Quay\n\nHe went.", "Chapter 2 The Quay"),
        ("\nThe Quay\n\nHe went.", "Chapter 2 The Quay"),
        ("\nThe Quay.\n\nHe went.", "Chapter 2"),
        ("\nthe quay\n\nHe went.", "Chapter 2"),
        ("\nThe Quay\nHe went.", "Chapter 2"),
        ("\nThe Quay", "Chapter 2"),
    ],
)
def test_a_title_may_stand_below_the_number(below: str, title: str) -> None:
    assert titles(f"Chapter 1\n\n{BODY}\n\nChapter 2\n{below}")[1] == title


def test_the_number_of_a_section_below_a_heading_makes_it_no_sentence() -> None:
    text = "".join(f"Chapter {n}. The Quay\n{n}.1. Boats\n{BODY}\n\n" for n in (1, 2))
    assert titles(text) == ["Chapter 1. The Quay", "Chapter 2. The Quay"]
    assert titles(text.replace(".1. ", " more ")) == []


@pytest.mark.parametrize(
    "line",
    [
        "Chapter 3 of the book says that the quay was old.", "Chapter 3, in which nobody comes, is short.",
        "Part I played with, part II not.", "Chapter 3. The pilot, who had read it twice,\nput it away.",
        "Introduction to navigation was his favourite book.", "Chapterhouse 3", "Letter I wrote",
        "Chapter 3: " + "a long line " * 12,
    ],
)  # fmt: skip
def test_sentences_about_chapters_are_no_headings(line: str) -> None:
    assert titles(f"{BODY}\n\n{line}\n\n{BODY}\n\n{line}\n\n{BODY}") == []


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
@pytest.mark.parametrize("dots", ["", " ....... 7", "\t12"])
@pytest.mark.parametrize("preface", ["", f"{BODY}\n\n"])
def test_a_list_of_contents_is_no_chapter(gap: str, dots: str, preface: str) -> None:
    names = [f"Chapter {n}: The {word}" for n, word in enumerate(("Quay", "Tide", "Storm"), 1)]
    contents = gap.join(name + dots for name in names)
    text = f"Contents\n\n{contents}\n\n{preface}" + "".join(f"{name}\n\n{BODY}\n\n" for name in names)
    assert titles(text) == names and chapters_of(text)[0].char_start == text.rindex(names[0])


@given(st.lists(st.tuples(WORDS, PROSE), min_size=2, max_size=6), PROSE, st.booleans())
def test_chapters_of_a_text_begin_with_their_headings_and_cover_the_rest(
    chapters: list[tuple[str, str]], preface: str, blank: bool
) -> None:
    names = [f"Chapter {n}: {title}" for n, (title, _) in enumerate(chapters, 1)]
    parts = [f"{name}\n\n{body}\n\n" for name, (_, body) in zip(names, chapters, strict=True)]
    text = (f"{preface}\n\n" if blank else "") + "".join(parts)
    assert [text[chapter.char_start : chapter.char_end] for chapter in chapters_of(text)] == parts
    assert titles(text) == [" ".join(name.split()) for name in names]


@given(
    st.text(st.sampled_from("Chapter I12:\n.#=- \tpart`x\f"), max_size=200), st.lists(st.integers(0, 200), max_size=4)
)
def test_any_text_gives_chapters_that_follow_each_other(text: str, starts: list[int]) -> None:
    pages = sorted({0, *(start for start in starts if start < len(text))})
    for source in (text_headings(text, pages), markdown_headings(text)):
        chapters = make_chapters(text, pages, source)
        bounds = [*(chapter.char_start for chapter in chapters), len(text)]
        assert bounds == sorted(set(bounds)) or not chapters
        for chapter in chapters:
            assert letters(text[chapter.char_start : chapter.char_end]).startswith(letters(chapter.title.rstrip("…")))
            assert pages[chapter.first_page - 1] <= chapter.char_start


# -------------------- markup


def test_markdown_headings_of_both_kinds_and_nothing_in_code() -> None:
    text = (
        "---\ntitle: A\n---\n# The Quay #\ntext\n````\n```\n# no\n```\n# no\n````\nThe Tide\n========\ntext\n"
        "- item\n---\n#no\n    # code\n### C#\n"
    )
    found = [(heading.level, heading.title, text[heading.char_start :][:5]) for heading in markdown_headings(text)]
    assert found == [(1, "The Quay", "# The"), (1, "The Tide", "The T"), (3, "C#", "### C")]


@given(st.lists(st.tuples(st.sampled_from(["h1", "h2", "p"]), WORDS), max_size=8))
def test_headings_of_markup_are_where_they_say(blocks: list[tuple[str, str]]) -> None:
    read = read_markup(page("".join(f"<{tag}> <b>{words}</b>\n</{tag}>" for tag, words in blocks))).lines.marked()
    wanted = [(" ".join(words.split()), int(tag[1])) for tag, words in blocks if tag != "p"]
    assert [(read.text[one.char_start : one.char_end], one.level) for one in read.headings] == wanted


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["", "x. ", BODY * 5])), max_size=30))
def test_sub_chapters_partition_their_chapter_at_every_depth(found: list[tuple[int, str]]) -> None:
    text = "".join(f"{'#' * level} H{at}\n\n{body}\n\n" for at, (level, body) in enumerate(found))

    def depth(chapter: Chapter) -> int:  # that they partition it is asserted when a chapter is made
        return 1 + max(map(depth, chapter.sections), default=0)

    assert all(depth(chapter) <= 1 + MAX_DEPTH for chapter in make_chapters(text, (0,), markdown_headings(text)))


# -------------------- lists of contents


def test_bookmarks_of_a_pdf_are_chapters(make_pdf: MakePdf, writer: PdfWriter) -> None:
    prose = [BODY[:58], BODY[58:]]
    path = make_pdf(["A title"], ["1. The Quay", *prose], prose, [*prose, "", "2. The Tide", *prose])
    part = writer.add_outline_item(title="Harbour", page_number=1)
    writer.add_outline_item(title="The Quay", page_number=1, parent=part)
    writer.add_outline_item(title="2. The Tide", page_number=3, parent=part)
    writer.write(path)
    document = read_document(path)
    found = [(one.title, one.first_page, document.text[one.char_start :][:8]) for one in document.chapters]
    assert found == [("The Quay", 2, "The Quay"), ("2. The Tide", 4, "2. The T")]


def entry(href: str, title: str) -> tuple[str, str]:
    """A line of the list of contents in a navigation document, and in an NCX file."""
    point = f'<navPoint><navLabel><text>{title}</text></navLabel><content src="{href}"/></navPoint>'
    return f'<li><a href="{href}">{title}</a></li>', point


IN_NAV, IN_NCX = zip(
    entry("s1.xhtml", "Cover"),
    entry("s2.xhtml#a", "The <i>Quay</i>"),
    entry("s2.xhtml#b", "The Tide"),
    entry("s3.xhtml", "Storm"),
    strict=True,
)
NAV_FILE = (
    f'<nav epub:type="landmarks"><a href="s1.xhtml">x</a></nav><nav epub:type="toc"><ol>{"".join(IN_NAV)}</ol></nav>'
)
NCX_HEAD = '<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd">'
NCX = '<item id="x" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'


@pytest.mark.parametrize("more", [NAV, NCX, NAV + NCX], ids=["EPUB 3", "EPUB 2", "both"])
def test_the_list_of_contents_of_an_epub_names_chapters_and_their_places(make_epub: MakeEpub, more: str) -> None:
    bodies = ("", f"<h2>The Quay</h2><p>{BODY}</p><h2>The Tide</h2><p>{BODY}</p>", f"<p>{BODY} No storm came.</p>")
    points = "".join(IN_NCX) if more == NCX else "<navPoint/>"
    files = {
        "OPS/b.opf": package(["s1.xhtml", "s2.xhtml", "s3.xhtml"], more=more),
        "OPS/nav.xhtml": page(NAV_FILE).replace("<html ", '<html xmlns:epub="http://www.idpf.org/2007/ops" '),
        "OPS/toc.ncx": f'{NCX_HEAD}<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>{points}</navMap></ncx>',
    }
    document = read_document(make_epub(*bodies, files=files))
    assert [chapter.title for chapter in document.chapters] == ["The Quay", "The Tide", "Storm"]
    places = [document.text[chapter.char_start :] for chapter in document.chapters]
    assert places[1].startswith("The Tide") and places[2].startswith(BODY), (
        "without a heading it begins with its section"
    )


# -------------------- levels


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ("", ""),
        ("1:Quay", ""),
        ("1:Quay 1:Tide 2:Boats", "Quay Tide"),
        ("1:Book 2:Quay 2:Tide", "Quay Tide"),
        ("1:Part-1 1:Part-2 2:Chapter-1 3:Chapter-2 3:Chapter-3", "Part-1 Part-2 Chapter-1 Chapter-2 Chapter-3"),
        ("1:Chapter-1 1:Chapter-2 2:Chapter-3 2:Chapter-4", "Chapter-1 Chapter-2"),
        ("1:Quay 1:Tide 2:Chapter-1", "Quay Tide"),
        ("1:Title 2:Chapter-1 2:Chapter-2 3:Boats", "Chapter-1 Chapter-2"),
    ],
)
def test_chapters_are_of_the_level_of_most_named_ones_else_of_the_highest_that_divides(found: str, chosen: str) -> None:
    pairs = [one.replace("-", " ").split(":") for one in found.split()]
    headings = [Heading(9 * at, 9 * at + 1, int(level), title) for at, (level, title) in enumerate(pairs)]
    assert [heading.title.replace(" ", "-") for heading in chapter_level(headings)] == chosen.split()
