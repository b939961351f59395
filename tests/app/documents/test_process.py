"""A parsing process: held to its limits from outside, drained, at most two at once, gone with its parent."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pypdf import PdfReader, PdfWriter
from pypdf.generic import DecodedStreamObject, NameObject

from app.documents import parsing
from app.documents.errors import ParsingLimitReached
from app.documents.parsing import LIMITS, MOST_PARSERS, ParsingLimits, worker_messages
from app.documents.process import PROJECT, ParsingProcess
from app.documents.readers import extract_document, extract_parsed
from tests.app.documents.conftest import MakePdf
from tests.app.documents.test_pdf import PAGE

MUCH, LONG = 1 << 40, 1_000_000
SECONDS = 30.0


def started(code: str, memory_bytes: int = MUCH, cpu_seconds: int = LONG, line_bytes: int = 1 << 20) -> ParsingProcess:
    return ParsingProcess(["-c", code], memory_bytes, cpu_seconds, line_bytes)


def lines(process: ParsingProcess) -> Iterator[bytes]:
    """All lines, then the process is closed."""
    try:
        while line := process.line(SECONDS):
            yield line
    finally:
        process.close()


def test_what_takes_too_much_memory_is_ended_where_no_address_space_is_limited() -> None:
    process = started("held = bytearray(b'1') * (400 << 20); import time; time.sleep(100)", memory_bytes=200 << 20)
    assert list(lines(process)) == [] and process.limit == "memory"


def test_what_computes_too_long_is_ended_where_the_system_does_not() -> None:
    process = started("while True: pass", cpu_seconds=1)
    assert list(lines(process)) == [] and process.limit == "time"


def test_a_parser_that_complains_without_end_does_not_wait_for_a_listener() -> None:
    process = started("import sys; sys.stderr.write('x' * (1 << 20) + 'the end'); print('done')")
    assert list(lines(process)) == [b"done\n"]


def test_a_line_without_end_is_cut_off() -> None:
    process = started("print('x' * 5_000_000)", line_bytes=1_000)
    assert list(lines(process)) == [b"x" * 1_000]


ORPHAN = """
import sys, time
from app.documents.process import ParsingProcess
child = "import os, sys, time, types; from app.documents import worker\\n" \
        "def read(*_): print(os.getpid(), flush=True); time.sleep(1000); yield\\n" \
        "sys.modules['a.parser'] = types.SimpleNamespace(read=read)\\n" \
        f"worker.main(['a.parser', {__file__!r}, '2000000000', '900'])"
process = ParsingProcess(["-c", child], 1 << 40, 1000, 1000)
print(int(process.line(30)), flush=True)
time.sleep(1000)
"""


def test_a_parser_ends_with_its_parent_even_when_that_was_killed(tmp_path: Path) -> None:
    """A killed reader left parsers behind that went on for up to 900 seconds of a processor."""
    script = tmp_path / "parent.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(PROJECT)!r})\n{ORPHAN}", encoding="utf-8")
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE)
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    child.wait(SECONDS)
    assert not child.is_running()


def test_two_parsers_work_at_once_and_the_next_one_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    most: list[int] = []

    class Counted(ParsingProcess):
        def __init__(self, arguments: list[str], *limits: int) -> None:
            super().__init__(["-c", "import time; time.sleep(100)"], *limits)
            running.append(arguments[2])
            most.append(len(running))

        def close(self) -> None:
            super().close()
            running.pop()

    monkeypatch.setattr(parsing, "ParsingProcess", Counted)
    readers = [worker_messages("html", tmp_path / "a", "a", LIMITS) for _ in range(MOST_PARSERS + 2)]
    assert [next(reader) for reader in readers] == [None] * len(readers)
    assert len(running) == MOST_PARSERS == 2
    for reader in readers:  # each that ends makes room for one
        assert next(reader) is None
        reader.close()  # type: ignore[attr-defined]
    assert running == [] and len(most) == len(readers) and max(most) == MOST_PARSERS


def test_a_parsing_process_imports_no_other_reader() -> None:
    """Its start is half of the time that a short file takes."""
    told = "import sys, app.documents.parsers.drawing as _; print(*(m for m in sys.modules if m.startswith('app.')))"
    done = subprocess.run([sys.executable, "-c", told], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert not {f"app.documents.{name}" for name in ("bundle", "readers", "ocr", "sniff", "pypdf_reader")} & set(
        done.stdout.split()
    )


# -------------------- parsers of real files


def test_a_parser_that_takes_too_much_memory_is_stopped(make_pdf: MakePdf, writer: PdfWriter) -> None:
    path = make_pdf(PAGE)
    bomb = DecodedStreamObject()
    bomb.set_data(b" " * 70_000_000)  # a few KB in the file
    writer.pages[0][NameObject("/Contents")] = writer._add_object(bomb.flate_encode())
    writer.write(path)
    with pytest.raises(ParsingLimitReached, match=r"0\.1 GB of memory"):
        list(extract_parsed("pdf", path, "book.pdf", ParsingLimits(memory_bytes=100_000_000)))


def test_a_parser_that_falls_silent_is_stopped(make_pdf: MakePdf) -> None:
    with pytest.raises(ParsingLimitReached, match="0 seconds for one page"):
        list(extract_parsed("pdf", make_pdf(PAGE), "book.pdf", ParsingLimits(silence_seconds=0)))


def test_a_parser_that_computes_too_long_is_stopped(make_pdf: MakePdf, writer: PdfWriter) -> None:
    path = make_pdf(*[[]] * 8)
    slow = DecodedStreamObject()
    slow.set_data(b"BT /F1 11 Tf " + b"(word) Tj 1 0 0 1 5 5 Tm " * 600_000 + b"ET")
    contents = writer._add_object(slow.flate_encode())
    for page in writer.pages:
        page[NameObject("/Contents")] = contents
    writer.write(path)
    assert len(PdfReader(path).pages) == 8
    with pytest.raises(ParsingLimitReached, match="1 seconds of computing"):
        list(extract_parsed("pdf", path, "book.pdf", ParsingLimits(cpu_seconds=1)))


def test_closing_the_iterator_ends_the_process(make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    events = extract_document(make_pdf(*[PAGE] * 50))
    next(events)
    assert started[0].poll() is None
    events.close()  # type: ignore[attr-defined]
    assert started[0].poll() is not None
