"""Opens every file of the hostile corpus as the app does, and tells what came of it.

    python -m tests.hostile.run                     the whole corpus and its table
    python -m tests.hostile.run --file pdf:17       one file, with how it ended

A file must open, or be refused with one line; everything else is a failure. Exit code 1 if there is any. Each format is
opened by a process of its own, so that the memory told is that of its files.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

from app.context.context_documents import Library
from app.documents.bundle import read_documents
from app.documents.document import Document
from app.documents.errors import DocumentError
from app.markdown import standalone
from app.runtime.versions import versions
from assets.tools.bench.report import commit
from core.planning.hardware import this_machine
from tests.hostile.corpus import FORMATS, PER_FORMAT, SEED, HostileFile, corpus

ROOT = Path(__file__).parents[2]
HUNG_SECONDS = 120.0
SMALL_BYTES, MOST_OWN_SECONDS = 100_000, 2.0  # of processor time outside a parser, for a file that is no larger
MOST_WORDS = 400  # characters of an error
DEFAULT_JSON = Path(tempfile.gettempdir()) / "hostile-files.json"
Ending = Literal["opened", "refused", "crashed", "hung"]


@dataclass(slots=True)
class Row:
    """What came of the files of one format."""

    format: str
    files: int = 0
    opened: int = 0
    refused: int = 0
    crashed: int = 0
    hung: int = 0
    most_seconds: float = 0.0
    slowest: str = ""
    most_mib: int = 0  # of this process or of one that it started
    failures: list[str] = field(default_factory=list)


def judge(file: HostileFile) -> tuple[Ending, str, float]:
    """Open a file: how that ended, in words if it failed, and seconds."""
    ended: list[tuple[Ending, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = file.write(Path(folder))
        started, own = perf_counter(), process_time()
        thread = threading.Thread(target=lambda: ended.append(open_one(path)), daemon=True)
        thread.start()
        thread.join(HUNG_SECONDS)
        seconds, own = perf_counter() - started, process_time() - own
        small = not path.exists() or path.stat().st_size <= SMALL_BYTES
    if small and own > MOST_OWN_SECONDS:
        return "hung", f"{own:.1f} s of this program's processor time", seconds
    ending, why = ended[0] if ended else ("hung", f"more than {HUNG_SECONDS:.0f} s")
    return ending, why, seconds


def open_one(path: Path) -> tuple[Ending, str]:
    """Whether a file opens into a document that can be shown, or is refused in one line."""
    try:
        for document in read_documents(path):
            check(document)
    except DocumentError as error:
        said = f"{error.problem} {error.hint}"
        one_line = said.isprintable() and 0 < len(said) <= MOST_WORDS and str(path.parent) not in said
        return ("refused", said) if one_line else ("crashed", f"an error that cannot be shown: {said!r}")
    except Exception as error:  # whatever else there is, is what is looked for
        return "crashed", f"{type(error).__name__}: {error}"[:MOST_WORDS]
    return "opened", ""


def check(document: Document) -> None:
    """What the app does with every document, as far as it needs no model.

    Raises:
        AssertionError, UnicodeEncodeError: it could not be shown.
    """
    library = Library().add(document)
    titles = [chapter.title for chapter in document.chapters]
    shown = [document.name, document.title, *document.warnings, *titles, *(page.label for page in document.pages)]
    json.dumps(shown, ensure_ascii=False).encode()
    library.text.encode()
    assert document.name.isprintable() and "\n" not in document.title, f"{document.name!r}, {document.title!r}"
    for text in (document.text[:5_000], document.title, document.name):
        as_markdown = standalone(text)
        outside_code = as_markdown if "`" not in text and "~" not in text and "$" not in text else ""
        assert "<script" not in outside_code and "<img" not in outside_code, "markup that a page would act on"


def try_files(kind: str, per_format: int, seed: int) -> Row:
    """All files of one format, in this process."""
    row = Row(kind)
    for file in corpus(per_format, seed, [kind]):
        ending, why, seconds = judge(file)
        row.files += 1
        setattr(row, ending, getattr(row, ending) + 1)
        if seconds > row.most_seconds:
            row.most_seconds, row.slowest = round(seconds, 2), file.what
        if ending in ("crashed", "hung"):
            row.failures.append(f"{kind}:{file.number} ({file.what}) {ending}: {why}")
            print(row.failures[-1], file=sys.stderr, flush=True)
    row.most_mib = most_mib()
    return row


def most_mib() -> int:
    """The most memory that this process or one of its children has held; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return round(max(resource.getrusage(kind).ru_maxrss for kind in kinds) / unit)


def run_corpus(per_format: int, seed: int, formats: Sequence[str]) -> list[Row]:
    """Every format in a process of its own."""
    rows: list[Row] = []
    for kind in formats:
        arguments = ["--only", kind, "--per-format", str(per_format), "--seed", str(seed)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.hostile.run", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        last = done.stdout.strip().splitlines()[-1:]
        rows.append(
            Row(**json.loads(last[0])) if last else Row(kind, crashed=1, failures=[f"{kind}: the program died"])
        )
        print(f"{kind}: {rows[-1].files} files", file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """All of it, for people."""
    heads = ("files", "opened", "refused", "crashed", "hung", "most s", "most MiB")
    lines = [f"{'':12}" + "".join(f"{head:>10}" for head in heads) + "  slowest"]
    for row in rows:
        numbers = (row.files, row.opened, row.refused, row.crashed, row.hung, f"{row.most_seconds:.1f}", row.most_mib)
        lines.append(f"{row.format:12}" + "".join(f"{number:>10}" for number in numbers) + f"  {row.slowest}")
    sums = [sum(getattr(row, name) for row in rows) for name in heads[:5]]
    most = (f"{max(row.most_seconds for row in rows):.1f}", max(row.most_mib for row in rows))
    lines.append(f"{'all':12}" + "".join(f"{number:>10}" for number in (*sums, *most)))
    failures = [what for row in rows for what in row.failures]
    lines += ["", *failures, f"{len(failures)} failures" if failures else "Every file opened or was refused in a line."]
    return "\n".join(lines)


def document(rows: Sequence[Row], seed: int, seconds: float, date: str | None) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "date": date,
        "hardware": asdict(this_machine()),
        "versions": versions(),
        "commit": commit(),
        "config": {"suite": "hostile files", "seed": seed},
        "seconds": round(seconds, 1),
        "files": sum(row.files for row in rows),
        "rows": [asdict(row) for row in rows],
    }


def main(argv: Sequence[str]) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="tests.hostile.run", description="Hostile files.", allow_abbrev=False)
    parser.add_argument(
        "--per-format", type=int, default=PER_FORMAT, metavar="N", help="files of each format, at least"
    )
    parser.add_argument("--seed", type=int, default=SEED, metavar="N")
    parser.add_argument("--only", choices=FORMATS, help="this format, in this process; prints JSON")
    parser.add_argument("--file", metavar="FORMAT:N", help="one file")
    parser.add_argument("--date", help="to be written into the JSON file")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, metavar="F", help=f"default: {DEFAULT_JSON}")
    args = parser.parse_args(argv)
    if args.file:
        kind, _, number = args.file.partition(":")
        file = next(one for one in corpus(args.per_format, args.seed, [kind]) if one.number == int(number))
        print(file.what, *judge(file), sep="\n")
        return 0
    if args.only:
        print(json.dumps(asdict(try_files(args.only, args.per_format, args.seed))))
        return 0
    started = perf_counter()
    rows = run_corpus(args.per_format, args.seed, FORMATS)
    written = document(rows, args.seed, perf_counter() - started, args.date)
    args.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
