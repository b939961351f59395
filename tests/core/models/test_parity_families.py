"""Every family of the catalogue, shrunk but with its own RoPE, biases, norms, GQA and tied embeddings, against stock.

Weights are random, biases and norms included (fresh ones are 0 and 1, and would hide a part that is left out).
"""

import json
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, Gemma2Config, PreTrainedConfig, Qwen2Config

from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.retrieval import RetrievalCache
from core.caches.selection import TopChunks
from core.caches.streaming import StreamingCache
from core.config import DraftConfig, RetrievalConfig
from core.errors import UnsupportedModel
from core.models.catalog import entries
from core.models.judge import Judge
from core.models.loader import dims_of
from core.models.rotary import KeyShift
from core.models.seam import ATTENTION_NAME
from core.tokens import Context
from tests.core.toys import CPU, VOCAB, random_prompt, tiny_model

NATIVE = 64  # positions before scaling: texts below are longer
LENGTH = 150
MOVING = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


def shrunk(row: dict[str, Any]) -> dict[str, Any]:
    """A catalogue row's config with few and small layers."""
    heads = 4
    group = row["num_attention_heads"] // row["num_key_value_heads"]
    rope = dict(row.get("rope_parameters") or {"rope_type": "default", "rope_theta": 10000.0})
    if "original_max_position_embeddings" in rope:
        rope["original_max_position_embeddings"] = NATIVE
    return {
        **row,
        "hidden_size": 16 * heads,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // group),
        "head_dim": 16,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rope_parameters": rope,
        "dtype": "float32",
    }


def cases() -> dict[str, dict[str, Any]]:
    """One for each different shrunk config of the catalogue, and what it does not have yet."""
    found: dict[str, dict[str, Any]] = {}
    for name, row in entries().items():
        if row.config is not None:
            small = shrunk({**row.config, **row.overrides})
            if json.dumps(small) not in map(json.dumps, found.values()):
                found[name] = small
    plain = found["llama-68m"]
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    found["llama, linear RoPE"] = {**plain, "rope_parameters": linear}
    found["llama, biases everywhere"] = {**plain, "attention_bias": True, "mlp_bias": True}
    found["qwen3, biases"] = {**found["qwen3-8b"], "attention_bias": True}
    return found


CASES = cases()


def config_of(fields: dict[str, Any]) -> PreTrainedConfig:
    fields = dict(fields)
    config = cast(Any, AutoConfig).for_model(fields.pop("model_type"), **fields)
    config.initializer_range, config.bos_token_id, config.eos_token_id, config.pad_token_id = 0.4, None, None, None
    return cast(PreTrainedConfig, config)


def pair_of(fields: dict[str, Any]) -> tuple[nn.Module, nn.Module, KVShape]:
    """The same weights in transformers' own attention and in ours."""
    config = config_of(fields)
    stock = tiny_model(config, 5, "eager")
    generator = torch.Generator().manual_seed(6)
    for name, parameter in stock.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    ours = tiny_model(config_of(fields), 5, ATTENTION_NAME)
    ours.load_state_dict(stock.state_dict())
    return stock, ours, dims_of(config, "toy", weight_bytes=0).shape(torch.float32, CPU)


def logits_of(model: nn.Module, tokens: list[int]) -> Tensor:
    return cast(Tensor, cast(Any, model)(torch.tensor([tokens])).logits[0])


def close(ours: Tensor, stock: Tensor) -> bool:
    return torch.allclose(ours, stock, atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_parity_of_logits_and_greedy_text_through_all_caches(name: str) -> None:
    stock, model, shape = pair_of(CASES[name])
    tokens = random_prompt(LENGTH)
    context, expected = Context(tokens), logits_of(stock, tokens)

    full = FullCache(shape, 256, 8)
    judge = Judge("full", model, full, CPU)
    for start, stop in ((0, 90), (90, 120), (120, 127)):  # prefill in chunks
        assert close(judge.feed(context, range(start, stop), 1)[0], expected[stop - 1])
    for index in range(127, 140):  # decoding
        assert close(judge.feed(context, range(index, index + 1), 1)[0], expected[index])

    retrieval = RetrievalCache(full, TopChunks(full, RetrievalConfig(budget=256, local_window=64)))
    retrieval.select()
    assert close(Judge("retrieval", model, retrieval, CPU).logits(context, 10), expected[-10:])

    streaming = StreamingCache(shape, DraftConfig(num_sink=4, window=200), KeyShift.of(model, shape))
    assert close(Judge("draft", model, streaming, CPU).logits(context, 5), expected[-5:])

    text = list(tokens)
    for _ in range(12):
        text.append(int(judge.logits(Context(text), 1).argmax()))
    ids = torch.tensor([tokens])
    written = cast(Any, stock).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert text == written[0].tolist()


@pytest.mark.parametrize("name", ["llama2-7b-128k", "llama-3.1-8b", "llama, linear RoPE"])
def test_parity_would_notice_a_scaling_that_is_left_out(name: str) -> None:
    """Negative control: the same weights with plain RoPE are far off, at positions within the native ones too."""
    stock, _, _ = pair_of(CASES[name])
    plain = {"rope_type": "default", "rope_theta": CASES[name]["rope_parameters"]["rope_theta"]}
    other, _, _ = pair_of({**CASES[name], "rope_parameters": plain})
    tokens = random_prompt(LENGTH)
    assert not torch.allclose(logits_of(stock, tokens)[-10:], logits_of(other, tokens)[-10:], atol=0.05)


def test_parity_would_notice_a_bias_that_is_left_out() -> None:
    stock, _, _ = pair_of(CASES["qwen2.5-7b"])
    tokens = random_prompt(60)
    expected = logits_of(stock, tokens)
    for parameter_name, parameter in stock.named_parameters():
        if parameter_name.endswith("q_proj.bias"):
            parameter.data.zero_()
    assert not torch.allclose(expected, logits_of(stock, tokens), atol=0.05)


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(use_sliding_window=True, max_window_layers=1, num_hidden_layers=3, sliding_window=64),
        Gemma2Config(),
        config_of({**CASES["mistral-nemo"], "sliding_window": 64}),
        config_of(
            {**CASES["llama-68m"], "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
        ),
    ],
    ids=["qwen2, windowed layers", "gemma2", "mistral, windowed", "dynamic RoPE"],
)
def test_parity_that_cannot_be_had_is_refused(config: PreTrainedConfig) -> None:
    with pytest.raises(UnsupportedModel) as error:
        dims_of(config, "toy", weight_bytes=0)
    assert error.value.hint
