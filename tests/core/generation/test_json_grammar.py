"""Answers that follow a JSON schema; skipped where llguidance (requirements-grammar.txt) is not installed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import TriForce
from core.config import EngineConfig, GenerationConfig
from core.engine import Engine
from core.errors import BadGrammar
from core.generation.events import Finished
from core.generation.json_grammar import grammar_of
from core.generation.text import ChatText
from tests.core.generation.test_thinking import text_of
from tests.core.toys import last_event
from tests.thinkers import ALWAYS, TEMPLATE, THOUGHT, save_thinker, tokenizer

pytest.importorskip("llguidance")

BOOK = "Martha Voss kept the light at Gull Point. She was forty. The sea was calm and the town was asleep. " * 4
NAME, AGE = {"type": "string", "maxLength": 30}, {"type": "integer", "minimum": 0, "maximum": 120}
PERSON = {
    "type": "object",
    "properties": {"name": NAME, "age": AGE},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SHORT = json.dumps({"type": "string", "maxLength": 3})


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine.load(EngineConfig(context=2048, device="cpu"))
    yield engine
    engine.close()


def answered(engine: Engine, schema: Any = PERSON, written: str = "", **settings: Any) -> Finished:
    pieces, config = engine.text.pieces(["user"]), GenerationConfig(json_schema=json.dumps(schema), **settings)
    prompt = [*pieces[0], *engine.text.encode(f"{BOOK}\n\nWho kept the light?"), *pieces[1]]
    return last_event(engine.generate(prompt, config, written=engine.text.encode(written)))


def test_every_exact_method_writes_the_document_of_plain_decoding(engine: Engine) -> None:
    plain = answered(engine, method="autoregressive")
    found = json.loads(plain.text)
    assert found.keys() == {"name", "age"} and 0 <= found["age"] <= 120 and plain.stop_reason == "end_of_text"
    for method in ("triforce", "triforce-lookup", "retrieval", "lookup", "draft"):
        assert answered(engine, method=method).token_ids == plain.token_ids, method


def test_an_answer_that_has_begun_goes_on(engine: Engine) -> None:
    assert json.loads(answered(engine, written='{"name": "Ida').text)["name"].startswith("Ida")
    with pytest.raises(BadGrammar, match="beginning of the answer"):
        answered(engine, written="Well, ")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "foo"}, "Invalid type"),
        ({"not": {"type": "string"}}, "not"),
        ({"$ref": "http://example.org/x"}, "not present"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
    ],
)
def test_a_schema_that_cannot_be_followed_whole_is_refused_before_anything_is_read(
    engine: Engine, schema: Any, words: str
) -> None:
    engine.close()
    with pytest.raises(BadGrammar, match=words) as told:
        answered(engine, schema)
    assert "\n" not in str(told.value) and not engine.held_tokens


@pytest.mark.parametrize("template", [TEMPLATE, ALWAYS])
def test_a_thought_before_the_document_is_free(template: str, tmp_path: Path) -> None:
    thinker = TriForce.from_pretrained(str(save_thinker(tmp_path, template)), context=1024)
    shape: Any = {"max_new_tokens": 60, "json_schema": SHORT}
    for method in ("autoregressive", "lookup"):
        found = thinker.answer(BOOK, "Who keeps it?", method=method, **shape)
        assert found.thought == "".join(THOUGHT).strip() and not found.in_thought
        assert len(json.loads(found.text)) <= 3 and found.stop_reason == "end_of_text"
    if template == TEMPLATE:
        at_once = thinker.answer(BOOK, "Who?", thinking="off", **shape)
        assert not at_once.thought and len(json.loads(at_once.text)) <= 3


def test_answers_in_channels_and_tokenizers_that_are_not_known_are_refused() -> None:
    with pytest.raises(BadGrammar, match="channels"):
        grammar_of(text_of(TEMPLATE, channels=True), SHORT, [1, 2], 512)
    with pytest.raises(BadGrammar, match="does not know this model's tokenizer"):
        ChatText(tokenizer(), frozenset({1})).matcher(SHORT, 7)  # fewer tokens than it has
