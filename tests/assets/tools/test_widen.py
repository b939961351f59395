"""Widened checkpoints: sizes of real models, the logits of the small one."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from app.cli.arguments import parse_arguments
from assets.tools.bench.command import check
from assets.tools.commands import TOOLS
from assets.tools.widen import CutLinear, Sizes, WidenedFiles, pair_files, parse_sizes, wide_config, widen
from core.caches.full import FullCache
from core.caches.tokens import Context
from core.config import EngineConfig, GenerationConfig
from core.engine import Engine
from core.engine_builder import PairFiles
from core.errors import InvalidSetting, NotEnoughMemory, UnknownModel, UnsupportedModel
from core.generation.events import Finished
from core.models.cached_model import CachedModel
from core.models.hub.catalog import find
from core.models.loader import dims_of, load_module, load_tokenizer, read_config
from core.planning.hardware import Machine
from core.planning.plan import make_plan
from tests.core.toys import CPU, tiny_config, tiny_model

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


class DoubleNorm(nn.Module):
    """RMSNorm in float64 throughout; transformers' own rounds to float32."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def in_double(model: nn.Module) -> nn.Module:
    model = model.double()
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part).__name__ == "LlamaRMSNorm":
                setattr(parent, name, DoubleNorm(part))
    return model


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


def toy(kv_heads: int) -> nn.Module:
    return in_double(tiny_model(tiny_config(layers=3, kv_heads=kv_heads), 3).double())


def toy_tokens() -> list[int]:
    return torch.randint(2, 64, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def wide_toy(kv_heads: int, wide_kv_heads: int) -> nn.Module:
    small = tiny_model(tiny_config(layers=3, kv_heads=kv_heads), 3)
    config = wide_config(cast(Any, small).config, Sizes(6, 384, 12, wide_kv_heads, 32, 150, 100))
    return in_double(widen(small, config, torch.float64, CPU))


@pytest.mark.parametrize(("kv_heads", "wide_kv_heads"), [(4, 12), (4, 4), (2, 4), (2, 6)])
def test_in_double_precision_nothing_but_rounding_is_left(kv_heads: int, wide_kv_heads: int) -> None:
    """Twelve heads over twelve, six or four KV heads: copies in a group, several small heads in one, surplus ones."""
    assert error(wide_toy(kv_heads, wide_kv_heads), toy(kv_heads), torch.float64, toy_tokens()) < 1e-9


def _scale(name: str, factor: float) -> Callable[[nn.Module], None]:
    def wrong(model: nn.Module) -> None:
        for at, parameter in model.named_parameters():
            if name in at:
                parameter.data *= factor

    return wrong


def _unscaled_eps(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, DoubleNorm):
            part.eps *= 384 / 64


def _every_pair(model: nn.Module) -> None:
    """Pair i of the small head as pair i of the wide one: it would turn too slowly."""
    for at, parameter in model.named_parameters():
        if at.endswith(("q_proj.weight", "k_proj.weight")):
            heads = parameter.data.view(-1, 32, parameter.shape[1])
            pairs = torch.arange(16).view(8, 2).t().flatten()  # 0, 2, 4, ... first
            heads[:] = heads[:, torch.cat((pairs, pairs + 16))].clone()


WRONG = {
    "queries without sqrt(2)": _scale("q_proj", 2**-0.5),
    "norms without their factor": _scale("norm", (384 / 64) ** 0.5),
    "eps as it was": _unscaled_eps,
    "neighbouring rotary pairs": _every_pair,
    "an output not zero for what is surplus": lambda model: (
        cast(Any, model).model.layers[0].self_attn.o_proj.weight.data[0].add_(1e-3)
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_widening_would_be_noticed(wrong: str) -> None:
    """Negative controls of the test above."""
    wide = wide_toy(4, 4)
    WRONG[wrong](wide)
    assert error(wide, toy(4), torch.float64, toy_tokens()) > 1e-7


def test_what_is_not_seen_is_random_where_it_can_be() -> None:
    """Zeros time faster than data: only what would be seen is zero, and surplus keys and values are traffic."""
    small = tiny_model(tiny_config(layers=1), 3)
    wide = widen(small, wide_config(cast(Any, small).config, Sizes(2, 384, 12, 12, 32, 150, 100)), torch.float32, CPU)
    zeros = {name: float((p == 0).float().mean()) for name, p in wide.named_parameters()}
    assert all(zeros[f"model.layers.1.self_attn.{kind}_proj.weight"] == 0 for kind in "qkv")
    assert zeros["model.layers.0.self_attn.k_proj.weight"] == zeros["lm_head.weight"] == 0
    assert zeros["model.layers.0.mlp.gate_proj.weight"] == zeros["model.layers.1.mlp.up_proj.weight"] == 0
    assert zeros["model.layers.0.self_attn.q_proj.weight"] < 0.05
    tokens = toy_tokens()
    cache = FullCache(dims_of(cast(Any, wide).config, "wide", weight_bytes=0).shape(torch.float32, CPU), 64, 8)
    CachedModel("full", wide, cache, CPU).feed(Context(tokens), range(len(tokens)), 1)
    for layer in range(2):
        k, v = cache.rows(layer, 0, len(tokens))
        assert float(k.std((1, 2)).min()) > 0.1 and float(v.std((1, 2)).min()) > 0.1


def test_a_seed_and_a_dtype_give_the_same_weights_again(small: nn.Module) -> None:
    config = wide_config(cast(Any, small).config, CASES["more heads"])
    first, second = (widen(small, config, torch.float16, CPU) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert {p.dtype for p in first.parameters()} == {torch.float16}


def test_every_logit_is_computed_and_only_those_of_the_tokenizer_are_kept(small: nn.Module) -> None:
    wide = cast(Any, widen(small, wide_config(cast(Any, small).config, CASES["grouped"]), torch.float32, CPU))
    assert isinstance(wide.lm_head, CutLinear) and wide.lm_head.weight.shape == (4000, 768)
    assert wide.lm_head(torch.zeros(1, 3, 768)).shape == (1, 3, 3072)


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


@pytest.mark.parametrize("name", ["", "x", "x6", "gpt", "700x6", "1024", "llama2-7bx", "1024x6x6"])
def test_a_size_that_is_none_is_told_in_one_line(name: str) -> None:
    with pytest.raises(UnknownModel) as raised:
        files_of(name)
    assert "llama2-7b" in raised.value.hint and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["896x6", "1024x3", "qwen2.5-7b"])
def test_sizes_that_cannot_hold_the_small_model_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel):
        files_of(name)


@pytest.mark.parametrize(("name", "billions"), [("llama2-7b", 6.74), ("llama2-13b", 13.02), ("llama-3.1-8b", 8.03)])
def test_real_sizes_have_the_parameters_of_the_real_models(name: str, billions: float) -> None:
    files, harbour = files_of(name), pair_files(EngineConfig())
    dims, parameters = files.target, files.size().num_parameters
    assert round(parameters / 1e9, 2) == billions and files.draft == harbour.draft
    assert dims.weight_bytes == 2 * parameters and not isinstance(harbour, WidenedFiles)
    assert (dims.vocab_size, dims.max_context) == (harbour.target.vocab_size, harbour.target.max_context)
    assert read_config(files.entry.target).vocab_size == dims.vocab_size


def test_a_model_beyond_the_memory_is_refused_before_anything_is_made() -> None:
    machine = Machine("test processor", 2, 24 << 30, 20 << 30, ())
    with pytest.raises(NotEnoughMemory, match=r"weights and what lies beside them need 2\d\.\d GiB"):
        make_plan(files_of("llama2-7b").target, None, EngineConfig(device="cpu"), machine)


def test_peers_read_files_and_a_widened_model_has_none() -> None:
    with pytest.raises(InvalidSetting, match="Peers"):
        check(parse_arguments(["bench", "--suite", "peers", "--model", "widened:1024x6"], TOOLS))


# -------------------- an engine


def test_an_engine_answers_with_a_widened_target_as_with_the_bundled_one() -> None:
    answers = []
    for model in ("harbour", "widened:1024x5"):
        try:
            config = EngineConfig(model=model, device="cpu", context=1024)
            engine = Engine.load(config, pair_files(config))
        except NotEnoughMemory as refused:  # a machine with too little memory
            pytest.skip(str(refused))
        ids = engine.text.encode(TEXT * 4)
        config = GenerationConfig(max_new_tokens=8, method="triforce")
        *_, finished = engine.generate(ids, config)
        assert isinstance(finished, Finished)
        answers.append(finished.token_ids)
    assert answers[0] == answers[1]
    assert engine.info.model == "widened:1024x5" and engine.info.target_weight_bytes > 200e6
