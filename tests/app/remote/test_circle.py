"""The full circle: the app and `ask` on a server that is ours; and what the page says and leaves out."""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import launch
from app.cli import ask
from app.conversations.figures import figures
from app.remote.connecting import KEY_VARIABLE, connector
from app.runtime.events import LoadFailed
from app.runtime.worker import EngineWorker
from app.server import serve_page
from app.ui.header import masthead
from app.ui.page import build_page
from app.ui.reading.chat_view import answer_footer
from app.ui.reading.live_strip import strip as strip_of
from app.ui.site import Site
from app.ui.system.tab import system
from assets.tools.commands import TOOLS
from core.config import GenerationConfig
from core.errors import CoreError, InvalidSetting
from core.generation.events import Finished
from tests.app.fakes import opened, write_book
from tests.app.remote.fake_server import DONE, GOOD, fake_server, says, stream, used
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
def close_later() -> Iterator[list[Any]]:
    kept: list[Any] = []
    yield kept
    for one in kept:
        one.close()


def remote_worker(url: str, close_later: list[Any], **fields: Any) -> EngineWorker:
    worker = EngineWorker(connector(namespace(remote=url, **fields)))
    worker.start()
    close_later.append(worker)
    return worker


def test_ask_says_the_same_through_the_server(
    url: str, bundled_worker: EngineWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    book = write_book(tmp_path, BOOK)
    told: dict[str, Any] = {}
    for name, remote in (("here", None), ("there", url)):
        if remote is None:
            monkeypatch.setattr("app.cli.opening.open_engine", lambda _: cast(Any, bundled_worker)._engine)
        assert ask.run(namespace(files=[book], remote=remote)) == 0
        told[name] = json.loads(capsys.readouterr().out.splitlines()[-1])
        monkeypatch.undo()
    (here,), there = told["here"]["methods"].values(), told["there"]["methods"]["remote"]
    assert here["text"] == there["text"] and here["new_tokens"] == there["new_tokens"]
    assert told["here"]["prompt_tokens"] == told["there"]["prompt_tokens"], "the server's own count"
    assert there["ms_per_token"] > 0 and there["token_ids"] == [] and not there["exact"]
    assert KEY not in json.dumps(told)


def test_the_app_reads_asks_and_asks_again_through_the_server(url: str, tmp_path: Path, close_later: list[Any]) -> None:
    worker = remote_worker(url, close_later)
    session = worker.sessions.get(opened(worker, write_book(tmp_path, BOOK)))
    assert session.book and session.is_read and session.book.num_tokens > 200
    config = GenerationConfig(method="triforce", max_new_tokens=12)
    first = [e for e in worker.answer(session.id, "Who kept the light?", config) if isinstance(e, Finished)][-1]
    assert first.method == "remote" and first.reused_tokens > 200, "the server had read the book ahead"
    again = [e for e in worker.regenerate(session.id, config) if isinstance(e, Finished)][-1]
    assert again.text == first.text and session.exchanges[-1].finished.text == again.text
    list(worker.answer(session.id, "Where?", config))
    last = session.exchanges[-1].finished
    assert last.prompt_tokens - last.reused_tokens < 40, "the conversation goes on from its own words"
    assert session.num_talk > first.stats.new_tokens
    with pytest.raises(CoreError, match="without --remote"):
        list(worker.race(session.id, "Who?", [config, config]))


def test_an_answer_that_was_stopped_stays_and_is_not_gone_on_with(tmp_path: Path, close_later: list[Any]) -> None:
    with fake_server() as server:
        worker = remote_worker(server.url, close_later)
        with pytest.raises(CoreError, match="refuses"):  # and the engine's thread goes on
            opened(worker, write_book(tmp_path, BOOK))
        server.answers(GOOD)
        session = worker.sessions.get(opened(worker, write_book(tmp_path, BOOK)))
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
    tmp_path: Path, close_later: list[Any]
) -> None:
    with fake_server() as server:
        server.answers(GOOD)
        worker = remote_worker(server.url, close_later)
        session = worker.sessions.get(opened(worker, write_book(tmp_path, BOOK)))
        list(worker.answer(session.id, "Who kept the light?", GenerationConfig()))
        dialogue, state = session.dialogue, worker.state
        assert dialogue is not None
        (exchange,), node = session.exchanges, dialogue.path[-1]
        assert exchange.finished.text == "The light house." and exchange.model.startswith("big @ ")
        assert "exactness not seen" in answer_footer(dialogue, node, last=True)
        assert "reread" not in [key for key, _, _ in figures(exchange)]
        strip = strip_of(session.trace, "")
        assert "Remote" in strip and "Accepted" not in strip and "exact" not in strip and "tokens/s" in strip
        head = masthead(state)
        assert "on this machine" not in head and "are sent to http://127.0.0.1" in head and "Race, Inside" in head
        page = PageOf(worker, session.id, elsewhere=True)
        shown = page.state()
        assert "are sent to" in shown["note"] and "setting:thinking" in shown
        assert not {"setting:method", "setting:variant"} & {*shown}
        assert shown["where"] == "" and session.trace is not None and session.trace.records == []
        for text in [system(page.site, session)]:
            assert "are sent" in text and "nothing is sent anywhere" not in text and KEY not in text
            assert "not quantised" not in text and "GiB of" not in text.partition("Machine")[0]
        for elsewhere in (False, True):
            blocks = build_page(Site(worker, elsewhere=elsewhere)).blocks.values()
            tabs = {one.label for one in blocks if type(one).__name__ == "Tab"}
            assert tabs == {"Read", "Library", "System"} | ({"Race", "Inside"} if not elsewhere else set())


def test_the_key_is_written_nowhere(tmp_path: Path, close_later: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from app.conversations.store import Conversations

    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with fake_server() as server:
        server.answers(GOOD)
        worker = remote_worker(server.url, close_later, remote_key=None)
        worker.conversations = Conversations(tmp_path / "data")
        session_id = opened(worker, write_book(tmp_path, BOOK))
        list(worker.answer(session_id, "Who kept the light?", GenerationConfig()))
        worker.conversations.close()
        assert server.seen[-1][2]["authorization"] == f"Bearer {KEY}"
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) >= 2 and not any(KEY.encode() in file.read_bytes() for file in files)


def test_a_server_that_is_down_is_the_page_s_banner(close_later: list[Any], tmp_path: Path) -> None:
    with fake_server() as server:
        url = server.url
    worker = remote_worker(url, close_later)
    *_, state = worker.states()
    assert isinstance(state, LoadFailed) and "cannot be reached" in state.error.problem


def test_what_a_server_decides_is_no_option(arguments: argparse.Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    for fields in ({"device": "cpu"}, {"method": "triforce"}, {"saved": True}, {"token_ids": True}):
        with pytest.raises(InvalidSetting, match=f"--{next(iter(fields)).replace('_', '-')}"):
            connector(namespace(remote="http://x", **fields))
    arguments.remote, arguments.device = "ftp://x", "auto"
    with pytest.raises(InvalidSetting, match="address of a server"):
        serve_page.run(arguments)
    for command in ("race", "bench", "serve"):
        with pytest.raises(SystemExit):
            launch.parse_arguments(
                ["--remote", "http://x", command, *(["f", "-q", "Who?"] if command == "race" else [])], TOOLS
            )
        assert "--remote" in capsys.readouterr().err


def test_an_unencrypted_way_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    connector(namespace(remote="http://gpu.example:8000"))
    assert "unencrypted" in (told := capsys.readouterr().err) and KEY not in told
    connector(namespace(remote="https://gpu.example:8000"))
    connector(namespace(remote="http://127.0.0.1:8000"))
    assert capsys.readouterr().err == ""
    assert KEY not in os.environ.get(KEY_VARIABLE, "")
