"""Our attention function leaves nothing out silently: what a layer asks for and is not implemented is refused."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
    or_masks,
    sliding_window_causal_mask_function,
)

from core.caches.full import FullCache
from core.caches.policies import TopChunks
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.config import DraftConfig, RetrievalConfig
from core.errors import UnsupportedModel
from core.models import hf_attention
from core.models.hf_attention import PassHandle
from core.ops.reach import Reach
from tests.core.toys import tiny_shape

ACTIVE: dict[str, object] = {
    "sliding_window": 16,
    "sinks": torch.zeros(2),
    "output_attentions": True,
    "something_new": 0,
    "dropout": 0.1,
    "is_causal": False,
}


class Layer(nn.Module):
    layer_idx = 0


def attend(layer: nn.Module, mask: object = None, **asked: Any) -> torch.Tensor:
    """Three tokens through a cache with one layer; [1, T, H, D]."""
    generator = torch.Generator().manual_seed(0)
    shape = tiny_shape()
    cache = FullCache(shape, 16, 8)
    cache.begin(0, 3)
    q, k, v = (torch.randn(1, heads, 3, shape.head_dim, generator=generator) for heads in (2, 1, 1))
    key, value = PassHandle(cache).update(k, v, 0)
    return hf_attention.attention(layer, q, key, value, mask, **asked)[0]


@pytest.mark.parametrize("name", ACTIVE)
def test_an_active_keyword_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=name) as error:
        attend(Layer(), scaling=0.5, **{name: ACTIVE[name]})
    assert error.value.hint


def test_masks_and_layers_that_are_not_causal_are_refused() -> None:
    """transformers' convention: the keyword counts, and where it is missing the layer's own attribute."""
    for mask in (torch.zeros(1, 1, 3, 3), hf_attention.mask(mask_function=object())):
        with pytest.raises(UnsupportedModel, match="mask"):
            attend(Layer(), mask, scaling=0.5)
    layer = Layer()
    layer.is_causal = False
    with pytest.raises(UnsupportedModel, match="is_causal"):
        attend(layer, scaling=0.5)
    assert torch.equal(attend(layer, scaling=0.5, is_causal=True), attend(Layer(), scaling=0.5))
    with pytest.raises(UnsupportedModel, match="sliding_window=8"):  # its mask states another one
        attend(Layer(), Reach(16), scaling=0.5, sliding_window=8)


def test_only_the_plain_causal_mask_is_built_as_nothing_and_windows_and_chunks_by_their_size() -> None:
    hf_attention.register()
    config = LlamaConfig(num_hidden_layers=1, sliding_window=16, attention_chunk_size=8)
    config._attn_implementation = hf_attention.ATTENTION_NAME
    handle = PassHandle(FullCache(tiny_shape(), 16, 8))
    given: dict[str, Any] = {
        "config": config,
        "inputs_embeds": torch.zeros(1, 3, 4),
        "attention_mask": None,
        "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values": handle,
        "position_ids": torch.arange(3)[None],
    }
    assert create_causal_mask(**given) is None
    assert create_sliding_window_causal_mask(**given) == Reach(16)
    assert create_chunked_causal_mask(**given) == Reach(8, chunked=True)
    assert isinstance(create_causal_mask(**given | {"attention_mask": torch.tensor([[0, 1, 1]])}), hf_attention.Partial)
    assert hf_attention.mask(mask_function=causal_mask_function) is None
    window = sliding_window_causal_mask_function(16)
    assert hf_attention.mask(mask_function=window) == Reach(16)
    for other in (
        or_masks(window, causal_mask_function),
        and_masks(window, causal_mask_function),
        and_masks(causal_mask_function, causal_mask_function),
        lambda batch, head, q, kv: kv > q - 16,
    ):
        assert isinstance(hf_attention.mask(mask_function=other), hf_attention.Partial)


@pytest.mark.parametrize("kind", ["full", "retrieval", "streaming"])
def test_keys_and_values_of_another_shape_than_the_config_s_are_refused(kind: str) -> None:
    """Without the check a single head, or a width of 1, would be copied to all of them."""
    shape = tiny_shape(heads=4, kv_heads=2)
    full = FullCache(shape, 32, 8)
    cache = {
        "full": full,
        "retrieval": RetrievalCache(full, TopChunks(full, RetrievalConfig(budget=24, local_window=8))),
        "streaming": StreamingCache(shape, DraftConfig(window=128), lambda keys, delta: keys),
    }[kind]
    cache.begin(0, 3)
    for heads, key_width, value_width in ((1, 4, 4), (4, 4, 4), (2, 1, 1), (2, 4, 1), (2, 6, 4)):
        with pytest.raises(UnsupportedModel, match=r"config\.json"):
            cache.stage(0, torch.zeros(1, heads, 3, key_width), torch.zeros(1, heads, 3, value_width))
    cache.stage(0, torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
