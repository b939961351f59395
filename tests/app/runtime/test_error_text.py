"""Errors on their way to pages and clients: no folders of this machine, nothing that an exception said."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.context.uploads import Upload
from app.runtime.error_text import EngineFault, problem_and_hint, without_paths
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui import render
from app.ui.models.view import refused
from app.ui.reading.book_view import failure
from core.errors import CoreError, DamagedAssets
from core.models.hub import catalog
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine
from tests.app.server.openai.servers import ServedEngine, served
from tests.app.ui.pages import PageOf

pytestmark = GRADIO_WARNINGS
SECRET = "/srv/Reader Name/secret/model.safetensors"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("The library /srv/books/shelf cannot be made.", "The library …/shelf cannot be made."),
        (r"The library D:\books\new\shelf cannot be made.", "The library …/shelf cannot be made."),
        (r"No share \\server\books\shelf.", "No share …/shelf."),
        ("~/.triforce-reader/shelf is full.", "…/shelf is full."),
        (f"{Path.home()}/a b/c", "…/c"),
        ("Neither /srv/a b/c d/e f nor /srv/g/h is there.", "Neither …/e f nor …/h is there."),
        ("No /srv/it's mine/secret/b.txt", "No …/b.txt"),
        ("No '/srv/secret/a.txt'.", "No '…/a.txt'."),
        ("No /srv/a (old)/secret/b.txt (in /srv/secret/c.txt).", "No …/b.txt (in …/c.txt)."),
        (r"No C:\Program Files (x86)\secret\b.txt", "No …/b.txt"),
        (f"({tempfile.gettempdir()}/upload/a.txt)", "(…/a.txt)"),
        (f"Restore {catalog.ROOT}/assets", "Restore …/assets"),
        ("It is at https://example.org/a/b/c or in assets/models/harbour.", None),
        ("Write and/or read 1/2 of --auth NAME:PASSWORD.", None),
        ("Run: git checkout -- assets/models/harbour", None),
    ],
)
def test_folders_are_left_out(text: str, shown: str | None) -> None:
    assert without_paths(text) == (text if shown is None else shown)


def test_everything_that_shows_an_error_leaves_them_out(
    worker: EngineWorker, engine: FakeEngine, session: Session, tmp_path: Path
) -> None:
    error = DamagedAssets("The weights /srv/secret/a.bin are damaged.", hint="Remove /srv/secret/a.bin.")
    upload = Upload(1, "a.txt")
    upload.fail(error)
    for html in (render.problem(error), failure(upload), refused(error)):
        assert "secret" not in html and html.count("…/a.bin") == 2
    raw = CoreError("It broke (OSError: [Errno 2] a secret).", hint="Try again.")
    assert problem_and_hint(raw) == ("It broke (OSError).", "Try again.")
    assert "terminal" in problem_and_hint(EngineFault(OSError(2, "No such file", SECRET)))[1], "which has the traceback"
    page = PageOf(worker, session.id)
    engine.enqueue(OSError(2, "No such file", SECRET))
    page.asks("Why?")
    seen = "".join(str(page.state(tab)) for tab in ("read", "library", "race", "inside"))
    assert "The engine stopped with an error (FileNotFoundError)." in seen
    assert "secret" not in seen and "No such file" not in seen
    for path in ("/etc/passwd", str(catalog.ROOT / "README.md"), str(tmp_path / "nothing")):
        assert not page.does("open", files=[path])
        assert "no file that was dropped here" in page.problem and "/" not in page.problem


def test_a_client_of_the_server_is_told_no_more(start_worker: Callable[..., EngineWorker]) -> None:
    engine = ServedEngine()
    with served(start_worker(engine)) as url, httpx.Client(trust_env=False, timeout=SECONDS, base_url=url) as client:
        ask = {"model": "fake", "messages": [{"role": "user", "content": "Why?"}]}
        for error, status in ((OSError(2, "No such file", SECRET), 500), (CoreError(SECRET, hint="Look."), 400)):
            engine.enqueue(error)
            answer = client.post("/v1/chat/completions", json=ask)
            assert answer.status_code == status and "secret" not in answer.text and "such file" not in answer.text
        assert "column" in client.post("/v1/chat/completions", content=b'{"model": }').text
        long: Any = {**ask, "model": "x" * 10_000}
        assert len(client.post("/v1/chat/completions", json=long).text) < 300
