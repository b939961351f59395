"""`bench --suite offload`: placements of the full cache at several lengths, and a projection for other machines."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from app.cli.bench import BENCH_SEED, DEFAULT_NEW_TOKENS, INTERRUPTED, bench_config, commit, table_line, tell
from app.cli.charts import plot
from app.cli.reading import print_json
from app.runtime.versions import versions
from core.bench.offload import PLACEMENTS, PROJECTED_HOST_GIB, Bench, project
from core.config import PlacementWish
from core.decoding.registry import COMPARED
from core.errors import InvalidSetting
from core.planning.speed_model import Acceptance

DEFAULT_CONTEXTS = {"cpu": (4096, 8192, 16384), "cuda": (32768, 61440, 122880)}
PROJECTION = (
    "PROJECTION, not a measurement: arithmetic on bytes, nominal bandwidths and acceptance for machines that were not "
    f"here, each with {PROJECTED_HOST_GIB:g} GiB of host memory."
)


def run(args: argparse.Namespace) -> int:
    """Measure and project. Returns 0, or 130 if Ctrl-C ended it; then the results so far are told.

    Raises:
        CoreError: settings, model or memory.
    """
    placements = tuple(dict.fromkeys(args.placements or PLACEMENTS))
    for name in placements:
        if name not in PLACEMENTS:
            raise InvalidSetting(f"There is no placement {name!r}.", hint=f"Use some of: {', '.join(PLACEMENTS)}.")
    bench = Bench(bench_config(args))
    shape: dict[str, Any] = {
        "repeats": args.repeats,
        "max_new_tokens": args.max_new_tokens or DEFAULT_NEW_TOKENS,
        "seed": args.seed + BENCH_SEED,
    }
    out = sys.stderr if args.json else sys.stdout
    rows: list[dict[str, Any]] = []
    complete = True
    measured = bench.rows(
        args.contexts or DEFAULT_CONTEXTS[bench.plan.device.value],
        cast("tuple[PlacementWish, ...]", placements),
        args.methods or COMPARED,
        **shape,
    )
    try:
        for row in measured:
            rows.append(asdict(row))
            header = len(rows) == 1 or rows[-1]["context"] != rows[-2]["context"]
            print(table_line(rows[-1], header=header), file=out, flush=True)
    except KeyboardInterrupt:
        complete = False
        print("Interrupted: these are the results so far.", file=sys.stderr)
    for skipped in bench.skipped:
        tell(f"Not measured: {skipped.placement} at {skipped.context:,} tokens. {skipped.problem}")
    projection = project(bench.machine, seen(rows), tell)
    print(f"\n{PROJECTION}", file=out)
    for number, predicted in enumerate(projection):
        print(table_line(projection_cells(predicted), header=number == 0), file=out, flush=True)
    document = {
        "hardware": asdict(bench.machine),
        "versions": versions(),
        "commit": commit(),
        "config": {
            "suite": args.suite,
            "model": bench.model,
            "bits": bench.plan.bits.value,
            "drafting_bits": args.draft_bits,
            "device": bench.plan.device.value,
            "dtype": str(bench.plan.dtype.value).removeprefix("torch."),
            "gpu_memory_gib": args.gpu_memory,
            "placements": list(placements),
            **shape,
        },
        "complete": complete,
        "rows": rows,
        "skipped": [asdict(skipped) for skipped in bench.skipped],
        "projection": {"note": PROJECTION, "rows": projection},
    }
    if args.out:
        Path(args.out).write_text(json.dumps(document, indent=1), encoding="utf-8")
    if args.json:
        print_json(document)
    if args.plot:
        plot.keep(document, args.plot)
    return 0 if complete else INTERRUPTED


def seen(rows: list[dict[str, Any]]) -> Acceptance | None:
    """Acceptance of TriForce in this run, at the longest context; None: it was not measured."""
    ours = [row for row in rows if row["method"] == "triforce" and row["acceptance_level2"] is not None]
    if not ours:
        return None
    row = max(ours, key=lambda row: int(row["context"]))
    level1, level2 = (min(row[f"acceptance_level{level}"] or 0.0, 0.99) for level in (1, 2))
    return Acceptance(
        level1, level2, f"seen in this run at {row['context']:,} tokens, with the model that was measured"
    )


def projection_cells(row: dict[str, Any]) -> dict[str, Any]:
    """What of a projection the table shows."""
    names = ("model", "machine", "context", "placement", "resident_layers")
    return {
        **{name: row[name] for name in names},
        "plain_ms": row["plain_ms_per_token"],
        "triforce_ms": row["triforce_ms_per_token"],
        "projected_speedup": row["speedup"],
        "acceptance_level1": row["acceptance1"],
        "acceptance_level2": row["acceptance2"],
    }
