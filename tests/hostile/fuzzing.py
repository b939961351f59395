"""Fuzzing of every parser of ours, inside one process: the next input is a damaged copy of a good file.

    python -m tests.hostile.fuzzing --seconds 60        so long for each parser; prints how many inputs each took

A parser may give messages, refuse, or raise what damaged files make libraries raise; anything else is a failure.
"""

import argparse
import csv
import io
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from time import monotonic
from typing import BinaryIO
from xml.parsers.expat import ExpatError

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pypdf.errors import PyPdfError

from app.documents import plain
from app.documents.archive import BadEntry, Refused
from app.documents.messages import Message
from app.documents.sniff import sniff
from tests.hostile.atoms import ATOMS
from tests.hostile.corpus import good

Read = Callable[[BinaryIO], Iterator[Message]]


def read_texts(stream: BinaryIO) -> Iterator[Message]:
    encoded = stream.read()
    sniff(encoded[:4096])
    for kind in ("text", "markdown"):
        yield from plain.read(io.BytesIO(encoded), kind)


FORMATS = ("pdf", "epub", "docx", "odt", "rtf", "pptx", "fb2", "csv", "zip", "html")
PARSERS: Mapping[str, Read] = {
    **{kind: import_module(f"app.documents.parsers.{kind}").read for kind in FORMATS},
    "text": read_texts,
}
DAMAGE = (
    Refused, BadEntry, PyPdfError, ExpatError, csv.Error, ArithmeticError, AssertionError, AttributeError, LookupError,
    NotImplementedError, OSError, RuntimeError, TypeError, ValueError, MemoryError,
)  # fmt: skip
PIECES = st.binary(max_size=30) | st.sampled_from([atom.encode("utf-8", "surrogatepass") for atom in ATOMS])
CHANGES = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 60), PIECES, st.integers(1, 20)), min_size=1, max_size=6
)


def fuzz(kind: str, seconds: float, most_inputs: int = 10_000_000) -> int:
    """How many inputs a parser took in so many seconds, one at least.

    Raises:
        Exception: what the parser must not raise, with the input that made it.
    """
    read = PARSERS[kind]
    whole, ends = good(kind), monotonic() + seconds
    count = 0

    @settings(
        max_examples=most_inputs, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(CHANGES)
    def one(changes: list[tuple[int, int, bytes, int]]) -> None:
        nonlocal count
        if count and monotonic() > ends:
            return
        count += 1
        content = bytearray(whole)
        for place, gone, new, times in changes:
            at = place % (len(content) + 1)
            content[at : at + gone] = new * times
        try:
            for _ in read(io.BytesIO(bytes(content))):
                pass
        except DAMAGE:
            return

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of parsers about what they are given
        while not count or monotonic() < ends:
            one()
    return count


def main(argv: Sequence[str]) -> int:
    """Fuzz every parser in turn. Returns 1 if one raised what it must not."""
    parser = argparse.ArgumentParser(prog="tests.hostile.fuzzing", description="Fuzz the parsers.", allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=120.0, metavar="N", help="for each parser (default: 120)")
    args, failures = parser.parse_args(argv), 0
    for kind in PARSERS:
        try:
            print(f"{kind:6}{fuzz(kind, args.seconds, 2_000):>9,} inputs, none raised what it must not", flush=True)
        except Exception:
            failures += 1
            print(f"{kind:6} raised what it must not:\n{traceback.format_exc()}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
