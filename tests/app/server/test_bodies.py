"""What requests may carry: nothing makes the server fetch, and nobody fills the disk."""

import argparse
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import safehttpx

from app.context.upload_files import FOLDER, claim, drop_unopened, forget, size_bytes, sweep
from app.runtime.worker import EngineWorker
from app.server import bodies
from app.ui.assets import ASSETS
from core.errors import CoreError
from tests.app.conftest import Served
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine, wait_for
from tests.app.ui.pages import PageOf, act_id

pytestmark = GRADIO_WARNINGS
ServeOn = Callable[[EngineWorker], str]
META = {"_type": "gradio.FileData"}


class Outside(BaseHTTPRequestHandler):
    """A machine of the network that counts who comes."""

    hits: list[str]

    def do_GET(self) -> None:
        self.hits.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"words")

    do_HEAD = do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Its address, and who came; the check that Gradio has for local addresses lets it pass as one of the network."""
    hits: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Recorder", (Outside,), {"hits": hits}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    async def passes(hostname: str) -> str:
        return "127.0.0.1"

    monkeypatch.setattr(safehttpx, "async_validate_url", passes)
    yield f"http://books.example:{server.server_address[1]}/book.txt", hits
    server.shutdown()
    server.server_close()
    thread.join(SECONDS)


def test_nothing_that_a_client_sends_makes_the_server_fetch(
    served_page: Served, outside: tuple[str, list[str]]
) -> None:
    (url, hits), address = outside, served_page.address
    file = {"path": url, "meta": META}
    files: list[Any] = [
        [file],
        [{"path": url, "url": url, "orig_name": "book.txt", "size": 5, "meta": META}],
        [{"path": "/nowhere", "url": url, "meta": META}],
        [{"path": url.upper(), "meta": META}],
        [{"deep": [[{"er": file}]]}],
        file,
        [{"path": "ftp://books.example/x", "url": f"{address}gradio_api/file=x", "meta": META}],
    ]
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        for path in ("file=", "file/", "proxy="):
            for target in (url, url.replace("http", "HTTP", 1), url.replace(":", "%3A")):
                for method in ("GET", "HEAD"):
                    status = client.request(method, f"{address}gradio_api/{path}{target}").status_code
                    assert status == 404, f"{method} {path}{target}"
        for payload in [*files, url, [url]]:
            message = {"data": ["0" * 32, payload], "session_hash": "s", "fn_index": 0}
            for route in ("call/open", "call/v2/open", "api/open", "component_server", "run/open", "queue/join"):
                answer = client.post(f"{address}gradio_api/{route}", json=message)
                assert (answer.status_code, answer.text) == (404, bodies.NOTHING_HERE), route
            act = {"session": "0" * 32, "id": act_id(), "act": "open", "values": {"files": payload}}
            answer = client.post(f"{address}page/act", json=act)
            assert (answer.status_code, answer.json()) == (200, False)
    assert hits == []


def test_only_what_the_page_asks_for_is_there(served_page: Served) -> None:
    address = served_page.address
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        for path in (
            "monitoring/x", "logout", "docs", "openapi.json", "robots.txt", "pwa_icon/2", "gradio_api/token",
            "gradio_api/deep_link?session_hash=x", "gradio_api/vibe-code", "gradio_api/dev/reload",
            "gradio_api/run-history/buckets",
            "gradio_api/custom_component/x/client/A/%0AFAKE", "gradio_api//upload", "gradio_api/stream/x",
        ):  # fmt: skip
            for method in ("GET", "POST"):
                answer = client.request(method, address + path)
                assert (answer.status_code, answer.text) == (404, bodies.NOTHING_HERE), path


def test_files_of_the_project_are_not_served(served_page: Served) -> None:
    address = served_page.address
    weights = next(iter((ASSETS / "models").rglob("*.safetensors")))
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        for file in (weights, ASSETS / "static" / "css" / "mark.svg", Path(bodies.__file__)):
            assert client.get(f"{address}gradio_api/file={file}").status_code == 404, file
        assert client.get(f"{address}favicon.ico").status_code == 200


# -------------------- bytes


def post_file(client: httpx.Client, address: str, content: bytes, name: str = "a.txt") -> httpx.Response:
    return client.post(f"{address}gradio_api/upload", files={"files": (name, content)})


def test_no_answer_names_a_folder_of_this_machine(served_page: Served) -> None:
    address, data_dir = served_page.address, served_page.arguments.data_dir
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        (path,) = post_file(client, address, b"words").json()
        assert len(Path(path).parts) == 2 and not Path(path).is_absolute()
        assert (data_dir / FOLDER / path).read_bytes() == b"words", "which the page sends back"
        told = "".join(client.get(address + place).text for place in ("", "config", "gradio_api/info"))
    assert len(told) > 10_000 and not [folder for folder in (data_dir, ASSETS.parent) if str(folder) in told]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of kilobytes."""
    limits = {"MOST_POSTED": 20_000, "MOST_STORED": 50_000, "MOST_MESSAGE": 10_000, "MEASURE_BYTES": 1}
    for name, value in limits.items():
        monkeypatch.setattr(bodies, name, value)


@pytest.mark.usefixtures("narrow")
def test_one_request_and_all_files_together_have_bounds(
    serve: ServeOn, worker: EngineWorker, tmp_path: Path, arguments: argparse.Namespace
) -> None:
    address, folder = serve(worker), arguments.data_dir / FOLDER
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        assert post_file(client, address, b"x" * 30_000).status_code == 413
        assert client.post(f"{address}page/act", content=b" " * 10_001).status_code == 413
        boundary = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\n'
        endless = (part for part in (boundary, *[b"x" * 10_000] * 9, b"\r\n--b--\r\n"))
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = client.post(f"{address}gradio_api/upload", content=endless, headers=headers)
        assert answer.status_code == 413 and "too long" in answer.text, "without a Content-Length, too"
        assert size_bytes(folder) == 0, "what had come of it is deleted"
        statuses = [post_file(client, address, bytes([number]) * 15_000).status_code for number in range(6)]
        assert statuses == [200, 200, 200, 413, 413, 413] and 45_000 <= size_bytes(folder) <= 50_000


@pytest.mark.usefixtures("narrow")
def test_a_disk_that_is_full_or_fills_up_is_told_and_nothing_stays(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, free = serve(worker), [bodies.SPARE_BYTES + 100]
    monkeypatch.setattr(
        bodies.shutil, "disk_usage", lambda _: SimpleNamespace(free=free.pop() if free[1:] else free[0])
    )
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        answer = post_file(client, address, b"x" * 2_000)
        assert (answer.status_code, answer.text) == (507, bodies.DISK_FULL)
        free[:] = [0, bodies.SPARE_BYTES + 100_000]  # by the time that it is measured again, others have filled it
        answer = post_file(client, address, b"x" * 2_000)
        assert answer.status_code == 413 and bodies.DISK_FULL in answer.text
        assert list((arguments.data_dir / FOLDER).rglob("*.txt")) == []
        free[:] = [bodies.SPARE_BYTES + 100_000]
        assert post_file(client, address, b"x" * 2_000).status_code == 200


def test_unfinished_bodies_are_few_and_end(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"STALLED_SECONDS": 2.0, "MOST_MESSAGES": 2, "MOST_UPLOADS": 2}.items():
        monkeypatch.setattr(bodies, name, value)
    address = serve(worker)

    def begun(path: str) -> socket.socket:
        """A request whose body never ends."""
        line = socket.create_connection(("127.0.0.1", arguments.port), SECONDS)
        head = f"POST /{path} HTTP/1.1\r\nHost: 127.0.0.1:{arguments.port}\r\nContent-Length: 90\r\n"
        line.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n--b".encode())
        return line

    refusals = {"page/act": b"503", "gradio_api/upload": b"413"}
    lines = {path: [begun(path) for _ in range(3)] for path in refusals}
    for path, refusal in refusals.items():
        assert sorted(line.recv(100).split()[1] for line in lines[path]) == [b"400", b"400", refusal], path
    for line in [*lines["page/act"], *lines["gradio_api/upload"]]:
        line.close()
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        assert post_file(client, address, b"words").status_code == 200, "places are given back"
        assert client.post(f"{address}page/act", json={}).status_code == 400


def test_an_upload_that_breaks_off_leaves_nothing(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace
) -> None:
    address, seen = serve(worker), threading.Event()

    def half() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\n' + b"x" * 200_000
        wait_for(lambda: size_bytes(arguments.data_dir / FOLDER) > 0)
        seen.set()
        raise ConnectionError("the reader's machine went to sleep")

    with httpx.Client(trust_env=False, timeout=SECONDS) as client, pytest.raises(ConnectionError):
        client.post(
            f"{address}gradio_api/upload",
            content=half(),
            headers={"Content-Type": "multipart/form-data; boundary=b", "Content-Length": "300000"},
        )
    assert seen.is_set()
    wait_for(lambda: list((arguments.data_dir / FOLDER).rglob("*")) == [])


def test_the_copy_goes_before_the_book_is_read(
    serve: ServeOn, worker: EngineWorker, engine: FakeEngine, tmp_path: Path, arguments: argparse.Namespace
) -> None:
    address, page = serve(worker), PageOf(worker)
    engine.reading.clear()
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        files = post_file(client, address, b"It was a dark and stormy night. " * 9).json()
    assert page.does("open", files=files)
    wait_for(lambda: "Reading" in page.state()["book"])
    folder = arguments.data_dir / FOLDER
    wait_for(lambda: list(folder.rglob("*.txt")) == [] == list(folder.glob("?" * 64)))
    assert not page.session.is_read, "the model has not read it"
    engine.reading.set()
    page.rests()
    assert page.session.is_read


# -------------------- the folder


def stored(folder: Path, text: str = "words") -> Path:
    """A file where Gradio would store it: equal ones of two pages at one place."""
    place = folder / FOLDER / "digest"
    place.mkdir(parents=True, exist_ok=True)
    arrived = folder / "arrived"
    arrived.write_text(text, encoding="utf-8")
    return arrived.replace(place / "book.txt")


def test_a_page_does_not_delete_what_another_one_has_still_to_read(tmp_path: Path) -> None:
    first, second = claim(stored(tmp_path)), claim(stored(tmp_path))
    forget([first])
    assert second.own.read_text(encoding="utf-8") == "words" and second.own.name == "book.txt"
    again = stored(tmp_path)  # by a third page, which has not opened it yet
    forget([second])
    assert again.exists() and claim(again).own.exists()


@pytest.mark.parametrize(
    "named",
    [
        "uploads", "uploads/digest", "uploads/book.txt", "uploads/digest/inner/book.txt", "elsewhere/digest/book.txt",
        "uploads/digest/link.txt", "uploads/link/book.txt", "uploads/digest/gone.txt", "uploads/digest/inner",
        "uploads/digest/../digest/book.txt", "own",
    ],
)  # fmt: skip
def test_a_page_claims_only_a_file_that_was_dropped(named: str, tmp_path: Path) -> None:
    """A page may name any path; the folder of all uploads once moved out of the data folder."""
    data = tmp_path / "data"
    for place in ("uploads/digest", "uploads/digest/inner", "uploads", "elsewhere/digest"):
        (data / place).mkdir(parents=True, exist_ok=True)
        (data / place / "book.txt").write_text("words", encoding="utf-8")
    (data / "uploads/digest/link.txt").symlink_to(data / "elsewhere/digest/book.txt")
    (data / "uploads/link").symlink_to(data / "elsewhere/digest", target_is_directory=True)
    own = claim(stored(data)).own  # of another page, which is reading it
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CoreError, match="no file that was dropped here"):
        claim(own if named == "own" else data / named)
    assert sorted(tmp_path.rglob("*")) == before
    assert claim(data / "uploads/digest/book.txt").own.is_file()


def test_nothing_is_left_of_an_opening_not_even_where_files_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget([claim(stored(tmp_path))])
    assert list((tmp_path / FOLDER).iterdir()) == []

    def refuse(*_: object) -> None:
        raise OSError("no links")

    monkeypatch.setattr(os, "link", refuse)
    taken = claim(stored(tmp_path))
    assert taken.own.read_text(encoding="utf-8") == "words"
    forget([taken])
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_what_nobody_opens_goes_and_what_is_being_read_stays(tmp_path: Path) -> None:
    reading, unopened = claim(stored(tmp_path)), stored(tmp_path, "others")
    drop_unopened(tmp_path / FOLDER)
    assert unopened.exists(), "its page opens it in a moment"
    for file in (reading.own, unopened):
        os.utime(file, (0, 0))
    drop_unopened(tmp_path / FOLDER)
    assert reading.own.exists() and not unopened.exists()
    forget([reading])


def test_files_that_nobody_opens_hold_nobody_up(
    serve: Callable[[EngineWorker], str], worker: EngineWorker, arguments: argparse.Namespace
) -> None:
    address = serve(worker)
    for name in ("first.txt", "second.txt"):
        files = {"files": (name, name.encode())}
        assert (
            httpx.post(f"{address}gradio_api/upload", files=files, trust_env=False, timeout=SECONDS).status_code == 200
        )
        for waiting in (arguments.data_dir / FOLDER).rglob("first.txt"):
            os.utime(waiting, (0, 0))
    assert [file.name for file in (arguments.data_dir / FOLDER).rglob("*.txt")] == ["second.txt"]


@pytest.mark.skipif(os.name != "posix", reason="links need rights")
def test_a_sweep_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("words", encoding="utf-8")
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "link").symlink_to(tmp_path / "books")
    sweep(tmp_path / FOLDER)
    assert (tmp_path / "books" / "a.txt").exists() and list((tmp_path / FOLDER).iterdir()) == []
