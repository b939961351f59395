"""The CUDA paths against the CPU ones. Run with `python -m pytest -m gpu` on a machine with a GPU."""

from dataclasses import replace

import pytest
import torch

from core.caches.full import Offload
from core.config import DraftConfig, EngineConfig, GenerationConfig, RetrievalConfig, SpeculationConfig
from core.engine import Engine
from core.events import Finished
from core.models.loader import LoadedModel
from core.ops.attention import attend, attend_reference
from core.planner import Choice, make_plan
from tests.core.toys import MACHINE, Letters, loaded, random_prompt, tiny_config, tiny_engine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda")
FIXED = SpeculationConfig(gamma1=2, gamma2=6, adaptive=False)


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


def on_cuda(model: LoadedModel) -> LoadedModel:
    return LoadedModel(model.module.to(CUDA), model.dims, model.dims.shape(torch.float32, CUDA), model.eos_ids)


def cuda_engine(kv_heads: int, offload: Offload | None = None) -> Engine:
    config = EngineConfig(
        context=2048,
        prefill_chunk=256,
        retrieval=RetrievalConfig(budget=256, chunk_size=8, local_window=64),
        draft=DraftConfig(window=128),
    )
    target = on_cuda(loaded(tiny_config(kv_heads=kv_heads), 3))
    draft = on_cuda(loaded(tiny_config(kv_heads=kv_heads), 3, 0.15))
    plan = replace(make_plan(target.dims, draft.dims, config, MACHINE), device=Choice("cuda", "test"))
    return Engine(config, plan, Letters(), target, draft, offload=offload)


def written(engine: Engine, method: str) -> tuple[int, ...]:
    config = GenerationConfig(method=method, max_new_tokens=60, speculation=FIXED)
    *_, finished = engine.generate(random_prompt(700), config)
    assert isinstance(finished, Finished)
    return finished.token_ids


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_every_exact_method_writes_on_the_device_what_the_cpu_writes(kv_heads: int) -> None:
    expected = written(tiny_engine(kv_heads=kv_heads), "autoregressive")
    engine = cuda_engine(kv_heads)
    for method in ("autoregressive", "triforce", "retrieval", "draft"):
        assert written(engine, method) == expected, method


@pytest.mark.parametrize("num_resident", [0, 1])
def test_layers_in_pinned_host_memory_give_the_text_that_the_cpu_writes(num_resident: int) -> None:
    expected = written(tiny_engine(kv_heads=2), "autoregressive")
    engine = cuda_engine(2, Offload(num_resident=num_resident, block_rows=64, num_slots=2))
    assert engine.info.host_memory is not None and engine.info.host_memory.value == "pinned"
    for method in ("autoregressive", "triforce", "retrieval", "draft"):
        assert written(engine, method) == expected, method


def test_a_device_that_runs_out_of_memory_goes_on_with_fewer_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, engine = written(tiny_engine(kv_heads=2), "triforce"), cuda_engine(2)
    real, calls = engine._full.attend, []

    def attend(layer: int, q: torch.Tensor, scaling: float) -> torch.Tensor:
        calls.append(layer)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("injected")
        return real(layer, q, scaling)

    monkeypatch.setattr(engine._full, "attend", attend)
    assert written(engine, "triforce") == expected and engine.info.plan.resident_layers == 1


def test_lossy_methods_run_on_the_device() -> None:
    engine = cuda_engine(4)
    for method in ("streamingllm", "h2o"):
        assert len(written(engine, method)) == 60
