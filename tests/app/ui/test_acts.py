"""The one entry for what a page does: once each, refused in words, and never a fault whatever a browser sends."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.conversations.store import Conversations
from app.runtime.downloads import Downloads
from app.runtime.events import Changed, Pause
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.acts import MOST_REMEMBERED, ActRequest, Acts
from app.ui.page import ACTS
from app.ui.site import Site, follow
from core.errors import CoreError
from core.models.hub import catalog, shapes
from tests.app.fakes import SECONDS, FakeEngine, opened, wait_for, write_book
from tests.app.ui.models.conftest import source
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


def request(page: PageOf, act: str, **values: Any) -> ActRequest:
    return ActRequest(session=page.session.id, id=act_id(), act=act, values=values)


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


def test_a_refusal_is_told_with_a_way_out_until_the_next_act(page: PageOf) -> None:
    for act in ("explode:everything", "", ":", "ASK", "ask "):
        version = page.session.version
        assert not page.does(act) and page.session.version > version, "the page is told"
        assert 'role="alert"' in page.state()["problem"] and "Reload the page." in page.state()["problem"]
    assert page.does("close-problem") and page.state()["problem"] == ""
    assert not page.begins("  ") and "The question is empty." in page.state()["problem"]
    assert not page.begins("Well?", temperature=-1) and "Temperature -1" in page.state()["problem"]
    assert page.does("search:x") and page.state()["problem"] == ""


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (None, ""),
        (CoreError("No.", hint="Do not."), "No."),
        (AttributeError("a bug"), "The engine stopped with an error (AttributeError)."),
    ],
)
def test_an_act_is_done_once_however_often_it_is_sent_and_by_whatever_threads(
    fault: Exception | None, told: str, worker: EngineWorker, caplog: pytest.LogCaptureFixture
) -> None:
    gate, done, results = threading.Event(), list[str](), list[bool]()

    def act(_site: Site, _session: Session, detail: str, _values: Any) -> None:
        assert gate.wait(SECONDS)
        done.append(detail)
        if fault:
            raise fault

    acts, page, stranger = Acts(Site(worker), {"count": act}), PageOf(worker), PageOf(worker)
    one = request(page, "count:one")
    threads = [threading.Thread(target=lambda: results.append(acts.do(one))) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(results) == 3, "those that come later do not wait")
    gate.set()
    for thread in threads:
        thread.join(SECONDS)
    assert done == ["one"] and acts.do(one) == (fault is None) and len(done) == 1, "refused as it was before"
    assert page.problem == told and ("an act failed: count" in caplog.text) == isinstance(fault, AttributeError)
    assert acts.do(one.model_copy(update={"session": stranger.session.id})) == (fault is None) and len(done) == 2
    for _ in range(MOST_REMEMBERED):
        acts.do(request(page, "count:many"))
    assert len(page.session.acts) == MOST_REMEMBERED


@pytest.mark.parametrize("fault", [None, CoreError("It broke.", hint="Try again."), RuntimeError("a bug")])
@pytest.mark.parametrize("told", [True, False])
def test_a_stream_is_followed_to_its_end_and_an_error_is_told(told: bool, fault: Exception | None) -> None:
    session, applied, errors, ended = Session("x"), list[Any](), list[CoreError](), threading.Event()

    def events() -> Any:
        yield from (Pause(), Changed(), Pause(), Changed())
        if fault:
            raise fault

    follow(session, events(), applied.append, errors.append if told else None, ended.set)
    assert ended.wait(SECONDS)
    wait_for(lambda: session.version == 3, "each event, and the end")
    assert applied == [Changed(), Changed()]
    found = errors if told else [error for error in [session.uploads.error] if error]  # which the library shows
    assert len(found) == (fault is not None) and (not errors or told)
    assert fault is None or "broke" in str(found[0]) or "stopped with an error (RuntimeError)" in str(found[0])
