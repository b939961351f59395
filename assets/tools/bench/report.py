"""Shared by all suites of `bench`: settings, rows as a table while they come, and the final document."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from app.cli.output import print_json
from app.runtime.options import engine_config
from app.runtime.versions import versions
from assets.tools.bench import plot
from assets.tools.bench.speed import Row
from core.config import EngineConfig, RetrievalConfig
from core.decoding.registry import EXACT_METHODS
from core.models.hub.catalog import ROOT
from core.planning.hardware import this_machine
from core.planning.plan import Plan

DEFAULT_NEW_TOKENS = 128
BENCH_SEED = 900_000  # far from the seeds of training and of the sample books
INTERRUPTED = 130  # launch.py's exit code after Ctrl-C
COLUMNS = {  # what the table shows of a row, and its heading; the document has all
    "context": "context",
    "placement": "placement",
    "resident_layers": "resident",
    "part": "part",
    "variant": "set to",
    "query_rows": "rows",
    "batch": "batch",
    "text": "books",
    "answer": "answer",
    "method": "method",
    "dtype": "keys in",
    "ms": "ms",
    "gb_per_second": "GB/s",
    "gflops": "GFLOP/s",
    "to_one_row": "to one",
    "times_stock": "to torch",
    "skill": "skill",
    "n": "n",
    "exact": "exact",
    "exact_interval": "95%",
    "f1": "F1",
    "prefix_share": "share",
    "new_tokens": "tokens",
    "ms_per_token": "ms/token",
    "tokens_per_second": "tokens/s",
    "speedup_vs_autoregressive": "speedup",
    "speedup_by_book": "by book",
    "ratio_to_ours": "to ours",
    "alone_ms_per_token": "alone ms",
    "speedup_vs_plain_alone": "to alone",
    "page_ms_per_token": "page ms",
    "page_over_alone": "page/alone",
    "acceptance_level1": "level 1",
    "acceptance_level2": "level 2",
    "link_gb_per_second": "link GB/s",
    "link_share": "of copy",
    "tokens_per_full_pass": "per pass",
    "identical_to_autoregressive": "same",
    "identical_to_first": "same",
    "identical_to_alone": "same",
    "near_ties": "near",
    "compared": "of",
    "same_tokens": "same",
    "equal_tokens": "equal",
    "difference": "first difference",
    "first_token_seconds": "first s",
    "memory_gib": "GiB",
    "memory_over_kv": "memory/KV",
    "prefill_seconds": "prefill s",
}
WIDTHS = {"part": 23, "variant": 22, "speedup_by_book": 14, "method": 27, "skill": 10, "exact_interval": 10}


def bench_config(args: argparse.Namespace) -> EngineConfig:
    """The settings from the common options, with the requested retrieval budget."""
    config = engine_config(args)
    config = replace(config, methods=config.methods or EXACT_METHODS)  # all are measured, the fastest or not
    return replace(config, retrieval=RetrievalConfig(budget=args.budget)) if args.budget is not None else config


def speed_shape(args: argparse.Namespace) -> dict[str, Any]:
    """Repeats, length and seed of a suite's decoding."""
    new_tokens = args.max_new_tokens or DEFAULT_NEW_TOKENS
    return {"repeats": args.repeats, "max_new_tokens": new_tokens, "seed": args.seed + BENCH_SEED}


class Measurement(NamedTuple):
    """A suite that has begun: what its document says of it, and its rows as they come."""

    config: dict[str, Any]
    rows: Iterator[Row]
    more: Callable[[], dict[str, Any]] = dict  # what is known at its end


def measure(args: argparse.Namespace, measurement: Measurement) -> int:
    """Print rows as they come, with --json on stderr; then print and draw the document, as requested.

    Returns:
        The exit code of the command; after Ctrl-C the document has the rows so far, and says that it is incomplete.
    Raises:
        NotWritten: the picture could not be written.
    """
    rows, complete = list[Row](), True
    try:
        for row in measurement.rows:
            rows.append(row)
            header = len(rows) == 1 or rows[-1]["context"] != rows[-2]["context"]
            print(table_line(rows[-1], header=header), file=sys.stderr if args.json else sys.stdout, flush=True)
    except KeyboardInterrupt:
        tell("Interrupted: these are the results so far.")
        complete = False
    about = {"hardware": asdict(this_machine()), "versions": versions(), "commit": commit()}
    document = {**about, "config": measurement.config, "complete": complete, "rows": rows, **measurement.more()}
    if args.json:
        print_json(document)
    if args.plot:
        plot.keep(document, args.plot)
    return 0 if complete else INTERRUPTED


def table_line(row: Row, *, header: bool) -> str:
    """One row of the table, preceded by the header if requested."""
    widths = {name: max(WIDTHS.get(name, 8), len(COLUMNS[name])) for name in COLUMNS if name in row}
    cells = " ".join(cell(row[name]).rjust(width) for name, width in widths.items())
    head = " ".join(COLUMNS[name].rjust(width) for name, width in widths.items())
    return f"{head}\n{cells}" if header else cells


def cell(value: Any) -> str:
    """A value as text of the table."""
    if isinstance(value, (tuple, list)):
        return " ".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else f"{value:,}" if type(value) is int else str(value)


def tell(line: str) -> None:
    """Print progress for people."""
    print(line, file=sys.stderr, flush=True)


def settings(args: argparse.Namespace, model: str, plan: Plan, self_draft_bits: int | None) -> dict[str, Any]:
    """The settings that every document contains."""
    return {
        "suite": args.suite,
        "model": model,
        "bits": plan.bits.value,
        "self_draft_bits": self_draft_bits or (plan.composition.value.self_draft_bits if plan.composition else 16),
        "device": plan.device.value,
        "dtype": plan.precision,
    }


def commit() -> str | None:
    """The measured commit, with "+changes" if the working tree differs; None outside a repository."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+changes"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:
        return None
