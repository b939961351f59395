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
from app.documents.document import Page
from app.documents.page_image import PageImage, PageNotDrawn
from app.runtime.sessions import Session, Side
from app.ui import render

USUAL_WIDTH = 1_000  # pixels of an image, where the browser does not say how many it can show
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
    """What a click asks for: `NUMBER[:START-END[:WIDTH]]`, with either of the last two empty."""

    number: int
    mark: tuple[int, int] | None
    width: int

    @classmethod
    def parse(cls, detail: str) -> "Wanted":
        """Read what a browser sent; what cannot be read is left out."""
        number, mark, width = (*detail.split(":", 2), "", "")[:3]
        found = RANGE.fullmatch(mark)
        return cls(
            int(number) if NUMBER.fullmatch(number) else 1,
            (int(found[1]), int(found[2])) if found else None,
            int(width) if NUMBER.fullmatch(width) else USUAL_WIDTH,
        )


def preview(
    session: Session, key: str, number: int, mark: tuple[int, int] | None = None, width: int = USUAL_WIDTH
) -> str:
    """A page of a book in the library, or in the open book.

    Args:
        key: the book's.
        number: of the page, from 1; clamped.
        mark: characters of the document's text; what lies on the page is marked.
        width: pixels of the image.
    """
    book = session.uploads.open_book(key)
    if book is None and session.book is not None:
        book = next((one for one in session.book.library.books if one.key == key), None)
    if book is None:
        return NO_PAGE
    document, meter = book.document, session.uploads.meter
    number = min(max(number, 1), len(document.pages))
    page = document.pages[number - 1]
    marks = [Mark(*mark, "quoted")] if mark and 0 <= mark[0] < mark[1] else []
    end = f":{marks[0].start}-{marks[0].end}" if marks else ""
    named = f" (“{render.escape(page.label)}”)" if page.label != str(number) else ""
    counted = meter is not None and session.uploads.library.index(key) is not None
    tokens = f" · {formats.plural(meter.page(book, number), 'token')}" if meter and counted else ""
    turning = (
        tool(f"preview:{key}:{number - 1}{end}", "Previous page", "&lt;", off=number == 1, turn=-1)
        + f'<label>Page <input type="number" min="1" max="{len(document.pages)}" value="{number}" data-preview="{key}" '
        f'data-mark="{end}"></label><span class="quiet">of {len(document.pages):,}{named}{tokens}</span>'
        + tool(f"preview:{key}:{number + 1}{end}", "Next page", "&gt;", off=number == len(document.pages), turn=1)
    )
    shown = f"preview:{key}:{number}{end}"
    return section(session, book, page, marks, title=document.title, turning=turning, shown=shown, width=width)


def newest(session: Session, place: Side, draw: Callable[[], str]) -> None:
    """Show what `draw` returns, unless another page was asked for meanwhile: drawings may end in another order."""
    session.num_opened[place] = mine = session.num_opened.get(place, 0) + 1
    drawn = draw()
    if session.num_opened[place] == mine:
        session.leaves[place] = drawn


def section(
    session: Session,
    book: Book,
    page: Page,
    marks: Sequence[Mark],
    *,
    title: str,
    turning: str,
    shown: str,
    width: int,
    line: str = "",
    part: tuple[int, int] | None = None,
) -> str:
    """A page with its title, its buttons and a line about it: its text, and its image beside it where it has one.

    Args:
        shown: the action that draws it again, for an image of another size.
        part: the characters of the document's text to show; None for all of the page.
    """
    document, notes, tools = book.document, [line], ""
    start, end = part or (page.char_start, page.char_end)
    marks = [Mark(max(start, a), min(end, b), kind) for a, b, kind in marks if a < end and b > start]
    text = "".join(marked_text(document.text, start, end, marks))
    if not document.text[start:end].strip():
        text = '<span class="quiet">This page holds no text.</span>'
    cut = f"Of this long page {PREVIEW_CHARS:,} characters are shown." if end - start > PREVIEW_CHARS else ""
    body = f'<div class="page-text" tabindex="0" aria-label="Text of the page"{render.written(document)}>{text}</div>'
    kind, note = "leaf", ""
    if book.file is not None:
        try:
            image = session.files.page(book.file, document.name, page.number, len(document.pages), width)
        except PageNotDrawn as error:
            note = f"{error.problem} {error.hint}"
        else:
            boxes = _boxes(image, document.page_text(page), page.char_start, marks)
            kind, tools = "leaf both", VIEW_TOOLS
            if marks and not boxes:
                kind, note = "leaf both unplaced", NOT_PLACED
            label = f"Page {render.escape(page.label)} of {render.escape(document.title)}"
            body = (
                f'<div class="paper" tabindex="0"><div class="image" data-shown="{shown}" data-asked="{width}" '
                f'style="aspect-ratio:{image.width}/{image.height}"><img alt="{label}" draggable="false" '
                f'src="data:{image.media};base64,{image.image}">{boxes}</div></div>{body}'
            )
    notes.append(f"{note} {cut}".strip())
    lines, title = "".join(f'<p class="quiet">{one}</p>' for one in notes if one), render.escape(title)
    return (
        f'<section class="card preview" aria-label="{title}"><header><h3>{title}</h3><nav>{tools}</nav>'
        f'<nav>{turning}</nav></header>{lines}<div class="{kind}">{body}</div></section>'
    )


def _boxes(image: PageImage, text: str, first: int, marks: Sequence[Mark]) -> str:
    """The marks on the image, where their words are for certain; `first`: the page's first character."""
    placed = image.marks(text, [(a - first, b - first) for a, b, _ in marks])
    boxes = ((box, mark.kind) for mark, some in zip(marks, placed, strict=True) for box in some)
    return "".join(_rectangle(image, box, kind) for box, kind in boxes)


def _rectangle(image: PageImage, box: Sequence[int], kind: str) -> str:
    """A mark on the image, a little higher than its letters, in percent of the page."""
    left, top, right, bottom = box
    more = 0.16 * (bottom - top)
    across, down = 100 / image.width, 100 / image.height
    style = (
        f"left:{left * across:.3f}%;top:{(top - more) * down:.3f}%;"
        f"width:{(right - left) * across:.3f}%;height:{(bottom - top + 2 * more) * down:.3f}%"
    )
    return f'<i class="{kind}" style="{style}"></i>'


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
