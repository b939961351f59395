"""`bench --suite offload`: placements of the full cache at several lengths, and a projection for other machines."""

import argparse
from dataclasses import asdict
from typing import Any, cast

from app.cli.bench_report import bench_config, finish, follow, settings, show, speed_shape, tell
from app.cli.bench_table import table_line
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
    """Measure and project. Returns 0, or 130 after Ctrl-C; then the results so far are printed.

    Raises:
        CoreError: settings, model or memory.
    """
    placements = tuple(dict.fromkeys(args.placements or PLACEMENTS))
    for name in placements:
        if name not in PLACEMENTS:
            raise InvalidSetting(f"There is no placement {name!r}.", hint=f"Use some of: {', '.join(PLACEMENTS)}.")
    bench = Bench(bench_config(args))
    shape = speed_shape(args)
    measured = bench.rows(
        args.contexts or DEFAULT_CONTEXTS[bench.plan.device.value],
        cast("tuple[PlacementWish, ...]", placements),
        args.methods or COMPARED,
        **shape,
    )
    rows, complete = follow(measured, args)
    for skipped in bench.skipped:
        tell(f"Not measured: {skipped.placement} at {skipped.context:,} tokens. {skipped.problem}")
    projection = project(bench.machine, seen(rows), tell)
    show(f"\n{PROJECTION}", args)
    for number, predicted in enumerate(projection):
        show(table_line(projection_cells(predicted), header=number == 0), args)
    told = settings(args, bench.model, bench.plan, args.self_draft_bits)
    told |= {"gpu_memory_gib": args.gpu_memory, "placements": list(placements), **shape}
    return finish(
        args,
        bench.machine,
        told,
        rows,
        complete=complete,
        skipped=[asdict(skipped) for skipped in bench.skipped],
        projection={"note": PROJECTION, "rows": projection},
    )


def seen(rows: list[dict[str, Any]]) -> Acceptance | None:
    """TriForce's acceptance in this run, at the longest context; None: not measured."""
    ours = [row for row in rows if row["method"] == "triforce" and row["acceptance_level2"] is not None]
    if not ours:
        return None
    row = max(ours, key=lambda row: int(row["context"]))
    level1, level2 = (min(row[f"acceptance_level{level}"] or 0.0, 0.99) for level in (1, 2))
    return Acceptance(
        level1, level2, f"seen in this run at {row['context']:,} tokens, with the model that was measured"
    )


def projection_cells(row: dict[str, Any]) -> dict[str, Any]:
    """The cells of the table for a projection."""
    names = ("model", "machine", "context", "placement", "resident_layers")
    return {
        **{name: row[name] for name in names},
        "plain_ms": row["plain_ms_per_token"],
        "triforce_ms": row["triforce_ms_per_token"],
        "projected_speedup": row["speedup"],
        "acceptance_level1": row["acceptance1"],
        "acceptance_level2": row["acceptance2"],
    }
