"""Answers, conversations and settings: what is shown of them, and what the buttons do; no browser."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.conversations.figures import exactness
from app.conversations.listing import Listing, Summary
from app.conversations.store import Conversations
from app.conversations.tree import Dialogue
from app.runtime.events import Loading
from app.runtime.sessions import Session
from app.runtime.trace import Trace
from app.runtime.worker import EngineWorker
from app.ui.reading import settings
from app.ui.reading.chat_view import answer_footer, exchanges
from app.ui.reading.conversation_view import MOST_SHOWN, ago, book_notice, conversation_list
from app.ui.saving import saved
from core.config import SamplingParams, SpeculationConfig
from core.decoding.registry import FASTEST
from core.errors import CoreError, InvalidSetting
from tests.app.conversations.test_tree import BOOK, EVIL, a_dialogue, exchange, said
from tests.app.fakes import FakeEngine, finished, opened, place, round_done, wait_for, write_book
from tests.app.ui.pages import PageOf
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


def test_an_unanswered_question_can_be_answered() -> None:
    dialogue = a_dialogue("One?")
    dialogue, node = dialogue.ask(dialogue.tip, "Two?")
    *_, waits = exchanges(Session("x", dialogue=dialogue)).values()
    assert waits["question"] == "Two?" and f"again:{node.id}" in waits["foot"] and "text" not in waits


def test_nothing_of_a_conversation_is_html() -> None:
    """Questions, answers and thoughts are texts, which the page renders with HTML off."""
    dialogue, node = said(a_dialogue(EVIL), EVIL, EVIL)
    evil = replace(exchange(EVIL, EVIL), methods=(EVIL,), weights=EVIL)
    dialogue = dialogue.answer(node.id, evil)
    shown = list(exchanges(Session("x", dialogue=dialogue)).values())
    assert len(shown) == 2
    assert shown[1]["text"] == EVIL and json.loads(json.dumps(shown)) == shown
    html = "".join(one["asked"] + one["foot"] + "".join(one.get("inserted", ())) for one in shown)
    assert "<img" not in html and "&lt;img" in html


def test_a_continued_answer_grows_from_where_it_was() -> None:
    trace = Trace("One?", "triforce", exchange("One?", "One tw\ufffd"))
    assert trace.text == "One tw"
    assert trace.apply(round_done("o three", 0)).text == "One two three" and len(trace.records) == 1
    assert trace.apply(finished("One two three ")).text == "One two three "


# -------------------- the list


def a_summary(title: str = "A title", book: str = "book.txt", name: str = "0" * 32) -> Summary:
    return Summary(name, title, book, NOW.isoformat(), 1, title, "")


def test_the_list_marks_what_is_shown_and_escapes_titles() -> None:
    dialogue = a_dialogue("One?")
    session = Session("x", dialogue=dialogue)
    listing = Listing((a_summary(name=dialogue.id), a_summary(EVIL, EVIL)), (EVIL,))
    html = conversation_list(listing, session, NOW)
    assert html.count('class="current"') == 1 and "<img" not in html and html.count("&lt;img") >= 3
    assert "just now · book.txt" in html


def test_a_long_list_is_cut_and_says_so() -> None:
    listing = Listing(tuple(a_summary(name=f"{number:032x}") for number in range(MOST_SHOWN + 5)), ())
    html = conversation_list(listing, Session("x"))
    assert html.count("<li") == MOST_SHOWN and "5 older ones" in html


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
    assert book_notice(Session("x")) == ""
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


def test_plain_decoding_stays_plain() -> None:
    assert settings.chosen_method("autoregressive", "lookup") == "autoregressive"
    assert settings.chosen_method("retrieval", settings.AS_CHOSEN) == "retrieval"


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": None}, {"top_k": -1}, {"seed": "seven"}, {"seed": "-1"}, {"seed": "9" * 5000}, {"seed": "²"},
        {"rounds": "fixed", "gamma1": 0}, {"gamma2": 900}, {"rounds": "fixed", "gamma1": None}, {"temperature": -1},
        {"top_p": 0.0}, {"max_new_tokens": 0}, {"max_new_tokens": None},
        {"temperature": float("nan")}, {"top_p": float("inf")},
    ],
)  # fmt: skip
def test_wrong_fields_are_said(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        form(**fields).config()


def offered(html: str) -> list[str]:
    return re.findall(r'value="([^"]*)"', html)


def test_what_depends_on_the_model_is_offered_for_it(worker: EngineWorker, engine: FakeEngine) -> None:
    at_first = settings.choices(Loading())
    assert {*at_first} == {"method", "variant"} and offered(at_first["method"]) == [FASTEST, "autoregressive"]
    assert f'data-usual="{FASTEST}"' in at_first["method"]
    engine.info.thinking, engine.info.thinks = ("on", "off"), "on"
    found = settings.choices(worker.state)
    assert offered(found["thinking"]) == ["", "on", "off"] and "As set up (on)" in found["thinking"]
    engine.info.thinking, engine.info.has_draft = ("on",), False
    found = settings.choices(worker.state)
    assert {*found} == {"method", "variant"}, "one way is no choice"
    assert offered(found["variant"]) == [settings.AS_CHOSEN, "retrieval", "lookup"], "nothing that needs a draft model"
    engine.info.elsewhere, engine.info.thinking = "a server", ("on", "off")
    assert {*settings.choices(worker.state)} == {"thinking"}
    engine.info.thinks = '"><img src=x>'
    assert "<img" not in settings.choices(worker.state)["thinking"]


def test_the_script_knows_every_field_its_first_value_and_the_presets() -> None:
    told = json.loads(settings.script())
    fields = {*re.findall('data-setting="([^"]*)"', settings.fields())}
    assert fields - {"preset"} < {*told["first"]} == {*settings.SettingsForm.model_fields}
    assert settings.SettingsForm(**told["first"]).config().method == settings.DEFAULTS.method
    assert (
        told["presets"]["Precise"] == {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
        and told["custom"] not in told["presets"]
    )


# -------------------- what buttons do


@pytest.fixture
def page(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_worker: Callable[..., EngineWorker]
) -> PageOf:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    worker = start_worker(engine, conversations=Conversations(tmp_path / "conversations"))
    return PageOf(worker, opened(worker, write_book(tmp_path)))


def shows_live(page: PageOf, text: str) -> None:
    """Wait until an answer has got so far."""
    wait_for(lambda: text in page.state().get("live.text", ""))


def test_a_question_that_got_no_answer_goes_back_into_its_box_once(page: PageOf, engine: FakeEngine) -> None:
    engine.writing.clear()
    page.begins("  Too early?")
    wait_for(lambda: engine.prompts)
    assert page.does("stop")
    page.rests()
    assert page.state()["draft"] == [1, "  Too early?"] == page.state()["draft"] and page.session.dialogue is None
    engine.writing.set()
    engine.enqueue(CoreError("It broke.", hint="Try again."))
    page.asks("Broken?")
    assert page.problem == "It broke." and page.texts == ["Broken?", "Half "]
    assert page.state()["draft"][0] == 1, "it has an answer, as far as that came"


def test_an_edit_that_cannot_be_asked_stays_an_edit(page: PageOf, engine: FakeEngine) -> None:
    page.asks("One?", max_new_tokens=2)
    (first,) = page.ids
    page.does(f"edit:{first}")
    assert not page.begins("One?", temperature=-1) and "Temperature -1" in page.problem
    assert page.session.editing == first and "Changing" in page.state()["editing"]
    assert not page.begins(" ") and page.session.editing == first
    engine.writing.clear()
    page.begins("One, differently?")
    wait_for(lambda: len(engine.prompts) == 2)
    page.does("stop")
    page.rests()
    assert page.session.editing == first and page.state()["draft"][1] == "One, differently?", "stopped before a word"


def test_another_conversation_ends_the_answer_of_the_one_before_and_shows_nothing_of_it(
    page: PageOf, engine: FakeEngine
) -> None:
    engine.enqueue("One two | three.")
    page.begins("Long?")
    shows_live(page, "One two")
    assert page.does("new")
    state = page.state()
    assert "live" not in state and "Ask" in state["chat"]["welcome"] and "answering" not in state["flags"]
    assert "running" not in state["strip"] and "Ask a question" in state["where"]
    page.rests()
    assert "draft" not in page.state() and page.texts == []
    assert "Long?" in page.state()["conversations"], "it is kept in the list"
    engine.writing.set()
    engine.enqueue("Yes.")
    page.asks("Another?")
    assert page.texts == ["Another?", "Yes. "]


def test_dropped_files_and_those_in_a_zip_open_in_natural_order(page: PageOf, tmp_path: Path) -> None:
    folder = place(tmp_path)
    (folder / "log 10.odt").write_bytes(odt("<text:p>The tenth log of the boats.</text:p>"))
    (folder / "log 9.zip").write_bytes(archive({"b.rtf": rtf("The first in it."), "c.csv": "Name,Tons\nGull,12\n"}))
    before = page.session.book.names if page.session.book else ()
    assert page.does("open", files=["digest/log 10.odt", "digest/log 9.zip"])
    assert page.session.uploads.coming, "they are known at once: a question waits for them"
    page.rests()
    assert page.session.book is not None
    assert page.session.book.names == (*before, "b.rtf", "c.csv", "log 10.odt")
    wait_for(lambda: not any(file.is_file() for file in (tmp_path / "uploads").rglob("log*")), "the copies are deleted")
    assert "4 documents, read in this order" in page.state()["book"]


@pytest.mark.parametrize("wrong", ["../../book.txt", "/etc/hostname", "digest/none.txt", "", ".", "\0"])
def test_only_what_was_uploaded_is_opened(page: PageOf, tmp_path: Path, wrong: str) -> None:
    place(tmp_path)
    before = page.session.uploads.library
    page.does("open", files=[wrong])
    page.rests()
    assert page.session.uploads.library is before and (tmp_path / "book.txt").exists()


def test_the_strip_and_the_quotations_follow_the_chat(page: PageOf, engine: FakeEngine) -> None:
    quoted, invented = '"it was a dark and stormy night"', '"and nobody was there at all"'
    for question, answer, weights in (("One?", quoted, []), ("Two?", invented, [0.5] * 200)):
        engine.weights = weights
        engine.enqueue(answer)
        page.asks(question)
    assert "most loaded" in page.state()["where"] or "the same pages" in page.state()["where"]
    first, second = page.ids
    chips = ["".join(one["inserted"]) for one in page.exchanges()]
    (quote,) = re.findall('data-act="(page:[^"]*)"', chips[0])
    assert "page 1</button>" in chips[0] and "not in the book" in chips[1] and "data-act" not in chips[1]
    page.does(f"branch:{first}")
    assert "show with the first words" in page.state()["where"]
    page.does(f"switch:{second}")
    assert "show with the first words" not in page.state()["where"]
    assert page.does(quote) and '<mark class="quoted">It was a dark and stormy' in page.state()["leaf"]
    assert "page-open" in page.state()["flags"]
    assert page.does("close") and page.state()["leaf"] == "" and "page-open" not in page.state()["flags"]
    assert page.does(f"page:{page.key}:1") and page.state()["leaf"]
    assert page.does("close") and page.state()["leaf"] == ""
    page.does(f"page:{page.key}:1")
    assert page.does("new") and "Ask a question" in page.state()["where"] and page.state()["leaf"] == ""


def test_a_page_of_the_strip_closes_with_the_next_answer_and_one_of_a_chip_stays(
    page: PageOf, engine: FakeEngine
) -> None:
    page.asks("One?")
    for act, stays in ((f"page:{page.key}:1:3-9", True), (f"page:{page.key}:1", False)):
        assert page.does(act) and page.state()["leaf"]
        engine.enqueue("Well.")
        page.asks("More?")
        assert bool(page.state()["leaf"]) == stays, act


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
    engine.enqueue("It was a dark and stormy night. Nobody wrote this <b>other</b> sentence.")
    page.asks("How <i>was</i> it?")
    (node_id,) = page.ids

    def card() -> str:
        return saved(page.site, page.session, f"card:{node_id}").text

    file = saved(page.site, page.session, f"card:{node_id}")
    html = file.text
    assert file.name.endswith(".html") and file.type == "text/html" and len(html) < 300_000
    assert re.findall(r"<blockquote>(.*?) <small>(.*?)</small>", html) == [
        ("It was a dark and stormy night.", "page 1")
    ]
    assert "How &lt;i&gt;was&lt;/i&gt; it?" in html and "<b>other" not in html and "Replay" in html
    seconds = page.session.exchanges[0].finished.stats.decode_seconds
    assert f'<b class="clock">{seconds:.2f}</b>' in html and "✓ Exact" in html and "TriForce" in html
    page.session.trace = None
    assert ">Replay<" not in card() and "page 1" in card(), "an old answer has no clock of its rounds"
    page.session.digest = "another"
    assert "blockquote>" not in card(), "its book is closed"
