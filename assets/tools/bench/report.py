"""Shared by all suites of `bench`: settings, rows as they come, and the final document."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from app.cli.output import print_json
from app.runtime.options import engine_config
from app.runtime.versions import versions
from assets.tools.bench.charts import plot
from assets.tools.bench.table import table_line
from core.config import EngineConfig, RetrievalConfig
from core.decoding.registry import EXACT_METHODS
from core.models.hub.catalog import ROOT
from core.planning.hardware import Machine
from core.planning.plan import Plan

DEFAULT_NEW_TOKENS = 128
BENCH_SEED = 900_000  # far from the seeds of training and of the sample books
INTERRUPTED = 130  # launch.py's exit code after Ctrl-C


def bench_config(args: argparse.Namespace) -> EngineConfig:
    """The settings from the common options, with the requested retrieval budget."""
    config = engine_config(args)
    config = replace(config, methods=config.methods or EXACT_METHODS)  # all are measured, the fastest or not
    return replace(config, retrieval=RetrievalConfig(budget=args.budget)) if args.budget is not None else config


def speed_shape(args: argparse.Namespace) -> dict[str, Any]:
    """Repeats, length and seed of a suite's decoding."""
    new_tokens = args.max_new_tokens or DEFAULT_NEW_TOKENS
    return {"repeats": args.repeats, "max_new_tokens": new_tokens, "seed": args.seed + BENCH_SEED}


def follow(measured: Iterator[Any], args: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """Print rows as they come. Returns them, and whether they are complete: Ctrl-C keeps those so far."""
    rows: list[dict[str, Any]] = []
    try:
        for row in measured:
            rows.append(asdict(row))
            header = len(rows) == 1 or rows[-1]["context"] != rows[-2]["context"]
            show(table_line(rows[-1], header=header), args)
    except KeyboardInterrupt:
        tell("Interrupted: these are the results so far.")
        return rows, False
    return rows, True


def show(line: str, args: argparse.Namespace) -> None:
    """Print a result for people; with --json, stdout is only for the document."""
    print(line, file=sys.stderr if args.json else sys.stdout, flush=True)


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


def finish(
    args: argparse.Namespace,
    hardware: Machine,
    config: dict[str, Any],
    rows: list[dict[str, Any]],
    *,
    complete: bool,
    **more: Any,
) -> int:
    """Save, print and draw the document of a measurement, as requested. Returns the exit code of the command.

    Raises:
        InvalidSetting: the picture could not be written.
    """
    document = {
        "hardware": asdict(hardware),
        "versions": versions(),
        "commit": commit(),
        "config": config,
        "complete": complete,
        "rows": rows,
        **more,
    }
    if args.out:
        args.out.write_text(json.dumps(document, indent=1), encoding="utf-8")
    if args.json:
        print_json(document)
    if args.plot:
        plot.keep(document, args.plot)
    return 0 if complete else INTERRUPTED


def commit() -> str | None:
    """The measured commit, with "+changes" if the working tree differs; None outside a repository."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+changes"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return None
    return described.stdout.strip() or None
