"""The books on disk, in the tab "Library": whether books are saved, their size limit, and their list."""

from dataclasses import replace
from typing import cast

from app.runtime.sessions import Session
from app.ui import render
from app.ui.acts import Act, Values
from app.ui.library.saved_view import SavedLine, saved_list
from app.ui.shown import shown_of
from app.ui.site import Site
from core.errors import CoreError, InvalidSetting
from core.kv_store.folder import SavingMode

GIB = 1 << 30
CHOICES = [("Ask, with the size", "ask"), ("Always", "always"), ("Never", "never")]
ABOUT = "A saved book opens in seconds after a restart. Its text is then on this machine’s disk."


def saved_books(site: Site, session: Session) -> str:
    """The folded section. It is drawn from the folder every time: other programs use it too."""
    folder = site.worker.saved_books.folder
    if folder is None:
        return _section('<p class="quiet">This start keeps no books.</p>')
    lines = [
        SavedLine(book.id, book.name, book.label.num_tokens, book.size_bytes, book.used, book.label.read_seconds)
        for book in folder.books()
    ]
    settings = folder.settings
    rows = "".join(
        f'<label><input type="radio" name="keeping" data-act-change="keeping:{value}"'
        f"{' checked' if value == settings.keeping else ''}><span>{label}</span></label>"
        for label, value in CHOICES
    )
    form = (
        f'<fieldset class="choice" id="keeping"><legend>Save what was read</legend><p class="info">{ABOUT}</p>'
        f'<div class="options">{rows}</div></fieldset><label class="choice" id="kept-room"><span>Room, GiB</span>'
        '<small class="info">The books unused for longest go first.</small><input type="number" min="0" step="any" '
        f'value="{settings.cap_bytes / GIB:g}" data-act-change="saved-room" data-keep></label>'
    )
    told = shown_of(session).told.get("saved", "")
    return _section(form + told + saved_list(lines, settings.cap_bytes, folder.notices))


def _section(body: str) -> str:
    return (
        f'<details id="kept" class="fold-part" data-keep><summary role="button">Saved books</summary>{body}</details>'
    )


def remove(site: Site, _session: Session, book_id: str, _values: Values) -> None:
    """Delete a saved book."""
    folder = site.worker.saved_books.folder
    for book in folder.books() if folder is not None else ():
        if book.id == book_id:
            folder.remove(book)  # type: ignore[union-attr]


def choose(site: Site, session: Session, keeping: str, values: Values) -> None:
    """Set whether books are saved, or their size limit."""
    folder, told = site.worker.saved_books.folder, shown_of(session).told
    told.pop("saved", None)
    if folder is None:
        return
    try:
        if keeping:
            folder.choose(replace(folder.settings, keeping=cast(SavingMode, keeping)))  # which checks it
        else:
            folder.choose(replace(folder.settings, cap_bytes=_bytes_of(str(values["value"]))))
    except CoreError as error:
        told["saved"] = render.problem(error)


def _bytes_of(typed: str) -> int:
    """GiB as bytes. Raises InvalidSetting."""
    try:
        return int(float(typed) * GIB)
    except (ValueError, OverflowError):
        raise InvalidSetting("The size limit is no number.", hint="Give it in GiB, for example 40.") from None


ACTS: dict[str, Act] = {
    "unkeep": remove,
    "keeping": choose,
    "saved-room": lambda site, session, _, values: choose(site, session, "", values),
}
