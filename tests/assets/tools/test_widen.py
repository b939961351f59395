"""Widened checkpoints: sizes of real models, the logits of the small one."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from assets.tools.widen import Sizes, WidenedFiles, pair_files, parse_sizes, wide_config, widen
from core.caches.full import FullCache
from core.caches.tokens import Context
from core.config import EngineConfig
from core.errors import UnknownModel, UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.hub.catalog import find
from core.models.loader import dims_of, load_tokenizer, read_config
from core.models.weights import load_module
from tests.core.toys import CPU

TEXT = "The keeper of the harbour wrote the name of every ship into a grey book, and nobody asked him why. "
CASES = {
    "more heads": Sizes(6, 768, 12, 12, 64, 1500, 0),
    "wider heads": Sizes(6, 768, 12, 12, 128, 1500, 4000),
    "grouped": Sizes(5, 768, 16, 8, 128, 1500, 4000),
}


def logits(model: nn.Module, tokens: list[int]) -> Tensor:
    """Of every token: a prefill in pieces, then one token a pass through our full cache, [T, V]."""
    shape = dims_of(cast(Any, model).config, "model", weight_bytes=0).shape(torch.float32, CPU)
    judge, context = CachedModel("full", model, FullCache(shape, 128, 8), CPU), Context(tokens)
    pieces = [range(0, 14), range(14, 25), *(range(index, index + 1) for index in range(25, len(tokens)))]
    return torch.cat([judge.feed(context, piece, len(piece)) for piece in pieces])


@pytest.mark.parametrize("case", CASES)
def test_a_widened_model_has_the_logits_of_the_small_one(case: str) -> None:
    """Float32 sums in another order: seen 2e-5 of the largest logit, scores of heads being hundreds of nats."""
    small = load_module(find("harbour").target, torch.float32)
    tokens = cast(Any, load_tokenizer(find("harbour").target)).encode(TEXT * 3, add_special_tokens=False)[:30]
    wide = widen(small, wide_config(cast(Any, small).config, CASES[case]), torch.float32, CPU)
    expected, found = logits(small, tokens), logits(wide, tokens)
    assert found.shape == expected.shape and (found - expected).abs().max() < 1e-4 * expected.abs().max()


# -------------------- names and sizes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama2-7bx5", Sizes(5, 4096, 32, 32, 128, 11008, 32000)),
        ("1024x6", Sizes(6, 1024, 8, 8, 128, 2730, 0)),
    ],
)
def test_sizes_go_by_name(name: str, expected: Sizes) -> None:
    assert parse_sizes(name) == expected


@pytest.mark.parametrize(("name", "billions"), [("llama2-7b", 6.74), ("llama2-13b", 13.02), ("llama-3.1-8b", 8.03)])
def test_real_sizes_have_the_parameters_of_the_real_models(name: str, billions: float) -> None:
    files, harbour = pair_files(EngineConfig(model=f"widened:{name}")), pair_files(EngineConfig())
    dims, parameters = files.target, files.size().num_parameters
    assert round(parameters / 1e9, 2) == billions and files.draft == harbour.draft
    assert dims.weight_bytes == 2 * parameters and not isinstance(harbour, WidenedFiles)
    assert (dims.vocab_size, dims.max_context) == (harbour.target.vocab_size, harbour.target.max_context)
    assert read_config(files.entry.target).vocab_size == dims.vocab_size


@pytest.mark.parametrize("name", ["llama9", "1024", "1000x6", "512x2"])
def test_sizes_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises((UnknownModel, UnsupportedModel)):
        pair_files(EngineConfig(model=f"widened:{name}"))
