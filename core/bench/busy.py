"""The busy suite: decoding beside programs that compute, and alone, with the chosen number of threads and fixed ones.

The suite starts the other programs itself and ends them. All conditions take turns on one book, so that ratios come
from the same minutes.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from core.bench.speed import bench_prompt
from core.config import GenerationConfig
from core.decoding.registry import PLAIN, plain_first
from core.engine import Engine
from core.errors import NotPossibleHere
from core.generation.events import Finished
from core.ops.threads import Threads, most_threads, set_most_threads

LOAD = "while True: pass"  # a program that keeps one core busy


@dataclass(frozen=True, slots=True)
class Condition:
    """Other programs that compute, and the kernel's threads; None: chosen while it decodes."""

    others: int
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyRow:
    """One method under one condition."""

    context: int  # prompt tokens asked for
    method: str
    other_programs: int
    threads: str  # "chosen", or the fixed number
    new_tokens: int
    ms_per_token: float  # median of the repeats
    to_quiet_one_thread: float  # median of the repeats' ratios
    speedup_vs_autoregressive: float  # under the same condition; median of the repeats
    identical_to_first: bool


@contextmanager
def other_programs(count: int) -> Iterator[None]:
    """So many processes that each keep a core busy."""
    running = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def computing(condition: Condition) -> Iterator[None]:
    """Decode under this condition; afterwards as before."""
    most = most_threads()
    Threads.adapts = condition.threads is None
    set_most_threads(condition.threads or most)
    try:
        with other_programs(condition.others):
            yield
    finally:
        set_most_threads(most)
        Threads.adapts = True


def run_busy(
    engine: Engine, contexts: Sequence[int], methods: Sequence[str], *, repeats: int, max_new_tokens: int, seed: int
) -> Iterator[BusyRow]:
    """Measure; each method's rows come when all its conditions are done. Plain decoding is always measured.

    Raises:
        InvalidSetting: there is one thread only, so that there is nothing to choose.
    """
    most = most_threads()
    if most < 2:
        raise NotPossibleHere("There is nothing to choose with one thread.", hint="Use --suite speed on this machine.")
    conditions = [Condition(others, threads) for others in (0, 1) for threads in (None, most, 1)]
    conditions += [Condition(2 * most, threads) for threads in (None, 1)]  # with most a token takes a second
    for context in contexts:
        conversation, question = bench_prompt(engine.text, context, seed)
        prompt = conversation.ask(question.question).prompt_ids(engine.text)
        plain: dict[Condition, list[Finished]] = {}
        for method in plain_first(methods):
            config = GenerationConfig(method=method, max_new_tokens=max_new_tokens, seed=seed)
            _answer(engine, prompt, config)  # reads the book, and warms up
            runs: dict[Condition, list[Finished]] = {condition: [] for condition in conditions}
            for _ in range(repeats):
                for condition in conditions:
                    with computing(condition):
                        runs[condition].append(_answer(engine, prompt, config))
            plain = plain if method != PLAIN else runs
            yield from (_row(context, method, condition, runs, plain) for condition in conditions)
        engine.close()


def _answer(engine: Engine, prompt: Sequence[int], config: GenerationConfig) -> Finished:
    *_, finished = engine.generate(prompt, config)
    assert isinstance(finished, Finished)
    return finished


def _row(
    context: int,
    method: str,
    condition: Condition,
    runs: dict[Condition, list[Finished]],
    plain: dict[Condition, list[Finished]],
) -> BusyRow:
    mine = runs[condition]
    return BusyRow(
        context=context,
        method=method,
        other_programs=condition.others,
        threads="chosen" if condition.threads is None else str(condition.threads),
        new_tokens=mine[0].stats.new_tokens,
        ms_per_token=statistics.median(_ms(run) for run in mine),
        to_quiet_one_thread=_ratio(mine, runs[Condition(0, 1)]),
        speedup_vs_autoregressive=_ratio(plain[condition], mine),
        identical_to_first=all(run.token_ids == runs[Condition(0, 1)][0].token_ids for run in mine),
    )


def _ratio(some: Sequence[Finished], others: Sequence[Finished]) -> float:
    return statistics.median(_ms(one) / _ms(other) for one, other in zip(some, others, strict=True))


def _ms(run: Finished) -> float:
    return run.stats.ms_per_token or 0.0
