"""`bench --suite peers`: this program beside others, on the processor; makes their environments itself."""

import argparse
import hashlib
import sys
from dataclasses import asdict

import psutil

from app.context.context_documents import Library
from app.documents.bundle import read_documents
from app.runtime.data_folder import data_dir
from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.peers.process import NotMeasured
from assets.tools.bench.peers.suite import Peers, Weights
from assets.tools.bench.report import BENCH_SEED, commit, finish, follow, tell
from core.errors import InvalidSetting
from core.models.hub.catalog import BUNDLED
from core.models.hub.draft_selection import pair
from core.planning.hardware import this_machine

DEFAULT_NEW_TOKENS = 256
BOOK_CONTEXTS, TEXT_CONTEXTS = (8192, 32768, 65536), (2000, 8000, 24000)


def run(args: argparse.Namespace) -> int:
    """Measure. Returns 0, or 130 after Ctrl-C or when the minutes are over; then the results so far are printed.

    Raises:
        CoreError: settings or model.
    """
    if args.device == "cuda":
        raise InvalidSetting("Peers are measured on the processor.", hint="Leave out --device.")
    entry = pair(args.model or BUNDLED, args.draft or "auto")
    weights = Weights(target=entry.target, draft=entry.draft)
    text = Library.of(read_documents(args.text)).text if args.text else ""
    threads = psutil.cpu_count(logical=False) or 1
    shape = {
        "repeats": args.repeats,
        "max_new_tokens": args.max_new_tokens or DEFAULT_NEW_TOKENS,
        "seed": args.seed + BENCH_SEED,
    }
    depends = {
        "suite": args.suite,
        "model": entry.name,
        "weights": weights.digest(),
        "text": hashlib.sha256(text.encode()).hexdigest(),
        "threads": threads,
        **shape,
        "commit": commit(),
    }
    checkpoint = Checkpoint(args.checkpoint, depends)
    chosen = {"only": args.peers or (), "parts": args.parts or ()}
    peers = Peers(weights, data_dir(args.data_dir) / "peers", threads=threads, **chosen, tell=tell)
    programs = peers.prepare(sys.executable, offline=args.offline)
    contexts = args.contexts or (TEXT_CONTEXTS if text else BOOK_CONTEXTS)
    measured = peers.rows(contexts, **shape, checkpoint=checkpoint, minutes=args.minutes, text=text)
    try:
        rows, complete = follow(measured, args)
    except NotMeasured as error:
        raise InvalidSetting(f"The prompt could not be written: {error}.", hint="Use other --contexts.") from error
    if peers.out_of_time:
        tell("The minutes are over. The same command goes on where it ended.")
    told = {"suite": args.suite, "model": entry.name, "device": "cpu", "dtype": "float32", "threads": threads, **shape}
    skipped = [asdict(one) for one in peers.skipped]
    complete = complete and not peers.out_of_time
    return finish(args, this_machine(), told, rows, complete=complete, skipped=skipped, programs=programs)
