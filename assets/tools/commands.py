"""The commands of launch.py that run instruments and tests. Standard library only: launch.py imports it."""

import argparse
from pathlib import Path

from app.cli.command_options import (
    ANSWERING,
    COMMON,
    JSON,
    METHODS,
    NO_VENV,
    QUESTIONS,
    RARE,
    Command,
    flag,
    name_list,
    one_of,
    option,
)

BOOK_FORMATS = (".txt", ".md", ".pdf", ".epub")  # those of `assets.tools.books`, named before it can be imported
FEWEST_TOKENS = 60  # no book has fewer words


def int_list(text: str) -> tuple[int, ...]:
    """An argparse type: `4096,32768`."""
    names = name_list(text)
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers: use for example 4096,32768")
    return tuple(map(int, names))


def book_length(text: str) -> int:
    """An argparse type: a number of tokens that some book may have."""
    if not text.isdecimal() or int(text) < FEWEST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r} is no length for a book: use a number from {FEWEST_TOKENS} up")
    return int(text)


def book_file(text: str) -> Path:
    """An argparse type: a file name whose ending names a format."""
    if Path(text).suffix.lower() not in BOOK_FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in one of {', '.join(BOOK_FORMATS)}")
    return Path(text)


SUITES = ("speed", "recall", "offload", "ablation", "peers", "page", "kernels")
ENDINGS = ", ".join(ending[1:] for ending in BOOK_FORMATS)
TOOLS = (
    Command(
        "bench",
        "measure methods at several context lengths",
        JSON,
        COMMON,
        option("--contexts N,N", "prompt lengths in tokens", type=int_list),
        option("--methods A,B", type=name_list),
        option("--suite", "page: what it costs beside the engine (default: speed)", choices=SUITES, default="speed"),
        option("--batch N", "for --suite speed: N conversations decoded together", type=int),
        option("--books N", "read N books at each length (default: 3)", type=int, default=3),
        option("--repeats N", "medians of N runs a book (default: 3)", type=int, default=3),
        option("--max-new-tokens N", "tokens decoded in each run", type=int),
        option("--questions N", "of each skill, for --suite recall", type=int, default=100),
        option("--skills A,B", "for recall: some of fact,absent,list,quote,recite,quote_any", RARE, type=name_list),
        option("--budget N", "tokens in the retrieval cache (default: 1024)", RARE, type=int),
        option("--placements A,B", "for offload: some of resident,split,offloaded", RARE, type=name_list),
        option("--peers A,B", "some of transformers,llama.cpp,openvino,onnxruntime", RARE, type=name_list),
        option("--text FILE", "for peers: ask about it, twice (default: a generated book, once)", RARE, type=Path),
        option("--checkpoint F.jsonl", "for peers and ablation: keep runs here, and go on there", RARE, type=Path),
        flag("--counts", "for ablation: acceptance and tokens a pass alone, in fixed rounds; no load changes them"),
        option("--parts A,B", "for ablation and peers: those with one of these in their names", RARE, type=name_list),
        option("--plot F.png", "draw the results (.png, .svg, .pdf)", type=Path),
        module="assets.tools.bench.command",
    ),
    Command(
        "book",
        "write a new generated book, and questions about it",
        JSON,
        COMMON,
        option("--tokens T", "length, in the model's tokens", type=book_length, required=True),
        option("-o --output FILE", f"the new book ({ENDINGS}); questions beside it", type=book_file, required=True),
        flag("--force", "replace files that exist"),
        module="assets.tools.books.command",
    ),
    Command(
        "races",
        "race a sample's questions, keep the counts beside it",
        one_of(QUESTIONS, required=True),
        METHODS,
        JSON,
        *ANSWERING,
        module="assets.tools.races",
    ),
    Command(
        "test",
        "run the tests; other arguments go to pytest",
        NO_VENV,
        flag("--long", "instead, the long programs of tests/long.py, or the one that is named"),
        module="assets.tools.check",
    ),
    Command(
        "check",
        "everything that a change must pass",
        NO_VENV,
        flag("--no-tests", "all but what 'test' runs"),
        module="assets.tools.check",
    ),
)
