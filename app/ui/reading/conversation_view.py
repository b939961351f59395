"""The list of conversations as HTML, and the line that names the shown conversation's book.

Titles come from questions and are escaped; files are identified by id only.
"""

from datetime import UTC, datetime

from app import formats
from app.conversations.listing import Listing, Summary
from app.runtime.reopening import missing
from app.runtime.sessions import Session
from app.ui import render

MOST_SHOWN = 200  # the search finds the others
DAY = 86_400
SEARCH = (
    '<input id="conv-search" type="text" placeholder="Search" aria-label="Search conversations" autocomplete="off" '
    "data-keep>"
)


def conversation_list(
    listing: Listing, session: Session | None, *, search: str = "", when: datetime | None = None
) -> str:
    """The list, with the conversation of `session` marked."""
    time = when or datetime.now(UTC)
    current = session.dialogue.id if session and session.dialogue else ""
    deleted = session.deleted if session else None
    incognito = session is not None and session.incognito
    rows = "".join(_row(one, current, time, search) for one in listing.summaries[:MOST_SHOWN])
    if not rows:
        rows = (
            f'<li class="none">{"Nothing found." if search.strip() else "Your conversations will be listed here."}</li>'
        )
    left = len(listing.summaries) - MOST_SHOWN
    more = f'<p class="quiet">{formats.plural(left, "older one")}: search to find it.</p>' if left > 0 else ""
    notices = "".join(f'<p class="list-note" role="status">{render.escape(line)}</p>' for line in listing.notices)
    if deleted is not None:
        undo = '<button type="button" class="link" data-act="undelete">Undo</button>'
        notices += (
            f'<p class="list-note" role="status">Deleted {render.escape(deleted.title or "Untitled")}. {undo}</p>'
        )
    state = " incognito" if incognito else ""
    return (
        f'<details class="fold-part" data-keep open><summary>Conversations</summary>{SEARCH}'
        f'<section class="convs{state}" aria-label="Conversations">{_head(incognito)}{notices}'
        f"<ul>{rows}</ul>{more}</section></details>"
    )


def _head(incognito: bool) -> str:
    note = (
        '<p class="list-note">Incognito: nothing of this conversation is written to disk, '
        "and it is gone when you leave it.</p>"
        if incognito
        else ""
    )
    pressed = "true" if incognito else "false"
    title = "Leave the incognito conversation for good" if incognito else "Talk without anything being written to disk"
    return (
        '<div class="convs-head">'
        '<button type="button" data-act="new" title="Begin a new conversation (Alt+N)">New</button>'
        f'<button type="button" data-act="incognito" aria-pressed="{pressed}" title="{title}">Incognito</button>'
        f"</div>{note}"
    )


def _row(one: Summary, current: str, time: datetime, search: str = "") -> str:
    title = render.escape(one.title) or "Untitled"
    found = one.excerpt(search)
    hit = f"<q>{_marked(*found)}</q>" if found else ""
    mark = ' class="current" aria-current="true"' if one.id == current else ""
    about = f"{ago(one.changed, time)} · {render.escape(one.book)}"
    return (
        f'<li{mark} id="conversation-{one.id}">'
        f'<button type="button" class="open" data-act="open-conversation:{one.id}" title="{title}"><b>{title}</b>'
        f"<small>{about}</small>{hit}</button>"
        f'<details data-keep><summary aria-label="More about {title}" title="More">⋯</summary><div class="menu">'
        f'<button type="button" data-rename="{one.id}">Rename</button>'
        f'<button type="button" data-save="markdown:{one.id}">Export Markdown</button>'
        f'<button type="button" data-save="json:{one.id}">Export JSON</button>'
        f'<button type="button" data-act="delete-conversation:{one.id}" class="danger">Delete</button>'
        "</div></details></li>"
    )


def _marked(before: str, hit: str, after: str) -> str:
    return f"{render.escape(before)}<mark>{render.escape(hit)}</mark>{render.escape(after)}"


def ago(changed: str, time: datetime) -> str:
    """The time since a change, in words."""
    try:
        then = datetime.fromisoformat(changed)
    except ValueError:
        return "some time ago"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = (time - then).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < DAY:
        return f"{int(seconds // 3600)} h ago"
    if seconds < 7 * DAY:
        return formats.plural(int(seconds // DAY), "day") + " ago"
    try:
        return f"{then.astimezone():%d %b %Y}"
    except (OverflowError, ValueError, OSError):  # outside the range of dates
        return "some time ago"


def book_notice(session: Session | None) -> str:
    """Names the book of the shown conversation if another one, or none, is open, and opens it where it can be found."""
    if session is None or session.dialogue is None or session.fits:
        return ""
    book, there = session.dialogue.book, {one.document.name for one in session.uploads.library.books}
    gone = missing(book, session.kept)
    files = ", ".join(render.escape(name) for name in book.files)
    offer = way = ""
    if any(one.name in book.names for one in session.uploads.pending if one.stage != "failed"):
        way = "It is being opened."
    elif not gone:
        offer = '<button type="button" data-act="reopen">Open it again</button>'
    elif there and there >= set(book.names):
        way = "The library has its books, but not in the same parts or order: restore them (Library) to go on."
    else:
        was, them = ("was", "it") if len(gone) == 1 else ("were", "them")
        way = f"{', '.join(map(render.escape, gone))} {was} not kept: drop {them} to go on."
    return (
        '<div class="about-book" role="status"><span>This conversation is about '
        f"<b>{render.escape(book.title)}</b> ({files}). {way}</span>{offer}</div>"
    )


def editing_notice(session: Session | None) -> str:
    """Says that the question in the box will replace an earlier one."""
    if session is None or session.editing is None or session.dialogue is None:
        return ""
    path = [node.id for node in session.dialogue.path]
    number = f" {path.index(session.editing) + 1}" if session.editing in path else ""
    return (
        f'<div class="editing" role="status"><span>Changing question{number}: the conversation so far stays as '
        'a branch.</span><button type="button" data-act="stop-editing">Cancel</button></div>'
    )
