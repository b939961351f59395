"""A rank other than 0: a process that loads its share of the target and carries out rank 0's orders."""

import os
import signal
import threading
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import torch

from core.errors import CoreError
from core.models.loader import LoadedModel, ModelDims
from core.models.weights import load_model
from core.ops.backend import Backend, backend_named
from core.parallel.commands import CacheSizes, Order, Share
from core.parallel.group import Group, RankLost
from core.parallel.shard import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a rank must know to start. Rank 0 has made every choice."""

    rank: int = 0
    num_ranks: int
    meeting: Path  # the file through which the ranks connect
    folder: Path  # the model's files
    overrides: dict[str, Any]  # replaces values of its config.json
    dims: ModelDims  # of one share
    dtype: torch.dtype
    device_type: str  # "cuda": GPU number `rank`
    backend: str
    num_threads: int
    sizes: CacheSizes

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return torch.device("cuda", self.rank) if self.device_type == "cuda" else torch.device(self.device_type)

    def load(self, group: Group, backend: Backend) -> LoadedModel:
        """This rank's share of the weights. Raises what `load_model` raises."""
        divide = partial(cut, rank=self.rank, num_ranks=self.num_ranks, add=group.add)
        return load_model(self.folder, self.dims, self.dtype, self.device, backend, divide, self.overrides)


@dataclass(frozen=True, slots=True)
class Here:
    """The process has started and will connect to the others."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The share is in memory."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of an order: a tensor, as nested lists."""

    values: list[Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank ends."""

    reason: str
    after_another: bool  # it waited for a rank that was lost


def work(assignment: Assignment, line: Connection) -> NoReturn:
    """Run the process. `line` leads to rank 0; when it closes, or rank 0 is gone, the process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches every process of a terminal; rank 0 decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = 1
    try:
        _obey(assignment, line)
    except EOFError:
        code = 0  # rank 0 has closed the line
    except RankLost as error:
        _report(line, Failed(str(error), after_another=True))
    except CoreError as error:
        _report(line, Failed(f"cannot go on: {error.problem.rstrip('.')}", after_another=False))
    except Exception as error:  # last handler of the process: rank 0 shows the message to the user
        _report(line, Failed(f"failed ({type(error).__name__}: {error})", after_another=False))
    os._exit(code)  # skip cleanup, which would wait for kernels that wait for other ranks


def _obey(assignment: Assignment, line: Connection) -> None:
    torch.set_flush_denormal(True)  # as in `LoadedPair.load`
    if assignment.device_type == "cuda":
        torch.cuda.set_device(assignment.device)
    torch.set_num_threads(assignment.num_threads)
    backend = backend_named(assignment.backend, assignment.device, assignment.dtype)
    line.send(Here())
    group = Group(assignment.meeting, assignment.rank, assignment.num_ranks, assignment.device)
    share = Share(assignment.load(group, backend), assignment.sizes, backend)
    line.send(Loaded())
    while True:
        order: Order = line.recv()
        reply = order.carry_out(share)
        if reply is not None:
            line.send(Reply(reply.tolist()))


def _report(line: Connection, failed: Failed) -> None:
    try:
        line.send(failed)
    except OSError:
        return  # rank 0 is gone


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "started by hand"
    wait([parent.sentinel])
    os._exit(1)
