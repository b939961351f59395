"""What a command that answers has open: a model, a library, settings; and the reading of all before the first question.

A saved book is opened instead of read, one that took long to read is saved. What stands before the first question is
always read separately, as on the page, so that an answer is equal to the last bit however its book was read.
"""

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from app.cli.output import ProgressLine
from app.cli.reading import library_of, name_of, naming_parts, read_documents, usable_folder
from app.context.context_documents import Library
from app.context.domain_check import ON_COMMAND_LINE, reach_note
from app.formats import duration
from app.runtime.options import engine_config, engine_type, speculation_config
from core.config import EngineConfig, GenerationConfig, SamplingParams
from core.decoding.registry import default_method
from core.engine_api import local
from core.errors import CoreError, InvalidSetting
from core.generation.events import Finished

if TYPE_CHECKING:
    from core.engine import Engine
    from core.engine_api import TextEngine
    from core.engine_info import EngineInfo
    from core.generation.session import Conversation
    from core.kv_store.engine_store import BookStore, Fetched, Kept


@contextmanager
def opened(args: argparse.Namespace) -> "Iterator[OpenText]":
    """The text of a command, open for questions; closed behind it.

    Raises:
        CoreError: files, settings or memory; raised before any long step where that is possible.
    """
    if args.saved or args.data_dir:
        usable_folder(args)  # raises now, not after the reading
    config = generation_config(args)
    library = library_of(list(read_documents(args)), args)
    with closing(open_engine(args)) as engine:
        yield OpenText(args, engine, library, config)


def generation_config(args: argparse.Namespace) -> GenerationConfig:
    """The settings of the sampling options. Raises InvalidSetting."""
    return GenerationConfig(
        max_new_tokens=args.max_new_tokens,
        sampling=SamplingParams(temperature=args.temperature, top_p=args.top_p, top_k=args.top_k),
        speculation=speculation_config(args.model),
        method=getattr(args, "method", None) or default_method(has_draft=True),
        seed=args.seed,
        thinking=args.thinking,
        end_loops=True,
    )


def open_engine(args: argparse.Namespace) -> "TextEngine":
    """The engine of this machine, or one on the server that --remote names. Raises CoreError."""
    engine: TextEngine
    if args.remote:
        from app.remote.server import connector

        engine = connector(args)()[0]
    else:
        engine = load_engine(engine_config(args))
    from core.generation.text import check_thinking  # already imported with the engine

    check_thinking(args.thinking, engine.info.thinking)
    return engine


def load_engine(config: EngineConfig) -> "Engine":
    """The engine of this machine; its loading is shown on stderr. Raises CoreError."""
    from core.models.loading import watched_loading

    engine, line = engine_type(), ProgressLine()
    try:
        with watched_loading(line.show_loading):
            return engine.load(config)
    finally:
        line.close()


def usual_method(info: "EngineInfo") -> str:
    """The method of the plan's composition; without a draft model, n-gram lookup and the retrieval cache draft."""
    if not (info.has_draft or info.elsewhere):
        print(f"No draft model ({info.draft_because}): decoding with {info.usual_method}.", file=sys.stderr)
    return info.usual_method


def open_conversation(engine: "TextEngine", text: str) -> "Conversation":
    """A conversation about a text, before any question. A note on stderr if the model does not suit the text."""
    from core.generation.session import Conversation

    ids = tuple(engine.text.encode(text))
    if note := reach_note(engine.info.limits, text, len(ids), ON_COMMAND_LINE):
        print(note, file=sys.stderr)
    if engine.info.quantised:
        print(f"Answers are exact for {engine.info.exact_for}.", file=sys.stderr)
    return Conversation(ids)


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


class OpenText:
    """A model and a library; `conversation` has no question yet."""

    def __init__(
        self, args: argparse.Namespace, engine: "TextEngine", library: Library, config: GenerationConfig
    ) -> None:
        self.args, self.engine, self.library, self._config = args, engine, library, config
        self.conversation = open_conversation(engine, library.text)
        self._is_read = False

    def config(self) -> GenerationConfig:
        """The settings of an answer, by --method or the usual one."""
        return self._config if self.args.method else replace(self._config, method=usual_method(self.engine.info))

    def lanes(self, methods: Sequence[str]) -> tuple[GenerationConfig, ...]:
        """The settings of a race: no answer ends early."""
        return tuple(replace(self._config, method=method, end_loops=False) for method in methods)

    def read(self, question: str, configs: Sequence[GenerationConfig], stop: threading.Event) -> Opening | None:
        """Bring everything before the first question into the cache, as far as possible from the saved books.

        None: that was done before, or the model runs on a server. After `stop` what was read stays in the cache, and
        nothing is saved.

        Raises:
            ContextTooSmall, InvalidSetting, UnsupportedModel: before anything is read. InvalidSetting: saved books were
                requested and cannot be used.
        """
        if self._is_read:
            return None
        engine, args, thinking = self.engine, self.args, configs[0].thinking
        prompt = self.conversation.ask(question).prompt_ids(engine.text, thinking)
        trial = engine.generate(prompt, configs[0]) if len(configs) == 1 else local(engine).race(prompt, configs)
        with closing(trial), naming_parts(engine.text.encode, self.library):
            next(trial)  # raises now if text or settings are wrong
        if engine.info.elsewhere:
            return None
        opening = self.conversation.opening_ids(engine.text, thinking)
        ids = prompt[: len(opening) + 1]  # prefill leaves the last token out
        started, store = perf_counter(), self._saved_books(make=bool(args.saved))
        fetched = fetch(store, ids, stop) if store else None
        fetch_seconds = perf_counter() - started if fetched else 0.0
        line = ProgressLine()
        for step in engine.read(ids, stop):
            line.show(step)
        line.close()
        self._is_read = not stop.is_set()
        done = Opening(
            num_tokens=len(opening),
            num_fetched=min(fetched.num_tokens, len(opening)) if fetched else 0,
            num_read=step.done_tokens - step.reused_tokens,
            fetch_seconds=fetch_seconds,
            read_seconds=step.elapsed_seconds,
        )
        if args.saved is False or stop.is_set():
            return done
        return replace(done, kept=self._keep(opening, done, store, stop))

    def _saved_books(self, *, make: bool) -> "BookStore | None":
        """The saved books, in a folder that is made if there is none; None: not wanted, or not usable nor requested.

        Raises:
            InvalidSetting: they were requested and cannot be used.
        """
        wanted = self.args.saved
        if wanted is False:
            return None
        from app.runtime.data_folder import SHELF, data_place

        try:
            if not (make or (data_place(self.args.data_dir) / SHELF).is_dir()):
                return None
        except (OSError, CoreError):  # a home that may not be looked into, or none
            return None
        from core.kv_store.engine_store import BookStore, refusal
        from core.kv_store.folder import BookFolder

        if not wanted and refusal(self.engine) is not None:
            return None
        try:
            folder = usable_folder(self.args)
            return BookStore(self.engine, BookFolder(folder / SHELF)) if folder else None
        except InvalidSetting as error:
            if wanted:
                raise
            print(f"note: nothing is kept. {error.problem}", file=sys.stderr)
            return None

    def _keep(
        self, ids: Sequence[int], done: Opening, store: "BookStore | None", stop: threading.Event
    ) -> "Kept | None":
        """Save the book if that is wanted, or took long to read; a full folder is no error."""
        from core.kv_store.engine_store import LEAST_TOKENS, WORTH_SECONDS, Kept
        from core.kv_store.folder import amount

        wanted = self.args.saved
        if done.num_read < LEAST_TOKENS or not (wanted or done.read_seconds >= WORTH_SECONDS):
            return None
        store = store or self._saved_books(make=True)
        if store is None or not (wanted or store.folder.settings.keeping != "never"):
            return None
        try:
            names = [name_of(file) for file in self.args.files]
            for event in store.keep(store.read_book(ids, names, done.read_seconds)):
                if stop.is_set():
                    return None
                if isinstance(event, Kept):
                    size = amount(event.size_bytes)
                    print(f"Saved: {size}, not to be read again (--no-saved saves nothing).", file=sys.stderr)
                    return event
        except (CoreError, OSError) as error:
            print(f"Not kept: {error}", file=sys.stderr)
        return None


def fetch(store: "BookStore", ids: Sequence[int], stop: threading.Event) -> "Fetched | None":
    """Bring a saved book into the cache, and tell it; None: there is none that begins so."""
    from core.kv_store.engine_store import Fetched

    fetched = next((event for event in store.fetch(ids, stop) if isinstance(event, Fetched)), None)
    if fetched:
        took, once = duration(fetched.elapsed_seconds), duration(fetched.book.label.read_seconds)
        print(f"From the saved books: {fetched.num_tokens:,} tokens in {took} (read once in {once}).", file=sys.stderr)
    for notice in store.folder.notices:
        print(notice, file=sys.stderr)
    return fetched
