"""An engine begins with all layers resident, and moves some away when a prompt needs the room; texts stay the same."""

import gc
import itertools
import weakref
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from core import engine as engine_module
from core.config import EngineConfig, GenerationConfig
from core.engine import Engine
from core.errors import NotEnoughMemory
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Finished, PrefillProgress, RoundDone
from core.generation.levels import Levels
from core.generation.placement import Placement
from core.generation.prefill import Prefill
from core.generation.together import Question
from core.kv_store.engine_store import BookStore
from core.kv_store.folder import BookFolder
from core.kv_store.slots import Slots
from core.ops.graphs import Graphs
from tests.core.cuda_stubs import pretended_gpu
from tests.core.toys import ends, last_event, random_prompt, tiny_engine

MOST, TALK = 700, 100
SHORT, LONG, OTHER = random_prompt(300), random_prompt(900, 1), random_prompt(310, 2)
CONFIG = GenerationConfig(method="triforce", max_new_tokens=8)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(engine_module, "TALK", TALK)
    split = tiny_engine(placement="split")
    plan = replace(split.plan, most_resident=MOST)
    return Engine(split.config, plan, split.text, split._models)


def answered(engine: Engine, prompt: Sequence[int]) -> Finished:
    return last_event(engine.generate(prompt, CONFIG))


def wanted(prompt: Sequence[int]) -> tuple[int, ...]:
    return answered(tiny_engine(), prompt).token_ids


def where(engine: Engine) -> tuple[int, int]:
    plan = engine.plan
    assert engine.full_cache.capacity == plan.capacity and engine.info.plan is plan
    assert engine.full_cache.resident_layers == plan.resident_layers
    return plan.capacity, plan.resident_layers


def test_layers_move_away_when_a_prompt_needs_the_room_and_come_back(engine: Engine) -> None:
    assert where(engine) == (MOST, 2) and engine.context == 2048
    assert answered(engine, SHORT).token_ids == wanted(SHORT) and where(engine) == (MOST, 2)
    assert answered(engine, LONG).token_ids == wanted(LONG) and where(engine) == (2048, 1)
    again = [*LONG, *random_prompt(20, 5)]
    assert answered(engine, again).reused_tokens >= len(LONG) - 1, "a conversation goes on where it is"
    assert answered(engine, OTHER).token_ids == wanted(OTHER) and where(engine) == (MOST, 2)


def test_a_conversation_that_outgrows_its_layout_is_read_again(engine: Engine) -> None:
    prompt = random_prompt(MOST - TALK - LONGEST_ROUND - 5, 3)
    assert answered(engine, prompt).token_ids == wanted(prompt) and where(engine) == (MOST, 2)
    more = [*prompt, *random_prompt(TALK, 4)]
    steps = [event for event in engine.generate(more, CONFIG) if isinstance(event, PrefillProgress)]
    assert steps[0].reused_tokens == 0 and where(engine) == (2048, 1)
    assert answered(engine, more).token_ids == wanted(more)


def test_a_text_that_is_read_gets_room_for_talk_behind_it(engine: Engine) -> None:
    book = random_prompt(MOST - TALK - LONGEST_ROUND + 1, 6)
    list(engine.read(book))
    assert where(engine) == (2048, 1)
    assert answered(engine, [*book, 5, 6]).reused_tokens >= len(book) - 10


@pytest.mark.parametrize("saved", [True, False])
def test_a_text_comes_back_where_its_answer_has_room(engine: Engine, saved: bool, tmp_path: Path) -> None:
    """Elsewhere it would be read again: another layout is empty."""
    endless, slots, store = replace(CONFIG, max_new_tokens=MOST), Slots(engine), BookStore(engine, BookFolder(tmp_path))
    list(engine.read([*SHORT, 0]))
    if saved:
        list(store.keep(store.read_book(SHORT, ["book"], 9.0)))
    for text in (OTHER, SHORT):
        prompt = [*text, 5, 6]
        room = len(prompt) + MOST
        list(store.fetch(prompt, room=room) if saved else slots.bring(prompt, room=room))
        with closing(engine.generate(prompt, endless)) as events:
            first, *_ = itertools.takewhile(lambda event: not isinstance(event, RoundDone), events)
    assert isinstance(first, PrefillProgress) and first.reused_tokens >= len(SHORT) - 10
    assert where(engine) == (2048, 1)


def test_races_and_questions_together_find_their_room(engine: Engine) -> None:
    plain = replace(CONFIG, method="autoregressive", max_new_tokens=MOST - len(SHORT))
    lanes = ends(engine.race(SHORT, (plain, CONFIG)))
    assert where(engine) == (2048, 1) and lanes[1].token_ids == lanes[0].token_ids[:8] == wanted(SHORT)
    questions = [Question([*OTHER, n], CONFIG) for n in (5, 6)]
    list(engine.answer_together(questions))
    assert where(engine) == (MOST, 2)


def test_a_layout_is_gone_before_the_next_is_allocated_and_comes_back_where_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a device holds both: caches and recordings refer to one another, and an error to what was allocated."""
    found, held = list[tuple[int, bool]](), list[weakref.ref[torch.Tensor]]()
    plain, most, short, long = replace(CONFIG, method="autoregressive", max_new_tokens=2), 300, SHORT[:50], LONG[:250]

    def levels(config: EngineConfig, placement: Placement, *rest: Any) -> Levels:
        found.append((placement.plan.capacity, any(buffer() is not None for buffer in held)))
        made = Levels(config, placement, *rest)
        held[:] = [weakref.ref(x) for x in (*made.retrieval.k, *made.full.resident(0).buffers)]
        return made

    def prefill(*all: Any) -> Prefill:
        if len(found) == 2:
            raise NotEnoughMemory("No room.", hint="Try again.")
        return Prefill(*all)

    def work() -> None:
        split = tiny_engine(device="cuda", placement="split")
        plan = replace(split.plan, most_resident=most)
        monkeypatch.setattr(engine_module, "TALK", TALK)
        monkeypatch.setattr(engine_module, "Levels", levels)
        monkeypatch.setattr(engine_module, "Prefill", prefill)
        graphs = Graphs(torch.device("cuda", 0))
        engine = Engine(split.config, plan, split.text, split._models, graphs=graphs)
        assert list(engine.generate(short, plain)) and graphs.num_kept
        with pytest.raises(NotEnoughMemory, match=r"No room\."):
            list(engine.generate(long, plain))
        assert list(engine.generate(long, plain))

    with pretended_gpu():
        gc.disable()
        try:
            work()
        finally:
            gc.enable()
        gc.collect()
    assert found == [(most, False), (2048, False), (most, False), (2048, False)]
