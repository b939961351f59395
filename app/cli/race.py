"""`python launch.py race FILE... -q TEXT`: several methods answer in fair turns after one reading, and are compared."""

import argparse
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.cli.answering import INTERRUPTED, NotWritten, percent, stoppable
from app.cli.opening import Opening, OpenText, opened, usual_method
from app.cli.output import ProgressLine, print_json
from app.context.context_documents import label
from app.runtime.race_job import judgements, race_report
from app.runtime.trace import Race, Trace
from app.ui.race.card import card_html
from core.config import GenerationConfig
from core.decoding.registry import COMPARED, FASTEST, PLAIN, check_method, default_method
from core.engine_api import local
from core.engine_info import EngineInfo
from core.errors import EmptyQuestion, InvalidSetting
from core.generation.events import Finished, LaneEvent, PrefillProgress


def run(args: argparse.Namespace) -> int:
    """Run the race. Returns 0, or 130 after Ctrl+C.

    Raises:
        CoreError: files, question, settings or memory.
    """
    for name in args.methods or ():
        check_method(name)
    if not args.question.strip():
        raise EmptyQuestion
    check_report(args.report)
    with opened(args) as text, stoppable() as stop:
        info = text.engine.info
        configs = text.lanes(tuple(dict.fromkeys(args.methods or (PLAIN, rival_of_plain(info)))))
        opening = text.read(args.question, configs, stop)
        prompt = text.conversation.ask(args.question).prompt_ids(text.engine.text, args.thinking)
        race = in_turns(text, prompt, args.question, configs, opening, stop)
        figures = race_report(race) | (opening.report() if opening else {})
        if args.json:
            print_json(figures | ({"prompt_token_ids": prompt} if args.token_ids else {}))
        else:
            for lane in race.lanes:
                thought = f"(Thought)\n{lane.thought}\n\n" if lane.thought else ""
                print(f"[{lane.method}]\n{thought}{lane.answer}\n", flush=True)
            print("\n".join(race_lines(race, figures)), file=sys.stderr)
        if args.report is not None and not stop.is_set():
            write_report(args.report, card_html(race, None), json.dumps(figures, ensure_ascii=False, indent=1))
        return INTERRUPTED if stop.is_set() else 0


def rival_of_plain(info: EngineInfo) -> str:
    """The second lane, if none is named: TriForce as published where that is used, else the usual speculation."""
    method = usual_method(info)
    if method not in (PLAIN, FASTEST):
        return method
    return COMPARED[1] if info.has_draft else default_method(has_draft=False)


def in_turns(
    text: OpenText,
    prompt: list[int],
    question: str,
    configs: Sequence[GenerationConfig],
    opening: Opening | None,
    stop: threading.Event,
) -> Race:
    """All lanes alternate: each computes for a quarter of a second at a time, and its clock runs only then.

    Exact lanes are compared with plain decoding, unless texts were sampled or stopped.
    """
    race = Race(
        question=question.strip(),
        lanes=tuple(Trace(question.strip(), config.method) for config in configs),
        configs=tuple(configs),
        seconds=None,
        book=", ".join(
            book.document.title if book.is_whole else f"{book.document.title}, {label(book.document, book.choice)}"
            for book in text.library.books
        ),
        num_book=len(text.conversation.book_ids),
        num_read_before=0,
        info=text.engine.info,
    )
    line, engine = ProgressLine(), local(text.engine)
    for event in engine.race(prompt, configs, stop):
        own = event.event
        if isinstance(own, PrefillProgress):
            line.show(own)
        elif isinstance(own, Finished) and opening:
            event = LaneEvent(event.lane, opening.added_to(own))
        race.apply(event)
        if event.lane is not None:
            written = [race.lanes[event.lane]] if isinstance(own, Finished) else race.lanes
            line.put(" · ".join(map(progress, written)), is_last=isinstance(own, Finished))
    line.close()
    race.ended = True
    if race.greedy and race.plain is not None and not stop.is_set():
        race.judgements = judgements(race, prompt, engine)
    return race


def progress(lane: Trace) -> str:
    """How far a lane is."""
    stats = lane.stats
    return f"{lane.method} {stats.new_tokens:,} tokens, {stats.tokens_per_second or 0:.1f} tokens/s"


def race_lines(race: Race, figures: Mapping[str, Any]) -> list[str]:
    """A race for people: one line a method, then the result."""
    lines = []
    for lane in race.lanes:
        stats = lane.stats
        line = f"{lane.method:<16}{stats.ms_per_token or 0:8.1f} ms/token {stats.tokens_per_second or 0:8.1f} tokens/s"
        line += f"   acceptance {percent(stats.level1)} / {percent(stats.level2)}" if stats.level2 else ""
        lines.append(line if lane.exact else f"{line}   not exact")
    if figures["speedup"] is not None:
        verdict = figures["equality"]["verdict"].replace("_", " ")
        lines.append(f"Speedup {figures['speedup']:.2f}x, texts: {verdict}")
    return lines


# -------------------- the report


def check_report(file: Path | None) -> None:
    """Check that the report can be written, before any long step. Raises InvalidSetting."""
    if file is None:
        return
    if file.suffix.lower() not in (".html", ".htm"):
        raise InvalidSetting(f"The report {file.name} is a web page.", hint="Give it a name that ends in .html.")
    if not file.parent.is_dir():
        raise InvalidSetting(f"There is no folder {file.parent}.", hint="Make it, or choose another for --report.")


def write_report(file: Path, page: str, figures: str) -> None:
    """The race as a proof card, and its figures as JSON beside it. Raises NotWritten."""
    beside = file.with_suffix(".json")
    try:
        file.write_text(page, encoding="utf-8")
        beside.write_text(figures + "\n", encoding="utf-8")
    except OSError as error:
        raise NotWritten(
            f"The report cannot be written ({error.strerror}).", hint="Choose another place for --report."
        ) from error
    print(f"Report: {file} and {beside}", file=sys.stderr)
