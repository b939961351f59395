"""Choosing what is read of a library that is too long: a checklist of its chapters with a live total.

A chapter that does not fit alone opens into its sub-chapters.

The script sends what is ticked (assets/static/js/library.js), and is told what that costs.
"""

from math import ceil
from typing import Any

from app import formats
from app.context.context_documents import (
    Book,
    ChapterPath,
    Chapters,
    Choice,
    Library,
    Pages,
    Whole,
    dotted,
    has_own_numbers,
)
from app.context.offers import divided, from_the_start, with_only
from app.context.page_ranges import understood
from app.context.token_costs import Meter
from app.context.uploads import Fit
from app.documents.chapters import LEADING_NUMBER
from app.documents.document import Chapter, Document
from app.runtime.context_loader import room
from app.runtime.sessions import Session
from app.ui import render
from app.ui.reading.book_view import extent, num_pages, page_tokens
from core.errors import ContextTooSmall, InvalidSetting

MOST_CHAPTERS = 400  # of one book, and sub-chapters, that are listed
CHOOSE_PARTS = "Too long to be read at once: choose among its parts."
CHOOSE_PAGES = "Choose pages of it on the tab Library."


def checklist(session: Session) -> str:
    """The list; empty if all fits."""
    uploads = session.uploads
    fit, meter, books = uploads.fit, uploads.meter, uploads.library.books
    if not uploads.too_long or fit is None or meter is None:
        return ""
    free = max(room(fit), 0)
    ticked = from_the_start(uploads.library, meter, free)
    listed = "".join(_book(book, choice, meter, free) for book, choice in zip(books, ticked, strict=True))
    pages, most = num_pages(uploads.library), int(free / page_tokens(fit, uploads.library))
    tokens = f"{free:,} of {formats.plural(meter.library(uploads.library), 'token')}"
    intro = f"{formats.plural(pages, 'page')} are open, about {most:,} fit ({tokens}). Tick what the model is to read."
    intro += " Documents without a tick are closed." if len(books) > 1 else ""
    return (
        f'<form class="card checklist" aria-labelledby="choosing-title">'
        f'<header><h3 id="choosing-title" tabindex="-1">Choose what is read</h3><p class="quiet">{intro}</p></header>'
        f'<div class="listed">{listed}</div><footer><output></output>'
        f'<button type="submit" class="go" disabled>Read what is ticked</button></footer>'
        f"{_way_out(fit)}</form>"
    )


def total(session: Session) -> dict[str, Any] | None:
    """What is ticked, in pages and as a share of the room; and the tokens by which it is judged."""
    uploads, ticked = session.uploads, session.ticked
    fit, meter, library = uploads.fit, uploads.meter, uploads.library
    if not uploads.too_long or fit is None or meter is None:
        return None
    free = max(room(fit), 0)
    try:
        picked = chosen(library, ticked)
    except InvalidSetting:
        return {"said": "These pages are not in the document.", "tokens": "", "fits": False}
    tokens, closed = meter.library(picked), len(library.books) - len(picked.books)
    share, fits = 100 * tokens / max(free, 1), 0 < tokens <= free
    told = f"fits, {max(1, int(share))}%" if fits else f"does not fit, {max(101, ceil(share)):,}%"
    closes = f" · closes {formats.plural(closed, 'document')}" if closed else ""
    said = f"{formats.plural(num_pages(picked), 'page')} ticked: {told} of the room{closes}"
    tokens_told = f"{tokens:,} of {formats.plural(free, 'token')}"
    return {"said": said if picked.books else "Nothing is ticked.", "tokens": tokens_told, "fits": fits}


def chosen(library: Library, text: str) -> Library:
    """The library with the parts that the list sent: "KEY=c1-3;KEY=all".

    Raises:
        InvalidSetting: a part does not exist in its book.
    """
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    books = {book.key: book for book in library.books}
    return with_only(
        library, {key: understood(books[key].document, part) for key, part in parts.items() if key in books}
    )


def _book(book: Book, choice: Choice | None, meter: Meter, free: int) -> str:
    """One document with its parts."""
    document, tokens = book.document, meter.book(Book(document=book.document, digest=book.digest))
    parts = _parts(book, choice, meter, free) if document.chapters else _pages(book, choice)
    title, ticked = render.escape(document.title), " checked" if choice is not None else ""
    whole = " data-whole" if tokens <= free else ""  # all ticks mean it; else only what is ticked
    return (
        f'<fieldset data-book="{book.key}"{whole}><legend><label><input type="checkbox" name="book"{ticked}>'
        f'<b dir="auto">{title}</b><i>{extent(book)} · {tokens:,} tokens</i></label></legend>{parts}</fieldset>'
    )


def _parts(book: Book, choice: Choice | None, meter: Meter, free: int) -> str:
    """The chapters of a document, each with its box, and those too long alone with their sub-chapters."""
    document = book.document
    numbered = not has_own_numbers(document)  # by us
    listed: list[ChapterPath] = []

    def rows(chapters: tuple[Chapter, ...], above: ChapterPath, first: int) -> str:
        return f"<ul>{''.join(row((*above, number), one) for number, one in enumerate(chapters, first))}</ul>"

    def row(path: ChapterPath, chapter: Chapter) -> str:
        if len(listed) >= MOST_CHAPTERS:
            return ""
        tokens, name = meter.chapter(book, chapter), chapter.title
        if numbered and len(path) == 1 and not LEADING_NUMBER.match(name):
            name = f"{path[0]}. {name}"
        pages = render.escape(page_range(document, chapter)) if document.has_own_pages else ""
        name, told = render.escape(name), f"<i>{pages}</i><i>{tokens:,} tokens</i>"
        if tokens > free and chapter.sections:
            opened = " open" if isinstance(choice, Chapters) and _is_ticked(choice, path, len(path)) else ""
            return (
                f'<li><details{opened}><summary><span dir="auto">{name}</span><em title="{CHOOSE_PARTS}"></em>{told}'
                f"</summary>{rows(chapter.sections, path, chapter.first_section)}</details></li>"
            )
        listed.append(path)
        state = " disabled" if tokens > free else " checked" if _is_ticked(choice, path) else ""
        alone = f'<em title="{CHOOSE_PAGES}">too long alone</em>' if tokens > free else ""
        return (
            f'<li><label><input type="checkbox" name="chapter" value="{dotted(path)}"{state}>'
            f'<span dir="auto">{name}</span>{alone}{told}</label></li>'
        )

    shown = rows(document.chapters, (), 1)
    left = len(divided(book, meter, free)) - len(listed)
    return shown + (f'<p class="quiet">and {left:,} more: see the tab Library</p>' if left else "")


def _is_ticked(choice: Choice | None, path: ChapterPath, length: int | None = None) -> bool:
    """Whether a part is chosen; `length`: or anything in it, by the beginning of its path."""
    match choice:
        case Whole():
            return True
        case Chapters(paths):
            return any(one[:length] == path for one in paths)
        case _:
            return False


def page_range(document: Document, chapter: Chapter) -> str:
    """The pages of a chapter by their labels: "p. 12–16"."""
    first, last = document.pages[chapter.first_page - 1].label, document.page_at(chapter.char_end - 1).label
    return f"p. {first}" if first == last else f"p. {first}–{last}"


def _pages(book: Book, choice: Choice | None) -> str:
    """The first and the last page, of a document without chapters."""
    count = len(book.document.pages)
    if count == 1:
        return ""
    first, last = (choice.first, choice.last) if isinstance(choice, Pages) else (1, count)
    number = f'<input type="number" min="1" max="{count}" '
    return (
        f'<p class="range"><label>Pages {number}name="first" value="{first}"></label> '
        f'<label>to {number}name="last" value="{last}"></label> of {count:,}</p>'
    )


def _way_out(fit: Fit) -> str:
    """What helps where no choice of parts is wanted."""
    if fit.talk and fit.needed - fit.talk <= fit.context:
        return render.button("<span>Begin a new conversation: all fits then</span>", "fresh", tone="offer")
    hint = ContextTooSmall(fit.needed, fit.context, possible=fit.possible).hint
    return f'<p class="quiet">{render.escape(hint)}</p>' if hint else ""
