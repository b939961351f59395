"""`python launch.py bench`: measure methods, print a table, end with one JSON document."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from assets.tools.bench import kernels, offload, page, plot, recall
from assets.tools.bench.ablation import Ablation, chosen
from assets.tools.bench.batch import run_batch
from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.peers import suite as peers
from assets.tools.bench.report import Measurement, bench_config, commit, measure, settings, speed_shape, tell
from assets.tools.bench.speed import Row, run_speed
from assets.tools.widen import WIDENED, pair_files
from core.config import EngineConfig
from core.decoding.registry import COMPARED, EXACT_METHODS, check_method
from core.engine import Engine
from core.engine_info import EngineInfo
from core.errors import InvalidSetting

DEFAULT_CONTEXTS = (4096, 8192, 16384, 32768)
DEFAULT_BATCH_CONTEXTS = (19456,)  # as the TriForce paper, table 4
BATCH_METHODS = ("triforce", "triforce-lookup", "retrieval", "lookup")
DEFAULT_PAGE_CONTEXTS = DEFAULT_ABLATION_CONTEXTS = (8192,)


def run(args: argparse.Namespace) -> int:
    """Measure. Returns 0, or 130 after Ctrl-C; then the results so far are printed, marked as incomplete.

    Raises:
        CoreError: settings, model or memory.
    """
    check(args)
    return measure(args, ALONE.get(args.suite, start)(args))


def check(args: argparse.Namespace) -> None:
    """Refuse settings that cannot be measured, before anything is loaded.

    Raises:
        InvalidSetting: methods, numbers or picture.
    """
    if args.plot:
        plot.check(args.plot)
    suite, batch, is_widened = args.suite, args.batch is not None, (args.model or "").startswith(WIDENED)
    for wrong, problem, hint in (
        (args.repeats < 1, "At least one repeat is needed.", "Use --repeats 3."),
        (args.books < 1, "At least one book is needed.", "Use --books 3."),
        (args.questions < 1, "At least one question is needed.", "Use --questions 100."),
        (
            batch and (args.batch < 2 or suite != "speed"),
            "--batch is of 2 or more, in the speed suite.",
            "Use --batch 6.",
        ),
        (batch and args.plot, "Batches are not drawn.", "Leave out --plot."),
        (suite == "kernels" and args.plot, "The kernels suite is not drawn.", "Leave out --plot."),
        (suite == "recall" and args.max_new_tokens, "Recall sets how long answers are.", "Leave out --max-new-tokens."),
        (suite == "ablation" and args.methods, "The variants have their methods.", "Leave out --methods."),
        (suite == "peers" and is_widened, "Peers read files; a widened model has none.", "Use --suite speed."),
    ):
        if wrong:
            raise InvalidSetting(problem, hint=hint)
    for name in args.skills or ():
        if name not in recall.SKILLS:
            raise InvalidSetting(f"There is no skill {name!r}.", hint=f"Use some of: {', '.join(recall.SKILLS)}.")
    for name in args.methods or ():
        check_method(name)


def start(args: argparse.Namespace) -> Measurement:
    """Load the engine and begin."""
    config = bench_config(args)
    engine = Engine.load(config, pair_files(config))
    return described(args, engine.info, engine.config, *start_suite(args, engine))


def start_ablation(args: argparse.Namespace) -> Measurement:
    """Load the weights and begin."""
    contexts = args.contexts or DEFAULT_ABLATION_CONTEXTS
    shape = speed_shape(args) | {"books": args.books, "counted": args.counts}
    shape["repeats"] = 1 if args.counts else args.repeats  # counts are the same in every run
    chosen(args.parts or ())
    ablation = Ablation(bench_config(args), max(contexts) + shape["max_new_tokens"])
    depends = {"suite": args.suite, "config": asdict(ablation.config), "commit": commit(), **shape}
    checkpoint = Checkpoint(args.checkpoint, depends)
    measured = ablation.rows(contexts, **shape, checkpoint=checkpoint, parts=args.parts or (), progress=tell)
    return described(args, ablation.info, ablation.config, shape, measured)


def described(
    args: argparse.Namespace, info: EngineInfo, config: EngineConfig, shape: dict[str, Any], rows: Iterator[Row]
) -> Measurement:
    """The measurement of an engine."""
    told = settings(args, info.model, info.plan, config.self_draft_bits) | {
        "placement": info.plan.placement.value,
        "attention": info.attention,
        "attention_because": info.attention_because,
        "graphs": info.graphs.value,
        "target_weight_bytes": info.target_weight_bytes,
        "kv_bytes_per_token": info.kv_bytes_per_token,
        "retrieval": asdict(config.retrieval),
        "draft": asdict(config.draft),
        **shape,
    }
    return Measurement(told, rows)


def start_suite(args: argparse.Namespace, engine: Engine) -> tuple[dict[str, Any], Iterator[Row]]:
    """The description of the suite's measurement, and the iterator of its rows."""
    contexts, methods, shape = args.contexts, args.methods, speed_shape(args)
    if args.suite == "recall":
        shape = {"skills": list(args.skills or recall.SKILLS), "questions": args.questions, "seed": args.seed}
        contexts, methods = contexts or recall.DEFAULT_CONTEXTS, methods or recall.DEFAULT_METHODS
        return shape, recall.run_recall(engine, contexts, methods, **shape, progress=tell)
    if args.suite == "page":
        return shape, page.run_page(engine, contexts or DEFAULT_PAGE_CONTEXTS, methods or COMPARED, **shape)
    if args.batch is not None:
        shape["batch"] = args.batch
        contexts, methods = contexts or DEFAULT_BATCH_CONTEXTS, methods or BATCH_METHODS
        return shape, run_batch(engine, contexts, methods, **shape, tell=tell)
    shape["books"] = args.books
    return shape, run_speed(engine, contexts or DEFAULT_CONTEXTS, methods or EXACT_METHODS, **shape)


ALONE = {  # suites that load what they measure
    "ablation": start_ablation,
    "offload": offload.start,
    "kernels": kernels.start,
    "peers": peers.start,
}
