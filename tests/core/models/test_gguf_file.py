"""GGUF files: the weights, sizes and tokens of their folder, blocks of every type, and refusals in one line."""

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, Qwen2Tokenizer

from core import TriForce
from core.config import EngineConfig
from core.engine import Engine
from core.errors import CoreError, UnknownModel, UnsupportedModel
from core.generation.text import ChatText
from core.models import families, gguf_file, gguf_header
from core.models.gguf_families import KINDS, VARIANTS
from core.models.gguf_file import GgufFile, load_gguf
from core.models.gguf_header import PLAIN
from core.models.gguf_words import SPLITS, ends_of_text, load_words
from core.models.hub.catalog import find
from core.models.loader import dims_of, load_tokenizer, read_config, read_dims
from core.planning.forecast import planned_reads
from core.planning.sizes import DRAFTING_WEIGHTS
from tests import ggufs
from tests.core.models.tiny_families import random_model, tiny_family
from tests.thinkers import BYTES

BOOK = "Some book text, and the old light. " * 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.gguf"


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


def test_a_copy_in_four_bits_takes_what_the_file_has_in_more(file: Path) -> None:
    """A processor's copy shares all other layers; embeddings that are not the output layer's are in none."""

    def held(name: str, tensor: torch.Tensor) -> Any:
        wide = name in ("output.weight", "blk.1.ffn_down.weight")
        kind = ggufs.F32 if tensor.ndim == 1 else gguf.GGMLQuantizationType["Q8_0" if wide else "Q4_1"]
        return gguf.quantize(tensor.numpy(), kind), kind

    ends: dict[str, Any] = {"bos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
    model = random_model(tiny_family("llama", vocab_size=288, **ends))
    ggufs.write(file, "llama", model, held)
    info = Engine.load(EngineConfig(model=str(file), device="cpu", context=512, self_draft_bits=4)).info
    assert info.self_draft_weight_bytes == info.plan.bytes_of(DRAFTING_WEIGHTS) > 0
    outputs, (hidden, inner) = model.lm_head.weight.shape, model.model.layers[1].mlp.down_proj.weight.shape
    assert info.self_draft_weight_bytes == 5 / 8 * (math.prod(outputs) + hidden * inner)
    reads = planned_reads(info.plan, 256)
    assert reads.full.weights > reads.retrieval.weights > info.self_draft_weight_bytes


@pytest.mark.parametrize(("family", "kind"), [("llama", "F16"), ("qwen2", "Q8_0")])
def test_a_file_writes_what_transformers_writes_with_its_weights(
    tmp_path: Path, family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "LAYOUTS", {})  # rows are not rounded for the file's blocks
    file, whole = ggufs.write_pair(tmp_path, family, kind)
    dims, folder, config = read_dims(file), read_dims(whole), read_config(file)
    sizes = ("num_layers", "num_kv_heads", "head_dim", "vocab_size", "max_context", "tied")
    assert [getattr(dims, name) for name in sizes] == [getattr(folder, name) for name in sizes]
    assert config.rope_parameters["rope_theta"] == 500_000.0 and find(str(file)).name == file.stem
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
    assert dims.weight_bytes == dims.disk_dtype.itemsize * sum(one.numel() for one in stock.parameters())
    written = stock.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40, pad_token_id=0)
    assert list(end.token_ids) == written[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ggufs.CASES)
def test_a_familys_file_computes_what_its_folder_computes(
    file: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "AT_ONCE", 500)  # numbers that are unpacked at once: weights come in pieces
    family, model = ggufs.case(name)
    ggufs.write(file, family, model)
    config = read_config(file)
    loaded = load_gguf(file, config, torch.float32, "eager")
    tokens = torch.randperm(60, generator=torch.Generator().manual_seed(1))[None]
    with torch.inference_mode():
        expected, found = model(tokens).logits, loaded(tokens).logits
    assert torch.allclose(found, expected, atol=1e-5), float((found - expected).abs().max())
    assert replace(dims_of(config, "a", weight_bytes=0), max_context=4096) == dims_of(model.config, "a", weight_bytes=0)
    tied = model.config.tie_word_embeddings
    assert (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight) == tied
    if name in ("glm4moe", "lfm2moe", "qwen35"):  # in sixteen bits the same weights stay wide as of a folder
        model.save_pretrained(file.parent)
        stock = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.bfloat16)
        halves = [one.state_dict().items() for one in (stock, load_gguf(file, config, torch.bfloat16, "eager"))]
        assert {key: value.dtype for key, value in halves[0]} == {key: value.dtype for key, value in halves[1]}


def test_every_family_has_a_case() -> None:
    assert {family for family, _, _ in ggufs.CASES.values()} == set(KINDS)
    kinds = {*KINDS.values(), *(variant for _, variant in VARIANTS.values())}
    assert kinds <= {kind for _, kind, _ in ggufs.CASES.values()} and kinds <= set(families.FAMILIES)


def test_weights_of_every_type_are_what_the_package_unpacks(file: Path) -> None:
    """Blocks of random bytes, more numbers than are unpacked at once."""
    family, model = ggufs.case("qwen3")
    unpacked = [kind for kind in gguf.GGMLQuantizationType if gguf_header._kind(kind)]
    names = {kind.name for kind in unpacked}
    assert names >= {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0", "IQ4_XS"}
    assert names >= {f"Q{bits}_K" for bits in range(2, 7)} and sum(name.startswith("IQ") for name in names) == 9
    made, widths = np.random.default_rng(1), gguf.GGML_QUANT_SIZES
    blocks = {kind.name: (made.integers(0, 256, (2000, widths[kind][1]), "u1"), kind) for kind in unpacked}

    def held(name: str, tensor: torch.Tensor) -> tuple[Any, Any]:
        return blocks.get(name, (tensor.numpy(), gguf.GGMLQuantizationType.F32))

    ggufs.write(file, family, model, held, more={name: torch.zeros(1) for name in blocks})
    read = GgufFile.read(file)
    for name, (stored, kind) in blocks.items():
        found = torch.cat(list(read.numbers(read.tensors[name])))
        with np.errstate(all="ignore"):
            expected = torch.from_numpy(gguf.dequantize(stored, kind)).flatten()
        assert torch.equal(found.float().nan_to_num(), expected.nan_to_num()), name
        assert found.dtype == read.tensors[name].dtype == PLAIN.get(name, torch.float32)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rope__scaling__type": "longrope"}, "positions scaled as 'longrope'"),
        ({"rope__scaling__type": "yarn", "rope__scaling__yarn_log_multiplier": 0.1}, "a variant of YaRN"),
        ({"rope__dimension_count": 8}, "positions in a part of each head"),
        ({"more": {"rope_factors_long.weight": torch.ones(8)}}, "frequencies with the length"),
        ({"attention__head_count_kv": [2, 1]}, "layers that differ in attention.head_count_kv"),
        ({"attention__sliding_window_pattern": [1]}, "header of a.gguf is damaged"),
        ({"attention__head_count": None}, "header of a.gguf is damaged"),
        ({"attention__head_count_kv": 3}, "do not fit its header: blk.0.attn_k.weight"),
        ({"block_count": 1}, "the tensor blk.1."),
        ({"block_count": 3}, "blk.2.*missing"),
        ({"feed_forward_length": 100}, "do not fit its header: blk.0.ffn_gate.weight"),
        ({"words": 63}, "has 63 tokens, and weights for 64"),
        ({"words": 65}, "has 65 tokens, and weights for 64"),
    ],
    ids=str,
)
def test_what_is_not_known_of_a_family_is_refused_in_one_line(file: Path, changed: dict[str, Any], told: str) -> None:
    family, model = ggufs.case("qwen3")
    ggufs.write(file, family, model, **changed)
    with pytest.raises(CoreError, match=told) as caught:
        read_dims(file)
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
def test_positions_as_older_files_state_them(file: Path, stated: dict[str, Any], meant: dict[str, Any]) -> None:
    family, model = ggufs.case("qwen3")
    ggufs.write(file, family, model, **stated)
    rope: Any = read_config(file).rope_parameters
    assert {name: rope[name] for name in meant} == meant


def test_the_factor_of_yarns_scores_is_the_folders(file: Path) -> None:
    """Older files of Olmo 3 state the whole of it, newer ones also config.json's `attn_factor`, which nothing reads."""
    for name, stated, meant in (("olmo3, YaRN", "attn_factor", 1.2), ("qwen2, YaRN", "yarn_attn_factor", None)):
        family, model = ggufs.case(name)
        ggufs.write(file, family, model, **{f"rope__scaling__{stated}": meant or 0.878})
        rope: Any = read_config(file).rope_parameters
        assert rope.get(ggufs.FULL, rope).get("attention_factor") == meant


def test_layers_that_guess_further_tokens_are_left_out(file: Path) -> None:
    family, model = ggufs.case("glm4moe")
    ggufs.write(
        file, family, model, more={"blk.2.nextn.enorm.weight": torch.ones(64)}, block_count=3, nextn_predict_layers=1
    )
    loaded = load_gguf(file, read_config(file), torch.float32, "eager")
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


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


def test_other_files_none_and_a_transformers_that_reads_their_tokenizers_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "b.gguf"
    other.write_bytes(b"PK\x03\x04")
    with pytest.raises(UnsupportedModel, match="no GGUF file"):
        GgufFile.read(other)
    with pytest.raises(UnknownModel, match="no file"):
        find(str(tmp_path / "missing.gguf"))
    monkeypatch.setattr(gguf_header.metadata, "version", {"transformers": "5.17.0"}.__getitem__)
    with pytest.raises(UnsupportedModel, match=r"transformers 5\.19"):
        gguf_header.read_header(a_header(tmp_path, general__architecture="llama"))


def test_a_folders_text_also_ends_where_its_tokenizer_says(tmp_path: Path) -> None:
    """As of fine-tuned models that have kept the generation_config.json of their base."""
    _, whole = ggufs.write_pair(tmp_path, "llama", "F16")
    (whole / "generation_config.json").write_text('{"eos_token_id": 5}')
    ours = Engine.load(EngineConfig(model=str(whole), device="cpu", context=512))
    assert ours.text.eos_ids == {5, load_tokenizer(whole).eos_token_id} and ours.target.eos_ids == {5}


# -------------------- tokens

PAIRS = ("Ġ Ġ", "ĠĠ Ġ", "Ċ Ċ", "1 2", "Ġ 1", "a b", "Ġ a", "' s", "Ã ©", "h e", "T he", "! !", "Ġ !")
MERGES = [tuple(pair.split(" ")) for pair in PAIRS]
NAMES = [*BYTES, *map("".join, MERGES), "<|a|>", "<tool>", "<｜User｜>", "[PAD9]"]  # noqa: RUF001
TOKEN_KINDS = [*[1] * (len(NAMES) - 4), 3, 4, 3, 5]
TEXTS = (
    *("12 345   12", "x = 1\n\n\n   1\n\t12", "   ab    ab ", "The cat's  hat!! !!", "ab\r\n\r\n ab", ""),
    *("Привет 你好 12月 สวัสดี", "🙂👩\u200d👩 !!", "é e\u0301", "<|a|> <tool> [PAD9]", "He HE it's IT'S", "٣٤٥ ½"),
)


def fields(pre: str) -> dict[str, Any]:
    said = {"model": "gpt2", "pre": pre, "tokens": [name.encode() for name in NAMES], "token_type": TOKEN_KINDS}
    said |= {"merges": [pair.encode() for pair in PAIRS], "eos_token_id": NAMES.index("<|a|>")}
    return {f"tokenizer.ggml.{name}": value for name, value in said.items()} | {"tokenizer.chat_template": "x"}


def reference(pre: str) -> PreTrainedTokenizerBase:
    """As the folder of a model has it."""
    vocabulary = {name: number for number, name in enumerate(NAMES)}
    made = Qwen2Tokenizer(vocab=vocabulary, merges=MERGES)
    if pre != "qwen2":
        made.backend_tokenizer.normalizer = None
        made.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    made.add_special_tokens({"additional_special_tokens": ["<|a|>", "<｜User｜>"]})  # noqa: RUF001
    made.add_tokens(["<tool>"])
    return made


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2"])
def test_tokens_are_those_of_the_folder(pre: str) -> None:
    ours, theirs = load_words(Path("a.gguf"), fields(pre)), reference(pre)
    assert ours.get_vocab().items() <= theirs.get_vocab().items() and len(ours) == len(NAMES)
    texts = [ChatText(words, frozenset()) for words in (ours, theirs)]
    for text in TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
        assert texts[0].encode(text) == texts[1].encode(text), text  # special tokens are not read
        assert ours.decode(ours(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])
    assert ours.eos_token == "<|a|>" and ours.chat_template == "x"


def test_words_stay_whole_where_merges_do_not_lead_to_them_and_what_is_not_known_is_refused() -> None:
    ours = load_words(Path("a.gguf"), fields("qwen2"))
    assert ours("<｜User｜>")["input_ids"] == [NAMES.index("<｜User｜>")]  # noqa: RUF001
    for pre, merges in (("llama-bpe", {}), ("gpt-2", {}), ("llama-bpe", {"tokenizer.ggml.merges": []})):
        words = load_words(Path("a.gguf"), fields(pre) | merges)
        assert words("The")["input_ids"] == [NAMES.index("The")]
    for pre in ("default", "another"):
        with pytest.raises(UnsupportedModel, match=rf"splits texts in a way that is not known here \({pre}\)"):
            load_words(Path("a.gguf"), fields(pre))
    with pytest.raises(ValueError, match="vocabulary"):
        load_words(Path("a.gguf"), fields("gpt-2") | {"tokenizer.ggml.merges": [b"x yz"]})


def pieces(file: Path, family: str, words: list[str], kinds: list[int], **stated: Any) -> PreTrainedTokenizerBase:
    """A tokenizer of SentencePiece's kind, which has bytes behind these words."""
    writer = gguf.GGUFWriter(file, family)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*words, *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([-float(number) for number in range(len(words) + 256)])
    writer.add_token_types([*kinds, *[6] * 256])
    for name, value in stated.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return load_words(file, gguf_header.read_header(file)[0])


def test_marks_of_the_chat_template_stay_whole_whatever_type_a_file_gives_them(file: Path) -> None:
    """Its makers' Gemma 3 calls them words. Tags that a template does not have, or closes, are left as they are."""
    marks = ["<start_of_turn>", "<end_of_turn>"]
    words = ["<pad>", "<eos>", "<bos>", "<unk>", *marks, "<b>", "<code>", *"<>_bcdefnorstu"]
    template = "<start_of_turn>{{ messages[0].content }}\n<code></code>"
    kinds = [3, 3, 3, 2, *[1] * (len(words) - 4)]
    stated = {"eos_token_id": 1, "chat_template": template, "add_space_prefix": False}
    byte_level = fields("gpt-2") | {"tokenizer.ggml.token_type": [1] * len(NAMES)}
    byte_level["tokenizer.chat_template"] = "<｜User｜>{{ messages[0].content }}<tool></tool>"  # noqa: RUF001
    for ours, whole, apart in (
        (pieces(file, "gemma3", words, kinds, **stated), marks, ["<b>", "<code>"]),
        (load_words(Path("a.gguf"), byte_level), ["<｜User｜>", "<|a|>"], ["<tool>"]),  # noqa: RUF001
    ):
        text = ChatText(ours, frozenset())
        for mark in whole:
            (token,) = text.encode(mark, special=True)
            assert ours.convert_ids_to_tokens(token) == mark and not text.decode([token])
            assert len(text.encode(mark)) > 1, "in a text that is read it is text"
        assert all(len(text.encode(tag, special=True)) == len(tag) for tag in apart)
        assert text.pieces(["user"])[0][-1] == ours.convert_tokens_to_ids(whole[0])


@pytest.mark.parametrize("prefix", [True, False])
def test_a_file_says_whether_a_text_begins_with_a_space_of_the_tokenizers_own(file: Path, prefix: bool) -> None:
    words = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab"]
    ours = pieces(file, "llama", words, [2, 3, 3, *[1] * 5], bos_token_id=1, add_space_prefix=prefix)
    for text, tokens in (("ab", ["▁ab" if prefix else "ab"]), (" ab ab", ["▁ab", "▁ab"])):
        found = ours(text, add_special_tokens=False)["input_ids"]
        assert ours.convert_ids_to_tokens(found) == tokens
    assert ours.decode(found) == ("ab ab" if prefix else " ab ab")


def test_splits_are_those_that_transformers_knows() -> None:
    known = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping").GGUF_PRE_TOKENIZER_SPLITS
    both = set(known) & set(SPLITS)
    assert len(both) > 12 and all(SPLITS[pre] == (known[pre],) for pre in both)


@pytest.mark.parametrize(
    ("words", "kinds", "ends"),
    [
        ("a </s> <|end|> <|x|>", [1, 3, 3, 3], (0, 1, 2)),
        ("a </s> <|end|>", [1, 4, 4], (0, 2)),  # Phi-3 as in its first files; `</s>` is a word of HTML
        ("a <|end|> <|return|> <|call|>", [1, 3, 3, 3], (0, 2, 3)),  # gpt-oss: a message ends, and the next one begins
        ("a <|im_end|>", None, (0, 1)),
        ("a </s> <end_of_turn>", [1, 1, 1], (0, 2)),  # Gemma 3 as its makers quantised it
    ],
)
def test_known_tokens_end_a_text(words: str, kinds: list[int] | None, ends: tuple[int, ...]) -> None:
    said = {"eos_token_id": 0, "tokens": words.encode().split()} | ({"token_type": kinds} if kinds else {})
    assert ends_of_text({f"tokenizer.ggml.{name}": value for name, value in said.items()}) == ends
