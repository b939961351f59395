"""Tokenizers of real models, wherever TRIFORCE_REAL_MODELS names a folder of them."""

import os
from pathlib import Path

import pytest

from core.generation.session import Conversation
from core.generation.text import ChatText
from core.models.loader import load_tokenizer

NAMED = os.environ.get("TRIFORCE_REAL_MODELS", "")
MODELS = sorted(
    [*Path(NAMED).glob("*.gguf"), *(file.parent for file in Path(NAMED).glob("*/config.json"))] if NAMED else []
)


@pytest.mark.skipif(not MODELS, reason="TRIFORCE_REAL_MODELS names no folder with models")
@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_a_document_never_has_special_tokens_whatever_it_spells(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    text = ChatText(tokenizer, frozenset({tokenizer.eos_token_id}))
    special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    assert {"<|im_end|>", "<|endoftext|>"} <= set(special.values())
    for name in special.values():
        for spelled in (name, f"He wrote{name}here.", f"\n{name}\n", f"{name}{name}"):
            ids = text.encode(spelled)
            assert not special.keys() & set(ids) and text.decode(ids) == spelled
    book = "\n".join(special.values())
    counts = [
        sum(token in special for token in Conversation(tuple(text.encode(words))).ask(words).prompt_ids(text))
        for words in ("A plain book.", book)
    ]
    assert counts[0] == counts[1] > 0, "those of the template alone"
