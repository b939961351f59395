from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from core.errors import UnsupportedModel
from core.generation.text import ChatText
from core.models.gguf_words import SPLITS, load_words
from tests.thinkers import BYTES

PAIRS = ("Ġ Ġ", "ĠĠ Ġ", "Ċ Ċ", "1 2", "Ġ 1", "a b", "Ġ a", "' s", "Ã ©", "h e", "T he", "! !", "Ġ !")
MERGES = [tuple(pair.split(" ")) for pair in PAIRS]
NAMES = [*BYTES, *map("".join, MERGES), "<|a|>", "<tool>", "<｜User｜>", "[PAD9]"]  # noqa: RUF001
KINDS = [*[1] * (len(NAMES) - 4), 3, 4, 3, 5]
TEXTS = (
    *("12 345   12", "x = 1\n\n\n   1\n\t12", "   ab    ab ", "The cat's  hat!! !!", "ab\r\n\r\n ab", ""),
    *("Привет 你好 12月 สวัสดี", "🙂👩\u200d👩 !!", "é e\u0301", "<|a|> <tool> [PAD9]", "He HE it's IT'S", "٣٤٥ ½"),
)


def fields(pre: str) -> dict[str, Any]:
    said = {"model": "gpt2", "pre": pre, "tokens": [name.encode() for name in NAMES], "token_type": KINDS}
    said |= {"merges": [pair.encode() for pair in PAIRS], "eos_token_id": NAMES.index("<|a|>")}
    return {f"tokenizer.ggml.{name}": value for name, value in said.items()} | {"tokenizer.chat_template": "x"}


def reference(pre: str) -> PreTrainedTokenizerBase:
    """As the folder of a model has it."""
    vocabulary = {name: number for number, name in enumerate(NAMES)}
    made: PreTrainedTokenizerFast = Qwen2Tokenizer(vocab=vocabulary, merges=MERGES)
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


def test_a_control_token_of_other_letters_stays_whole() -> None:
    ours = load_words(Path("a.gguf"), fields("qwen2"))
    assert ours("<｜User｜>")["input_ids"] == [NAMES.index("<｜User｜>")]  # noqa: RUF001


def test_words_of_the_vocabulary_are_taken_where_merges_do_not_lead_to_them() -> None:
    ids = [load_words(Path("a.gguf"), fields(pre))("The")["input_ids"] for pre in ("llama-bpe", "gpt-2")]
    assert ids[0] == ids[1] == [NAMES.index("The")]
    said = fields("llama-bpe") | {"tokenizer.ggml.merges": []}
    assert load_words(Path("a.gguf"), said)("The")["input_ids"] == ids[0]


def test_a_way_of_splitting_that_is_not_known_is_refused() -> None:
    for pre in ("default", "another"):
        with pytest.raises(UnsupportedModel, match=rf"splits texts in a way that is not known here \({pre}\)"):
            load_words(Path("a.gguf"), fields(pre))


def test_splits_are_those_that_transformers_knows() -> None:
    known = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping").GGUF_PRE_TOKENIZER_SPLITS
    both = set(known) & set(SPLITS)
    assert len(both) > 12 and all(SPLITS[pre] == (known[pre],) for pre in both)


def test_merges_of_other_words_are_damage() -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        load_words(Path("a.gguf"), fields("gpt-2") | {"tokenizer.ggml.merges": [b"x yz"]})
