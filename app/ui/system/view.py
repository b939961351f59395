"""The tab "System" as HTML: model and memory, exactness, machine, versions, location of data. Pure functions."""

from collections.abc import Sequence

from app import formats
from app.runtime.events import LoadFailed, Loading, ModelState, Ready
from app.ui import render
from app.ui.charts import Bar, Segment, bars
from app.ui.system.facts import (
    Fact,
    Snapshot,
    Usage,
    data_facts,
    exactness,
    expected_facts,
    machine_facts,
    measured_facts,
    model_facts,
    ordered,
    part_of,
    seen,
)

OTHERS = '<a class="others" href="#models">Other models</a>'  # further down in the tab


def system(shot: Snapshot) -> str:
    """The tab."""
    cards = [
        *([_model_card(shot.state, shot.usage)] if isinstance(shot.state, Ready) else []),
        _card("Exactness and speculation", [*exactness(shot), *seen(shot)], wide=True),
        _card("Machine", machine_facts(shot)),
        *([_card("Measured here", measured)] if (measured := measured_facts(shot)) else []),
        *([_card("What to expect", expected_facts(shot.expected))] if shot.expected else []),
        _card("Versions", [Fact(name, version) for name, version in shot.versions.items()]),
        _card("Where data lies", data_facts(shot), wide=shot.expected is None),
    ]
    error = render.problem(shot.state.error) if isinstance(shot.state, LoadFailed) else ""
    return (
        f'<section class="system" aria-label="System">{_head(shot.state)}{error}'
        f'<div class="cards">{"".join(cards)}</div></section>'
    )


def _head(state: ModelState) -> str:
    tone, words = {
        Loading: ("running", "The model is being loaded"),
        LoadFailed: ("failed", "The model could not be loaded"),
        Ready: ("ready", "The model is loaded"),
    }[type(state)]
    return (
        f'<div class="strip-head {tone}"><span class="dot"></span>'
        f'<span class="status" role="status">{words}</span>{OTHERS}</div>'
    )


def _model_card(ready: Ready, usage: Usage | None) -> str:
    if ready.info.elsewhere:
        return _card("Model", model_facts(ready), wide=True)
    return memory_card(ready, usage)


def memory_card(ready: Ready, usage: Usage | None) -> str:
    """The plan's memory by purpose, with reasons."""
    plan = ready.info.plan
    segments = tuple(
        Segment(part_of(row.name).tone, row.name, row.size_bytes, formats.amount(row.size_bytes))
        for row in ordered(plan)
    )
    available = formats.amount(plan.available_bytes)
    data = [Bar("Planned", f"{formats.amount(plan.total_bytes)} of {available} that were free", segments)]
    if usage is not None and usage.used_bytes:
        used = Segment("other", "this process", usage.used_bytes, formats.amount(usage.used_bytes))
        most = f", at most {formats.amount(usage.peak_bytes)} so far" if usage.peak_bytes > usage.used_bytes else ""
        data.append(Bar("In use now", f"{formats.amount(usage.used_bytes)}{most}", (used,)))
    about = "planned for a full context, before anything is loaded; what was never written to is not taken"
    rows = "".join(
        f'<tr><th scope="row"><i class="key {part_of(row.name).tone}"></i>{render.escape(row.name)}</th>'
        f"<td>{formats.amount(row.size_bytes)}</td>"
        f"<td>{formats.percent(row.size_bytes / max(1, plan.total_bytes))}</td>"
        f'<td class="quiet">{part_of(row.name).purpose}</td></tr>'
        for row in ordered(plan)
    )
    table = f'<table class="parts" aria-label="Parts of the plan"><tbody>{rows}</tbody></table>'
    return (
        f'<section class="sheet wide memory" aria-label="Model and memory"><h3>Model and memory</h3>'
        f"{bars('Memory', about, data, table=False)}{table}{render.facts(model_facts(ready))}</section>"
    )


def _card(title: str, rows: Sequence[Fact], *, wide: bool = False) -> str:
    table, kind = render.facts(rows), "sheet wide" if wide else "sheet"
    return f'<section class="{kind}" aria-label="{title}"><h3>{title}</h3>{table}</section>'
