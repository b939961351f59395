"""Weights while they are loaded: their bits, their memory, their progress, and Stop."""

import copy
import json
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from core.config import EngineConfig, SamplingParams
from core.engine import Engine
from core.errors import InvalidSetting, LoadingStopped
from core.kv_store.identity import family_of
from core.models.hub.catalog import find
from core.models.linear import (
    MOST_ROWS,
    FusedNorm,
    OutputLinear,
    PackedLinear,
    RowsInBits,
    exact_products,
    pack,
    places,
    read_in_brain,
    use_fewer_launches,
)
from core.models.loader import LoadedModel, read_dims
from core.models.loading import LoadProgress, load_meter, watched_loading
from core.models.weights import load_model, load_module, prepared
from core.ops.backend import STOCK, Backend
from core.ops.native import SmallRows
from core.ops.stored_blocks import random_blocks
from tests import ggufs
from tests.core.models.tiny_families import random_model, tiny_family
from tests.core.toys import CPU, answer, random_prompt

SIZES: dict[str, Any] = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 2}
SIZES["initializer_range"] = 0.02
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("llama", {"tie_word_embeddings": True}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "biases": ("qwen2", {"tie_word_embeddings": True}),
    "scaled rows": ("gemma3_text", {}),
    "experts": ("mixtral", {"tie_word_embeddings": False}),
}


def saved(folder: Path, named: str, dtype: torch.dtype, wide: float = 0.0, **sizes: int) -> Path:
    """A random model; `wide`: a matrix of it is in float32, times this."""
    family, fields = CONFIGS[named]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_family(family, **SIZES | sizes | fields), dtype=dtype)
    if wide:
        part = model.model.layers[0].mlp.up_proj
        part.weight.data = part.weight.data.float() * wide
    model.save_pretrained(folder)
    return folder


def logits(loaded: LoadedModel, count: int) -> torch.Tensor:
    module = loaded.module
    module.set_attn_implementation("eager")
    with torch.inference_mode():
        return module(input_ids=torch.arange(3, 3 + count)[None], use_cache=False).logits


def load(folder: Path, backend: Backend) -> LoadedModel:
    return load_model(folder, read_dims(folder), torch.float32, CPU, backend)


def as_float32(folder: Path, backend: Backend = STOCK) -> LoadedModel:
    return prepared(load_module(folder, torch.float32), read_dims(folder), torch.float32, CPU, backend)


@pytest.mark.parametrize(
    ("named", "dtype"),
    [*((named, torch.bfloat16) for named in CONFIGS), ("untied", torch.float16), ("tied", torch.float32)],
)
def test_weights_in_the_bits_of_their_file_give_the_same_logits_to_the_last_bit(
    tmp_path: Path, backend: Backend, named: str, dtype: torch.dtype
) -> None:
    folder = saved(tmp_path, named, dtype)
    loaded, wide = load(folder, backend), as_float32(folder)
    rows = loaded.module.get_input_embeddings()
    tokens = torch.arange(0, 512, 3)[None]
    assert isinstance(rows, RowsInBits)
    assert torch.equal(rows(tokens), wide.module.get_input_embeddings()(tokens))
    assert all(torch.equal(logits(loaded, n), logits(as_float32(folder, backend), n)) for n in (3, 40))
    assert torch.allclose(logits(loaded, 3), logits(wide, 3), rtol=1e-3, atol=1e-4)
    assert type(loaded.module) is type(wide.module)
    kept = {part.packed.dtype for part in loaded.module.modules() if isinstance(part, PackedLinear)}
    assert kept == {dtype}


def test_a_file_with_some_wide_matrices_loses_no_bit(tmp_path: Path, backend: Backend) -> None:
    folder = saved(tmp_path, "untied", torch.bfloat16, wide=1 + 2**-20)
    loaded, wide = load(folder, backend), as_float32(folder)
    ours, theirs = (one.module.model.layers[0].mlp.up_proj.weight for one in (loaded, wide))
    assert torch.equal(ours, theirs) and not torch.equal(theirs, theirs.bfloat16().float())


@pytest.mark.parametrize(("family", "kind"), [("llama", "Q4_0"), ("qwen2", "Q5_1"), ("qwen2", "Q8_0")])
def test_a_files_blocks_are_multiplied_as_they_are(
    tmp_path: Path, backend: Backend, kind: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of queries and keys in another order than the file's; output layers of their own, and tied ones."""
    file, _ = ggufs.write_pair(tmp_path, family, kind)
    loaded = load(file, backend)
    with monkeypatch.context() as widened:
        widened.setattr("core.models.gguf_file.LAYOUTS", {})
        wide = load(file, backend)
    packed = [part for part in loaded.module.modules() if isinstance(part, PackedLinear)]
    assert all(part.stored for part in packed) and loaded.weight_bytes < 0.4 * wide.weight_bytes
    rows, theirs = (one.module.get_input_embeddings() for one in (loaded, wide))
    assert torch.equal(rows(torch.arange(288)), theirs(torch.arange(288)))
    assert (rows.rows is loaded.module.lm_head.packed) == (family == "qwen2")
    with exact_products(loaded.module):
        assert torch.allclose(logits(loaded, 40), logits(wide, 40), rtol=1e-3, atol=1e-4)
    rounded, exact = (torch.log_softmax(logits(one, 40), -1) for one in (loaded, wide))
    lost = (exact.exp() * (exact - rounded)).sum(-1).mean()
    assert 1e-7 < lost < 0.02


def test_what_is_no_linear_layer_and_no_embedding_is_filled_all_the_same(backend: Backend) -> None:
    class Doubled(nn.Embedding):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    stored = random_blocks("Q4_0", 8, 64, torch.Generator().manual_seed(0))
    module = nn.ModuleDict({"rows": Doubled(8, 64)})
    weight = module["rows"].weight
    weight.stored_blocks = stored
    for together in places(module):
        assert backend.kernel is not None
        pack(together, backend.kernel)
    assert torch.equal(module["rows"](torch.arange(8)), 2 * stored.widened())


# -------------------- logits of 16-bit weights (on CUDA: `tests/gpu`, and on a pretended one)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_output_layer_of_16_bits_gives_logits_as_wide_as_its_sums(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    plain = nn.Linear(64, 200, dtype=dtype)
    plain.weight.data = torch.randn(200, 64, generator=generator).to(dtype)
    wide = copy.deepcopy(plain)
    wide.__class__ = OutputLinear
    hidden = torch.randn(1, 30, 64, generator=generator).to(dtype)
    expected = hidden.double() @ plain.weight.double().T + plain.bias.double()
    assert wide(hidden).dtype == torch.float32 and torch.allclose(wide(hidden).double(), expected, atol=1e-4)
    assert not torch.allclose(plain(hidden).double(), expected, atol=1e-3)
    assert torch.equal(wide.float()(hidden.float()), plain.float()(hidden.float())), "wider ones stay as they were"


@pytest.mark.parametrize(("family", "fused"), [("llama", 5), ("qwen3", 9), ("gemma2", 0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_take_one_launch_where_they_compute_the_same(family: str, fused: int, dtype: torch.dtype) -> None:
    """Gemma's multiply by 1 + weight. Two layers have two norms each, Qwen3's two more, and one is the last."""
    config: Any = tiny_family(family, **SIZES, tie_word_embeddings=family == "gemma2")
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for norm in (part for part in model.modules() if type(part).__name__.endswith("RMSNorm")):
        norm.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(1, 3, SIZES["hidden_size"], generator=torch.Generator().manual_seed(2)).to(dtype)
    before = {name: part(hidden) for name, part in model.named_modules() if name.endswith("layernorm")}
    use_fewer_launches(model)
    assert sum(isinstance(part, FusedNorm) for part in model.modules()) == fused and before
    assert type(model.lm_head) is OutputLinear
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == config.tie_word_embeddings, "they stay one"
    for name, expected in before.items():
        wide = model.get_submodule(name).float()(hidden.float())
        found = model.get_submodule(name).to(dtype)(hidden)
        assert found.dtype == dtype and (found - expected).abs().max() <= 2**-6 * expected.abs().max()
        assert (found - wide).abs().max() <= (expected - wide).abs().max(), "it rounds less"


# -------------------- reading with bfloat16 products (`--prefill-bits 16`): decoding after it is as exact as ever


@pytest.fixture
def brain(kernel: SmallRows) -> SmallRows:
    if not kernel.multiplies_brain:
        pytest.skip("this processor has no products of bfloat16")
    return kernel


@pytest.mark.parametrize("inputs", [2, 258])
@pytest.mark.parametrize("outs", [1, 131])
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


def in_brain(model: Path | str, bits: int | None) -> Engine:
    return Engine.load(EngineConfig(model=str(model), draft_model="none", context=2048, prefill_bits=bits))


@pytest.mark.usefixtures("brain")
def test_answers_behind_such_a_prompt_are_exact_and_its_rows_are_no_others(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="bfloat16 weights"):
        in_brain("harbour", 16)
    folder, prompt = Path(shutil.copytree(find("harbour").target, tmp_path / "brain")), random_prompt(600)
    weights = {name: weight.bfloat16() for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    exact, engine = in_brain(folder, None), in_brain(folder, 16)
    with closing(exact), closing(engine):
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(temperature=temperature)
            ended = [answer(engine, prompt, m, 16, sampling=sampling, seed=3) for m in ("autoregressive", "retrieval")]
            assert all(one.exact for one in ended)
            assert temperature or ended[0].token_ids == ended[1].token_ids
        assert family_of(exact).digest != family_of(engine).digest
        assert "reading in bfloat16" in engine.info.weights


# -------------------- memory

PEAK = """
import json, re, sys, threading
from pathlib import Path
import torch
from core.models.loader import read_dims
from core.models.weights import load_model
from core.ops.backend import STOCK, Backend
from core.ops.kernel import small_rows

def held():  # memory of its own; pages of the mapped file are the system's to take back
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

kernel = small_rows()
def load(model):  # of a GGUF file weights are unpacked
    backend = STOCK if model.endswith(".gguf") else Backend("", kernel, "", kernel=kernel)
    return load_model(Path(model), read_dims(Path(model)), torch.float32, torch.device("cpu"), backend)

load(sys.argv[1])  # whatever is made once
for model in sys.argv[2:]:
    before, found, ended = held(), [], threading.Event()
    def watch():
        while not ended.wait(0.0005):
            found.append(held())
    watcher = threading.Thread(target=watch)
    watcher.start()
    loaded = load(model)
    ended.set()
    watcher.join()
    print(json.dumps([max(found) - before, held() - before, loaded.weight_bytes]))
    del loaded
"""


def zeros_in_blocks(file: Path, sizes: dict[str, int]) -> Path:
    """A file of Q4_K."""

    def zeros(_name: str, tensor: torch.Tensor) -> tuple[Any, Any]:
        if tensor.ndim == 1:
            return tensor.numpy(), ggufs.F32
        rows = np.zeros((len(tensor), tensor.shape[1] // 256 * 144), np.uint8)
        return rows, gguf.GGMLQuantizationType.Q4_K

    model = random_model(tiny_family("llama", head_dim=128, tie_word_embeddings=False, **sizes))
    ggufs.write(file, "llama", model, zeros)
    return file


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted by Linux")
@pytest.mark.usefixtures("backend")
def test_loading_takes_little_more_memory_than_what_stays(tmp_path: Path) -> None:
    large = {"vocab_size": 16_384, "hidden_size": 512, "intermediate_size": 4096}
    models = [saved(tmp_path / "small", "tied", torch.bfloat16)]
    models.append(saved(tmp_path / "large", "tied", torch.bfloat16, **large))
    models.append(zeros_in_blocks(tmp_path / "a.gguf", large))
    ran = subprocess.run([sys.executable, "-c", PEAK, *map(str, models)], capture_output=True, text=True, check=True)
    for line in ran.stdout.splitlines()[-len(models) + 1 :]:
        peak, stays, weights = json.loads(line)
        assert weights > 40_000_000 and stays == pytest.approx(weights, rel=0.1)
        assert peak <= 1.3 * stays


# -------------------- progress and Stop


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_loading_tells_its_bytes_and_ends_when_it_is_stopped(tmp_path: Path, kind: str) -> None:
    if kind == "gguf":
        folder, _ = ggufs.write_pair(tmp_path, "llama", "Q8_0")
    else:
        folder = saved(tmp_path, "untied", torch.bfloat16)
    told: list[LoadProgress] = []
    stop = threading.Event()

    def tell(now: LoadProgress) -> None:
        told.append(now)
        if len(told) == 12:
            stop.set()

    size = read_dims(folder).weight_bytes
    with watched_loading(told.append):
        load_meter().expect(size)
        load(folder, STOCK)
    done = [now.done_bytes for now in told]
    assert done[0] == 0 and done[-1] == pytest.approx(size, abs=2) and done == sorted(done) and len(set(done)) > 15
    assert {now.total_bytes for now in told} == {size} and told[-1].share == pytest.approx(1)
    told.clear()
    with watched_loading(tell, stop), pytest.raises(LoadingStopped):
        load(folder, STOCK)
    assert len(told) == 12
    load(folder, STOCK)  # nobody watches


def test_stop_ends_transformers_own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights that it converts, such as a mixture's experts."""
    folder, stop = saved(tmp_path, "experts", torch.bfloat16), threading.Event()
    stop.set()
    monkeypatch.setattr("core.models.weights.prepared", lambda *_, **__: pytest.fail("it has loaded them all"))
    with watched_loading(lambda *_: None, stop), pytest.raises(LoadingStopped):
        load(folder, STOCK)
