"""Quantised targets: exact for the weights they have, smaller as planned, and no law that depends on the company."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from core.config import AttentionWish, EngineConfig
from core.engine import Engine
from core.errors import InvalidSetting, UnsupportedModel
from core.models import quantised
from core.models.linear import ROUNDED
from core.models.quantised import FORMATS, QuantisedLinear
from tests.core.models.hub.test_catalog import save
from tests.core.models.tiny_families import transformers_text
from tests.core.toys import CPU, answer

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
BITS = (8, 4)


@pytest.mark.parametrize("bits", BITS)
def test_weights_are_near_and_a_row_s_result_does_not_depend_on_its_company(bits: int) -> None:
    """Else verifying many tokens at once would follow another law than decoding one by one."""
    torch.manual_seed(1)
    plain = nn.Linear(64, 96)
    layer, weight = QuantisedLinear(plain, bits, CPU), plain.weight.data
    off = (layer.weight_as(torch.float32) - weight).abs() / weight.abs().amax(1, keepdim=True)
    assert off.max() < (0.6 / 127 if bits == 8 else 0.16), "half the widest step of 255 levels, or of NF4's 16"
    x = torch.randn(9, 64)
    x[4, 7] = 50.0  # an outlier, which LLM.int8() would treat the whole column for
    assert torch.allclose(layer(x), nn.functional.linear(x, layer.weight_as(x.dtype), plain.bias), atol=1e-5)
    assert torch.allclose(layer(x), torch.cat([layer(x[row : row + 1]) for row in range(9)]), atol=1e-5)


@pytest.mark.parametrize("attention", ["torch", "compiled"])
@pytest.mark.parametrize("bits", BITS)
def test_an_engine_is_exact_for_the_quantised_model(
    tmp_path: Path, bits: int, attention: AttentionWish, request: pytest.FixtureRequest
) -> None:
    """Greedy text of all methods is plain decoding's, and that of transformers with the widened weights put in.

    The compiled kernel multiplies with blocks as GGUF files have them, and rounds rows for them.
    """
    if attention == "compiled":
        request.getfixturevalue("kernel")  # skips where there is none
    folder = save(tmp_path / "m")
    config = EngineConfig(model=str(folder), bits=bits, device="cpu", context=512, draft_model="none")
    engine = Engine.load(replace(config, attention=attention))
    weights = (FORMATS if attention == "torch" else ROUNDED)[bits]
    assert engine.info.quantised and engine.info.weights == weights and "quantised" in engine.info.exact_for
    planned = {row.name: row.size_bytes for row in engine.plan.rows}
    assert planned["target weights"] == pytest.approx(engine.info.target_weight_bytes, rel=0.06)
    prompt = [3 + n % 50 for n in range(100)]

    plain, *others = (
        answer(engine, prompt, method, 10).token_ids for method in ("autoregressive", "retrieval", "lookup")
    )
    assert others == [plain, plain]
    if attention == "compiled":
        return
    kinds = {name: type(part) for name, part in engine.target.module.named_modules()}
    assert kinds["lm_head"] is nn.Linear and kinds["model.layers.0.self_attn.q_proj"] is QuantisedLinear
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, part in stock.named_modules():
        if isinstance(part, nn.Linear) and name != "lm_head":
            part.weight.data = QuantisedLinear(part, bits, CPU).weight_as(torch.float32)
    assert transformers_text(stock, prompt, len(plain)) == plain


def test_what_cannot_be_had_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSetting, match="16 bits"):  # where 32 are computed with
        Engine.load(EngineConfig(model=str(save(tmp_path / "m")), bits=16, device="cpu", context=256))
    for name in ("bitsandbytes", "bitsandbytes.functional"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedModel, match="bitsandbytes"):
        quantised.bitsandbytes()
