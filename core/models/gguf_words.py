"""The tokenizer of a GGUF file: its vocabulary and merges, with the splitting of texts that it only names.

Byte-level vocabularies are built here. Others (SentencePiece) transformers builds from the file.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from core.errors import UnsupportedModel
from core.models.gguf_families import SAFETENSORS

CONTROL, USER_DEFINED = 3, 4  # types of tokens that are matched whole; the first are no text
ENDS_OF_TEXT = frozenset(
    b"</s> <eos> <|endoftext|> <|end_of_text|> <|im_end|> <|eot_id|> <|eom_id|> <|end|> <end_of_turn> <turn|> "
    b"[|endofturn|] <|END_OF_TURN_TOKEN|> <|return|> <|call|> <end_of_utterance>".split()
)
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD, SIGNS = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+"
QWEN2 = (rf"{SHORT}|{WORD}\p{{L}}+|\p{{N}}|{SIGNS}[\r\n]*{REST}",)
QWEN35 = (rf"{SHORT}|{WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{REST}",)
LLAMA3 = (rf"{SHORT}|{WORD}\p{{L}}+|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*{REST}",)
GPT2: tuple[str, ...] = ("",)  # the library's own, which splits into words, numbers and signs with their space
DIGITS = (r"\p{N}", "")
CAMEL = rf"{WORD}{UPPER}*{LOWER}+%s|{WORD}{UPPER}+{LOWER}*%s|\p{{N}}%s|{SIGNS}[\r\n/]*{REST}"
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",  # noqa: RUF001
    r"[!\"#$%&'()+*,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    + REST,
)
SPLITS: Mapping[str, tuple[str, ...]] = {  # by tokenizer.ggml.pre: patterns, one after the other
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "exaone4"), GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "exaone"), DIGITS),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan", "megrez"), QWEN2),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "midm-2.0"), LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), LLAMA3),
    **dict.fromkeys(("gpt-4o", "llama4"), (CAMEL % (f"{SHORT}?", f"{SHORT}?", "{1,3}"),)),
    "tekken": (CAMEL % ("", "", ""),),
    "qwen35": QWEN35,
    "seed-coder": (rf"{SHORT}|{WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{REST}",),
    **dict.fromkeys(("hunyuan-dense", "deepseek-v3"), DEEPSEEK),
}
NORMALISED = ("qwen2", "qwen35", "olmo", "mpt", "command-r")  # whose folders join accents to their letters first (NFC)
BEGUN = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "midm-2.0", "tekken")  # by a token, usually
WHOLE_WORDS = (*BEGUN, "gpt-4o", "llama4")  # which are taken even where merges do not lead to them
MARK = re.compile(r"<[^\s<>/]+>")  # in a chat template
ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def load_words(path: Path, said: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer that all fields of a header stand for.

    Raises:
        UnsupportedModel: it splits texts in a way that is not known here.
        ValueError, KeyError, OSError: its fields are damaged.
    """
    made = _load(path, said)
    whole, tokenizer = made.get_added_vocab(), made.backend_tokenizer
    marks = [mark for mark in _marks(said) if mark not in whole and tokenizer.token_to_id(mark) is not None]
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return made


def _marks(said: Mapping[str, Any]) -> list[str]:
    """The ends of texts, and marks of the chat template: of some files, words like any other by their type.

    Not tags that enclose text there, such as `<tools>`: their closing ones stand there, too.
    """
    ends, template = ends_of_text(said), str(said.get("tokenizer.chat_template", ""))
    marks = {mark for mark in MARK.findall(template) if f"</{mark[1:]}" not in template}
    return sorted(marks | {said["tokenizer.ggml.tokens"][end].decode() for end in ends})


def _load(path: Path, said: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    known = {name.removeprefix("tokenizer.ggml."): value for name, value in said.items()}
    if known["model"] != "gpt2":
        found = PreTrainedTokenizerFast.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False
        )
        assert isinstance(found, PreTrainedTokenizerBase)
        if not known.get("add_space_prefix", True):
            _without_prefix(found.backend_tokenizer)
        return found
    pre = str(known.get("pre", "default"))
    if pre not in SPLITS:
        raise UnsupportedModel(f"{path.name} splits texts in a way that is not known here ({pre}).", hint=SAFETENSORS)
    words = [word.decode() for word in known["tokens"]]
    ids = {role: known.get(f"{said}_token_id") for role, said in ROLES.items()}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_byte_level(words, known, pre),
        chat_template=said.get("tokenizer.chat_template"),
        add_bos_token=bool(known.get("add_bos_token", pre in BEGUN)),
        clean_up_tokenization_spaces=False,
        **{role: words[number] for role, number in ids.items() if number is not None},
    )


def _without_prefix(tokenizer: Tokenizer) -> None:
    """Let a text begin without a space of the tokenizer's own, which transformers' for all families but Gemma adds."""
    if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.Metaspace):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def _byte_level(words: list[str], known: Mapping[str, Any], pre: str) -> Tokenizer:
    merges = [tuple(pair.decode().split(" ")) for pair in known["merges"]]
    vocabulary = {word: number for number, word in enumerate(words)}
    try:
        tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in WHOLE_WORDS))
    except Exception as error:  # the library has no other kind
        raise ValueError(str(error)) from error
    if pre in NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[pre] if pattern]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex="" in SPLITS[pre])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, whole])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = [
        (word, kind) for word, kind in zip(words, known["token_type"], strict=True) if kind in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word, kind in kinds if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word, kind in kinds if kind == USER_DEFINED])
    return tokenizer


def ends_of_text(said: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text: those that the header names, and known ones, which some files call plain text."""
    named = (said.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    words, types = said["tokenizer.ggml.tokens"], said.get("tokenizer.ggml.token_type")
    known = {word: at for at, word in enumerate(words) if word in ENDS_OF_TEXT}
    ends = {at for word, at in known.items() if word != b"</s>" or (types and types[at] == CONTROL)}  # also of HTML
    ends.update(end for end in named if end is not None)
    if b"<|return|>" in known:
        ends.discard(known.get(b"<|end|>", -1))  # of gpt-oss: the end of a message
    return tuple(sorted(ends))
