"""The tab "Library": Find, the open documents with their order and parts, a page of one of them, and saved books."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from app import formats
from app.context.context_documents import Book, label
from app.context.find import MOST_CHARS, MOST_COUNTED, Hit, InBook, excerpt, find
from app.document_formats import EACH, SHORT
from app.documents.language import language_name
from app.documents.metadata import byline
from app.runtime.sessions import Session
from app.ui import render
from app.ui.acts import Act, Values
from app.ui.library.page_viewer import NO_PAGE, tool
from app.ui.pane import build_drop, pane, static, tab_heading
from app.ui.reading.book_view import extent, problems, recognition, state, undo, warnings
from app.ui.site import Part, Site, standing, standing_and
from core.errors import InvalidSetting

if TYPE_CHECKING:  # importing it loads torch
    from core.kv_store.folder import SavedBook

GIB = 1 << 30
CHOICES = [("Ask, with the size", "ask"), ("Always", "always"), ("Never", "never")]
ABOUT = "A saved book opens in seconds after a restart. Its text is then on this machine’s disk."
NOTHING_KEPT = "No saved books yet. A book that took long to read can be saved; it then opens in seconds."


def saved_books(site: Site, _session: Session) -> str:
    """The folded section. It is drawn from the folder every time: other programs use it too."""
    folder, body = site.worker.saved_books.folder, '<p class="quiet">This start keeps no books.</p>'
    if folder is not None:
        settings = folder.settings
        body = render.radios(
            "<legend>Save what was read</legend>",
            [(label, f'name="keeping" data-act-change="keeping:{value}"') for label, value in CHOICES],
            info=ABOUT,
            value=f'name="keeping" data-act-change="keeping:{settings.keeping}"',
        )
        field = f'min="0" step="any" value="{settings.cap_bytes / GIB:g}" data-act-change="saved-room" data-keep'
        body += render.number("Room, GiB", field, info="The books unused for longest go first.")
        body += saved_list(folder.books(), settings.cap_bytes, folder.notices)
    return (
        f'<details id="kept" class="fold-part" data-keep><summary role="button">Saved books</summary>{body}</details>'
    )


def saved_list(books: "Sequence[SavedBook]", cap_bytes: int, notices: Sequence[str]) -> str:
    """All books on disk with their sizes, each with a button to remove it."""
    total = sum(book.size_bytes for book in books)
    rows = "".join(
        f"<li><span><b>{render.escape(book.name)}</b><i>{book.label.num_tokens:,} tokens · "
        f"{formats.amount(book.size_bytes)} · used {formats.duration(max(0.0, time.time() - book.used))} ago</i></span>"
        f"{render.link('Remove', f'unkeep:{book.id}', name=f'Remove {book.name} from disk')}</li>"
        for book in books
    )
    told = "".join(render.status(render.escape(notice)) for notice in notices)
    body = f'<ul class="kept">{rows}</ul>' if rows else f'<p class="quiet">{NOTHING_KEPT}</p>'
    share = render.bar(total / cap_bytes if cap_bytes else 0.0, "Room taken on disk")
    head = f"{formats.amount(total) if total else 'Nothing'} of {formats.amount(cap_bytes)}"
    return f'<section class="card" aria-label="Saved books"><p>{head}</p>{share}{body}{told}</section>'


def remove(site: Site, _session: Session, book_id: str, _values: Values) -> None:
    """Delete a saved book."""
    if (folder := site.worker.saved_books.folder) is not None:
        for book in folder.books():
            if book.id == book_id:
                folder.remove(book)


def choose(site: Site, **changed: Any) -> None:
    """Change whether books are saved, or the size limit. Raises InvalidSetting."""
    if (folder := site.worker.saved_books.folder) is not None:
        folder.choose(replace(folder.settings, **changed))  # which checks it


def choose_room(site: Site, _session: Session, _detail: str, values: Values) -> None:
    """Set the size limit, in GiB. Raises InvalidSetting."""
    try:
        room = int(float(str(values["value"])) * GIB)
    except (ValueError, OverflowError) as error:
        raise InvalidSetting("The size limit is no number.", hint="Give it in GiB, for example 40.") from error
    choose(site, cap_bytes=room)


ACTS: dict[str, Act] = {
    "unkeep": remove,
    "keeping": lambda site, _, keeping, __: choose(site, keeping=keeping),
    "saved-room": choose_room,
}


EMPTY = f"""<section class="card empty-library"><h3>Nothing in the library yet</h3>
<p>Drop several files at once, or one after the other: {EACH}. They
are read in the order of the library, as one context. What is too long is never cut by itself: chapters and pages are
offered with what they cost.</p></section>"""
FORGETS = "Delete its recognised text from the data folder; the open book stays."


def incoming(session: Session) -> str:
    """What could not be opened, what is on its way, the newest removal, and the budget."""
    parts = [*problems(session), undo(session), *state(session)]
    return f'<section class="card">{"".join(parts)}</section>' if any(parts) else ""


def listing(session: Session) -> str:
    """The library: every document with its facts, warnings, position, and possible choices."""
    books = session.uploads.library.books
    if not books:
        return "" if session.uploads.pending else EMPTY
    rows = "".join(_row(session, index, book) for index, book in enumerate(books))
    order = ", read in this order" if len(books) > 1 else ""
    title = f"<h3>{formats.plural(len(books), 'document')}{order}</h3>"
    head = f"<header>{title}{render.link('Start over', 'start-over')}</header>"
    return f'<section class="card" aria-label="Open documents">{head}<ol>{rows}</ol></section>'


def _row(session: Session, index: int, book: Book) -> str:
    document, meter, last = book.document, session.uploads.meter, len(session.uploads.library.books) - 1
    title, key = document.title, book.key
    tokens = formats.plural(meter.book(book), "token") if meter else ""
    name = document.name if title != document.name else ""
    chapters = formats.plural(len(document.chapters), "chapter") if document.chapters else ""
    known = (byline(document.authors), name, SHORT[document.format], extent(book), chapters)
    facts = " · ".join(filter(None, (*known, language_name(document.language))))
    tools = (
        tool(f"up:{key}", f"Move {title} up", "↑", off=index == 0)
        + tool(f"down:{key}", f"Move {title} down", "↓", off=index == last)
        + tool(f"preview:{key}:1", f"Preview {title}", "Preview")
        + tool(f"remove:{key}", f"Remove {title}", "Remove")
    )
    forgets = render.link("Forget its recognised text on disk", f"forget-recognised:{key}", title=FORGETS)
    forget = f"<p>{forgets}</p>" if book.file and document.recognised_pages else ""
    cover = f'<img class="cover" src="{render.escape(document.cover)}" alt="">' if document.cover else ""
    return (
        f'<li class="document-row"><div class="document-head"><span class="number">{index + 1}</span>{cover}'
        f'<div><h4 dir="auto">{render.escape(title)}</h4><p class="quiet">{render.escape(facts)}</p>'
        f'<p class="costs"><b>{tokens}</b></p></div><div class="tools">{tools}</div></div>'
        f"{warnings(document.warnings, f'Warnings about {title}')}{recognition(session, book)}{forget}"
        f"{_choices(session, book)}</li>"
    )


def _choices(session: Session, book: Book) -> str:
    """What of a document is read, and a field to choose other parts."""
    uploads, document = session.uploads, book.document
    if uploads.fit is None:
        return ""
    example = f"{document.pages[0].label}-{document.pages[-1].label}"
    example += ", or chapters 1, 3" if len(document.chapters) > 2 else ""
    fits = "long" if uploads.too_long else "fits"
    body = (
        f'<form data-choose="{book.key}"><label>Pages or chapters '
        f'<input type="text" maxlength="200" placeholder="{render.escape(example)}" autocomplete="off"></label>'
        '<button type="submit">Read these</button></form>'
    )
    told = f"Read {render.escape(label(document, book.choice))}: choose pages or chapters"
    also = f' id="choices-{book.key}-{fits}"'
    return render.fold(told, body, tone="choices", opened=uploads.too_long, also=also)


STEP, MOST_HITS = 100, 1000  # hits shown at first and for each "more"; more of them are better narrowed down
FIELD = f"""<form class="card find" role="search" data-find="{STEP}"><div>
<input type="search" maxlength="{MOST_CHARS}" placeholder="Find in all open documents" aria-label="Find in all open
documents" aria-keyshortcuts="Control+Shift+F" autocomplete="off" spellcheck="false" dir="auto">
<button type="submit">Find</button></div><p>
<label title="Otherwise “cafe” finds “Café”, too"><input type="checkbox" name="exact">Case and accents</label>
<label title="Otherwise “light” finds “lighthouse”, too"><input type="checkbox" name="whole">Whole words</label>
</p></form>"""


def hits(session: Session) -> str:
    """The hits of the newest search in what is open now, grouped by document."""
    (words, most), books = session.finding, session.uploads.open_books
    if not words.text.strip():
        return ""
    if not books:
        return render.status("No document is open: drop one below.")
    results = find(words, books, most)
    total, shown = sum(one.total for one in results), sum(len(one.hits) for one in results)
    where = f" in {formats.plural(len(results), 'document')}" if len(books) > 1 and results else ""
    more_than = "More than " if any(one.total - len(one.hits) >= MOST_COUNTED for one in results) else ""
    places = "the open document" if len(books) == 1 else f"{len(books):,} open documents"
    said = f"{more_than}{formats.plural(total, 'hit')}{where}" if total else f"Nothing found in {places}."
    more = ""
    if shown < total:
        said += f", the first {shown:,} below"
        options = ",".join(name for name in ("exact", "whole") if getattr(words, name))
        more = render.link("Show more", f"find:{shown + STEP}:{options}:{words.text}")
        more = more if shown < MOST_HITS else '<p class="quiet">More words narrow the search down.</p>'
    groups = "".join(_group(one, named=len(books) > 1) for one in results)
    return f'<section class="card found" aria-label="Hits">{render.status(said)}{groups}{more}</section>'


def _group(one: InBook, *, named: bool) -> str:
    title = render.escape(one.book.document.title)
    head = f'<h4 dir="auto">{title} <small>{one.total:,}</small></h4>' if named else ""
    hits = "".join(f"<li>{_hit(one.book, hit)}</li>" for hit in one.hits)
    return f'{head}<ol aria-label="Hits in {title}">{hits}</ol>' if one.hits else head


def _hit(book: Book, hit: Hit) -> str:
    apart = "" if hit.chosen else " · not in the context"
    place = f"page {render.escape(hit.page.label)}, line {hit.line:,}{apart}"
    language = f' lang="{render.escape(book.document.language)}"' if book.document.language else ""
    around = render.excerpt(excerpt(book.document, hit))
    words = f'<small>{place}</small><span dir="auto"{language}>{around}</span>'
    return render.button(words, f"preview:{book.key}:{hit.page.number}:{hit.start}-{hit.end}", tone="hit")


FOUND = standing_and(lambda _, session: session.finding)
PARTS = (
    Part("found", lambda _, session: hits(session), FOUND, tab="library", aside=True),
    Part("incoming", lambda _, session: incoming(session), tab="library"),
    Part("library", lambda _, session: listing(session), standing, tab="library"),
    Part("preview", lambda _, session: session.leaves.get("library", NO_PAGE), tab="library"),
    Part("saved", saved_books, tab="library", rest=1.0),
)


def build_tab() -> None:
    """The tab's places."""
    with gr.Tab("Library", id="library", elem_id="library-tab"), gr.Row(elem_id="library"):
        tab_heading("Library")
        with gr.Column(elem_id="library-column", min_width=300, scale=1):
            static(FIELD, "find")
            pane("found", "found")
            build_drop("library-drop", "Add to the library", 72)
            pane("incoming", "library-incoming")
            pane("library", "library-list", EMPTY)
            pane("saved", "saved")
        with gr.Column(elem_id="library-page", min_width=300, scale=2):
            pane("preview", "library-preview", NO_PAGE)
