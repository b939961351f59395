"""One page of a document: the page itself as an image, its text beside it, and marks on both.

A document's text and pages reach the browser one page at a time, and only on request. Marks are characters of
`Document.text`. On the image a mark is only where its words are for certain.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from app import formats
from app.context.context_documents import PREVIEW_CHARS, Book
from app.documents.page_image import PageImage, PageNotDrawn
from app.runtime.sessions import Session, Side
from app.ui import render

WIDTH = 2_000  # pixels of an image: sharp at the usual sizes, and a few tenths of a second to draw
NO_PAGE = """<section class="card preview">
<p class="quiet">Choose “Preview” to see a page of a document, and its text as the model gets it.</p></section>"""
NOT_PLACED = "Where the words stand on the image is not certain, so they are marked in the text alone."
NUMBER, RANGE = re.compile(r"[0-9]{1,9}"), re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


class Mark(NamedTuple):
    """Characters [start, end) of a document's text."""

    start: int
    end: int
    kind: str  # the class: quoted, strong, some


class Wanted(NamedTuple):
    """The page that a click asks for: `KEY:NUMBER[:START-END]`, with characters of the document's text."""

    key: str
    number: int
    mark: tuple[int, int] | None = None

    @classmethod
    def parse(cls, detail: str) -> "Wanted":
        """Read what a browser sent; what cannot be read is left out."""
        key, number, mark = (*detail.split(":", 2), "", "")[:3]
        found = RANGE.fullmatch(mark)
        return cls(
            key,
            int(number) if NUMBER.fullmatch(number) else 1,
            (int(found[1]), int(found[2])) if found and int(found[1]) < int(found[2]) else None,
        )

    @property
    def detail(self) -> str:
        """As it is parsed."""
        return ":".join((self.key, str(self.number), *([f"{self.mark[0]}-{self.mark[1]}"] if self.mark else ())))


def newest(session: Session, place: Side, draw: Callable[[], str]) -> None:
    """Show what `draw` returns, unless another page was asked for meanwhile: drawings may end in another order."""
    session.num_opened[place] = mine = session.num_opened.get(place, 0) + 1
    drawn = draw()
    if session.num_opened[place] == mine:
        session.leaves[place] = drawn


def preview(session: Session, wanted: Wanted) -> str:
    """A page of a book in the library, or in the open book."""
    book = session.uploads.open_book(wanted.key)
    if book is None and session.book is not None:
        book = session.book.library.book(wanted.key)
    if book is None:
        return NO_PAGE
    return leaf(session, book, wanted, "preview", title=book.document.title)


def leaf(
    session: Session,
    book: Book,
    wanted: Wanted,
    verb: str,
    *,
    title: str,
    marks: Sequence[Mark] = (),
    line: str = "",
    closes: str = "",
) -> str:
    """A page with its title and its buttons: its text, and its image beside it where it has one.

    Args:
        wanted: the page, whose number is clamped; its mark is shown where it lies on the page.
        verb: the act that shows another page.
        marks: further ones.
        line: about the page.
        closes: the button that closes it.
    """
    document, meter = book.document, session.uploads.meter
    number = min(max(wanted.number, 1), len(document.pages))
    page = document.pages[number - 1]
    start, end = page.char_start, page.char_end
    marks = [*([Mark(*wanted.mark, "quoted")] if wanted.mark else []), *marks]
    marks = [Mark(max(start, a), min(end, b), kind) for a, b, kind in marks if a < end and b > start]
    notes, tools, kind = [line], "", "leaf"
    if end - start > PREVIEW_CHARS:
        notes.append(f"Of this long page {PREVIEW_CHARS:,} characters are shown.")
    text = "".join(marked_text(document.text, start, end, marks))
    if not document.text[start:end].strip():
        text = '<span class="quiet">This page holds no text.</span>'
    body = f'<div class="page-text" tabindex="0" aria-label="Text of the page"{render.written(document)}>{text}</div>'
    if book.file is not None:
        try:
            image = session.files.page(book.file, document.name, number, len(document.pages), WIDTH)
        except PageNotDrawn as error:
            notes.append(f"{error.problem} {error.hint}")
        else:
            boxes = _boxes(image, document.page_text(page), start, marks)
            kind, tools = "leaf both", VIEW_TOOLS
            if marks and not boxes:
                kind = "leaf both unplaced"
                notes.append(NOT_PLACED)
            label = f"Page {render.escape(page.label)} of {render.escape(document.title)}"
            body = (
                f'<div class="paper" tabindex="0"><div class="image" style="aspect-ratio:{image.width}/{image.height}">'
                f'<img alt="{label}" draggable="false" src="data:{image.media};base64,{image.image}">{boxes}</div>'
                f"</div>{body}"
            )
    turning = _turning(book, wanted, verb, number, meter.page(book, number) if meter else 0) + closes
    lines, title = "".join(f'<p class="quiet">{one}</p>' for one in notes if one), render.escape(title)
    return (
        f'<section class="card preview" aria-label="{title}"><header><h3>{title}</h3><nav>{tools}</nav>'
        f'<nav>{turning}</nav></header>{lines}<div class="{kind}">{body}</div></section>'
    )


def _turning(book: Book, wanted: Wanted, verb: str, number: int, num_tokens: int) -> str:
    """The way to the other pages; they keep the mark."""
    pages, end = book.document.pages, wanted.detail.removeprefix(f"{wanted.key}:{wanted.number}")
    label = pages[number - 1].label
    named = f" (“{render.escape(label)}”)" if label != str(number) else ""
    tokens = f" · {formats.plural(num_tokens, 'token')}" if num_tokens else ""
    act = f"{verb}:{wanted.key}"
    return (
        tool(f"{act}:{number - 1}{end}", "Previous page", "&lt;", off=number == 1, turn=-1)
        + f'<label>Page <input type="number" min="1" max="{len(pages)}" value="{number}" data-page="{act}" '
        f'data-mark="{end}"></label><span class="quiet">of {len(pages):,}{named}{tokens}</span>'
        + tool(f"{act}:{number + 1}{end}", "Next page", "&gt;", off=number == len(pages), turn=1)
    )


def _boxes(image: PageImage, text: str, first: int, marks: Sequence[Mark]) -> str:
    """The marks on the image, where their words are for certain; `first`: the page's first character."""
    boxes, across, down = "", 100 / image.width, 100 / image.height  # in percent of the page
    for mark, places in zip(marks, image.marks(text, [(a - first, b - first) for a, b, _ in marks]), strict=True):
        for left, top, right, bottom in places:
            more = 0.16 * (bottom - top)  # a little higher than its letters
            boxes += (
                f'<i class="{mark.kind}" style="left:{left * across:.3f}%;top:{(top - more) * down:.3f}%;'
                f'width:{(right - left) * across:.3f}%;height:{(bottom - top + 2 * more) * down:.3f}%"></i>'
            )
    return boxes


def marked_text(text: str, start: int, end: int, marks: Sequence[Mark]) -> Iterator[str]:
    """Characters [start, end) of a text as HTML with marks, cut around the first mark to the length of a preview."""
    if end - start > PREVIEW_CHARS:
        first = marks[0].start if marks else start
        start = max(start, min(first - PREVIEW_CHARS // 4, end - PREVIEW_CHARS))
        end = start + PREVIEW_CHARS
    inside = [(max(start, a), min(end, b), kind) for a, b, kind in marks if a < end and b > start]
    borders = [start, *(border for a, b, _ in inside for border in (a, b)), end]
    kinds = ["", *(kind for mark in inside for kind in (mark[2], ""))]
    for (a, b), kind in zip(pairwise(borders), kinds, strict=True):
        piece = render.escape(text[a:b])
        yield f'<mark class="{kind}">{piece}</mark>' if kind else piece


def tool(act: str, name: str, text: str, *, off: bool = False, turn: int = 0) -> str:
    """A small button; `turn`: the pages it turns, so that it keeps the focus and has a key."""
    also = (f'data-turn="{turn}" ' if turn else "") + ("disabled" if off else "")
    return render.button(text, act, name=name, title=name, also=also.strip())


VIEW_TOOLS = (
    render.button("Text", tone="sides", name="Page or text", title="Page or text", also="data-side")
    + render.button("&minus;", name="Smaller", title="Smaller (-)", also='data-zoom="-1"')
    + '<output class="quiet zoomed">100%</output>'
    + render.button("+", name="Larger", title="Larger (+)", also='data-zoom="1"')
)
