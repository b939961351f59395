import struct
from pathlib import Path
from typing import Any

import pytest

from core import TriForce
from core.errors import CoreError, UnknownModel, UnsupportedModel
from core.models import gguf_file
from core.models.gguf_file import GgufFile
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer, read_config, read_dims

gguf = pytest.importorskip("gguf", reason="requirements-gguf.txt is not installed")
BOOK = "Some book text, and the old light. " * 20


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def a_header(folder: Path, *, tensors: int = 0, **fields: Any) -> Path:
    """A file with these fields, texts and whole numbers, `__` for a dot; the tensors named are not there."""
    said = b""
    for name, value in fields.items():
        key = string(name.replace("__", "."))
        said += key + (struct.pack("<I", 8) + string(value) if isinstance(value, str) else struct.pack("<II", 4, value))
    table = b"".join(
        string(f"blk.{number}.attn_q.weight") + struct.pack("<IQQIQ", 2, 64, 64, 0, 16_384 * number)
        for number in range(tensors)
    )
    file = folder / "a.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields)) + said + table)
    return file


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_file_writes_what_transformers_writes_with_its_weights(tmp_path: Path, family: str, kind: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from tests.ggufs import write_pair

    file, whole = write_pair(tmp_path, family, kind)
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


def test_sizes_come_from_the_header(tmp_path: Path) -> None:
    from tests.ggufs import write_pair

    file, whole = write_pair(tmp_path, "qwen3", "Q8_0")
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
    from tests.ggufs import write_pair

    file, _ = write_pair(tmp_path, "llama", "F16")
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
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(CoreError, match=told) as caught:
        GgufFile.read(a_header(tmp_path, **fields))
    assert caught.value.hint and "\n" not in f"{caught.value}{caught.value.hint}"


def test_a_file_that_stops_early_is_incomplete(tmp_path: Path) -> None:
    with pytest.raises(CoreError, match="cut short"):
        GgufFile.read(a_header(tmp_path, tensors=2, general__architecture="llama"))


def test_other_files_and_none(tmp_path: Path) -> None:
    other = tmp_path / "b.gguf"
    other.write_bytes(b"PK\x03\x04")
    with pytest.raises(UnsupportedModel, match="no GGUF file"):
        GgufFile.read(other)
    with pytest.raises(UnknownModel, match="no file"):
        find(str(tmp_path / "missing.gguf"))


def test_without_the_package_one_command_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(_name: str) -> str:
        raise gguf_file.metadata.PackageNotFoundError

    monkeypatch.setattr(gguf_file.metadata, "version", lacks)
    with pytest.raises(UnsupportedModel) as caught:
        gguf_file.require_package()
    assert " -m pip install -r requirements-gguf.txt" in caught.value.hint


def test_a_transformers_that_reads_their_tokenizers_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file.metadata, "version", {"gguf": "0.19.0", "transformers": "5.17.0"}.__getitem__)
    with pytest.raises(UnsupportedModel, match=r"transformers 5\.19"):
        gguf_file.require_package()
