"""`race --remote`: against a server of this program, in a process of its own, and against a foreign one."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import launch as launcher
from app.remote.connecting import KEY_VARIABLE
from core.decoding.registry import FASTEST
from tests.app.fakes import write_book
from tests.app.remote.fake_server import DONE, GOOD, FakeServer, event, fake_server, json_reply, says, stream, used
from tests.app.server.openai.servers import free_port, wait_for

ROOT = Path(__file__).resolve().parents[3]
BOOK = "Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. Arthur Nash mended nets there. " * 12
KEY = "the-key-of-the-server"
Race = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    """The address of `serve` with the bundled pair."""
    port = free_port()
    command = [sys.executable, "launch.py", "serve", "--no-venv", "--port", str(port), "--context", "1024"]
    command += ["--device", "cpu", "--api-key", KEY]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: answers(port) or server.poll() is not None, seconds=300)  # it loads the pair first
        assert server.poll() is None, f"it ended with {server.returncode}"
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(120)


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.fixture
def foreign() -> Iterator[FakeServer]:
    with fake_server() as server:
        server.counts_words()
        server.answers(GOOD)
        yield server


@pytest.fixture
def race(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Race:
    book = write_book(tmp_path, BOOK)

    def run(url: str, *options: str) -> tuple[int, dict[str, Any], str]:
        command = ["race", str(book), "-q", "Who kept the light?", "--remote", url, "--remote-key", KEY, "--no-venv"]
        code = launcher.main([*command, "--max-new-tokens", "16", "--json", *options])
        out, err = capsys.readouterr()
        assert KEY not in out + err
        return code, json.loads(out) if out else {}, err

    return run


def test_methods_of_our_own_server_are_raced(ours: str, race: Race) -> None:
    code, report, log = race(ours)
    assert code == 0 and "cannot be kept fair" in log
    assert list(report["methods"]) == ["autoregressive", FASTEST] and report["turns"] == "one after the other"
    plain, fast = report["methods"].values()
    assert plain["text"] == fast["text"] and report["equality"]["verdict"] == "identical"
    assert plain["new_tokens"] == fast["new_tokens"] and plain["tokens_per_full_pass"] == 1
    assert fast["tokens_per_full_pass"] > 1 and set(fast["acceptance"]) == {"level1", "level2"}
    for lane in (plain, fast):
        assert lane["ms_per_token"] > 0, "measured here"
        assert lane["server"]["decode_seconds"] > 0 and lane["server"]["tokens_per_second"] > 0, "and there"
    assert report["speedup"] > 0 and report["server"].startswith(ours)


def test_lanes_are_those_that_were_named(ours: str, race: Race) -> None:
    code, report, _ = race(ours, "--methods", "lookup,autoregressive,h2o")
    assert code == 0 and list(report["methods"]) == ["lookup", "autoregressive", "h2o"]
    assert report["methods"]["h2o"]["exact"] is False and report["equality"]["verdict"] == "identical"
    code, report, log = race(ours, "--methods", "telepathy")
    assert code == report["error"]["exit_code"] == 2 and log.count("\n") == 1
    assert "does not offer the method 'telepathy'" in log and "triforce" in log


def test_a_foreign_server_has_one_lane_and_that_is_said(foreign: FakeServer, race: Race) -> None:
    code, report, log = race(foreign.url, "--pages", "1", "--token-ids")
    assert code == 0 and "does not say how it decodes" in log and report["prompt_token_ids"] is None
    assert list(report["methods"]) == ["remote"] and report["methods"]["remote"]["text"] == "The light house."
    assert report["methods"]["remote"]["server"] is None and report["speedup"] is None
    assert report["equality"]["verdict"] == "not_comparable" and len(foreign.chats) == 1
    assert race(foreign.url, "--pages", "7")[0] == 2 and len(foreign.chats) == 1
    code, _, log = race(foreign.url, "--methods", "autoregressive,triforce")
    assert code == 2 and "its methods cannot be chosen" in log and log.count("\n") == 1


def offers_two_methods(server: FakeServer) -> None:
    card = {"id": "big", "object": "model", "owned_by": "triforce-reader", "max_model_len": 4096}
    methods = ["triforce", "autoregressive"]
    server.tells("/v1/models", json_reply({"object": "list", "data": [{**card, "triforce": {"methods": methods}}]}))


def test_texts_that_part_are_told_and_not_judged(foreign: FakeServer, race: Race) -> None:
    offers_two_methods(foreign)
    told = event(choices=[], triforce={"exact": True, "tokens_per_second": "many", "decode_seconds": 0.5})
    foreign.answers(*(stream(says(text), says("", "stop"), told, used(50, 4, 48), DONE) for text in ("one", "two")))
    code, report, _ = race(foreign.url)
    assert code == 0 and report["equality"]["verdict"] == "different" and "logits" in report["equality"]["because"]
    assert report["methods"]["triforce"]["server"] == {"decode_seconds": 0.5}, "what is no number is left out"
    code, report, _ = race(foreign.url, "--temperature", "0.7")
    assert report["equality"]["verdict"] == "not_comparable"


def test_lanes_that_only_thought_or_thought_otherwise_are_not_identical(foreign: FakeServer, race: Race) -> None:
    offers_two_methods(foreign)
    huge = event(choices=[], triforce={"exact": True, "tokens_per_second": 10**400, "decode_seconds": 0.5})

    def thinks(thought: str, *rest: bytes) -> Any:
        said = event(choices=[{"index": 0, "delta": {"reasoning_content": thought}, "finish_reason": None}])
        return stream(said, *rest, huge, used(50, 4, 48), DONE)

    foreign.answers(*(thinks(thought, says("", "length")) for thought in ("Hm", "Oh")))
    code, report, _ = race(foreign.url)
    assert code == 0 and report["equality"]["verdict"] == "not_comparable"
    assert report["methods"]["triforce"]["server"] == {"decode_seconds": 0.5}, "no server is that fast"
    foreign.answers(*(thinks(thought, says("Yes."), says("", "stop")) for thought in ("Hm", "Oh")))
    assert race(foreign.url)[1]["equality"]["verdict"] == "different"


def test_options_of_this_machine_are_refused(foreign: FakeServer, race: Race) -> None:
    offers_two_methods(foreign)
    for options, told in (
        (["--sequential"], "--sequential"),
        (["--kv-bits", "16"], "--kv-bits"),
        (["--thinking", "off"], "no switch for thinking"),
    ):
        code, _, log = race(foreign.url, *options)
        assert code == 2 and told in log and foreign.chats == []


def test_what_a_server_cannot_do_is_one_line(foreign: FakeServer, race: Race, tmp_path: Path) -> None:
    code, _, log = race(foreign.url, "--report", str(tmp_path / "kept.html"))
    assert code == 2 and "lanes in turns, which a server does not have" in log and foreign.chats == []
    with pytest.raises(SystemExit):
        launcher.main(["bench", "--remote", foreign.url, "--no-venv"])
