"""Keys and values in float16, sums in float32: half the bytes, and every exact method writes plain decoding's text."""

from dataclasses import replace

import pytest
import torch

from core import TriForce
from core.caches.full import FullCache, Offload
from core.config import EngineConfig
from core.decoding.registry import EXACT_METHODS
from core.errors import InvalidSetting, UnsupportedModel
from core.models.hub.catalog import find
from core.models.loader import ModelDims, load_tokenizer
from core.ops.attention import widened
from core.ops.backend import STOCK, Backend
from core.planning.choices import choose_kv
from core.planning.hardware import Machine
from tests.core.toys import answer, loaded, random_prompt, tiny_config, tiny_engine, tiny_model

CPU, HALF = torch.device("cpu"), torch.float16
HERE = Machine("cpu", 2, 32 << 30, 26 << 30, (), compiles=True)


@pytest.fixture(params=["torch", "compiled"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "torch":
        return STOCK
    kernel = request.getfixturevalue("kernel")
    return Backend("compiled", kernel, "test", kernel=kernel)


@pytest.mark.parametrize("offload", [None, Offload(num_resident=1, block_rows=128)], ids=["resident", "in host memory"])
def test_greedy_text_equals_plain_decoding_with_the_same_cache(backend: Backend, offload: Offload | None) -> None:
    engine, prompt = tiny_engine(noise=0.05, kv_bits=16, backend=backend, offload=offload), random_prompt(400)
    plain = answer(engine, prompt, "autoregressive", 12)
    for method in EXACT_METHODS:
        fast = answer(engine, prompt, method, 12)
        assert fast.token_ids == plain.token_ids and fast.exact, method
        assert method == "autoregressive" or fast.stats.full_passes < plain.stats.full_passes, method
    wide = tiny_engine(noise=0.05, backend=backend)  # whose rows are in float32: rounding is seen
    list(wide.read(prompt))
    exact, found = (one.full_cache.rows(0, 0, 399) for one in (wide, engine))  # of the first layer: no attention before
    assert exact[0].dtype == torch.float32
    for mine, theirs in zip(found, exact, strict=True):
        assert torch.equal(mine, theirs.half())
    assert "float16 cache" in engine.info.exact_for and engine.plan.precision == "float32, float16 cache"


def test_integers_have_the_rows_of_float32_rounded_once_and_are_saved_and_put_back_as_they_are() -> None:
    config = tiny_config(heads=6, kv_heads=3)
    config.head_dim = 64
    tiny = loaded(config, 5)
    shape = replace(tiny.dims, kv_dtype=torch.int16).shape(torch.float32, CPU)
    cache, again, k = FullCache(shape, 200, 8), FullCache(shape, 200, 8), torch.randn(1, 3, 100, 64)
    cache.begin(0, 100)
    for layer in range(2):
        cache.stage(layer, k, 2 * k)
    cache.commit(100)
    found = cache.rows(0, 0, 100)
    assert found[0].dtype == torch.int16 and cache.nbytes == 100 * shape.bytes_per_token
    assert torch.allclose(widened(found[1], torch.float32), 2 * k[0], atol=2e-3)
    assert not torch.equal(widened(found[1], torch.float32), 2 * k[0]), "rounding is seen"
    again.begin(0, 100)
    for layer in range(2):
        again.stage(layer, *(rows[None] for rows in cache.rows(layer, 0, 100)))
    again.commit(100)
    assert all(torch.equal(*pair) for pair in zip(found, again.rows(0, 0, 100), strict=True))
    assert torch.equal(again.landmarks(1, 12), cache.landmarks(1, 12))
    assert torch.allclose(cache.landmarks(1, 12)[:, 0], k[0, :, :8].mean(1), atol=2e-3)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_a_processor_keeps_float16_where_its_kernel_widens_it_whatever_the_file_has(stored: torch.dtype) -> None:
    target = replace(loaded(tiny_config(), 3).dims, disk_dtype=stored, max_context=131_072)

    def kept(
        target: ModelDims = target, *, compiles: bool = True, abilities: tuple[str, ...] = (), **settings: int
    ) -> torch.dtype | None:
        config = EngineConfig(**settings)
        machine = replace(HERE, compiles=compiles, abilities=abilities)
        return choose_kv(config, target, "cpu", torch.float32, machine).value

    assert kept() == kept(kv_bits=16) == HALF
    assert kept(kv_bits=32) is None, "asked for"
    assert kept(compiles=False) is None, "stock operations would widen whole blocks"
    assert kept(compiles=False, kv_bits=16) == HALF, "but that was asked for"
    assert kept(replace(target, plain=False)) is None, "windows and soft caps are not the kernel's"
    assert kept(num_gpus=2) is None
    vnni, wide = ("AVX-512", "VNNI"), replace(target, head_dim=64)
    assert kept(wide, abilities=vnni) == torch.int16, "which the kernel multiplies fastest"
    assert kept(abilities=vnni) == kept(wide, abilities=(*vnni, "AMX")) == kept(wide, abilities=("AVX2",)) == HALF
    assert kept(context=2047) is None and kept(replace(target, max_context=1024)) is None, "few rows cost little"
    assert kept(context=2048) == kept(context=1024, kv_bits=16) == HALF
    for settings in ({}, {"kv_bits": 16}):
        assert choose_kv(EngineConfig(**settings), target, "cuda", HALF, HERE).value is None, "computed in already"
    with pytest.raises(InvalidSetting, match="32 bits are not kept"):
        choose_kv(EngineConfig(kv_bits=32), target, "cuda", HALF, HERE)
    for settings in ({"kv_bits": 8}, {"kv_bits": 16, "num_gpus": 2}):
        with pytest.raises(InvalidSetting):
            EngineConfig(**settings)


def test_numbers_too_large_for_16_bits_are_told_and_never_become_infinite() -> None:
    shape = replace(loaded(tiny_config(), 3).dims, kv_dtype=HALF).shape(torch.float32, CPU)
    k = torch.ones(1, shape.num_kv_heads, 2, shape.head_dim)
    shape.check(k, 60_000 * k)
    for pair in ((k, 70_000 * k), (-70_000 * k, k)):
        with pytest.raises(UnsupportedModel, match="too large for 16 bits"):
            shape.check(*pair)


# -------------------- what the weights show


def with_keys_of(size: float, context: int, kv_bits: int | None = None) -> TriForce:
    """An engine for a tiny qwen2 whose keys have a bias of this size in the pairs that hardly turn.

    Through the kernel: stock operations sum many rows in another way than one, and rounding of large keys is seen.
    """
    tokenizer = load_tokenizer(find("harbour").target)
    config = tiny_config("qwen2", kv_heads=2)
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 16384
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e12}
    model = tiny_model(config, 3, "eager")
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.data.view(-1, 2, 8)[:, :, 5:] += size
    return TriForce.from_modules(model, tokenizer, context=context, kv_bits=kv_bits, device="cpu", attention="compiled")


@pytest.mark.usefixtures("kernel")
def test_keys_that_float16_does_not_hold_are_kept_in_32_bits_and_nothing_is_refused() -> None:
    context = 8192
    usual, large = with_keys_of(3.0, context), with_keys_of(1e5, context)
    kept = usual.engine.plan.kv
    assert kept.value in (HALF, torch.int16) and "costs" in kept.because
    plan = large.engine.plan
    assert plan.kv.value is None and large.engine.full_cache.shape.narrow is None
    assert "float16 holds 65,504" in plan.kv.because and "bfloat16 would cost" in plan.kv.because
    assert plan.sizes.row_bytes == 2 * usual.engine.plan.sizes.row_bytes, "planned anew"
    assert plan.composition == usual.engine.plan.composition and plan.precision == "float32"
    wide = with_keys_of(1e5, context, kv_bits=32)
    prompt = random_prompt(300)
    assert (
        answer(large.engine, prompt, "retrieval").token_ids == answer(wide.engine, prompt, "autoregressive").token_ids
    )
