"""`python launch.py ask FILE... -q TEXT`: one answer, streamed; or a file of questions with one reading of the text."""

import argparse
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.answering import INTERRUPTED, answer_in_order, stoppable
from app.cli.parts import naming_parts, opened
from app.cli.piped import name_of
from app.cli.reading import print_json
from app.runtime.answer_json import answer_report, engine_report, prefill_report
from core.config import GenerationConfig
from core.engine_api import local
from core.errors import CoreError, EmptyQuestion
from core.generation.events import Finished

if TYPE_CHECKING:
    from app.cli.saved_books import Opening
    from core.engine_api import TextEngine
    from core.generation.session import Conversation


class BadQuestions(CoreError):
    """The questions file is not what `--questions` reads."""

    wrong_usage = True

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(
            f"{file.name} {problem}.", hint='Write a JSON list like [{"question": "Who keeps the light?"}].'
        )


def run(args: argparse.Namespace) -> int:
    """Answer the question or questions. Returns 0, or 130 after Ctrl+C.

    Raises:
        CoreError: files, questions, settings or memory; raised before any long step where that is possible.
    """
    questions = [args.question] if args.question is not None else read_questions(args.questions, args.files)
    if not all(question.strip() for question in questions):
        raise EmptyQuestion
    with opened(args) as (engine, library, conversation, config), naming_parts(engine, library), stoppable() as stop:
        answer_all(args, engine, conversation, questions, config, stop)
        return INTERRUPTED if stop.is_set() else 0


def answer_all(
    args: argparse.Namespace,
    engine: "TextEngine",
    conversation: "Conversation",
    questions: list[str],
    config: GenerationConfig,
    stop: threading.Event,
) -> None:
    """Answer every question in a fresh conversation about the book, until `stop` is set."""
    from app.cli.saved_books import open_text
    from core.generation.decode_loop import Question  # already imported with the engine

    opening = None if engine.info.elsewhere else open_text(engine, conversation, questions[0], [config], args, stop)
    shown, many = not args.json, len(questions) > 1
    prompts = [conversation.ask(question).prompt_ids(engine.text, config.thinking) for question in questions]
    asked = [Question(prompt, replace(config, seed=args.seed + at), stop) for at, prompt in enumerate(prompts)]
    if many and not engine.info.elsewhere:
        number = local(engine).together(asked)
        told = f"{number.value} questions at a time" if number.value > 1 else "One question after the other"
        print(f"{told}: {number.because}.", file=sys.stderr)
    answers = answer_in_order(
        engine,
        asked,
        questions if many else [""],
        lambda at, one: opening.added_to(one) if opening and at == 0 else one,
        shown=shown,
    )
    if args.json:
        prompts = prompts[: len(answers)] if args.token_ids else []
        print_json(document(engine, questions, answers, opening, prompts, many=args.questions is not None))


def document(
    engine: "TextEngine",
    questions: list[str],
    answers: list[Finished],
    opening: "Opening | None",
    prompts: list[list[int]],
    *,
    many: bool,
) -> dict[str, Any]:
    """The JSON of one answer, or of many; with the tokens of their prompts, if they are wanted."""
    reports = [answer_report(finished) for finished in answers]
    for report, prompt in zip(reports, prompts, strict=bool(prompts)):
        report["prompt_token_ids"] = prompt
    head = {**engine_report(engine.info), **prefill_report(answers[0]), **(opening.report() if opening else {})}
    if not many:
        return {**head, "methods": {answers[0].method: reports[0]}}
    rows = [
        {"question": question, "method": finished.method, **report, **prefill_report(finished)}
        for question, finished, report in zip(questions, answers, reports, strict=False)
    ]
    return {**head, "answers": rows}


def read_questions(file: Path, books: list[Path]) -> list[str]:
    """The questions of a file, without those that name another book than the opened ones.

    Raises:
        BadQuestions: no such file, not JSON, or not a list of questions.
    """
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadQuestions(file, "cannot be read") from error
    except (ValueError, RecursionError) as error:
        raise BadQuestions(file, "is not JSON") from error
    if not isinstance(rows, list):
        raise BadQuestions(file, "is not a list")
    names = {name_of(book) for book in books}
    questions = []
    for row in rows:
        question = row.get("question") if isinstance(row, dict) else row
        if not isinstance(question, str):
            raise BadQuestions(file, "has an entry without a question")
        if not isinstance(row, dict) or row.get("book", next(iter(names))) in names:
            questions.append(question)
    if not questions:
        raise BadQuestions(file, "has no question about these files")
    return questions
