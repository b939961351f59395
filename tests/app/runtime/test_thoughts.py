"""Thoughts in conversations: kept, left out of later prompts, of quotations and of the text that is exported."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.conversations.exchange import Exchange, figures
from app.conversations.export import as_json, as_markdown
from app.conversations.schema import load
from app.runtime.prompts import prompt_of
from core.errors import CoreError
from core.generation.events import Event, Finished
from core.generation.session import Conversation
from core.generation.text import ChatText, Turn
from tests.app.fakes import ANSWER, THOUGHT_IDS, Reader, finished
from tests.thinkers import ALWAYS, tokenizer


def test_a_thought_is_kept_and_left_out_of_the_next_prompt(reader: Reader) -> None:
    session = reader.session
    end = reader.asks("How was it?", "<think> Hm, “words of nobody at all here” </think> Dark.")
    assert (end.text, end.thought) == ("Dark. ", "Hm, “words of nobody at all here”")
    reader.asks("Sure?", "Very.")
    assert not any(token >= THOUGHT_IDS for token in reader.engine.prompts[-1])
    dialogue = session.dialogue
    assert dialogue is not None
    kept = load(as_json(dialogue), dialogue.id)
    assert kept == dialogue and kept.exchanges[0].finished.thought == end.thought
    assert "words of nobody" not in as_markdown(dialogue) and "of thought" in as_markdown(dialogue)
    told = dict((key, text) for key, text, _ in figures(dialogue.exchanges[0]))
    assert told["thought"] == "9 of thought" and told["tokens"] == "10 tokens in 0.2 s"
    assert session.num_talk < sum(one.finished.stats.new_tokens for one in dialogue.exchanges) + 100
    assert session.book is not None and not session.book.evidence(end.text)


def test_the_wish_is_followed_and_an_answer_goes_on_as_it_was_begun(reader: Reader) -> None:
    engine = reader.engine
    engine.info.thinking = ("on", "off")
    end = reader.asks("How was it?", "<think> Hm, hm, hm", replace(ANSWER, thinking="on", max_new_tokens=3))
    assert end.in_thought and end.stop_reason == "max_new_tokens" and end.text == ""
    begun = engine.prompts[-1]
    assert engine.text.decode(begun).endswith("<on>") and reader.exchange.thinking == "on"
    engine.enqueue("hm. </think> Dark.")
    list(reader.worker.go_on(reader.session.id, replace(ANSWER, thinking="off")))
    assert engine.prompts[-1] == begun and engine.configs[-1].thinking == "on"
    engine.info.thinking = ()  # as after a change of model
    reader.asks("Again?", config=replace(ANSWER, thinking="off"))
    assert engine.configs[-1].thinking is None


def test_an_answer_that_fails_inside_its_thought_leaks_nothing(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **named: Any) -> Iterator[Event]:
        for event in generate(*args, **named):
            if isinstance(event, Finished):
                raise CoreError("Broken off.", hint="Ask again.")
            yield event

    generate = reader.engine.generate
    with monkeypatch.context() as patch, pytest.raises(CoreError, match="Broken off"):
        patch.setattr(reader.engine, "generate", fails)
        reader.asks("How was it?", "<think> Hm, hm")
    kept = reader.exchange.finished
    assert (kept.thought, kept.in_thought, kept.stats.thought_tokens) == ("Hm, hm ", True, 3)
    assert kept.stats.decode_seconds > 0
    reader.asks("Again?")
    assert not any(token >= THOUGHT_IDS for token in reader.engine.prompts[-1])


def test_an_unfinished_thought_that_the_template_opened_is_in_no_later_prompt() -> None:
    text = ChatText(tokenizer(ALWAYS), frozenset())
    engine: Any = SimpleNamespace(text=text, info=SimpleNamespace(model="always"), knows=lambda _: True)
    end = replace(finished("", num_prompt=5), token_ids=tuple(text.encode("Hm, hm")), thought="Hm, hm", in_thought=True)
    past = [Exchange("How?", end, model="always")]
    empty = text.prompt([], [Turn("How?", ()), Turn("Sure?")])
    assert prompt_of(Conversation(()), past, "Sure?", engine) == empty
