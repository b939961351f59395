"""The card above the chat that offers a full model: for a book that the bundled one was not made for, or an idle GPU.
While the smallest real model runs, it offers a larger one.

It is the one place that warns of such a book, whether a model can be offered or not.

Its first button is the quickest way to a real answer: the smallest real model, which needs no hub. The second is the
model that suits this machine best. Both fetch a model and change to it; open books are then read again by it.
Nothing is asked of the network before that.
"""

from collections.abc import Callable, Sequence

from huggingface_hub import constants

from app import formats
from app.context.domain_check import FULL_MODELS
from app.runtime.events import Loading, Ready
from app.runtime.model_folders import ModelFolders
from app.runtime.sessions import Session
from app.ui import render
from app.ui.acts import Act, UnknownAct, Values
from app.ui.models import view
from app.ui.models.rows import ModelRow, ModelSource, config_of, model_rows
from app.ui.site import Site
from core.errors import CoreError, UnknownModel
from core.models.hub.catalog import entries

OFFLINE = "This program is offline, so nothing can be fetched. Bring a folder: python launch.py --model FOLDER"
NOT_NOW = render.link("Not now", also='data-decline=""')  # which this browser remembers
OTHERS = render.link("Other models", also='data-tab="System"')

NOTHING_FITS = (
    '<div class="offered" data-offer="none"><p>No known full model fits into the memory that is free here.</p>'
    f'<div class="acts">{OTHERS}{NOT_NOW}</div></div>'
)


def html(site: Site, session: Session) -> str:
    """The card; empty if nothing is to be offered, and nothing goes on."""
    state, source, now = site.worker.state, site.source, site.downloads.now
    if source is None or source.unavailable:
        return _card(_warning(session))
    is_fetching = isinstance(state, Ready) and now is not None and not now.ended
    if is_fetching or (isinstance(state, Loading) and state.model):
        return _card(view.doing(state, now))
    if not isinstance(state, Ready):
        return ""
    ended = "" if now is not None and now.stage == "done" else view.doing(state, now)  # above the offer
    is_small = _is_small(state)
    why = _why(session, state) if state.info.limits or is_small else ""
    if not why:
        return _card(ended + (_warning(session) if state.info.limits else ""))
    words = sum(book.num_words for book in session.book.library.books) if session.book else 0
    rows = model_rows(state, source)
    row, small = (
        best([row for row in rows if row.needs_hub is hub], int(FULL_MODELS * words)) for hub in (True, False)
    )
    if is_small:
        return _card(ended + (_offer(why, row, None) if row else ""))
    offered = _offer(why, row, small) if row else _offer(why, small, None) if small else NOTHING_FITS
    return _card(ended + _warning(session) + offered)


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
        told += "; it is small and often wrong"
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


# -------------------- acts on models


def _source(site: Site) -> ModelSource:
    if site.source is None or site.source.unavailable:
        raise UnknownAct
    return site.source


def _folders(site: Site) -> ModelFolders:
    """The models that were brought by their paths."""
    if (folders := _source(site).folders) is None:
        raise UnknownAct
    return folders


def bring(site: Site, _session: Session, typed: str, _values: Values) -> None:
    """Add a model by its path, if it can be used."""
    _folders(site).bring(typed)


def get(site: Site, _session: Session, name: str, _values: Values, then: Callable[[], None] = lambda: None) -> None:
    """Download a model."""
    _source(site)
    site.downloads.start(name, then)


def fetch(site: Site, session: Session, name: str, values: Values) -> None:
    """Download a model, and change to it when it is here."""

    def then() -> None:
        try:
            change(site, name)
        except CoreError as error:
            session.problem = error
            session.changed()

    get(site, session, name, values, then)


def use(site: Site, session: Session, name: str, _values: Values) -> None:
    """Load a model in place of the present one."""
    change(site, name)
    site.downloads.dismiss()


def change(site: Site, name: str) -> None:
    """Change to a model that is here. Raises CoreError."""
    source = _source(site)
    row = next((row for row in model_rows(site.worker.state, source) if row.name == name and row.is_here), None)
    if row is None:
        raise UnknownModel(f"{name} is not on this disk.", hint="Download it first.")
    if not row.in_use:
        site.worker.jobs.switch(source.load(config_of(row, source)), name)


def dismiss(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """The reader has seen how the last act ended."""
    site.downloads.dismiss()
    site.worker.jobs.forget_refusal()


ACTS: dict[str, Act] = {
    "model-get": get,
    "model-use": use,
    "model-forget": lambda site, _, name, __: _folders(site).forget(name),
    "model-stop": lambda site, *_: site.downloads.stop(),
    "model-halt": lambda site, *_: site.worker.jobs.halt(),
    "model-dismiss": dismiss,
    "bring": bring,
    "offer-get": fetch,
}
