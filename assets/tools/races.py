"""`python launch.py races FILE --questions QUESTIONS.json`: which questions about a sample are worth a first race.

All exact lanes answer every question. It is verified if each of them wrote plain decoding's tokens and the text is what
the book says. What is kept beside the file are counts, which do not depend on how busy the machine is, and the name of
the method that took the least time over all questions: lanes take turns, so what else runs slows all of them alike.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from app.cli.parts import library_of
from app.cli.reading import generation_config, load_engine, open_conversation, print_json, read_documents
from app.cli.saved_books import open_text
from app.context.samples import RACES_SUFFIX
from app.runtime.options import engine_config
from app.runtime.race_job import judgements
from app.runtime.trace import Race, Trace
from core.config import GenerationConfig
from core.decoding.registry import EXACT_METHODS, METHODS, check_method
from core.engine import Engine
from core.errors import InvalidSetting
from core.generation.session import Conversation
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
    library = library_of(list(read_documents(args)), args)
    engine = load_engine(engine_config(args))
    usable = [name for name in EXACT_METHODS if engine.info.has_draft or not METHODS[name].needs_draft]
    names = tuple(dict.fromkeys(args.methods or usable))
    configs = tuple(generation_config(args, check_method(name).name) for name in names)
    conversation = open_conversation(engine, library.text)
    open_text(engine, conversation, rows[0]["question"], configs, args)
    raced, seconds = [], dict.fromkeys((config.method for config in configs), 0.0)
    for row in rows:
        race = race_of(engine, conversation, row, configs)
        raced.append(verified(race, row))
        for lane in race.lanes:
            seconds[lane.method] += lane.stats.decode_seconds
        print(f"{row['question']}: {raced[-1]}", file=sys.stderr, flush=True)
    told = {
        "book": file.name,
        "book_tokens": len(conversation.book_ids),
        "model": engine.info.model,
        "exact_for": engine.info.exact_for,
        "processor": this_machine().cpu,
        "date": date.today().isoformat(),
        "command": f"python launch.py races {file.name} --questions {args.questions.name}",
        "max_new_tokens": configs[0].max_new_tokens,
        "fastest": fastest(seconds),
        "questions": raced,
    }
    kept = file.with_name(file.name + RACES_SUFFIX)
    try:
        kept.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidSetting(
            f"{kept.name} cannot be written ({error.strerror}).", hint="Verify a copy of the file elsewhere."
        ) from error
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


def race_of(
    engine: Engine, conversation: Conversation, row: dict[str, str], configs: Sequence[GenerationConfig]
) -> Race:
    """One question, raced and compared."""
    question = row["question"].strip()
    prompt = conversation.ask(question).prompt_ids(engine.text, configs[0].thinking)
    race = Race(
        question=question,
        lanes=tuple(Trace(question, config.method) for config in configs),
        configs=tuple(replace(config) for config in configs),
        seconds=None,
        book="",
        num_book=len(conversation.book_ids),
        num_read_before=0,
    )
    with closing(engine.race(prompt, configs)) as events:
        for event in events:
            race.apply(event)
    race.judgements = judgements(race, prompt, engine) if race.plain else {}
    return race


def verified(race: Race, row: dict[str, str]) -> dict[str, Any]:
    """What is kept of a question."""
    found = race.judgements
    exact = [lane for lane in race.lanes if lane is not race.plain and lane.exact]
    return {
        "question": race.question,
        "identical": bool(exact) and all(found[one.method].verdict == "identical" for one in exact),
        "right": says_the_same(race.lanes[0].text, row["answer"]),
        "new_tokens": race.lanes[0].stats.new_tokens,
        "tokens_per_pass": {lane.method: round(lane.stats.tokens_per_full_pass or 0, 2) for lane in exact},
    }


def says_the_same(text: str, answer: str) -> bool:
    """A text is a known answer, or its beginning, white space apart; the last word may be cut."""
    ours, known = " ".join(text.split()), " ".join(answer.split())
    return bool(ours) and known.startswith(ours)
