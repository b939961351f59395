"""A race as the JSON of the command line."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from app.runtime.answer_json import answer_report, engine_report, equality_report, prefill_report, rounded
from app.runtime.trace import Judgement, Race, lead
from app.runtime.versions import versions

if TYPE_CHECKING:
    from core.engine_info import EngineInfo
    from core.planning.hardware import Machine

WORST_LAST = ("identical", "near_tie", "mismatch")


def race_report(race: Race, info: "EngineInfo", machine: "Machine") -> dict[str, Any]:
    """The document of `race --json`, with question, book, settings, machine and versions."""
    finished = {lane.method: lane.finished for lane in race.lanes if lane.finished is not None}
    config, plain, contender = race.configs[0], race.plain, race.contender
    speedup = lead(contender, plain).speedup if plain and contender and contender.exact else None
    return {
        **engine_report(info),
        **(prefill_report(next(iter(finished.values()))) if finished else {}),
        "methods": {name: answer_report(answer) for name, answer in finished.items()},
        "speedup": rounded(speedup, 3),
        "equality": equality_report(worst(tuple(race.judgements.values()))),
        "equality_by_method": {
            name: {**equality_report(found), "tokens_compared": found.num_compared, "whole": found.whole}
            for name, found in race.judgements.items()
        },
        "question": race.question,
        "book": race.book,
        "book_tokens": race.num_book,
        "begun": race.begun.isoformat(timespec="seconds"),
        "settings": {
            "max_new_tokens": None if race.seconds else config.max_new_tokens,
            "seconds": race.seconds,
            "temperature": config.sampling.temperature,
            "top_p": config.sampling.top_p,
            "seed": config.seed,
        },
        "hardware": asdict(machine),
        "versions": versions(),
    }


def worst(found: Sequence[Judgement]) -> Judgement | None:
    """The judgement that decides the verdict."""
    return max(found, key=lambda judgement: WORST_LAST.index(judgement.verdict), default=None)
