"""The trial of a loaded model, and families that nobody compared: one line, never a traceback."""

import copy
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import launch as launcher
from core import TriForce
from core.errors import UnsupportedModel
from core.models import trial
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.catalog import find
from core.models.loader import LoadedModel, dims_of, load_tokenizer, prepared
from core.models.trial import try_out
from tests.core.toys import tiny_config

TINY: dict[str, dict[str, Any]] = {
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4},
    "opt": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "deepseek_v3": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4},
}


def loaded(dtype: torch.dtype = torch.float32, **sizes: Any) -> LoadedModel:
    register()
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(tiny_config(**sizes), dtype=dtype, attn_implementation=ATTENTION_NAME)
    dims = dims_of(model.config, "toy", weight_bytes=1)
    return prepared(model.eval(), dims, dtype, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_computes_the_same_passes_and_keeps_its_attention(dtype: torch.dtype) -> None:
    model = loaded(dtype)
    assert try_out(model, "toy", dtype)
    assert cast(Any, model.module).config._attn_implementation == ATTENTION_NAME


def test_a_model_whose_logits_are_all_the_same_passes() -> None:
    model = loaded()
    for weights in model.module.parameters():
        weights.zero_()
    assert try_out(model, "toy", torch.float32)


def test_a_model_that_computes_something_else_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model, real = loaded(), trial.forward

    def without_the_past(module: Any, tokens: Any, positions: Any, cache: Any, keep: int) -> Any:
        return real(module, tokens, torch.zeros_like(positions), cache, keep)  # every token at the first position

    monkeypatch.setattr(trial, "forward", without_the_past)
    with pytest.raises(UnsupportedModel, match="toy computes something else here than in transformers"):
        try_out(model, "toy", torch.float32)
    monkeypatch.setattr(trial, "forward", lambda *given: given[0].nothing)
    with pytest.raises(UnsupportedModel, match=r"does not run through the caches here \(AttributeError\)"):
        try_out(model, "toy", torch.float32)


def test_modules_of_programs_are_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(find("harbour").target)
    config = copy.deepcopy(cast(Any, tiny_config()))
    config.vocab_size = len(tokenizer)
    real = trial.forward
    monkeypatch.setattr(trial, "forward", lambda *given: -real(*given))
    with pytest.raises(UnsupportedModel, match="a trial of 8 tokens"):
        TriForce.from_modules(AutoModelForCausalLM.from_config(config), tokenizer, context=512)


@pytest.mark.parametrize("family", TINY)
def test_a_family_that_nobody_compared_is_refused_before_it_is_loaded(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CONFIG_MAPPING[family](vocab_size=300, **TINY[family]).save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stated | {"architectures": ["ForCausalLM"]}))
    capsys.readouterr()
    for model in (tmp_path, tmp_path / "config.json"):
        assert launcher.main(["doctor", "--model", str(model), "--context", "256", "--no-venv"]) == 1
        captured = capsys.readouterr()
        (error,) = [line for line in captured.err.splitlines() if line.startswith("error:")]
        assert ("was not tested" in error or "latent attention" in error) and "Choose a model" in error
        assert "Traceback" not in captured.err and captured.out == "", "nothing is predicted"
