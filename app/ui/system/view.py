"""The tab "System" as HTML, and its facts as plain text for bug reports. Pure functions of a snapshot."""

from collections.abc import Sequence

from app import formats
from app.runtime.error_text import problem_and_hint
from app.runtime.events import LoadFailed, Loading, Ready
from app.ui import render
from app.ui.charts import Bar, Segment, bars
from app.ui.system.facts import (
    Fact,
    Snapshot,
    Usage,
    amount_of,
    data_facts,
    exactness,
    machine_facts,
    measured_facts,
    model_facts,
    ordered,
    part_of,
    seen,
)
from core.decoding.stats import DecodeStats

HEADS = {
    Loading: ("running", "The model is being loaded"),
    LoadFailed: ("failed", "The model could not be loaded"),
    Ready: ("ready", "The model is loaded"),
}
LABEL_WIDTH = 18  # of the report


def facts_by_card(shot: Snapshot) -> list[tuple[str, Sequence[Fact]]]:
    """The facts of the tab below the model's, by the titles of their cards."""
    return [
        ("Exactness and speculation", [*exactness(shot), *seen(shot)]),
        ("Machine", machine_facts(shot)),
        ("Measured here", measured_facts(shot)),
        ("Versions", [Fact(name, version) for name, version in shot.versions.items()]),
    ]


def system(shot: Snapshot) -> str:
    """The tab."""
    state, cards = shot.state, ""
    if isinstance(state, Ready):
        cards = _card("Model", model_facts(state)) if state.info.elsewhere else memory_card(state, shot.usage)
    cards += "".join(_card(title, rows) for title, rows in facts_by_card(shot) if rows)
    cards += _card("Where data lies", data_facts(shot))
    tone, words = HEADS[type(state)]
    error = render.problem(state.error) if isinstance(state, LoadFailed) else ""
    return (
        f'<section class="system" aria-label="System"><div class="strip-head {tone}"><span class="dot"></span>'
        f'<span class="status" role="status">{words}</span><a class="others" href="#models">Other models</a></div>'
        f'{error}<div class="cards">{cards}</div></section>'
    )


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


def _card(title: str, rows: Sequence[Fact]) -> str:
    kind = "sheet" if title in ("Machine", "Measured here", "Versions") else "sheet wide"
    return f'<section class="{kind}" aria-label="{title}"><h3>{title}</h3>{render.facts(rows)}</section>'


# -------------------- the report


def report(shot: Snapshot) -> str:
    """The same as text: no text of books, no questions, no names of files or folders; home appears as ~."""
    state = shot.state
    told = [Fact("TriForce Reader", f"{shot.taken:%Y-%m-%d %H:%M}"), Fact("State", HEADS[type(state)][1].lower())]
    if isinstance(state, LoadFailed):
        told.append(Fact("Problem", *problem_and_hint(state.error)))
    sections: list[tuple[str, Sequence[Fact]]] = [
        ("", told),
        ("Model", model_facts(state) if isinstance(state, Ready) else []),
        ("Memory", _memory_facts(shot)),
        *facts_by_card(shot),
        (
            "Data",
            [
                Fact("folder", "chosen by the user" if shot.folder_chosen else "the default"),
                *(Fact(kept.name, amount_of(kept)) for kept in shot.kept),
            ],
        ),
        ("Last answer", _answer_facts(shot)),
        ("Last race", [Fact(lane.method, _speed(lane.stats)) for lane in shot.race.lanes] if shot.race else []),
    ]
    texts = ("\n".join([title, *map(_line, facts)]).lstrip() for title, facts in sections if facts)
    return formats.with_tilde("\n\n".join(texts), shot.home)


def _line(fact: Fact) -> str:
    note = f" ({fact.note})" if fact.note else ""
    return f"{fact.name + ':':<{LABEL_WIDTH}} {' '.join(f'{fact.value}{note}'.split())}"


def _memory_facts(shot: Snapshot) -> list[Fact]:
    rows = []
    if isinstance(shot.state, Ready):
        plan = shot.state.info.plan
        rows = [Fact(row.name.split(",")[0], formats.amount(row.size_bytes)) for row in ordered(plan)]
        rows.append(
            Fact("planned", f"{formats.amount(plan.total_bytes)} of {formats.amount(plan.available_bytes)} free")
        )
    if shot.usage is not None:
        peak = f"peak {formats.amount(shot.usage.peak_bytes)}"
        rows.append(Fact("in use", formats.amount(shot.usage.used_bytes), peak))
    return rows


def _answer_facts(shot: Snapshot) -> list[Fact]:
    if not shot.exchanges:
        return []
    finished = shot.exchanges[-1].finished
    fresh = finished.prompt_tokens - finished.reused_tokens
    return [
        Fact("method", finished.method, finished.stop_reason),
        Fact("prompt", f"{finished.prompt_tokens:,} tokens, {fresh:,} read in {finished.prefill_seconds:.2f} s"),
        Fact("answer", _speed(finished.stats)),
    ]


def _speed(stats: DecodeStats) -> str:
    parts = [formats.plural(stats.new_tokens, "token"), f"{formats.figure(stats.ms_per_token)} ms per token"]
    levels = enumerate((stats.level1, stats.level2), 1)
    parts += [f"level {number} accepted {formats.percent(level.acceptance)}" for number, level in levels if level]
    return ", ".join(parts)
