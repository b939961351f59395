"""`python launch.py race FILE... -q TEXT`: several methods answer in fair turns after one reading, and are compared."""

import argparse
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from app.cli.answering import INTERRUPTED, NotWritten, answer, race_lines, stoppable
from app.cli.parts import library_of, naming_parts
from app.cli.reading import (
    check_folder,
    generation_config,
    load_engine,
    open_conversation,
    print_json,
    read_documents,
    usual_method,
)
from app.cli.saved_books import Opening, open_text
from app.cli.scoreboard import Scoreboard
from app.context.context_documents import Library, label
from app.runtime.answer_json import answer_report, engine_report, equality_report, prefill_report, rounded
from app.runtime.options import engine_config
from app.runtime.race_job import judgements, race_report
from app.runtime.trace import Race, Trace
from app.ui.race.card import card_html
from core.config import GenerationConfig
from core.decoding.registry import COMPARED, FASTEST, PLAIN, check_method, default_method
from core.engine import Engine
from core.engine_info import EngineInfo, Equality
from core.errors import EmptyQuestion, InvalidSetting
from core.generation.events import Finished, LaneEvent
from core.generation.session import Conversation
from core.generation.text import check_thinking
from core.planning.hardware import this_machine


def run(args: argparse.Namespace) -> int:
    """Run the race. Returns 0, or 130 after Ctrl+C.

    Raises:
        CoreError: files, question, settings or memory.
    """
    names = tuple(dict.fromkeys(args.methods or COMPARED))
    for name in names:
        check_method(name)
    configs = tuple(generation_config(args, name) for name in names)
    if not args.question.strip():
        raise EmptyQuestion
    check_report(args.report, sequential=args.sequential)
    check_folder(args)
    library = library_of(list(read_documents(args)), args)
    engine = load_engine(engine_config(args))
    if args.methods is None:
        configs = (configs[0], replace(configs[1], method=rival_of_plain(engine.info)))
    conversation = open_conversation(engine, library.text)
    check_thinking(args.thinking, engine.info.thinking)
    prompt = conversation.ask(args.question).prompt_ids(engine.text, args.thinking)
    race = None
    with naming_parts(engine, library), stoppable() as stop:
        opening = open_text(engine, conversation, args.question, configs, args, stop)
        if args.sequential:
            finished = {  # one complete answer after the other; the first one reads what is left of the text
                config.method: answer(engine, conversation, args.question, config, shown=False, stop=stop)
                for config in configs
            }
            finished[names[0]] = opening.added_to(finished[names[0]])
        else:
            race = in_turns(engine, conversation, prompt, args.question, configs, library, opening, stop)
            finished = {lane.method: lane.finished for lane in race.lanes if lane.finished is not None}
    if not args.json:
        for name, result in finished.items():
            thought = f"(Thought)\n{result.thought}\n\n" if result.thought else ""
            print(f"[{name}]\n{thought}{result.text}\n", flush=True)
    greedy = configs[0].sampling.greedy and not stop.is_set()  # lanes that were stopped end anywhere
    report = equality_report(equality_with_plain(engine, prompt, finished, greedy=greedy))
    speedup = speed_ratio(finished)
    if args.json:
        print_json(
            {
                **engine_report(engine.info),
                **prefill_report(next(iter(finished.values()))),
                **opening.report(),
                **({"prompt_token_ids": prompt} if args.token_ids else {}),
                "turns": "one after the other" if args.sequential else "fair turns",
                "methods": {name: answer_report(result) for name, result in finished.items()},
                "speedup": rounded(speedup, 3),
                "equality": report,
            }
        )
    else:
        print("\n".join(race_lines(finished, speedup, report["verdict"])), file=sys.stderr)
    if race is not None and args.report is not None and not stop.is_set():
        write_report(race, engine, prompt, args.report)
    return INTERRUPTED if stop.is_set() else 0


def rival_of_plain(info: EngineInfo) -> str:
    """The second lane, if none is named: TriForce as published where that is used, else the usual speculation."""
    method = usual_method(info)
    if method not in (PLAIN, FASTEST):
        return method
    return COMPARED[1] if info.has_draft else default_method(has_draft=False)


def in_turns(
    engine: Engine,
    conversation: Conversation,
    prompt: Sequence[int],
    question: str,
    configs: tuple[GenerationConfig, ...],
    library: Library,
    opening: Opening,
    stop: threading.Event,
) -> Race:
    """All lanes alternate: each computes for a quarter of a second at a time, and its clock runs only then."""
    race = Race(
        question=question.strip(),
        lanes=tuple(Trace(question.strip(), config.method) for config in configs),
        configs=configs,
        seconds=None,
        book=", ".join(
            book.document.title if book.is_whole else f"{book.document.title}, {label(book.document, book.choice)}"
            for book in library.books
        ),
        num_book=len(conversation.book_ids),
        num_read_before=0,
    )
    board = Scoreboard(sys.stderr, [config.method for config in configs], configs[0].max_new_tokens)
    for event in board.watch(engine.race(prompt, configs, stop)):
        own = event.event
        race.apply(LaneEvent(event.lane, opening.added_to(own)) if isinstance(own, Finished) else event)
    race.ended = True
    return race


# -------------------- comparison


def rivals(finished: Mapping[str, Finished]) -> tuple[Finished | None, list[Finished]]:
    """The answer of plain decoding, and those of the other exact methods."""
    return finished.get(PLAIN), [result for name, result in finished.items() if name != PLAIN and result.exact]


def speed_ratio(finished: Mapping[str, Finished]) -> float | None:
    """Plain decoding's milliseconds per token over those of the last exact method; None if one of them did not run."""
    plain, others = rivals(finished)
    a, b = (one.stats.ms_per_token if one else None for one in (plain, others[-1] if others else None))
    return a / b if a and b else None


def equality_with_plain(
    engine: Engine, prompt: list[int], finished: Mapping[str, Finished], *, greedy: bool
) -> Equality | None:
    """The worst verdict of the exact methods against plain decoding; None for sampled texts."""
    plain, others = rivals(finished)
    if not greedy or plain is None or not others:
        return None
    verdicts = [engine.compare(prompt, plain.token_ids, other.token_ids) for other in others]
    return max(verdicts, key=lambda equality: ("identical", "near_tie", "mismatch").index(equality.verdict))


# -------------------- the report


def check_report(file: Path | None, *, sequential: bool) -> None:
    """Check that the report can be written, before any long step.

    Raises:
        InvalidSetting: it cannot be written.
    """
    if file is None:
        return
    if sequential:
        raise InvalidSetting("A report is made of lanes in turns.", hint="Leave out --sequential.")
    if file.suffix.lower() not in (".html", ".htm"):
        raise InvalidSetting(f"The report {file.name} is a web page.", hint="Give it a name that ends in .html.")
    if not file.parent.is_dir():
        raise InvalidSetting(f"There is no folder {file.parent}.", hint="Make it, or choose another for --report.")


def write_report(race: Race, engine: Engine, prompt: list[int], file: Path) -> None:
    """The proof card of the race, and its figures as JSON beside it.

    Raises:
        InvalidSetting: they cannot be written.
    """
    if race.greedy and race.plain is not None and race.plain.finished is not None:
        race.judgements = judgements(race, prompt, engine)
    figures = file.with_suffix(".json")
    report = json.dumps(race_report(race, engine.info, this_machine()), ensure_ascii=False, indent=1)
    try:
        file.write_text(card_html(race, None), encoding="utf-8")
        figures.write_text(f"{report}\n", encoding="utf-8")
    except OSError as error:
        raise NotWritten(
            f"The report cannot be written ({error.strerror}).", hint="Choose another place for --report."
        ) from error
    print(f"Report: {file} and {figures}", file=sys.stderr)
