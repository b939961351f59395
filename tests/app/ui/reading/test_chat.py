"""Answers, conversations and settings: what is shown of them, and what the buttons do; no browser."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.conversations.exchange import exactness
from app.conversations.listing import Listing, Summary
from app.conversations.store import Conversations
from app.conversations.tree import Dialogue
from app.runtime.events import Loading
from app.runtime.sessions import Session, Writing
from app.runtime.trace import Trace
from app.runtime.worker import EngineWorker
from app.ui.reading import settings
from app.ui.reading.chat_view import BLANK_ANSWER, EMPTY_ANSWER, answer_footer, exchanges, live, live_texts
from app.ui.reading.conversation_view import MOST_SHOWN, ago, book_notice, conversation_list
from app.ui.reading.parts import title
from app.ui.saving import saved
from core.config import SamplingParams, SpeculationConfig
from core.decoding.registry import FASTEST
from core.errors import CoreError, InvalidSetting
from core.generation.events import PrefillProgress
from tests.app.conversations.test_tree import BOOK, a_dialogue, exchange, said
from tests.app.fakes import FakeEngine, finished, opened, place, round_done, wait_for, write_book
from tests.app.ui.pages import PageOf
from tests.hostile.corpus import archive, odt, rtf

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


# -------------------- answers


def footer(dialogue: Dialogue, *, last: bool = True, **changed: Any) -> str:
    """Of the last answer, as if it had ended otherwise."""
    node = dialogue.path[-1]
    assert node.exchange is not None
    ended = replace(node.exchange, finished=replace(node.exchange.finished, **changed))
    return answer_footer(dialogue, replace(node, exchange=ended), last=last)


def test_a_footer_has_every_figure_of_an_answer_and_only_a_cut_one_at_the_end_offers_to_go_on() -> None:
    dialogue = a_dialogue("One?")
    html = footer(dialogue)
    assert html.index("first word after 0.4 s") < html.index(">1 token in "), "what came first stands first"
    for text in ("50.0 tokens/s", "3 tokens read again", "TriForce, then Plain decoding", "seed 1099511627776"):
        assert text in html
    assert 'class="exact"' in html and ">exact<" in html and "\n" not in html
    offers = f"continue:{dialogue.head}"
    for reason, goes_on in (("max_new_tokens", True), ("cancelled", True), ("context_full", False)):
        assert (offers in footer(dialogue, stop_reason=reason)) == goes_on, reason
    assert offers not in html and offers not in footer(dialogue, stop_reason="cancelled", last=False)
    dialogue, node = dialogue.ask(dialogue.tip, "Two?")
    *_, waits = exchanges(Session("x", dialogue=dialogue)).values()
    assert waits["question"] == "Two?" and f"again:{node.id}" in waits["foot"] and "text" not in waits, "unanswered"
    writing = Writing(trace=Trace("Two?", "triforce"), parent=dialogue.path[0].id)
    (before,) = exchanges(Session("x", dialogue=dialogue, writing=writing)).values()
    assert "foot last" not in before["foot"], "an answer follows it"


def test_exactness_is_said_plainly() -> None:
    one = exchange("?", "Yes.")
    for exact, weights, told in (
        (True, "bfloat16", "exact"),
        (True, "nf4", "exact for the quantised model"),
        (False, "float16", "not exact"),
        (False, "int8", "not exact"),
    ):
        assert exactness(replace(one, finished=replace(one.finished, exact=exact), weights=weights)) == told


def test_a_thought_is_told_by_its_length_then_its_time_and_a_continued_answer_grows_from_where_it_was() -> None:
    stats = replace(finished("a b").stats, thought_tokens=2, thought_seconds=0.25)
    thought = replace(round_done("", 0), thought="Hm, hm.", stats=stats)
    trace = Trace("Now?", "triforce")
    writing = Writing(trace=trace, parent="")
    session = Session("x", writing=writing)
    read = PrefillProgress(done_tokens=9, total_tokens=9, reused_tokens=0, elapsed_seconds=0.1, remaining_seconds=0.0)
    trace.apply(read)
    assert title(session).startswith("100% ")
    trace.apply(thought)
    assert "%" not in title(session), "it is read"
    assert live(session) == {"question": "Now?", "thought": "Thinking · 2 tokens"}
    assert live_texts(session) == {"text": "", "thought": "Hm, hm."}
    trace.apply(replace(round_done("Yes", 1), stats=stats))
    assert (live(session) or {})["thought"] == "Thought for 2 tokens, 0.2 s"
    cut = exchange("Now?", "One tw\ufffd")
    cut = replace(cut, finished=replace(cut.finished, stats=stats, thought="Hm"))
    longer = writing.trace = Trace("Now?", "triforce", cut)
    longer.apply(replace(round_done("o three", 0), thought=", hm.", stats=stats))
    assert live_texts(session) == {"text": "One two three", "thought": "Hm, hm."}
    assert "4 tokens" in str(live(session)), "those of the part before count"


def test_an_empty_answer_and_one_of_white_space_alone_are_named() -> None:
    for text, notice in (("", EMPTY_ANSWER), (" \n  ", BLANK_ANSWER), ("  a", None)):
        dialogue, _ = said(a_dialogue(), "Now?", text)
        (shown,) = exchanges(Session("x", dialogue=dialogue)).values()
        assert shown.get("notice") == notice and shown.get("text") == (None if notice else text)


# -------------------- the list


def test_the_list_marks_what_is_shown_and_is_cut_where_it_is_long() -> None:
    def summary(name: str) -> Summary:
        return Summary(name, "A title", "book.txt", NOW.isoformat(), "A title", "")

    session = Session("x", dialogue=a_dialogue("One?"))
    rows = (summary(session.dialogue_id), *(summary(f"{number:032x}") for number in range(MOST_SHOWN + 4)))
    html = conversation_list(Listing(rows, ()), session, NOW)
    assert html.count('class="current"') == 1 and "just now · book.txt" in html
    assert html.count("<li") == MOST_SHOWN and "5 older ones" in html
    session.search = '"x'
    assert 'value="&quot;x"' in conversation_list(Listing(rows, ()), session, NOW), "after a reload, too"
    listing = Listing(rows, ("It was set aside as /home/ann/data/a.damaged; nothing is lost.",))
    assert "set aside as …/a.damaged; nothing" in conversation_list(listing, session, NOW)


def test_times_are_said_as_one_says_them() -> None:
    for text, before in {
        "just now": timedelta(seconds=3),
        "7 min ago": timedelta(minutes=7),
        "5 h ago": timedelta(hours=5),
        "1 day ago": timedelta(days=1),
        "22 Mar 2026": timedelta(days=40),
    }.items():
        assert ago((NOW - before).isoformat(), NOW) == text
    assert ago("yesterday or so", NOW) == "some time ago"


def test_the_notice_names_the_book_and_opens_it_where_it_can_be_found() -> None:
    dialogue = a_dialogue("One?")
    assert book_notice(Session("x")) == ""
    away = Session("x", dialogue=dialogue)
    assert "book.txt was not kept: drop it to go on" in book_notice(away) and "reopen" not in book_notice(away)
    away = Session("x", dialogue=replace(dialogue, book=replace(BOOK, names=("harbour-8k.pdf",))))
    assert 'data-act="reopen"' in book_notice(away)
    (other,) = away.uploads.expect(["other.txt"])
    assert "being opened" not in book_notice(away), "another file does not open it"
    away.uploads.leave(other)
    away.uploads.expect(["harbour-8k.pdf"])
    assert "being opened" in book_notice(away)


# -------------------- settings


def form(**fields: Any) -> settings.SettingsForm:
    return settings.SettingsForm(**{"method": "triforce", "max_new_tokens": 64, **fields})


def test_fields_become_a_configuration() -> None:
    told = form(temperature=0.6, top_p=0.9, top_k=40, seed=" 7 ", variant="triforce-lookup", rounds="fixed", gamma1=3,
                gamma2=12, budget=2048, thinking="off")  # fmt: skip
    config = told.config()
    assert config.sampling == SamplingParams(temperature=0.6, top_p=0.9, top_k=40) and config.seed == 7
    assert config.method == "triforce-lookup" and not told.own_seed and config.max_new_tokens == 64
    assert not config.speculation.adaptive and (config.speculation.gamma1, config.speculation.gamma2) == (3, 12)
    assert (config.budget, config.thinking, config.end_loops) == (2048, "off", True)
    usual = form(variant=settings.AS_CHOSEN, gamma1=2, gamma2=8)
    assert usual.own_seed and usual.config().speculation.adaptive and usual.config().method == "triforce"
    assert (usual.config().budget, usual.config().thinking) == (None, None)
    first = form().config()
    assert first.speculation == SpeculationConfig() and first.sampling == settings.PRESETS["Precise"]
    assert form(method="autoregressive", variant="lookup").config().method == "autoregressive", "plain stays plain"


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": None}, {"top_k": -1}, {"top_k": 1e30}, {"seed": "0" * 20 + "9" * 20},
        {"seed": "seven"}, {"seed": "-1"}, {"seed": "9" * 5000}, {"seed": "²"},
        {"rounds": "fixed", "gamma1": 0}, {"gamma2": 900}, {"temperature": -1}, {"max_new_tokens": 0},
        {"temperature": float("nan")}, {"top_p": float("inf")},
    ],
)  # fmt: skip
def test_wrong_fields_are_said(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        form(**fields).config()


def test_what_depends_on_the_model_is_offered_for_it(worker: EngineWorker, engine: FakeEngine) -> None:
    def offered(state: Any = None) -> dict[str, list[str]]:
        found = settings.choices(state or worker.state)
        return {name: re.findall(r'value="([^"]*)"', html) for name, html in found.items()}

    assert offered(Loading()) == {"method": ["", "autoregressive"], "variant": [settings.AS_CHOSEN]}, "nobody knows yet"
    assert f'data-usual="{FASTEST}"' in settings.choices(worker.state)["method"]
    engine.info.thinking, engine.info.thinks = ("on", "off"), "on"
    assert offered()["thinking"] == ["", "on", "off"]
    assert "As set up (on)" in settings.choices(worker.state)["thinking"]
    engine.info.thinking, engine.info.has_draft = ("on",), False
    assert {*offered()} == {"method", "variant"}, "one way is no choice"
    assert offered()["variant"] == [settings.AS_CHOSEN, "retrieval", "lookup"], "nothing that needs a draft model"
    engine.info.elsewhere, engine.info.thinking = "a server", ("on", "off")
    assert {*offered()} == {"thinking"}


def test_the_script_knows_every_field_its_first_value_and_the_presets() -> None:
    told = json.loads(settings.script())
    fields = {*re.findall('data-setting="([^"]*)"', settings.fields())}
    assert fields - {"preset"} < {*told["first"]} == {*settings.SettingsForm.model_fields}
    assert settings.SettingsForm(**told["first"]).config().method == "", "the usual one; a server's page offers none"
    assert told["presets"]["Precise"] == {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    assert told["custom"] not in told["presets"]


# -------------------- what buttons do


@pytest.fixture
def page(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_worker: Callable[..., EngineWorker]
) -> PageOf:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    worker = start_worker(engine, conversations=Conversations(tmp_path / "conversations"))
    return PageOf(worker, opened(worker, write_book(tmp_path)))


def test_a_question_without_an_answer_goes_back_into_its_box_once_and_an_edit_stays_one(
    page: PageOf, engine: FakeEngine
) -> None:
    def stopped(question: str) -> list[Any]:
        """The draft after a question was stopped before its first word."""
        engine.writing.clear()
        before = len(engine.prompts)
        page.begins(question)
        wait_for(lambda: len(engine.prompts) > before)
        assert page.does("stop")
        page.rests()
        engine.writing.set()
        return list(page.state()["draft"])

    early = stopped("  Too early?")
    assert early[1] == "  Too early?" and page.state()["draft"] == early and page.session.dialogue is None
    after_restart = Session("x")
    after_restart.put("Another?")
    assert after_restart.draft[0] != early[0], "its page remembers what it has put there"
    engine.enqueue(CoreError("It broke.", hint="Try again."))
    page.asks("Broken?")
    assert page.problem == "It broke." and page.texts == ["Broken?", "Half "]
    assert page.state()["draft"] == early, "it has an answer, as far as that came"
    (first,) = page.ids
    page.does(f"edit:{first}")
    assert not page.begins("One?", temperature=-1) and "Temperature -1" in page.problem
    assert page.session.editing == first and "Changing" in page.state()["editing"]
    assert not page.begins(" ") and page.session.editing == first
    assert stopped("One, differently?")[1] == "One, differently?" and page.session.editing == first


def test_another_conversation_ends_the_answer_of_the_one_before_and_shows_nothing_of_it(
    page: PageOf, engine: FakeEngine
) -> None:
    engine.enqueue("One two | three.")
    page.begins("Long?")
    wait_for(lambda: "One two" in page.state().get("live.text", ""))
    assert page.does("new")
    state = page.state()
    assert "live" not in state and "Ask" in state["chat"]["welcome"] and "answering" not in state["flags"]
    assert "running" not in state["strip"] and "Ask a question" in state["where"]
    page.rests()
    assert "draft" not in page.state() and page.texts == []
    (summary,) = page.worker.conversations.listing().summaries
    assert page.worker.conversations.open(summary.id).exchanges[0].finished.text == "One two "
    assert "Long?" in page.state()["conversations"], "it is kept in the list"
    engine.writing.set()
    engine.enqueue("Yes.")
    page.asks("Another?")
    assert page.texts == ["Another?", "Yes. "]


def test_undo_brings_back_what_there_was_but_nothing_that_was_given_up(page: PageOf, engine: FakeEngine) -> None:
    def amid_an_answer(question: str) -> None:
        engine.writing.set()
        engine.enqueue("One two | three.")
        page.begins(question)
        wait_for(lambda: "One two" in page.state().get("live.text", ""))

    def shown_after(*acts: str) -> list[str]:
        for act in acts:
            assert page.does(act)
            page.rests()
        return page.texts

    amid_an_answer("First?")
    first = ["First?", "One two "]
    assert shown_after(f"delete-conversation:{page.session.dialogue_id}", "undelete", "undelete") == first
    amid_an_answer("Second?")
    assert shown_after("start-over", "undo") == [*first, "Second?", "One two "]
    delete = f"delete-conversation:{page.session.dialogue_id}"
    assert shown_after("start-over", delete, "undo") == []
    engine.writing.set()
    page.does("incognito")
    page.asks("A secret?")
    assert shown_after("start-over", "undo")[0] == "A secret?"
    assert shown_after("start-over", "incognito", "undo") == []


def test_a_question_that_waits_is_given_back_when_another_conversation_is_shown(
    page: PageOf, engine: FakeEngine, tmp_path: Path
) -> None:
    other = PageOf(page.worker, opened(page.worker, write_book(tmp_path, name="b.txt")))
    engine.enqueue("One two | three.")
    other.begins("Long?")
    wait_for(lambda: "One two" in other.state().get("live.text", ""))
    page.begins("It waits?")
    wait_for(lambda: page.session.writing is not None and page.session.writing.waiting is not None)
    assert page.does("new")
    wait_for(lambda: page.state().get("draft", ["", ""])[1] == "It waits?")
    engine.writing.set()
    other.rests()


def test_a_conversation_that_went_on_with_another_document_does_so_after_undo(
    page: PageOf, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.enqueue("Yes.")
    page.asks("One?")
    (place(tmp_path) / "b.txt").write_text("More of it.")
    for act, values in (("open", {"files": ["digest/b.txt"]}), ("start-over", {}), ("undo", {})):
        assert page.does(act, **values)
        page.rests()
    engine.enqueue("No.")
    page.asks("Two?")
    assert page.problem == "" and page.texts == ["One?", "Yes. ", "Two?", "No. "]


def test_dropped_files_and_those_in_a_zip_open_in_natural_order(page: PageOf, tmp_path: Path) -> None:
    folder = place(tmp_path)
    (folder / "log 10.odt").write_bytes(odt("<text:p>The tenth log of the boats.</text:p>"))
    (folder / "log 9.zip").write_bytes(archive({"b.rtf": rtf("The first in it."), "c.csv": "Name,Tons\nGull,12\n"}))
    assert page.does("open", files=["digest/log 10.odt", "digest/log 9.zip"])
    assert page.session.uploads.coming, "they are known at once: a question waits for them"
    page.rests()
    assert page.session.book is not None
    assert page.session.book.names == ("book.txt", "b.rtf", "c.csv", "log 10.odt")
    wait_for(lambda: not any(file.is_file() for file in (tmp_path / "uploads").rglob("log*")), "the copies are deleted")
    assert "4 documents, read in this order" in page.state()["book"]


def test_the_strip_the_chips_and_the_opened_page_follow_the_chat(page: PageOf, engine: FakeEngine) -> None:
    quoted, invented = '"it was a dark and stormy night"', '"and nobody was there at all"'
    for question, answer, engine.weights in (("One?", quoted, []), ("Two?", invented, [0.5] * 200)):
        engine.enqueue(answer)
        page.asks(question)
    first, second = page.ids
    quote, none = ["".join(one["inserted"]) for one in page.exchanges()]
    assert "page 1</button>" in quote and "not in the book" in none and "data-act" not in none
    for act, is_first in ((f"branch:{first}", True), (f"switch:{second}", False)):
        page.does(act)
        assert ("show with the first words" in page.state()["where"]) == is_first
    assert page.does(*re.findall('data-act="(page:[^"]*)"', quote))
    assert '<mark class="quoted">It was a dark and stormy' in page.state()["leaf"]
    page.asks("More?")
    assert page.state()["leaf"] and "page-open" in page.state()["flags"], "a page of a chip stays with the next answer"
    assert page.does("close") and page.state()["leaf"] == "" and "page-open" not in page.state()["flags"]
    for closes in ("More?", ""):  # one of the strip closes with the next answer, or with the conversation
        assert page.does(f"page:{page.key}:1") and page.state()["leaf"]
        page.asks(closes) if closes else page.does("new")
        assert page.state()["leaf"] == ""
    assert "Ask a question" in page.state()["where"]


def test_a_new_conversation_can_make_room_for_the_library(page: PageOf, tmp_path: Path) -> None:
    page.asks("Q" * 2500, max_new_tokens=2)
    write_book(place(tmp_path), "Another book. " * 100, "long.txt")
    page.does("open", files=["digest/long.txt"])
    page.rests()
    assert 'data-act="fresh"' in page.state()["choosing"] and "choosing" in page.state()["flags"]
    assert page.does("fresh")
    page.rests()
    assert page.texts == [] and "QQQ" in page.state()["conversations"]
    assert page.session.book is not None and len(page.session.book.library.books) == 2


def test_the_proof_card_of_an_answer_has_its_clock_and_the_pages_of_what_the_book_says(
    page: PageOf, engine: FakeEngine
) -> None:
    engine.enqueue("It was a dark and stormy night. Nobody wrote this other sentence.")
    page.asks("How was it?")
    file = saved(page.site, page.session, f"card:{page.ids[0]}")
    assert file.name.endswith(".html") and file.type == "text/html" and len(file.text) < 300_000
    cited = re.findall(r"<blockquote>(.*?) <small>(.*?)</small>", file.text)
    assert cited == [("It was a dark and stormy night.", "page 1")]
    seconds = page.session.exchanges[0].finished.stats.decode_seconds
    for fact in ("How was it?", "Replay", f'<b class="clock">{seconds:.2f}</b>', "✓ Exact", "TriForce"):
        assert fact in file.text, fact
    page.session.trace = None
    card = saved(page.site, page.session, f"card:{page.ids[0]}").text
    assert ">Replay<" not in card and "page 1" in card, "an old answer has no clock of its rounds"
    page.session.digest = "another"
    assert "blockquote>" not in saved(page.site, page.session, f"card:{page.ids[0]}").text, "its book is closed"
