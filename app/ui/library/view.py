"""The tab "Library": files being uploaded, and the library with its choices."""

from app import formats
from app.context.context_documents import Book, label
from app.context.offers import Offer, offers
from app.document_formats import EACH, SHORT
from app.documents.document import Document
from app.documents.language import language_name
from app.documents.metadata import byline
from app.runtime.context_loader import room
from app.runtime.sessions import Session
from app.ui import render
from app.ui.library.page_viewer import tool
from app.ui.reading.book_view import extent, failure, offer_button, progress, undo
from app.ui.reading.budget_view import budget, fit_of
from app.ui.reading.recognition_view import offer_for_book

MOST_SHOWN = 60  # offers of one book; more can be typed
EMPTY = f"""<section class="card empty-library"><h3>Nothing in the library yet</h3>
<p>Drop several files at once, or one after the other: {EACH}. They
are read in the order of the library, as one context. What is too long is never cut by itself: chapters and pages are
offered with what they cost.</p></section>"""


def incoming(session: Session) -> str:
    """Uploads in progress or failed, and the budget."""
    uploads = session.uploads
    parts = [render.problem(uploads.error)] if uploads.error else []
    parts += [failure(one) if one.stage == "failed" else progress(one) for one in uploads.pending]
    if uploads.note:
        parts.append(f'<p class="quiet">{render.escape(uploads.note)}</p>')
    if taken := undo(session):
        parts.append(taken)
    if fit := fit_of(session):
        parts.append(budget(fit, uploads.library))
    return f'<section class="card incoming">{"".join(parts)}</section>' if parts else ""


def listing(session: Session) -> str:
    """The library: every document with its facts, warnings, position, and possible choices."""
    books = session.uploads.library.books
    if not books:
        return "" if session.uploads.pending else EMPTY
    rows = "".join(_row(session, index, book) for index, book in enumerate(books))
    start_over = render.link("Start over", "start-over")
    order = ", read in this order" if len(books) > 1 else ""
    head = f"<header><h3>{formats.plural(len(books), 'document')}{order}</h3>{start_over}</header>"
    return f'<section class="card library-card" aria-label="Open documents">{head}<ol>{rows}</ol></section>'


def _row(session: Session, index: int, book: Book) -> str:
    document, meter, last = book.document, session.uploads.meter, len(session.uploads.library.books) - 1
    title, key = render.escape(document.title), book.key
    tokens = formats.plural(meter.book(book), "token") if meter else ""
    name = document.name if document.title != document.name else ""
    authors, language = byline(document.authors), language_name(document.language)
    facts = " · ".join(filter(None, (authors, name, SHORT[document.format], extent(book), _chapters(book), language)))
    warned = "".join(f"<li>{render.escape(text)}</li>" for text in document.warnings)
    tools = (
        tool(f"up:{key}", f"Move {document.title} up", "↑", off=index == 0)
        + tool(f"down:{key}", f"Move {document.title} down", "↓", off=index == last)
        + tool(f"preview:{key}:1", f"Preview {document.title}", "Preview")
        + tool(f"remove:{key}", f"Remove {document.title}", "Remove")
    )
    return (
        f'<li class="document-row" data-row="{index}"><div class="document-head">{_number(index, key, last)}'
        f'{cover(document)}<div><h4 dir="auto">{title}</h4>'
        f'<p class="quiet">{render.escape(facts)}</p><p class="costs"><b>{tokens}</b>{_state(session, book)}</p></div>'
        f'<div class="tools">{tools}</div></div>'
        + (f'<ul class="warnings" aria-label="Warnings about {title}">{warned}</ul>' if warned else "")
        + _recognition(session, book)
        + _choices(session, index, book)
        + "</li>"
    )


def _number(index: int, key: str, last: int) -> str:
    """The place of a document; where there are others, the handle by which it is dragged to another place."""
    handle = f' draggable="true" data-drag="{key}" title="Drag to another place"' if last else ""
    return f'<span class="number"{handle}>{index + 1}</span>'


def _recognition(session: Session, book: Book) -> str:
    """The offer to recognise text on its pictures, or to forget what was recognised."""
    if any(one.replaces == book.key for one in session.uploads.pending if one.stage != "failed"):
        return ""
    forget = ""
    if book.file and book.document.recognised_pages:
        told = "Delete its recognised text from the data folder; the open book stays."
        act = f"forget-recognised:{book.key}"
        forget = f"<p>{render.link('Forget its recognised text on disk', act, title=told)}</p>"
    return offer_for_book(book, named=False) + forget


def cover(document: Document) -> str:
    """The small picture of a document; "" without one."""
    return f'<img class="cover" src="{render.escape(document.cover)}" alt="">' if document.cover else ""


def _chapters(book: Book) -> str:
    return formats.plural(len(book.document.chapters), "chapter") if book.document.chapters else ""


def _state(session: Session, book: Book) -> str:
    """Whether the model has read this document."""
    opened, uploads = session.book, session.uploads
    if uploads.too_long:
        return render.chip("waits for a choice", tone="warn", title="The library is longer than the context.")
    if uploads.behind or opened is None:
        return render.chip("ready", title="Its text is there; the model has not begun with it.")
    if session.displaced:
        return render.chip(
            "read, not in the model now", title="Another page’s book is; the next answer reads it again."
        )
    if session.is_read:
        return render.chip("read", tone="exact", title="All that is chosen of it is in the model’s context.")
    return render.chip("being read", tone="method")


def _choices(session: Session, index: int, book: Book) -> str:
    uploads, document = session.uploads, book.document
    fit, meter = uploads.fit, uploads.meter
    if fit is None or meter is None:
        return ""
    possible = offers(uploads.library, index, meter, room(fit))
    found = [one for one in possible if one.choice != book.choice]
    buttons = "".join(offer_button((book,), _at_first(one)) for one in found[:MOST_SHOWN])
    more = (
        f'<p class="quiet">and {len(found) - MOST_SHOWN:,} more: type their numbers</p>'
        if len(found) > MOST_SHOWN
        else ""
    )
    if not possible:
        more = '<p class="quiet">The other documents leave no room: choose less of them, or remove one.</p>'
        if len(uploads.library.books) == 1:
            more = '<p class="quiet">No chapter and no page fits alone: choose a model with a larger context.</p>'
    first, last = document.pages[0].label, document.pages[-1].label
    example = f"{first}-{last}" + (", or chapters 1, 3" if len(document.chapters) > 2 else "")
    return (
        f'<details class="choices" id="choices-{book.key}-{"long" if uploads.too_long else "fits"}" data-keep'
        f"{' open' if uploads.too_long else ''}>"
        f"<summary>Read {render.escape(label(document, book.choice))}: choose pages or chapters</summary>"
        f'<div class="offers">{buttons}</div>{more}'
        f'<form data-choose="{book.key}"><label>Pages or chapters '
        f'<input type="text" maxlength="200" placeholder="{render.escape(example)}" autocomplete="off"></label>'
        '<button type="submit">Read these</button></form></details>'
    )


def _at_first(offer: Offer) -> Offer:
    """The offer as if its book were alone in the library, so that the button has no title."""
    return Offer(
        book=0,
        choice=offer.choice,
        label=offer.label,
        num_tokens=offer.num_tokens,
        total_tokens=offer.total_tokens,
    )
