"""The batch suite: several conversations decoded together, as many tokens a second as come out of all of them.

Each conversation has a book of its own, or all ask about one. Times are by the clock, from the moment when all prompts
are read to the last token, so that the end, when few are left, counts. What every conversation writes is compared with
what it writes alone.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from assets.tools.bench.speed import bench_prompt, long_enough_book, plain_first
from core.config import GenerationConfig
from core.decoding.registry import PLAIN
from core.engine import Engine
from core.errors import ContextTooSmall
from core.generation.decode_loop import LONGEST_ROUND, Answer, Question
from core.generation.events import Event, Finished
from core.generation.session import Conversation
from core.generation.text import ChatText
from core.generation.together import Together
from core.planning.choices import Choice
from core.planning.plan import Plan
from core.planning.sizes import RETRIEVAL, STREAMING

Texts = Literal["own", "shared"]
QUESTION_ROOM = 48  # tokens of question and chat template
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One method at one context length."""

    context: int  # wanted prompt tokens
    batch: int
    text: Texts  # each conversation has a book of its own, or all share one
    method: str
    new_tokens: int  # of all conversations
    ms_per_token: float  # of all: seconds by the clock over all tokens
    ms_per_token_each: float  # what a reader waits for a token of one conversation
    tokens_per_second: float
    alone_ms_per_token: float  # one conversation after the other, by the same method
    speedup_vs_autoregressive: float  # over plain decoding of the batch
    speedup_vs_plain_alone: float
    prefill_seconds: float  # of all texts
    identical_to_alone: bool


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
) -> Iterator[BatchRow]:
    """Measure, first with a book for each conversation, then with one for all; plain decoding is always measured.

    Raises:
        ContextTooSmall: a book of this length has no question.
    """
    for context in contexts:
        prompts = [_prompt(engine.text, context, seed + number) for number in range(batch)]
        engines = _engines(engine, max(map(len, prompts)) + max_new_tokens + LONGEST_ROUND, batch, tell)
        shared = _shared_prompts(engine.text, context, seed, len(engines))
        config = GenerationConfig(max_new_tokens=max_new_tokens, seed=seed)
        for lanes in (_OwnTexts(engines, prompts[: len(engines)]), _OneText(engine, shared)):
            yield from _rows(lanes, context, plain_first(methods), config, repeats)
        for one in engines:
            one.close()


def _prompt(text: ChatText, context: int, seed: int) -> list[int]:
    conversation, question = bench_prompt(text, context, seed)
    return conversation.ask(question.question).prompt_ids(text)


def _shared_prompts(text: ChatText, context: int, seed: int, count: int) -> list[list[int]]:
    """Prompts about one book, which ask for different parts of it, one after the other if there are too few."""
    book = long_enough_book(text, context, seed)
    ids = text.encode(book.text)[: context - QUESTION_ROOM]
    kept = text.decode(ids)
    inside = [one.question for one in book.questions if one.kind == "recite" and one.answer in kept]
    if not inside:
        raise ContextTooSmall(4096, context, possible=1 << 17)
    conversation = Conversation(tuple(ids))
    return [conversation.ask(inside[number % len(inside)]).prompt_ids(text) for number in range(count)]


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


@dataclass(frozen=True, slots=True)
class _Run:
    """What all conversations wrote, and how long it took by the clock."""

    texts: list[tuple[int, ...]]
    seconds: float

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.texts))


class _Lanes(Protocol):
    """Conversations, ready to be answered."""

    text: Texts

    def read(self) -> float:
        """Read all texts; seconds."""

    def alone(self, config: GenerationConfig) -> _Run:
        """One answer after the other."""

    def together(self, config: GenerationConfig) -> _Run:
        """All answers together."""


class _OwnTexts:
    """Each conversation has an engine of its own for the same models, and a book."""

    text: Texts = "own"

    def __init__(self, engines: Sequence[Engine], prompts: Sequence[list[int]]) -> None:
        self._lanes = list(zip(engines, prompts, strict=True))

    def read(self) -> float:
        started = time.perf_counter()
        for engine, prompt in self._lanes:
            deque(engine.read(prompt), maxlen=0)
        return time.perf_counter() - started

    def alone(self, config: GenerationConfig) -> _Run:
        ends = [_end(engine.generate(prompt, config)) for engine, prompt in self._lanes]
        return _Run([one.token_ids for one in ends], sum(one.stats.decode_seconds for one in ends))

    def together(self, config: GenerationConfig) -> _Run:
        together = Together()
        answers = [_opened(engine, Question(prompt, config)) for engine, prompt in self._lanes]
        for number, answer in enumerate(answers):
            together.join(number, answer)
        started = time.perf_counter()
        while len(together):
            together.step()
        seconds = time.perf_counter() - started
        for (engine, _), answer in zip(self._lanes, answers, strict=True):
            engine.settle(answer.tokens)
        return _Run([tuple(answer.token_ids) for answer in answers], seconds)


class _OneText:
    """Questions about one book; their own tokens are read within the measured time."""

    text: Texts = "shared"

    def __init__(self, engine: Engine, prompts: Sequence[list[int]]) -> None:
        self._engine, self._prompts = engine, prompts

    def read(self) -> float:
        started = time.perf_counter()
        deque(self._engine.read(self._prompts[0]), maxlen=0)
        return time.perf_counter() - started

    def alone(self, config: GenerationConfig) -> _Run:
        started = time.perf_counter()
        texts = [_end(self._engine.generate(prompt, config)).token_ids for prompt in self._prompts]
        return _Run(texts, time.perf_counter() - started)

    def together(self, config: GenerationConfig) -> _Run:
        started = time.perf_counter()
        events = self._engine.answer_together([Question(prompt, config) for prompt in self._prompts])
        ends = {one.lane: one.event for one in events if isinstance(one.event, Finished)}
        return _Run([ends[number].token_ids for number in range(len(ends))], time.perf_counter() - started)


def _end(events: Iterator[Event]) -> Finished:
    *_, finished = events
    assert isinstance(finished, Finished)
    return finished


def _opened(engine: Engine, question: Question) -> Answer:
    steps = engine.opened(question)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            answer: Answer = done.value
            return answer


def _rows(
    lanes: _Lanes, context: int, methods: Sequence[str], config: GenerationConfig, repeats: int
) -> Iterator[BatchRow]:
    """All methods in turns, alone and together; medians of the repeats."""
    prefill_seconds = lanes.read()
    alone: dict[str, list[_Run]] = {method: [] for method in methods}
    together: dict[str, list[_Run]] = {method: [] for method in methods}
    for _ in range(repeats):
        for method in methods:
            alone[method].append(lanes.alone(replace(config, method=method)))
            together[method].append(lanes.together(replace(config, method=method)))

    def ms(runs: Sequence[_Run]) -> float:
        return statistics.median(1e3 * run.seconds / run.num_tokens for run in runs)

    for method in methods:
        runs, batch = together[method], len(together[method][0].texts)
        mine = ms(runs)
        yield BatchRow(
            context=context,
            batch=batch,
            text=lanes.text,
            method=method,
            new_tokens=runs[-1].num_tokens,
            ms_per_token=mine,
            ms_per_token_each=mine * batch,
            tokens_per_second=1e3 / mine,
            alone_ms_per_token=ms(alone[method]),
            speedup_vs_autoregressive=ms(together[PLAIN]) / mine,
            speedup_vs_plain_alone=ms(alone[PLAIN]) / mine,
            prefill_seconds=prefill_seconds,
            identical_to_alone=all(run.texts == alone[method][0].texts for run in (*runs, *alone[method])),
        )
