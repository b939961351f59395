"""The full circle: the app and `ask` on a server that is ours; and what the page says and leaves out."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import launch
from app.cli import ask
from app.conversations.store import Conversations
from app.remote.server import KEY_VARIABLE, connector
from app.runtime.events import LoadFailed
from app.runtime.worker import EngineWorker
from app.server import serve_page
from app.ui.header import masthead
from app.ui.page import build_page
from app.ui.reading.chat_view import answer_footer
from app.ui.reading.live_strip import strip as strip_of
from app.ui.site import Site
from app.ui.system.tab import system
from core.config import GenerationConfig
from core.errors import CoreError, InvalidSetting
from core.generation.events import Finished
from tests.app.fakes import opened, settled, write_book
from tests.app.remote.fake_server import DONE, GOOD, FakeServer, says, stream, used
from tests.app.remote.test_engine import server as server
from tests.app.server.openai.servers import served
from tests.app.ui.pages import PageOf

BOOK = "Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. Arthur Nash mended nets there. " * 12
KEY = "the-key-of-the-server"


@pytest.fixture(scope="module")
def url(bundled_worker: EngineWorker) -> Iterator[str]:
    with served(bundled_worker, key=KEY) as address:
        yield address


def namespace(**fields: Any) -> argparse.Namespace:
    """What `ask` is told."""
    args = launch.parse_arguments(["ask", "book.txt", "-q", "Who kept the light?", "--max-new-tokens", "16", "--json"])
    vars(args).update({"remote_key": KEY} | fields)
    return args


@pytest.fixture
def remote_worker(begin_worker: Callable[..., EngineWorker]) -> Callable[..., EngineWorker]:
    return lambda url, **fields: begin_worker(connector(namespace(remote=url, **fields)))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write_book(tmp_path, BOOK)


def test_ask_says_the_same_through_the_server(
    url: str, bundled_worker: EngineWorker, book: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def told(remote: str | None) -> Any:
        assert ask.run(namespace(files=[book], remote=remote)) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    there = told(url)
    monkeypatch.setattr("app.cli.opening.open_engine", lambda _: cast(Any, bundled_worker)._engine)
    here = told(None)
    (mine,), theirs = here["methods"].values(), there["methods"]["remote"]
    assert mine["text"] == theirs["text"] and mine["new_tokens"] == theirs["new_tokens"]
    assert here["prompt_tokens"] == there["prompt_tokens"], "the server's own count"
    assert theirs["ms_per_token"] > 0 and theirs["token_ids"] == [] and not theirs["exact"]
    assert KEY not in json.dumps(there)


def test_the_app_reads_asks_and_asks_again_through_the_server(
    url: str, book: Path, remote_worker: Callable[..., EngineWorker]
) -> None:
    worker = remote_worker(url)
    session = worker.sessions.get(opened(worker, book))
    assert session.book and session.is_read and session.book.num_tokens > 200
    config = GenerationConfig(method="triforce", max_new_tokens=12)

    def finished(events: Any) -> Finished:
        return [event for event in events if isinstance(event, Finished)][-1]

    first = finished(worker.answer(session.id, "Who kept the light?", config))
    assert first.method == "remote" and first.reused_tokens > 200, "the server had read the book ahead"
    again = finished(worker.regenerate(session.id, config))
    assert again.text == first.text and session.exchanges[-1].finished.text == again.text
    last = finished(worker.answer(session.id, "Where?", config))
    assert last.prompt_tokens - last.reused_tokens < 40, "the conversation goes on from its own words"
    assert session.num_talk > first.stats.new_tokens
    with pytest.raises(CoreError, match="without --remote"):
        list(worker.race(session.id, "Who?", [config, config]))


def test_an_answer_that_was_stopped_stays_and_is_not_gone_on_with(
    server: FakeServer, book: Path, remote_worker: Callable[..., EngineWorker]
) -> None:
    del server.scripts["/v1/chat/completions"]
    worker = remote_worker(server.url)
    with pytest.raises(CoreError, match="refuses"):  # and the engine's thread goes on
        opened(worker, book)
    server.answers(GOOD)
    session = worker.sessions.get(opened(worker, book))
    server.answers(stream(says("Half a "), end=False))
    with pytest.raises(CoreError, match="ended the connection"):
        list(worker.answer(session.id, "Who?", GenerationConfig()))
    assert session.exchanges[-1].finished.text == "Half a "
    server.answers(stream(says("Martha", "length"), used(50, 1), DONE))
    list(worker.answer(session.id, "Who?", GenerationConfig()))
    assert [one["content"] for one in server.chats[-1]["messages"]][1:] == ["Half a ", "Who?"]
    assert session.dialogue is not None
    footer = answer_footer(session.dialogue, session.dialogue.path[-1], last=True)
    assert "Regenerate" in footer and ">Continue<" not in footer


def test_the_page_says_where_text_goes_and_offers_nothing_that_is_not_there(
    server: FakeServer, book: Path, remote_worker: Callable[..., EngineWorker]
) -> None:
    worker = remote_worker(server.url)
    session = worker.sessions.get(opened(worker, book))
    list(worker.answer(session.id, "Who kept the light?", GenerationConfig()))
    assert session.dialogue is not None and session.trace is not None and session.trace.records == []
    (exchange,) = session.exchanges
    assert exchange.finished.text == "The light house." and exchange.model.startswith("big @ ")
    assert "exactness not seen" in answer_footer(session.dialogue, session.dialogue.path[-1], last=True)
    strip, head = strip_of(session.trace, ""), masthead(worker.state)
    assert "Remote" in strip and "Accepted" not in strip and "exact" not in strip
    assert "on this machine" not in head and "are sent to http://127.0.0.1" in head and "Race, Inside" in head
    page = PageOf(worker, session.id, elsewhere=True)
    shown = page.state()
    assert "are sent to" in shown["note"] and "setting:thinking" in shown and shown["where"] == ""
    assert not {"setting:method", "setting:variant"} & {*shown}
    page.asks("Who else?", method="")
    assert page.problem == "" and page.texts[2:] == ["Who else?", "The light house."]
    text = system(page.site, session)
    assert "are sent" in text and "only who opens this page" not in text and KEY not in text
    for elsewhere in (False, True):
        blocks = build_page(Site(worker, elsewhere=elsewhere)).blocks.values()
        tabs = {one.label for one in blocks if type(one).__name__ == "Tab"}
        assert tabs == {"Read", "Library", "System"} | ({"Race", "Inside"} if not elsewhere else set())


def test_the_key_is_written_nowhere(
    server: FakeServer, book: Path, remote_worker: Callable[..., EngineWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    worker = remote_worker(server.url, remote_key=None)
    worker.conversations = Conversations(book.parent / "data")
    list(worker.answer(opened(worker, book), "Who kept the light?", GenerationConfig()))
    worker.conversations.close()
    assert server.seen[-1][2]["authorization"] == f"Bearer {KEY}"
    files = [file for file in book.parent.rglob("*") if file.is_file()]
    assert len(files) >= 2 and not any(KEY.encode() in file.read_bytes() for file in files)


def test_what_a_server_decides_is_no_option(
    arguments: argparse.Namespace, remote_worker: Callable[..., EngineWorker], capsys: pytest.CaptureFixture[str]
) -> None:
    for fields in ({"device": "cpu"}, {"method": "triforce"}, {"saved": True}, {"token_ids": True}):
        with pytest.raises(InvalidSetting, match=f"--{next(iter(fields)).replace('_', '-')}"):
            connector(namespace(remote="http://x", **fields))
    arguments.remote, arguments.device = "ftp://x", "auto"
    with pytest.raises(InvalidSetting, match="address of a server"):
        serve_page.run(arguments)
    connector(namespace(remote="https://gpu.example:8000"))
    connector(namespace(remote="http://127.0.0.1:8000"))
    assert capsys.readouterr().err == ""
    connector(namespace(remote="http://gpu.example:8000"))
    assert "unencrypted" in (told := capsys.readouterr().err) and KEY not in told
    state = settled(remote_worker("http://127.0.0.1:9"))
    assert isinstance(state, LoadFailed) and "cannot be reached" in state.error.problem, "the page's banner"
