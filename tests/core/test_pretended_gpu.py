"""Our code on a device that is not there (`cuda_stubs`): what a first GPU would refuse is refused here."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from core.caches.full_parts import Offload
from core.caches.layer_storage import OffloadedLayer
from core.config import EngineConfig, GenerationConfig, RetrievalConfig, SamplingParams
from core.engine import Engine
from core.generation.events import Finished
from core.generation.loaded import LoadedModels
from core.models.self_draft import SelfDraftLinear, is_int4
from core.models.weights import prepared
from core.ops import attention
from core.ops.attention import attend, attend_reference, partial
from core.ops.backend import STOCK, _seconds
from core.ops.graphs import Graphs
from core.ops.host_attention import HostAttention
from core.ops.transfer import HostRows, pinning
from core.planning.choices import Choice
from core.planning.hardware import (
    cap_memory,
    peak_memory_bytes,
    return_memory,
    this_machine,
    used_memory_bytes,
)
from core.planning.plan import make_plan
from tests.core import cuda_stubs as stubs
from tests.core.cuda_stubs import CUDA, Cudart, PretendedGpu, pretended_gpu
from tests.core.toys import FIXED, MACHINE, Letters, last_event, loaded, random_prompt, sized, tiny_config, tiny_engine

pytestmark = pytest.mark.skipif(
    hasattr(torch._C, "_cuda_getDeviceCount"), reason="torch was built with CUDA: its own functions are there"
)
ROOT = Path(__file__).parents[2]
PROMPT = 300  # tokens: the retrieval cache holds a part of them, and offloaded layers have blocks on the host

# What of torch.cuda our code calls and no test here reaches, with the reason.
NOT_REACHED = {"set_device": "each further rank of a model calls it, in a process of its own"}


@pytest.fixture(autouse=True)
def short_calibrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.planning.measured.LINK_BYTES", 1 << 12)
    monkeypatch.setattr("core.planning.measured.SHARING_BYTES", 1 << 12)


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found:
        yield found


def engine_on(device: str, offload: Offload | None = None, *, graphs: bool = False, **settings: Any) -> Engine:
    return tiny_engine(
        device=device,
        kv_heads=2,
        context=512,
        prefill_chunk=100,
        budget=96,
        local_window=32,
        draft_window=72,
        offload=offload,
        graphs=Graphs(torch.device(device)) if graphs else None,
        **{"cpu_attention_share": 0.0, **settings},
    )


def written(engine: Engine, method: str, sampling: SamplingParams = SamplingParams()) -> tuple[int, ...]:  # noqa: B008
    config = GenerationConfig(method=method, max_new_tokens=8, speculation=FIXED, sampling=sampling)
    return last_event(engine.generate(random_prompt(PROMPT), config)).token_ids


def assert_parts_were_used(
    engine: Engine, offload: Offload | None = None, cpu_attention_share: float | None = None
) -> None:
    """After an answer of a method that speculates: chunks were chosen, and host parts brought and attended to."""
    chosen, config = engine._levels.retrieval.held_chunks(), engine.config.retrieval
    eligible = (PROMPT - config.local_window) // config.chunk_size
    assert engine._levels.retrieval.selections and 1 < chosen.shape[2] <= eligible // 3, "there was nothing to choose"
    assert len({tuple(chunks) for chunks in chosen.flatten(0, 1).tolist()}) > 1, "every head chose the same"
    away = [layer for layer in engine._levels.full._layers if isinstance(layer, OffloadedLayer)]
    assert len(away) == (2 - offload.num_resident if offload else 0), "resident layers are not those asked for"
    if offload is not None:
        assert min(layer.chunks_away(8) for layer in away) > 0, "nothing lies on the host"
        assert engine._levels.full.link_traffic[0] > 8 * engine._levels.full.link_bytes > 0, "passes brought nothing"
    helped = [layer._helped for layer in away]
    assert bool(cpu_attention_share) == any(helped) == bool(helped and all(helped)), "who attended to host parts?"


def lacks_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("no room")


@pytest.fixture(scope="module")
def expected() -> tuple[int, ...]:
    return written(engine_on("cpu"), "autoregressive")


def test_weights_of_four_bits_are_multiplied_as_they_are_and_methods_agree(gpu: PretendedGpu) -> None:
    """`--bits 4` on a GPU needs no bitsandbytes, widens nothing, and is exact for its own weights."""
    target = loaded(tiny_config(kv_heads=2), 3)
    own = prepared(target.module, target.dims, torch.float32, CUDA, bits=4)
    kinds = {name: type(part) for name, part in own.module.named_modules()}
    assert is_int4(own.module) and kinds["model.layers.0.self_attn.q_proj"] is SelfDraftLinear
    assert not issubclass(kinds["lm_head"], SelfDraftLinear), "logits keep their precision"
    config = EngineConfig(context=512, prefill_chunk=64, bits=4, retrieval=RetrievalConfig(budget=96, local_window=32))
    plan = make_plan(sized(own.dims), None, replace(config, bits=None), MACHINE)
    plan = replace(plan, device=Choice("cuda", "test"), dtype=Choice(torch.float32, "test"), bits=Choice(4, "test"))
    offload, texts = Offload(block_rows=64, num_slots=2), []
    for method, where in (("autoregressive", None), ("retrieval", None), ("retrieval", offload)):
        engine = Engine(config, plan, Letters(), LoadedModels(target=own, draft=None), offload=where)
        assert engine.info.weights == "int4" and engine.info.quantised
        texts.append(written(engine, method))
    assert texts[0] == texts[1] == texts[2]


# -------------------- what the stubs notice: without these, nothing below means anything


def test_tensors_of_two_devices_are_refused(gpu: PretendedGpu) -> None:
    x = torch.ones(3, device="cuda")
    assert (x + torch.tensor(2.0)).tolist() == [3.0] * 3  # single numbers may lie anywhere
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat((x, torch.ones(3)))
    with pytest.raises(RuntimeError, match="generator"):
        torch.multinomial(x, 1, generator=torch.Generator())
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()


def test_what_has_no_kernel_on_cuda_is_refused(gpu: PretendedGpu) -> None:
    q = torch.ones(1, 2, 3, 8, device="cuda")
    with pytest.raises(NotImplementedError):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, False)
    with pytest.raises(AssertionError, match="fp16"):
        torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, False, False, scale=1.0)


def test_torch_s_own_checks_see_our_arguments(gpu: PretendedGpu) -> None:
    with pytest.raises(ValueError, match="specified index"):
        torch.cuda.set_per_process_memory_fraction(0.5, torch.device("cuda"))
    with pytest.raises(TypeError, match="float"):
        torch.cuda.set_per_process_memory_fraction(1, 0)
    with pytest.raises(ValueError, match="cuda device"):
        torch.cuda.synchronize(torch.device("cpu"))
    with pytest.raises(TypeError):
        torch.cuda.Stream(stream="0")  # type: ignore[call-arg]


def test_a_replay_repeats_what_was_recorded_and_freezes_what_python_computed(gpu: PretendedGpu) -> None:
    x, y, frozen = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda"), 3.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = x * frozen
        y[1:].add_(out[:1])
    frozen = 5.0
    x.fill_(2.0)
    y.zero_()
    graph.replay()
    assert out.tolist() == [6.0, 6.0] and y.tolist() == [0.0, 6.0]


def test_waiting_inside_of_a_recording_is_refused(gpu: PretendedGpu) -> None:
    x = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        float(x.sum())


def test_waits_are_counted_and_pinned_copies_are_none(gpu: PretendedGpu) -> None:
    x, memory = torch.empty(4, device="cuda"), HostRows((4,), torch.float32, CUDA)
    before = gpu.waits
    x.copy_(memory.rows, non_blocking=True)
    assert gpu.waits == before
    x.copy_(torch.ones(4))
    x.tolist()
    assert gpu.waits == before + 2


# -------------------- our own code


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"offload": Offload(block_rows=64, num_slots=2)},
        {"offload": Offload(num_resident=1, block_rows=64, num_slots=2), "cpu_attention_share": 0.7},
        {"graphs": True},
        {"self_draft": True, "graphs": True},
    ],
    ids=["resident", "offloaded", "shared with the host", "recorded", "drafting with 4 bits"],
)
@pytest.mark.slow
def test_every_way_writes_there_what_the_processor_writes(
    gpu: PretendedGpu, expected: tuple[int, ...], how: dict[str, object]
) -> None:
    engine = engine_on("cuda", **how)
    for method in ("autoregressive", "triforce", "triforce-lookup"):
        assert written(engine, method) == expected, method
    assert_parts_were_used(engine, how.get("offload"), how.get("cpu_attention_share"))  # type: ignore[arg-type]
    if "graphs" in how:
        assert engine.info.graphs.value and gpu.replays > 5, engine.info.graphs
    if "offload" in how:
        assert engine.info.host_memory is not None and engine.info.host_memory.value == "pinned"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_runs_there(gpu: PretendedGpu, dtype: torch.dtype) -> None:
    for offload in (None, Offload(block_rows=64, num_slots=2)):
        engine = engine_on("cuda", offload, graphs=offload is None, dtype=dtype)
        for method in ("triforce", "streamingllm", *(() if offload else ("h2o",))):
            assert len(written(engine, method, SamplingParams(temperature=0.8, top_p=0.9, top_k=20))) == 8
            if method == "triforce":
                assert_parts_were_used(engine, offload)
        assert not engine.info.graphs.because.startswith("recording failed")


def test_after_an_answer_that_lacked_memory_to_record_the_next_one_is_recorded(
    gpu: PretendedGpu, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on("cuda", graphs=True)
    before = gpu.replays

    with monkeypatch.context() as patch:
        patch.setattr("core.ops.graphs.record", lacks_memory)
        assert written(engine, "triforce") == expected and gpu.replays == before
        assert not engine.info.graphs.value and "no room" in engine.info.graphs.because
    assert written(engine, "triforce") == expected and gpu.replays > 5
    assert engine.info.graphs.value, engine.info.graphs.because


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("built", "capability", "kernel"),
    [(True, (8, 9), "flash"), (False, (8, 9), "efficient"), (True, (7, 5), "efficient")],
)
def test_where_there_is_no_flash_kernel_the_memory_efficient_one_attends(
    gpu: PretendedGpu,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    built: bool,
    capability: tuple[int, int],
    kernel: str,
) -> None:
    """Builds of torch for Windows have none, nor have GPUs before compute capability 8.0."""
    called = []
    for name, own in (("flash", stubs.flash), ("efficient", stubs.efficient)):
        op = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention")

        def noted(*args: object, name: str = name, own: Callable[..., object] = own, **kwargs: object) -> object:
            called.append(name)
            return own(*args, **kwargs)

        monkeypatch.setitem(stubs.REPLACED, op, noted)
    monkeypatch.setattr(torch._C, "_is_flash_attention_available", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    attention._has_flash.cache_clear()
    q = torch.randn(1, 4, 3, 16).to(dtype)
    k, v = torch.randn(2, 1, 2, 40, 16).to(dtype)
    found, expected = attend(q.to("cuda"), k.to("cuda"), v.to("cuda"), 0.25), attend_reference(q, k, v, 0.25)
    attention._has_flash.cache_clear()
    assert called == [kernel, kernel], "to the cached rows, and of the new ones among themselves"
    assert found.dtype == dtype and torch.allclose(found.cpu().float(), expected.float(), atol=2e-2)


def test_logits_there_are_float32(gpu: PretendedGpu) -> None:
    config = tiny_config(kv_heads=2)
    small = loaded(config, 3)
    exact = small.module.lm_head.weight.to(torch.bfloat16).double()  # type: ignore[union-attr, operator]
    there = prepared(small.module.to(torch.bfloat16), small.dims, torch.bfloat16, CUDA)
    head = there.module.get_output_embeddings()  # type: ignore[operator]
    hidden = torch.randn(1, 3, exact.shape[1]).to(torch.bfloat16)
    logits = head(hidden.to("cuda")).cpu()
    assert logits.dtype == torch.float32 and torch.allclose(logits.double(), hidden.double() @ exact.T, atol=1e-5)


@pytest.mark.slow
def test_a_race_and_a_budget_run_there(gpu: PretendedGpu) -> None:
    engine = engine_on("cuda", Offload(block_rows=64, num_slots=2))
    configs = [
        GenerationConfig(method=method, max_new_tokens=6, speculation=FIXED, budget=112)
        for method in ("autoregressive", "triforce")
    ]
    events = [event.event for event in engine.race(random_prompt(PROMPT), configs)]
    texts = [event.token_ids for event in events if isinstance(event, Finished)]
    assert len(texts) == 2 and texts[0] == texts[1]
    assert_parts_were_used(engine, Offload(block_rows=64, num_slots=2))
    assert engine.chunk_weights().sum() > 0
    assert engine.compare(random_prompt(PROMPT), texts[0], texts[1]).verdict == "identical"


@pytest.mark.slow
def test_a_device_that_is_full_gives_layers_away_there(
    gpu: PretendedGpu, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, calls = engine_on("cuda"), []
    real = engine._levels.full.attend

    def attend(layer: int, q: torch.Tensor, scaling: float) -> torch.Tensor:
        calls.append(layer)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("injected")
        return real(layer, q, scaling)

    with monkeypatch.context() as patch:  # or it would keep the engine longer than there is a device
        patch.setattr(engine._levels.full, "attend", attend)
        assert written(engine, "triforce") == expected and engine.info.plan.resident_layers == 1


def called_of_torch_cuda() -> set[str]:
    """Names of torch.cuda that core and app call."""
    found = set()
    for file in [*(ROOT / "core").rglob("*.py"), *(ROOT / "app").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "torch.cuda":
                found.add(called.attr)
    return found


def test_everything_that_we_call_of_torch_cuda_was_called_with_its_checks(gpu: PretendedGpu) -> None:
    device = torch.device("cuda", 0)
    assert this_machine().gpus[0].name == "Pretended GPU"
    cap_memory(device, 1.0)
    assert 0 < gpu.fraction < 1
    held = torch.ones(100, device=device)
    assert peak_memory_bytes(device) >= used_memory_bytes(device) >= held.nbytes
    return_memory()
    _seconds(device, torch.float32, 9, STOCK.attend)
    assert partial(*(torch.ones(1, 2, 3, 8, device=device) for _ in "qkv"), 1.0).lse.shape == (1, 2, 3)
    HostAttention(2, 8, 4, device).ask(torch.ones(1, 2, 3, 8, device=device), torch.ones(1, 2, 2, 4, 8), 1.0)
    engine = engine_on("cuda", Offload(block_rows=64, num_slots=2), self_draft=True)
    written(engine, "autoregressive")
    recorded = engine_on("cuda", graphs=True)
    recorded._graphs.forget("full")  # type: ignore[union-attr]
    wanted = called_of_torch_cuda()
    assert {"Event", "Stream", "synchronize"} <= wanted, "nothing was found"
    assert wanted - gpu.called == NOT_REACHED.keys() & wanted
    assert not NOT_REACHED.keys() & gpu.called, "reached after all"
    assert NOT_REACHED.keys() <= wanted, "not called any more"


def test_the_host_s_buffers_lie_in_pinned_pages_of_torch_s_own(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small buffers of the heap would share pages with others, which the driver registers once."""
    monkeypatch.setattr(torch.cuda._cudart, "refuses", True)
    helper = HostAttention(2, 8, 4, CUDA)
    helper.ask(torch.ones(1, 2, 3, 8, device=CUDA), torch.ones(1, 2, 2, 8, 8), 1.0, chunk_size=8)
    assert helper.answer().masses is not None and len(helper._room)
    assert all(gpu.is_pinned(buffer) for buffer in (helper._q, helper._out, helper._lse, helper._room))
    assert not gpu.is_pinned(HostRows((4,), torch.float32, CUDA).rows), "the control"


def test_memory_that_the_driver_does_not_pin_is_used_as_it_is_and_says_why(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [HostRows((4, 4), torch.float32, CUDA) for _ in range(2)]
    assert pinning(layers).value == "pinned" and len(gpu.registered) == 2
    assert isinstance(torch.cuda._cudart, Cudart)
    monkeypatch.setattr(torch.cuda._cudart, "refuses", True)
    monkeypatch.setattr(torch, "zeros", lacks_memory)  # whose call takes the runtime's last error
    layers.append(HostRows((4, 4), torch.float32, CUDA))
    assert [layer.refused for layer in layers[:2]] == ["", ""] and layers[2].refused.startswith("out of memory while")
    assert pinning(layers).value == "partly pinned" and "2 of 3 layers" in pinning(layers).because
    assert pinning(layers[2:]) == ("pageable", layers[2].refused)
    del layers
    assert not gpu.registered, "what was pinned is given back"
