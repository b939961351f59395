"""The commands of launch.py that run instruments. Standard library only: launch.py imports it."""

import argparse
from pathlib import Path

from app.cli.argument_types import name_list
from app.cli.arguments import Command

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


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """`bench`: which measurement, at which lengths, and where the results are written."""
    parser.add_argument("--contexts", type=int_list, metavar="N,N", help="prompt lengths in tokens")
    parser.add_argument("--methods", type=name_list, metavar="A,B")
    parser.add_argument(
        "--suite",
        choices=("speed", "recall", "offload", "ablation", "peers", "page", "kernels"),
        default="speed",
        help="page: decoding through the page beside the engine alone; kernels: attention alone (default: speed)",
    )
    parser.add_argument(
        "--batch", type=int, default=None, metavar="N", help="for --suite speed: N conversations decoded together"
    )
    parser.add_argument("--books", type=int, default=3, metavar="N", help="read N books at each length (default: 3)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="medians of N runs a book (default: 3)")
    parser.add_argument("--max-new-tokens", type=int, default=None, metavar="N", help="tokens decoded in each run")
    parser.add_argument("--questions", type=int, default=100, metavar="N", help="of each skill, for --suite recall")
    parser.add_argument(
        "--skills",
        type=name_list,
        metavar="A,B",
        help="for --suite recall: some of fact,absent,list,quote,recite,quote_any",
    )
    parser.add_argument("--budget", type=int, metavar="N", help="tokens in the retrieval cache (default: 1024)")
    parser.add_argument(
        "--placements", type=name_list, metavar="A,B", help="for --suite offload: some of resident,split,offloaded"
    )
    parser.add_argument(
        "--peers",
        type=name_list,
        metavar="A,B",
        help="for --suite peers: some of transformers,llama.cpp,openvino,onnxruntime (default: all)",
    )
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="for --suite peers: ask about this document, twice (default: a generated book, once)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="F.jsonl",
        help="for --suite peers and ablation: keep each run here; the same command goes on where one was ended",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="for --suite peers and ablation: start nothing after N minutes"
    )
    parser.add_argument(
        "--counts",
        action="store_true",
        help="for --suite ablation: acceptance and tokens a pass alone, in fixed rounds; another load changes nothing",
    )
    parser.add_argument(
        "--parts",
        type=name_list,
        metavar="A,B",
        help="for --suite ablation: only these, as in its table's first column; for --suite peers: ways of decoding "
        "with one of these in their names",
    )
    parser.add_argument("--plot", type=Path, metavar="F.png", help="draw the results (.png, .svg, .pdf)")
    parser.add_argument("--out", type=Path, metavar="F.json", help="keep the results in a file")


def add_book_options(parser: argparse.ArgumentParser) -> None:
    """`book`: its length and its file. The common --seed chooses the book."""
    endings = ", ".join(ending[1:] for ending in BOOK_FORMATS)
    parser.add_argument("--tokens", type=book_length, metavar="T", required=True, help="length, in the model's tokens")
    parser.add_argument(
        "-o",
        "--output",
        type=book_file,
        metavar="FILE",
        required=True,
        help=f"the new book ({endings}); its questions go to FILE.questions.json, without the book's ending",
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")


TOOLS = (
    Command(
        "bench",
        "measure methods at several context lengths",
        add_bench_options,
        frozenset({"skills", "placements", "peers", "checkpoint", "text", "minutes", "parts"}),
        "assets.tools.bench.command",
    ),
    Command(
        "book",
        "write a new generated book, and questions about it",
        add_book_options,
        module="assets.tools.books.command",
    ),
)
