"""An engine with its full cache in host memory: the same text, the link's figures, memory that runs out.

On a processor both memories are RAM and copies are made at once; everything else is the code that runs on a GPU.
"""

from typing import Any

import pytest
import torch

from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.layer_storage import OffloadedLayer
from core.caches.oom_fallback import OomFallback, make_full_cache
from core.caches.retrieval import RetrievalCache
from core.config import MOST_QUERIES, PlacementWish, SpeculationConfig
from core.errors import NotEnoughMemory
from core.generation.events import Finished
from core.models.cached_model import CachedModel
from core.ops.backend import STOCK
from core.planning.choices import Choice
from core.planning.measured import Sharing, measure_sharing, share_of
from tests.core.toys import Shortage, answer, fail, random_prompt, tiny_engine, tiny_shape

METHODS = ("autoregressive", "triforce", "retrieval", "draft")


@pytest.fixture(scope="module")
def resident_turns() -> list[tuple[list[int], Finished]]:
    """Prompts of a conversation, the last one edited inside blocks, and the answers of a resident cache."""
    engine, prompt, turns = tiny_engine(prefill_chunk=300), random_prompt(700), []
    for number, method in enumerate((*METHODS, "triforce")):
        turns.append((prompt, answer(engine, prompt, method, 8)))
        prompt = [*prompt, *turns[-1][1].token_ids, *random_prompt(20, number)]
        if number == len(METHODS) - 1:
            prompt = [*prompt[:400], *random_prompt(200, 9)]
    return turns


@pytest.mark.parametrize(("placement", "host_share"), [("split", None), ("offloaded", None), ("offloaded", 0.5)])
def test_a_planned_placement_runs_and_writes_the_same_text_turn_after_turn(
    placement: PlacementWish, host_share: float | None, resident_turns: list[tuple[list[int], Finished]]
) -> None:
    engine = tiny_engine(prefill_chunk=300, placement=placement, cpu_attention_share=host_share)
    plan = engine.info.plan
    assert (plan.placement.value, plan.resident_layers) == (placement, 1 if placement == "split" else 0)
    assert "asked for" in plan.placement.because
    assert engine.info.host_memory is not None
    assert host_share is None or plan.cpu_attention == Choice(0.5, "asked for")
    for number, (prompt, expected) in enumerate(resident_turns):
        found = answer(engine, prompt, expected.method, 8)
        assert found.token_ids == expected.token_ids, expected.method
        assert found.reused_tokens == expected.reused_tokens and (number == 0) == (found.reused_tokens == 0)


def test_bytes_over_the_link_are_those_of_the_blocks_there() -> None:
    engine, prompt = tiny_engine(placement="offloaded"), random_prompt(900)
    stats = answer(engine, prompt, "autoregressive", 10).stats
    # 900 to 909 rows, blocks of 128, at least 128 rows stay: six blocks of two layers, keys and values of 4 x 16 floats
    assert stats.link_bytes == stats.full_passes * 6 * 128 * 2 * (2 * 4 * 16 * 4)
    assert stats.link_bytes < stats.kv_bytes_read
    assert stats.link_bytes_per_second == pytest.approx(stats.link_bytes / stats.seconds_by_part["full"])
    assert engine.info.link is not None and stats.link_calibration == engine.info.link.value
    assert stats.link_share == pytest.approx((stats.link_bytes_per_second or 0) / engine.info.link.value)
    resident = answer(tiny_engine(), prompt, "autoregressive", 10).stats
    assert (resident.link_bytes, resident.link_bytes_per_second, resident.link_share) == (0, None, None)


def test_the_host_s_share_is_measured_where_a_device_would_wait_for_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "core.generation.placement"
    monkeypatch.setattr(f"{place}.choose_cpu_attention", lambda *_, **__: Choice(None, "to be measured"))
    asked: list[object] = []
    monkeypatch.setattr(f"{place}.measure_sharing", lambda *shape: (asked.append(shape), Sharing(2e-3, 2e-3, 2e-3))[1])
    engine, prompt = tiny_engine(placement="offloaded"), random_prompt(300)
    share = engine.plan.cpu_attention
    assert share == engine.info.plan.cpu_attention and share.value == 0.5 and "both end together" in share.because
    assert asked == [((2, 4, 64, 16), 4, 8, torch.float32, torch.device("cpu"))]
    assert answer(engine, prompt).token_ids == answer(tiny_engine(), prompt).token_ids
    monkeypatch.setattr(f"{place}.measure_sharing", Shortage(lambda: None, 0, 1))
    assert tiny_engine(placement="offloaded").plan.cpu_attention == Choice(0.0, "the device had no room to measure it")


def test_a_calibration_takes_the_real_shape_and_both_times() -> None:
    for dtype in (torch.float32, torch.float16):
        found = measure_sharing((2, 2, 64, 16), 4, 8, dtype, torch.device("cpu"), 1 << 20)
        assert found.link > 0 and found.host > 0 and found.alone > 0


def test_a_share_must_save_a_tenth_of_what_the_link_takes_alone() -> None:
    """Where host memory serves both no faster than the link alone, the host leaves it alone."""
    assert share_of(Sharing(1e-3, 1e-3, 1e-3)).value == 0.5 and share_of(Sharing(1e-3, 3e-3, 1e-3)).value == 0.25
    assert share_of(Sharing(1.9e-3, 1.9e-3, 1e-3)).value == share_of(Sharing(1.3e-3, 3.9e-3, 1e-3)).value == 0.0
    assert share_of(Sharing(1.7e-3, 1.7e-3, 1e-3)).value == 0.5, "0.85 of the link's own time"


@pytest.mark.parametrize("cpu_attention_share", [None, pytest.param(0.5, marks=pytest.mark.slow)])
def test_rounds_of_48_guesses_write_plain_text_and_choose_by_all_queries(
    cpu_attention_share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = {"query_window": MOST_QUERIES, "cpu_attention_share": cpu_attention_share}
    long = SpeculationConfig(gamma1=3, gamma2=48, max_gamma2=48, adaptive=False)
    engine, prompt = tiny_engine(noise=0.0, budget=384, offload=Offload(block_rows=64), **settings), random_prompt(500)
    plain = answer(engine, prompt, "autoregressive", 12)
    voted, lowest, ask, truncate = set(), [], FullCache.recent_queries, OffloadedLayer.truncate

    def recent_queries(self: FullCache, layer: int, num_queries: int) -> torch.Tensor:
        found = ask(self, layer, num_queries)
        voted.add((num_queries, found.shape[1]))
        return found

    def slide(self: RetrievalCache) -> None:
        raise AssertionError("recent rows must not be dropped between two selections")

    def watched(self: OffloadedLayer, length: int) -> None:
        lowest.append(length - self._offloaded)
        truncate(self, length)

    list(engine.read(prompt))
    monkeypatch.setattr(FullCache, "recent_queries", recent_queries)
    monkeypatch.setattr(RetrievalCache, "_slide", slide)
    monkeypatch.setattr(OffloadedLayer, "truncate", watched)
    fast = answer(engine, prompt, "triforce", 12, speculation=long)
    level2 = fast.stats.level2
    assert fast.token_ids == plain.token_ids and fast.stats.full_passes < plain.stats.full_passes
    assert level2 is not None and level2.gamma_mean == 48 and 0 < (level2.acceptance or 0) < 1, "verdicts must be mixed"
    assert voted == {(MOST_QUERIES, MOST_QUERIES)}
    assert min(lowest) >= 0, "forgetting guesses never reaches back into a block on the host"


# -------------------- out of memory


def test_reading_goes_on_with_fewer_resident_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = tiny_engine(prefill_chunk=200), random_prompt(900)
    shortage = fail(monkeypatch, engine.full_cache, "attend", 5, 1)  # inside the third piece, after its first layer
    found = answer(engine, prompt, tokens=12)
    placement = engine.info.plan.placement
    assert shortage.failed == 1 and engine.info.plan.resident_layers == 1 and engine.info.host_memory is not None
    assert placement.value == "split" and "ran out of memory" in placement.because
    assert found.token_ids == answer(tiny_engine(prefill_chunk=200), prompt, tokens=12).token_ids


@pytest.mark.parametrize(
    ("method", "part"),
    [("autoregressive", "full"), ("triforce", "full"), ("triforce", "draft"), ("retrieval", "retrieval")],
)
def test_an_answer_goes_on_where_memory_ran_out(method: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = tiny_engine(), random_prompt(300)
    expected, model = answer(engine, prompt, method, 12).token_ids, getattr(engine._levels.parts, part)
    assert isinstance(model, CachedModel)
    shortage = fail(monkeypatch, model.cache, "attend", 7, 2)  # two in a row: both layers move
    assert answer(engine, prompt, method, 12).token_ids == expected
    assert shortage.failed == 2 and engine.info.plan.resident_layers == 0
    more = [*prompt, *expected, 5, 6]
    again = answer(engine, more, method, 8)
    assert again.token_ids == answer(tiny_engine(), more, method, 8).token_ids and again.reused_tokens >= len(prompt)


@pytest.mark.parametrize("method", ["triforce", "h2o"])
def test_choosing_chunks_may_run_out_of_memory_too(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = tiny_engine(), random_prompt(300)
    expected = answer(engine, prompt, method, 8).token_ids
    shortage = fail(monkeypatch, engine.full_cache, "gather", 1, 1)
    answer(engine, [*prompt, 7], method, 8)
    assert shortage.failed == (1 if shortage.calls > 1 else 0)
    assert answer(engine, prompt, method, 8).token_ids == expected


@pytest.mark.parametrize("method", ["streamingllm", "h2o"])
def test_the_cache_of_a_lossy_method_that_finds_no_room_takes_a_layer_s(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made when it is first asked for, and no plan has room for it."""
    engine, prompt = tiny_engine(), random_prompt(300)
    expected = answer(tiny_engine(), prompt, method).token_ids
    short = Shortage(KVShape.allocate, 0, 1)
    monkeypatch.setattr(KVShape, "allocate", lambda shape, rows: short(shape, rows))
    assert answer(engine, prompt, method).token_ids == expected and engine.info.plan.resident_layers == 1


def test_where_nothing_can_move_one_error_tells_so_and_the_conversation_is_intact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, prompt = tiny_engine(placement="offloaded"), random_prompt(300)
    expected = answer(engine, prompt).token_ids
    with monkeypatch.context() as patch:
        fail(patch, engine.full_cache, "attend", 9, 1)
        with pytest.raises(NotEnoughMemory, match="lies on the host already") as error:
            answer(engine, prompt)
        assert "--context" in error.value.hint
    after = answer(engine, prompt)
    assert after.token_ids == expected and after.reused_tokens == len(prompt) - 1


def filled(num_rows: int, rows: int = 256) -> tuple[FullCache, torch.Tensor]:
    """A cache of two layers that hold the same random keys and values, and these."""
    cache, seen = FullCache(tiny_shape(layers=2), rows, 4), torch.randn(2, 1, 1, num_rows, 4)
    cache.begin(0, num_rows)
    for layer in range(2):
        cache.stage(layer, *seen)
    cache.commit(num_rows)
    return cache, seen


def test_a_layer_moves_only_where_the_host_holds_its_blocks_and_for_a_moment_its_rows_too() -> None:
    full, _ = filled(40, 100)
    free = [(128 + 40) * full.shape.bytes_per_token // 2 - 1]  # blocks of 64 rows hold 100, and 40 were seen
    oom_fallback = OomFallback(full, 64, lambda: free[0])
    with pytest.raises(NotEnoughMemory, match="no room for a layer"):
        oom_fallback.retry(Shortage(lambda: None, 0, 1), lambda: None)
    free[0] += 1
    assert oom_fallback.retry(Shortage(lambda: full.resident_layers, 0, 1), lambda: None) == 1


def test_a_layer_that_finds_no_room_to_move_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, seen = filled(100)
    monkeypatch.setattr(OffloadedLayer, "__init__", Shortage(lambda: None, 0, 1))
    with pytest.raises(torch.OutOfMemoryError):
        cache.offload_one(64)
    assert cache.resident_layers == 2 and torch.equal(cache.rows(1, 0, 100)[0], seen[0][0])


def test_a_device_that_is_full_at_the_start_gets_fewer_layers() -> None:
    tried: list[int | None] = []

    def cache(*args: object, offload: Offload | None, **keywords: object) -> FullCache:
        tried.append(offload.num_resident if offload else None)
        if offload is None or offload.num_resident > most:
            raise torch.OutOfMemoryError("injected")
        return FullCache(*args, offload=offload, **keywords)  # type: ignore[arg-type]

    def made() -> FullCache:
        shape = tiny_shape(layers=3)
        return make_full_cache(shape, 256, 4, possible=256, backend=STOCK, offload=None, block_rows=64, kind=cache)

    most = 1
    assert made().resident_layers == 1 and tried == [None, 2, 1]
    most = -1
    with pytest.raises(NotEnoughMemory, match="no room for the caches of 256 tokens"):
        made()
