"""Thoughts in conversations: kept, left out of later prompts, of quotations and of the text that is exported."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.conversations.exchange import Exchange
from app.conversations.export import as_json, as_markdown
from app.conversations.figures import figures
from app.conversations.schema import load
from app.runtime.prompts import prompt_of
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from core.errors import CoreError
from core.generation.events import Event, Finished
from core.generation.session import Conversation
from core.generation.text import ChatText, Turn
from tests.app.fakes import THOUGHT_IDS, FakeEngine, finished, opened, write_book
from tests.thinkers import ALWAYS, tokenizer

CONFIG = GenerationConfig()


def reader(worker: EngineWorker, folder: Path) -> Session:
    session = worker.sessions.find(opened(worker, write_book(folder)))
    assert session is not None
    return session


def asked(worker: EngineWorker, session_id: str, question: str, config: GenerationConfig = CONFIG) -> Finished:
    *_, end = (event for event in worker.answer(session_id, question, config) if isinstance(event, Finished))
    return end


def test_a_thought_is_kept_and_left_out_of_the_next_prompt(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session = reader(worker, tmp_path)
    engine.enqueue("<think> Hm, “words of nobody at all here” </think> Dark.")
    end = asked(worker, session.id, "How was it?")
    assert (end.text, end.thought) == ("Dark. ", "Hm, “words of nobody at all here”")
    engine.enqueue("Very.")
    asked(worker, session.id, "Sure?")
    assert not any(token >= THOUGHT_IDS for token in engine.prompts[-1])
    dialogue = session.dialogue
    assert dialogue is not None
    kept = load(as_json(dialogue), dialogue.id)
    assert kept == dialogue and kept.exchanges[0].finished.thought == end.thought
    assert "words of nobody" not in as_markdown(dialogue) and "of thought" in as_markdown(dialogue)
    assert "words of nobody" in as_json(dialogue)
    told = dict((key, text) for key, text, _ in figures(dialogue.exchanges[0]))
    assert told["thought"] == "9 of thought" and told["tokens"] == "10 tokens in 0.2 s"
    assert session.num_talk < sum(one.finished.stats.new_tokens for one in dialogue.exchanges) + 100
    assert session.book is not None and not session.book.evidence(end.text)


def test_the_wish_is_followed_and_an_answer_goes_on_as_it_was_begun(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.info.thinking = ("on", "off")
    session = reader(worker, tmp_path)
    engine.enqueue("<think> Hm, hm, hm")
    end = asked(worker, session.id, "How was it?", replace(CONFIG, thinking="on", max_new_tokens=3))
    assert end.in_thought and end.stop_reason == "max_new_tokens" and end.text == ""
    begun = engine.prompts[-1]
    assert engine.text.decode(begun).endswith("<on>")
    node = session.dialogue.path[-1] if session.dialogue else None
    assert node is not None and node.exchange is not None and node.exchange.thinking == "on"
    engine.enqueue("hm. </think> Dark.")
    for _ in worker.go_on(session.id, replace(CONFIG, thinking="off")):
        pass
    assert engine.prompts[-1] == begun and engine.configs[-1].thinking == "on"
    engine.info.thinking = ()  # as after a change of model
    asked(worker, session.id, "Again?", replace(CONFIG, thinking="off"))
    assert engine.configs[-1].thinking is None


def cut_to_texts(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
    """As a server answers: the thought is not among the tokens. `fails`: the answer breaks off before its end."""
    generate = engine.generate

    def cut(*args: Any, **named: Any) -> Iterator[Event]:
        for event in generate(*args, **named):
            if not isinstance(event, Finished):
                yield event
            elif fails:
                raise CoreError("Broken off.", hint="Ask again.")
            else:
                yield replace(event, token_ids=engine.text.without_thought(event.token_ids))

    monkeypatch.setattr(engine, "generate", cut)


def newest(session: Session) -> Finished:
    assert session.dialogue is not None
    return session.dialogue.exchanges[-1].finished


def test_an_answer_that_fails_inside_its_thought_leaks_nothing(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = reader(worker, tmp_path)
    engine.enqueue("<think> Hm, hm")
    with monkeypatch.context() as patch:
        cut_to_texts(engine, patch, fails=True)
        with pytest.raises(CoreError, match="Broken off"):
            asked(worker, session.id, "How was it?")
    kept = newest(session)
    assert (kept.thought, kept.in_thought, kept.stats.thought_tokens) == ("Hm, hm ", True, 3)
    assert kept.stats.decode_seconds > 0
    asked(worker, session.id, "Again?")
    assert not any(token >= THOUGHT_IDS for token in engine.prompts[-1])


def test_an_unfinished_thought_that_the_template_opened_is_in_no_later_prompt() -> None:
    text = ChatText(tokenizer(ALWAYS), frozenset())
    engine: Any = SimpleNamespace(text=text, info=SimpleNamespace(model="always"), knows=lambda _: True)
    end = replace(finished("", num_prompt=5), token_ids=tuple(text.encode("Hm, hm")), thought="Hm, hm", in_thought=True)
    past = [Exchange("How?", end, model="always")]
    empty = text.prompt([], [Turn("How?", ()), Turn("Sure?")])
    assert prompt_of(Conversation(()), past, "Sure?", engine) == empty
