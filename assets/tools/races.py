"""`python launch.py races FILE --questions QUESTIONS.json`: which questions about a sample are worth a first race.

All exact lanes answer every question. It is verified if each of them wrote plain decoding's tokens and the text is what
the book says. What is kept beside the file are counts, which do not depend on how busy the machine is, and the name of
the method that took the least time over all questions: lanes take turns, so what else runs slows all of them alike.
"""

import argparse
import json
import sys
import threading
from datetime import date
from pathlib import Path
from typing import Any

from app.cli.opening import opened
from app.cli.output import print_json
from app.cli.race import in_turns
from app.context.samples import RACES_SUFFIX
from app.runtime.trace import Race
from core.decoding.registry import EXACT_METHODS, METHODS, check_method
from core.errors import InvalidSetting
from core.planning.hardware import this_machine

NOISE = 0.05  # of a time: a smaller difference tells nothing
MOST = 4  # questions that are raced: those with the longest answers


def run(args: argparse.Namespace) -> int:
    """Race the questions about one file and keep the counts beside it. Returns 0.

    Raises:
        CoreError: file, questions, settings or memory.
    """
    if len(args.files) != 1 or args.chapters or args.pages:
        raise InvalidSetting(
            "Questions are verified about one whole file, on this machine.", hint="Name one file alone."
        )
    file = Path(args.files[0])
    rows = questions_about(args.questions, file)
    for name in args.methods or ():
        check_method(name)
    with opened(args) as text:
        info, stop, raced = text.engine.info, threading.Event(), []
        usable = [name for name in EXACT_METHODS if info.has_draft or not METHODS[name].needs_draft]
        configs = text.lanes(tuple(dict.fromkeys(args.methods or usable)))
        text.read(rows[0]["question"], configs, stop)
        seconds = {config.method: 0.0 for config in configs}
        for row in rows:
            prompt = text.conversation.ask(row["question"]).prompt_ids(text.engine.text, args.thinking)
            race = in_turns(text, prompt, row["question"], configs, None, stop)
            raced.append(verified(race, row))
            for lane in race.lanes:
                seconds[lane.method] += lane.stats.decode_seconds
            print(f"{row['question']}: {raced[-1]}", file=sys.stderr, flush=True)
        book_tokens = len(text.conversation.book_ids)
    told = {
        "book": file.name,
        "book_tokens": book_tokens,
        "model": info.model,
        "exact_for": info.exact_for,
        "processor": this_machine().cpu,
        "date": date.today().isoformat(),
        "command": f"python launch.py races {file.name} --questions {args.questions.name}",
        "max_new_tokens": args.max_new_tokens,
        "fastest": fastest(seconds),
        "questions": raced,
    }
    kept = file.with_name(file.name + RACES_SUFFIX)
    try:
        kept.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        problem = f"{kept.name} cannot be written ({error.strerror})."
        raise InvalidSetting(problem, hint="Verify a copy of the file elsewhere.") from error
    if args.json:
        print_json(told)
    return 0


def fastest(seconds: dict[str, float]) -> str:
    """The method that took the least time; of those that took about as little, the first of the registry."""
    most = min(seconds.values()) * (1 + NOISE)
    return next(name for name in METHODS if seconds.get(name, most + 1) <= most)


def questions_about(questions: Path, file: Path) -> list[dict[str, str]]:
    """The rows about a file whose answers are known, those with the longest answers.

    Raises:
        InvalidSetting: there are none, or the file is not what `launch.py book` writes.
    """
    try:
        found = json.loads(questions.read_text(encoding="utf-8"))
        mine = [row for row in found if row.get("book", file.name) in (file.name, file.stem)]
        mine = [row for row in mine if row["question"].strip() and row["answer"].strip()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidSetting(
            f"{questions.name} holds no questions with answers.", hint="Name a file as `launch.py book` writes it."
        ) from error
    if not mine:
        raise InvalidSetting(f"{questions.name} asks nothing about {file.name}.", hint="Name its own questions.")
    return sorted(mine, key=lambda row: len(row["answer"]), reverse=True)[:MOST]


def verified(race: Race, row: dict[str, str]) -> dict[str, Any]:
    """What is kept of a question."""
    exact = {lane.method: lane for lane in race.lanes if lane is not race.plain and lane.exact}
    verdicts = {name: race.judgements[name].verdict for name in exact if name in race.judgements}
    return {
        "question": race.question,
        "identical": bool(exact) and all(verdicts.get(name) == "identical" for name in exact),
        "right": says_the_same(race.lanes[0].text, row["answer"]),
        "new_tokens": race.lanes[0].stats.new_tokens,
        "tokens_per_pass": {name: round(lane.stats.tokens_per_full_pass or 0, 2) for name, lane in exact.items()},
    }


def says_the_same(text: str, answer: str) -> bool:
    """A text is a known answer, or its beginning, white space apart; the last word may be cut."""
    ours, known = " ".join(text.split()), " ".join(answer.split())
    return bool(ours) and known.startswith(ours)
