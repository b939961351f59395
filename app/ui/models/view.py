"""The list of models and the download, as HTML. Pure functions; names and descriptions are foreign text."""

from collections.abc import Sequence

from app import formats
from app.runtime.downloads import Fetch
from app.runtime.error_text import problem_and_hint, without_paths
from app.runtime.events import Loading, ModelState, Ready
from app.runtime.jobs import BEFORE
from app.ui import render
from app.ui.models.rows import Fit, ModelRow
from core.errors import CoreError

ABOUT = (
    "Nothing is asked of the network before you press Download. An open book is read again by another model; "
    "conversations stay."
)
WAITS = "Shown when the model is loaded."
CLOSE = render.dismiss("model-dismiss")


def section(told: str, rows: str = "") -> str:
    """The section with its title; `told`: a line of text, `rows`: what is below it."""
    line = f'<p class="quiet">{render.escape(told)}</p>'
    return f'<section class="sheet models" aria-label="Models"><h3>Models</h3>{line}{rows}</section>'


def models(rows: Sequence[ModelRow], *, fetching: str = "", loading: bool = False) -> str:
    """All rows; `fetching`: the name of the model being downloaded, `loading`: whether one is being loaded.

    Models that this machine cannot use are folded, except those that the reader brought.
    """
    others = [row for row in rows if not (row.fits or row.is_brought or row.in_use)]
    shown, hidden = (
        "".join(_row(row, fetching, loading) for row in part)
        for part in ([row for row in rows if row not in others], others)
    )
    summary = f"{formats.plural(len(others), 'more model')} that this machine cannot use, and why"
    more = render.fold(summary, f'<ul class="model-list">{hidden}</ul>', tone="unusable") if others else ""
    return section(ABOUT, f'<ul class="model-list">{shown}</ul>{more}')


def _row(row: ModelRow, fetching: str, loading: bool) -> str:
    mark = '<em class="in-use">in use</em>' if row.in_use else ""
    title = render.escape(row.title or row.name)
    fits, tone = (row.refused, "no") if row.refused else fit_line(row.fit)
    reason = row.speeds.reason if row.speeds else ""
    fit = f'<p class="fit {tone}" title="{render.escape(reason)}">{render.escape(fits)}</p>' if fits else ""
    return (
        f'<li class="model{" used" if row.in_use else ""}"><div class="about"><h4>{title}{mark}</h4>'
        f"<p>{render.escape(row.description)}</p>"
        f"{render.items(facts_of(row), 'model-facts')}{fit}</div>"
        f'<div class="acts">{_buttons(row, fetching, loading)}</div></li>'
    )


def facts_of(row: ModelRow) -> list[str]:
    """Context, location, draft, licence."""
    if row.refused:
        return []
    size = formats.disk_size(row.size_bytes)
    if row.is_bundled:
        where = f"comes with this project, {size}"
    elif row.is_here:
        where = f"on disk, {size}"
    else:
        where = f"{'begun, ' if row.has_parts else ''}about {size} to download"
    draft = "no draft model: lookup and retrieval draft"
    if row.draft:
        missing = row.to_come_bytes if row.is_here else row.to_come_bytes - row.size_bytes
        state = "on disk" if row.draft_is_here else f"about {formats.disk_size(missing)} to download"
        draft = f"draft {row.draft}" if row.is_bundled else f"draft {row.draft}, {state}"
    licence = f"{row.licence}, gated: accept it on the hub first" if row.gated else row.licence
    if row.is_bundled:
        licence = ""
    facts = (f"reads {row.context:,} tokens", where, draft if row.draft or row.licence else "", licence)
    return [fact for fact in facts if fact]


def fit_line(fit: Fit | None) -> tuple[str, str]:
    """Whether it fits this machine, in words, and the CSS class for the colour."""
    if fit is None:
        return "", ""
    if fit.weights_refused:
        return f"Does not fit this machine. {fit.weights_refused}", "no"
    speeds = f": {fit.speeds.in_words}" if fit.speeds else ""
    if fit.context_refused:
        return f"{fit.context_refused} It fits with {fit.context:,} tokens{speeds}.", "partly"
    wait = {
        "resident": "",
        "split": ", a part of the full cache in host memory",
        "offloaded": ", the full cache in host memory",
    }[fit.placement]
    return f"Fits this machine with {fit.context:,} tokens of context{wait}{speeds}.", "yes"


def _buttons(row: ModelRow, fetching: str, loading: bool) -> str:
    buttons, wait = [], "disabled" if loading else ""
    if row.to_come_bytes and row.fits:
        what = "Go on" if row.has_parts else "Download"
        if row.is_here:
            what = "Get its draft"
        busy = "disabled" if fetching else wait
        name = f"Downloading {row.name}" if fetching == row.name else f"{what}: {row.name}"
        shown = "Downloading…" if fetching == row.name else what
        buttons.append(render.button(shown, f"model-get:{row.name}", tone="act", name=name, also=busy))
    if row.is_here and not row.in_use and (row.fit is None or row.fit.context):
        shorter = row.fit is not None and row.fit.context_refused
        shown = f"Use with {formats.compact(row.fit.context)}" if row.fit and shorter else "Use"
        name = f"Use {row.title or row.name}"
        buttons.append(render.button(shown, f"model-use:{row.name}", tone="act strong", name=name, also=wait))
    if row.is_brought and not row.in_use:
        name = f"Take {row.title} off this list"
        buttons.append(render.button("Forget", f"model-forget:{row.name}", tone="act", name=name))
    return "".join(buttons)


# -------------------- progress


def doing(state: ModelState, now: Fetch | None) -> str:
    """What goes on with models, or how it ended, until it is dismissed."""
    if isinstance(state, Loading):
        return loading(state)
    if now is not None:
        return download(now)
    if isinstance(state, Ready) and state.refused is not None:
        return refused(state.refused, instead="The model before it is loaded again.")
    return ""


def loading(state: Loading) -> str:
    """A model is being loaded."""
    name = without_paths(state.model)
    what = f"Loading {render.escape(name)}. The one before is freed." if name else "The model is being loaded."
    far, bar = formats.loading(state.progress), render.bar(state.progress.share, f"Loading of {name or 'the model'}")
    body = f"<p>{what}{f' · {far}' if far else ''}</p>{bar if far else ''}"
    return _going_on(body, stop="" if state.model == BEFORE else "model-halt")


def told(text: str) -> str:
    """How something ended, until it is dismissed."""
    return f'<div class="going-on" role="status"><p>{render.escape(text)}</p>{CLOSE}</div>'


def refused(error: CoreError, *, instead: str = "") -> str:
    """Why an action was refused, or a model was not loaded; `instead`: what is in use."""
    text = render.escape(" ".join(filter(None, (problem_and_hint(error)[0], instead, problem_and_hint(error)[1]))))
    return f'<div class="problem" role="alert"><span>{text}</span>{CLOSE}</div>'


def download(fetch: Fetch) -> str:
    """The progress of a download, or how it ended."""
    name, got, total = render.escape(fetch.name), *map(formats.disk_size, (fetch.done_bytes, fetch.total_bytes))
    match fetch.stage:
        case "done":
            return told(f"{fetch.name} is on this disk.")
        case "failed" if fetch.error is not None:
            return refused(fetch.error)
        case "asking":
            return _going_on(f"<p>Asking for the size of {name}…</p>", stop="model-stop")
        case "stopped":
            kept = f"{got} of {total} are kept, and Go on fetches the rest." if fetch.done_bytes else "Nothing is kept."
            return told(f"{fetch.name}: cancelled. {kept}")
        case "stopping":
            return _going_on(f"<p>{name}: ending at {got} of {total}.</p>", stop="")
    rate, left, pace = fetch.bytes_per_second, fetch.total_bytes - fetch.done_bytes, ""
    if rate > 0:
        pace = f" · {formats.disk_size(int(rate))}/s" + (f" · {formats.duration(left / rate)} left" if left else "")
    bar = render.bar(fetch.done_bytes / max(fetch.total_bytes, 1), f"Download of {fetch.name}")
    return _going_on(f"<p>Downloading {name} · {got} of {total}{pace}</p>{bar}", stop="model-stop")


def _going_on(body: str, *, stop: str) -> str:
    cancel = render.button("Cancel", stop, tone="act") if stop else ""
    return f'<div class="going-on"><div>{body}</div>{cancel}</div>'
