"""`bench --suite kernels`: attention by the compiled kernel beside torch's; loads no model."""

import argparse

import torch

from app.cli.bench_report import finish, follow, tell
from core.bench.kernels import DEFAULT_KEYS, DIM, HEADS, clock, run_kernels
from core.engine_builder import flush_denormals
from core.errors import InvalidSetting
from core.ops.kernel import small_rows
from core.ops.kernel_build import NoKernel
from core.ops.native import SmallRows
from core.planning.hardware import this_machine

TURNS = 5  # passes are short: --repeats counts fives of them


def run(args: argparse.Namespace) -> int:
    """Measure. Returns 0, or 130 after Ctrl-C; then the results so far are printed.

    Raises:
        InvalidSetting: a length without keys, or a picture is wanted.
    """
    if args.plot:
        raise InvalidSetting("The kernels suite is not drawn.", hint="Leave out --plot, or use --out F.json.")
    contexts = args.contexts or DEFAULT_KEYS
    if min(contexts) < 1:
        raise InvalidSetting("Attention needs at least one key.", hint="Use --contexts 2048,32768.")
    flush_denormals()
    kernel: SmallRows | None = None
    try:
        kernel = small_rows()
    except NoKernel as reason:
        tell(f"Only torch's attention is measured: {reason}.")
    repeats = TURNS * args.repeats
    rows, complete = follow(run_kernels(kernel, contexts, repeats), args)
    told = {"suite": args.suite, "model": f"{HEADS} heads of {DIM}", "device": "cpu", "dtype": "float32"}
    told |= {
        "threads": torch.get_num_threads(),
        "clock": clock().__name__,
        "repeats": repeats,
        "kernel": kernel is not None,
    }
    return finish(args, this_machine(), told, rows, complete=complete)
