"""What requests may carry: nothing makes the server fetch, and nobody fills the disk."""

import argparse
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import safehttpx

from app.context.upload_files import FOLDER, Claim, claim, forget, size_bytes, sweep
from app.runtime.worker import EngineWorker
from app.server import bodies
from app.ui.assets import ASSETS
from core.errors import CoreError
from tests.app.conftest import Served
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine, place, wait_for, write_book
from tests.app.remote import fake_server
from tests.app.server.asgi import client, raw
from tests.app.ui.pages import PageOf, act_id

pytestmark = GRADIO_WARNINGS
ServeOn = Callable[[EngineWorker], str]
META = {"_type": "gradio.FileData"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}
PART = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\n'


def test_nothing_that_a_client_sends_makes_the_server_fetch(
    served_page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = served_page.address

    async def passes(hostname: str) -> str:
        """Gradio's check for local addresses would hide that it fetches."""
        return "127.0.0.1"

    monkeypatch.setattr(safehttpx, "async_validate_url", passes)
    with fake_server.fake_server() as outside, client() as browser:
        outside.tells("/book.txt", fake_server.raw(b"words", kind="text/plain"))
        url = f"http://books.example:{outside.server_address[1]}/book.txt"
        file = {"path": url, "meta": META}
        payloads: list[Any] = [[file], [{"path": "/nowhere", "url": url, "meta": META}], [{"er": [file]}], file, [url]]
        for payload in payloads:
            act = {"session": "0" * 32, "id": act_id(), "act": "open", "values": {"files": payload}}
            answer = browser.post(f"{address}page/act", json=act)
            assert (answer.status_code, answer.json()) == (200, False)
        assert outside.seen == []


def test_only_what_the_page_asks_for_is_there(served_page: Served) -> None:
    files = (next((ASSETS / "models").rglob("*.safetensors")), ASSETS / "static" / "css" / "mark.svg", bodies.__file__)
    urls = ("http://books.example/x", "HTTP://books.example/x", "http%3A//books.example/x")
    with client(base_url=served_page.address) as browser:
        for path in (
            "monitoring/x", "logout", "docs", "openapi.json", "robots.txt", "pwa_icon/2", "gradio_api/token",
            *(f"gradio_api/{name}/open" for name in ("call", "call/v2", "api", "run")), "gradio_api/queue/join",
            "gradio_api/component_server", "gradio_api/deep_link?session_hash=x", "gradio_api/vibe-code",
            "gradio_api/dev/reload",
            "gradio_api/run-history/buckets", "gradio_api/stream/x", "gradio_api//upload",
            "gradio_api/custom_component/x/client/A/%0AFAKE", *(f"gradio_api/file={file}" for file in files),
            *(f"gradio_api/{name}{url}" for name in ("file=", "file/", "proxy=") for url in urls),
        ):  # fmt: skip
            for method in ("GET", "POST"):
                answer = browser.request(method, path)
                assert (answer.status_code, answer.text) == (404, bodies.NOTHING_HERE), path
        assert browser.get("favicon.ico").status_code == 200


# -------------------- bytes


def post_file(browser: httpx.Client, address: str, content: bytes, name: str = "a.txt") -> httpx.Response:
    return browser.post(f"{address}gradio_api/upload", files={"files": (name, content)})


def test_no_answer_names_a_folder_of_this_machine(served_page: Served) -> None:
    address, data_dir = served_page.address, served_page.arguments.data_dir
    with client() as browser:
        (path,) = post_file(browser, address, b"words").json()
        assert len(Path(path).parts) == 2 and not Path(path).is_absolute()
        assert (data_dir / FOLDER / path).read_bytes() == b"words", "which the page sends back"
        told = "".join(browser.get(address + place).text for place in ("", "config", "gradio_api/info"))
    assert len(told) > 10_000 and not [folder for folder in (data_dir, ASSETS.parent) if str(folder) in told]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of kilobytes, few places, little patience."""
    limits = {"MOST_POSTED": 20_000, "MOST_STORED": 50_000, "MOST_MESSAGE": 10_000, "MEASURE_BYTES": 1}
    for name, value in {**limits, "STALLED_SECONDS": 2.0, "MOST_MESSAGES": 2, "MOST_UPLOADS": 2}.items():
        monkeypatch.setattr(bodies, name, value)


@pytest.mark.usefixtures("narrow")
def test_one_request_and_all_files_together_have_bounds(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace
) -> None:
    address, folder = serve(worker), arguments.data_dir / FOLDER
    with client() as browser:
        assert post_file(browser, address, b"x" * 30_000).status_code == 413
        assert browser.post(f"{address}page/act", content=b" " * 10_001).status_code == 413
        endless = (part for part in (PART, *[b"x" * 10_000] * 9, b"\r\n--b--\r\n"))
        answer = browser.post(f"{address}gradio_api/upload", content=endless, headers=MULTIPART)
        assert answer.status_code == 413 and "too long" in answer.text, "without a Content-Length, too"
        assert size_bytes(folder) == 0, "what had come of it is deleted"
        statuses = [post_file(browser, address, bytes([number]) * 15_000).status_code for number in range(6)]
        assert statuses == [200, 200, 200, 413, 413, 413] and 45_000 <= size_bytes(folder) <= 50_000


@pytest.mark.usefixtures("narrow")
def test_a_disk_that_is_full_or_fills_up_is_told_and_nothing_stays(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, free = serve(worker), [bodies.SPARE_BYTES + 100]
    usage = lambda _: SimpleNamespace(free=free.pop() if free[1:] else free[0])  # noqa: E731
    monkeypatch.setattr(bodies.shutil, "disk_usage", usage)
    with client() as browser:
        answer = post_file(browser, address, b"x" * 2_000)
        assert (answer.status_code, answer.text) == (507, bodies.DISK_FULL)
        free[:] = [0, bodies.SPARE_BYTES + 100_000]  # by the time that it is measured again, others have filled it
        answer = post_file(browser, address, b"x" * 2_000)
        assert answer.status_code == 413 and bodies.DISK_FULL in answer.text
        assert list((arguments.data_dir / FOLDER).rglob("*.txt")) == []
        free[:] = [bodies.SPARE_BYTES + 100_000]
        assert post_file(browser, address, b"x" * 2_000).status_code == 200


@pytest.mark.usefixtures("narrow")
def test_unfinished_bodies_are_few_and_end(serve: ServeOn, worker: EngineWorker) -> None:
    address = serve(worker)

    def begun(path: str) -> socket.socket:
        """A request whose body never ends."""
        return raw(address, f"POST /{path}", b"--b", Content_Length="90", Content_Type=MULTIPART["Content-Type"])

    refusals = {"page/act": b"503", "gradio_api/upload": b"413"}
    lines = {path: [begun(path) for _ in range(3)] for path in refusals}
    for path, refusal in refusals.items():
        assert sorted(line.recv(100).split()[1] for line in lines[path]) == [b"400", b"400", refusal], path
        for line in lines[path]:
            line.close()
    with client() as browser:
        assert post_file(browser, address, b"words").status_code == 200, "places are given back"
        assert browser.post(f"{address}page/act", json={}).status_code == 400


def test_an_upload_that_breaks_off_leaves_nothing(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace
) -> None:
    address, seen = serve(worker), threading.Event()

    def half() -> Iterator[bytes]:
        yield PART + b"x" * 200_000
        wait_for(lambda: size_bytes(arguments.data_dir / FOLDER) > 0)
        seen.set()
        raise ConnectionError("the reader's machine went to sleep")

    headers = {**MULTIPART, "Content-Length": "300000"}
    with client() as browser, pytest.raises(ConnectionError):
        browser.post(f"{address}gradio_api/upload", content=half(), headers=headers)
    assert seen.is_set()
    wait_for(lambda: list((arguments.data_dir / FOLDER).rglob("*")) == [])


def test_the_copy_goes_before_the_book_is_read(
    serve: ServeOn, worker: EngineWorker, engine: FakeEngine, arguments: argparse.Namespace
) -> None:
    address, page, folder = serve(worker), PageOf(worker), arguments.data_dir / FOLDER
    engine.reading.clear()
    with client() as browser:
        files = post_file(browser, address, b"It was a dark and stormy night. " * 9).json()
    assert page.does("open", files=files)
    wait_for(lambda: "Reading" in page.state()["book"])
    wait_for(lambda: list(folder.rglob("*.txt")) == [] == list(folder.glob("?" * 64)))
    assert not page.session.is_read, "the model has not read it"
    engine.reading.set()
    page.rests()
    assert page.session.is_read


def test_a_connection_that_asks_nothing_soon_is_closed(
    serve: ServeOn, worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = httpx.URL(serve(worker))
    monkeypatch.setattr("app.server.heads.HEAD_SECONDS", 0.3)
    with socket.create_connection((address.host, address.port or 80), SECONDS) as silent:
        assert silent.recv(1) == b""


# -------------------- the folder


def test_a_page_opens_and_deletes_nothing_in_the_uploads_of_another_program(
    worker: EngineWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("ours", "theirs"):
        write_book(place(tmp_path / program))
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "ours" / FOLDER))
    before, page = sorted(tmp_path.rglob("*")), PageOf(worker)
    for named in (str(tmp_path / "theirs/uploads/digest/book.txt"), "../../theirs/uploads/digest/book.txt"):
        assert not page.does("open", files=[named]) and "no file that was dropped here" in page.problem
    assert sorted(tmp_path.rglob("*")) == before
    assert page.does("open", files=["digest/book.txt"])
    page.rests()


def test_files_that_nobody_opens_hold_nobody_up_and_what_is_being_read_stays(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace
) -> None:
    address, folder = serve(worker), arguments.data_dir / FOLDER
    with client() as browser:
        for name in ("reading.txt", "first.txt", "second.txt", "third.txt"):
            (path,) = post_file(browser, address, name.encode(), name).json()
            file = claim(folder / path, folder).own if name == "reading.txt" else folder / path
            if name in ("reading.txt", "first.txt"):
                os.utime(file, (0, 0))
    assert {file.name for file in folder.rglob("*.txt")} == {"reading.txt", "second.txt", "third.txt"}


def stored(folder: Path) -> Path:
    """A file where Gradio would store it: equal ones of two pages at one place."""
    return write_book(folder, "words", "arrived").replace(place(folder) / "book.txt")


def claimed(file: Path) -> Claim:
    return claim(file, file.parent.parent)


def test_a_page_deletes_its_own_copy_alone_and_nothing_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = claimed(stored(tmp_path)), claimed(stored(tmp_path))
    forget([first])
    assert second.own.read_text(encoding="utf-8") == "words" and second.own.name == "book.txt"
    again = stored(tmp_path)  # by a third page, which has not opened it yet
    forget([second])
    assert again.exists()
    forget([claimed(again)])
    assert list((tmp_path / FOLDER).iterdir()) == []

    def refuse(*_: object) -> None:
        raise OSError("no links")

    monkeypatch.setattr(os, "link", refuse)
    taken = claimed(stored(tmp_path))
    assert taken.own.read_text(encoding="utf-8") == "words"
    forget([taken])
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.parametrize(
    "named",
    [
        "uploads", "uploads/digest", "uploads/book.txt", "uploads/digest/inner/book.txt", "elsewhere/digest/book.txt",
        "uploads/digest/link.txt", "uploads/link/book.txt", "uploads/digest/gone.txt", "uploads/digest/inner",
        "uploads/digest/../digest/book.txt", "other/uploads/digest/book.txt", "uploads/uploads/digest/book.txt", "own",
    ],
)  # fmt: skip
def test_a_page_claims_only_a_file_that_was_dropped(named: str, tmp_path: Path) -> None:
    """A page may name any path."""
    data = tmp_path / "data"
    others = ("elsewhere/digest", "other/uploads/digest", "uploads/uploads/digest")
    for folder in ("uploads/digest", "uploads/digest/inner", "uploads", *others):
        (data / folder).mkdir(parents=True, exist_ok=True)
        write_book(data / folder, "words")
    (data / "uploads/digest/link.txt").symlink_to(data / "elsewhere/digest/book.txt")
    (data / "uploads/link").symlink_to(data / "elsewhere/digest", target_is_directory=True)
    own = claimed(stored(data)).own  # of another page, which is reading it
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CoreError, match="no file that was dropped here"):
        claim(own if named == "own" else data / named, data / FOLDER)
    assert sorted(tmp_path.rglob("*")) == before
    assert claim(data / "uploads/digest/book.txt", data / FOLDER).own.is_file()


@pytest.mark.skipif(os.name != "posix", reason="links need rights")
def test_a_sweep_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    book = write_book(tmp_path / "books")
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "link").symlink_to(tmp_path / "books")
    sweep(tmp_path / FOLDER)
    assert book.exists() and list((tmp_path / FOLDER).iterdir()) == []
