"""`python launch.py bench`: measure methods, print a table, end with one JSON document."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from assets.tools.bench import kernels, offload, page, recall
from assets.tools.bench.ablation import Ablation, chosen
from assets.tools.bench.batch import run_batch
from assets.tools.bench.charts import plot
from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.peers import command as peers
from assets.tools.bench.report import bench_config, commit, finish, follow, settings, speed_shape, tell
from assets.tools.bench.speed import run_speed
from assets.tools.widen import WIDENED, pair_files
from core.config import EngineConfig
from core.decoding.registry import COMPARED, EXACT_METHODS, check_method
from core.engine import Engine
from core.engine_info import EngineInfo
from core.errors import InvalidSetting
from core.planning.hardware import this_machine

DEFAULT_CONTEXTS = (4096, 8192, 16384, 32768)
DEFAULT_BATCH_CONTEXTS = (19456,)  # as the TriForce paper, table 4
BATCH_METHODS = ("triforce", "triforce-lookup", "retrieval", "lookup")
DEFAULT_PAGE_CONTEXTS = DEFAULT_ABLATION_CONTEXTS = (8192,)
ALONE = {"offload": offload.run, "kernels": kernels.run, "peers": peers.run}  # suites that load what they measure


def run(args: argparse.Namespace) -> int:
    """Measure. Returns 0, or 130 after Ctrl-C; then the results so far are printed, marked as incomplete.

    Raises:
        CoreError: settings, model or memory.
    """
    check(args)
    if args.suite in ALONE:
        return ALONE[args.suite](args)
    info, config, shape, measured = start(args)
    rows, complete = follow(measured, args)
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
    return finish(args, this_machine(), told, rows, complete=complete)


def check(args: argparse.Namespace) -> None:
    """Refuse settings that cannot be measured, before anything is loaded.

    Raises:
        InvalidSetting: methods, numbers or picture.
    """
    if args.plot:
        plot.check(args.plot)
    if args.repeats < 1:
        raise InvalidSetting("At least one repeat is needed.", hint="Use --repeats 3.")
    if args.books < 1:
        raise InvalidSetting("At least one book is needed.", hint="Use --books 3.")
    if args.batch is not None and (args.batch < 2 or args.suite != "speed"):
        raise InvalidSetting("--batch decodes at least two conversations in the speed suite.", hint="Use --batch 6.")
    if args.batch is not None and args.plot:
        raise InvalidSetting("Batches are not drawn.", hint="Leave out --plot, or use --out F.json.")
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


def start(args: argparse.Namespace) -> tuple[EngineInfo, EngineConfig, dict[str, Any], Iterator[Any]]:
    """Load the engine; its info, its settings, the description of the measurement, and the iterator of rows."""
    config = bench_config(args)
    if args.suite != "ablation":
        engine = Engine.load(config, pair_files(config))
        return engine.info, engine.config, *start_suite(args, engine)
    contexts = args.contexts or DEFAULT_ABLATION_CONTEXTS
    shape = speed_shape(args) | {"books": args.books, "counted": args.counts}
    shape["repeats"] = 1 if args.counts else args.repeats  # counts are the same in every run
    chosen(args.parts or ())
    ablation = Ablation(config, max(contexts) + shape["max_new_tokens"])
    depends = {"suite": args.suite, "config": asdict(ablation.config), "commit": commit(), **shape}
    more = {"parts": args.parts or (), "minutes": args.minutes, "progress": tell}
    measured = ablation.rows(contexts, **shape, checkpoint=Checkpoint(args.checkpoint, depends), **more)
    return ablation.info, ablation.config, shape, _whole(ablation, measured)


def _whole(ablation: Ablation, measured: Iterator[Any]) -> Iterator[Any]:
    """The rows; ends like Ctrl-C if the minutes were over before the last one."""
    yield from measured
    if ablation.out_of_time:
        tell("The minutes are over. With --checkpoint the same command goes on where it ended.")
        raise KeyboardInterrupt


def start_suite(args: argparse.Namespace, engine: Engine) -> tuple[dict[str, Any], Iterator[Any]]:
    """The description of the suite's measurement, and the iterator of its rows."""
    if args.suite == "recall":
        methods: Sequence[str] = args.methods or recall.DEFAULT_METHODS
        contexts: Sequence[int] = args.contexts or recall.DEFAULT_CONTEXTS
        skills: Sequence[str] = args.skills or recall.SKILLS
        shape: dict[str, Any] = {"skills": list(skills), "questions": args.questions, "seed": args.seed}
        return shape, recall.run_recall(engine, contexts, methods, **shape, progress=tell)
    contexts = args.contexts or DEFAULT_CONTEXTS
    shape = speed_shape(args)
    if args.suite == "page":
        contexts = args.contexts or DEFAULT_PAGE_CONTEXTS
        return shape, page.run_page(engine, contexts, args.methods or COMPARED, **shape)
    if args.batch is not None:
        contexts, methods = args.contexts or DEFAULT_BATCH_CONTEXTS, args.methods or BATCH_METHODS
        shape["batch"] = args.batch
        return shape, run_batch(engine, contexts, methods, **shape, tell=tell)
    shape["books"] = args.books
    return shape, run_speed(engine, contexts, args.methods or EXACT_METHODS, **shape)
