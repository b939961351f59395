"""`python launch.py ask FILE... -q TEXT`: one answer, streamed; or a file of questions with one reading of the text."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.answering import INTERRUPTED, answers, closing_lines, stoppable
from app.cli.opening import Opening, opened
from app.cli.output import print_json
from app.cli.reading import name_of
from core.config import seed_at
from core.engine_api import local
from core.errors import EmptyQuestion, InvalidSetting
from core.generation.events import Finished

if TYPE_CHECKING:
    from core.engine_info import EngineInfo


def run(args: argparse.Namespace) -> int:
    """Answer every question in a fresh conversation about the book. Returns 0, or 130 after Ctrl+C.

    Raises:
        CoreError: files, questions, settings or memory; raised before any long step where that is possible.
    """
    questions = [args.question] if args.question is not None else read_questions(args.questions, args.files)
    if not all(question.strip() for question in questions):
        raise EmptyQuestion
    many, done = len(questions) > 1, list[Finished]()
    with opened(args) as text, stoppable() as stop:
        from core.generation.decode_loop import Question  # already imported with the engine

        engine, config = text.engine, text.config()
        opening = text.read(questions[0], [config], stop)
        prompts = [text.conversation.ask(question).prompt_ids(engine.text, config.thinking) for question in questions]
        seeded = (replace(config, seed=seed_at(config.seed, at)) for at in range(len(prompts)))
        asked = [Question(prompt, own, stop) for prompt, own in zip(prompts, seeded, strict=True)]
        if many and not engine.info.elsewhere:
            number = local(engine).together(asked)
            told = f"{number.value} questions at a time" if number.value > 1 else "One question after the other"
            print(f"{told}: {number.because}.", file=sys.stderr)
        for finished in answers(engine, asked, questions if many else [""], shown=not args.json):
            done.append(opening.added_to(finished) if opening and not done else finished)
            if not args.json:
                print(f"\n{closing_lines(done[-1])}", file=sys.stderr, flush=True)
        if args.json:
            asked_of = questions if args.questions else ()
            print_json(document(engine.info, opening, asked_of, done, prompts if args.token_ids else ()))
        return INTERRUPTED if stop.is_set() else 0


def document(
    info: "EngineInfo",
    opening: Opening | None,
    questions: Sequence[str],
    answered: Sequence[Finished],
    prompts: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """The JSON of the answers to the questions of a file, or of one answer; with the tokens of prompts, if wanted."""
    from app.runtime.answer_json import answer_report, engine_report, prefill_report

    reports = [answer_report(finished) for finished in answered]
    for report, prompt in zip(reports, prompts, strict=False):
        report["prompt_token_ids"] = prompt
    told = {**engine_report(info), **prefill_report(answered[0]), **(opening.report() if opening else {})}
    if not questions:
        return told | {"methods": {answered[0].method: reports[0]}}
    rows = [
        {"question": question, "method": finished.method, **report, **prefill_report(finished)}
        for question, finished, report in zip(questions, answered, reports, strict=False)
    ]
    return told | {"answers": rows}


def read_questions(file: Path, books: list[Path]) -> list[str]:
    """The questions of a file, without those that name another book than the opened ones.

    Raises:
        InvalidSetting: no such file, or no list of questions in it.
    """
    names, problem = [name_of(book) for book in books], "has no question about these files"
    try:
        given = json.loads(file.read_bytes())
        rows = [row if isinstance(row, dict) else {"question": row} for row in given]
        found = [row["question"] for row in rows if row.get("book", names[0]) in names]
        if not isinstance(given, list) or not all(isinstance(question, str) for question in found):
            raise TypeError
        if found and "".join(found).encode():
            return found
    except OSError:
        problem = "cannot be read"
    except (ValueError, TypeError, KeyError, RecursionError):
        problem = "is no JSON list of questions"
    raise InvalidSetting(
        f"{file.name} {problem}.", hint='Write a JSON list like [{"question": "Who keeps the light?"}].'
    )
