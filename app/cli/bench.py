"""`python launch.py bench`: measure methods, print a table, end with one JSON document."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.cli import page_cost
from app.cli.charts import plot
from app.cli.reading import print_json
from app.runtime.options import engine_config
from app.runtime.versions import versions
from core.bench import recall
from core.bench.ablation import Ablation
from core.bench.peers import run_peers
from core.bench.speed import run_speed
from core.config import EngineConfig, RetrievalConfig
from core.decoding.registry import COMPARED, EXACT_METHODS, check_method
from core.engine import Engine
from core.engine_info import EngineInfo
from core.errors import InvalidSetting
from core.models.hub.catalog import ROOT, WIDENED, find
from core.planning.hardware import this_machine

DEFAULT_CONTEXTS = (4096, 8192, 16384, 32768)
DEFAULT_NEW_TOKENS = 128
DEFAULT_PAGE_CONTEXTS = DEFAULT_ABLATION_CONTEXTS = (8192,)
BENCH_SEED = 900_000  # far from the seeds of training and of the sample books
INTERRUPTED = 130  # as launch.py ends on Ctrl-C
COLUMNS = {  # of a row -> head of its column, format of its value
    "context": ("context", "{:,}"),
    "model": ("model", "{}"),
    "machine": ("machine", "{}"),
    "placement": ("placement", "{}"),
    "resident_layers": ("resident", "{}"),
    "part": ("part", "{}"),
    "variant": ("set to", "{}"),
    "method": ("method", "{}"),
    "skill": ("skill", "{}"),
    "n": ("n", "{}"),
    "exact": ("exact", "{:.2f}"),
    "exact_interval": ("95%", "{0[0]:.2f}-{0[1]:.2f}"),
    "f1": ("F1", "{:.2f}"),
    "prefix_share": ("share", "{:.2f}"),
    "new_tokens": ("tokens", "{:,}"),
    "ms_per_token": ("ms/token", "{:.2f}"),
    "speedup_vs_autoregressive": ("speedup", "{:.2f}x"),
    "speedup_by_book": ("by book", "{}"),
    "ratio_to_ours": ("to ours", "{:.2f}x"),
    "alone_ms_per_token": ("alone ms", "{:.2f}"),
    "page_ms_per_token": ("page ms", "{:.2f}"),
    "page_over_alone": ("page/alone", "{:.3f}x"),
    "client": ("client", "{}"),
    "acceptance_level1": ("level 1", "{:.2f}"),
    "acceptance_level2": ("level 2", "{:.2f}"),
    "plain_ms": ("plain ms", "{:.0f}"),
    "triforce_ms": ("TriForce ms", "{:.0f}"),
    "projected_speedup": ("speedup", "{:.1f}x"),
    "prefill_link_bytes": ("read over link", "{:,}"),
    "host_share": ("by host", "{:.2f}"),
    "link_gb_per_second": ("link GB/s", "{:.2f}"),
    "link_share": ("of copy", "{:.2f}"),
    "identical_to_first": ("same", "{}"),
    "tokens_per_full_pass": ("per pass", "{:.1f}"),
    "identical_to_autoregressive": ("same", "{}"),
    "near_ties": ("near", "{}"),
    "compared": ("of", "{}"),
    "same_tokens": ("same", "{}"),
    "memory_over_kv": ("memory/KV", "{:.2f}"),
    "prefill_seconds": ("prefill s", "{:.1f}"),
}
WIDTHS = {
    "part": 23,
    "variant": 22,
    "speedup_by_book": 14,
    "method": 27,
    "model": 16,
    "placement": 9,
    "skill": 10,
    "n": 4,
    "exact_interval": 10,
    "near_ties": 5,
    "compared": 5,
    "client": 24,
}


def run(args: argparse.Namespace) -> int:
    """Measure. Returns 0, or 130 if Ctrl-C ended it; then the results so far are told, marked as not complete.

    Raises:
        CoreError: settings, model or memory.
    """
    check(args)
    if args.suite == "offload":
        from app.cli import bench_offload  # it tells its rows as this module does

        return bench_offload.run(args)
    info, config, shape, measured = start(args)
    rows: list[dict[str, Any]] = []
    complete = True
    try:
        for row in measured:
            rows.append(asdict(row))
            header = len(rows) == 1 or rows[-1]["context"] != rows[-2]["context"]
            print(table_line(rows[-1], header=header), file=sys.stderr if args.json else sys.stdout, flush=True)
    except KeyboardInterrupt:
        complete = False
        print("Interrupted: these are the results so far.", file=sys.stderr)
    document = {
        "hardware": asdict(this_machine()),
        "versions": versions(),
        "commit": commit(),
        "config": {
            "suite": args.suite,
            "model": info.model,
            "bits": info.plan.bits.value,
            "drafting_bits": config.drafting_bits,
            "device": info.plan.device.value,
            "dtype": str(info.plan.dtype.value).removeprefix("torch."),
            "placement": info.plan.placement.value,
            "attention": info.attention,
            "attention_because": info.attention_because,
            "graphs": info.graphs.value,
            "target_weight_bytes": info.target_weight_bytes,
            "kv_bytes_per_token": info.kv_bytes_per_token,
            "retrieval": asdict(config.retrieval),
            "draft": asdict(config.draft),
            **shape,
        },
        "complete": complete,
        "rows": rows,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(document, indent=1), encoding="utf-8")
    if args.json:
        print_json(document)
    if args.plot:
        plot.keep(document, args.plot)
    return 0 if complete else INTERRUPTED


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded.

    Raises:
        InvalidSetting: methods, numbers or picture.
    """
    if args.plot:
        plot.check(args.plot)
    if args.repeats < 1:
        raise InvalidSetting("At least one repeat is needed.", hint="Use --repeats 3.")
    if args.books < 1:
        raise InvalidSetting("At least one book is needed.", hint="Use --books 3.")
    if args.questions < 1:
        raise InvalidSetting("At least one question is needed.", hint="Use --questions 100.")
    if args.suite == "recall" and args.max_new_tokens:
        raise InvalidSetting("Recall sets the length of answers by skill.", hint="Leave out --max-new-tokens.")
    for name in args.skills or ():
        if name not in recall.SKILLS:
            raise InvalidSetting(f"There is no skill {name!r}.", hint=f"Use some of: {', '.join(recall.SKILLS)}.")
    if args.suite == "peers" and (args.model or "").startswith(WIDENED):
        raise InvalidSetting(
            "Peers read models from their files, and a widened one has none.", hint="Use --suite speed."
        )
    if args.suite == "ablation" and args.methods:
        raise InvalidSetting("The variants have their methods.", hint="Leave out --methods, or use --suite speed.")
    for name in args.methods or ():
        check_method(name)


def bench_config(args: argparse.Namespace) -> EngineConfig:
    """The settings of the common options, with the retrieval budget asked for."""
    config = engine_config(args)
    return replace(config, retrieval=RetrievalConfig(budget=args.budget)) if args.budget is not None else config


def start(args: argparse.Namespace) -> tuple[EngineInfo, EngineConfig, dict[str, Any], Iterator[Any]]:
    """Load what is measured; what it is, its settings, what describes the measurement, and the rows to come."""
    config = bench_config(args)
    if args.suite != "ablation":
        engine = Engine.load(config)
        return engine.info, engine.config, *start_suite(args, engine)
    contexts = args.contexts or DEFAULT_ABLATION_CONTEXTS
    shape = _speed_shape(args) | {"books": args.books}
    ablation = Ablation(config, max(contexts) + shape["max_new_tokens"])
    return ablation.info, ablation.config, shape, ablation.rows(contexts, **shape, progress=tell)


def _speed_shape(args: argparse.Namespace) -> dict[str, Any]:
    new_tokens = args.max_new_tokens or DEFAULT_NEW_TOKENS
    return {"repeats": args.repeats, "max_new_tokens": new_tokens, "seed": args.seed + BENCH_SEED}


def start_suite(args: argparse.Namespace, engine: Engine) -> tuple[dict[str, Any], Iterator[Any]]:
    """What describes the suite's measurement, and its rows to come."""
    if args.suite == "recall":
        methods: Sequence[str] = args.methods or recall.DEFAULT_METHODS
        contexts: Sequence[int] = args.contexts or recall.DEFAULT_CONTEXTS
        skills: Sequence[str] = args.skills or recall.SKILLS
        shape: dict[str, Any] = {"skills": list(skills), "questions": args.questions, "seed": args.seed}
        return shape, recall.run_recall(engine, contexts, methods, **shape, progress=tell)
    contexts = args.contexts or DEFAULT_CONTEXTS
    shape = _speed_shape(args)
    if args.suite == "page":
        contexts = args.contexts or DEFAULT_PAGE_CONTEXTS
        return shape, page_cost.run_page(engine, contexts, args.methods or COMPARED, **shape)
    if args.suite == "peers":
        return shape, run_peers(engine, find(engine.config.model).target, contexts, **shape)
    shape["books"] = args.books
    return shape, run_speed(engine, contexts, args.methods or EXACT_METHODS, **shape)


def tell(line: str) -> None:
    """Progress, for people."""
    print(line, file=sys.stderr, flush=True)


def table_line(row: dict[str, Any], *, header: bool) -> str:
    """One row of the table, with the header before the first."""
    names = [name for name in COLUMNS if name in row]
    width = {name: WIDTHS.get(name, max(len(COLUMNS[name][0]), 8)) for name in names}
    cells = [cell(name, row[name]).rjust(width[name]) for name in names]
    head = " ".join(COLUMNS[name][0].rjust(width[name]) for name in names)
    return (head + "\n" if header else "") + " ".join(cells)


def cell(name: str, value: Any) -> str:
    """A value as the table shows it."""
    if name == "speedup_by_book":
        return " ".join(f"{ratio:.2f}" for ratio in value)
    return "-" if value is None else COLUMNS[name][1].format(value)


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
