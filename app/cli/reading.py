"""Shared by the commands: files to a conversation, events to progress on stderr.

The engine is imported where it is loaded, because that takes seconds.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from app.cli.piped import readable
from app.cli.terminal import drawing, plain
from app.context.domain_check import ON_COMMAND_LINE, reach_note
from app.documents.bundle import extract_documents
from app.documents.document import Document, Extracting
from app.formats import duration, loading
from app.runtime.data_folder import check_place, data_dir
from app.runtime.options import engine_config, engine_type, speculation_config
from core.config import EngineConfig, GenerationConfig, SamplingParams
from core.errors import NotPossibleHere
from core.generation.events import Event, PrefillProgress

if TYPE_CHECKING:
    from core.engine import Engine
    from core.engine_api import TextEngine
    from core.engine_info import EngineInfo
    from core.generation.session import Conversation
    from core.models.loading import LoadProgress

INTERVAL_SECONDS = 0.1  # between two drawings
LONG_TEXT = 2048  # tokens whose reading is shown


def usual_method(info: "EngineInfo") -> str:
    """The method of the plan's composition; without a draft model, n-gram lookup and the retrieval cache draft."""
    method = info.usual_method
    if not (info.has_draft or info.elsewhere):
        print(f"No draft model ({info.draft_because}): decoding with {method}.", file=sys.stderr)
    return method


def open_engine(args: argparse.Namespace) -> "TextEngine":
    """The engine of this machine, or one on the server that --remote names. Raises CoreError."""
    engine: TextEngine
    if args.remote:
        from app.remote.connecting import connector

        engine = connector(args)()[0]
    else:
        engine = load_engine(engine_config(args))
    from core.generation.text import check_thinking  # already imported with the engine

    check_thinking(args.thinking, engine.info.thinking)
    return engine


def load_engine(config: EngineConfig) -> "Engine":
    """The engine of this machine; its loading is shown on stderr. Raises CoreError."""
    from core.models.loading import watched_loading

    engine, line = engine_type(), ProgressLine(sys.stderr)
    try:
        with watched_loading(line.show_loading):
            return engine.load(config)
    finally:
        line.close()


def generation_config(args: argparse.Namespace, method: str) -> GenerationConfig:
    """The settings of the sampling options."""
    sampling = SamplingParams(temperature=args.temperature, top_p=args.top_p, top_k=args.top_k)
    return GenerationConfig(
        max_new_tokens=args.max_new_tokens,
        sampling=sampling,
        speculation=speculation_config(args.model),
        method=method,
        seed=args.seed,
        thinking=args.thinking,
    )


def usable_folder(args: argparse.Namespace) -> Path | None:
    """The data folder. Where there is none by default (no usable home), a note that nothing is kept, and None.

    Raises:
        NotPossibleHere: one that was asked for, by --data-dir or --saved, cannot be used.
    """
    try:
        return data_dir(args.data_dir)
    except NotPossibleHere as error:
        if args.data_dir or getattr(args, "saved", None):
            raise
        print(f"note: nothing is kept. {error.problem}", file=sys.stderr)
        return None


def check_folder(args: argparse.Namespace) -> None:
    """Before anything is read: whether a data folder that was asked for can be used.

    Raises:
        NotPossibleHere: it cannot.
    """
    if args.saved:
        usable_folder(args)
    elif args.data_dir:
        check_place(args.data_dir)


def read_documents(args: argparse.Namespace) -> Iterator[Document]:
    """The documents of the files, in order; progress of recognition and warnings about their quality go to stderr.

    Raises:
        CoreError: a file cannot be read, or with --ocr: there is no engine.
    """
    ocr = None
    if args.ocr:
        from app.documents.ocr import Ocr
        from app.documents.recognised import FOLDER, RecognisedPages

        folder = usable_folder(args)
        ocr = Ocr(recognise=True, kept=RecognisedPages(folder / FOLDER) if folder else None)
    progress = ProgressLine(sys.stderr)
    for file in args.files:
        with readable(file) as path, closing(extract_documents(path, ocr=ocr)) as steps:
            for step in steps:
                if not isinstance(step, Document):
                    progress.show_recognition(step)
                    continue
                progress.close()
                for warning in step.warnings:
                    print(f"{step.name}: {warning}", file=sys.stderr)
                yield step


def open_conversation(engine: "TextEngine", text: str) -> "Conversation":
    """A conversation about a text, before any question. A note on stderr if the model does not suit the text."""
    from core.generation.session import Conversation

    ids = tuple(engine.text.encode(text))
    info = engine.info
    if note := reach_note(info.limits, text, len(ids), ON_COMMAND_LINE):
        print(note, file=sys.stderr)
    if info.quantised:
        print(f"Answers are exact for {info.exact_for}.", file=sys.stderr)
    return Conversation(ids)


class ProgressLine:
    """The progress of something long, as one line that is rewritten on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._terminal = drawing(stream), stream.isatty()
        self._width, self._next = 0, 0.0

    def put(self, text: str, *, is_last: bool = False) -> None:
        """Rewrite the line; what is no terminal gets the last ones alone."""
        if self._terminal:
            self._stream.write(f"\r{plain(text):<{self._width}}")
            self._stream.flush()
            self._width = max(self._width, len(text))
        elif is_last:
            self._stream.write(f"{text}\n")

    def watch(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events, and show their progress."""
        for event in events:
            if isinstance(event, PrefillProgress):
                self.show(event)
            else:
                self.close()
            yield event

    def show(self, event: PrefillProgress) -> None:
        """Show the progress of reading; a short text gets no line."""
        if event.total_tokens - event.reused_tokens >= LONG_TEXT:
            left = f", {event.remaining_seconds:.0f} s left" if event.remaining_seconds is not None else ""
            is_last = event.done_tokens in (event.reused_tokens, event.total_tokens)
            self.put(f"Reading: {event.done_tokens:,} of {event.total_tokens:,} tokens{left}", is_last=is_last)

    def show_loading(self, progress: "LoadProgress") -> None:
        """Show how far the loading of a model is, on a terminal, once that can be told."""
        if progress.seconds_left is not None and time.perf_counter() >= self._next:
            self._next = time.perf_counter() + INTERVAL_SECONDS
            self.put(f"Loading: {loading(progress)}")

    def show_recognition(self, step: Extracting) -> None:
        """Show how far text on pictures was recognised, on a terminal."""
        if step.recognising and step.num_pages is not None:
            left = f", {duration(step.seconds_left)} left" if step.seconds_left is not None else ""
            self.put(f"Recognising: page {min(step.num_done + 1, step.num_pages):,} of {step.num_pages:,}{left}")

    def close(self) -> None:
        """Clear the line, if there is one."""
        if self._width:
            self._stream.write(f"\r{'':<{self._width}}\r")
            self._width = 0


def print_json(document: object) -> None:
    """Print a JSON document on one line, the last of stdout."""
    print(json.dumps(document, ensure_ascii=False), flush=True)
