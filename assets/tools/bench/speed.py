"""The speed suite: ms per token of each method at several context lengths, on generated books.

Every method answers the same question from the same prefill, in turns, several times; medians and ratios come from one
run, over several books. Times other than decoding are reported separately. Training does not use the books' seeds.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from assets.tools.books.generated import Book, Question, write_book
from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding.registry import PLAIN
from core.decoding.stats import LevelStats
from core.engine import Engine
from core.errors import ContextTooSmall
from core.generation.events import Event, Finished
from core.generation.session import Conversation
from core.generation.text import ChatText
from core.planning.hardware import peak_memory_bytes, resolve_device, used_memory_bytes

WORDS_PER_TOKEN = 0.8  # about the bundled tokenizer's value: if it is too small, a longer book is written
QUESTION_ROOM = 48  # tokens of question and chat template
ADAPTIVE, GREEDY = SpeculationConfig(), SamplingParams()
Row = dict[str, Any]  # of a measurement, for JSON


def reset_peak_memory() -> None:
    """Start a new peak for `peak_memory_bytes`, where the system supports it (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the peak stays that of the whole process
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


# -------------------- prompts


def long_enough_book(text: ChatText, num_tokens: int, seed: int) -> Book:
    """A book of at least num_tokens tokens, and not much more, to be cut later."""
    words = int(num_tokens * WORDS_PER_TOKEN) + 200
    while True:
        book = write_book(seed, words)
        if len(text.encode(book.text)) >= num_tokens:
            return book
        words += words // 8


def cut_book(text: ChatText, num_tokens: int, seed: int) -> tuple[Conversation, list[Question]]:
    """A book, cut so that book, question and template have about num_tokens tokens, and requests for long answers."""
    book = long_enough_book(text, num_tokens, seed)
    ids = text.encode(book.text)[: num_tokens - QUESTION_ROOM]
    kept = text.decode(ids)
    inside = [question for question in book.questions if question.kind == "recite" and question.answer in kept]
    if not inside:
        raise ContextTooSmall(4096, num_tokens, possible=1 << 17)
    return Conversation(tuple(ids)), inside


def bench_prompt(text: ChatText, num_tokens: int, seed: int) -> tuple[Conversation, Question]:
    """A cut book and the request in its middle."""
    conversation, inside = cut_book(text, num_tokens, seed)
    return conversation, inside[len(inside) // 2]


def prompt_ids(text: ChatText, num_tokens: int, seed: int) -> list[int]:
    """The prompt of that request."""
    conversation, question = bench_prompt(text, num_tokens, seed)
    return conversation.ask(question.question).prompt_ids(text)


# -------------------- measuring


def plain_first(methods: Iterable[str]) -> tuple[str, ...]:
    """Methods to measure, each once, with plain decoding, the baseline, first."""
    return tuple(dict.fromkeys((PLAIN, *methods)))


def answered(events: Iterable[Event]) -> Finished:
    """The end of an answer."""
    *_, finished = events
    assert isinstance(finished, Finished)
    return finished


def median_ms(runs: Iterable[Finished]) -> float:
    """Median ms per token."""
    return statistics.median(run.stats.ms_per_token or 0.0 for run in runs)


def run_speed(
    engine: Engine,
    contexts: Sequence[int],
    methods: Sequence[str],
    *,
    books: int,
    repeats: int,
    max_new_tokens: int,
    seed: int,
    speculation: SpeculationConfig = ADAPTIVE,
    sampling: SamplingParams = GREEDY,
    read: Callable[[Engine, Sequence[int]], object] | None = None,
) -> Iterator[Row]:
    """Measure. Rows come context by context, as soon as a context is done; plain decoding is always measured.

    Args:
        books: books read at each length; acceptance, and so the speedup, differs from text to text.
        repeats: runs of each method on each book.
        sampling: how tokens are drawn; texts are compared only if greedy.
        read: brings the engine to all tokens of a prompt but the last, and may know a faster way than reading; then the
            rows do not say how long reading takes.
    """
    methods = plain_first(methods)
    loaded = used_memory_bytes(_device(engine))
    config = GenerationConfig(max_new_tokens=max_new_tokens, seed=seed, speculation=speculation, sampling=sampling)
    for context in contexts:
        measured = []
        for number in range(books):
            before = used_memory_bytes(_device(engine))
            prompt = prompt_ids(engine.text, context, seed + number)
            loaded += used_memory_bytes(_device(engine)) - before  # memory left by writing a book does not count
            if read:
                read(engine, prompt)
            measured.append(_read(engine, prompt, methods, config, repeats, loaded))
        for method in methods:
            yield _row(context, method, measured, engine.info.kv_bytes_per_token, compared=sampling.greedy)


@dataclass(frozen=True, slots=True)
class _Read:
    """Measurements of one book: runs of each method, and the reading."""

    runs: dict[str, list[Finished]]
    added_bytes: int  # peak memory above that of process and engine before the first book
    peak_bytes: int

    @property
    def prefill_seconds(self) -> float:
        """Of the first run, which read the book."""
        return max(run.prefill_seconds for runs in self.runs.values() for run in runs)


def _device(engine: Engine) -> torch.device:
    return resolve_device(engine.info.plan.device.value)


def _read(
    engine: Engine, prompt: Sequence[int], methods: Sequence[str], config: GenerationConfig, repeats: int, loaded: int
) -> _Read:
    reset_peak_memory()
    runs: dict[str, list[Finished]] = {method: [] for method in methods}
    for _ in range(repeats):
        for method in methods:
            runs[method].append(answered(engine.generate(prompt, replace(config, method=method))))
    engine.close()  # the next book starts from nothing
    peak = peak_memory_bytes(_device(engine))
    return _Read(runs, peak - loaded, peak)


def _row(context: int, method: str, read: Sequence[_Read], kv_bytes_per_token: int, *, compared: bool) -> Row:
    last = [book.runs[method][-1] for book in read]  # greedy, so every repeat has the same counts
    plain = [book.runs[PLAIN][-1] for book in read]
    medians = [median_ms(book.runs[method]) for book in read]
    speedups = [median_ms(book.runs[PLAIN]) / ms for book, ms in zip(read, medians, strict=True)]
    kv_bytes = [(run.prompt_tokens + run.stats.new_tokens) * kv_bytes_per_token for run in last]
    level1, level2 = (_pooled(getattr(run.stats, name) for run in last) for name in ("level1", "level2"))
    tokens, passes = sum(run.stats.new_tokens for run in last), sum(run.stats.full_passes for run in last)
    same = all(a.token_ids == b.token_ids for a, b in zip(last, plain, strict=True))
    return {
        "context": context,  # wanted prompt tokens
        "method": method,
        "books": len(read),
        "prompt_tokens": max(run.prompt_tokens for run in last),
        "prefill_seconds": statistics.median(book.prefill_seconds for book in read),
        "new_tokens": tokens,  # of all books
        "ms_per_token": statistics.median(medians),  # of the books, each the median of its repeats
        "ms_per_token_by_book": medians,
        # beside these times, in the run with most of it
        "recording_seconds": max(run.stats.recording_seconds for book in read for run in book.runs[method]),
        "speedup_vs_autoregressive": statistics.median(speedups),
        "speedup_by_book": speedups,
        "acceptance_level1": level1.acceptance if level1 else None,
        "acceptance_level2": level2.acceptance if level2 else None,
        "tokens_per_full_pass": tokens / passes if passes else None,
        "gamma1_mean": level1.gamma_mean if level1 else None,
        "gamma2_mean": level2.gamma_mean if level2 else None,
        "peak_memory_bytes": max(book.peak_bytes for book in read),  # of the process
        "kv_bytes": max(kv_bytes),
        # (peak - memory of process and engine before reading) / kv_bytes; the largest of the books
        "memory_over_kv": max(book.added_bytes / size for book, size in zip(read, kv_bytes, strict=True)),
        "identical_to_autoregressive": same if last[0].exact and compared else None,
    }


def _pooled(levels: Iterable[LevelStats | None]) -> LevelStats | None:
    """The counts of several answers together; None if the method has no such level."""
    present = [level for level in levels if level is not None]
    if not present:
        return None
    names = ("rounds", "guessed", "tested", "accepted")
    return LevelStats(*(sum(getattr(level, name) for level in present) for name in names))
