"""Reading layer by layer against its twin, chunk by chunk: the same rows, landmarks, queries, laws and texts.

Layer by layer, attention sees plain rows wherever a layer lies, so everything equals a resident cache's chunks to the
last bit. An offloaded cache's chunks merge partial attention by log-sum-exp, which rounds otherwise: there the bound is
1e-4 of numbers of order 1.
"""

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.tokens import Context
from core.config import EngineConfig, GenerationConfig
from core.engine import Engine
from core.generation.events import PrefillProgress
from core.generation.levels import LoadedModels
from core.generation.prefill import USUAL_DOUBLING, Prefill, ReadingPace, work_of
from core.models.cached_model import CachedModel
from core.models.layerwise import DecoderLayers
from core.planning.choices import Choice
from core.planning.plan import make_plan
from tests.core import toys
from tests.core.toys import (
    CPU,
    MACHINE,
    Letters,
    Shortage,
    fail,
    loaded,
    random_prompt,
    sized,
    tiny_config,
    tiny_engine,
)

PLACES = {
    "resident": None,
    "split": Offload(num_resident=1, block_rows=64, num_slots=2),
    "offloaded": Offload(block_rows=64, num_slots=3),
}
CHUNK = 96
TOKENS = random_prompt(700)  # not a multiple of the chunk, nor of any block below


class Reader:
    """A model of three layers and its cache, which reads in blocks layer by layer, or chunk by chunk."""

    def __init__(self, family: str = "llama", kv_heads: int = 2, place: str = "resident") -> None:
        model = loaded(tiny_config(family, layers=3, kv_heads=kv_heads), 7)
        self.cache = FullCache(model.shape, 1100, 8, offload=PLACES[place])
        self.model = CachedModel("full", model.module, self.cache, CPU)
        layers = DecoderLayers.of(model.module)
        assert layers is not None
        self.layers = layers

    def read(self, tokens: list[int], block: int = 0) -> "Reader":
        work = self.cache.workspace(len(tokens))
        while (start := self.cache.length) < len(tokens):
            stop = min(start + (block or CHUNK), len(tokens))
            if block:
                self.read_block(tokens[:stop], work)
            else:
                self.model.feed(Context(tokens), range(start, stop), 1)
        return self

    def read_block(self, tokens: list[int], work: Any, chunks: tuple[int, ...] = (99, 99, 99)) -> None:
        """The rest of these tokens; of each layer at most so many chunks, and if not all, nothing stays."""
        start, stop = self.cache.length, len(tokens)
        reading = self.cache.layerwise(stop - start, work)
        hidden = self.layers.embed(torch.tensor(tokens[start:]))
        for layer, most in enumerate(chunks):
            if most:
                reading.enter(layer)
            for at in range(start, stop, CHUNK)[:most]:
                end = min(at + CHUNK, stop)
                positions = reading.begin(at, end - at)
                self.layers.step(layer, hidden[:, at - start : end - start], positions, reading)
                if end == stop:
                    reading.leave(layer)
        if min(chunks) == 99:
            reading.commit()
        reading.close()

    def everything(self) -> list[Tensor]:
        """All that a reading leaves behind."""
        found, cache = [], self.cache
        for layer in range(cache.shape.num_layers):
            found += [*cache.rows(layer, 0, cache.length), cache.beside(layer, cache.length)[0].clone()]
        return found


def alike(one: Reader, other: Reader, tolerance: float = 0.0) -> bool:
    a, b = one.cache, other.cache
    assert a.length == b.length
    layers = [layer for layer in range(a.shape.num_layers) if a.has_landmarks(layer) and b.has_landmarks(layer)]
    means = ([cache.landmarks(layer, a.length // cache.chunk_size) for layer in layers] for cache in (a, b))
    same = all(torch.allclose(x, y, atol=tolerance or 1e-6) for x, y in zip(*means, strict=True))  # sums in any order
    pairs = zip(one.everything(), other.everything(), strict=True)
    return same and all(torch.allclose(x, y, atol=tolerance, rtol=0) for x, y in pairs)


@pytest.mark.parametrize(
    ("family", "kv_heads", "place", "block"),
    [
        ("llama", 2, "resident", 4 * CHUNK),
        ("llama", 2, "split", 8 * CHUNK),
        ("llama", 2, "split", 2 * CHUNK),
        ("llama", 2, "offloaded", 4 * CHUNK),
        ("qwen3", 2, "offloaded", 2 * CHUNK),
        ("qwen2", 4, "split", 4 * CHUNK),
        ("mistral", 4, "resident", 8 * CHUNK),
    ],
)
def test_layer_by_layer_leaves_what_chunk_by_chunk_leaves(family: str, kv_heads: int, place: str, block: int) -> None:
    """Also behind a rewind into the blocks on the host, with another long reading."""
    slow, fast = Reader(family, kv_heads).read(TOKENS), Reader(family, kv_heads, place).read(TOKENS, block)
    assert alike(slow, fast), "to the last bit"
    chunked = Reader(family, kv_heads, place).read(TOKENS)
    assert alike(chunked, fast, 1e-4)
    assert fast.cache.link_bytes == chunked.cache.link_bytes, "the same blocks lie on the host"
    more = Context([*TOKENS, *random_prompt(9, 1)])
    a, b = slow.model.logits(more, 9), fast.model.logits(more, 9)
    assert torch.equal(a, b) if place == "resident" else torch.allclose(a, b, atol=1e-4)
    again = [*TOKENS[:333], *random_prompt(410, 2)]
    for reader, size in ((slow, 0), (fast, block)):
        reader.cache.truncate(333)
        reader.read(again, size)
    assert alike(slow, fast)


@pytest.mark.parametrize("place", PLACES)
def test_a_block_that_is_cut_off_leaves_nothing(place: str) -> None:
    reader = Reader(place=place).read(TOKENS[:400], 2 * CHUNK)
    before = [x.clone() for x in reader.everything()]
    reader.read_block(TOKENS, reader.cache.workspace(700), (99, 1, 0))  # two of three layers, the second only in part
    assert reader.cache.length == 400 and all(map(torch.equal, before, reader.everything()))
    assert alike(reader.read(TOKENS, 2 * CHUNK), Reader().read(TOKENS[:400]).read(TOKENS))


def test_what_crosses_the_link_grows_with_the_text_and_not_with_its_square() -> None:
    brought, stored = {}, set()
    for block in (0, 2 * CHUNK, 8 * CHUNK):
        cache = Reader(kv_heads=2, place="offloaded").read(TOKENS, block).cache
        brought[block], at_host = cache.link_traffic
        stored |= {at_host, cache.link_bytes}
    # blocks of 192 tokens begin with 0, 0, 192 and 448 rows there (128 at least stay), chunks of 96 with 0 to 512
    row = 3 * 2 * 2 * 16 * 4
    assert brought == {
        0: row * sum((start - 128) // 64 * 64 for start in range(192, 700, 96)),
        2 * CHUNK: row * sum((start - 128) // 64 * 64 for start in (192, 384, 576)),
        8 * CHUNK: 0,  # one block: nothing comes back
    }
    assert len(stored) == 1


# -------------------- the engine


def engine_reading_blocks(blocks: int) -> Engine:
    engine = tiny_engine(prefill_chunk=100, placement="offloaded")
    assert engine.plan.prefill_block.value > 1000, engine.plan.prefill_block.because
    engine._placement.plan = replace(engine.plan, prefill_block=Choice(blocks, "chosen"))
    return engine


answer = partial(toys.answer, tokens=6)


def in_chunks(prompt: list[int]) -> tuple[int, ...]:
    return answer(tiny_engine(prefill_chunk=100), prompt).token_ids


def test_progress_is_the_share_of_the_work_in_all_layers() -> None:
    events = list(engine_reading_blocks(400).read(random_prompt(1000)))
    assert [e.done_tokens for e in events[:9]] == [0, 50, 100, 150, 200, 250, 300, 350, 400]
    assert [e.kept_tokens for e in events[:9]] == [0] * 8 + [400]
    done, left = [e.done_tokens for e in events], [e.remaining_seconds for e in events]
    assert done == sorted(done) and done[-1] == 999 == events[-1].kept_tokens and left[-1] == 0
    assert left[0] is None and all(seconds is not None and seconds >= 0 for seconds in left[1:])


@pytest.mark.parametrize(("at", "kept", "how"), [(350, 0, "closed"), (650, 400, "cancelled")])
def test_stopping_keeps_whole_blocks_and_reading_goes_on_there(at: int, kept: int, how: str) -> None:
    engine, prompt, other = engine_reading_blocks(400), random_prompt(1000), random_prompt(600, 5)
    for text, stop in ((prompt, at), (other, 300)):
        cancel = threading.Event()
        events: Any = engine.generate(text, GenerationConfig(), cancel)
        for event in events:
            if isinstance(event, PrefillProgress) and event.done_tokens >= stop:
                if how == "closed":
                    events.close()
                    break
                cancel.set()
        if text is prompt:
            assert engine.cached_prefix(prompt) == kept == engine.full_cache.length
        found = answer(engine, text)
        assert found.token_ids == in_chunks(text) and found.reused_tokens == (kept if text is prompt else 0)


@pytest.mark.parametrize(("times", "block"), [(1, 400), (2, 200), (3, 0), (0, 0)])
def test_a_device_that_is_full_reads_smaller_blocks_and_then_chunks(
    times: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 times: there is no room for the workspace."""
    engine, prompt = engine_reading_blocks(800), random_prompt(900)
    shortage = Shortage(DecoderLayers.step, 3, times)
    monkeypatch.setattr(DecoderLayers, "step", lambda *given: shortage(*given))
    if not times:
        fail(monkeypatch, engine.full_cache, "workspace", 0, 99)
    assert answer(engine, prompt).token_ids == in_chunks(prompt)
    assert engine.plan.prefill_block.value == engine.info.plan.prefill_block.value == block
    assert "ran out of memory" in engine.plan.prefill_block.because


def test_short_readings_and_other_families_go_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefill, "_by_layers", None)  # nobody may call it
    list(engine_reading_blocks(400).read(random_prompt(101)))
    list(tiny_engine(prefill_chunk=100).read(random_prompt(900)))
    target = loaded(tiny_config(), 3)
    target.module.config.model_type = "granite"  # whose forward scales the embeddings
    assert DecoderLayers.of(target.module) is None
    config = EngineConfig(context=2048, prefill_chunk=100, placement="offloaded", gpu_memory_gib=1.0)
    other = Engine(config, make_plan(sized(target.dims), None, config, MACHINE), Letters(), LoadedModels(target=target))
    assert other.plan.prefill_block.value == 0 and "not called one by one" in other.plan.prefill_block.because
    list(other.read(random_prompt(900)))


# -------------------- the time that is left


def learnt(pace: ReadingPace, doubling: float, until: int) -> tuple[float, float]:
    """Read chunk by chunk on a machine where a token costs twice as much at `doubling`; the seconds, and of 120K."""

    def seconds(tokens: int) -> float:
        return 1e-3 * (tokens + tokens * tokens / 2 / doubling)

    for start in range(0, until, 1024):
        pace.learn(work_of(start), work_of(start + 1024), seconds(start + 1024) - seconds(start))
    return seconds(until), seconds(122_880)


@pytest.mark.parametrize(("doubling", "within"), [(USUAL_DOUBLING, 0.01), (2000.0, 0.15), (60000.0, 0.25)])
def test_the_time_left_is_right_after_a_tenth_whatever_attention_costs(doubling: float, within: float) -> None:
    pace = ReadingPace()
    took, whole = learnt(pace, doubling, 12_288)
    found = pace.remaining(work_of(0), work_of(12_288), work_of(122_880), took)
    assert found == pytest.approx(whole - took, rel=within)


def test_nothing_is_known_before_the_first_chunk_of_all_and_a_question_tells_nothing_of_a_book() -> None:
    pace = ReadingPace()
    assert pace.remaining(work_of(0), work_of(0), work_of(4096), 0.0) is None
    pace.remaining(work_of(0), work_of(20), work_of(20), 1.0)
    assert pace.whole(122_880) is None, "a question of a few words"
    took, whole = learnt(pace, 2000.0, 16_384)
    pace.remaining(work_of(0), work_of(16_384), work_of(16_384), took)
    assert pace.remaining(work_of(0), work_of(0), work_of(16_384), 0.0) == pytest.approx(took)
    pace.remaining(work_of(16_384), work_of(16_404), work_of(16_404), 1.0)
    assert pace.whole(16_384) == pytest.approx(took) and pace.whole(122_880) == pytest.approx(whole, rel=0.15)
