"""The card above the chat that offers a full model: for a book that the bundled one was not made for, or an idle GPU.
While the smallest real model runs, it offers a larger one.

It is the one place that warns of such a book, whether a model can be offered or not.

Its first button is the quickest way to a real answer: the smallest real model, which needs no hub. The second is the
model that suits this machine best. Both fetch a model and change to it; open books are then read again by it.
Nothing is asked of the network before that.
"""

from collections.abc import Sequence

from huggingface_hub import constants

from app import formats
from app.context.domain_check import FULL_MODELS
from app.runtime.downloads import Downloads
from app.runtime.events import Loading, Ready
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui import render
from app.ui.models import view
from app.ui.models.rows import ModelRow, ModelSource, config_of, model_rows
from core.errors import CoreError, UnknownModel
from core.models.hub.catalog import entries

OFFLINE = "This program is offline, so nothing can be fetched. Bring a folder: python launch.py --model FOLDER"
SMALL = "; it is small and often wrong"
NOT_NOW = render.link("Not now", also='data-decline=""')  # which this browser remembers
OTHERS = render.link("Other models", also='data-tab="System"')

NOTHING_FITS = (
    '<div class="offered" data-offer="none"><p>No known full model fits into the memory that is free here.</p>'
    f'<div class="acts">{OTHERS}{NOT_NOW}</div></div>'
)


class ModelOffer:
    """What the card shows, and its acts. The model that its button wants is the program's, not a page's."""

    def __init__(self, worker: EngineWorker, source: ModelSource | None, downloads: Downloads) -> None:
        self._worker, self._source, self._downloads = worker, source, downloads
        self.wanted = ""  # the model whose download, loading or failure the card shows

    def html(self, session: Session) -> str:
        """The card; empty if nothing is to be offered."""
        state, source = self._worker.state, self._source
        if source is None or source.unavailable:
            return _card(_warning(session))
        if isinstance(state, Loading) and state.model and state.model == self.wanted:
            return _card(view.loading(state))
        if not isinstance(state, Ready) or not (state.info.limits or _is_small(state)):
            return ""
        now = self._downloads.now
        refused = view.not_loaded(state.refused) if state.refused and self.wanted else ""
        if now is not None and now.name == self.wanted and now.stage != "done":
            if now.stage != "failed":
                return _card(view.download(now))
            refused = view.download(now)  # above the offer: another model may be had
        why = _why(session, state)
        if not why:
            return _card(refused + _warning(session))
        words = sum(book.num_words for book in session.book.library.books) if session.book else 0
        rows = model_rows(state, source)
        if _is_small(state):
            larger = best([row for row in rows if row.needs_hub], int(FULL_MODELS * words))
            return _card(refused + (_offer(why, larger, None) if larger else ""))
        row, small = (
            best([row for row in rows if row.needs_hub is hub], int(FULL_MODELS * words)) for hub in (True, False)
        )
        if row is None:
            row, small = small, None
        return _card(refused + _warning(session) + (_offer(why, row, small) if row else NOTHING_FITS))

    def get(self, session: Session, name: str) -> None:
        """Download a model, and change to it when it is here. Raises CoreError."""

        def then() -> None:
            try:
                self.use(name)
            except CoreError as error:
                session.problem = error
                session.changed()

        self._downloads.start(name, then)
        self.wanted = name

    def use(self, name: str) -> None:
        """Change to a model that is here. Raises CoreError."""
        assert self._source is not None, "no models to choose from"
        rows = model_rows(self._worker.state, self._source)
        row = next((row for row in rows if row.name == name and row.is_here), None)
        if row is None:
            raise UnknownModel(f"{name} is not on this disk.", hint="Download it first.")
        self.wanted = name
        if not row.in_use:
            self._worker.switch(self._source.load(config_of(row, self._source)), name)

    def dismiss(self) -> None:
        """The reader has seen how it ended."""
        self.wanted = ""


def best(rows: Sequence[ModelRow], needed: int = 0) -> ModelRow | None:
    """The largest full model that is quick enough on this machine, else the quickest; None: none fits.

    Models whose context here holds `needed` tokens come first, then those that the hub hands out at once before those
    whose licence must be accepted there, then of the quick ones those in the form that suits the machine.
    """
    fitting = [row for row in rows if not row.is_bundled and row.speeds is not None]
    fitting = [row for row in fitting if row.fit and row.fit.context >= needed] or fitting
    open_ones = [row for row in fitting if row.is_here or not row.gated]
    fitting = open_ones or fitting
    usable = [row for row in fitting if row.speeds and row.speeds.is_usable]
    usable = [row for row in usable if row.is_suited] or usable
    if usable:
        return max(usable, key=lambda row: (min(row.fit.context, 1 << 16) if row.fit else 0, row.size_bytes))
    return max(fitting, key=lambda row: row.speeds.triforce if row.speeds else 0.0, default=None)


def _is_small(ready: Ready) -> bool:
    """Whether the model in use is the smallest real one, which answers but is often wrong."""
    row = entries().get(ready.info.model)
    return row is not None and not row.needs_hub


def _why(session: Session, ready: Ready) -> str:
    """The beginning of the sentence that offers a full model; empty: none is offered."""
    if _is_small(ready):
        return f"{ready.info.model} is small and often wrong. Of the larger models," if session.book else ""
    if _warning(session):
        return "The full model"
    if ready.info.plan.device.value == "cuda" and ready.machine.gpus:
        return f"For your own books on the {ready.machine.gpus[0].name} of this machine:"
    return ""


def _warning(session: Session) -> str:
    """What an open book asks of a model that was not made for it, in a line; empty: nothing."""
    book = session.book
    return f'<p class="reach">{render.escape(book.note)}</p>' if book and book.note else ""


def _offer(why: str, row: ModelRow, small: ModelRow | None) -> str:
    """The offer of a model, beside the smallest one where that is another and quicker to have."""
    name, fit = render.escape(row.title or row.name), row.fit
    assert fit is not None and fit.speeds is not None, "offered without a plan"
    facts = [f"{row.title or row.name}: {row.description}", f"{fit.context:,} tokens of context", row.licence]
    if not row.is_here:
        facts.insert(1, f"about {formats.disk_size(row.to_come_bytes)} to download")
    facts += [fit.speeds.in_words, fit.speeds.reason]
    listed = render.fold("Facts", render.items(filter(None, facts), "model-facts"))
    told, wanted = f"<b>{name}</b> suits this machine best", [row]
    if small is not None and not _is_whole(row) and (small.is_here or not constants.HF_HUB_OFFLINE):
        told = f"<b>{render.escape(small.name)}</b> answers soonest, often wrongly; {told}"
        wanted = [small, row]
    elif not row.needs_hub:
        told += SMALL
    buttons = "".join(_button(one, strong=one is wanted[0]) for one in wanted)
    return (
        f'<div class="offered" data-offer="{render.escape(row.name)}"><p>{render.escape(why)} {told}.</p>'
        f'{listed}<div class="acts">{buttons}{OTHERS}{NOT_NOW}</div></div>'
    )


def _button(row: ModelRow, *, strong: bool) -> str:
    """Fetches a model and reads with it, or reads with it at once; told what that takes."""
    shown = render.escape(row.title or row.name)
    takes, reads = "", row.speeds
    if reads is not None:
        time = formats.about(reads.reading_seconds).removeprefix("about ")
        takes = f"{formats.plural(reads.pages, 'page')} in {time}"
    if _is_whole(row):
        label, act = f"Read with {shown} ({takes})", "model-use"
    elif constants.HF_HUB_OFFLINE:
        return f'<p class="quiet">{OFFLINE}</p>'
    else:
        label, act = f"Download {shown} ({formats.disk_size(row.to_come_bytes)}, {takes})", "offer-get"
    return render.button(label, f"{act}:{row.name}", tone="act strong" if strong else "act")


def _is_whole(row: ModelRow) -> bool:
    """The model is on this disk, with its draft where it has one."""
    return row.is_here and not (row.to_come_bytes and row.draft and not row.draft_is_here)


def _card(body: str) -> str:
    return f'<section class="card model-offer" aria-label="A full model">{body}</section>' if body else ""
