"""The system as plain text for bug reports: no text of books, questions or file names; home appears as ~."""

from collections.abc import Sequence

from app import formats
from app.conversations.exchange import Exchange
from app.runtime.error_text import problem_and_hint
from app.runtime.events import LoadFailed, Loading, ModelState, Ready
from app.runtime.trace import Race
from app.ui.race.view import verdict_line
from app.ui.system.facts import (
    Fact,
    Snapshot,
    amount_of,
    exactness,
    expected_facts,
    machine_facts,
    measured_facts,
    model_facts,
    ordered,
    seen,
)
from core.decoding.stats import DecodeStats, LevelStats

LABEL_WIDTH = 18


def report(shot: Snapshot) -> str:
    """The report's text."""
    sections = [
        ("", [Fact("TriForce Reader", f"{shot.taken:%Y-%m-%d %H:%M}"), *_state_facts(shot.state)]),
        ("Model", model_facts(shot.state) if isinstance(shot.state, Ready) else []),
        ("Memory", _memory_facts(shot)),
        ("Exactness", [fact for fact in exactness(shot) if fact.name != "Last race"]),
        ("Machine", machine_facts(shot)),
        ("Versions", [Fact(name, version) for name, version in shot.versions.items()]),
        ("Data", [Fact("folder", "chosen by the user" if shot.folder_chosen else "the default"), *_saved_facts(shot)]),
        ("Speculation", seen(shot)),
        ("Measured", measured_facts(shot)),
        ("Expected", expected_facts(shot.expected) if shot.expected else []),
        ("Last answer", _answer_facts(shot.exchanges)),
        ("Last race", _race_facts(shot.race)),
    ]
    text = "\n\n".join(
        "\n".join([*([title] if title else []), *(_line(fact) for fact in facts)]) for title, facts in sections if facts
    )
    return formats.with_tilde(text, shot.home)


def _line(fact: Fact) -> str:
    note = f" ({fact.note})" if fact.note else ""
    return f"{fact.name + ':':<{LABEL_WIDTH}} {' '.join(f'{fact.value}{note}'.split())}"


def _state_facts(state: ModelState) -> list[Fact]:
    match state:
        case Loading():
            return [Fact("State", "the model is being loaded")]
        case LoadFailed(error=error):
            return [Fact("State", "the model could not be loaded"), Fact("Problem", *problem_and_hint(error))]
        case Ready():
            return [Fact("State", "ready")]


def _memory_facts(shot: Snapshot) -> list[Fact]:
    rows = []
    if isinstance(shot.state, Ready) and not shot.state.info.elsewhere:
        plan = shot.state.info.plan
        rows = [Fact(row.name.split(",")[0], formats.amount(row.size_bytes)) for row in ordered(plan)]
        rows.append(
            Fact("planned", f"{formats.amount(plan.total_bytes)} of {formats.amount(plan.available_bytes)} free")
        )
    if shot.usage is not None:
        rows.append(
            Fact("in use", formats.amount(shot.usage.used_bytes), f"peak {formats.amount(shot.usage.peak_bytes)}")
        )
    return rows


def _saved_facts(shot: Snapshot) -> list[Fact]:
    return [Fact(kept.name, amount_of(kept)) for kept in shot.kept]


def _answer_facts(exchanges: Sequence[Exchange]) -> list[Fact]:
    if not exchanges:
        return []
    finished = exchanges[-1].finished
    fresh = finished.prompt_tokens - finished.reused_tokens
    return [
        Fact("method", finished.method, finished.stop_reason),
        Fact("prompt", f"{finished.prompt_tokens:,} tokens, {fresh:,} read in {finished.prefill_seconds:.2f} s"),
        Fact("answer", _speed(finished.stats)),
    ]


def _race_facts(race: Race | None) -> list[Fact]:
    if race is None:
        return []
    lanes = [Fact(lane.method, _speed(lane.stats)) for lane in race.lanes]
    # Verdicts name methods and token numbers, never texts.
    found = [verdict_line(race, lane, running=not race.ended) for lane in race.lanes if lane is not race.plain]
    return [
        Fact("book", f"{race.num_book:,} tokens"),
        *lanes,
        *(Fact("verdict", title, text) for _, title, text in found),
    ]


def _speed(stats: DecodeStats) -> str:
    parts = [formats.plural(stats.new_tokens, "token"), f"{formats.figure(stats.ms_per_token)} ms per token"]
    levels: list[tuple[str, LevelStats | None]] = [("1", stats.level1), ("2", stats.level2)]
    parts += [
        f"level {name} accepted {formats.percent(level.acceptance)}" for name, level in levels if level is not None
    ]
    return ", ".join(parts)
