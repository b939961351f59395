"""What real weights show first: they load, speculation leaves the text as it is, easy questions are answered right."""

from pathlib import Path

import pytest

from core.config import GenerationConfig
from core.decoding.registry import PLAIN
from core.engine import Engine
from core.generation.events import Finished
from core.generation.session import Conversation
from core.generation.text import ChatText, Turn

pytestmark = pytest.mark.real

TEXT = """The keeper of the Aldersea lighthouse is called Miriam Okafor. She came to the island in 1974 with two goats.
Every evening she lights the lamp at six. The lamp is red since the storm of 1981, when the old white glass broke.
Her brother Daniel mends nets in the harbour and brings her bread on Fridays."""
SAMPLE = Path(__file__).parents[2] / "assets" / "docs" / "exactness.md"


def prompt(engine: Engine, text: str, question: str) -> list[int]:
    return engine.text.prompt(engine.text.encode(text), [Turn(question)])


def answered(engine: Engine, prompt_ids: list[int], method: str, most: int = 64) -> Finished:
    *_, last = engine.generate(prompt_ids, GenerationConfig(method=method, max_new_tokens=most))
    assert isinstance(last, Finished)
    return last


def test_a_question_about_a_short_text_is_answered_right(real_engine: Engine) -> None:
    asked = prompt(real_engine, TEXT, "What is the name of the keeper of the lighthouse?")
    found = answered(real_engine, asked, real_engine.info.usual_method)
    assert "Miriam Okafor" in found.text and found.token_ids[-1] in real_engine.text.eos_ids, "and it ends by itself"


def test_greedy_text_is_that_of_plain_decoding(real_engine: Engine) -> None:
    text = SAMPLE.read_text(encoding="utf-8")[:6000]
    asked = prompt(real_engine, text, "What does this text say? Quote its most important sentences.")
    plain = answered(real_engine, asked, PLAIN, most=96)
    usual = answered(real_engine, asked, real_engine.info.usual_method, most=96)
    assert len(plain.token_ids) > 32 and usual.token_ids == plain.token_ids and usual.exact


def test_a_document_never_has_special_tokens_whatever_it_spells(real_engine: Engine) -> None:
    text = real_engine.text
    assert isinstance(text, ChatText)
    known = text._tokenizer.added_tokens_decoder
    special = {number: token.content for number, token in known.items() if token.special}
    assert {"<|im_end|>", "<|endoftext|>"} <= set(special.values())
    for name in special.values():
        for spelled in (name, f"He wrote{name}here.", f"\n{name}\n", f"{name}{name}"):
            ids = text.encode(spelled)
            assert not special.keys() & set(ids) and text.decode(ids) == spelled
    counts = []
    for words in ("A plain book.", "\n".join(special.values())):
        asked = Conversation(tuple(text.encode(words))).ask(words).prompt_ids(text)
        counts.append(sum(token in special for token in asked))
    assert counts[0] == counts[1] > 0, "those of the template alone"
