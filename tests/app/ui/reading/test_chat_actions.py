"""Footers, the list, notices, settings and what small buttons do: plain functions and handlers, no browser."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import gradio as gr
import pytest
from app.runtime.throttle import UpdateIntervals
from app.ui.handlers import Handlers
from app.ui.library.drawing import LibraryParts
from app.ui.parts import Parts
from app.ui.reading.answers import Answers
from app.ui.reading.chat_actions import ChatActions, ListParts
from app.ui.retrieval_map.panel import WhereParts

from app.conversations.figures import exactness
from app.conversations.listing import Listing, Summary
from app.conversations.store import Conversations
from app.conversations.tree import Dialogue
from app.runtime import jobs
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.library.page_viewer import newest
from app.ui.library.tab import LibraryHandlers
from app.ui.reading import settings
from app.ui.reading.answer_footer import answer_footer, question_footer
from app.ui.reading.chat_view import ChatView, conversation
from app.ui.reading.conversation_view import MOST_SHOWN, ago, book_notice, conversation_list, editing_notice
from core.config import SamplingParams
from core.errors import InvalidSetting
from tests.app.conversations.test_tree import BOOK, EVIL, a_dialogue, exchange, said
from tests.app.fakes import SECONDS, FakeEngine, finished, opened, place, round_done, worker_of, write_book
from tests.hostile.corpus import archive, odt, rtf

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


# -------------------- under an answer


def footer(dialogue: Dialogue, *, last: bool = True) -> str:
    return answer_footer(dialogue, dialogue.path[-1], last=last)


def test_a_footer_has_every_figure_of_an_answer() -> None:
    html = footer(a_dialogue("One?"))
    assert html.index("first word after 0.4 s") < html.index(">1 token in "), "what came first stands first"
    for text in ("50.0 tokens/s", "3 tokens read again", "TriForce, then Plain decoding"):
        assert text in html
    assert 'class="exact"' in html and ">exact<" in html and "seed 1099511627776" in html and "\n" not in html


@pytest.mark.parametrize(
    ("exact", "weights", "said_so"),
    [
        (True, "float32", "exact"),
        (True, "bfloat16", "exact"),
        (True, "nf4", "exact for the quantised model"),
        (False, "float16", "not exact"),
        (False, "int8", "not exact"),
    ],
)
def test_exactness_is_said_plainly(exact: bool, weights: str, said_so: str) -> None:
    one = exchange("?", "Yes.")
    assert exactness(replace(one, finished=replace(one.finished, exact=exact), weights=weights)) == said_so


def test_only_a_cut_answer_at_the_end_offers_to_go_on() -> None:
    dialogue = a_dialogue("One?")
    assert "continue:" not in footer(dialogue)
    for reason in ("max_new_tokens", "cancelled"):
        one = dialogue.exchanges[0]
        cut = dialogue.answer(dialogue.head, replace(one, finished=replace(one.finished, stop_reason=reason)))
        assert f"continue:{dialogue.head}" in footer(cut) and "continue:" not in footer(cut, last=False)
    full = replace(one, finished=replace(one.finished, stop_reason="context_full"))
    assert "continue:" not in footer(dialogue.answer(dialogue.head, full))


def test_versions_of_a_question_can_be_turned_over() -> None:
    dialogue = a_dialogue("One?")
    assert "versions" not in question_footer(dialogue, dialogue.path[0])
    first = dialogue.head
    dialogue, second = said(dialogue, "One, differently?", parent="")
    html = question_footer(dialogue, second)
    assert "2/2" in html and f"switch:{first}" in html and f"switch:{second.id}" not in html


def test_going_on_from_an_earlier_answer_shows_the_way_back() -> None:
    dialogue = a_dialogue("One?", "Two?")
    first, second = dialogue.path
    html = answer_footer(dialogue.show(first.id), first, last=True)
    assert "1 branch goes on from here" in html and f"switch:{second.id}" in html


def test_an_unanswered_question_can_be_answered() -> None:
    dialogue = a_dialogue("One?")
    dialogue, node = dialogue.ask(dialogue.tip, "Two?")
    *_, question, _, waits = conversation(Session("x", dialogue=dialogue))
    assert question["content"][0]["text"] == "Two?" and f"again:{node.id}" in waits["content"][0]["text"]


def test_nothing_of_a_conversation_is_html() -> None:
    dialogue, node = said(a_dialogue(EVIL), EVIL, EVIL)
    evil = replace(exchange(EVIL, EVIL), methods=(EVIL,), weights=EVIL)
    dialogue = dialogue.answer(node.id, evil)
    blocks = [block["text"] for one in conversation(Session("x", dialogue=dialogue)) for block in one["content"]]
    assert all("<img" not in text for text in blocks) and len(blocks) == 8


def test_a_continued_answer_grows_from_where_it_was() -> None:
    before = exchange("One?", "One tw\ufffd")
    view = ChatView([], "One?", before)
    assert view.messages()[-1]["content"][0]["text"] == "One tw"
    view.apply([round_done("o three", 0)])
    assert view.messages()[-1]["content"][0]["text"] == "One two three" and not view.answered
    assert view.apply([finished("One two three ")]).answered
    nothing = ChatView([], "One?", before).apply([replace(finished("One tw"), token_ids=(1, 2))])
    assert not nothing.answered, "nothing was added"
    fewer = ChatView([], "One?", before).apply([round_done("o", 0), replace(finished("One two"), token_ids=(1,))])
    assert fewer.answered, "another model may need fewer tokens for what was there and more"


# -------------------- the list


def a_summary(title: str = "A title", book: str = "book.txt", name: str = "0" * 32) -> Summary:
    return Summary(name, title, book, NOW.isoformat(), 1, title, "")


def test_the_list_marks_what_is_shown_and_escapes_titles() -> None:
    dialogue = a_dialogue("One?")
    session = Session("x", dialogue=dialogue)
    listing = Listing((a_summary(name=dialogue.id), a_summary(EVIL, EVIL)), (EVIL,))
    html = conversation_list(listing, session, when=NOW)
    assert html.count('class="current"') == 1 and "<img" not in html and html.count("&lt;img") >= 3
    assert "just now · book.txt" in html


def test_an_empty_list_says_what_will_be_there() -> None:
    assert "will be listed here" in conversation_list(Listing((), ()), None)
    assert "Nothing found" in conversation_list(Listing((), ()), None, search="x")


def test_a_long_list_is_cut_and_says_so() -> None:
    listing = Listing(tuple(a_summary(name=f"{number:032x}") for number in range(MOST_SHOWN + 5)), ())
    html = conversation_list(listing, None)
    assert html.count("<li") == MOST_SHOWN and "5 older ones" in html


def test_incognito_is_seen() -> None:
    html = conversation_list(Listing((), ()), Session("x", incognito=True))
    assert (
        "convs incognito" in html
        and 'aria-pressed="true"' in html
        and "nothing of this conversation is written" in html
    )


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (timedelta(seconds=3), "just now"),
        (timedelta(minutes=7), "7 min ago"),
        (timedelta(hours=5), "5 h ago"),
        (timedelta(days=1), "1 day ago"),
        (timedelta(days=40), "22 Mar 2026"),
    ],
)
def test_times_are_said_as_one_says_them(before: timedelta, text: str) -> None:
    assert ago((NOW - before).isoformat(), NOW) == text
    assert ago("yesterday or so", NOW) == "some time ago"


def test_the_notice_names_the_book_and_opens_it_where_it_can_be_found() -> None:
    dialogue = a_dialogue("One?")
    assert book_notice(Session("x")) == "" and book_notice(None) == ""
    away = Session("x", dialogue=replace(dialogue, book=replace(BOOK, title=EVIL)))
    assert "(book.txt)" in book_notice(away) and "<img" not in book_notice(away)
    assert "book.txt was not kept: drop it to go on" in book_notice(away) and "reopen" not in book_notice(away)
    away = Session("x", dialogue=replace(dialogue, book=replace(BOOK, names=("harbour-8k.pdf",))))
    assert 'data-act="reopen"' in book_notice(away)
    (other,) = away.uploads.expect(["other.txt"])
    assert "being opened" not in book_notice(away), "another file does not open it"
    away.uploads.leave(other)
    away.uploads.expect(["harbour-8k.pdf"])
    assert "being opened" in book_notice(away)


def test_the_notice_of_an_edit_names_the_question() -> None:
    dialogue = a_dialogue("One?", "Two?")
    assert editing_notice(Session("x", dialogue=dialogue)) == ""
    assert "Changing question 2" in editing_notice(Session("x", dialogue=dialogue, editing=dialogue.head))


# -------------------- settings


def test_presets_and_single_fields_say_the_same() -> None:
    for name, sampling in settings.PRESETS.items():
        assert settings.preset_values(name) == (sampling.temperature, sampling.top_p, sampling.top_k)
        assert settings.preset_of(sampling.temperature, sampling.top_p, sampling.top_k) == name
    assert settings.preset_of(0, 0.5, 9) == "Precise", "at temperature 0 the others change nothing"
    assert settings.preset_of(0.7, 0.9, 0) == settings.CUSTOM == settings.preset_of(None, 0.9, 0)
    assert all("value" not in update for update in settings.preset_values(settings.CUSTOM))


def test_fields_become_a_configuration() -> None:
    form = settings.SettingsForm("triforce", 0.6, 0.9, 64, 40, " 7 ", "triforce-lookup", "fixed", 3, 12)
    config = form.config()
    assert config.sampling == SamplingParams(temperature=0.6, top_p=0.9, top_k=40) and config.seed == 7
    assert config.method == "triforce-lookup" and not form.own_seed and config.max_new_tokens == 64
    assert not config.speculation.adaptive and (config.speculation.gamma1, config.speculation.gamma2) == (3, 12)
    adaptive = settings.SettingsForm("triforce", 0, 1, 64, 0, "", settings.AS_CHOSEN, "adaptive", 2, 8)
    assert adaptive.own_seed and adaptive.config().speculation.adaptive and adaptive.config().method == "triforce"


def test_plain_decoding_stays_plain() -> None:
    assert settings.chosen_method("autoregressive", "lookup") == "autoregressive"
    assert settings.chosen_method("retrieval", settings.AS_CHOSEN) == "retrieval"


@pytest.mark.parametrize(
    "fields",
    [
        (0, 1, 64, None),
        (0, 1, 64, -1),
        (0, 1, 64, 0, "seven"),
        (0, 1, 64, 0, "-1"),
        (0, 1, 64, 0, "9" * 5000),
        (0, 1, 64, 0, "²"),
        (0, 1, 64, 0, "", settings.AS_CHOSEN, "fixed", 0, 8),
        (0, 1, 64, 0, "", settings.AS_CHOSEN, "adaptive", 2, 900),
        (0, 1, 64, 0, "", settings.AS_CHOSEN, "fixed", None, 8),
    ],
)
def test_wrong_fields_are_said(fields: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidSetting):
        settings.SettingsForm.of("triforce", fields).config()


@pytest.mark.parametrize(
    "packed",
    ["", "null", "{", "[]", "[1]", '{"a": 1}', '["triforce","Precise",-1,1,9,0,"","as chosen","adaptive",2,8,1024]',
     '["triforce","Precise",0,1,9,0,"","magic","adaptive",2,8,1024]', "[" * 9999,
     '["triforce","Precise",0,1,9,0,"","as chosen","adaptive",2,8,1025]',
     '["triforce","Precise",0,1,9,0,"","as chosen","adaptive",2,8]'],
)  # fmt: skip
def test_settings_that_the_browser_did_not_keep_change_nothing(packed: str) -> None:
    fields = settings.Fields(*cast(Any, settings.Fields.__dataclass_fields__))
    assert settings.recalled(fields, cast(Any, "method"), packed) == {}


def test_kept_settings_come_back_as_far_as_the_page_offers_them() -> None:
    fields = settings.Fields(*cast(Any, settings.Fields.__dataclass_fields__))
    packed = '["retrieval","Custom",0.6,0.9,64,0,"7","lookup","fixed",3,9,2048,"off"]'
    found = cast(Any, settings.recalled(fields, cast(Any, "method"), packed))
    assert found["preset"] == "Balanced" and found["seed"] == "7" and found["variant"] == "lookup"
    assert (found["budget"], found["thinking"]) == (2048, "off")
    assert "method" not in found, "this model's page does not offer it"


def test_without_a_draft_model_only_what_needs_none_is_offered() -> None:
    assert [name for _, name in settings.variants(has_draft=False)] == [settings.AS_CHOSEN, "retrieval", "lookup"]


# -------------------- small buttons


class Page:
    """The handlers, with components that are only names."""

    def __init__(self, worker: EngineWorker, session_id: str) -> None:
        names = [*Parts.__dataclass_fields__]
        fields: dict[str, Any] = {name: name for name in names if name not in ("suggestions", "library", "where")}
        fields["library"] = LibraryParts(
            *cast(Any, ("shelf-act", "incoming", "shelf", "preview", "library-drop", "choosing"))
        )
        fields["where"] = WhereParts(*cast(Any, ("where", "where-page")))
        parts = Parts(**fields, suggestions=cast(Any, ("s1",)))
        own = ListParts(*cast(Any, ("search", "listing", "act", "parcel", "now", "again", "quote")))
        self.handlers = Handlers(worker, (), parts)
        self.answers = Answers(worker, self.handlers)
        self.actions, self.session_id = ChatActions(worker, self.handlers, parts, own), session_id
        self.session = worker.sessions.get(session_id)

    def does(self, act: str, text: str = "") -> dict[Any, Any]:
        return self.actions.now(self.session_id, json.dumps({"act": act, "text": text}))

    def quotes(self, act: str) -> Any:
        return self.actions.quote(self.session_id, json.dumps({"act": act}))

    def asks(self, question: str) -> dict[Any, Any]:
        *_, last = self.answers.ask(self.session_id, question, "triforce", 0, 1, 64)
        return last | self.after()

    def after(self) -> dict[Any, Any]:
        return self.answers.answered(self.session_id)

    @property
    def ids(self) -> list[str]:
        return [node.id for node in self.session.dialogue.path] if self.session.dialogue else []


def texts(update: Any) -> list[str]:
    messages = update["value"] if isinstance(update, dict) else update
    return [message["content"][0]["text"] for message in messages][::2]


@pytest.fixture
def page(engine: FakeEngine, tmp_path: Path) -> Iterator[Page]:
    worker = worker_of(engine, conversations=Conversations(tmp_path / "conversations"))
    yield Page(worker, opened(worker, write_book(tmp_path)))
    worker.close()


def test_a_page_of_the_book_stays_open_when_an_answer_has_ended(page: Page, engine: FakeEngine) -> None:
    """The reader may have opened it from the answer's chips before the server has said what stands around it."""
    engine.enqueue("First.")
    page.asks("One?")
    told = page.after()
    assert "where" in told and "where-page" not in told


def test_the_proof_card_of_an_answer_has_its_clock_and_the_pages_of_what_the_book_says(
    page: Page, engine: FakeEngine
) -> None:
    engine.enqueue("It was a dark and stormy night. Nobody wrote this <b>other</b> sentence.")
    page.asks("How <i>was</i> it?")
    (node_id,) = page.ids
    file = json.loads(page.does(f"card:{node_id}")["parcel"])
    html = file["text"]
    assert file["name"].endswith(".html") and file["type"] == "text/html" and len(html) < 300_000
    assert re.findall(r"<blockquote>(.*?) <small>(.*?)</small>", html) == [
        ("It was a dark and stormy night.", "page 1")
    ]
    assert "How &lt;i&gt;was&lt;/i&gt; it?" in html and "<b>other" not in html and "Replay" in html
    seconds = page.session.exchanges[0].finished.stats.decode_seconds
    assert f'<p class="clock">{seconds:.2f} s</p>' in html and "✓ Exact" in html and "TriForce" in html
    page.session.trace = None
    again = json.loads(page.does(f"card:{node_id}")["parcel"])["text"]
    assert "Replay" not in again and "page 1" in again, "an old answer has no clock of its rounds"
    page.session.digest = "another"
    assert "blockquote>" not in json.loads(page.does(f"card:{node_id}")["parcel"])["text"], "its book is closed"
    assert "about" in page.does("card:nobody"), "told above the chat"


def test_edit_ask_switch_delete_by_buttons(page: Page, engine: FakeEngine) -> None:
    for answer in ("First.", "Second."):
        engine.enqueue(answer)
        page.asks(f"For {answer}")
    first, second = page.ids
    update = page.does(f"edit:{second}")
    assert update["box"] == "For Second." and "Changing question 2" in update["editing"] and "focus" in update["parcel"]
    engine.enqueue("Third.")
    update = page.asks("For third")
    assert texts(update["chat"]) == ["For First.", "First. ", "For third", "Third. "] and update["editing"] == ""
    assert texts(page.does(f"switch:{second}")["chat"])[2] == "For Second."
    assert json.loads(page.does(f"copy:{second}")["parcel"]) == {"copy": "Second. "}
    assert texts(page.does(f"branch:{first}")["chat"]) == ["For First.", "First. "]
    assert texts(page.does(f"delete:{first}")["chat"]) == [] and page.session.dialogue is None


def test_a_cancelled_edit_empties_the_box(page: Page) -> None:
    page.asks("One?")
    page.does(f"edit:{page.ids[0]}")
    update = page.does("keep:")
    assert update["box"] == "" and update["editing"] == "" and page.session.editing is None


def test_an_edit_that_cannot_be_asked_stays_an_edit(page: Page) -> None:
    page.asks("One?")
    page.does(f"edit:{page.ids[0]}")
    *_, update = page.answers.ask(page.session_id, "One?", "triforce", -1, 1, 64)
    update |= page.after()
    assert (
        "Temperature -1" in update["told"] and page.session.editing == page.ids[0] and "Changing" in update["editing"]
    )
    assert update["box"] == "One?"


def test_regenerate_and_continue_by_buttons(page: Page, engine: FakeEngine) -> None:
    engine.enqueue("One two three four.")
    *_, update = page.answers.ask(page.session_id, "Count!", "triforce", 0, 1, 2)
    assert "continue:" in str(update["chat"])
    engine.enqueue("three four.")
    act = json.dumps({"act": f"continue:{page.ids[0]}"})
    first, *_, update = page.answers.again(page.session_id, act, "triforce", 0, 1, 64)
    assert texts(first["chat"]) == ["Count!"] and first["chat"][1]["content"][0]["text"] == "One two "
    assert "value" not in first["box"], "what stands in the box stays there"
    question, answer = texts(update["chat"])
    assert question == "Count!" and re.sub("<[^>]*>", "", answer) == "One two three four. "
    engine.enqueue("Again.")
    *_, update = page.answers.again(page.session_id, "[" * 100_000, "triforce", 0, 1, 64)
    assert texts(update["chat"]) == ["Count!", "Again. "] and "2/2" in str(update["chat"])


def test_the_list_by_buttons(page: Page, engine: FakeEngine) -> None:
    page.asks("One?")
    dialogue = cast(Dialogue, page.session.dialogue)
    assert "One?" in page.does("new:")["listing"] and page.session.dialogue is None
    assert "Renamed" in page.does(f"rename:{dialogue.id}", "Renamed")["listing"]
    assert "Renamed" in page.actions.search(page.session_id, "renam")
    assert "Nothing found" in page.actions.search(page.session_id, "teapot")
    assert "Nothing found" in page.does("new:")["listing"], "the list stays narrowed"
    page.actions.search(page.session_id, "")
    assert texts(page.does(f"open:{dialogue.id}")["chat"])[0] == "One?"
    assert json.loads(page.does(f"markdown:{dialogue.id}")["parcel"])["name"] == "Renamed.md"
    assert "Deleted Renamed." in page.does(f"delete-conversation:{dialogue.id}")["listing"]
    assert "is not there any more" in page.does(f"open:{dialogue.id}")["about"]
    update = page.does("undelete:")
    assert texts(update["chat"])[0] == "One?" and "Deleted" not in update["listing"]
    assert page.session.dialogue is not None and page.session.dialogue.id != dialogue.id
    page.does("undelete:")  # there is nothing more to bring back
    (restored,) = page.actions._worker.conversations.listing().summaries
    assert "Deleted Renamed." in page.does(f"delete-conversation:{restored.id}")["listing"]
    assert "convs incognito" in page.does("incognito:")["listing"]


@pytest.mark.parametrize(
    "packed", ["", "{}", "[]", "null", "{", '{"act": 3}', '{"act": "explode:everything"}', '{"act": "switch:nobody"}']
)
def test_what_no_button_sends_is_refused(packed: str, page: Page) -> None:
    page.asks("One?")
    update = page.actions.now(page.session_id, packed)
    assert 'role="alert"' in update["about"] and page.session.exchanges
    assert 'role="alert"' in page.actions.now("unknown", packed)["about"]


def test_after_a_restart_the_page_says_which_book_to_open(
    page: Page, engine: FakeEngine, tmp_path: Path, start_worker: Callable[..., EngineWorker]
) -> None:
    page.asks("One?")
    assert page.handlers.conversing is not None
    page.actions._worker.close()
    worker = worker_of(engine, conversations=Conversations(tmp_path / "conversations"))
    try:
        worker.sessions.enter(page.session_id)
        again = Page(worker, page.session_id)
        update = again.handlers.enter(page.session_id)
        assert texts(update["chat"])[0] == "One?" and "was not kept: drop it" in update["about"]
        assert "is not open" in again.asks("Two?")["told"]
        *_, update = again.handlers.open_upload(page.session_id, [str(write_book(place(tmp_path), name="again.txt"))])
        assert again.session.fits and again.session.exchanges
        assert texts(again.asks("Two?")["chat"])[::2] == ["One?", "Two?"]
    finally:
        worker.close()


def test_dropped_files_and_those_in_a_zip_open_in_natural_order(page: Page, tmp_path: Path) -> None:
    (place(tmp_path) / "log 10.odt").write_bytes(odt("<text:p>The tenth log of the boats.</text:p>"))
    folder = place(tmp_path)
    (folder / "log 9.zip").write_bytes(archive({"b.rtf": rtf("The first in it."), "c.csv": "Name,Tons\nGull,12\n"}))
    dropped = [folder / "log 10.odt", folder / "log 9.zip"]
    before = page.session.book.names if page.session.book else ()
    *_, update = page.handlers.open_upload(page.session_id, [str(file) for file in dropped])
    assert page.session.book is not None
    assert page.session.book.names == (*before, "b.rtf", "c.csv", "log 10.odt")
    assert not any(file.exists() for file in dropped), "the copies are deleted"
    assert "4 documents, read in this order" in update["card"]


def test_the_strip_and_the_quotations_follow_the_chat(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    page.handlers.enter(page.session_id)
    said, invented = '"it was a dark and stormy night"', '"and nobody was there at all"'
    for question, answer, weights in (("One?", said, []), ("Two?", invented, [0.5] * 200)):
        engine.weights = weights
        engine.enqueue(answer)
        update = page.asks(question)
    assert "most loaded" in update["where"] or "the same pages" in update["where"]
    first, second = page.ids
    told = texts(update["chat"])
    assert f'value="quote:{first}.0"' in told[1] and "page 1</button>" in told[1] and "not in the book" in told[3]
    assert "show with the first words" in page.does(f"branch:{first}")["where"]
    assert "show with the first words" not in page.does(f"switch:{second}")["where"]
    assert '<mark class="quoted">It was a dark and stormy' in page.quotes(f"quote:{first}.0")
    assert page.quotes(f"quote:{second}.0") == ""
    assert page.quotes(f"copy:{first}.0") == page.quotes("") == gr.skip() and page.quotes("quote") == ""
    assert page.actions.quote(page.session_id, "{") == page.actions.quote("nobody", "{}") == gr.skip()
    assert "not in the book" in texts(page.handlers.enter(page.session_id)["chat"])[3], "after a reload"
    assert "Ask a question" in page.does("new:")["where"]
    assert "Ask a question" in page.answers.clear(page.session_id)["where"]


def test_a_shelf_of_another_book_leaves_the_conversation_in_the_list(page: Page, tmp_path: Path) -> None:
    page.asks("One?")
    library = LibraryHandlers(page.actions._worker, page.handlers.parts.library, page.handlers)
    key = page.session.uploads.library.books[0].key
    *_, update = page.handlers.open_upload(
        page.session_id, [str(write_book(place(tmp_path), "Another book. " * 9, "other.txt"))]
    )
    assert "goes on" in update["card"] and page.session.exchanges
    for act in (f"remove:{key}", "start-over"):
        updates = list(library.act(page.session_id, act))
    shown_now = [one for one in updates if isinstance(one.get("chat"), list)][-1]
    assert texts(shown_now["chat"]) == [] and "One?" in shown_now["listing"] and "stays in the list" in str(updates[-1])


def test_a_new_conversation_can_make_room_for_the_shelf(page: Page, tmp_path: Path) -> None:
    page.asks("Q" * 2500)
    page.handlers.open_upload(page.session_id, [])
    long = str(write_book(place(tmp_path), "Another book. " * 100, "long.txt"))
    updates = list(page.handlers.open_upload(page.session_id, [long]))
    assert any('data-act="fresh"' in update.get("choosing", "") for update in updates)
    library = LibraryHandlers(page.actions._worker, page.handlers.parts.library, page.handlers)
    _, first, *_ = library.act(page.session_id, "fresh")
    assert texts(first["chat"]) == [] and "QQQ" in first["listing"]
    assert page.session.book is not None and len(page.session.book.library.books) == 2


def test_a_reload_goes_on_with_the_answer_from_its_beginning(page: Page, engine: FakeEngine) -> None:
    page.handlers.enter(page.session_id)
    assert list(page.answers.follow(page.session_id)) == []
    nothing = {page.answers._parts.box: gr.skip()}
    assert page.answers.followed(page.session_id) == nothing, "it would draw over a book that opens now"
    engine.enqueue("One two | three.")
    stream = page.answers.ask(page.session_id, "Long?", "triforce", 0, 1, 64)
    while "One two" not in str(next(stream)):
        pass
    page.handlers.enter(page.session_id)
    followed = page.answers.follow(page.session_id)
    stream.close()  # type: ignore[attr-defined]  # Gradio notices that the first page has gone
    while "One two" not in str(next(followed)):
        pass
    engine.writing.set()
    *_, last = followed
    assert texts(last["chat"])[:2] == ["Long?", "One two | three. "] and "Answer complete" in last["strip"]
    around = page.answers.followed(page.session_id)
    assert "listing" in around and "where-page" not in around
    assert page.answers.followed(page.session_id) == nothing
    assert len(engine.configs) == 1
    *_, shown = page.answers.follow(page.session_id)
    assert "three" in str(shown["chat"]), "it ended before the page had asked"
    assert "listing" in page.answers.followed(page.session_id)
    page.handlers.enter(page.session_id)
    assert list(page.answers.follow(page.session_id)) == [], "a chat drawn again would undo what the reader clicked"
    assert page.answers.followed(page.session_id) == nothing


def test_figures_of_an_answer_to_another_conversation_do_not_stay_on_the_page(page: Page, engine: FakeEngine) -> None:
    page.handlers.enter(page.session_id)
    engine.enqueue("One two | three.")
    stream = page.answers.ask(page.session_id, "Long?", "triforce", 0, 1, 64)
    while "One two" not in str(next(stream)):
        pass
    page.does("new:")  # its answer may overtake the step above on its way to the page
    engine.writing.set()
    *_, last = stream
    assert set(last) == {"box", "strip"} and "running" not in last["strip"] and "Ask a question" in last["strip"]


def test_after_an_event_that_failed_another_question_can_be_asked(page: Page, engine: FakeEngine) -> None:
    page.handlers.enter(page.session_id)
    engine.enqueue("One two | three.")
    stream = page.answers.ask(page.session_id, "Long?", "triforce", 0, 1, 64)
    while "One two" not in str(next(stream)):
        pass
    assert list(page.answers.broken(page.session_id)) == ["box"], "an answer is being written"
    engine.writing.set()
    assert list(stream)
    rested = page.answers.broken(page.session_id)
    assert rested["box"]["submit_btn"] and not rested["box"]["stop_btn"] and "running" not in rested["strip"]
    assert list(page.answers.broken("nobody")) == ["box"]


def test_an_answer_that_nobody_follows_ends_soon(
    page: Page, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LINGER_SECONDS", 0.05)
    engine.enqueue("One two | three.")
    stream = page.answers.ask(page.session_id, "Long?", "triforce", 0, 1, 64)
    while "One two" not in str(next(stream)):
        pass
    stream.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + SECONDS
    while page.actions._worker.has_answer(page.session_id) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert page.session.exchanges[0].finished.text == "One two "


def test_figures_come_less_often_than_words_where_updates_cost_the_decoder_time(
    page: Page, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "One two three four five six seven eight nine ten."
    shown: dict[float, list[dict[Any, Any]]] = {}
    for figures in (0.0, 1000.0):
        monkeypatch.setattr(
            "app.ui.reading.answers.intervals_beside", lambda *_, rare=figures: UpdateIntervals(0.0, rare)
        )
        engine.enqueue(words)
        shown[figures] = list(page.answers.ask(page.session_id, "Count!", "triforce", 0, 1, 64))
    for updates in shown.values():
        written = [update for update in updates[1:-1] if "One two" in str(update["chat"])]
        assert len(written) >= 9, "every word is shown"
        assert words in str(updates[-1]["chat"]) and "Answer complete" in updates[-1]["strip"]
    often, rare = (sum("Writing" in str(u.get("strip")) for u in updates) for updates in shown.values())
    assert often >= 10 and rare == 1


def test_every_update_of_an_answer_says_how_to_stop_it(page: Page, engine: FakeEngine) -> None:
    """Else a slow browser may lose it, and Escape finds nothing to stop."""
    box = page.answers._parts.box
    engine.enqueue("One two three.")
    *written, last = page.answers.ask(page.session_id, "Count!", "triforce", 0, 1, 64)
    assert len(written) > 2 and all(update[box]["stop_btn"] for update in written)
    assert last[box]["submit_btn"] and "value" not in last[box]


def test_a_page_without_anything_draws_no_empty_library_when_it_loads(worker: EngineWorker, tmp_path: Path) -> None:
    """A file that is dropped in its first second may have drawn more by the time this arrives."""
    library = {"book", "incoming", "shelf", "choosing", "card"}
    fresh = Page(worker, worker.sessions.enter("").id)
    assert not library & {*fresh.handlers.enter(fresh.session_id)} and not list(fresh.handlers.resume(fresh.session_id))
    with_book = Page(worker, opened(worker, write_book(tmp_path)))
    assert {"incoming", "shelf", "choosing", "card"} <= {*with_book.handlers.enter(with_book.session_id)}
    assert list(with_book.handlers.resume(with_book.session_id))


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_two_events_that_show_the_library_at_once_draw_it_once_more(page: Page, first_to_end: int) -> None:
    """An update that the other has drawn may reach the page late, and would stay there."""
    streams = [page.handlers.watch_library(page.session, iter(())) for _ in range(2)]
    for stream in streams:
        next(stream)
    both = [len([*streams[which]]) for which in (first_to_end, 1 - first_to_end)]
    alone = len([*page.handlers.watch_library(page.session, iter(()))])
    assert (*both, alone) == (2, 2, 2), (
        "the first was taken before, the last, and once more; alone the first and the last"
    )


def test_files_are_known_before_their_field_is_emptied(worker: EngineWorker, tmp_path: Path) -> None:
    """The browser sends a question that waits for them when the field is empty."""
    page = Page(worker, worker.sessions.enter("").id)
    events = page.handlers.open_upload(page.session_id, [str(write_book(place(tmp_path)))])
    first = next(events)
    assert first == {"drop": None, "library-drop": None} and page.session.uploads.coming
    assert "Read once" in [*events][-1]["card"]


def test_an_event_beside_one_whose_page_has_gone_draws_everything_once_more(page: Page) -> None:
    gone, stays = (cast("Any", page.handlers.watch_library(page.session, iter(()))) for _ in range(2))
    next(gone), next(stays)
    gone.close()
    last, again = stays
    drawn = {"card", "stop_reading", "read_on", "chat", "about", "shelf", "choosing", "incoming"}
    assert drawn <= {*again} and again["card"] == last["card"] and not page.session.watching


def test_a_quick_answer_is_not_covered_by_the_drawing_of_its_book(worker: EngineWorker, tmp_path: Path) -> None:
    """The chat was drawn empty when the book opened, and that may reach the page when the answer has ended."""
    page = Page(worker, worker.sessions.enter("").id)
    events = page.handlers.open_upload(page.session_id, [str(write_book(place(tmp_path)))])
    drawn_empty = next(update for update in events if isinstance(update.get("chat"), list))
    assert drawn_empty["chat"] == []
    page.asks("One?")
    chats = [update["chat"] for update in events if isinstance(update.get("chat"), list)]
    assert chats and texts(chats[-1])[0] == "One?"


def test_a_book_that_has_opened_draws_the_chat_once(worker: EngineWorker, tmp_path: Path) -> None:
    page = Page(worker, worker.sessions.enter("").id)
    updates = [*page.handlers.open_upload(page.session_id, [str(write_book(place(tmp_path)))])]
    assert sum("listing" in update for update in updates) == 2, "which `lasting` sends twice"


def test_a_page_drawn_while_another_is_asked_for_or_another_conversation_opens_is_not_shown(page: Page) -> None:
    page.handlers.enter(page.session_id)
    page.asks("One?")
    session = page.session

    def draws(what: Callable[[], object]) -> Callable[[], str]:
        def draw() -> str:
            what()
            return "drawn"

        return draw

    assert newest(session, "read", draws(lambda: "")) == "drawn"
    assert newest(session, "read", draws(lambda: newest(session, "library", draws(lambda: "")))) == "drawn"
    assert newest(session, "read", draws(lambda: page.answers.answered(page.session_id))) == "drawn"
    assert newest(session, "read", draws(lambda: newest(session, "read", draws(lambda: "")))) == gr.skip()
    assert newest(session, "read", draws(lambda: page.does("new:"))) == gr.skip()
