"""What the pretended GPU (`cuda_stubs`) notices, and what of our code only it can show; `tests/gpu` runs there, too."""

import ast
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from core.caches.full_parts import Offload
from core.config import EngineConfig, PlacementWish
from core.engine_builder import PairFiles
from core.ops import attention, streams
from core.ops.attention import attend, attend_reference, partial
from core.ops.backend import STOCK, _seconds
from core.ops.host_attention import HostAttention
from core.ops.transfer import HostRows, pinning
from core.planning.hardware import cap_memory, peak_memory_bytes, return_memory, this_machine, used_memory_bytes
from core.planning.plan import make_plan
from tests.core import cuda_stubs as stubs
from tests.core.cuda_stubs import CUDA, Cudart, PretendedGpu, pretended_gpu
from tests.core.toys import answer, engine_on, random_prompt

ROOT = Path(__file__).parents[2]
PROMPT = random_prompt(300)


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found:
        yield found


def lacks_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("no room")


# -------------------- what the stubs notice: without these, nothing that runs there means anything


def without_a_kernel(x: torch.Tensor) -> object:
    q = x.expand(1, 2, 8, 3).mT
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, False)


def flash_in_32_bits(x: torch.Tensor) -> object:
    q = x.expand(1, 2, 8, 3).mT
    return torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, False, False, scale=1.0)


def waiting_in_a_recording(x: torch.Tensor) -> object:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        return float(x.sum())


@pytest.mark.parametrize(
    ("work", "error", "words"),
    [
        (lambda x: x + torch.ones(3), RuntimeError, "same device"),
        (lambda x: torch.cat((x, torch.ones(3))), RuntimeError, "same device"),
        (lambda x: torch.rand(1, generator=torch.Generator(), device=x.device), RuntimeError, "generator"),
        (lambda x: x.numpy(), TypeError, "numpy"),
        (without_a_kernel, NotImplementedError, "CUDA"),
        (flash_in_32_bits, AssertionError, "fp16"),
        (waiting_in_a_recording, RuntimeError, "captur"),
        # torch's own checks see our arguments
        (lambda x: torch.cuda.set_per_process_memory_fraction(0.5, torch.device("cuda")), ValueError, "specified"),
        (lambda x: torch.cuda.set_per_process_memory_fraction(1, 0), TypeError, "float"),
        (lambda x: torch.cuda.synchronize(torch.device("cpu")), ValueError, "cuda device"),
        (lambda x: torch.cuda.Stream(stream="0"), TypeError, "stream"),  # type: ignore[call-arg]
    ],
)
def test_what_a_gpu_would_refuse_is_refused(
    work: Callable[[torch.Tensor], object], error: type[Exception], words: str, gpu: PretendedGpu
) -> None:
    x = torch.ones(3, device="cuda")
    assert (x + torch.tensor(2.0)).tolist() == [3.0] * 3, "single numbers may lie anywhere"
    with pytest.raises(error, match=words):
        work(x)


# -------------------- our own code


@pytest.mark.slow
def test_after_an_answer_that_lacked_memory_to_record_the_next_one_is_recorded(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on("cuda", graphs=True)
    before = gpu.replays
    with monkeypatch.context() as patch:
        patch.setattr("core.ops.graphs.record", lacks_memory)
        launched = answer(engine, PROMPT, tokens=8).token_ids
        assert gpu.replays == before and not engine.info.graphs.value and "no room" in engine.info.graphs.because
    assert answer(engine, PROMPT, tokens=8).token_ids == launched and gpu.replays > before + 5
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

        def noted(*args: Any, name: str = name, own: Callable[..., Any] = own, **kwargs: Any) -> object:
            called.append(name)
            return own(*args, **kwargs)

        monkeypatch.setitem(stubs.REPLACED, getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention"), noted)
    monkeypatch.setattr(torch._C, "_is_flash_attention_available", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    attention._has_flash.cache_clear()
    q = torch.randn(1, 4, 3, 16).to(dtype)
    k, v = torch.randn(2, 1, 2, 40, 16).to(dtype)
    found, expected = attend(q.to("cuda"), k.to("cuda"), v.to("cuda"), 0.25), attend_reference(q, k, v, 0.25)
    attention._has_flash.cache_clear()
    assert called == [kernel, kernel], "to the cached rows, and of the new ones among themselves"
    assert found.dtype == dtype and torch.allclose(found.cpu().float(), expected.float(), atol=2e-2)


def calls_of_torch_cuda() -> dict[str, set[tuple[str, int]]]:
    """The names of torch.cuda that core and app call, and the lines where they do."""
    found: dict[str, set[tuple[str, int]]] = {}
    for file in [*(ROOT / "core").rglob("*.py"), *(ROOT / "app").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "torch.cuda":
                found.setdefault(called.attr, set()).add((str(file), node.lineno))
    return found


@pytest.mark.parametrize("placement", ["resident", "offloaded"])
def test_embeddings_are_loaded_where_the_plan_has_them(placement: PlacementWish, gpu: PretendedGpu) -> None:
    files = PairFiles.find("harbour", "none")
    config = EngineConfig(model="harbour", device="cuda", context=8192, placement=placement)
    plan = make_plan(files.size(), None, config, this_machine())
    loaded = files.load_target(files.target, plan, CUDA, STOCK, None).module
    assert gpu.is_pinned(loaded.get_input_embeddings().weight.held) == (placement == "offloaded")  # type: ignore[operator]


def test_rows_that_the_driver_does_not_map_lie_on_the_device(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "as_tensor", lacks_memory)
    rows = torch.arange(6.0).view(2, 3)
    found = streams.of(CUDA).mapped(rows)
    assert found.device == CUDA and torch.equal(found.cpu(), rows) and "no room" in caplog.text


def test_a_device_s_memory_is_limited_and_counted(gpu: PretendedGpu) -> None:
    cap_memory(CUDA, 1.0)
    assert 0 < gpu.fraction < 1
    held = torch.ones(100, device=CUDA)
    assert peak_memory_bytes(CUDA) >= used_memory_bytes(CUDA) >= held.nbytes
    return_memory()


@pytest.mark.slow
def test_everything_that_we_call_of_torch_cuda_is_called_here_with_its_checks(gpu: PretendedGpu) -> None:
    calls, seen = calls_of_torch_cuda(), set[tuple[str, int]]()
    files = {file for lines in calls.values() for file, _ in lines}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename in files:
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        assert this_machine().gpus[0].name == "Pretended GPU"
        test_a_device_s_memory_is_limited_and_counted(gpu)
        _seconds(CUDA, torch.float32, 9, STOCK.attend)
        assert partial(*(torch.ones(1, 2, 3, 8, device=CUDA) for _ in "qkv"), 1.0).lse.shape == (1, 2, 3)
        helper = HostAttention(2, 8, 4, CUDA)
        helper.ask(torch.ones(1, 2, 3, 8, device=CUDA), torch.ones(1, 2, 2, 4, 8), 1.0)
        offloaded = engine_on("cuda", Offload(block_rows=64, num_slots=2), self_draft=True)
        answer(offloaded, PROMPT, "autoregressive", 8)
        recorded = engine_on("cuda", graphs=True)
        recorded._graphs.forget("full")  # type: ignore[union-attr]
    finally:
        sys.settrace(before)
        threading.settrace(None)  # type: ignore[arg-type]
    assert {"Event", "Stream", "synchronize"} <= calls.keys(), "nothing was found"
    # Each further rank of a model calls the one, in a process of its own
    assert {name for name, lines in calls.items() if not lines & seen} == {"set_device"}


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
