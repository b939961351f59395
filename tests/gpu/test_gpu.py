"""The CUDA paths against the processor's: on a GPU with `-m gpu`, elsewhere on a pretended one with fewer tokens.

What is marked `gpu` by itself asks for kernels' own rounding or an allocator, which only a GPU has.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from assets.tools.widen import pair_files
from core.caches.full_parts import Offload
from core.caches.layer_storage import OffloadedLayer
from core.config import EngineConfig, GenerationConfig, PlacementWish, RetrievalConfig, SamplingParams
from core.engine import Engine
from core.generation.levels import LoadedModels
from core.models.linear import OutputLinear
from core.models.loader import LoadedModel
from core.models.self_draft import FEW_ROWS, GROUP, SelfDraftLinear, is_int4, round_to_levels, widened
from core.models.weights import prepared
from core.ops.attention import attend, attend_reference, partial_reference
from core.ops.graphs import Graphs
from core.ops.host_attention import HostAttention
from core.ops.transfer import HostRows
from core.planning.choices import Choice
from core.planning.hardware import used_memory_bytes
from core.planning.plan import make_plan
from tests.core import toys
from tests.core.cuda_stubs import pretended_gpu
from tests.core.toys import FIXED, MACHINE, Letters, answer, ends, fail, loaded, random_prompt, sized, tiny_config

REAL = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if REAL else []
CUDA = torch.device("cuda")
PROMPT, NEW = (700, 60) if REAL else (300, 8)
METHODS = ("autoregressive", *(("draft", "retrieval") if REAL else ()), "triforce", "triforce-lookup")
engine_on = partial(toys.engine_on, context=1024 if REAL else 512)
AWAY = Offload(block_rows=64, num_slots=2)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, top_k=20)


def written(engine: Engine, method: str, sampling: SamplingParams = SamplingParams()) -> tuple[int, ...]:  # noqa: B008
    return answer(engine, random_prompt(PROMPT), method, NEW, sampling=sampling).token_ids


@pytest.fixture(scope="module")
def expected() -> dict[int, tuple[int, ...]]:
    """What the processor writes, by heads of keys and values."""
    return {heads: written(engine_on("cpu", kv_heads=heads), "autoregressive") for heads in (2, 4)}


@pytest.fixture(autouse=True)
def gpu(expected: object) -> Iterator[None]:
    with nullcontext() if REAL else pretended_gpu():
        yield


def assert_parts_were_used(engine: Engine, offload: Offload | None = None, share: float = 0.0) -> None:
    """After an answer of a method that speculates: chunks were chosen, and host parts brought and attended to."""
    chosen, config = engine._levels.retrieval.held_chunks(), engine.config.retrieval
    eligible = (PROMPT - config.local_window) // config.chunk_size
    assert 1 < chosen.shape[2] <= eligible // 3, "there was nothing to choose"
    assert len({tuple(chunks) for chunks in chosen.flatten(0, 1).tolist()}) > 1, "every head chose the same"
    away = [layer for layer in engine.full_cache._layers if isinstance(layer, OffloadedLayer)]
    assert len(away) == (2 - offload.num_resident if offload else 0), "resident layers are not those asked for"
    if offload is not None:
        assert min(layer.chunks_away(8) for layer in away) > 0, "nothing lies on the host"
        assert engine.full_cache.link_traffic[0] > 8 * engine.full_cache.link_bytes > 0, "passes brought nothing"
        assert engine.info.host_memory is not None and engine.info.host_memory.value == "pinned"
    assert {bool(layer._helped) for layer in away} <= {bool(share)}, "who attended to host parts?"


# -------------------- engines


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"kv_heads": 4, "graphs": True},
        {"offload": AWAY},
        {"offload": replace(AWAY, num_resident=1)},
        {"offload": AWAY, "cpu_attention_share": 0.5},
        {"offload": replace(AWAY, num_resident=1), "cpu_attention_share": 0.7},
        {"graphs": True},
        {"self_draft": True},
        {"self_draft": True, "graphs": True},
    ],
)
def test_every_way_writes_there_what_the_processor_writes(
    how: dict[str, Any], expected: dict[int, tuple[int, ...]]
) -> None:
    engine, share = engine_on("cuda", **how), how.get("cpu_attention_share", 0.0)
    for method in METHODS:
        assert written(engine, method) == expected[how.get("kv_heads", 2)], method
    assert_parts_were_used(engine, how.get("offload"), share)
    assert not share or engine.info.plan.cpu_attention == Choice(share, "asked for")
    if "graphs" in how:
        assert engine.info.graphs.value, engine.info.graphs
        assert engine._graphs is not None and engine._graphs.num_kept > 5 and not engine._graphs.failure


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("offload", [None, AWAY])
def test_half_precision_and_lossy_methods_run_there(dtype: torch.dtype, offload: Offload | None) -> None:
    engine = engine_on("cuda", offload, graphs=offload is None, dtype=dtype)
    assert len(written(engine, "triforce", SAMPLED)) == NEW
    assert_parts_were_used(engine, offload)
    for method in ("streamingllm", *(() if offload else ("h2o",))):
        assert len(written(engine, method, SAMPLED)) == NEW
    assert not engine.info.graphs.because.startswith("recording failed")


@pytest.mark.slow
def test_a_race_and_a_budget_run_there() -> None:
    engine, prompt = engine_on("cuda", AWAY), random_prompt(PROMPT)
    config = GenerationConfig(method="autoregressive", max_new_tokens=6, speculation=FIXED, budget=112)
    race = engine.race(prompt, [config, replace(config, method="triforce")])
    plain, fast = (lane.token_ids for lane in ends(race))
    assert plain == fast and engine.chunk_weights().sum() > 0
    assert_parts_were_used(engine, AWAY)
    assert engine.compare(prompt, plain, fast).verdict == "identical"


@pytest.mark.slow
def test_a_device_that_runs_out_of_memory_goes_on_with_fewer_layers(
    expected: dict[int, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on("cuda")
    with monkeypatch.context() as patch:  # or it would keep the engine longer than there is a device
        fail(patch, engine.full_cache, "attend", 3, 1)
        assert written(engine, "triforce") == expected[2] and engine.info.plan.resident_layers == 1


@pytest.mark.gpu
def test_the_host_s_share_is_measured_at_the_start(expected: dict[int, tuple[int, ...]]) -> None:
    engine = engine_on("cuda", AWAY, cpu_attention_share=None)
    found = engine.info.plan.cpu_attention
    assert found.value is not None and 0 <= found.value <= 0.9 and found.because.startswith("measured")
    assert written(engine, "triforce") == expected[2]


def test_weights_of_four_bits_are_multiplied_as_they_are_and_methods_agree() -> None:
    """`--bits 4` on a GPU needs no bitsandbytes, widens nothing, and is exact for its own weights."""
    target = loaded(tiny_config(kv_heads=2), 3)
    own = prepared(target.module, target.dims, torch.float32, torch.device("cuda", 0), bits=4)
    kinds = {name: type(part) for name, part in own.module.named_modules()}
    assert is_int4(own.module) and kinds["model.layers.0.self_attn.q_proj"] is SelfDraftLinear
    assert not issubclass(kinds["lm_head"], SelfDraftLinear), "logits keep their precision"
    config = EngineConfig(context=1024, prefill_chunk=64, bits=4, retrieval=RetrievalConfig(budget=96, local_window=32))
    plan = make_plan(sized(own.dims), None, replace(config, bits=None), MACHINE)
    plan = replace(plan, device=Choice("cuda", "test"), dtype=Choice(torch.float32, "test"), bits=Choice(4, "test"))
    texts = set[tuple[int, ...]]()
    for method, where in (("autoregressive", None), ("retrieval", None), ("retrieval", AWAY)):
        engine = Engine(config, plan, Letters(), LoadedModels(target=own, draft=None), offload=where)
        assert engine.info.weights == "int4" and engine.info.quantised
        texts.add(written(engine, method))
    assert len(texts) == 1


def test_embeddings_in_host_memory_are_the_same_take_no_room_and_are_recorded() -> None:
    """A GPU reads pinned memory by the address that the processor knows."""
    config = tiny_config()
    config.vocab_size = 4096
    target = loaded(config, 3)
    expected, held = target.module.get_input_embeddings().weight.detach().half(), dict[bool, int]()  # type: ignore[operator]
    models = list[LoadedModel]()
    for host in (False, True):
        before, module = used_memory_bytes(CUDA), deepcopy(target.module).half()
        models.append(prepared(module, target.dims, torch.float16, CUDA, embeds_from_host=host))
        held[host] = used_memory_bytes(CUDA) - before
    assert held[False] - held[True] == pytest.approx(expected.nbytes, rel=0.01)
    tokens, graph = torch.arange(40, device=CUDA), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = models[1].module.get_input_embeddings()(tokens)  # type: ignore[operator]
    tokens += 3
    graph.replay()
    assert out.device.type == "cuda" and torch.equal(out.cpu(), expected[3:43])


def wide(**settings: Any) -> Engine:
    config = EngineConfig(model="widened:1024x5", device="cuda", context=4096, **settings)
    return Engine.load(config, pair_files(config))


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [None, 4])
def test_a_widened_model_in_half_precision_writes_alike_recorded_and_drafting_with_four_bits(bits: int | None) -> None:
    """TriForce as plain decoding but for near ties."""
    engine = wide(methods=("triforce",), self_draft_bits=bits)
    prompt = engine.text.encode("The keeper of the harbour wrote the name of every ship into a grey book. " * 40)
    texts = [answer(engine, prompt, method, 24).token_ids for method in ("autoregressive", "triforce")]
    assert engine.info.graphs.value, engine.info.graphs.because
    assert engine.compare(prompt, *texts).verdict != "mismatch"
    if bits:
        planned = engine.plan.bytes_of("self-draft weights, 4 bit")
        assert planned == pytest.approx(engine.info.self_draft_weight_bytes, rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["resident", "offloaded"])
def test_a_model_of_four_bits_is_read_offloaded_recorded_and_exact(placement: PlacementWish) -> None:
    engine = wide(bits=4, placement=placement)
    assert engine.info.weights == "int4" and engine.info.graphs.value
    assert written(engine, "retrieval") == written(engine, "autoregressive")


# -------------------- recordings


@pytest.mark.slow
def test_recorded_laws_draw_what_launched_ones_draw() -> None:
    """The same seed, the same device: laws differ in their last bits at most."""
    recorded, launched = engine_on("cuda", graphs=True), engine_on("cuda")
    assert written(recorded, "triforce", SAMPLED) == written(launched, "triforce", SAMPLED)
    assert recorded._graphs is not None
    assert any(key[0] == "probs" for key in recorded._graphs._kept if isinstance(key, tuple))


def test_a_result_outlives_the_next_replay_and_what_cannot_be_recorded_is_told() -> None:
    def replayed(graphs: Graphs, value: float) -> torch.Tensor:
        replay = graphs.prepare("x", torch.neg, torch.full((4,), value, device=CUDA))
        assert replay is not None
        return replay()

    graphs = Graphs(CUDA)
    before = replayed(graphs, 2.0)
    assert replayed(graphs, 3.0).tolist() == [-3.0] * 4 and before.tolist() == [-2.0] * 4
    assert graphs.prepare("waits", lambda x: x + float(x.sum().item()), torch.ones(4, device=CUDA)) is None
    assert graphs.failure.startswith("recording failed")
    assert torch.ones(4, device=CUDA).sum().item() == 4  # the device still works
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()  # which an allocator that still records refuses
    assert replayed(Graphs(CUDA), 1.0).tolist() == [-1.0] * 4


@pytest.mark.gpu
def test_memory_that_recorded_passes_work_on_is_free_when_it_is_lent() -> None:
    engine = engine_on("cuda", graphs=True)
    before_lending, retrieval = written(engine, "triforce"), engine._levels.retrieval
    rows = sum(buffer.untyped_storage().nbytes() for buffer in (*retrieval.k, *retrieval.v))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with engine._levels.lent():
        assert before - torch.cuda.memory_allocated() >= rows
    assert written(engine, "triforce") == before_lending
    assert engine._graphs is not None and not engine._graphs.failure


@pytest.mark.gpu
def test_after_all_recordings_are_forgotten_their_memory_goes_back_and_others_are_made() -> None:
    graphs = Graphs(CUDA)
    for size in (1 << 20, 1 << 24):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for name in ("a", "b"):
            assert graphs.prepare((name, size), lambda x: (x + 1) * 2, torch.ones(size, device=CUDA)) is not None
        assert torch.cuda.memory_reserved() > before
        for name in ("a", "b"):
            graphs.forget(name)
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() <= before and not graphs.failure


# -------------------- operations against their slow twins


def drawing() -> Callable[..., torch.Tensor]:
    """`torch.randn` of the processor, from the same seed in each test."""
    return partial(torch.randn, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("shape", [(4, 4, 512, 1), (8, 2, 512, 7), (8, 2, 0, 64), (4, 4, 1000, 128), (8, 1, 33, 2)])
def test_attention_on_the_device_equals_the_slow_twin(
    dtype: torch.dtype, tolerance: float, shape: tuple[int, int, int, int]
) -> None:
    (heads, kv_heads, cached, new), drawn = shape, drawing()
    q = drawn(1, heads, new, 64).to(CUDA, dtype)
    k, v = drawn(2, 1, kv_heads, cached + new + 24, 64).to(CUDA, dtype)[..., : cached + new, :]
    expected = attend_reference(q, k, v, 0.125)
    assert torch.allclose(attend(q, k, v, 0.125).float(), expected.float(), atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_host_answers_what_the_slow_twin_answers(dtype: torch.dtype) -> None:
    """Question after question: no answer is overwritten before it has left, no query before it was read."""
    memory, helper, drawn = HostRows((6, 2, 2, 96, 64), dtype, CUDA), HostAttention(8, 64, 64, CUDA), drawing()
    memory.rows.copy_(drawn(*memory.rows.shape))
    asked, answers = [], []
    for rows in (9, 1, 64, 5) * 5:
        q = drawn(1, rows, 8, 64).to(CUDA, dtype).transpose(1, 2)
        helper.ask(q, memory.rows[:5], 0.125, chunk_size=8)
        found, masses = helper.answer()
        assert masses is not None
        asked.append(q)
        answers.append([result.clone() for result in (*found, *masses)])
    k, v = memory.rows[:5].to(CUDA).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None]
    keys = memory.rows[:5, 0].to(CUDA).double()  # [N, H_kv, R, D]
    for q, (out, lse, counted, lse_of_each) in zip(asked, answers, strict=True):
        expected = partial_reference(q.float(), k.float(), v.float(), 0.125)
        assert torch.allclose(out, expected.out, atol=1e-4) and torch.allclose(lse, expected.lse, atol=1e-4)
        scores = 0.125 * q.double().reshape(2, -1, 64) @ keys.mT
        shares = scores.softmax(-1).view(*scores.shape[:3], 12, 8).sum(-1)
        assert torch.allclose(counted.double(), shares, rtol=5e-3, atol=1e-5)
        assert torch.allclose(lse_of_each.double(), scores.logsumexp(-1), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_on_the_device_are_as_wide_as_their_sums_whatever_the_rows_and_recorded_too(dtype: torch.dtype) -> None:
    (inputs, outputs), drawn = (4096, 32000) if REAL else (1024, 128), drawing()
    plain = torch.nn.Linear(inputs, outputs, bias=False, device=CUDA, dtype=dtype)
    plain.weight.data.copy_(drawn(outputs, inputs).to(CUDA) / 8)
    hidden = drawn(1, 30, inputs).to(CUDA, dtype)
    exact, rounded, graphs = hidden.double() @ plain.weight.double().T, plain(hidden), Graphs(CUDA)
    plain.__class__ = OutputLinear
    for rows in (1, 9, 30):
        found, expected = plain(hidden[:, :rows]), exact[:, :rows]
        replay = graphs.prepare(rows, plain, hidden[:, :rows])
        assert found.dtype == torch.float32 and found.shape == (1, rows, outputs)
        assert (found - expected).abs().max() < 1e-3 < (rounded[:, :rows] - expected).abs().max()
        assert replay is not None and (replay() - expected).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 128), (24, 64), (5, 7), (300, 336), (512, 4096)])
def test_weights_of_four_bits_multiply_on_the_device_as_the_slow_twin_does(
    dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    drawn = drawing()
    weight = drawn(outputs, inputs).to(CUDA, dtype)
    layer = SelfDraftLinear(weight, None, CUDA)
    padded = torch.nn.functional.pad(weight, (0, -inputs % max(GROUP, 128)))
    exact = widened(round_to_levels(padded))[:, :inputs]
    for rows in (1, 2, 7, 17, 40, FEW_ROWS + 1, 300):
        x = drawn(1, rows, inputs).to(CUDA, dtype)
        found, expected = layer(x), x.to(torch.bfloat16).float() @ exact.T
        assert found.dtype == dtype and found.shape == (1, rows, outputs)
        # The kernel rounds each widened weight and the result to bfloat16, 2^-9 of them
        assert (found.float() - expected).norm() < 0.01 * expected.norm()
        shifted = expected.roll(1, -1)
        assert (found.float() - shifted).norm() > 0.1 * expected.norm(), "a wrong order must be noticed"


@pytest.mark.gpu
def test_a_row_through_four_bits_does_not_depend_on_its_company() -> None:
    """Else verifying many tokens at once would follow another law than decoding one by one (`--bits 4`)."""
    layer = SelfDraftLinear(torch.randn(512, 1024, device=CUDA, dtype=torch.bfloat16), None, CUDA)
    x = torch.randn(1000, 1024, device=CUDA, dtype=torch.bfloat16)
    together = layer(x[:FEW_ROWS])
    for rows in (1, 2, 9, 17, 33, FEW_ROWS - 1):
        assert torch.equal(layer(x[:rows]), together[:rows]), rows
    assert (layer(x)[:FEW_ROWS].float() - together.float()).norm() < 0.01 * together.float().norm()
