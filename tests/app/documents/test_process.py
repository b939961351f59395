"""A parsing process: held to its limits from outside, drained, at most two at once, gone with its parent."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, NameObject

from app.documents import parsing
from app.documents.errors import ParsingLimitReached
from app.documents.parsing import (
    LIMITS,
    MOST_OTHER_BYTES,
    MOST_PARSERS,
    PROJECT,
    ParsingLimits,
    ParsingProcess,
    worker_messages,
)
from app.documents.readers import extract_parsed
from tests.app.documents.conftest import MakePdf, lines

SECONDS = 30.0


@pytest.mark.parametrize(
    ("code", "limits", "printed"),
    [
        ("held = bytearray(b'1') * (400 << 20); import time; time.sleep(100)", {"memory_bytes": 200 << 20}, b"memory"),
        ("while True: pass", {"cpu_seconds": 1}, b"time"),
        ("print('x' * 20_000_000)", {"chars": 0}, b"x" * MOST_OTHER_BYTES),
        ("import sys; sys.stderr.write('x' * (1 << 20) + 'the end'); print('done')", {}, b"done\n"),
    ],
    ids=["memory", "time", "a line", "complaints without end wait for no listener"],
)
def test_a_process_is_held_to_its_limits_where_the_system_does_not(
    code: str, limits: dict[str, int], printed: bytes
) -> None:
    assert list(lines(code, **limits)) == [printed]


ORPHAN = """
import sys, time
from app.documents.parsing import LIMITS, ParsingProcess
child = "import os, sys, time, types; from app.documents import worker\\n" \
        "def read(*_): print(os.getpid(), flush=True); time.sleep(1000); yield\\n" \
        "sys.modules['a.parser'] = types.SimpleNamespace(read=read)\\n" \
        f"worker.main(['a.parser', {__file__!r}, '2000000000', '900'])"
process = ParsingProcess(["-c", child], LIMITS)
while not (line := process.line()):
    pass
print(int(line), flush=True)
time.sleep(1000)
"""


def test_a_parser_ends_with_its_parent_even_when_that_was_killed(tmp_path: Path) -> None:
    """A killed reader left parsers behind that went on for up to 900 seconds of a processor."""
    script = tmp_path / "parent.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(PROJECT)!r})\n{ORPHAN}", encoding="utf-8")
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    child.wait(SECONDS)
    assert not child.is_running()


def test_two_parsers_work_at_once_and_the_next_one_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    most: list[int] = []

    class Counted(ParsingProcess):
        def __init__(self, arguments: list[str], limits: ParsingLimits) -> None:
            super().__init__(["-c", "import time; time.sleep(100)"], limits)
            running.append(arguments[2])
            most.append(len(running))

        def close(self) -> None:
            super().close()
            running.pop()

    monkeypatch.setattr(parsing, "ParsingProcess", Counted)
    readers = [worker_messages("html", tmp_path / "a", "a", LIMITS) for _ in range(MOST_PARSERS + 2)]
    assert [next(reader) for reader in readers] == [None] * len(readers) and len(running) == MOST_PARSERS == 2
    for reader in readers:  # each that ends makes room for one
        assert next(reader) is None
        reader.close()
    assert running == [] and len(most) == len(readers) and max(most) == MOST_PARSERS


def test_a_parsing_process_imports_no_other_reader() -> None:
    """Its start is half of the time that a short file takes."""
    told = "import sys, app.documents.parsers.drawing as _; print(*(m for m in sys.modules if m.startswith('app.')))"
    done = subprocess.run([sys.executable, "-c", told], cwd=PROJECT, capture_output=True, text=True, check=True)
    others = {f"app.documents.{name}" for name in ("bundle", "readers", "ocr", "sniff", "pypdf_reader")}
    assert not others & set(done.stdout.split())


# -------------------- parsers of real files


WORDS = b"BT /F1 11 Tf " + b"(word) Tj 1 0 0 1 5 5 Tm " * 600_000 + b"ET"


@pytest.mark.parametrize(
    ("content", "limits", "told"),
    [
        (b" " * 70_000_000, ParsingLimits(memory_bytes=100_000_000), r"0\.1 GB of memory"),
        (WORDS, ParsingLimits(silence_seconds=0), "0 seconds for one page"),
        (WORDS, ParsingLimits(cpu_seconds=1), "1 seconds of computing"),
    ],
    ids=["memory", "silence", "computing"],
)  # fmt: skip
def test_a_parser_of_a_small_file_that_takes_too_much_is_stopped(
    make_pdf: MakePdf, writer: PdfWriter, content: bytes, limits: ParsingLimits, told: str
) -> None:
    path = make_pdf(*[[]] * 8)
    bomb = DecodedStreamObject()
    bomb.set_data(content)
    packed = writer._add_object(bomb.flate_encode())
    for page in writer.pages:
        page[NameObject("/Contents")] = packed
    writer.write(path)
    assert path.stat().st_size < 200_000
    with pytest.raises(ParsingLimitReached, match=told):
        list(extract_parsed("pdf", path, "book.pdf", limits))
