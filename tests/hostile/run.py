"""Opens every file of the hostile corpus as the app does, and tells what came of it.

    python -m tests.hostile.run                     the whole corpus and its table
    python -m tests.hostile.run --file pdf:17       one file, with how it ended

A file must open, or be refused with one line; everything else is a failure. Exit code 1 if there is any. Each format is
opened by a process of its own, so that the memory told is that of its files.
"""

import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal, get_args

from app.context.context_documents import Library
from app.documents.bundle import read_documents
from app.documents.document import Document
from app.documents.errors import DocumentError
from app.markdown import standalone
from tests.endurance.report import options, tell
from tests.hostile.corpus import FORMATS, PER_FORMAT, SEED, HostileFile, corpus

HUNG_SECONDS = 120.0
SMALL_BYTES, MOST_OWN_SECONDS = 100_000, 6.0  # of processor time outside a parser, for a file that is no larger
MOST_WORDS = 400  # characters of an error
Ending = Literal["opened", "refused", "crashed", "hung"]


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


def try_files(kind: str, per_format: int, seed: int) -> dict[str, Any]:
    """What came of all files of one format, opened in this process."""
    endings, failures, slowest = Counter[Ending](), list[str](), (0.0, "")
    for file in corpus(per_format, seed, [kind]):
        ending, why, seconds = judge(file)
        endings[ending] += 1
        slowest = max(slowest, (round(seconds, 2), file.what))
        if ending in ("crashed", "hung"):
            failures.append(f"{kind}:{file.number} ({file.what}) {ending}: {why}")
    told = {"format": kind, "files": endings.total(), **{ending: endings[ending] for ending in get_args(Ending)}}
    return {**told, "most_seconds": slowest[0], "slowest": slowest[1], "most_mib": most_mib(), "failures": failures}


def most_mib() -> int:
    """The most memory that this process or one of its children has held; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return round(max(resource.getrusage(kind).ru_maxrss for kind in kinds) / unit)


def main(argv: Sequence[str]) -> int:
    """Run what the command line says: a line for each format, then the failures."""
    args = options(__doc__, argv, per_format=PER_FORMAT, seed=SEED, file="")
    if args.file:
        kind, _, number = args.file.partition(":")
        file = next(one for one in corpus(args.per_format, args.seed, [kind]) if one.number == int(number))
        print(file.what, *judge(file), sep="\n")
        return 0
    started, rows = perf_counter(), list[dict[str, Any]]()
    for kind in FORMATS:
        with ProcessPoolExecutor(1, get_context("spawn")) as own:
            try:
                rows.append(own.submit(try_files, kind, args.per_format, args.seed).result())
            except BrokenProcessPool:
                rows.append({"format": kind, "files": 0, "failures": [f"{kind}: the program died"]})
        print(*(f"{name} {value}" for name, value in rows[-1].items() if value), sep=", ", flush=True)
    failures = [what for row in rows for what in row["failures"]]
    figures = {"files": sum(row["files"] for row in rows), "seconds": round(perf_counter() - started, 1)}
    return tell("hostile", args, figures, failures, {"rows": rows, **figures})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
