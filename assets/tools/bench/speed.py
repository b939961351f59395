"""The speed suite: ms per token of each method at several context lengths, on generated books.

Every method answers the same question from the same prefill, in turns, several times; medians and ratios come from one
run, over several books. Times other than decoding are reported separately. Books are unseen: training does not use
their seeds.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from assets.tools.books.generated import Book, Question, write_book
from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding.registry import PLAIN
from core.decoding.stats import LevelStats
from core.engine import Engine
from core.errors import ContextTooSmall
from core.generation.events import Finished
from core.generation.session import Conversation
from core.generation.text import ChatText
from core.planning.hardware import peak_memory_bytes, resolve_device, used_memory_bytes

WORDS_PER_TOKEN = 0.8  # about the bundled tokenizer's value: if it is too small, a longer book is written
QUESTION_ROOM = 48  # tokens of question and chat template
ADAPTIVE, GREEDY = SpeculationConfig(), SamplingParams()


def reset_peak_memory() -> None:
    """Start a new peak for `peak_memory_bytes`, where the system supports it (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the peak stays that of the whole process
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One method at one context length."""

    context: int  # wanted prompt tokens
    method: str
    books: int
    prompt_tokens: int
    prefill_seconds: float  # median of the books
    new_tokens: int  # total of all books
    ms_per_token: float  # median of the books, each the median of its repeats
    ms_per_token_by_book: tuple[float, ...]
    recording_seconds: float  # beside these times, in the run with most of it
    speedup_vs_autoregressive: float  # median of the books
    speedup_by_book: tuple[float, ...]
    acceptance_level1: float | None
    acceptance_level2: float | None
    tokens_per_full_pass: float | None
    gamma1_mean: float | None
    gamma2_mean: float | None
    peak_memory_bytes: int  # of the process
    kv_bytes: int
    memory_over_kv: float  # (peak - memory of process and engine before reading) / kv_bytes; the largest of the books
    identical_to_autoregressive: bool | None


def long_enough_book(text: ChatText, num_tokens: int, seed: int) -> Book:
    """A book of at least num_tokens tokens, and not much more, to be cut later."""
    words = int(num_tokens * WORDS_PER_TOKEN) + 200
    while True:
        book = write_book(seed, words)
        if len(text.encode(book.text)) >= num_tokens:
            return book
        words += words // 8


def bench_prompt(text: ChatText, num_tokens: int, seed: int) -> tuple[Conversation, Question]:
    """A book, cut so that book, question and template have about num_tokens tokens, and a request for a long answer."""
    book = long_enough_book(text, num_tokens, seed)
    ids = text.encode(book.text)[: num_tokens - QUESTION_ROOM]
    kept = text.decode(ids)
    inside = [question for question in book.questions if question.kind == "recite" and question.answer in kept]
    if not inside:
        raise ContextTooSmall(4096, num_tokens, possible=1 << 17)
    return Conversation(tuple(ids)), inside[len(inside) // 2]


def plain_first(methods: Iterable[str]) -> tuple[str, ...]:
    """Methods to measure, each once, with plain decoding, the baseline, first."""
    return tuple(dict.fromkeys((PLAIN, *methods)))


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
) -> Iterator[SpeedRow]:
    """Measure. Rows come context by context, as soon as a context is done; plain decoding is always measured.

    Args:
        books: books read at each length; acceptance, and so the speedup, differs from text to text.
        repeats: runs of each method on each book.
        speculation: shape of rounds.
        sampling: how tokens are drawn; texts are compared only if greedy.
        read: brings the engine to all tokens of a prompt but the last, and may know a faster way than reading; then the
            rows do not say how long reading takes.
    """
    methods = plain_first(methods)
    loaded = used_memory_bytes(_device(engine))
    for context in contexts:
        measured = []
        for number in range(books):
            before = used_memory_bytes(_device(engine))
            prompt = _prompt(engine.text, context, seed + number)
            loaded += used_memory_bytes(_device(engine)) - before  # memory left by writing a book does not count
            config = GenerationConfig(
                max_new_tokens=max_new_tokens, seed=seed, speculation=speculation, sampling=sampling
            )
            if read:
                read(engine, prompt)
            configs = [replace(config, method=method) for method in methods]
            measured.append(_read(engine, prompt, configs, repeats, loaded))
        for method in methods:
            yield _row(context, method, measured, engine.info.kv_bytes_per_token, compared=sampling.greedy)


@dataclass(frozen=True, slots=True)
class _Read:
    """Measurements of one book: runs of each method, and the reading."""

    runs: dict[str, list[Finished]]
    prefill_seconds: float
    added_bytes: int  # peak memory above that of process and engine before the first book
    peak_bytes: int

    def ms(self, method: str) -> float:
        """Median of the repeats, ms per token."""
        return statistics.median(run.stats.ms_per_token or 0.0 for run in self.runs[method])


def _device(engine: Engine) -> torch.device:
    return resolve_device(engine.info.plan.device.value)


def _prompt(text: ChatText, context: int, seed: int) -> list[int]:
    conversation, question = bench_prompt(text, context, seed)
    return conversation.ask(question.question).prompt_ids(text)


def _read(
    engine: Engine, prompt: Sequence[int], configs: Sequence[GenerationConfig], repeats: int, loaded: int
) -> _Read:
    reset_peak_memory()
    runs: dict[str, list[Finished]] = {config.method: [] for config in configs}
    prefill_seconds = 0.0
    for _ in range(repeats):
        for config in configs:
            *_, finished = engine.generate(prompt, config)
            assert isinstance(finished, Finished)
            prefill_seconds = max(prefill_seconds, finished.prefill_seconds)  # the first run read the book
            runs[config.method].append(finished)
    engine.close()  # the next book starts from nothing
    peak = peak_memory_bytes(_device(engine))
    return _Read(runs, prefill_seconds, peak - loaded, peak)


def _row(context: int, method: str, read: Sequence[_Read], kv_bytes_per_token: int, *, compared: bool) -> SpeedRow:
    last = [book.runs[method][-1] for book in read]  # greedy, so every repeat has the same counts
    plain = [book.runs[PLAIN][-1] for book in read]
    medians = [book.ms(method) for book in read]
    speedups = [book.ms(PLAIN) / ms for book, ms in zip(read, medians, strict=True)]
    kv_bytes = [(run.prompt_tokens + run.stats.new_tokens) * kv_bytes_per_token for run in last]
    level1, level2 = (_pooled(getattr(run.stats, name) for run in last) for name in ("level1", "level2"))
    tokens, passes = sum(run.stats.new_tokens for run in last), sum(run.stats.full_passes for run in last)
    return SpeedRow(
        context=context,
        method=method,
        books=len(read),
        prompt_tokens=max(run.prompt_tokens for run in last),
        prefill_seconds=statistics.median(book.prefill_seconds for book in read),
        new_tokens=tokens,
        ms_per_token=statistics.median(medians),
        ms_per_token_by_book=tuple(medians),
        recording_seconds=max(run.stats.recording_seconds for book in read for run in book.runs[method]),
        speedup_vs_autoregressive=statistics.median(speedups),
        speedup_by_book=tuple(speedups),
        acceptance_level1=level1.acceptance if level1 else None,
        acceptance_level2=level2.acceptance if level2 else None,
        tokens_per_full_pass=tokens / passes if passes else None,
        gamma1_mean=level1.gamma_mean if level1 else None,
        gamma2_mean=level2.gamma_mean if level2 else None,
        peak_memory_bytes=max(book.peak_bytes for book in read),
        kv_bytes=max(kv_bytes),
        memory_over_kv=max(book.added_bytes / size for book, size in zip(read, kv_bytes, strict=True)),
        identical_to_autoregressive=all(a.token_ids == b.token_ids for a, b in zip(last, plain, strict=True))
        if last[0].exact and compared
        else None,
    )


def _pooled(levels: Iterable[LevelStats | None]) -> LevelStats | None:
    """The counts of several answers together; None if the method has no such level."""
    present = [level for level in levels if level is not None]
    if not present:
        return None
    names = ("rounds", "guessed", "tested", "accepted")
    return LevelStats(*(sum(getattr(level, name) for level in present) for name in names))
