"""Reading with bfloat16 products (`--prefill-bits 16`): prompts are near, decoding after them is as exact as ever."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from core.config import EngineConfig, SamplingParams
from core.engine import Engine
from core.errors import InvalidSetting
from core.models.hub.catalog import find
from core.models.linear import MOST_ROWS, PackedLinear, read_in_brain
from core.ops.native import SmallRows
from tests.core.toys import answer, random_prompt


@pytest.fixture(scope="module")
def brain(kernel: SmallRows) -> SmallRows:
    if not kernel.multiplies_brain:
        pytest.skip("this processor has no products of bfloat16")
    return kernel


@pytest.mark.parametrize("inputs", [2, 96, 258, 770])
@pytest.mark.parametrize("outs", [1, 64, 131])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_are_those_of_rounded_rows_whatever_is_beside_them(
    brain: SmallRows, inputs: int, outs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outs, bias=outs > 1)
    linear.weight.data = (linear.weight.data * 4096).round().bfloat16().float() / 4096
    if dtype == torch.bfloat16:
        linear.weight.data[0, 0] = 2.0**-30  # no float16
    exact, x = PackedLinear(linear, brain), torch.randn(201, inputs)
    x[3, 0] = 1e30
    assert exact.packed.dtype == dtype
    part = PackedLinear(linear, brain)
    assert read_in_brain(part)
    with torch.inference_mode():
        found, rounded = part(x), linear.double()(x.bfloat16().double())
        assert torch.allclose(found.double(), rounded, rtol=1e-4, atol=1e-5)
        assert not torch.equal(found, exact(x))
        assert torch.equal(part(x[100:150]), found[100:150])
        assert torch.equal(part(x[:MOST_ROWS]), exact(x[:MOST_ROWS]))  # decoding is what it was


def brain_target(folder: Path) -> Path:
    """The bundled target with weights in bfloat16."""
    source = find("harbour").target
    shutil.copytree(source, folder)
    weights = {name: weight.bfloat16() for name, weight in load_file(source / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def loaded(model: Path | str, bits: int | None) -> Engine:
    return Engine.load(EngineConfig(model=str(model), draft_model="none", context=2048, prefill_bits=bits))


def test_answers_behind_such_a_prompt_are_exact_and_its_rows_are_no_others(brain: SmallRows, tmp_path: Path) -> None:
    folder, prompt = brain_target(tmp_path / "brain"), random_prompt(600)
    engines = {bits: loaded(folder, bits) for bits in (None, 16)}
    try:
        engine = engines[16]
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(temperature=temperature)
            texts = {}
            for method in ("autoregressive", "retrieval"):
                texts[method] = answer(engine, prompt, method, 16, sampling=sampling, seed=3)
                assert texts[method].exact
            if temperature == 0:
                assert texts["autoregressive"].token_ids == texts["retrieval"].token_ids
        families = {bits: engine.family(None).digest for bits, engine in engines.items()}
        assert families[None] != families[16]
        assert "reading in bfloat16" in engine.info.weights
    finally:
        for engine in engines.values():
            engine.close()


def test_it_is_refused_where_nothing_would_be_read_so() -> None:
    with pytest.raises(InvalidSetting, match="bfloat16 weights"):
        loaded("harbour", 16)
