"""Passes of few tokens through the kernel, beside the modules of transformers."""

import copy
from collections.abc import Callable

import pytest
import torch
from transformers import GemmaConfig, MistralConfig, PreTrainedConfig

from core.caches.full import FullCache
from core.caches.tokens import Context
from core.models.cached_model import CachedModel
from core.models.loader import LoadedModel, prepared
from core.models.short_pass import short_pass_of
from core.ops.backend import STOCK, Backend
from core.ops.native import MOST_TOKENS, NoKernel, SmallRows, small_rows
from tests.core.toys import CPU, VOCAB, loaded, random_prompt, tiny_config


@pytest.fixture(scope="module")
def kernel() -> SmallRows:
    try:
        return small_rows()
    except NoKernel as reason:
        pytest.skip(f"no kernel here: {reason}")


def compiled(
    kernel: SmallRows, config: PreTrainedConfig, change: Callable[[torch.nn.Module], None] | None = None
) -> LoadedModel:
    tiny = loaded(config, 5)
    if change:
        change(tiny.module)
    return prepared(tiny.module, tiny.dims, torch.float32, CPU, Backend("compiled", kernel, "test", kernel=kernel))


def logits(model: LoadedModel, tokens: list[int], sizes: list[int], backend: Backend = STOCK) -> torch.Tensor:
    """Of every token, in passes of these sizes."""
    cache = FullCache(model.shape, 2048, 8, backend=backend)
    judge, found, at = CachedModel("full", model.module, cache, CPU), [], 0
    for size in sizes:
        found.append(judge.feed(Context(tokens), range(at, at + size), size))
        at += size
    return torch.cat(found)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_short_passes_give_the_logits_of_the_modules(kernel: SmallRows, family: str, heads: int, kv_heads: int) -> None:
    config, tokens = tiny_config(family, layers=3, heads=heads, kv_heads=kv_heads), random_prompt(60)

    def biases_too(model: torch.nn.Module) -> None:
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data += torch.randn_like(parameter)

    fast, slow = compiled(kernel, config, biases_too), loaded(config, 5)
    biases_too(slow.module)
    assert short_pass_of(fast.module) is not None
    assert short_pass_of(slow.module) is None, "the slow twin goes through its modules"
    sizes = [1, 6, 13, MOST_TOKENS, 8]
    assert torch.allclose(logits(fast, tokens, sizes), logits(slow, tokens, [60]), atol=1e-3)


def test_far_positions_are_rotated_as_the_modules_do(kernel: SmallRows) -> None:
    config, tokens = tiny_config("llama"), random_prompt(1060)
    fast, slow = compiled(kernel, config), loaded(config, 5)
    sizes = [1000, 20, 10, 30]  # 1,024 lies within a pass
    assert torch.allclose(logits(fast, tokens, sizes)[-60:], logits(slow, tokens, [1060])[-60:], atol=1e-3)


def test_rows_of_a_short_pass_do_not_depend_on_one_another(kernel: SmallRows) -> None:
    model, tokens = compiled(kernel, tiny_config("qwen3", heads=6, kv_heads=2)), random_prompt(40)
    backend = Backend("compiled", kernel, "test", kernel=kernel)
    alone = logits(model, tokens, [1] * 40, backend)
    for sizes in ([13, 13, 14], [2, 5, 32, 1], [32, 8]):
        assert torch.equal(logits(model, tokens, sizes, backend), alone)
    assert not torch.equal(logits(model, tokens, [32, 8]), alone), "torch's attention sums in another order"


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, head_dim=16, sliding_window=8,
        ),
        GemmaConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, head_dim=16,
        ),
    ],
    ids=["windows", "another family"],
)  # fmt: skip
def test_other_models_go_through_their_modules(kernel: SmallRows, config: PreTrainedConfig) -> None:
    assert short_pass_of(compiled(kernel, config).module) is None


def test_a_model_whose_modules_compute_something_else_is_found_out(kernel: SmallRows) -> None:
    model = copy.deepcopy(loaded(tiny_config(), 5))
    model.module.model.layers[1].mlp.register_forward_hook(lambda *_: torch.zeros(1))
    chosen = Backend("compiled", kernel, "test", kernel=kernel)
    assert short_pass_of(prepared(model.module, model.dims, torch.float32, CPU, chosen).module) is None


def test_without_the_kernel_there_is_no_short_pass() -> None:
    tiny = loaded(tiny_config(), 5)
    assert short_pass_of(prepared(tiny.module, tiny.dims, torch.float32, CPU, STOCK).module) is None
