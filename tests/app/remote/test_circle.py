"""The full circle: the app and `ask` on a server that is ours; and the page's words about what it cannot see."""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from app.cli import ask
from app.cli.serve import loaded
from app.conversations.figures import figures
from app.remote.connecting import KEY_VARIABLE, connector
from app.runtime.events import LoadFailed
from app.runtime.worker import EngineWorker
from app.server import serve_page
from app.server.serve_page import load
from app.ui.header import masthead
from app.ui.inside.tab import InsideHandlers
from app.ui.reading.answer_footer import answer_footer
from app.ui.reading.live_strip import LiveStrip
from app.ui.retrieval_map.view import where
from app.ui.system.report import report
from app.ui.system.tab import SystemHandlers
from app.ui.system.view import system
from core.config import EngineConfig, GenerationConfig
from core.errors import CoreError, InvalidSetting
from core.generation.events import Finished
from tests.app.fakes import opened, write_book
from tests.app.remote.fake_server import GOOD, fake_server
from tests.app.server.openai.servers import served

BOOK = "Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. Arthur Nash mended nets there. " * 12
KEY = "the-key-of-the-server"


@pytest.fixture(scope="module")
def engine_worker() -> Iterator[EngineWorker]:
    worker = EngineWorker(lambda: load(EngineConfig(device="cpu", context=2048)))
    worker.start()
    loaded(worker)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def url(engine_worker: EngineWorker) -> Iterator[str]:
    with served(engine_worker, key=KEY) as address:
        yield address


def namespace(**fields: Any) -> argparse.Namespace:
    known = {
        "model": None,
        "device": "auto",
        "context": None,
        "seed": 0,
        "self_draft_bits": None,
        "remote": None,
        "remote_key": KEY,
        "saved": False,
        "ocr": False,
        "token_ids": False,
        "thinking": None,
        "chapters": None,
        "pages": None,
        "data_dir": None,
    }
    known |= {"question": "Who kept the light?", "questions": None, "method": "triforce", "json": True}
    known |= {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 16}
    return argparse.Namespace(**known | fields)


@pytest.fixture
def close_later() -> Iterator[list[Any]]:
    kept: list[Any] = []
    yield kept
    for one in kept:
        one.close()


def remote_worker(url: str, close_later: list[Any], **fields: Any) -> EngineWorker:
    connect = connector(namespace(remote=url, **fields))

    def load_it() -> Any:
        engine, machine = connect()
        close_later.append(engine)
        return engine, machine

    worker = EngineWorker(load_it)
    worker.start()
    close_later.insert(0, worker)
    return worker


def test_ask_says_the_same_through_the_server(
    url: str, engine_worker: EngineWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    book = write_book(tmp_path, BOOK)
    told: dict[str, Any] = {}
    for name, remote in (("here", None), ("there", url)):
        if remote is None:
            monkeypatch.setattr("app.cli.ask.open_engine", lambda _: cast(Any, engine_worker)._engine)
        assert ask.run(namespace(files=[book], remote=remote)) == 0
        told[name] = json.loads(capsys.readouterr().out.splitlines()[-1])
        monkeypatch.undo()
    here, there = told["here"]["methods"]["triforce"], told["there"]["methods"]["remote-triforce"]
    assert here["text"] == there["text"] and here["new_tokens"] == there["new_tokens"]
    assert told["here"]["prompt_tokens"] == told["there"]["prompt_tokens"]
    assert there["exact"] and set(there["acceptance"]) == {"level1", "level2"}
    assert there["ms_per_token"] > 0
    assert KEY not in json.dumps(told)


def test_the_app_reads_asks_and_goes_on_through_the_server(url: str, tmp_path: Path, close_later: list[Any]) -> None:
    worker = remote_worker(url, close_later)
    session = worker.sessions.get(opened(worker, write_book(tmp_path, BOOK)))
    assert session.book and session.is_read and session.book.num_tokens > 200
    config = GenerationConfig(method="remote-autoregressive", max_new_tokens=3)
    first = [e for e in worker.answer(session.id, "Who kept the light?", config) if isinstance(e, Finished)][-1]
    assert first.method == "remote-autoregressive" and first.stop_reason == "max_new_tokens"
    assert first.reused_tokens > 200, "the server had read the book ahead"
    whole = GenerationConfig(method="remote-triforce", max_new_tokens=12)
    list(worker.go_on(session.id, whole))
    again = [e for e in worker.regenerate(session.id, whole) if isinstance(e, Finished)][-1]
    (exchange,) = session.exchanges
    assert again.text.startswith(first.text) and exchange.finished.text == again.text
    list(worker.answer(session.id, "Where?", whole))
    last = session.exchanges[-1].finished
    assert last.prompt_tokens - last.reused_tokens < 20, "the conversation goes on from its own tokens"
    with pytest.raises(CoreError, match="remote"):
        list(worker.race(session.id, "Who?", [config, whole]))


def test_the_page_says_what_it_cannot_see(tmp_path: Path, close_later: list[Any]) -> None:
    with fake_server() as server:
        server.counts_words()
        server.answers(GOOD)
        worker = remote_worker(server.url, close_later)
        session = worker.sessions.get(opened(worker, write_book(tmp_path, BOOK)))
        events = list(worker.answer(session.id, "Who kept the light?", GenerationConfig()))
        dialogue, state = session.dialogue, worker.state
        assert dialogue is not None
        (exchange,), node = session.exchanges, dialogue.path[-1]
        assert exchange.finished.text == "The light house." and exchange.model.startswith("big @ ")
        assert "exactness not seen" in answer_footer(dialogue, node, last=True)
        assert "reread" not in [key for key, _, _ in figures(exchange)]
        strip = LiveStrip("remote").apply(events).html()
        assert "Remote server" in strip and "exactness not seen" in strip and "does not tell" in strip
        head = masthead(state)
        assert "on this machine" not in head and "are sent to http://127.0.0.1" in head
        assert "cannot be seen from here" in where(session)
        handlers = InsideHandlers(worker, cast(Any, "picker"), cast(Any, "view"), cast(Any, "timer"))
        assert "cannot be seen from here" in handlers.pick(session.id, None)[cast(Any, "view")]
        shot = SystemHandlers(worker, *cast(Any, "abc")).snapshot(session.id, state)
        for text in (system(shot), report(shot)):
            assert "are sent" in text and "nothing is sent anywhere" not in text and KEY not in text
            assert "not quantised" not in text and "GiB of" not in text.partition("Machine")[0]


def test_the_key_is_written_nowhere(tmp_path: Path, close_later: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from app.conversations.store import Conversations

    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with fake_server() as server:
        server.counts_words()
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


def test_what_a_server_decides_is_no_option(arguments: argparse.Namespace) -> None:
    with pytest.raises(InvalidSetting, match="--device"):
        connector(namespace(remote="http://x", device="cpu"))
    arguments.remote, arguments.device = "ftp://x", "auto"
    with pytest.raises(InvalidSetting, match="address of a server"):
        serve_page.run(arguments)


def test_an_unencrypted_way_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    connector(namespace(remote="http://gpu.example:8000"))
    assert "unencrypted" in (told := capsys.readouterr().err) and KEY not in told
    connector(namespace(remote="https://gpu.example:8000"))
    connector(namespace(remote="http://127.0.0.1:8000"))
    assert capsys.readouterr().err == ""
    assert KEY not in os.environ.get(KEY_VARIABLE, "")
