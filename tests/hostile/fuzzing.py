"""Fuzzing of every parser of ours, inside one process: the next input is a damaged copy of a good file.

    python -m tests.hostile.fuzzing --seconds 60        so long for each parser; prints how many inputs each took

A parser may give messages, refuse, or raise what damaged files make libraries raise; anything else is a failure.
"""

import csv
import io
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from time import monotonic
from typing import BinaryIO
from xml.parsers.expat import ExpatError

from pypdf.errors import PyPdfError

from app.documents import readers
from app.documents.archive import Refused
from app.documents.messages import Message
from app.documents.sniff import sniff
from tests.endurance.report import options
from tests.hostile.corpus import damaged

Read = Callable[[BinaryIO], Iterator[Message]]


def read_texts(stream: BinaryIO) -> Iterator[Message]:
    encoded = stream.read()
    sniff(encoded[:4096])
    for kind in ("text", "markdown"):
        yield from readers.read_plain(io.BytesIO(encoded), kind)[1]


FORMATS = ("pdf", "epub", "docx", "odt", "rtf", "pptx", "fb2", "csv", "zip", "html")
PARSERS: Mapping[str, Read] = {
    **{kind: import_module(f"app.documents.parsers.{kind}").read for kind in FORMATS},
    "text": read_texts,
}
DAMAGE = (
    Refused, PyPdfError, ExpatError, csv.Error, ArithmeticError, AssertionError, AttributeError, LookupError,
    NotImplementedError, OSError, RuntimeError, TypeError, ValueError, MemoryError,
)  # fmt: skip


def fuzz(kind: str, seconds: float, most_inputs: int = 10_000_000) -> int:
    """How many inputs a parser took in so many seconds, one at least.

    Raises:
        Exception: what the parser must not raise, with what was done to a good file, and the seed.
    """
    count, ends = 0, monotonic() + seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of parsers about what they are given
        while not count or (count < most_inputs and monotonic() < ends):
            what, make = damaged(kind, random.Random(f"{kind} {count}"))
            try:
                for _ in PARSERS[kind](io.BytesIO(make())):
                    pass
            except DAMAGE:
                pass
            except Exception as error:
                error.add_note(f"{kind} {count}: {what}")
                raise
            count += 1
    return count


def main(argv: Sequence[str]) -> int:
    """Fuzz every parser in turn. Returns 1 if one raised what it must not."""
    args, failures = options(__doc__, argv, seconds=120.0), 0
    for kind in PARSERS:
        try:
            print(f"{kind:6}{fuzz(kind, args.seconds):>9,} inputs, none raised what it must not", flush=True)
        except Exception:
            failures += 1
            print(f"{kind:6} raised what it must not:\n{traceback.format_exc()}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
