"""Thoughts in conversations: kept, left out of later prompts, of quotations and of the text that is exported."""

import json
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
from app.runtime.trace import Trace
from app.runtime.worker import EngineWorker
from app.ui.reading.chat_view import exchanges
from core.config import GenerationConfig
from core.decoding.stats import joined
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


def test_files_without_thoughts_still_open(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    session = reader(worker, tmp_path)
    engine.enqueue("Dark.")
    asked(worker, session.id, "How was it?")
    dialogue = session.dialogue
    assert dialogue is not None
    old = json.loads(as_json(dialogue))
    answer = old["nodes"][0]["answer"]
    for name in ("thought", "in_thought", "thinking"):
        del answer[name]
    for name in ("thought_tokens", "thought_seconds"):
        del answer["stats"][name]
    assert load(json.dumps(old), dialogue.id) == dialogue


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


def test_another_model_goes_on_with_the_text_and_the_old_thought_stays(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.text, "thought_over", lambda prompt, _: [*prompt, 7])
    session = reader(worker, tmp_path)
    engine.enqueue("<think> Hm. </think> It was dark.")
    asked(worker, session.id, "How was it?", replace(CONFIG, max_new_tokens=5))
    assert engine.prompts[-1][-1] != 7
    engine.info.model = "another"
    engine.enqueue("<think> Oh. </think> dark.")
    list(worker.go_on(session.id, CONFIG))
    assert engine.prompts[-1][-1] == 7, "the text has begun, so no thought is open"
    kept = newest(session)
    assert kept.thought == "Hm.\n\nOh."
    assert session.num_talk > 0


def test_a_thought_goes_on_under_the_template_that_opened_it(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.text, "thought_over", lambda prompt, _: [*prompt, 7])
    session = reader(worker, tmp_path)
    engine.enqueue("<think> Hm, hm")
    asked(worker, session.id, "How was it?", replace(CONFIG, max_new_tokens=2))
    list(worker.go_on(session.id, replace(CONFIG, max_new_tokens=1)))
    assert engine.prompts[-1][-1] != 7 and newest(session).thought == "Hm,"


def test_the_talk_is_counted_without_a_servers_thought_once(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_to_texts(engine, monkeypatch)
    session = reader(worker, tmp_path)
    engine.enqueue(f"<think> {'Hm, ' * 30}</think> It was dark.")
    asked(worker, session.id, "How was it?", replace(CONFIG, max_new_tokens=99))
    kept = newest(session)
    assert session.book is not None and kept.stats.thought_tokens == 32 and len(kept.token_ids) == 3
    assert session.num_talk == kept.prompt_tokens + 3 - session.book.num_opening


@pytest.mark.parametrize("remote", [True, False])
def test_the_chat_names_the_button_that_an_unfinished_thought_has(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    if remote:
        cut_to_texts(engine, monkeypatch)
    session = reader(worker, tmp_path)
    engine.enqueue("<think> Hm, hm")
    asked(worker, session.id, "How was it?", replace(CONFIG, max_new_tokens=2))
    (shown,) = exchanges(session).values()
    assert ("Continue goes on" in shown["notice"]) == (">Continue<" in shown["foot"]) == (not remote)
    assert ("Regenerate it" in shown["notice"]) == remote and shown["thought"][1].strip() == "Hm,"


def test_a_trace_shows_thought_and_answer_in_their_order(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session = reader(worker, tmp_path)
    engine.enqueue("<think> Hm. </think> Dark.")
    trace = Trace("How was it?", "triforce")
    for event in worker.answer(session.id, "How was it?", CONFIG):
        if hasattr(event, "stats"):
            trace.apply(event)
            assert trace.finished or "Hm. \n\nDark. ".startswith(trace.text)
    assert trace.text == "Hm.\n\nDark. "


def test_counts_of_two_stretches_are_added(engine: FakeEngine) -> None:
    one = engine._figures(3, [THOUGHT_IDS, THOUGHT_IDS, 1])
    assert joined(one, one).thought_tokens == 4 and joined(one, one).answer_tokens == 2
