"""Documents that tests hold true: the examples for Python run, and what the page on security names is there."""

import re
from pathlib import Path

import pytest

from app.context import upload_files
from app.server import bodies, request_guard, serve_page
from core.caches import policies
from core.models.hub.catalog import ROOT, find

DOCS = ROOT / "assets" / "docs"
SECURITY, PYTHON = ((DOCS / name).read_text(encoding="utf-8") for name in ("security.md", "python.md"))
EXAMPLES = dict(re.findall(r"^## ([^\n]+)$.*?```python\n(.*?)```", PYTHON, re.MULTILINE | re.DOTALL))
PRINTED = {
    "A model of the hub": "max_new_tokens|end_of_text",
    "A local folder": "lookup|retrieval|autoregressive",
    "A model in memory": r"\w",
    "A selection policy of your own": r"0\.\d|1\.0|None",
    "Reading events": r"read \d+ of \d+[\s\S]*tokens per full pass",
    "Keeping a text that was read": r"(\d{3,}) tokens from disk\n\d{3,} not read again",
    "Sampling with seeds": r"\[.*\]",
}


def test_every_wish_has_its_example() -> None:
    assert list(EXAMPLES) == list(PRINTED) and PYTHON.count("```python") == len(PRINTED)


@pytest.mark.parametrize("title", PRINTED)
def test_an_example_runs(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(policies, "SELECTION_POLICIES", dict(policies.SELECTION_POLICIES))
    code = EXAMPLES[title].replace("Qwen/Qwen3-8B", "harbour").replace("/models/my-llama", str(find("harbour").target))
    exec(compile(code, title, "exec"), {"__name__": "example"})
    assert re.search(PRINTED[title], capsys.readouterr().out), title


def test_the_bounds_of_security_are_those_of_the_code() -> None:
    gib, mib = 1 << 30, 1 << 20
    for told in (
        f"{bodies.MOST_POSTED // gib} GiB a request",
        f"{bodies.MOST_STORED // gib} GiB together",
        f"{bodies.MOST_MESSAGE // mib} MiB a message",
        f"at most {bodies.MOST_LOGIN >> 10} KiB",
        f"{bodies.MOST_MESSAGES} messages and {bodies.MOST_UPLOADS} uploads",
        f"after {bodies.STALLED_SECONDS:.0f} seconds without a byte",
        f"messages after {bodies.LONGEST_SECONDS / 60:.0f} minutes",
        f"uploads after {bodies.LONGEST_UPLOAD_SECONDS / 3600:.0f} hours",
        f"at most {upload_files.LONGEST_WAIT_SECONDS:.0f} seconds",
        f"at least {serve_page.SHORTEST_PASSWORD} characters",
        f"waits of 1 to {request_guard.LONGEST_WAIT_SECONDS:.0f} seconds",
        f"{serve_page.MOST_UPLOAD.removesuffix('mb')} MB a file",
    ):
        assert told in SECURITY, told
    assert request_guard.FREE_GUESSES == 5
