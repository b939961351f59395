"""Chapters: where they begin, to the character, and what only looks like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter

from app.documents.chapters import MAX_DEPTH, letters, make_chapters, markdown_headings, text_headings
from app.documents.document import Chapter, Document
from app.documents.readers import read_document
from tests.app.documents.conftest import MakeEpub, MakePdf, package, section

pytestmark = pytest.mark.usefixtures("in_this_process")

BODY = "The pilot counted the boats that came in with the tide, as he had done on every evening."
WORDS = st.text("abcdeäöü éß", min_size=1, max_size=12).map(str.strip).filter(bool)
PROSE = st.lists(WORDS, min_size=1, max_size=8).map(lambda words: "it was " + " ".join(words) + ".")


def titles(text: str, page_starts: tuple[int, ...] = (0,)) -> list[str]:
    return [chapter.title for chapter in make_chapters(text, page_starts, text_headings(text, page_starts))]


def begins_with_its_heading(document: Document) -> bool:
    return all(
        letters(document.text[chapter.char_start : chapter.char_end]).startswith(letters(chapter.title))
        for chapter in document.chapters
    )


# -------------------- plain text


@pytest.mark.parametrize(
    "headings",
    [
        ["Chapter 1", "Chapter 2"],
        ["CHAPTER I.", "CHAPTER II."],
        ["Chapter 9: The Quay", "Chapter 10: The Tide"],
        ["Chapter One", "Chapter Twenty-One"],
        ["    CHAPTER I — The Quay", "    CHAPTER II — The Tide"],
        ["Part 1", "Part 2"],
        ["Prologue", "Chapter 1", "EPILOGUE"],
        ["Kapitel 3: Der Hafen", "Kapitel 4: Die Flut"],
        ["Chapitre III", "Chapitre IV"],
        ["第一章 港口", "第二章 潮水"],
        ["Chapter 3 The Quay", "Chapter 4 “Tides”"],
    ],
)
def test_headings_of_many_kinds_are_found(headings: list[str]) -> None:
    text = "A title\n\n" + "".join(f"{heading}\n\n{BODY}\n\n" for heading in headings)
    assert titles(text) == [heading.strip() for heading in headings]


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
        "Chapter 3 of the book says that the quay was old.",
        "Chapter 3, in which nobody comes, is short.",
        "Part I played with, part II not.",
        "Chapter 3. The pilot, who had read it twice,\nput it away.",
        "Introduction to navigation was his favourite book.",
        "Chapterhouse 3",
        "Letter I wrote",
        "Chapter 3: " + "a long line " * 12,
    ],
)
def test_sentences_about_chapters_are_no_headings(line: str) -> None:
    assert titles(f"{BODY}\n\n{line}\n\n{BODY}\n\n{line}\n\n{BODY}") == []


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
@pytest.mark.parametrize("dots", ["", " ....... 7", "\t12"])
@pytest.mark.parametrize("preface", ["", f"{BODY}\n\n"])
def test_a_list_of_contents_is_no_chapter(gap: str, dots: str, preface: str) -> None:
    names = [f"Chapter {n}: The {word}" for n, word in enumerate(("Quay", "Tide", "Storm"), 1)]
    contents = gap.join(name + dots for name in names)
    text = f"Contents\n\n{contents}\n\n{preface}" + "".join(f"{name}\n\n{BODY}\n\n" for name in names)
    chapters = make_chapters(text, (0,), text_headings(text))
    assert [chapter.title for chapter in chapters] == names
    assert chapters[0].char_start == text.rindex(names[0])


@given(st.lists(st.tuples(WORDS, PROSE), min_size=2, max_size=6), PROSE, st.booleans())
def test_chapters_of_a_text_begin_with_their_headings_and_cover_the_rest(
    chapters: list[tuple[str, str]], preface: str, blank: bool
) -> None:
    names = [f"Chapter {n}: {title}" for n, (title, _) in enumerate(chapters, 1)]
    parts = [f"{name}\n\n{body}\n\n" for name, (_, body) in zip(names, chapters, strict=True)]
    text = (f"{preface}\n\n" if blank else "") + "".join(parts)
    found = make_chapters(text, (0,), text_headings(text))
    assert [text[chapter.char_start : chapter.char_end] for chapter in found] == parts
    assert [chapter.title for chapter in found] == [" ".join(name.split()) for name in names]


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


# -------------------- Markdown


def test_markdown_headings_of_both_kinds_and_nothing_in_code() -> None:
    text = (
        "---\ntitle: A\n---\n# The Quay #\ntext\n```\n# no\n```\nThe Tide\n========\ntext\n"
        "- item\n---\n#no\n    # code\n### C#\n"
    )
    found = list(markdown_headings(text))
    assert [(heading.level, heading.title) for heading in found] == [(1, "The Quay"), (1, "The Tide"), (3, "C#")]
    assert [text[heading.char_start :][:5] for heading in found] == ["# The", "The T", "### C"]


# -------------------- in files


def test_bookmarks_of_a_pdf_are_chapters(make_pdf: MakePdf, writer: PdfWriter) -> None:
    prose = [BODY[:58], BODY[58:]]
    path = make_pdf(["A title"], ["1. The Quay", *prose], prose, [*prose, "", "2. The Tide", *prose])
    part = writer.add_outline_item(title="Harbour", page_number=1)
    writer.add_outline_item(title="The Quay", page_number=1, parent=part)
    writer.add_outline_item(title="2. The Tide", page_number=3, parent=part)
    writer.write(path)
    document = read_document(path)
    assert [(chapter.title, chapter.first_page) for chapter in document.chapters] == [
        ("The Quay", 2),
        ("2. The Tide", 4),
    ]
    assert [document.text[chapter.char_start :][:8] for chapter in document.chapters] == ["The Quay", "2. The T"]


def nav(links: str) -> str:
    return (
        '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>'
        '<nav epub:type="landmarks"><a href="s1.xhtml">x</a></nav>'
        f'<nav epub:type="toc"><ol>{links}</ol></nav></body></html>'
    )


NCX = (
    '<?xml version="1.0"?><!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd">'
    '<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>'
    '<navPoint><navLabel><text>The Quay</text></navLabel><content src="s2.xhtml"/></navPoint>'
    '<navPoint><navLabel><text>The Tide</text></navLabel><content src="s2.xhtml#two"/></navPoint></navMap></ncx>'
)


SECTIONS = ("s1.xhtml", "s2.xhtml", "s3.xhtml")
NAV_ITEM = '<item id="n" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
NCX_ITEM = '<item id="x" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'


def test_the_navigation_of_an_epub_names_chapters_and_their_places(make_epub: MakeEpub) -> None:
    links = "".join(
        f'<li><a href="{href}">{title}</a></li>'
        for href, title in (
            ("s1.xhtml", "Cover"),
            ("s2.xhtml#a", "The <i>Quay</i>"),
            ("s2.xhtml#b", "The Tide"),
            ("s3.xhtml", "Storm"),
        )
    )
    bodies = ("", f"<h2>The Quay</h2><p>{BODY}</p><h2>The Tide</h2><p>{BODY}</p>", f"<p>{BODY}</p>")
    for extra, files in (
        (NAV_ITEM, {"OPS/nav.xhtml": nav(links)}),
        (NAV_ITEM + NCX_ITEM, {"OPS/nav.xhtml": nav(links), "OPS/toc.ncx": NCX}),
    ):
        document = read_document(make_epub(*bodies, files={"OPS/book.opf": package(SECTIONS, more=extra), **files}))
        assert [chapter.title for chapter in document.chapters] == ["The Quay", "The Tide", "Storm"]
        assert begins_with_its_heading(document) is False  # the last one has no heading: it begins its section
        assert document.text[document.chapters[1].char_start :].startswith("The Tide")
        assert document.text[document.chapters[2].char_start :] == BODY


@given(st.lists(st.tuples(st.sampled_from(["h1", "h2", "p"]), WORDS), max_size=8))
def test_headings_of_markup_are_where_they_say(blocks: list[tuple[str, str]]) -> None:
    from app.documents.parsers.html import read_markup

    markup = section("".join(f"<{tag}> <b>{words}</b>\n</{tag}>" for tag, words in blocks))
    read = read_markup(markup).lines.marked()
    assert [(h.title, h.level) for h in read.headings] == [
        (" ".join(words.split()), int(tag[1])) for tag, words in blocks if tag != "p"
    ]
    for heading in read.headings:
        assert read.text[heading.char_start : heading.char_end] == heading.title


# -------------------- sub-chapters


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["", "x. ", BODY * 5])), max_size=30))
def test_sub_chapters_partition_their_chapter_at_every_depth(found: list[tuple[int, str]]) -> None:
    text = "".join(f"{'#' * level} H{at}\n\n{body}\n\n" for at, (level, body) in enumerate(found))

    def depth(chapter: Chapter) -> int:  # that they partition it is asserted when a chapter is made
        return 1 + max(map(depth, chapter.sections), default=0)

    assert all(depth(chapter) <= 1 + MAX_DEPTH for chapter in make_chapters(text, (0,), markdown_headings(text)))
