"""`python launch.py book --seed N --tokens T -o F`: a generated book, and questions about it."""

import argparse
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from app.cli.output import print_json
from app.runtime.options import engine_config
from assets.tools.books.formats import FORMATS, as_read
from assets.tools.books.generated import Book, write_book
from assets.tools.books.questions import choose_questions, to_json
from core.errors import InvalidSetting, NotPossibleHere
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer, read_dims

FEWEST_WORDS = 60  # minimum of write_book
FIRST_GUESS = 0.8  # words per token; the bundled tokenizer has 0.84, large ones have 0.75
MAX_TRIES = 6  # two or three are usual
TRIED_TOKENS = 20_000  # below, a paragraph changes the length by a larger share and counting is quick: more tries
SPREAD = 0.618  # of the golden section: no two tries have nearly the same target
CLOSE_TOKENS, CLOSE_SHARE = 40, 200  # close enough: within 40 tokens, or a two-hundredth, of the target


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
    capacity = min(args.context or args.tokens, read_dims(entry.target).max_context)
    if args.tokens > capacity:
        raise InvalidSetting(
            f"A book of {args.tokens:,} tokens does not fit: the context holds {capacity:,}.",
            hint=f"Ask for {capacity:,} or fewer with --tokens, and leave room for questions and answers.",
        )
    text = ChatText(load_tokenizer(entry.target), eos_ids=frozenset())
    book, num_tokens = fit_book(args.seed, args.tokens, lambda book: len(text.encode(as_read(book, suffix))))
    rows = choose_questions(book, path.name, args.seed)
    write_together({questions_path: to_json(rows), path: FORMATS[suffix](book)})
    kinds, words, chapters = Counter(row["kind"] for row in rows), len(book.text.split()), len(book.chapters)
    if args.json:
        files = {"path": str(path), "questions_path": str(questions_path), "title": book.title}
        sizes = {"tokens": num_tokens, "words": words, "chapters": chapters, "questions": dict(kinds)}
        print_json({**files, "model": entry.name, "seed": args.seed, **sizes})
    else:
        print(f"{path}: {book.title}, {num_tokens:,} tokens, {words:,} words, {chapters} chapters")
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        print(f"{questions_path}: {len(rows)} questions ({told})")
    return 0


def fit_book(seed: int, num_tokens: int, count: Callable[[Book], int]) -> tuple[Book, int]:
    """The book of `seed` with at most `num_tokens` tokens and hardly fewer, and its number of tokens.

    A change of length gives another book, so lengths jump by a paragraph; the closest book tried is returned.

    Args:
        count: the number of tokens of a book.
    Raises:
        InvalidSetting: even the shortest book of the seed has more tokens.
    Cost: a few calls of `count`, each on a book of about the requested length; more for short books.
    """
    max_tries, close = max(MAX_TRIES, TRIED_TOKENS // num_tokens), max(CLOSE_TOKENS, num_tokens // CLOSE_SHARE)
    num_words, best, most = max(FEWEST_WORDS, int(num_tokens * FIRST_GUESS)), None, 0
    for tried in itertools.count(1):
        book = write_book(seed, num_words)
        found = count(book)
        if most < found <= num_tokens:
            best, most = book, found
        if best and (tried >= max_tries or most >= num_tokens - close):
            return best, most
        if num_words == FEWEST_WORDS and best is None:
            raise InvalidSetting(
                f"No book is as short as {num_tokens:,} tokens.", hint=f"Ask for {found:,} or more with --tokens."
            )
        goal = num_tokens - close * (SPREAD * tried % 1)
        num_words = max(FEWEST_WORDS, min(round(num_words * goal / found), 2 * num_words))
    raise AssertionError("unreachable: lengths go down until one fits")


def check_free(paths: Iterable[Path], *, force: bool) -> None:
    """Check before any work that files can be written.

    Args:
        force: existing files may be replaced.
    Raises:
        InvalidSetting, NotPossibleHere: a folder is missing, or the name is taken.
    """
    for path in paths:
        if not path.parent.is_dir():
            raise InvalidSetting(f"There is no folder {path.parent}.", hint="Make it first, or choose another one.")
        if path.is_dir():
            raise NotPossibleHere(f"{path.name} is a folder.", hint="Choose another name.")
        if os.path.lexists(path) and not force:
            raise NotPossibleHere(
                f"{path.name} exists already.", hint="Choose another name, or replace it with --force."
            )


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write all files or none.

    Raises:
        NotPossibleHere: the system refused; no file is left.
    """
    parts = {path: path.with_name(f".{os.getpid()}-{number}.part") for number, path in enumerate(contents)}
    try:
        for path, part in parts.items():
            part.write_bytes(contents[path])
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        raise NotPossibleHere(
            f"{path.name} cannot be written ({error.strerror or type(error).__name__}).",
            hint="Choose a folder that you may write to and that has room.",
        ) from error
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
