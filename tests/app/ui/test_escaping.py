"""Nothing that comes from a book, a file, a model, a reader or a machine is HTML, wherever the page shows it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.context.context_documents import Library
from app.context.uploads import Fit
from app.conversations.listing import Listing
from app.conversations.store import Conversations
from app.documents.document import Chapter, Document
from app.documents.errors import ScannedDocument
from app.runtime.downloads import Fetch
from app.runtime.events import LoadFailed, Loading, Ready
from app.runtime.sessions import Racing, Session
from app.runtime.worker import EngineWorker
from app.ui.header import masthead, notice
from app.ui.library.view import saved_list
from app.ui.models import offer
from app.ui.models.rows import Fit as ModelFit
from app.ui.models.rows import ModelRow, ModelSource, Speeds
from app.ui.models.view import doing, download, models, section
from app.ui.race.stage import opening, scenes
from app.ui.race.view import race as race_html
from app.ui.reading.chat_view import answer_footer
from app.ui.reading.conversation_view import book_notice, conversation_list
from app.ui.reading.settings import choices
from app.ui.render import bar, chip
from app.ui.saving import saved
from app.ui.system.tab import system
from core.errors import CoreError
from core.planning.choices import Choice
from core.planning.hardware import Gpu, Machine
from core.planning.nvidia import UnusedGpu
from tests.app.documents.conftest import MakePdf
from tests.app.fakes import FakeEngine, document_of, settled
from tests.app.ui.pages import EVIL, PageOf

ERROR = CoreError(f"No: {EVIL}", hint=EVIL)
TABS = ("read", "library", "race", "inside", "system")
WORDS = f"It {EVIL} was a dark and stormy night in {EVIL}. "
TEXTS = ("question", "text", "thought", "draft", "read", "race-proposal")  # which the script shows as text


def is_text(html: str, *, least: int = 1) -> str:
    """That a piece of HTML shows something foreign, and only as text."""
    assert html.count("&lt;img") >= least, f"nothing foreign is in it: {html[:200]}"
    assert "<img/src=x" not in html and '"&gt;&lt;img' not in html and 'onload="' not in html, html
    return html


def html_in(value: Any) -> str:
    """All of a state but what the script shows as text."""
    if isinstance(value, dict):
        keys = (key for key in value if key not in TEXTS and not key.endswith((".text", ".thought")))
        return "".join(html_in(value[key]) for key in keys)
    return "".join(map(html_in, value)) if isinstance(value, list | tuple) else str(value)


def shown(page: PageOf) -> dict[str, str]:
    """The HTML of each tab, all of it safe."""
    return {tab: is_text(html_in(page.state(tab))) for tab in TABS}


def a_document(text: str, **more: Any) -> Document:
    """A document of two pages of which nothing is what it seems."""
    middle = len(text) // 2
    told: dict[str, Any] = {"name": f"{EVIL}.pdf", "labels": (EVIL, f"2{EVIL}"), "format": "pdf", "warnings": (EVIL,)}
    told |= {"authors": (EVIL, "B", EVIL), "language": 'x" onload="', "direction": "rtl", "cover": EVIL}
    return document_of(text[:middle], text[middle:], title=EVIL, **told | more)


@pytest.fixture
def hostile(engine: FakeEngine) -> Machine:
    """A machine, and a model on it, of which every word is foreign."""
    info, because = engine.info, lambda value: SimpleNamespace(value=value, because=EVIL)
    info.model = info.description = info.weights = info.exact_for = info.attention = info.attention_because = EVIL
    info.draft_because, info.thinks, info.thinking, info.limits = EVIL, EVIL, ("on", EVIL), EVIL
    info.host_memory, info.link = because(EVIL), Choice(1e9, EVIL)
    for name in ("device", "dtype", "kv", "bits", "context", "placement", "prefill_block", "cpu_attention"):
        setattr(info.plan, name, because(getattr(info.plan, name).value))
    info.plan.rows = tuple(replace(row, name=f"{EVIL} {row.name}") for row in info.plan.rows)
    unused = UnusedGpu(gpu=EVIL, problem=EVIL, hint=EVIL)
    info.plan.device.because = unused.because
    return Machine(EVIL, 2, 16 << 30, 12 << 30, (Gpu(EVIL, 24 << 30, 23 << 30),), unused_gpu=unused)


@pytest.fixture
def page(
    engine: FakeEngine, hostile: Machine, tmp_path: Path, make_pdf: MakePdf, begin_worker: Callable[..., EngineWorker]
) -> PageOf:
    """A page with two hostile books, one of them with its file."""
    engine.context = 9000
    worker = begin_worker(lambda: (engine, hostile), conversations=Conversations(tmp_path / "c"))
    settled(worker)
    page, file = PageOf(worker), make_pdf(["A page."], ["Another."])
    one, text = a_document(WORDS * 4, picture_pages=(2,)), f"Another {WORDS}" * 4
    chapter = Chapter(title=EVIL, first_page=1, char_start=0, char_end=len(text))
    two = a_document(text, chapters=(chapter,))
    list(worker.arrange(page.session.id, lambda library: library.add(one, file).add(two)))
    assert page.session.is_read
    return page


def test_no_book_question_answer_or_model_of_a_page_is_html(page: PageOf, engine: FakeEngine) -> None:
    session, key = page.session, page.key
    page.does(f"choose:{session.uploads.library.books[1].key}:#1-#1")
    page.rests()
    is_text(shown(page)["library"], least=9)
    engine.weights = [0.0] * 20 + [0.5] * 9
    engine.enqueue(f"{EVIL} {WORDS} “{WORDS}” Nobody {EVIL} wrote a word of this sentence.")
    page.asks(EVIL, max_new_tokens=99)
    first = shown(page)["read"]
    assert "chip quote found" in first and 'class="own"' in first and "bar-page most" in first
    is_text(saved(page.site, session, f"card:{page.ids[0]}").text, least=4)
    page.does(f"edit:{page.ids[0]}"), page.does("search:night"), page.does(f"page:{key}:1:3-9")
    page.does(f"preview:{key}:1:3-9"), page.does("find:9::night")
    html = shown(page)
    assert 'lang="x&quot; onload=&quot;" dir="rtl"' in html["library"] and 'dir="rtl"' in html["read"]
    assert 'class="quoted"' in html["read"] and "<mark>night</mark>" in html["library"] and "Changing" in html["read"]
    for act in (f"find:9::none {EVIL}", f"delete-conversation:{session.dialogue_id}", f"remove:{key}"):
        page.does(act)
    page.rests()
    html = shown(page)
    assert "Deleted &quot;" in html["read"] and "Removed &quot;" in html["read"]


def test_nothing_of_a_race_is_html(page: PageOf, engine: FakeEngine) -> None:
    for word in ("same", "other"):
        engine.enqueue(f"{EVIL} {word}")
    form = {"question": EVIL, "lanes": ["autoregressive", "triforce"], "limit": 64}
    assert page.does("race", **form)
    page.rests_after_race()
    race = page.session.race
    assert race is not None and race.ended
    html = shown(page)
    assert "mismatch" in html["race"] and "data-tip" in html["inside"]
    is_text(saved(page.site, page.session, "race:card").text + scenes(race) + opening(page.session.book), least=6)
    is_text(race_html(Racing(race, error=ERROR)) + race_html(Racing(error=ERROR)), least=4)


def test_nothing_of_files_on_their_way_and_of_errors_is_html(page: PageOf) -> None:
    session = page.session
    uploads = session.uploads
    *_, failed, scanned, recognised = uploads.expect([EVIL] * 4)
    failed.fail(ERROR)
    scanned.fail(ScannedDocument(EVIL, 2, 2), Path("x"))
    recognised.stage, recognised.num_pages, recognised.num_done = "recognising", 9, 3
    session.problem = uploads.error = ERROR
    uploads.note = EVIL
    html = shown(page)
    assert html["read"].count("arrival") == 2 == html["library"].count("arrival") / 2
    uploads.fit = Fit(books=9**9, frame=2, talk=30, reserve=50, context=270, possible=300)
    uploads.settled, uploads.pending = uploads.library, ()
    assert uploads.too_long
    html = shown(page)
    assert "data-choosing" in html["read"] and 'name="last"' in html["read"] and 'name="chapter"' in html["read"]


def test_no_conversation_and_no_name_of_its_book_is_html(page: PageOf, engine: FakeEngine) -> None:
    engine.info.limits = ""
    is_text(page.state()["suggestions"])
    page.asks(EVIL, max_new_tokens=2)
    session = page.session
    assert session.dialogue is not None
    node = session.dialogue.path[0]
    assert node.exchange is not None
    foreign = replace(node.exchange, methods=(EVIL,), model=EVIL, weights=EVIL)  # a file was changed
    is_text(answer_footer(session.dialogue, replace(node, exchange=foreign), last=True))
    is_text(conversation_list(Listing((), (EVIL,)), Session("x")))
    session.dialogue = replace(session.dialogue, book=replace(session.dialogue.book, digest="0", names=(EVIL, "b")))
    assert "not kept" in is_text(book_notice(session), least=3)
    session.uploads.library = session.uploads.settled = Library()


def test_no_model_and_nothing_that_is_said_of_it_is_html(page: PageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = Speeds(plain=1.0, triforce=9.0, because=EVIL, reading_seconds=9.0, pages=100)
    foreign: dict[str, Any] = {key: EVIL for key in ("name", "title", "description", "licence", "draft")}
    fit = ModelFit(context=9, context_refused=EVIL, speeds=speeds)
    row = ModelRow(context=9, is_here=True, size_bytes=9, to_come_bytes=9, is_brought=True, fit=fit, **foreign)
    is_text(models([row, replace(row, fit=ModelFit(weights_refused=EVIL)), replace(row, refused=EVIL)]), least=20)
    fetch = Fetch(name=EVIL, stage="fetching", total_bytes=9, done_bytes=3, elapsed_seconds=1.0)
    for stage in ("fetching", "asking", "done", "stopped", "stopping"):
        is_text(download(replace(fetch, stage=cast(Any, stage))))
    ready = page.worker.state
    assert isinstance(ready, Ready)
    for state in (Loading(EVIL), replace(ready, refused=ERROR)):
        is_text(doing(state, None) + section(EVIL))
    is_text(doing(ready, replace(fetch, stage="failed", error=ERROR)) + choices(ready)["thinking"], least=3)
    page.site.source = cast(ModelSource, SimpleNamespace(unavailable="", folders=None))
    for rows in ([row], [replace(row, is_here=False), replace(row, is_here=False, needs_hub=False, size_bytes=1)]):
        monkeypatch.setattr(offer, "model_rows", lambda *_, rows=rows: rows)
        assert 'data-offer="&quot;' in is_text(offer.html(page.site, page.session), least=8)
    ready.info.plan.device.value = "cuda"
    assert "For your own books on the &quot;" in is_text(offer.html(page.site, Session("y")), least=5)


def test_no_machine_and_no_saved_book_is_html(
    page: PageOf, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = page.worker.state
    assert isinstance(ready, Ready)
    is_text(masthead(ready), least=4), is_text(masthead(Loading(EVIL))), is_text(notice(ready), least=2)
    is_text(notice(LoadFailed(ERROR)), least=2)
    for name in ("system", "release", "machine"):
        monkeypatch.setattr(f"platform.{name}", lambda: EVIL)
    monkeypatch.setenv("GRADIO_TEMP_DIR", f"/{EVIL}/uploads")
    site, session = page.site, page.session
    is_text(system(site, session), least=30)
    engine.info.elsewhere = EVIL
    is_text(masthead(ready), least=3), is_text(system(site, session), least=6)
    page.worker.jobs.state = LoadFailed(ERROR)
    is_text(system(site, session), least=4), is_text(page.state()["banner"], least=2)
    line = SimpleNamespace(id="ab12", name=EVIL, label=SimpleNamespace(num_tokens=10), size_bytes=2048, used=0.0)
    is_text(saved_list([cast(Any, line)], 1 << 30, [EVIL]), least=3)
    is_text(chip(EVIL, title=EVIL) + bar(0.5, EVIL), least=3)
