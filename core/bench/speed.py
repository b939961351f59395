"""The speed suite: ms per token of each method at several context lengths, on a generated book.

Every method answers the same question from the same prefill, in turns, several times; medians and ratios come from one
run. What is not decoding is kept apart. Books are unseen ones: their seed is not among those used in training.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from core.bench.world import Book, Question, write_book
from core.config import GenerationConfig
from core.engine import Engine
from core.errors import ContextTooSmall
from core.events import Finished
from core.hardware import peak_memory_bytes, reset_peak_memory, used_memory_bytes
from core.session import Conversation
from core.text import ChatText

WORDS_PER_TOKEN = 0.8  # about the bundled tokenizer's: where it is too few, a longer book is written
QUESTION_ROOM = 48  # tokens of question and chat template


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One method at one context length."""

    context: int  # prompt tokens asked for
    method: str
    prompt_tokens: int
    prefill_seconds: float
    new_tokens: int
    ms_per_token: float  # median of the repeats
    ms_per_token_range: tuple[float, float]
    speedup_vs_autoregressive: float | None
    acceptance_level1: float | None
    acceptance_level2: float | None
    tokens_per_full_pass: float | None
    gamma1_mean: float | None
    gamma2_mean: float | None
    peak_memory_bytes: int  # of the process
    kv_bytes: int
    memory_over_kv: float  # (peak - what process and loaded engine took before reading) / kv_bytes
    identical_to_autoregressive: bool | None


def long_enough_book(text: ChatText, num_tokens: int, seed: int) -> Book:
    """A book of at least num_tokens tokens, and not much more: to be cut."""
    words = int(num_tokens * WORDS_PER_TOKEN) + 200
    while True:
        book = write_book(seed, words)
        if len(text.encode(book.text)) >= num_tokens:
            return book
        words += words // 8


def bench_prompt(text: ChatText, num_tokens: int, seed: int) -> tuple[Conversation, Question]:
    """A book cut so that book, question and template have about num_tokens tokens, and a request for a long answer."""
    book = long_enough_book(text, num_tokens, seed)
    ids = text.encode(book.text)[: num_tokens - QUESTION_ROOM]
    kept = text.decode(ids)
    inside = [question for question in book.questions if question.kind == "recite" and question.answer in kept]
    if not inside:
        raise ContextTooSmall(4096, num_tokens, possible=1 << 17)
    return Conversation(tuple(ids)), inside[len(inside) // 2]


def run_speed(
    engine: Engine, contexts: Sequence[int], methods: Sequence[str], *, repeats: int, max_new_tokens: int, seed: int
) -> Iterator[SpeedRow]:
    """Measure. Rows come context by context, as soon as a context is done; "autoregressive" is always measured too."""
    methods = ("autoregressive", *(method for method in methods if method != "autoregressive"))
    device = torch.device(engine.info.plan.device.value)
    loaded = used_memory_bytes(device)
    for context in contexts:
        before = used_memory_bytes(device)
        conversation, question = bench_prompt(engine.text, context, seed)
        prompt = conversation.ask(question.question).prompt_ids(engine.text)
        loaded += used_memory_bytes(device) - before  # what writing a book leaves behind is not the engine's
        reset_peak_memory()
        runs: dict[str, list[Finished]] = {method: [] for method in methods}
        prefill_seconds = 0.0
        for _ in range(repeats):
            for method in methods:
                *_, finished = engine.generate(
                    prompt, GenerationConfig(method=method, max_new_tokens=max_new_tokens, seed=seed)
                )
                assert isinstance(finished, Finished)
                prefill_seconds = max(prefill_seconds, finished.prefill_seconds)  # the first run read the book
                runs[method].append(finished)
        engine.close()  # the next context starts from nothing
        peak = peak_memory_bytes(device)
        plain = runs["autoregressive"]
        for method in methods:
            yield _row(
                context, method, runs[method], plain, prefill_seconds, (loaded, peak), engine.info.kv_bytes_per_token
            )


def _row(
    context: int,
    method: str,
    runs: list[Finished],
    plain: list[Finished],
    prefill_seconds: float,
    memory: tuple[int, int],
    kv_bytes_per_token: int,
) -> SpeedRow:
    times = [run.stats.ms_per_token or 0.0 for run in runs]
    plain_times = [run.stats.ms_per_token or 0.0 for run in plain]
    last = runs[-1]
    level1, level2 = last.stats.level1, last.stats.level2
    median = statistics.median(times)
    kv_bytes = (last.prompt_tokens + last.stats.new_tokens) * kv_bytes_per_token
    return SpeedRow(
        context=context,
        method=method,
        prompt_tokens=last.prompt_tokens,
        prefill_seconds=prefill_seconds,
        new_tokens=last.stats.new_tokens,
        ms_per_token=median,
        ms_per_token_range=(min(times), max(times)),
        speedup_vs_autoregressive=statistics.median(plain_times) / median if median else None,
        acceptance_level1=level1.acceptance if level1 else None,
        acceptance_level2=level2.acceptance if level2 else None,
        tokens_per_full_pass=last.stats.tokens_per_full_pass,
        gamma1_mean=level1.gamma_mean if level1 else None,
        gamma2_mean=level2.gamma_mean if level2 else None,
        peak_memory_bytes=memory[1],
        kv_bytes=kv_bytes,
        memory_over_kv=(memory[1] - memory[0]) / kv_bytes,
        identical_to_autoregressive=last.token_ids == plain[-1].token_ids if last.exact else None,
    )
