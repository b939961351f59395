import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from core import TriForce
from core.errors import CoreError, UnknownModel, UnsupportedModel
from core.models import families, gguf_file, gguf_header
from core.models.gguf_families import KINDS, VARIANTS
from core.models.gguf_file import PLAIN, GgufFile, load_gguf
from core.models.hub.catalog import find
from core.models.loader import dims_of, load_tokenizer, read_config, read_dims

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
from tests import ggufs  # noqa: E402

BOOK = "Some book text, and the old light. " * 20


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def a_header(folder: Path, *, tensors: int = 0, kind: int = 0, **fields: Any) -> Path:
    """A file with these fields, texts and whole numbers, `__` for a dot; the tensors named are not there."""
    said = b""
    for name, value in fields.items():
        key = string(name.replace("__", "."))
        said += key + (struct.pack("<I", 8) + string(value) if isinstance(value, str) else struct.pack("<II", 4, value))
    table = b"".join(
        string(f"blk.{number}.attn_q.weight") + struct.pack("<IQQIQ", 2, 64, 64, kind, 16_384 * number)
        for number in range(tensors)
    )
    file = folder / "a.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields)) + said + table)
    return file


@pytest.mark.parametrize(("family", "kind"), [("llama", "F16"), ("qwen2", "Q8_0"), ("qwen3", "Q8_0")])
def test_a_file_writes_what_transformers_writes_with_its_weights(
    tmp_path: Path, family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "LAYOUTS", {})  # rows are not rounded for the file's blocks
    file, whole = ggufs.write_pair(tmp_path, family, kind)
    ours = TriForce.from_pretrained(str(file), context=1024)
    end = ours.answer(BOOK, "Who keeps it?", max_new_tokens=40)
    assert end.exact and len(set(end.token_ids)) > 4
    text = ours.engine.text
    assert text.encode("Häh? the <|end|>") == text.encode("Häh? the <|end|>")
    words = load_tokenizer(whole)
    prompt = words.apply_chat_template(
        [{"role": "user", "content": f"{BOOK}\n\nWho keeps it?"}], add_generation_prompt=True, return_dict=False
    )
    stock = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    written = stock.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40, pad_token_id=0)
    assert list(end.token_ids) == written[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ggufs.CASES)
def test_a_familys_file_computes_what_its_folder_computes(tmp_path: Path, name: str) -> None:
    family, model = ggufs.case(name)
    file = tmp_path / "a.gguf"
    ggufs.write(file, family, model)
    config = read_config(file)
    loaded = load_gguf(file, config, torch.float32, "eager")
    tokens = torch.randperm(60, generator=torch.Generator().manual_seed(1))[None]
    with torch.inference_mode():
        expected, found = model(tokens).logits, cast(Any, loaded)(tokens).logits
    assert torch.allclose(found, expected, atol=1e-5), float((found - expected).abs().max())
    assert replace(dims_of(config, "a", weight_bytes=0), max_context=4096) == dims_of(model.config, "a", weight_bytes=0)
    tied = model.config.tie_word_embeddings
    assert (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight) == tied  # type: ignore[operator]


def test_every_family_has_a_case() -> None:
    assert {family for family, _, _ in ggufs.CASES.values()} == set(KINDS)
    kinds = {*KINDS.values(), *(variant for _, variant in VARIANTS.values())}
    assert kinds <= {kind for _, kind, _ in ggufs.CASES.values()} and kinds <= set(families.FAMILIES)


UNPACKED = [kind for kind in gguf.GGMLQuantizationType if gguf_file._kind(kind)]


def test_every_type_that_the_package_unpacks_is_taken() -> None:
    names = {kind.name for kind in UNPACKED}
    assert names >= {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0", "IQ4_XS"}
    assert names >= {f"Q{bits}_K" for bits in range(2, 7)} and sum(name.startswith("IQ") for name in names) == 9


@pytest.mark.parametrize("kind", UNPACKED, ids=lambda kind: kind.name)
def test_weights_are_what_the_package_unpacks(tmp_path: Path, kind: Any) -> None:
    """Blocks of random bytes, three times as many numbers as are unpacked at once."""
    from gguf.quants import dequantize

    config: Any = LlamaConfig(**ggufs.SIZES | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1})
    config.tie_word_embeddings = True
    model, made = ggufs.random_model(config), torch.Generator().manual_seed(1)
    numbers, width = gguf.GGML_QUANT_SIZES[kind]
    blocks = {}

    def held(name: str, tensor: torch.Tensor) -> tuple[Any, Any]:
        if tensor.ndim == 1 or name == "token_embd.weight":
            return tensor.numpy(), gguf.GGMLQuantizationType.F32
        size = (*tensor.shape[:-1], tensor.shape[-1] // numbers * width)
        blocks[name] = torch.randint(0, 256, size, generator=made, dtype=torch.uint8).numpy()
        return blocks[name], kind

    file = tmp_path / "a.gguf"
    ggufs.write(file, "llama", model, held)
    loaded = load_gguf(file, read_config(file), torch.float32, "eager")
    assert GgufFile.read(file).dtype == PLAIN.get(kind.name, torch.bfloat16)
    with np.errstate(all="ignore"):
        for name, weight in (
            ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
            ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ):
            expected = torch.from_numpy(dequantize(blocks[name], kind))
            assert torch.equal(loaded.get_parameter(weight).nan_to_num(), expected.nan_to_num()), name


@pytest.mark.parametrize("name", ["glm4moe", "lfm2moe", "qwen35"])
def test_in_sixteen_bits_the_same_weights_stay_wide_as_of_a_folder(tmp_path: Path, name: str) -> None:
    family, model = ggufs.case(name)
    file = tmp_path / "a.gguf"
    ggufs.write(file, family, model)
    model.save_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    loaded = load_gguf(file, read_config(file), torch.bfloat16, "eager").state_dict()
    assert {name: value.dtype for name, value in stock.state_dict().items()} == {
        name: value.dtype for name, value in loaded.items()
    }


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rope__scaling__type": "longrope"}, "positions scaled as 'longrope'"),
        ({"rope__scaling__type": "yarn", "rope__scaling__yarn_log_multiplier": 0.1}, "a variant of YaRN"),
        ({"rope__dimension_count": 8}, "positions in a part of each head"),
        ({"attention__head_count": None}, "header of a.gguf is damaged"),
        ({"attention__head_count_kv": 3}, "do not fit its header: blk.0.attn_k.weight"),
        ({"block_count": 1}, "the tensor blk.1."),
        ({"block_count": 3}, "blk.2.*missing"),
        ({"feed_forward_length": 100}, "do not fit its header: blk.0.ffn_gate.weight"),
    ],
)
def test_what_is_not_known_of_a_family_is_refused_in_one_line(
    tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    family, model = ggufs.case("qwen3")
    file = tmp_path / "a.gguf"
    ggufs.write(file, family, model, **changed)
    with pytest.raises(CoreError, match=told) as caught:
        load_gguf(file, read_config(file), torch.float32, "eager")
    assert caught.value.hint and "\n" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("stated", "meant"),
    [
        ({"rope__scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope__scaling__factor": 8.0}, {"rope_type": "linear", "factor": 8.0}),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 8.0}, {"rope_type": "default"}),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__attn_factor": 1.5}
            | {"rope__scaling__original_context_length": 64},
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5 * (1 + 0.1 * math.log(4))},
        ),
    ],
)
def test_positions_as_older_files_state_them(tmp_path: Path, stated: dict[str, Any], meant: dict[str, Any]) -> None:
    family, model = ggufs.case("qwen3")
    file = tmp_path / "a.gguf"
    ggufs.write(file, family, model, **stated)
    rope: Any = read_config(file).rope_parameters
    assert {name: rope[name] for name in meant} == meant


def test_layers_that_guess_further_tokens_are_left_out(tmp_path: Path) -> None:
    family, model = ggufs.case("glm4moe")
    file = tmp_path / "a.gguf"
    ggufs.write(
        file, family, model, more={"blk.2.nextn.enorm.weight": torch.ones(64)}, block_count=3, nextn_predict_layers=1
    )
    loaded = load_gguf(file, read_config(file), torch.float32, "eager")
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("words", [63, 65])
def test_a_vocabulary_that_does_not_fit_its_weights_is_refused(tmp_path: Path, words: int) -> None:
    family, model = ggufs.case("qwen3")
    file = tmp_path / "a.gguf"
    ggufs.write(file, family, model, words=words)
    with pytest.raises(CoreError, match=f"has {words} tokens, and weights for 64"):
        read_dims(file)


def test_sizes_come_from_the_header(tmp_path: Path) -> None:
    file, whole = ggufs.write_pair(tmp_path, "qwen3", "Q8_0")
    ours, theirs = read_dims(file), read_dims(whole)
    assert (ours.head_dim, ours.num_kv_heads, ours.max_context) == (32, 2, 4096)
    assert ours.num_layers == theirs.num_layers and ours.vocab_size == theirs.vocab_size
    loaded = TriForce.from_pretrained(str(file), context=1024, attention="torch")
    assert ours.weight_bytes // ours.disk_dtype.itemsize * 4 == sum(
        one.numel() * 4 for one in loaded.engine._models.target.module.parameters()
    )
    config: Any = read_config(file)
    assert config.rope_parameters["rope_theta"] == 500_000.0 and config.tie_word_embeddings
    assert find(str(file)).name == file.stem


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    file, _ = ggufs.write_pair(tmp_path, "llama", "F16")
    whole = file.read_bytes()
    for size in (10, 30, 200, 4_000, len(whole) - 1_000):
        file.write_bytes(whole[:size])
        with pytest.raises(CoreError, match=r"damaged|cut short") as caught:
            read_dims(file)
        assert "\n" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"general__architecture": "clip"}, "sees pictures"),
        ({"general__architecture": "llama", "general__type": "mmproj"}, "sees pictures"),
        ({"general__architecture": "llama", "general__type": "adapter"}, "an adapter"),
        ({"general__architecture": "whisper"}, "hears speech"),
        ({"general__architecture": "rwkv7"}, "family 'rwkv7'"),
        ({"general__architecture": "llama", "split__count": 3}, "one of 3 parts"),
        ({"general__name": "nothing"}, "damaged"),
        ({"general__architecture": "llama", "tensors": 2}, "cut short"),
        ({"general__architecture": "llama", "tensors": 1, "kind": 99}, r"cannot be unpacked here \(number 99\)"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(CoreError, match=told) as caught:
        GgufFile.read(a_header(tmp_path, **fields))
    assert caught.value.hint and "\n" not in f"{caught.value}{caught.value.hint}"


def test_other_files_and_none(tmp_path: Path) -> None:
    other = tmp_path / "b.gguf"
    other.write_bytes(b"PK\x03\x04")
    with pytest.raises(UnsupportedModel, match="no GGUF file"):
        GgufFile.read(other)
    with pytest.raises(UnknownModel, match="no file"):
        find(str(tmp_path / "missing.gguf"))


def test_a_transformers_that_reads_their_tokenizers_wrong_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_header.metadata, "version", {"transformers": "5.17.0"}.__getitem__)
    with pytest.raises(UnsupportedModel, match=r"transformers 5\.19"):
        gguf_header.read_header(a_header(tmp_path, general__architecture="llama"))
