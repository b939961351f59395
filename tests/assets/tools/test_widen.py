"""Widened checkpoints: sizes of real models, the logits of the small one."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from assets.tools.widen import Sizes, WidenedFiles, pair_files, parse_sizes, wide_config, widen
from core.caches.full import FullCache
from core.caches.tokens import Context
from core.config import EngineConfig
from core.engine_builder import PairFiles
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


@pytest.fixture(scope="module")
def small() -> nn.Module:
    return load_module(find("harbour").target, torch.float32)


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    ids = cast(
        "list[int]", cast(Any, load_tokenizer(find("harbour").target)).encode(TEXT * 3, add_special_tokens=False)
    )
    return ids[:30]


def prefill_then_decode(model: nn.Module, dtype: torch.dtype, tokens: list[int]) -> Tensor:
    """Logits of every token: a prefill in pieces, then one token a pass through our full cache, [T, V]."""
    config = cast(Any, model).config
    shape = dims_of(config, "model", weight_bytes=0).shape(dtype, CPU)
    judge, context = CachedModel("full", model, FullCache(shape, 128, 8), CPU), Context(tokens)
    pieces = [range(0, 14), range(14, 25), *(range(index, index + 1) for index in range(25, len(tokens)))]
    return torch.cat([judge.feed(context, piece, len(piece)) for piece in pieces])


def error(wide: nn.Module, small: nn.Module, dtype: torch.dtype, tokens: list[int]) -> float:
    expected = prefill_then_decode(small, dtype, tokens)
    found = prefill_then_decode(wide, dtype, tokens)
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_a_widened_model_has_the_logits_of_the_small_one(case: str, small: nn.Module, tokens: list[int]) -> None:
    """Float32 sums in another order: seen 2e-5 of the largest logit, scores of heads being hundreds of nats."""
    wide = widen(small, wide_config(cast(Any, small).config, CASES[case]), torch.float32, CPU)
    assert error(wide, small, torch.float32, tokens) < 1e-4


# -------------------- names and sizes


def files_of(sizes: str) -> PairFiles:
    return pair_files(EngineConfig(model=f"widened:{sizes}"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama2-7b", Sizes(32, 4096, 32, 32, 128, 11008, 32000)),
        ("llama2-13b-128k", Sizes(40, 5120, 40, 40, 128, 13824, 32000)),
        ("llama-3.1-8b", Sizes(32, 4096, 32, 8, 128, 14336, 128256)),
        ("llama2-7bx5", Sizes(5, 4096, 32, 32, 128, 11008, 32000)),
        ("1024x6", Sizes(6, 1024, 8, 8, 128, 2730, 0)),
    ],
)
def test_sizes_go_by_name(name: str, expected: Sizes) -> None:
    assert parse_sizes(name) == expected


@pytest.mark.parametrize(("name", "billions"), [("llama2-7b", 6.74), ("llama2-13b", 13.02), ("llama-3.1-8b", 8.03)])
def test_real_sizes_have_the_parameters_of_the_real_models(name: str, billions: float) -> None:
    files, harbour = files_of(name), pair_files(EngineConfig())
    dims, parameters = files.target, files.size().num_parameters
    assert round(parameters / 1e9, 2) == billions and files.draft == harbour.draft
    assert dims.weight_bytes == 2 * parameters and not isinstance(harbour, WidenedFiles)
    assert (dims.vocab_size, dims.max_context) == (harbour.target.vocab_size, harbour.target.max_context)
    assert read_config(files.entry.target).vocab_size == dims.vocab_size
