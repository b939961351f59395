"""`python launch.py book --seed N --tokens T -o F`: a generated book, and questions about it."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.cli.output import print_json
from app.runtime.options import engine_config
from assets.tools.books.files import check_free, write_together
from assets.tools.books.fitting import Fitted, fit_book
from assets.tools.books.formats import FORMATS, as_read
from assets.tools.books.questions import Row, choose_questions, to_json
from core.errors import InvalidSetting
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer, read_dims


def run(args: argparse.Namespace) -> int:
    """Write the book and its questions. Returns 0.

    Raises:
        CoreError: the model is unknown, it cannot read this length, or the files cannot be written.
    """
    path: Path = args.output
    questions_path = path.with_name(path.stem + ".questions.json")
    suffix = path.suffix.lower()
    check_free((path, questions_path), force=args.force)
    entry = find(engine_config(args).model)
    check_length(args.tokens, read_dims(entry.target).max_context, args.context)
    text = ChatText(load_tokenizer(entry.target), eos_ids=frozenset())
    fitted = fit_book(args.seed, args.tokens, lambda book: len(text.encode(as_read(book, suffix))))
    rows = choose_questions(fitted.book, path.name, args.seed)
    write_together({questions_path: to_json(rows), path: FORMATS[suffix](fitted.book)})
    told = report(entry.name, args.seed, path, questions_path, fitted, rows)
    if args.json:
        print_json(told)
    else:
        print("\n".join(lines(told)))
    return 0


def check_length(num_tokens: int, max_context: int, context: int | None) -> None:
    """Raises InvalidSetting for a book that is too long for the model or for the requested context."""
    capacity = max_context if context is None else min(context, max_context)
    if num_tokens > capacity:
        raise InvalidSetting(
            f"A book of {num_tokens:,} tokens does not fit: the context holds {capacity:,}.",
            hint=f"Ask for {capacity:,} or fewer with --tokens, and leave room for questions and answers.",
        )


def report(
    model: str, seed: int, path: Path, questions_path: Path, fitted: Fitted, rows: Sequence[Row]
) -> dict[str, Any]:
    """The JSON of book."""
    book = fitted.book
    return {
        "path": str(path),
        "questions_path": str(questions_path),
        "title": book.title,
        "model": model,
        "seed": seed,
        "tokens": fitted.num_tokens,
        "words": len(book.text.split()),
        "chapters": len(book.chapters),
        "questions": dict(Counter(row["kind"] for row in rows)),
    }


def lines(told: dict[str, Any]) -> list[str]:
    """The lines of `book` for people."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in told["questions"].items())
    return [
        f"{told['path']}: {told['title']}, {told['tokens']:,} tokens, {told['words']:,} words, "
        f"{told['chapters']} chapters",
        f"{told['questions_path']}: {sum(told['questions'].values())} questions ({kinds})",
    ]
