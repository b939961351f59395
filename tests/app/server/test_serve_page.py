"""The app's start: what it refuses, and what it says then."""

import argparse
import os
import socket
from pathlib import Path

import pytest

from app.server import serve_page
from core.errors import CoreError, InvalidSetting, NotPossibleHere, UnknownModel


@pytest.mark.parametrize("changed", [{"host": "0.0.0.0"}, {"host": "192.168.0.7"}, {"host": "::"}, {"share": True}])
def test_other_machines_need_a_password_that_is_not_short(
    changed: dict[str, object], arguments: argparse.Namespace
) -> None:
    vars(arguments).update(changed)
    with pytest.raises(InvalidSetting, match="--auth"):
        serve_page.run(arguments)
    arguments.auth = "reader:7letter"
    with pytest.raises(InvalidSetting, match="8 characters or more") as caught:
        serve_page.run(arguments)
    assert "7letter" not in str(caught.value)
    serve_page.check_exposure("0.0.0.0", share=True, auth=serve_page.credentials("reader:secret:with colon"))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_this_machine_needs_none(host: str) -> None:
    for auth in (None, ("reader", "7letter")):
        serve_page.check_exposure(host, share=False, auth=auth)


def test_the_password_may_stand_in_the_environment(
    arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments.model = "no-such-model"
    arguments.share = True
    monkeypatch.setenv("TRIFORCE_AUTH", "reader:long enough")
    with pytest.raises(UnknownModel):  # what comes next
        serve_page.run(arguments)
    assert "TRIFORCE_AUTH" not in os.environ, "no parser of a document inherits it"
    with pytest.raises(InvalidSetting, match="--auth"):
        serve_page.run(arguments)


def test_half_a_password_is_refused() -> None:
    assert serve_page.credentials("reader:secret:with colon") == ("reader", "secret:with colon")
    for auth in ("reader", "reader:", ":secret", ""):
        with pytest.raises(InvalidSetting, match="NAME:PASSWORD"):
            serve_page.credentials(auth)


def test_a_port_in_use_is_one_line_with_an_action(arguments: argparse.Namespace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", arguments.port))
        taken.listen()
        with pytest.raises(NotPossibleHere) as caught:
            serve_page.run(arguments)
    assert str(arguments.port) in caught.value.problem and f"--port {arguments.port + 1}" in caught.value.hint


def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="not an address of this machine"):
        serve_page.check_port("203.0.113.7", 7860)


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(CoreError, match="--data-dir"):
        serve_page.data_dir(tmp_path / "file" / "data")


def test_a_start_deletes_what_a_killed_program_had_unpacked(
    arguments: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[bool] = []

    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve_page, "sweep_unpacked", lambda: swept.append(True))
    monkeypatch.setattr(serve_page, "serve", ended)
    arguments.data_dir, arguments.port = tmp_path, 0
    assert serve_page.run(arguments) == serve_page.INTERRUPTED and swept == [True]


def test_uploads_lie_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED", "no_proxy"):
        monkeypatch.setenv(name, "")
    serve_page.prepare_process(serve_page.data_dir(tmp_path / "data"))
    assert Path(os.environ["GRADIO_TEMP_DIR"]).is_relative_to(tmp_path)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["NO_PROXY"].split(",")[:2] == ["intranet", "127.0.0.1"]
