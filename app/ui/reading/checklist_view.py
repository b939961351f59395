"""Choosing what is read of a library that is too long: a checklist of its chapters with a live total.

The script adds up the ticked parts (assets/static/js/checklist.js); the server counts them again before it reads them.
"""

import json
from itertools import accumulate, islice

from app import formats
from app.context.context_documents import Book, Chapters, Choice, Library, Pages, Whole
from app.context.offers import from_the_start, with_only
from app.context.page_ranges import understood
from app.context.token_costs import Meter
from app.context.uploads import Fit
from app.runtime.context_loader import room
from app.runtime.sessions import Session
from app.ui import render
from app.ui.reading.book_view import extent, offer_button
from core.errors import ContextTooSmall

MOST_CHAPTERS = 400  # of one book that are listed
MOST_OFFERS = 4  # beside the list; the tab "Library" shows all
OTHERS_LATER = "Documents without a tick are closed."


def checklist(session: Session) -> str:
    """The list, and shortcuts; empty if all fits."""
    uploads = session.uploads
    fit, meter, books = uploads.fit, uploads.meter, uploads.library.books
    if not uploads.too_long or fit is None or meter is None:
        return ""
    free = max(room(fit), 0)
    ticked = from_the_start(uploads.library, meter, free)
    listed = "".join(_book(book, choice, meter, free) for book, choice in zip(books, ticked, strict=True))
    sums = {
        "room": free,
        "left_out": meter.left_out(),
        "books": {book.key: _costs(book, meter) for book in books},
    }
    intro = f"{meter.library(uploads.library):,} tokens are open, {free:,} fit. Tick what is read."
    intro += f" {OTHERS_LATER}" if len(books) > 1 else ""
    return (
        f'<form class="card checklist" aria-labelledby="choosing-title" data-sums="{render.escape(json.dumps(sums))}">'
        f'<header><h3 id="choosing-title" tabindex="-1">Choose what is read</h3><p class="quiet">{intro}</p></header>'
        f'<div class="listed">{listed}</div><footer><output></output>'
        f'<button type="submit" class="go">Read what is ticked</button></footer>'
        f"{_shortcuts(session, fit, meter)}</form>"
    )


def chosen(library: Library, text: str) -> Library:
    """The library with the parts that the list sent: "KEY=c1-3;KEY=all".

    Raises:
        InvalidSetting: a part does not exist in its book.
    """
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    books = {book.key: book for book in library.books}
    found = {key: understood(books[key].document, part) for key, part in parts.items() if key in books}
    return with_only(library, found) if found else library


def _costs(book: Book, meter: Meter) -> dict[str, object]:
    """What the script needs to add up: tokens of the whole, of each chapter, or of the pages up to each."""
    document = book.document
    costs: dict[str, object] = {
        "whole": meter.book(Book(document=document, digest=book.digest)),
        "before": meter.before(book),
        "after": meter.after(book),
    }
    if document.chapters:
        costs["chapters"] = [meter.chapter(book, number) for number in range(1, len(document.chapters) + 1)]
    else:
        pages = (meter.page(book, number) for number in range(1, len(document.pages) + 1))
        costs["pages"] = list(accumulate(pages, initial=0))
    return costs


def _book(book: Book, choice: Choice | None, meter: Meter, free: int) -> str:
    """One document with its parts."""
    document, tokens = book.document, meter.book(Book(document=book.document, digest=book.digest))
    parts = _chapters(book, choice, meter, free) if document.chapters else _pages(book, choice)
    title = render.escape(document.title)
    ticked = " checked" if choice is not None else ""
    return (
        f'<fieldset data-book="{book.key}"><legend><label><input type="checkbox" name="book"{ticked}>'
        f'<b dir="auto">{title}</b><i>{extent(book)} · {tokens:,} tokens</i></label></legend>{parts}</fieldset>'
    )


def _chapters(book: Book, choice: Choice | None, meter: Meter, free: int) -> str:
    document = book.document
    count = len(document.chapters)
    ticked = range(1, count + 1) if choice == Whole() else choice.numbers if isinstance(choice, Chapters) else ()
    rows = []
    for number, chapter in list(enumerate(document.chapters, 1))[:MOST_CHAPTERS]:
        tokens = meter.chapter(book, number)
        state = " disabled" if tokens > free else " checked" if number in ticked else ""
        alone = '<em title="Choose pages of it on the tab Library.">too long alone</em>' if tokens > free else ""
        pages = ""
        if document.has_own_pages:
            last = document.page_at(chapter.char_end - 1).label
            first = document.pages[chapter.first_page - 1].label
            pages = f"p. {first}" if first == last else f"p. {first}–{last}"
        rows.append(
            f'<li><label><input type="checkbox" name="chapter" value="{number}"{state}>'
            f'<span dir="auto">{number}. {render.escape(chapter.title)}</span>{alone}'
            f"<i>{render.escape(pages)}</i><i>{tokens:,} tokens</i></label></li>"
        )
    more = ""
    if count > MOST_CHAPTERS:
        more = f'<p class="quiet">and {count - MOST_CHAPTERS:,} more: see the tab Library</p>'
    return f"<ul>{''.join(rows)}</ul>{more}"


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


def _shortcuts(session: Session, fit: Fit, meter: Meter) -> str:
    """Choices with one click. Each of them fits."""
    books, free = session.uploads.library.books, room(fit)
    several = (one for one in fit.offers if not isinstance(one.choice, Chapters) or len(one.choice.numbers) > 1)
    found = [offer_button(books, offer) for offer in islice(several, MOST_OFFERS)]
    alone = [book for book in books if len(books) > 1 and meter.book(book) <= free]
    found += [
        f'<button type="button" class="offer" data-act="only:{book.key}"><span>Only '
        f"{render.escape(book.document.title)}</span><i>{formats.plural(meter.book(book), 'token')}</i></button>"
        for book in alone[:MOST_OFFERS]
    ]
    if fit.talk and fit.needed - fit.talk <= fit.context:
        found.append(
            '<button type="button" class="offer" data-act="fresh"><span>Begin a new conversation: all fits then</span>'
            "</button>"
        )
    if not found:
        hint = ContextTooSmall(fit.needed, fit.context, possible=fit.possible).hint
        return f'<p class="quiet">{render.escape(hint)}</p>' if hint else ""
    return f'<div class="offers" role="group" aria-label="Shortcuts"><p class="quiet">Or:</p>{"".join(found)}</div>'
