"""The CUDA paths against the CPU ones. Run with `python -m pytest -m gpu` on a machine with a GPU."""

from typing import Any

import pytest
import torch

from assets.tools.widen import pair_files
from core.caches.full_parts import Offload
from core.config import (
    EngineConfig,
    GenerationConfig,
    PlacementWish,
    SamplingParams,
)
from core.engine import Engine
from core.generation.events import Finished
from core.models.linear import OutputLinear
from core.models.self_draft import GROUP, SelfDraftLinear, round_to_levels, widened
from core.ops.attention import attend, attend_reference, partial_reference
from core.ops.graphs import Graphs
from core.ops.host_attention import HostAttention
from core.ops.transfer import HostRows
from core.planning.choices import Choice
from tests.core.toys import answer, random_prompt, tiny_engine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("shape", [(4, 4, 512, 1), (8, 2, 512, 7), (8, 2, 0, 64), (4, 4, 1000, 128), (8, 1, 33, 2)])
def test_attention_on_the_device_equals_the_slow_twin(
    dtype: torch.dtype, tolerance: float, shape: tuple[int, int, int, int]
) -> None:
    heads, kv_heads, cached, new = shape
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, heads, new, 64, generator=generator).to(CUDA, dtype)
    k, v = torch.randn(2, 1, kv_heads, cached + new + 24, 64, generator=generator).to(CUDA, dtype)[
        ..., : cached + new, :
    ]
    expected = attend_reference(q, k, v, 0.125)
    assert torch.allclose(attend(q, k, v, 0.125).float(), expected.float(), atol=tolerance)


def cuda_engine(kv_heads: int, **settings: Any) -> Engine:
    return tiny_engine(device="cuda", kv_heads=kv_heads, **settings)


def written(engine: Engine, method: str, sampling: SamplingParams = SamplingParams()) -> tuple[int, ...]:  # noqa: B008
    return answer(engine, random_prompt(700), method, 60, sampling=sampling).token_ids


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_every_exact_method_writes_on_the_device_what_the_cpu_writes(kv_heads: int) -> None:
    expected = written(tiny_engine(kv_heads=kv_heads), "autoregressive")
    engine = cuda_engine(kv_heads)
    for method in ("autoregressive", "triforce", "retrieval", "draft"):
        assert written(engine, method) == expected, method


@pytest.mark.parametrize("num_resident", [0, 1])
def test_layers_in_pinned_host_memory_give_the_text_that_the_cpu_writes(num_resident: int) -> None:
    expected = written(tiny_engine(kv_heads=2), "autoregressive")
    engine = cuda_engine(2, offload=Offload(num_resident=num_resident, block_rows=64, num_slots=2))
    assert engine.info.host_memory is not None and engine.info.host_memory.value == "pinned"
    for method in ("autoregressive", "triforce", "retrieval", "draft"):
        assert written(engine, method) == expected, method


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_host_answers_what_the_slow_twin_answers(dtype: torch.dtype) -> None:
    """Question after question: no answer is overwritten before it has left, no query before it was read."""
    generator = torch.Generator().manual_seed(0)
    memory = HostRows((6, 2, 2, 96, 64), dtype, CUDA)
    memory.rows.copy_(torch.randn(memory.rows.shape, generator=generator))
    helper = HostAttention(8, 64, 64, CUDA)
    asked, answers = [], []
    for rows in (9, 1, 64, 5) * 5:
        q = torch.randn(1, rows, 8, 64, generator=generator).to(CUDA, dtype).transpose(1, 2)
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


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_share_left_to_the_host_gives_the_text_that_the_cpu_writes(share: float) -> None:
    expected = written(tiny_engine(kv_heads=2), "autoregressive")
    engine = cuda_engine(2, offload=Offload(block_rows=64, num_slots=2), cpu_attention_share=share)
    assert engine.info.plan.cpu_attention == Choice(share, "asked for")
    for method in ("autoregressive", "triforce", "retrieval", "draft"):
        assert written(engine, method) == expected, method


def test_the_host_s_share_is_measured_at_the_start() -> None:
    engine = cuda_engine(2, offload=Offload(block_rows=64, num_slots=2))
    found = engine.info.plan.cpu_attention
    assert found.value is not None and 0 <= found.value <= 0.9 and found.because.startswith("measured")
    assert written(engine, "triforce") == written(tiny_engine(kv_heads=2), "autoregressive")


def test_a_device_that_runs_out_of_memory_goes_on_with_fewer_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, engine = written(tiny_engine(kv_heads=2), "triforce"), cuda_engine(2)
    real, calls = engine._levels.full.attend, []

    def attend(layer: int, q: torch.Tensor, scaling: float) -> torch.Tensor:
        calls.append(layer)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("injected")
        return real(layer, q, scaling)

    monkeypatch.setattr(engine._levels.full, "attend", attend)
    assert written(engine, "triforce") == expected and engine.info.plan.resident_layers == 1


def test_lossy_methods_run_on_the_device() -> None:
    engine = cuda_engine(4)
    for method in ("streamingllm", "h2o"):
        assert len(written(engine, method)) == 60


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_recorded_passes_write_what_the_cpu_writes(kv_heads: int) -> None:
    graphs = Graphs(CUDA)
    engine = cuda_engine(kv_heads, graphs=graphs)
    assert engine.info.graphs.value, engine.info.graphs.because
    expected = written(tiny_engine(kv_heads=kv_heads), "autoregressive")
    for method in ("autoregressive", "triforce", "retrieval", "draft"):
        assert written(engine, method) == expected, method
    assert graphs.num_kept > 5 and not graphs.failure


def test_recorded_laws_draw_what_launched_ones_draw() -> None:
    """The same seed, the same device: laws differ in their last bits at most."""
    sampled = SamplingParams(temperature=0.8, top_p=0.95)
    graphs = Graphs(CUDA)
    assert written(cuda_engine(4, graphs=graphs), "triforce", sampled) == written(cuda_engine(4), "triforce", sampled)
    assert any(key[0] == "law" for key in graphs._kept if isinstance(key, tuple))


def test_a_result_outlives_the_next_replay() -> None:
    graphs = Graphs(CUDA)
    first, second = (graphs.prepare("x", torch.neg, torch.full((4,), value, device=CUDA)) for value in (1.0, 2.0))
    assert first is not None and first is second
    before = first()
    replay = graphs.prepare("x", torch.neg, torch.full((4,), 3.0, device=CUDA))
    assert replay is not None and replay().tolist() == [-3.0] * 4 and before.tolist() == [-2.0] * 4


def test_what_cannot_be_recorded_is_told() -> None:
    graphs = Graphs(CUDA)
    assert graphs.prepare("waits", lambda x: x + float(x.sum().item()), torch.ones(4, device=CUDA)) is None
    assert graphs.failure.startswith("recording failed")
    assert torch.ones(4, device=CUDA).sum().item() == 4  # the device still works
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()  # which an allocator that still records refuses
    replay = Graphs(CUDA).prepare("x", torch.neg, torch.ones(4, device=CUDA))
    assert replay is not None and replay().tolist() == [-1.0] * 4


def test_memory_that_recorded_passes_work_on_is_free_when_it_is_lent() -> None:
    graphs = Graphs(CUDA)
    engine = cuda_engine(4, graphs=graphs)
    expected = written(engine, "triforce")
    rows = sum(
        buffer.untyped_storage().nbytes() for buffer in (*engine._levels.retrieval.k, *engine._levels.retrieval.v)
    )
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with engine._levels.lent():
        assert before - torch.cuda.memory_allocated() >= rows
    assert written(engine, "triforce") == expected and not graphs.failure


def test_after_all_recordings_are_forgotten_their_memory_goes_back_and_others_are_made() -> None:
    graphs = Graphs(CUDA)
    for size in (1 << 20, 1 << 24):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for name in ("a", "b"):
            assert graphs.prepare((name, size), lambda x: (x + 1) * 2, torch.ones(size, device=CUDA)) is not None
        assert torch.cuda.memory_reserved() > before
        graphs.forget("a")
        graphs.forget("b")
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() <= before and not graphs.failure


def writes_alike_recorded(engine: Engine) -> None:
    """TriForce as plain decoding but for near ties, in recorded passes."""
    prompt = engine.text.encode("The keeper of the harbour wrote the name of every ship into a grey book. " * 40)
    texts = []
    for method in ("autoregressive", "triforce"):
        *_, finished = engine.generate(prompt, GenerationConfig(method=method, max_new_tokens=24))
        assert isinstance(finished, Finished)
        texts.append(finished.token_ids)
    assert engine.info.graphs.value, engine.info.graphs.because
    assert engine.compare(prompt, *texts).verdict != "mismatch"


def test_a_widened_model_in_half_precision_runs_recorded() -> None:
    config = EngineConfig(methods=("triforce",), model="widened:1024x5", device="cuda", context=4096)
    engine = Engine.load(config, pair_files(config))
    writes_alike_recorded(engine)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_on_the_device_are_as_wide_as_their_sums_whatever_the_rows_and_recorded_too(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    plain = torch.nn.Linear(4096, 32000, bias=False, device=CUDA, dtype=dtype)
    plain.weight.data.copy_(torch.randn(32000, 4096, generator=generator).to(CUDA) / 8)
    hidden = torch.randn(1, 30, 4096, generator=generator).to(CUDA, dtype)
    exact = hidden.double() @ plain.weight.double().T
    rounded = plain(hidden)
    plain.__class__ = OutputLinear
    graphs = Graphs(CUDA)
    for rows in (1, 9, 30):
        found, expected = plain(hidden[:, :rows]), exact[:, :rows]
        replay = graphs.prepare(rows, plain, hidden[:, :rows])
        assert found.dtype == torch.float32 and found.shape == (1, rows, 32000)
        assert (found - expected).abs().max() < 1e-3 < (rounded[:, :rows] - expected).abs().max()
        assert replay is not None and (replay() - expected).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 128), (24, 64), (5, 7), (300, 336), (512, 4096)])
def test_weights_of_four_bits_multiply_on_the_device_as_the_slow_twin_does(
    dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator).to(CUDA, dtype)
    layer = SelfDraftLinear(weight, None, CUDA)
    padded = torch.nn.functional.pad(weight, (0, -inputs % max(GROUP, 128)))
    exact = widened(round_to_levels(padded))[:, :inputs]
    for rows in (1, 2, 7, 17, 40):
        x = torch.randn(1, rows, inputs, generator=generator).to(CUDA, dtype)
        expected = x.to(torch.bfloat16).float() @ exact.T
        found = layer(x)
        assert found.dtype == dtype and found.shape == (1, rows, outputs)
        # The kernel rounds each widened weight and the result to bfloat16, 2^-9 of them
        assert (found.float() - expected).norm() < 0.01 * expected.norm()
        shifted = expected.roll(1, -1)
        assert (found.float() - shifted).norm() > 0.1 * expected.norm(), "a wrong order must be noticed"


def test_a_row_through_four_bits_does_not_depend_on_its_company() -> None:
    """Else verifying many tokens at once would follow another law than decoding one by one (`--bits 4`)."""
    layer = SelfDraftLinear(torch.randn(512, 1024, device=CUDA, dtype=torch.bfloat16), None, CUDA)
    x = torch.randn(1000, 1024, device=CUDA, dtype=torch.bfloat16)
    together = layer(x)
    for rows in (1, 2, 9, 17, 33, 65):
        assert torch.equal(layer(x[:rows]), together[:rows]), rows


@pytest.mark.parametrize("placement", ["resident", "offloaded"])
def test_a_model_of_four_bits_is_read_offloaded_recorded_and_exact(placement: PlacementWish) -> None:
    config = EngineConfig(model="widened:1024x5", device="cuda", context=4096, bits=4, placement=placement)
    engine = Engine.load(config, pair_files(config))
    assert engine.info.weights == "int4" and engine.info.graphs.value
    assert written(engine, "retrieval") == written(engine, "autoregressive")


@pytest.mark.parametrize("recorded", [False, True])
def test_drafting_with_four_bits_on_the_device_writes_what_the_cpu_writes(recorded: bool) -> None:
    expected = written(tiny_engine(kv_heads=2), "autoregressive")
    graphs = Graphs(CUDA) if recorded else None
    engine = cuda_engine(2, graphs=graphs, self_draft=True)
    for method in ("triforce", "retrieval", "lookup", "autoregressive"):
        assert written(engine, method) == expected, method
    assert graphs is None or (graphs.num_kept > 5 and not graphs.failure)


def test_a_widened_model_in_half_precision_drafts_with_four_bits() -> None:
    config = EngineConfig(methods=("triforce",), model="widened:1024x5", device="cuda", context=4096, self_draft_bits=4)
    engine = Engine.load(config, pair_files(config))
    planned = {row.name: row.size_bytes for row in engine.plan.rows}
    assert planned["self-draft weights, 4 bit"] == pytest.approx(engine.info.self_draft_weight_bytes, rel=0.1)
    writes_alike_recorded(engine)
