"""`python launch.py bench`: measure methods, print a table, end with one JSON document."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.commands.doctor import versions
from app.commands.reading import engine_config, print_json
from core.bench.peers import run_peers
from core.bench.speed import run_speed
from core.decoding.methods import EXACT_METHODS, METHODS
from core.engine import Engine
from core.errors import InvalidSetting
from core.hardware import this_machine
from core.models.catalog import ROOT, find

DEFAULT_CONTEXTS = (4096, 8192, 16384, 32768)
DEFAULT_NEW_TOKENS = 128
SUITES = ("speed", "peers")
COLUMNS = {
    "context": "{:,}",
    "method": "{}",
    "new_tokens": "{}",
    "ms_per_token": "{:.2f}",
    "speedup_vs_autoregressive": "{:.2f}x",
    "ratio_to_ours": "{:.2f}x",
    "acceptance_level1": "{:.2f}",
    "acceptance_level2": "{:.2f}",
    "tokens_per_full_pass": "{:.1f}",
    "identical_to_autoregressive": "{}",
    "same_tokens": "{}",
    "memory_over_kv": "{:.2f}",
    "prefill_seconds": "{:.1f}",
}


def run(args: argparse.Namespace) -> int:
    """Measure. Returns 0.

    Raises:
        CoreError: settings, model or memory.
    """
    if args.suite not in SUITES:
        raise InvalidSetting(f"The suite {args.suite!r} is not there yet.", hint=f"Use one of: {', '.join(SUITES)}.")
    if args.plot:
        raise InvalidSetting("Plots are not there yet.", hint="Leave out --plot; --out F.json keeps the figures.")
    if args.repeats < 1:
        raise InvalidSetting("At least one repeat is needed.", hint="Use --repeats 3.")
    methods = args.methods or EXACT_METHODS
    for name in methods:
        if name not in METHODS:
            raise InvalidSetting(f"There is no method {name!r}.", hint=f"Use some of: {', '.join(METHODS)}.")
    contexts = args.contexts or DEFAULT_CONTEXTS
    new_tokens = args.max_new_tokens or DEFAULT_NEW_TOKENS
    engine = Engine.load(engine_config(args))
    shape: dict[str, Any] = {"repeats": args.repeats, "max_new_tokens": new_tokens, "seed": args.seed + BENCH_SEED}
    measured: Iterator[Any] = (
        run_speed(engine, contexts, methods, **shape)
        if args.suite == "speed"
        else run_peers(engine, find(engine_config(args).model).target, contexts, **shape)
    )
    rows = []
    for row in measured:
        rows.append(asdict(row))
        print(table_line(rows[-1], header=len(rows) == 1), file=sys.stderr if args.json else sys.stdout, flush=True)
    document = {
        "hardware": asdict(this_machine()),
        "versions": versions(),
        "commit": commit(),
        "config": {
            "suite": args.suite,
            "model": engine.info.model,
            "dtype": str(engine.info.plan.dtype.value).removeprefix("torch."),
            "placement": engine.info.plan.placement.value,
            "target_weight_bytes": engine.info.target_weight_bytes,
            "kv_bytes_per_token": engine.info.kv_bytes_per_token,
            "retrieval": asdict(engine.config.retrieval),
            "draft": asdict(engine.config.draft),
            **shape,
        },
        "rows": rows,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(document, indent=1), encoding="utf-8")
    if args.json:
        print_json(document)
    return 0


BENCH_SEED = 900_000  # far from the seeds of training and of the sample books


def table_line(row: dict[str, Any], *, header: bool) -> str:
    """One row of the table, with the header before the first."""
    names = [name for name in COLUMNS if name in row]
    width = {name: max(len(name.split("_vs_")[0]), 12) + 1 for name in names}
    width["method"] = 28
    cells = [("-" if row[name] is None else COLUMNS[name].format(row[name])).rjust(width[name]) for name in names]
    head = " ".join(name.split("_vs_")[0].rjust(width[name]) for name in names)
    return (head + "\n" if header else "") + " ".join(cells)


def commit() -> str | None:
    """The commit that was measured, with "+changes" where the tree differs from it; None outside a repository."""
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
