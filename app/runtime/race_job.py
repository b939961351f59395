"""A race on the engine's thread: several methods answer one question about the book, and their texts are compared."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from app.runtime.answer_json import answer_report, engine_report, equality_report, prefill_report, rounded
from app.runtime.context_loader import recount
from app.runtime.events import Begun, Changed, Pause, WorkerEvent
from app.runtime.saved_books import SavedBooks
from app.runtime.sessions import NoBook, Session
from app.runtime.trace import Judgement, Race, Trace, lead
from app.runtime.versions import versions
from core.config import GenerationConfig
from core.decoding.registry import COMPARED, EXACT_METHODS, METHODS, PLAIN, default_method
from core.engine_api import TextEngine, local
from core.generation.events import PrefillProgress

if TYPE_CHECKING:  # importing it takes seconds: the engine's thread does it while the page is already served
    from core.engine import Engine
    from core.engine_info import EngineInfo

CUT_SHORT = {"time_up", "cancelled"}


def first_lanes(info: "EngineInfo", fastest: str = "") -> tuple[str, ...]:
    """The lanes of a race if none are chosen: plain decoding, TriForce, and the fastest exact method.

    Args:
        fastest: the one that was measured about the open book; "" or one that needs a missing draft: what the model of
            costs finds fastest.
    """
    usable = fastest in EXACT_METHODS and (info.has_draft or not METHODS[fastest].needs_draft)
    third = fastest if usable else info.usual_method
    compared = COMPARED if info.has_draft else (PLAIN, default_method(has_draft=False))
    return tuple(dict.fromkeys((*compared, third)))


def run_race(
    session: Session,
    question: str,
    configs: tuple[GenerationConfig, ...],
    seconds: float | None,
    saved_books: SavedBooks,
    engine: TextEngine,
    cancel: threading.Event,
) -> Iterator[WorkerEvent]:
    """Run the lanes, then compare the exact ones with plain decoding.

    Raises:
        NotPossibleHere: the model runs on a server. CoreError.
    """
    engine = local(engine)
    for _ in recount(session, engine, cancel):
        yield Pause()
    book, conversation = session.book, session.conversation
    if book is None or conversation is None:
        raise NoBook(too_long=session.uploads.too_long)
    wish = configs[0].thinking
    thinking = wish if wish in engine.info.thinking else None
    prompt = conversation.until(0).ask(question).prompt_ids(engine.text, thinking)
    end = len(conversation.opening_ids(engine.text, thinking)) - 1
    race = Race(
        question=question.strip(),
        lanes=tuple(Trace(question.strip(), config.method) for config in configs),
        configs=configs,
        seconds=seconds,
        book=book.title,
        num_book=book.num_tokens,
        num_read_before=session.num_read,
        info=engine.info,
    )
    session.race, session.inside = race, race.contender.method if race.contender else ""
    yield Begun(race)
    try:
        yield from saved_books.fetch(session, prompt, engine, cancel, max(one.max_new_tokens for one in configs))
        with closing(engine.race(prompt, configs, cancel, seconds=seconds, boundary=end)) as events:
            for event in events:
                race.apply(event)
                if isinstance(event.event, PrefillProgress):
                    session.num_read = max(session.num_read, min(event.event.kept_tokens, end + 1))
                    if cancel.is_set():
                        break  # nothing was written, so there is no race to show
                yield event
        if race.greedy and race.plain and race.plain.finished:
            race.judgements = judgements(race, prompt, engine)
    finally:
        race.ended = True
    yield Changed()


def judgements(race: Race, prompt: list[int], engine: "Engine") -> dict[str, Judgement]:
    """Compare every exact lane with plain decoding; where a lane was cut short, over the tokens both wrote."""
    plain, found = race.plain, {}
    assert plain is not None and plain.finished is not None, "nothing to compare with"
    for lane in race.lanes:
        if lane is plain or not lane.exact or lane.finished is None:
            continue
        a, b = plain.finished, lane.finished
        whole = not {a.stop_reason, b.stop_reason} & CUT_SHORT
        most = max(len(a.token_ids), len(b.token_ids)) if whole else min(len(a.token_ids), len(b.token_ids))
        ours, theirs = a.token_ids[:most], b.token_ids[:most]
        if most == 0:
            continue
        equality = engine.compare(prompt, ours, theirs)
        compared = min(len(ours), len(theirs)) if equality.index is None else equality.index + 1
        found[lane.method] = Judgement(equality.verdict, equality.index, equality.logit_gap, compared, whole)
    return found


# -------------------- as JSON


WORST_LAST = ("identical", "near_tie", "mismatch")


def race_report(race: Race) -> dict[str, Any]:
    """The document of `race --json`, with question, book, settings, machine and versions."""
    from core.planning.hardware import this_machine  # imports torch, as the engine has

    assert race.info is not None, "a race that no model ran"
    finished = {lane.method: lane.finished for lane in race.lanes if lane.finished is not None}
    config, plain, contender = race.configs[0], race.plain, race.contender
    speedup = lead(contender, plain).speedup if plain and contender and contender.exact else None
    return {
        **engine_report(race.info),
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
        "hardware": asdict(this_machine()),
        "versions": versions(),
    }


def worst(found: Sequence[Judgement]) -> Judgement | None:
    """The judgement that decides the verdict."""
    return max(found, key=lambda judgement: WORST_LAST.index(judgement.verdict), default=None)
