"""Reading layer by layer against its twin, chunk by chunk: the same rows, landmarks, queries, laws and texts.

Layer by layer, attention sees plain rows wherever a layer lies, so everything equals a resident cache's chunks to the
last bit. An offloaded cache's chunks merge partial attention by log-sum-exp, which rounds otherwise: there the bound is
1e-4 of numbers of order 1.
"""

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.layerwise import LayerwisePass
from core.caches.tokens import Context
from core.config import EngineConfig, GenerationConfig, PlacementWish
from core.engine import Engine
from core.generation.events import PrefillProgress
from core.generation.loaded import LoadedModels
from core.generation.prefill import Prefill
from core.models.cached_model import CachedModel
from core.models.layerwise import DecoderLayers
from core.planning.plan import make_plan
from tests.core import toys
from tests.core.toys import CPU, MACHINE, Letters, loaded, random_prompt, sized, tiny_config, tiny_engine

PLACES = {
    "resident": None,
    "split": Offload(num_resident=1, block_rows=64, num_slots=2),
    "offloaded": Offload(block_rows=64, num_slots=3),
}
CASES = [
    *(("llama", 2, place, blocks) for place, blocks in (("resident", 2), ("split", 1), ("split", 4), ("offloaded", 2))),
    ("qwen3", 2, "offloaded", 4),
    ("qwen2", 4, "split", 2),
    ("mistral", 4, "resident", 1),
]
CHUNK, ROOM = 96, 1100
READ_TOKENS = 700  # not a multiple of the chunk, nor of any block below


def read(
    family: str, kv_heads: int, place: str, tokens: list[int], *, by_layers: int = 0
) -> tuple[FullCache, CachedModel]:
    """A cache that has read all tokens: in blocks of `by_layers` layer by layer, or chunk by chunk."""
    model = loaded(tiny_config(family, layers=3, kv_heads=kv_heads), 7)
    cache = FullCache(model.shape, ROOM, 8, offload=PLACES[place])
    judge = CachedModel("full", model.module, cache, CPU)
    read_on(cache, judge, tokens, by_layers=by_layers)
    return cache, judge


def read_on(cache: FullCache, judge: CachedModel, tokens: list[int], *, by_layers: int = 0) -> None:
    layers, context = DecoderLayers.of(judge.module), Context(tokens)
    assert layers is not None
    work = cache.workspace(len(tokens))
    while (start := cache.length) < len(tokens):
        stop = min(start + (by_layers or CHUNK), len(tokens))
        if not by_layers:
            judge.feed(context, range(start, stop), 1)
            continue
        reading = cache.layerwise(stop - start, work)
        hidden = layers.embed(torch.tensor(context.span(start, stop)))
        for layer in range(cache.shape.num_layers):
            reading.enter(layer)
            for at in range(start, stop, CHUNK):
                end = min(at + CHUNK, stop)
                layers.step(layer, hidden[:, at - start : end - start], reading.begin(at, end - at), reading)
            reading.leave(layer)
        reading.commit()
        reading.close()


def everything(cache: FullCache) -> list[Tensor]:
    """All that a reading leaves behind."""
    found = []
    for layer in range(cache.shape.num_layers):
        found += [*cache.rows(layer, 0, cache.length), cache.beside(layer, cache.length)[0].clone()]
    return found


def alike(a: FullCache, b: FullCache, tolerance: float = 0.0) -> bool:
    assert a.length == b.length
    pairs = list(zip(everything(a), everything(b), strict=True))
    layers = [layer for layer in range(a.shape.num_layers) if a.has_landmarks(layer) and b.has_landmarks(layer)]
    means = ([cache.landmarks(layer, a.length // cache.chunk_size) for layer in layers] for cache in (a, b))
    same = all(torch.allclose(x, y, atol=tolerance or 1e-6) for x, y in zip(*means, strict=True))  # sums in any order
    return same and all(torch.allclose(x, y, atol=tolerance, rtol=0) for x, y in pairs)


@pytest.mark.parametrize(("family", "kv_heads", "place", "blocks"), CASES)
def test_layer_by_layer_leaves_what_chunk_by_chunk_leaves(family: str, kv_heads: int, place: str, blocks: int) -> None:
    tokens, by_layers = random_prompt(READ_TOKENS), 8 // blocks * CHUNK
    resident, slow = read(family, kv_heads, "resident", tokens)
    own, fast = read(family, kv_heads, place, tokens, by_layers=by_layers)
    assert alike(resident, own), "to the last bit"
    chunked, _ = read(family, kv_heads, place, tokens)
    assert alike(chunked, own, 1e-4)
    assert own.link_bytes == chunked.link_bytes, "the same blocks lie on the host"
    more = Context([*tokens, *random_prompt(9, 1)])
    a, b = slow.logits(more, 9), fast.logits(more, 9)
    assert torch.equal(a, b) if place == "resident" else torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(("family", "place"), [("llama", "resident"), ("llama", "split"), ("qwen3", "offloaded")])
def test_a_conversation_goes_on_behind_either(family: str, place: str) -> None:
    """A turn, a rewind into the blocks on the host, and another long reading behind it."""
    first, second = random_prompt(500), random_prompt(410, 2)
    caches = []
    for where, by_layers in (("resident", 0), (place, 3 * CHUNK)):
        cache, judge = read(family, 2, where, first, by_layers=by_layers)
        cache.truncate(333)
        read_on(cache, judge, [*first[:333], *second], by_layers=by_layers)
        caches.append(cache)
    assert alike(*caches)


@pytest.mark.parametrize("fault", ["a lost workspace", "positions of the block", "one layer of queries"])
def test_a_fault_would_be_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: each of these is the smallest mistake of its kind."""
    tokens = random_prompt(READ_TOKENS)
    right, _ = read("qwen3", 2, "resident", tokens)
    if fault == "a lost workspace":  # an earlier block's rows do not come back
        real = LayerwisePass.enter
        monkeypatch.setattr(LayerwisePass, "enter", lambda self, layer: None if layer == 1 else real(self, layer))
    elif fault == "positions of the block":
        begin = LayerwisePass.begin
        monkeypatch.setattr(LayerwisePass, "begin", lambda self, at, n: begin(self, at, n) - at % (2 * CHUNK))
    else:
        log = FullCache.attend_in
        monkeypatch.setattr(
            FullCache,
            "attend_in",
            lambda self, store, layer, at, q, *rest: log(self, store, layer, at, q * (1 + 1e-3 * layer), *rest),
        )
    wrong, _ = read("qwen3", 2, "offloaded", tokens, by_layers=2 * CHUNK)
    assert not alike(right, wrong, 1e-4)


@pytest.mark.parametrize("place", PLACES)
def test_a_block_that_is_cut_off_leaves_nothing(place: str) -> None:
    tokens = random_prompt(READ_TOKENS)
    cache, judge = read("llama", 2, place, tokens[:400], by_layers=2 * CHUNK)
    before = [x.clone() for x in everything(cache)]
    layers = DecoderLayers.of(judge.module)
    assert layers is not None
    reading = cache.layerwise(300, cache.workspace(700))
    hidden = layers.embed(torch.tensor(tokens[400:700]))
    for layer in range(2):  # two of three layers, and the second one only in part
        reading.enter(layer)
        layers.step(layer, hidden[:, :CHUNK], reading.begin(400, CHUNK), reading)
        if layer == 0:
            layers.step(layer, hidden[:, CHUNK:], reading.begin(400 + CHUNK, 300 - CHUNK), reading)
            reading.leave(layer)
    reading.close()
    assert cache.length == 400 and all(map(torch.equal, before, everything(cache)))
    read_on(cache, judge, tokens, by_layers=2 * CHUNK)
    whole, slow = read("llama", 2, "resident", tokens[:400])
    read_on(whole, slow, tokens)
    assert alike(cache, whole)


def test_what_crosses_the_link_grows_with_the_text_and_not_with_its_square() -> None:
    tokens = random_prompt(READ_TOKENS)
    brought, stored = {}, {}
    for by_layers in (0, 2 * CHUNK, 8 * CHUNK):
        cache, _ = read("llama", 2, "offloaded", tokens, by_layers=by_layers)
        brought[by_layers], stored[by_layers] = cache.link_traffic
    assert brought[8 * CHUNK] == 0, "one block: nothing comes back"
    # blocks of 192 tokens begin with 0, 0, 192 and 448 rows there (128 at least stay), chunks of 96 with 0 to 512
    row = 3 * 2 * 2 * 16 * 4
    assert brought[2 * CHUNK] == row * sum((start - 128) // 64 * 64 for start in (192, 384, 576))
    assert brought[0] == row * sum((start - 128) // 64 * 64 for start in range(192, 700, 96))
    assert stored[0] == stored[2 * CHUNK] == stored[8 * CHUNK] == cache.link_bytes


# -------------------- the engine


def engine_reading_blocks(blocks: int, placement: PlacementWish = "offloaded") -> Engine:
    engine = tiny_engine(prefill_chunk=100, placement=placement)
    assert engine.plan.prefill_block.value > 1000, engine.plan.prefill_block.because
    engine._prefill._block = blocks
    return engine


answer = partial(toys.answer, tokens=6)


def test_progress_is_the_share_of_the_work_in_all_layers() -> None:
    engine = engine_reading_blocks(400)
    events = list(engine.read(random_prompt(1000)))
    assert [e.done_tokens for e in events[:9]] == [0, 50, 100, 150, 200, 250, 300, 350, 400]
    assert [e.kept_tokens for e in events[:9]] == [0] * 8 + [400]
    done = [e.done_tokens for e in events]
    assert done == sorted(done) and done[-1] == 999 == events[-1].kept_tokens and events[-1].remaining_seconds == 0
    left = [e.remaining_seconds for e in events]
    assert left[0] is None and all(seconds is not None and seconds >= 0 for seconds in left[1:])


def stopped(engine: Engine, prompt: list[int], at: int, how: str) -> None:
    cancel = threading.Event()
    events = engine.generate(prompt, GenerationConfig(), cancel)
    for event in events:
        if isinstance(event, PrefillProgress) and event.done_tokens >= at:
            if how == "closed":
                events.close()  # type: ignore[attr-defined]
                return
            cancel.set()


@pytest.mark.parametrize(("at", "kept", "how"), [(350, 0, "closed"), (650, 400, "cancelled")])
def test_stopping_keeps_whole_blocks_and_reading_goes_on_there(at: int, kept: int, how: str) -> None:
    engine, prompt = engine_reading_blocks(400), random_prompt(1000)
    stopped(engine, prompt, at, how)
    assert engine.cached_prefix(prompt) == kept == engine.full_cache.length
    found, whole = answer(engine, prompt), answer(tiny_engine(prefill_chunk=100), prompt)
    assert found.token_ids == whole.token_ids and found.reused_tokens == kept
    other = random_prompt(600, 5)
    stopped(engine, other, 300, how)
    assert answer(engine, other).token_ids == answer(tiny_engine(prefill_chunk=100), other).token_ids


def short_of_memory(real: Callable[..., None], times: int) -> Callable[..., None]:
    calls = []

    def step(self: DecoderLayers, *args: object) -> None:
        calls.append(args)
        if 3 < len(calls) <= 3 + times:
            raise torch.OutOfMemoryError("injected")
        real(self, *args)

    return step


@pytest.mark.parametrize(("times", "block"), [(1, 400), (2, 200), (3, 0)])
def test_a_device_that_is_full_reads_smaller_blocks_and_then_chunks(
    times: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, prompt = engine_reading_blocks(800), random_prompt(900)
    monkeypatch.setattr(DecoderLayers, "step", short_of_memory(DecoderLayers.step, times))
    found = answer(engine, prompt)
    assert engine.plan.prefill_block.value == engine.info.plan.prefill_block.value == block
    assert "ran out of memory" in engine.plan.prefill_block.because
    assert found.token_ids == answer(tiny_engine(prefill_chunk=100), prompt).token_ids


def test_a_workspace_that_finds_no_room_leaves_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = engine_reading_blocks(800), random_prompt(700)

    def none(num_rows: int) -> None:
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(engine.full_cache, "workspace", none)
    assert answer(engine, prompt).token_ids == answer(tiny_engine(prefill_chunk=100), prompt).token_ids
    assert engine.plan.prefill_block.value == 0


def test_short_readings_and_other_families_go_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefill, "_by_layers", None)  # nobody may call it
    engine = engine_reading_blocks(400)
    list(engine.read(random_prompt(101)))
    list(tiny_engine(prefill_chunk=100).read(random_prompt(900)))
    target = loaded(tiny_config(), 3)
    target.module.config.model_type = "granite"  # whose forward scales the embeddings
    assert DecoderLayers.of(target.module) is None
    config = EngineConfig(context=2048, prefill_chunk=100, placement="offloaded", gpu_memory_gib=1.0)
    other = Engine(config, make_plan(sized(target.dims), None, config, MACHINE), Letters(), LoadedModels(target=target))
    assert other.plan.prefill_block.value == 0 and "not called one by one" in other.plan.prefill_block.because
    list(other.read(random_prompt(900)))
