"""Answers that follow a JSON schema; skipped where llguidance (requirements-grammar.txt) is not installed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from core import TriForce
from core.config import EngineConfig, GenerationConfig, SamplingParams
from core.engine import Engine
from core.errors import BadGrammar
from core.generation.events import Finished
from core.generation.json_grammar import grammar_of
from core.generation.text import ChatText
from core.generation.thinking import CHANNELS
from tests.core.toys import last_event
from tests.thinkers import ALWAYS, TEMPLATE, THOUGHT, save_thinker, tokenizer

pytest.importorskip("llguidance")

BOOK = "Martha Voss kept the light at Gull Point. She was forty. The sea was calm and the town was asleep. "
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
METHODS = ("triforce", "triforce-lookup", "retrieval", "lookup", "draft")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine.load(EngineConfig(context=2048, device="cpu"))
    yield engine
    engine.close()


def prompt(engine: Engine) -> list[int]:
    pieces = engine.text.pieces(["user"])
    return [*pieces[0], *engine.text.encode(BOOK * 4 + "\n\nWho kept the light?"), *pieces[1]]


def answered(engine: Engine, schema: Any, **settings: Any) -> Finished:
    config = GenerationConfig(json_schema=None if schema is None else json.dumps(schema), **settings)
    return last_event(engine.generate(prompt(engine), config))


def test_every_exact_method_writes_the_document_of_plain_decoding(engine: Engine) -> None:
    plain = answered(engine, PERSON, method="autoregressive")
    found = json.loads(plain.text)
    assert found.keys() == {"name", "age"} and 0 <= found["age"] <= 120 and plain.stop_reason == "end_of_text"
    for method in METHODS:
        assert answered(engine, PERSON, method=method).token_ids == plain.token_ids, method


@pytest.mark.parametrize("method", ["autoregressive", "triforce", "triforce-lookup"])
def test_sampled_answers_follow_it_too(engine: Engine, method: str) -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.9)
    for seed in range(4):
        finished = answered(engine, PERSON, method=method, sampling=sampling, seed=seed)
        assert json.loads(finished.text).keys() == {"name", "age"}


def test_an_answer_that_has_begun_goes_on(engine: Engine) -> None:
    text, ids = engine.text, prompt(engine)
    config = GenerationConfig(json_schema=json.dumps(PERSON))
    finished = last_event(engine.generate(ids, config, written=text.encode('{"name": "Ida')))
    assert json.loads(finished.text)["name"].startswith("Ida")
    with pytest.raises(BadGrammar, match="beginning of the answer"):
        list(engine.generate(ids, config, written=text.encode("Well, ")))


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


SHORT = json.dumps({"type": "string", "maxLength": 3})


@pytest.mark.parametrize("template", [TEMPLATE, ALWAYS])
def test_a_thought_before_the_document_is_free(template: str, tmp_path: Path) -> None:
    thinker = TriForce.from_pretrained(str(save_thinker(tmp_path, template)), context=1024)
    for method in ("autoregressive", "lookup"):
        found = thinker.answer(BOOK * 4, "Who keeps it?", max_new_tokens=60, method=method, json_schema=SHORT)
        assert found.thought == "".join(THOUGHT).strip() and not found.in_thought
        assert len(json.loads(found.text)) <= 3 and found.stop_reason == "end_of_text"
    if template == TEMPLATE:
        at_once = thinker.answer(BOOK * 4, "Who?", max_new_tokens=60, json_schema=SHORT, thinking="off")
        assert not at_once.thought and len(json.loads(at_once.text)) <= 3


def test_answers_in_channels_are_refused() -> None:
    words = tokenizer()
    words.add_tokens([AddedToken(name, special=True) for name in CHANNELS], special_tokens=True)
    text = ChatText(words, frozenset({words.eos_token_id}))
    with pytest.raises(BadGrammar, match="channels"):
        grammar_of(text, SHORT, [1, 2], 512)


def test_a_tokenizer_that_is_not_known_is_refused() -> None:
    text = ChatText(tokenizer(), frozenset({1}))
    with pytest.raises(BadGrammar, match="does not know this model's tokenizer"):
        text.matcher(SHORT, 7)  # fewer tokens than it has
