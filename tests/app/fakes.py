"""A scripted engine: a `TextEngine`, no model, and gates that hold it where a test wants."""

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from app.context.context_documents import Library
from app.conversations.exchange import Exchange
from app.documents.document import Chapter, Document, make_pages
from app.runtime.events import BookOpened, LoadFailed, Pause, Ready, WorkerEvent
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from core.caches.tokens import common_prefix
from core.config import EngineConfig, GenerationConfig, RetrievalConfig
from core.decoding.registry import default_method
from core.decoding.stats import DecodeStats, LevelStats, Origin
from core.engine_api import TextEngine
from core.engine_info import Equality
from core.errors import ContextTooSmall
from core.generation.events import Event, Finished, LaneEvent, PrefillProgress, RoundDone, StopReason, TokenRecord
from core.generation.prefill import ReadingPace
from core.generation.text import Turn
from core.generation.together import Question, one_by_one
from core.planning.devices import NOMINAL_PROCESSOR
from core.planning.hardware import Machine
from core.planning.nvidia import UnusedGpu
from core.planning.sizes import PlanRow

MACHINE = Machine("test processor", 2, 16 << 30, 12 << 30, ())
UNUSED_GPU = UnusedGpu(
    gpu="NVIDIA <img> RTX", problem="torch 2.13.0+cpu is a build without CUDA.", hint="Run: python launch.py repair"
)
GRADIO_WARNINGS = [
    pytest.mark.filterwarnings("ignore:unclosed (event loop|<socket):ResourceWarning"),  # left by its start
    # what it asks of pandas:
    pytest.mark.filterwarnings("ignore:('future.no_silent_downcasting'|The copy keyword) is deprecated"),
]
FOREIGN = (  # headers of requests that pages of other sites cause
    {"Host": "rebound.example"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)
HOLD = "| "  # a word at which an answer waits until `writing` is set again, or it is stopped
THOUGHT_IDS = 0x20000  # tokens from here on are of thoughts: of words between "<think>" and "</think>"
NIGHT = "It was a dark and stormy night. " * 8
ORIGINS = (  # of tokens, in turn
    Origin("draft", "proposed"),
    Origin("draft", "proposed"),
    Origin("retrieval", "corrected"),
    Origin("retrieval", "bonus"),
    Origin("full", "corrected"),
    Origin("full", "bonus"),
    Origin("full", "drawn"),
)
ANSWER = GenerationConfig()  # how a test asks that does not care
SECONDS = 30.0  # no test waits longer for anything; a machine that is busy included


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Run to its end, in a loop of its own: asyncio.run would drop the loop that Gradio left, in a test to come."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(work, SECONDS))
    finally:
        loop.close()


class FakeText:
    """One token a character."""

    eos_ids = frozenset({0})

    knows_offsets = True
    beginning: Sequence[int] = ()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [ord(char) for char in text]

    def offsets(self, text: str) -> list[int]:
        return list(range(len(text)))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def opening(self, book_ids: Sequence[int], thinking: str | None = None) -> list[int]:
        return [1, *book_ids]

    def without_thought(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(token for token in token_ids if token < THOUGHT_IDS)

    def thought_over(self, prompt_ids: list[int], written: Sequence[int]) -> list[int]:
        return prompt_ids

    def prompt(self, book_ids: Sequence[int], turns: Sequence[Turn], thinking: str | None = None) -> list[int]:
        ids = self.opening(book_ids)
        for turn in turns:
            ids += [2, *self.encode(turn.question), 3, *(turn.answer_ids or ())]
        return [*ids, *map(ord, f"<{thinking}>")] if thinking else ids

    def pieces(self, roles: Sequence[str], thinking: str | None = None) -> list[list[int]]:
        return [[1], *([3] for _ in roles)]


class FakeInfo(SimpleNamespace):
    """What the fake engine runs; tests change it."""

    @property
    def usual_method(self) -> str:
        return default_method(has_draft=self.has_draft)


class FakeEngine:
    """Answers with what was enqueued, word by word; reads in four chunks; remembers one conversation like the real one.

    `reading` and `writing` are gates: while one is clear, the engine waits there, and still sees `cancel`.
    """

    def __init__(self, *, context: int = 4096, has_draft: bool = True) -> None:
        self.text, self.context, self.vocab = FakeText(), context, 0x110000
        chosen: dict[str, Any] = {"device": "cpu", "dtype": "torch.float32", "kv": None, "bits": 32, "context": context}
        chosen |= {"placement": "resident", "prefill_block": 0, "cpu_attention": 0.0}
        plan = SimpleNamespace(
            **{name: SimpleNamespace(value=value, because="test") for name, value in chosen.items()},
            precision="float32",
            most_context=8192,
            rows=(PlanRow("runtime", 600 << 20), PlanRow("target weights", 300 << 20), PlanRow("retrieval cache", 1)),
            total_bytes=(900 << 20) + 1,
            available_bytes=12 << 30,
            host_bytes=0,
            resident_layers=4,
            on_gpu=False,
            rig=SimpleNamespace(assumed=()),
            nominal=NOMINAL_PROCESSOR,
            composition=None,
        )
        self.info: Any = FakeInfo(
            model="fake",
            description="A script.",
            has_draft=has_draft,
            weights="float32",
            quantised=False,
            exact_for="the model (float32 weights)",
            plan=plan,
            most_context=8192,
            attention="torch",
            attention_because="scripted",
            graphs=SimpleNamespace(value=False, because="test"),
            num_ranks=1,
            kv_bytes_per_token=2048,
            target_weight_bytes=300 << 20,
            draft_weight_bytes=10 << 20 if has_draft else 0,
            self_draft_weight_bytes=0,
            thinking=(),
            pace=ReadingPace(),
            **dict.fromkeys(("limits", "draft_because", "thinks", "elsewhere", "path"), ""),
            **dict.fromkeys(("host_memory", "link", "experts", "target_dims")),
        )
        self.config = EngineConfig(retrieval=RetrievalConfig(budget=64, local_window=16))
        self.weights: list[float] = []  # of the chunks while an answer is written
        self.holds_all_chunks = False
        self.reading, self.writing = threading.Event(), threading.Event()
        self.reading.set()
        self.writing.set()
        self.configs: list[GenerationConfig] = []
        self.prompts: list[list[int]] = []
        self.written: list[list[int]] = []
        self.words: dict[int, str] = {}  # by token id, of the newest answer in which it stands
        self.threads: set[str] = set()
        self.race_boundaries: list[int] = []
        self._scripts: deque[list[str] | BaseException] = deque()
        self._seen: list[int] = []

    def enqueue(self, answer: str | BaseException) -> None:
        """What the next `generate` writes, or raises after its first word."""
        self._scripts.append(answer if isinstance(answer, BaseException) else [f"{word} " for word in answer.split()])

    def retrieves(self, method: str) -> bool:
        return method in ("triforce", "retrieval", "lookup", "triforce-lookup")

    def use_budget(self, budget: int | None) -> int:
        assert threading.current_thread().name == "engine"
        return budget or self.config.retrieval.budget

    def chunk_weights(self) -> Tensor:
        assert threading.current_thread().name == "engine"
        return torch.tensor(self.weights)

    def weights_after(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> Tensor:
        assert threading.current_thread().name == "engine"
        return torch.tensor([])

    def close(self) -> None:
        self._seen = []

    def knows(self, token_ids: Sequence[int]) -> bool:
        return all(token < self.vocab for token in token_ids)

    def cached_prefix(self, prompt_ids: Sequence[int]) -> int:
        return common_prefix(self._seen, list(prompt_ids))

    def read(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> Iterator[PrefillProgress]:
        self.threads.add(threading.current_thread().name)
        if len(prompt_ids) > self.context:
            raise ContextTooSmall(len(prompt_ids), self.context, possible=8192)
        total = len(prompt_ids) - 1
        done = reused = min(common_prefix(self._seen, list(prompt_ids)), total)
        self._seen = list(prompt_ids[:done])
        told = partial(PrefillProgress, total_tokens=total, reused_tokens=reused)
        yield told(done_tokens=done, elapsed_seconds=0.0, remaining_seconds=None)
        chunk = max(1, total // 4)
        while done < total and not passed_or_cancelled(self.reading, cancel):
            done = min(done + chunk, total)
            self._seen = list(prompt_ids[:done])
            yield told(done_tokens=done, elapsed_seconds=0.1 * done, remaining_seconds=0.1 * (total - done))

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        cancel: threading.Event | None = None,
        *,
        written: Sequence[int] = (),
        boundary: int = 0,
    ) -> Generator[Event]:
        self.configs.append(config)
        self.prompts.append(list(prompt_ids))
        self.written.append(list(written))
        reused = 0
        for progress in self.read([*prompt_ids, *written], cancel):
            reused = progress.reused_tokens
            yield progress
        script = self._scripts.popleft() if self._scripts else ["word "] * config.max_new_tokens
        if isinstance(script, BaseException):
            yield round_done("Half ", 0)
            raise script
        words: list[str] = []
        thinking, ids = False, list(written)
        for number, (word, following) in enumerate(zip(script, [*script, ""][1:], strict=True)):
            if number == config.max_new_tokens:
                break
            if word == HOLD and number == 0:
                self.writing.clear()
            if passed_or_cancelled(self.writing, cancel):
                break
            mark = word in ("<think> ", "</think> ")
            thought, thinking = thinking or mark, word == "<think> " if mark else thinking
            words.append("" if thought else word)
            ids.append((THOUGHT_IDS if thought else 1000) + len(written) + number)
            self.words[ids[-1]] = "" if mark else word
            self._seen = [*prompt_ids, *ids[:-1]]
            done = round_done(words[-1], number)
            if thought:
                (record,) = done.tokens
                done = replace(done, thought=self.words[ids[-1]], tokens=(replace(record, token_id=ids[-1]),))
            if following == HOLD:
                self.writing.clear()  # before the word is told: a test may open it at once
            yield replace(done, stats=self._figures(number + 1, ids[len(written) :]))
        said = {
            kind: "".join(self.words.get(token, "? ") for token in ids if (token >= THOUGHT_IDS) is kind)
            for kind in (True, False)
        }
        stopped = cancel is not None and cancel.is_set()
        end = finished("".join(words), config.method, stopped=stopped, num_prompt=len(prompt_ids), num_reused=reused)
        end = replace(end, stats=self._figures(len(words), ids[len(written) :]))
        if len(words) < len(script) and not stopped:
            end = replace(end, stop_reason="max_new_tokens")
        yield replace(end, text=said[False], token_ids=tuple(ids), thought=said[True].strip(), in_thought=thinking)

    def _figures(self, num_tokens: int, ids: Sequence[int]) -> DecodeStats:
        thought = sum(token >= THOUGHT_IDS for token in ids)
        figures = stats(num_tokens) if num_tokens else DecodeStats()
        return replace(figures, thought_tokens=thought, thought_seconds=0.5 * thought)

    def race(
        self,
        prompt_ids: Sequence[int],
        configs: Sequence[GenerationConfig],
        cancel: threading.Event | None = None,
        *,
        seconds: float | None = None,
        boundary: int = 0,
    ) -> Generator[LaneEvent]:
        """Lanes in turns, a token a turn; each writes the next enqueued script, or all write the same words."""
        self.race_boundaries.append(boundary)
        reused = 0
        for progress in self.read(prompt_ids, cancel):
            reused = progress.reused_tokens
            yield LaneEvent(None, progress)
        scripts = [self._scripts.popleft() if self._scripts else ["word "] * c.max_new_tokens for c in configs]
        written: list[list[str]] = [[] for _ in configs]
        reasons: dict[int, StopReason] = {}
        while len(reasons) < len(configs):
            for lane, (config, script, words) in enumerate(zip(configs, scripts, written, strict=True)):
                if lane in reasons:
                    continue
                if isinstance(script, BaseException):
                    raise script
                word = script[len(words)] if len(words) < len(script) else ""
                if word == HOLD:
                    self.writing.clear()
                figures = lane_stats(len(words) + 1, config.method)
                if passed_or_cancelled(self.writing, cancel):
                    reasons[lane] = "cancelled"
                elif not word:
                    reasons[lane] = "end_of_text"
                else:
                    number = len(words)
                    words.append(word)
                    record = TokenRecord(token_of(word), word, ORIGINS[number % len(ORIGINS)], number // 4, 0.9, 0.8)
                    yield LaneEvent(lane, RoundDone(text=word, tokens=(record,), stats=figures))
                    if len(words) == config.max_new_tokens:
                        reasons[lane] = "max_new_tokens"
                    elif seconds is not None and figures.decode_seconds >= seconds:
                        reasons[lane] = "time_up"
                if lane in reasons:
                    end = finished("".join(words), config.method, num_prompt=len(prompt_ids), num_reused=reused)
                    end = replace(end, token_ids=tuple(map(token_of, words)), stop_reason=reasons[lane])
                    yield LaneEvent(lane, replace(end, stats=lane_stats(len(words), config.method)))

    def answer_together(self, questions: Sequence[Question]) -> Generator[LaneEvent]:
        """One answer after the other."""
        yield from one_by_one(self.generate, questions)

    def compare(self, prompt_ids: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> Equality:
        """Like the real one; the gap is always one that rounding does not explain."""
        shared = common_prefix(list(plain), list(other))
        if shared == len(plain) == len(other):
            return Equality("identical", None, None)
        return Equality("mismatch", shared, 1.25)


def token_of(word: str) -> int:
    return 1000 + sum(map(ord, word))


def lane_stats(num_tokens: int, method: str) -> DecodeStats:
    """Plain decoding takes four times as long as the others."""
    if method == "autoregressive":
        seconds = 0.08 * num_tokens
        return DecodeStats(
            new_tokens=num_tokens,
            decode_seconds=seconds,
            full_passes=num_tokens,
            seconds_by_part={"full": 0.9 * seconds, "other": 0.1 * seconds},
            kv_bytes_read=num_tokens << 24,
            kv_bytes_read_plain=num_tokens << 24,
        )
    return stats(num_tokens)


def passed_or_cancelled(gate: threading.Event, cancel: threading.Event | None) -> bool:
    """Wait at a gate. True: cancelled meanwhile."""
    while not gate.wait(0.005):
        if cancel is not None and cancel.is_set():
            return True
    return cancel is not None and cancel.is_set()


def stats(num_tokens: int) -> DecodeStats:
    """Figures that look like an answer of so many tokens."""
    n = num_tokens
    return DecodeStats(
        new_tokens=num_tokens,
        decode_seconds=0.02 * num_tokens,
        full_passes=max(1, num_tokens // 4),
        level1=LevelStats(n, 2 * n, 2 * n, n, (n, n), (n, 0)),
        level2=LevelStats(n, 4 * n, 4 * n, 3 * n, (n, n, n, n), (n, n, n, 0), {1: 2, 4: 3, 5: 9}),
        seconds_by_part={part: 0.005 * num_tokens for part in ("draft", "retrieval", "full", "other")},
        kv_bytes_read=num_tokens << 22,
        kv_bytes_read_plain=num_tokens << 24,
    )


def round_done(text: str, number: int) -> RoundDone:
    """One token."""
    record = TokenRecord(1000 + number, text, Origin("draft", "proposed"), number, 0.9, 0.8)
    return RoundDone(text=text, tokens=(record,), stats=stats(number + 1))


def finished(
    text: str, method: str = "triforce", *, stopped: bool = False, num_prompt: int = 100, num_reused: int = 0
) -> Finished:
    """The end of an answer of as many tokens as words."""
    num_tokens = len(text.split())
    return Finished(
        text=text,
        token_ids=tuple(range(1000, 1000 + num_tokens)),
        stop_reason="cancelled" if stopped else "end_of_text",
        stats=stats(num_tokens) if num_tokens else DecodeStats(),
        prompt_tokens=num_prompt,
        reused_tokens=num_reused,
        prefill_seconds=0.1,
        method=method,
        exact=True,
    )


def wait_for(holds: Callable[[], object], what: object = "it does not come") -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def worker_of(engine: TextEngine, **options: Any) -> EngineWorker:
    """A worker, started, on an engine that needs no loading. `options`: its seed, and what it stores where."""
    worker = EngineWorker(lambda: (engine, MACHINE), **options)
    worker.start()
    assert worker.jobs.has_loaded(SECONDS)
    return worker


def settled(worker: EngineWorker) -> Ready | LoadFailed:
    """The state once no model is being loaded."""
    assert worker.jobs.has_loaded(SECONDS)
    assert isinstance(worker.state, Ready | LoadFailed)
    return worker.state


def write_book(folder: Path, text: str = NIGHT, name: str = "book.txt") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def document_of(
    *pages: str,
    title: str = "A",
    name: str = "",
    labels: Sequence[str] = (),
    chapter_starts: Sequence[int] = (),
    **more: Any,
) -> Document:
    """A document of pages; chapters C1, C2 and so on begin at the offsets given. `more`: other fields."""
    text, starts = "".join(pages), [0, *accumulate(map(len, pages[:-1]))]
    made = make_pages(starts, len(text), labels or None)
    chapters = [
        Chapter(title=f"C{n}", first_page=max(p.number for p in made if p.char_start <= a), char_start=a, char_end=b)
        for n, (a, b) in enumerate(pairwise([*chapter_starts, len(text)]), 1)
    ]
    told = {"name": name or title, "title": title, "format": "text", "text": text, "pages": made}
    return Document(**told | {"has_own_pages": True, "chapters": tuple(chapters)} | more)


def library_of(*documents: Document) -> Library:
    """Whole documents in their order."""
    return reduce(Library.add, documents, Library())


def place(folder: Path) -> Path:
    """Where Gradio stores a file that is dropped, in a data folder."""
    where = folder / "uploads" / "digest"
    where.mkdir(parents=True, exist_ok=True)
    return where


def until(kind: type, stream: Iterator[WorkerEvent]) -> WorkerEvent:
    """The next event of a kind."""
    return next(event for event in stream if isinstance(event, kind))


def in_thread(stream: Iterator[WorkerEvent]) -> tuple[threading.Thread, list[WorkerEvent]]:
    """Drain a stream as a page does, in a thread of its own; its events but for pauses."""
    events: list[WorkerEvent] = []
    told = (event for event in stream if not isinstance(event, Pause))
    thread = threading.Thread(target=events.extend, args=(told,), daemon=True)
    thread.start()
    return thread, events


@dataclass(eq=False)
class Reader:
    """One page, and the program behind it."""

    worker: EngineWorker
    engine: FakeEngine
    session: Session
    folder: Path  # where its books lie

    def opens(self, text: str = NIGHT, name: str = "book.txt") -> list[WorkerEvent]:
        """Open a text file, and wait until the model has read it; what was told meanwhile."""
        return list(self.begins_to_open(text, name))

    def begins_to_open(self, text: str = NIGHT, name: str = "book.txt") -> Iterator[WorkerEvent]:
        """The same, event by event."""
        return self.worker.open_books(self.session.id, [write_book(self.folder, text, name)])

    def arranges(self, change: Callable[[Library], Library]) -> list[WorkerEvent]:
        return list(self.worker.arrange(self.session.id, change))

    def asks(self, question: str, answer: str = "", config: GenerationConfig = ANSWER, **how: Any) -> Finished:
        """Ask, to the end of the answer; `answer`: what the engine writes."""
        if answer:
            self.engine.enqueue(answer)
        *_, end = self.begins(question, config, **how)
        assert isinstance(end, Finished)
        return end

    def begins(self, question: str, config: GenerationConfig = ANSWER, **how: Any) -> Iterator[WorkerEvent]:
        """The same, event by event."""
        return self.worker.answer(self.session.id, question, config, **how)

    @property
    def questions(self) -> list[str]:
        """Those that are shown."""
        return [node.question for node in self.session.dialogue.path] if self.session.dialogue else []

    @property
    def exchange(self) -> Exchange:
        """The newest."""
        return self.session.exchanges[-1]

    def beside(self, text: str = "") -> "Reader":
        """Another page of the same program; with a book of its own, if there is a text."""
        other = replace(self, session=self.worker.sessions.enter(""))
        if text:
            other.opens(text, "other.txt")
        return other


def opened(worker: EngineWorker, file: Path) -> str:
    """The id of a new session with a book that has been read."""
    session_id = worker.sessions.enter("").id
    events: list[WorkerEvent] = list(worker.open_books(session_id, [file]))
    assert any(isinstance(event, BookOpened) for event in events), events
    return session_id
