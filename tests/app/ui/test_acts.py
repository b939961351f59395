"""The one entry for what a page does: once each, refused in words, and never a fault whatever a browser sends."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.conversations.store import Conversations
from app.runtime.downloads import Downloads
from app.runtime.events import Changed, Pause
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.acts import MOST_DETAIL, MOST_REMEMBERED, ActRequest, Acts
from app.ui.page import ACTS
from app.ui.site import Site, follow
from core.errors import CoreError
from core.models.hub import catalog, shapes
from tests.app.fakes import SECONDS, FakeEngine, opened, wait_for, write_book
from tests.app.ui.models.test_tab import source
from tests.app.ui.pages import EVIL, PageOf, act_id

VERBS = sorted(verb for table in ACTS for verb in table)
DETAILS = (
    "", ":", "::::", "0", "-1", "x", EVIL, "../../etc/passwd", "\0", "9" * 5000, "٣", "1e9", "nan", "inf", "None",
    "[" * 20_000, "1:2:3:4:5", "_:gone=all;x=#1-", "9" * 400 + ":" + "9" * 400 + "-" + "9" * 400,
)  # fmt: skip
VALUES: tuple[dict[str, Any], ...] = (
    {},
    *({"value": one, "text": one, "question": one, "files": one, "settings": one, "lanes": one} for one in (
        None, 1, -1e400, "x", "9" * 5000, [], [[]], ["../../etc/passwd", "\0", 3], {}, {"method": 7}, True, EVIL, "\0",
    )),
    {"question": "Q?", "settings": {"method": "no such"}},
    {"question": "Q?", "settings": {"method": "triforce", "temperature": "nan"}},
    {"question": "Q?", "settings": {"method": "triforce", "max_new_tokens": 1e400, "seed": {}}},
    {"question": "Q?", "settings": {"method": "triforce", "gamma1": "inf", "budget": -1, "thinking": EVIL}},
    {"question": "Q?", "settings": {"method": "triforce", "max_new_tokens": float("nan")}},
    {"question": "Q?", "settings": {"method": "triforce", "top_k": 1e30, "budget": 1e300}},
    {"question": "Q?", "lanes": ["triforce", "autoregressive"], "seconds": float("nan"), "limit": float("inf")},
    {"question": "Q?", "lanes": ["triforce", "autoregressive"], "seconds": -1, "limit": 1, "temperature": "x"},
    {"question": "", "lanes": ["triforce", "triforce", EVIL], "limit": 1e400},
)  # fmt: skip


@pytest.fixture
def page(worker: EngineWorker, tmp_path: Path) -> PageOf:
    return PageOf(worker, opened(worker, write_book(tmp_path)))


def request(page: PageOf, act: str, name: str = "", **values: Any) -> ActRequest:
    return ActRequest(session=page.session.id, id=name or act_id(), act=act, values=values)


@pytest.mark.parametrize("empty", [True, False])
def test_whatever_a_browser_sends_is_done_or_refused_in_words(
    empty: bool,
    engine: FakeEngine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    start_worker: Callable[..., EngineWorker],
) -> None:
    few = dict([*catalog.entries().items()][:3])  # models to plan for, of dozens
    for module in (catalog, shapes):
        monkeypatch.setattr(module, "entries", lambda: few)
    caplog.set_level(logging.ERROR)
    worker = start_worker(engine, conversations=Conversations(tmp_path / "conversations"))
    site = Site(worker, source=source(), downloads=Downloads())
    for verb in VERBS:
        page = PageOf(worker, "" if empty else opened(worker, write_book(tmp_path)), site=site)
        if not empty:
            page.asks("One?", max_new_tokens=2)
        for number, detail in enumerate(DETAILS):
            sent = request(page, f"{verb}:{detail}", **VALUES[number % len(VALUES)])
            assert page.acts.do(sent) == (page.problem == ""), (verb, detail, page.problem)
        for values in VALUES:
            assert page.acts.do(request(page, verb, **values)) == (page.problem == ""), (verb, values, page.problem)
        page.does("stop"), page.does("stop-race"), page.does("stop-reading")
        page.rests(), page.rests_after_race()
        for tab in ("read", "library", "race", "inside", "system"):
            assert EVIL not in str(page.state(tab)), f"{verb}, {tab}: nothing of it is HTML"
        assert not caplog.records and worker.is_running, (verb, caplog.text)


def test_an_unknown_act_is_refused_with_a_way_out(page: PageOf) -> None:
    for act in ("explode:everything", "", ":", "ASK", "ask "):
        assert not page.does(act)
        assert 'role="alert"' in page.state()["problem"] and "Reload the page." in page.state()["problem"]
    assert page.does("close-problem") and page.state()["problem"] == ""


def test_a_refusal_is_shown_until_the_next_act(page: PageOf) -> None:
    version = page.session.version
    assert not page.begins("  ") and "The question is empty." in page.state()["problem"]
    assert page.session.version > version, "the page is told"
    assert not page.begins("Well?", temperature=-1) and "Temperature -1" in page.state()["problem"]
    assert page.does("search:x") and page.state()["problem"] == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"session": ""}, {"session": "x" * 32}, {"session": "../" * 11}, {"session": "0" * 31}, {"id": ""},
        {"id": "short"}, {"id": "x" * 65}, {"act": "x" * (MOST_DETAIL + 1)}, {"act": None}, {"values": []},
        {"session": "0" * 32 + "\n"}, {"session": "z" + "0" * 32}, {"session": "0" * 33},
    ],
)  # fmt: skip
def test_what_is_no_act_is_not_read(wrong: dict[str, Any]) -> None:
    known = {"session": "0" * 32, "id": act_id(), "act": "stop", "values": {}}
    assert ActRequest.model_validate(known)
    with pytest.raises(ValidationError):
        ActRequest.model_validate(known | wrong)


def counting(worker: EngineWorker, *, wait: threading.Event | None = None) -> tuple[Acts, list[str]]:
    """Acts with one that counts how often it is done."""
    done: list[str] = []

    def act(_site: Site, _session: Session, detail: str, _values: Any) -> None:
        assert wait is None or wait.wait(SECONDS)
        done.append(detail)
        if detail == "refuse":
            raise CoreError("No.", hint="Do not.")

    return Acts(Site(worker), {"count": act}), done


def test_an_act_is_done_once_however_often_it_is_sent(worker: EngineWorker) -> None:
    acts, done = counting(worker)
    session = worker.sessions.enter("").id
    one = ActRequest(session=session, id="a" * 24, act="count:one")
    assert acts.do(one) and acts.do(one) and acts.do(one) and done == ["one"]
    other = ActRequest(session=session, id="b" * 24, act="count:refuse")
    assert not acts.do(other) and not acts.do(other) and done == ["one", "refuse"], "refused as it was before"
    stranger = worker.sessions.enter("").id
    assert acts.do(ActRequest(session=stranger, id="a" * 24, act="count:two")) and done[-1] == "two", "ids are a page's"
    for number in range(MOST_REMEMBERED):
        acts.do(ActRequest(session=session, id=f"c{number:023}", act="count:many"))
    assert len(worker.sessions.get(session).acts) == MOST_REMEMBERED


@pytest.mark.parametrize("detail", ["one", "refuse"])
def test_an_act_sent_twice_at_the_same_time_is_done_once(worker: EngineWorker, detail: str) -> None:
    wait, told = threading.Event(), list[bool]()
    acts, done = counting(worker, wait=wait)
    one = ActRequest(session=worker.sessions.enter("").id, id="a" * 24, act=f"count:{detail}")
    threads = [threading.Thread(target=lambda: told.append(acts.do(one))) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: sum(thread.is_alive() for thread in threads) <= 1 or len(told) >= 3 or wait.wait(0.2))
    wait.set()
    for thread in threads:
        thread.join(SECONDS)
    assert done == [detail] and len(told) == 4


def test_an_act_of_a_page_that_is_older_than_the_program_is_answered(worker: EngineWorker) -> None:
    """Its session is new to this program, under the page's own id; a question then says that there is no book."""
    page = PageOf(worker, "5" * 32)
    assert page.session.id == "5" * 32
    page = PageOf(worker, "6" * 32)
    acts = Acts(Site(worker), *ACTS)
    settings = {"method": "triforce"}
    asked = ActRequest(session="7" * 32, id=act_id(), act="ask", values={"question": "Q?", "settings": settings})
    assert not acts.do(asked)
    late = PageOf(worker, "7" * 32)
    assert late.problem == "There is no book yet." and "switch" in VERBS
    assert (not late.does("switch:nobody") and "exchange" in late.problem) or "not there" in late.problem


def test_an_act_with_a_bug_is_told_and_not_done_again(worker: EngineWorker, caplog: pytest.LogCaptureFixture) -> None:
    def act(*_: object) -> None:
        done.append(1)
        raise AttributeError("a bug")

    page, done = PageOf(worker), list[int]()
    acts, one = Acts(page.site, {"bug": act}), request(page, "bug:" + "x" * 99)
    assert not acts.do(one) and not acts.do(one) and done == [1]
    assert "stopped with an error (AttributeError)" in page.problem and "an act failed: bug" in caplog.text


def test_two_acts_of_one_name_are_a_mistake_of_ours(worker: EngineWorker) -> None:
    with pytest.raises(AssertionError, match="two acts of one name"):
        Acts(Site(worker), ACTS[0], {"ask": ACTS[0]["stop"]})


# -------------------- following a stream


def followed(*items: Any) -> tuple[Session, list[Any], list[Any]]:
    """What is applied of a stream and what is told of its end."""
    session, applied, told = Session("x"), list[Any](), list[Any]()

    def events() -> Any:
        for item in items:
            if isinstance(item, BaseException):
                raise item
            yield item

    follow(session, events(), applied.append, told.append, lambda: told.append("ended"))
    wait_for(lambda: "ended" in told)
    return session, applied, told


def test_every_event_is_applied_and_shown_and_a_pause_is_none() -> None:
    event = Changed()
    session, applied, told = followed(Pause(), event, Pause(), event)
    wait_for(lambda: session.version == 3)
    assert applied == [event, event] and told == ["ended"], "each, and the end"


def test_a_stream_that_fails_says_so_and_ends() -> None:
    error = CoreError("It broke.", hint="Try again.")
    assert followed(error)[2] == [error, "ended"]
    _, _, (fault, end) = followed(RuntimeError("a bug"))
    assert "stopped with an error (RuntimeError)" in fault.problem and end == "ended"


def test_an_error_that_nobody_waits_for_is_the_library_s() -> None:
    session = Session("x")
    follow(session, iter([]), failed=None)
    error = CoreError("It broke.", hint="Try again.")

    def events() -> Any:
        raise error
        yield

    follow(session, events())
    wait_for(lambda: session.uploads.error is error)
