"""The page on security names tests that exist, and bounds that hold."""

import re
from pathlib import Path

from app.context import upload_files
from app.server import bodies, logins, serve_page

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "assets" / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_test_that_it_names_exists() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    sources = "".join(file.read_text(encoding="utf-8") for file in files)
    named = re.findall(r"`(?:tests/[\w/]*/)?(test_\w+\.py)`", PAGE)
    assert len(named) > 10 and not [name for name in named if name not in {file.name for file in files}]
    functions = re.findall(r"`(test_\w+)`", PAGE)
    assert len(functions) > 4 and not [name for name in functions if f"def {name}(" not in sources]


def test_its_bounds_are_those_of_the_code() -> None:
    gib, mib = 1 << 30, 1 << 20
    assert f"{bodies.MOST_POSTED // gib} GiB a request" in PAGE and f"{bodies.MOST_STORED // gib} GiB together" in PAGE
    assert f"{bodies.MOST_MESSAGE // mib} MiB a message" in PAGE
    assert f"at most {bodies.MOST_LOGIN >> 10} KiB" in PAGE
    assert f"{bodies.MOST_MESSAGES} messages and {bodies.MOST_UPLOADS} uploads" in PAGE
    assert f"after {bodies.STALLED_SECONDS:.0f} seconds without a byte" in PAGE
    assert f"messages after {bodies.LONGEST_SECONDS / 60:.0f} minutes" in PAGE
    assert f"uploads after {bodies.LONGEST_UPLOAD_SECONDS / 3600:.0f} hours" in PAGE
    assert f"at most {upload_files.LONGEST_WAIT_SECONDS:.0f} seconds" in PAGE and logins.FREE_GUESSES == 5
    assert f"at least {serve_page.SHORTEST_PASSWORD} characters" in PAGE
    assert f"waits of 1 to {logins.LONGEST_WAIT_SECONDS:.0f} seconds" in PAGE
    assert serve_page.MOST_UPLOAD == "300mb" and "300 MB a file" in PAGE
