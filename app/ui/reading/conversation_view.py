"""The list of conversations as HTML, and the line that names the shown conversation's book.

Titles come from questions and are escaped; files are identified by id only.
"""

from datetime import UTC, datetime

from app import formats
from app.conversations.listing import Listing, Summary
from app.runtime.error_text import without_paths
from app.runtime.reopening import missing
from app.runtime.sessions import Session
from app.ui import render

MOST_SHOWN = 200  # the search finds the others
DAY = 86_400
INCOGNITO = "Incognito: nothing of this conversation is written to disk, and it is gone when you leave it."
SEARCH = (
    '<input id="conv-search" type="text" placeholder="Search" aria-label="Search conversations" autocomplete="off" '
    'value="{}" data-keep>'
)


def conversation_list(listing: Listing, session: Session, when: datetime | None = None) -> str:
    """The list, as the session's search filters it, with its conversation marked."""
    time, search, deleted, incognito = when or datetime.now(UTC), session.search, session.deleted, session.incognito
    rows = "".join(_row(one, session.dialogue_id, time, search) for one in listing.summaries[:MOST_SHOWN])
    if not rows:
        none = "Nothing found." if search.strip() else "Your conversations will be listed here."
        rows = f'<li class="none">{none}</li>'
    left = len(listing.summaries) - MOST_SHOWN
    more = f'<p class="quiet">{formats.plural(left, "older one")}: search to find it.</p>' if left > 0 else ""
    told = [render.escape(without_paths(line)) for line in listing.notices]
    if deleted is not None:
        told.append(f"Deleted {render.escape(deleted.title or 'Untitled')}. {render.link('Undo', 'undelete')}")
    notices = "".join(render.status(line, "list-note") for line in told)
    state = ""
    new = render.button("New", "new", title="Begin a new conversation (Alt+N)")
    title = "Leave the incognito conversation for good" if incognito else "Talk without anything being written to disk"
    pressed = f'aria-pressed="{"true" if incognito else "false"}"'
    head = f'<div class="convs-head">{new}{render.button("Incognito", "incognito", title=title, also=pressed)}</div>'
    if incognito:
        state, head = " incognito", f'{head}<p class="list-note">{INCOGNITO}</p>'
    listed = f'<section class="convs{state}" aria-label="Conversations">{head}{notices}<ul>{rows}</ul>{more}</section>'
    return render.fold("Conversations", SEARCH.format(render.escape(search)) + listed, tone="fold-part", opened=True)


def _row(one: Summary, current: str, time: datetime, search: str) -> str:
    title, found = one.title or "Untitled", one.excerpt(search)
    hit = f"<q>{render.excerpt(found)}</q>" if found else ""
    mark = ' class="current" aria-current="true"' if one.id == current else ""
    about = f"{ago(one.changed, time)} · {render.escape(one.book)}"
    words = f"<b>{render.escape(title)}</b><small>{about}</small>{hit}"
    menu = (
        f'<input aria-label="Title" value="{render.escape(title)}" maxlength="200" autocomplete="off" '
        f'data-act-change="rename:{one.id}" data-keep>'
        + render.button("Export Markdown", also=f'data-save="markdown:{one.id}"')
        + render.button("Export JSON", also=f'data-save="json:{one.id}"')
        + render.button("Delete", f"delete-conversation:{one.id}", tone="danger")
    )
    return (
        f'<li{mark} id="conversation-{one.id}">'
        f"{render.button(words, f'open-conversation:{one.id}', tone='open', title=title)}"
        f'<details data-keep><summary aria-label="More about {render.escape(title)}" title="More">⋯</summary>'
        f'<div class="menu">{menu}</div></details></li>'
    )


def ago(changed: str, time: datetime) -> str:
    """The time since a change, in words."""
    try:
        then = datetime.fromisoformat(changed)
        seconds = int((time - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds())
        date = f"{then.astimezone():%d %b %Y}"
    except (OverflowError, ValueError, OSError):  # no date, or outside the range of dates
        return "some time ago"
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60} min ago"
    if seconds < DAY:
        return f"{seconds // 3600} h ago"
    return f"{formats.plural(seconds // DAY, 'day')} ago" if seconds < 7 * DAY else date


def book_notice(session: Session) -> str:
    """Names the book of the shown conversation if another one, or none, is open, and opens it where it can be found."""
    if session.dialogue is None or session.fits:
        return ""
    book, there = session.dialogue.book, {one.document.name for one in session.uploads.library.books}
    gone = missing(book, session.kept)
    files = ", ".join(render.escape(name) for name in book.files)
    offer = way = ""
    if any(one.name in book.names for one in session.uploads.pending if one.stage != "failed"):
        way = "It is being opened."
    elif not gone:
        offer = render.button("Open it again", "reopen")
    elif there and there >= set(book.names):
        way = "The library has its books, but not in the same parts or order: restore them (Library) to go on."
    else:
        was, them = ("was", "it") if len(gone) == 1 else ("were", "them")
        way = f"{', '.join(map(render.escape, gone))} {was} not kept: drop {them} to go on."
    return (
        '<div class="about-book" role="status"><span>This conversation is about '
        f"<b>{render.escape(book.title)}</b> ({files}). {way}</span>{offer}</div>"
    )


def editing_notice(session: Session) -> str:
    """Says that the question in the box will replace an earlier one."""
    if session.editing is None or session.dialogue is None:
        return ""
    path = [node.id for node in session.dialogue.path]
    number = f" {path.index(session.editing) + 1}" if session.editing in path else ""
    return (
        f'<div class="editing" role="status"><span>Changing question{number}: the conversation so far stays as '
        f"a branch.</span>{render.button('Cancel', 'stop-editing')}</div>"
    )
