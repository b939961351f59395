"""The batch suite: several conversations decoded together, as many tokens a second as come out of all of them.

Each conversation has a book of its own, or all ask about one. Times are by the clock, from the moment when all prompts
are read to the last token, so that the end, when few are left, counts. What every conversation writes is compared with
what it writes alone.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial

from assets.tools.bench.speed import Row, answered, cut_book, plain_first, prompt_ids
from core.config import GenerationConfig
from core.decoding.registry import PLAIN
from core.engine import Engine
from core.generation.decode_loop import LONGEST_ROUND, Answer, Question
from core.generation.events import Finished, PrefillProgress
from core.generation.together import answered_together
from core.planning.choices import Choice
from core.planning.plan import Plan
from core.planning.sizes import RETRIEVAL, STREAMING

Tell = Callable[[str], None]
Lanes = Sequence[tuple[Engine, list[int]]]  # conversations: an engine, a prompt
Run = tuple[list[tuple[int, ...]], float]  # what each wrote, and seconds
Way = Callable[[Lanes, GenerationConfig], Run]  # of answering all


def run_batch(
    engine: Engine,
    contexts: Sequence[int],
    methods: Sequence[str],
    *,
    batch: int,
    repeats: int,
    max_new_tokens: int,
    seed: int,
    tell: Tell,
) -> Iterator[Row]:
    """Measure, first with a book for each conversation, then with one for all; plain decoding is always measured.

    Raises:
        ContextTooSmall: a book of this length has no question.
    """
    config = GenerationConfig(max_new_tokens=max_new_tokens, seed=seed)
    for context in contexts:
        prompts = [prompt_ids(engine.text, context, seed + number) for number in range(batch)]
        engines = _engines(engine, max(map(len, prompts)) + max_new_tokens + LONGEST_ROUND, batch, tell)
        own = list(zip(engines, prompts, strict=False))
        conversation, inside = cut_book(engine.text, context, seed)  # for all; they ask for different parts of it
        asked = [conversation.ask(inside[number % len(inside)].question) for number in range(len(own))]
        shared = [(engine, one.prompt_ids(engine.text)) for one in asked]
        yield from _rows("own", context, own, (alone, together), plain_first(methods), config, repeats)
        yield from _rows(
            "shared", context, shared, (alone_shared, shared_together), plain_first(methods), config, repeats
        )
        for one in engines:
            one.close()


def num_fitting(plan: Plan, rows: int) -> int:
    """Conversations of so many tokens that fit beside the planned one."""
    sizes = plan.sizes
    each = sizes.device_bytes(rows, sizes.layers) + plan.bytes_of(RETRIEVAL) + plan.bytes_of(STREAMING)
    return max(0, plan.usable_bytes - plan.total_bytes) // each


def _engines(engine: Engine, rows: int, batch: int, tell: Tell) -> list[Engine]:
    """As many engines as fit, the given one first; a note if they are fewer than wanted."""
    more = min(batch - 1, num_fitting(engine.plan, rows))
    if more < batch - 1:
        tell(f"Memory holds {more + 1} of {batch} conversations of {rows:,} tokens: so many are measured together.")
    small = replace(engine.plan, context=Choice(rows, "as much as is measured"))
    return [engine, *(Engine(engine.config, small, engine.text, engine._models) for _ in range(more))]


# -------------------- all answers


def alone(lanes: Lanes, config: GenerationConfig) -> Run:
    """One answer after the other."""
    ends = [answered(engine.generate(prompt, config)) for engine, prompt in lanes]
    return [one.token_ids for one in ends], sum(one.stats.decode_seconds for one in ends)


def together(lanes: Lanes, config: GenerationConfig) -> Run:
    """All answers together, each by an engine of its own for the same models."""
    questions = [Question(prompt, config) for _, prompt in lanes]
    answers = [_opened(engine.opened(question)) for (engine, _), question in zip(lanes, questions, strict=True)]
    started = time.perf_counter()
    deque(answered_together(partial(_as_opened, iter(answers)), questions, len(answers)), maxlen=0)
    seconds = time.perf_counter() - started
    for (engine, _), answer in zip(lanes, answers, strict=True):
        engine.settle(answer.tokens)
    return [tuple(answer.token_ids) for answer in answers], seconds


def alone_shared(lanes: Lanes, config: GenerationConfig) -> Run:
    """One answer after the other about one book; the questions' own tokens are read within the measured time."""
    started = time.perf_counter()
    texts, _ = alone(lanes, config)
    return texts, time.perf_counter() - started


def shared_together(lanes: Lanes, config: GenerationConfig) -> Run:
    """The same, all together."""
    started = time.perf_counter()
    events = lanes[0][0].answer_together([Question(prompt, config) for _, prompt in lanes])
    ends = {one.lane: one.event for one in events if isinstance(one.event, Finished)}
    return [ends[number].token_ids for number in range(len(ends))], time.perf_counter() - started


def _as_opened(answers: Iterator[Answer], _question: Question) -> Generator[PrefillProgress, None, Answer]:
    """The next of the answers, whose prompts were read before."""
    yield from ()
    return next(answers)


def _opened(steps: Generator[object, None, Answer]) -> Answer:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            answer: Answer = done.value
            return answer


def _rows(
    text: str,
    context: int,
    lanes: Lanes,
    ways: tuple[Way, Way],
    methods: Sequence[str],
    config: GenerationConfig,
    repeats: int,
) -> Iterator[Row]:
    """All methods in turns, alone and together; medians of the repeats."""
    started = time.perf_counter()
    for engine, prompt in lanes:
        deque(engine.read(prompt), maxlen=0)
    prefill_seconds = time.perf_counter() - started
    runs: dict[tuple[str, Way], list[Run]] = {(method, way): [] for method in methods for way in ways}
    for _ in range(repeats):
        for (method, way), own in runs.items():
            own.append(way(lanes, replace(config, method=method)))
    ms = {of: statistics.median(1e3 * seconds / sum(map(len, texts)) for texts, seconds in runs[of]) for of in runs}
    one_by_one, at_once = ways
    for method in methods:
        mine, written = ms[method, at_once], [texts for way in ways for texts, _ in runs[method, way]]
        yield {
            "context": context,  # wanted prompt tokens
            "batch": len(lanes),
            "text": text,  # own: each conversation has a book of its own; shared: all have one
            "method": method,
            "new_tokens": sum(map(len, written[-1])),  # of all conversations
            "ms_per_token": mine,  # of all: seconds by the clock over all tokens
            "ms_per_token_each": mine * len(lanes),  # what a reader waits for a token of one conversation
            "tokens_per_second": 1e3 / mine,
            "alone_ms_per_token": ms[method, one_by_one],  # one conversation after the other, by the same method
            "speedup_vs_autoregressive": ms[PLAIN, at_once] / mine,  # over plain decoding of the batch
            "speedup_vs_plain_alone": ms[PLAIN, one_by_one] / mine,
            "prefill_seconds": prefill_seconds,  # of all texts
            "identical_to_alone": all(texts == written[0] for texts in written),
        }
