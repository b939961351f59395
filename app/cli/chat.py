"""`python launch.py chat FILE...`: questions and answers about files, in the terminal or from a pipe."""

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import replace

from app.cli.answering import answers, closing_lines, stoppable
from app.cli.opening import OpenText, opened
from app.cli.reading import STDIN
from app.context.context_documents import Library
from app.context.evidence import evidence_in
from app.conversations.exchange import Exchange
from app.runtime.prompts import prompt_of
from app.runtime.race_job import race_report
from core.config import seed_at
from core.decoding.registry import PLAIN
from core.errors import CoreError, InvalidSetting

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
    with opened(args) as text:
        Chat(text).run()
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
    """One conversation about an open text."""

    def __init__(self, text: OpenText) -> None:
        self._text, self._config = text, text.config()
        self._past: list[Exchange] = []
        self._asked = ""  # the last question

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
        from core.generation.decode_loop import Question  # already imported with the engine

        self._asked, text, engine = question, self._text, self._text.engine
        with stoppable() as stop:
            opening = text.read(question, [self._config], stop)
            prompt = prompt_of(text.conversation, self._past, question, engine, self._config.thinking)
            config = replace(self._config, seed=seed_at(self._config.seed, len(self._past)))
            (finished,) = answers(engine, [Question(prompt, config, stop)], [""], shown=True)
            finished = opening.added_to(finished) if opening else finished
        if finished.stats.new_tokens:
            self._past.append(Exchange(question, finished, model=engine.info.model))
        for line in page_lines(finished.text, text.library):
            print(line)
        sys.stdout.flush()
        print(f"{closing_lines(finished)}\n", file=sys.stderr, flush=True)

    def _race(self, question: str) -> None:
        """Plain decoding against the usual method; "": the last question again. The conversation stays as it is."""
        from app.cli.race import in_turns, race_lines, rival_of_plain

        text, past = self._text, self._past
        if text.engine.info.elsewhere:
            raise InvalidSetting("Fair turns need the model on this machine.", hint="Use: python launch.py race")
        if not (question or self._asked):
            raise InvalidSetting("Nothing was asked yet.", hint="Type /race QUESTION.")
        if not question and past and past[-1].question == self._asked:
            past = past[:-1]  # the race answers the question where it was asked
        question, method = question or self._asked, self._config.method
        configs = text.lanes((PLAIN, method if method != PLAIN else rival_of_plain(text.engine.info)))
        prompt = prompt_of(text.conversation, past, question, text.engine, self._config.thinking)
        with stoppable() as stop:
            race = in_turns(text, prompt, question, configs, text.read(question, configs, stop), stop)
        written = race.lanes[-1].answer
        print(written, end="" if written.endswith("\n") else "\n", flush=True)
        lines = race_lines(race, race_report(race))
        print("", *lines, "", sep="\n", file=sys.stderr, flush=True)


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
