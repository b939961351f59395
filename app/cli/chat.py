"""`python launch.py chat FILE...`: questions and answers about files, in the terminal or from a pipe."""

import argparse
import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from app.cli.answering import answer, no_answer, race_lines, stoppable, summary_line
from app.cli.parts import naming_parts, opened
from app.cli.piped import STDIN
from app.context.context_documents import Library
from app.context.evidence import evidence_in
from app.conversations.exchange import Exchange
from app.runtime.answer_json import equality_report
from app.runtime.prompts import prompt_of, with_past
from core.config import GenerationConfig
from core.decoding.registry import PLAIN
from core.errors import CoreError, InvalidSetting
from core.generation.events import Finished

if TYPE_CHECKING:
    from app.cli.saved_books import Opening
    from core.engine_api import TextEngine
    from core.generation.session import Conversation

HELP = """Type a question. Ctrl+C stops an answer, and what was written stays; Ctrl+D ends.
/race [QUESTION]   plain decoding and the usual method answer in fair turns; without QUESTION the last one again
/new               forget the questions; the files stay read
/help              this
/quit              end"""
PROMPT = "> "
MOST_QUOTED = 60  # characters of a quotation


def run(args: argparse.Namespace) -> int:
    """Answer questions until the input ends. Returns 0.

    Raises:
        CoreError: files, settings or memory, before the first question.
    """
    if STDIN in args.files:
        raise InvalidSetting("Questions come where - would read a document.", hint="Name files, or use 'ask'.")
    with opened(args) as (engine, library, conversation, config):
        Chat(args, engine, library, conversation, config).run()
    return 0


def typed(*, terminal: bool) -> Iterator[str]:
    """The lines that are typed, with a history where the system has one, or that come from a pipe.

    Ctrl+C empties a line that is being typed.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    if terminal:
        with contextlib.suppress(ImportError):  # Windows has none, and its console keeps lines itself
            import readline  # noqa: F401
    while True:
        try:
            line = input(PROMPT) if terminal else sys.stdin.readline()
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        if not terminal and not line:
            return
        if any("\ud800" <= char <= "\udfff" for char in line):
            print("error: That line is not UTF-8 text. Type it again.", file=sys.stderr, flush=True)
        elif line.strip():
            yield line.strip()


class Chat:
    """One conversation about a library."""

    def __init__(
        self,
        args: argparse.Namespace,
        engine: "TextEngine",
        library: Library,
        conversation: "Conversation",
        config: GenerationConfig,
    ) -> None:
        self._args, self._engine, self._library = args, engine, library
        self._conversation, self._config = conversation, config
        self._past: list[Exchange] = []
        self._asked = ""  # the last question
        self._is_read = False

    def run(self) -> None:
        """Answer what is typed, until /quit or the end of the input."""
        terminal = sys.stdin.isatty()
        if terminal:
            print("Ask about the text. /help tells what else there is.", file=sys.stderr)
        for line in typed(terminal=terminal):
            if not terminal:
                print(f"{PROMPT}{line}\n", flush=True)
            word, _, rest = line.partition(" ")
            try:
                if word == "/quit":
                    return
                self._obey(word, rest.strip(), line)
            except CoreError as error:
                print(f"error: {error}\n", file=sys.stderr, flush=True)

    def _obey(self, word: str, rest: str, line: str) -> None:
        """One line. Raises CoreError."""
        match word:
            case "/help":
                print(HELP, file=sys.stderr)
            case "/new":
                self._past.clear()
                print("The questions are forgotten.", file=sys.stderr)
            case "/race":
                self._race(rest)
            case _ if word.startswith("/"):
                print(f"There is no {word[:40]}.\n{HELP}", file=sys.stderr)
            case _:
                self._ask(line)

    def _ask(self, question: str) -> None:
        self._asked = question
        with naming_parts(self._engine, self._library), stoppable() as stop:
            opening = self._read(question, stop)
            config = replace(self._config, seed=self._config.seed + len(self._past))
            before = with_past(self._conversation, self._past, self._engine)
            finished = answer(self._engine, before, question, config, shown=True, stop=stop)
            finished = opening.added_to(finished) if opening else finished
        if finished.stats.new_tokens:
            self._past.append(Exchange(question, finished, model=self._engine.info.model))
        for line in page_lines(finished.text, self._library):
            print(line)
        sys.stdout.flush()
        print(f"{no_answer(finished)}{summary_line(finished)}\n", file=sys.stderr, flush=True)

    def _read(self, question: str, stop: threading.Event) -> "Opening | None":
        """Read the text once; what Ctrl+C left unread is read with the next question."""
        from app.cli.saved_books import open_text

        if self._is_read or self._engine.info.elsewhere:
            return None
        opening = open_text(self._engine, self._conversation, question, [self._config], self._args, stop)
        self._is_read = not stop.is_set()
        return opening

    def _race(self, question: str) -> None:
        """Plain decoding against the usual method; "": the last question again. The conversation stays as it is."""
        from app.cli.race import equality_with_plain, rival_of_plain, speed_ratio
        from app.cli.scoreboard import Scoreboard
        from core.engine import Engine

        engine = self._engine
        if not isinstance(engine, Engine):
            raise InvalidSetting("Fair turns need the model on this machine.", hint="Use: python launch.py race")
        if not (question or self._asked):
            raise InvalidSetting("Nothing was asked yet.", hint="Type /race QUESTION.")
        past = self._past
        if not question and past and past[-1].question == self._asked:
            past = past[:-1]  # the race answers the question where it was asked
        question = question or self._asked
        rival = self._config.method if self._config.method != PLAIN else rival_of_plain(engine.info)
        configs = [replace(self._config, method=method) for method in (PLAIN, rival)]
        prompt = prompt_of(self._conversation, past, question, engine, self._config.thinking)
        board = Scoreboard(sys.stderr, [config.method for config in configs], self._config.max_new_tokens)
        finished: dict[str, Finished] = {}
        with naming_parts(engine, self._library), stoppable() as stop:
            self._read(question, stop)
            for event in board.watch(engine.race(prompt, configs, stop)):
                if event.lane is not None and isinstance(event.event, Finished):
                    finished[configs[event.lane].method] = event.event
        stopped = stop.is_set()
        greedy = self._config.sampling.greedy and not stopped
        verdict = equality_report(equality_with_plain(engine, prompt, finished, greedy=greedy))["verdict"]
        print(finished[rival].text, end="" if finished[rival].text.endswith("\n") else "\n", flush=True)
        told = race_lines(finished, speed_ratio(finished), "stopped" if stopped else verdict)
        print("", *told, "", sep="\n", file=sys.stderr, flush=True)


def page_lines(text: str, library: Library) -> Iterator[str]:
    """Where the sentences and quotations of an answer stand in the text, each on a line.

    Sentences of its own wording are left out, quotations that are not there are told.
    """
    ends = [page.end for page in library.pages]
    passages = evidence_in(text, library.words, ends)
    for passage in passages:
        if any(one is not passage and one.start <= passage.start and passage.end <= one.end for one in passages):
            continue  # told with the longer one
        words, source = " ".join(text[passage.start : passage.end].split()).strip('"“”'), passage.source
        words = words if len(words) <= MOST_QUOTED else f"{words[: MOST_QUOTED - 1].rstrip()}…"
        if source is None:
            if passage.kind == "quotation":
                yield f"  “{words}”: not in the text"
            continue
        first, last = library.place(source.start), library.place(source.end - 1)
        pages = first.page.label if first.page == last.page else f"{first.page.label}–{last.page.label}"
        book = f"{first.document.title}, " if len(library.books) > 1 else ""
        yield f"  “{words}”: {book}page {pages}{', and elsewhere' if passage.again else ''}"
