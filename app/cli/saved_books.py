"""How `ask` and `race` use the saved books: a saved book is opened; a book that took long to read is saved.

Everything before the first question is always read separately, as the page does. So the same tokens are read in the
same portions, and an answer is equal to the last bit whether its book was read or opened.
"""

import argparse
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from app.cli.piped import name_of
from app.cli.reading import ProgressLine, usable_folder
from app.formats import duration
from app.runtime.data_folder import SHELF, data_place
from core.config import GenerationConfig
from core.engine_api import TextEngine, local
from core.errors import CoreError, InvalidSetting
from core.generation.events import Finished, PrefillProgress
from core.generation.session import Conversation

if TYPE_CHECKING:
    from core.kv_store.engine_store import BookStore, Fetched, Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The reading of everything before the first question."""

    num_tokens: int
    num_fetched: int  # from the saved books
    num_read: int
    fetch_seconds: float
    read_seconds: float
    kept: "Kept | None" = None

    def added_to(self, first: Finished) -> Finished:
        """The first answer, with this reading added to its figures."""
        return replace(
            first,
            reused_tokens=min(first.reused_tokens, self.num_fetched),
            prefill_seconds=first.prefill_seconds + self.fetch_seconds + self.read_seconds,
        )

    def report(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {
            "book_tokens": self.num_tokens,
            "book_tokens_read": self.num_read,
            "saved": {
                "fetched_tokens": self.num_fetched,
                "fetch_seconds": round(self.fetch_seconds, 4),
                "kept": self.kept.id if self.kept else None,
                "kept_bytes": self.kept.size_bytes if self.kept else None,
            },
        }


def open_text(
    engine: TextEngine,
    conversation: Conversation,
    question: str,
    configs: Sequence[GenerationConfig],
    args: argparse.Namespace,
    cancel: threading.Event | None = None,
) -> Opening:
    """Bring everything before the first question into the cache, as far as possible from the saved books.

    `cancel` ends it early; what was read stays in the cache, and nothing is saved.

    Raises:
        ContextTooSmall, InvalidSetting, UnsupportedModel: before anything is read. InvalidSetting: saved books were
            requested and cannot be used.
    """
    thinking = configs[0].thinking
    prompt = conversation.ask(question).prompt_ids(engine.text, thinking)
    trial = engine.generate(prompt, configs[0]) if len(configs) == 1 else local(engine).race(prompt, configs)
    next(trial)  # raises now if text or settings are wrong
    trial.close()
    opening = conversation.opening_ids(engine.text, thinking)
    ids = prompt[: len(opening) + 1]  # prefill leaves the last token out
    started, store = perf_counter(), find_store(engine, args, make=bool(args.saved))
    fetched = fetch(store, ids) if store else None
    fetch_seconds = perf_counter() - started if fetched else 0.0
    *_, read = ProgressLine(sys.stderr).watch(engine.read(ids, cancel))
    assert isinstance(read, PrefillProgress)
    done = Opening(
        num_tokens=len(opening),
        num_fetched=min(fetched.num_tokens, len(opening)) if fetched else 0,
        num_read=read.total_tokens - read.reused_tokens,
        fetch_seconds=fetch_seconds,
        read_seconds=read.elapsed_seconds,
    )
    if args.saved is False or (cancel and cancel.is_set()):
        return done
    from core.kv_store.engine_store import LEAST_TOKENS, WORTH_SECONDS

    if done.num_read < LEAST_TOKENS or not (args.saved or done.read_seconds >= WORTH_SECONDS):
        return done
    store = store or find_store(engine, args, make=True)
    if store is None or not (args.saved or store.folder.settings.keeping != "never"):
        return done
    return replace(done, kept=keep(store, opening, [name_of(file) for file in args.files], done.read_seconds))


def fetch(store: "BookStore", ids: Sequence[int]) -> "Fetched | None":
    """Bring a saved book into the cache, and tell it; None: there is none that begins so."""
    from core.kv_store.engine_store import Fetched

    fetched = next((event for event in store.fetch(ids) if isinstance(event, Fetched)), None)
    if fetched:
        took, once = duration(fetched.elapsed_seconds), duration(fetched.book.label.read_seconds)
        print(f"From the saved books: {fetched.num_tokens:,} tokens in {took} (read once in {once}).", file=sys.stderr)
    for notice in store.folder.notices:
        print(notice, file=sys.stderr)
    return fetched


def find_store(engine: TextEngine, args: argparse.Namespace, *, make: bool) -> "BookStore | None":
    """The saved books of the data folder; None if they are not wanted, or cannot be used and were not requested.

    Args:
        make: create the folder if it is missing.
    Raises:
        InvalidSetting: saved books were requested and cannot be used.
    """
    try:
        if args.saved is False or not (make or (data_place(args.data_dir) / SHELF).is_dir()):
            return None
    except (OSError, RuntimeError):  # a home that may not be looked into, or none
        return None
    from core.kv_store.engine_store import BookStore, refusal
    from core.kv_store.folder import BookFolder

    if not args.saved and refusal(engine) is not None:
        return None
    try:
        folder = usable_folder(args)
        return BookStore(engine, BookFolder(folder / SHELF)) if folder else None
    except InvalidSetting as error:
        if args.saved:
            raise
        print(f"note: nothing is kept. {error.problem}", file=sys.stderr)
        return None


def keep(store: "BookStore", ids: Sequence[int], names: Sequence[str], read_seconds: float) -> "Kept | None":
    """Write a book, and print one line about it; a full folder is no error."""
    from core.kv_store.engine_store import Kept
    from core.kv_store.folder import amount

    try:
        for event in store.keep(store.read_book(ids, names, read_seconds)):
            if isinstance(event, Kept):
                size = amount(event.size_bytes)
                print(f"Saved: {size}, not to be read again (--no-saved saves nothing).", file=sys.stderr)
                return event
    except (CoreError, OSError) as error:
        print(f"Not kept: {error}", file=sys.stderr)
    return None
