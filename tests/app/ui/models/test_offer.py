"""The card that offers a full model: when, which, what its buttons do, and that nothing is fetched before."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.runtime.events import Loading, Ready
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.models import offer as offers
from app.ui.models.offer import best
from app.ui.models.rows import Fit, ModelRow
from app.ui.reading.book_view import book_card
from app.ui.site import Site
from core.config import GenerationConfig
from core.planning.hardware import Gpu, Machine
from tests.app.fakes import FakeEngine, wait_for, write_book
from tests.app.ui.models.test_tab import ROW, ended, fetching, fits, source, text_of
from tests.app.ui.pages import EVIL, PageOf
from tests.core.models.hub.toy_hub import ToyHub

PLAIN = GenerationConfig(method="plain")
LIMITS = "Bundled demonstration model: answers are reliable for books like the samples"


@pytest.fixture
def demo(engine: FakeEngine) -> Iterator[FakeEngine]:
    """The engine is the bundled demonstration model."""
    engine.info.limits = LIMITS
    yield engine


def opened(worker: EngineWorker, folder: Path) -> Session:
    session = worker.sessions.enter("")
    list(worker.open_books(session.id, [write_book(folder)]))
    return session


class Offer:
    """The card of one program."""

    def __init__(self, worker: EngineWorker) -> None:
        self.site = Site(worker, source=source())

    def html(self, session: Session) -> str:
        return offers.html(self.site, session)


def offer_of(worker: EngineWorker) -> Offer:
    list(worker.states())
    return Offer(worker)


def pages_of(worker: EngineWorker, folder: Path) -> tuple[PageOf, Session]:
    """A page with an open book."""
    list(worker.states())
    page = PageOf(worker, opened(worker, folder).id, source=source())
    return page, page.session


def came(worker: EngineWorker, model: str) -> None:
    """Wait until a model is in use."""
    wait_for(lambda: isinstance(worker.state, Ready) and worker.state.info.model == model)


def test_the_largest_model_that_is_quick_enough_is_best() -> None:
    slow = replace(ROW, name="slow", size_bytes=9 * 10**9, fit=fits(2.0))
    good = replace(ROW, name="good", size_bytes=5 * 10**9, fit=fits(9.0))
    small = replace(ROW, name="small", size_bytes=10**9, fit=fits(90.0))
    short = replace(ROW, name="short", size_bytes=8 * 10**9, fit=fits(40.0, context=16_384))
    gated = replace(ROW, name="gated", size_bytes=7 * 10**9, gated=True, fit=fits(9.0))
    bundled = replace(ROW, name="bundled", size_bytes=9 * 10**9, is_bundled=True, fit=fits(900.0))
    hours = replace(ROW, name="hours", size_bytes=9 * 10**9, fit=fits(9.0, reading=7200.0))
    rows = [slow, good, small, short, gated, bundled, hours, replace(ROW, fit=Fit(weights_refused="No."))]
    assert best(rows) == good
    assert best([slow, replace(slow, name="slower", fit=fits(1.0))]) == slow, "none is quick: the quickest"
    assert best([gated, bundled]) == gated and best([bundled, ROW]) is None
    assert best([small, short], 100_000) == small and best([short], 100_000) == short, "it should hold the book"
    four_bits = replace(ROW, name="four bits", size_bytes=3 * 10**9, fit=fits(20.0), is_suited=True)
    assert best([good, four_bits, small]) == four_bits and best([good, replace(four_bits, fit=fits(2.0))]) == good
    here = replace(gated, is_here=True)
    assert best([good, here]) == here, "what is on the disk needs no licence any more"


def test_a_book_of_another_kind_brings_the_offer_and_nothing_is_asked(
    worker: EngineWorker, demo: FakeEngine, toys: ToyHub, tmp_path: Path
) -> None:
    offer = offer_of(worker)
    empty = worker.sessions.enter("")
    assert offer.html(empty) == "", "nothing is open, and there is no GPU"
    session = opened(worker, tmp_path)
    assert session.book is not None and session.book.note
    shown = offer.html(session)
    told = text_of(shown)
    assert "The full model tiny suits this machine best." in told
    assert told.count(session.book.note) == 1 and session.book.note.startswith(LIMITS)
    assert "demonstration" not in book_card(session), "said once, above the chat"
    assert "about 33.42 MB to download" in told and "tokens a second" in told and EVIL not in shown
    assert 'data-act="offer-get:tiny"' in shown and 'data-tab="System"' in shown
    assert toys.tokens == [] == toys.asked
    assert session.book.note in offers.html(Site(worker), session), "where no model can be offered it is said, too"
    demo.info.limits = ""
    assert offer.html(session) == "", "a full model is in use"


def test_a_gpu_brings_the_offer_at_the_first_start(
    worker: EngineWorker, demo: FakeEngine, toys: ToyHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer, session = offer_of(worker), worker.sessions.enter("")
    machine = Machine("cpu", 8, 1 << 36, 1 << 36, (Gpu("Big", 24 << 30, 23 << 30),))
    monkeypatch.setattr("app.ui.models.rows.machine_alone", lambda _: machine)
    state = worker.state
    assert isinstance(state, Ready) and offer.html(session) == ""
    demo.info.plan.device.value = "cuda"
    offer.site.worker = cast(Any, SimpleNamespace(state=replace(state, machine=machine)))
    assert "For your own books on the Big of this machine: tiny suits" in text_of(offer.html(session))


def test_a_stopped_offer_changes_no_model_later(
    worker: EngineWorker, demo: FakeEngine, toys: ToyHub, gate: Any, tmp_path: Path
) -> None:
    page, _ = pages_of(worker, tmp_path)
    page.does("offer-get:tiny")
    fetching(page.site.downloads, lambda fetch: fetch.done_bytes > 0)
    page.does("model-stop")
    gate.set()
    assert ended(page.site.downloads).stage == "stopped"
    page.does("model-get:tiny")  # from the System tab
    assert ended(page.site.downloads).stage == "done"
    state = worker.state
    assert isinstance(state, Ready) and state.info.model == "fake"


def test_refusals_are_told_above_the_offer(
    worker: EngineWorker, demo: FakeEngine, toys: ToyHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, session = pages_of(worker, tmp_path)
    assert not page.does("model-use:tiny") and page.problem == "tiny is not on this disk."
    toys.gated, toys.token = True, "secret"
    page.does("offer-get:tiny")
    ended(page.site.downloads)
    shown = offers.html(page.site, session)
    assert "toys/tiny is gated" in text_of(shown) and "suits this machine" in shown
    page.does("model-dismiss")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shown = offers.html(page.site, session)
    assert "Bring a folder: python launch.py --model FOLDER" in shown and "get:" not in shown


def test_an_answer_in_progress_is_not_cut_by_the_change(
    worker: EngineWorker, demo: FakeEngine, toys: ToyHub, tmp_path: Path
) -> None:
    page, session = pages_of(worker, tmp_path)
    demo.enqueue("A long answer.")
    demo.writing.clear()
    answer = worker.answer(session.id, "Why?", PLAIN)
    next(answer)
    page.does("offer-get:tiny")
    ended(page.site.downloads)
    wait_for(lambda: page.problem, "the change was refused, and it is said")
    assert "Read with tiny" in text_of(offers.html(page.site, session)), "it is here; the reader changes later"
    assert not isinstance(worker.state, Loading)
    demo.writing.set()
    list(answer)
    assert page.does("model-use:tiny")
    came(worker, "tiny")


def test_the_smallest_model_needs_no_hub_and_is_offered_beside_the_best(
    worker: EngineWorker, demo: FakeEngine, toys: ToyHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(ROW, name="small", size_bytes=10**8, to_come_bytes=10**8, fit=fits(90.0), needs_hub=False)
    large = replace(ROW, name="tiny", size_bytes=10**9, to_come_bytes=10**9, fit=fits(9.0))
    here = replace(small, is_here=True, to_come_bytes=0)

    def shown(*rows: ModelRow) -> str:
        monkeypatch.setattr("app.ui.models.offer.model_rows", lambda *_: list(rows))
        return offer.html(session)

    offer, session = offer_of(worker), opened(worker, tmp_path)
    told, acts = text_of(shown(small, large)), re.findall('data-act="([^"]*)"', shown(small, large))
    assert "The full model small answers soonest, often wrongly; tiny suits this machine best." in told
    assert "Download small (100.00 MB, 100 pages in 1 min)" in told
    assert acts == ["offer-get:small", "offer-get:tiny"], "the quickest way to a real answer comes first"
    assert 'class="act strong" data-act="model-use:small"' in shown(here, large)
    assert "small" not in text_of(shown(small, replace(large, is_here=True, to_come_bytes=0))), "the best is here"
    alone = shown(small, replace(large, fit=Fit(weights_refused="No.")))
    assert "small suits this machine best; it is small and often wrong." in text_of(alone)
    assert alone.count("get:small") == 1
    with monkeypatch.context() as patched:
        demo.info.model, demo.info.limits = "smollm2-135m", ""
        told = text_of(shown(here, large))
        assert "smollm2-135m is small and often wrong. Of the larger models, tiny suits" in told
        assert "soonest" not in told and shown(here) == "", "nothing larger fits"
        demo.info.model, demo.info.limits = "fake", LIMITS
    with monkeypatch.context() as patched:
        patched.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert "get:" not in shown(small, large) and "use:small" in shown(here, large)
    toys.garbage = True
    offers.fetch(offer.site, session, "tiny", {})
    ended(offer.site.downloads)
    last = shown(small, large)
    assert "does not describe toys/tiny" in text_of(last) and "get:small" in last, "without a hub there is another way"
