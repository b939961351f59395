"""A rank other than 0: a process that loads its share of the target and carries out rank 0's orders, in their order.

An order names a method of `Share`, which does on this rank's share what rank 0 did on its own.
It sends None when it has started and when its share is loaded, then what orders return, and `Failed` at its end.
"""

import math
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.policies import LOSSY_POLICIES, chosen_weights, needs_landmarks, selection_policy
from core.caches.retrieval import RetrievalCache
from core.config import RetrievalConfig
from core.errors import CoreError
from core.models.cached_model import CachedModel
from core.models.graphed import GraphedPasses
from core.models.loader import LoadedModel, ModelDims
from core.models.weights import load_model
from core.ops.backend import Backend, backend_named
from core.ops.graphs import Graphs
from core.ops.link import link_rate
from core.parallel.group import Group, RankLost
from core.parallel.shard import cut
from core.planning.measured import measure_sharing


class Order(NamedTuple):
    """Work for every rank; it can be sent."""

    method: str  # of `Share`
    arguments: tuple[Any, ...] = ()


Tell = Callable[[Order], None]


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
    context: int  # tokens; rank 0 makes its own caches of the same sizes
    possible: int
    retrieval: RetrievalConfig
    offload: Offload | None

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return torch.device("cuda", self.rank) if self.device_type == "cuda" else torch.device(self.device_type)

    def load(self, group: Group, backend: Backend) -> LoadedModel:
        """This rank's share of the weights. Raises what `load_model` raises."""
        divide = partial(cut, rank=self.rank, num_ranks=self.num_ranks, add=group.add)
        return load_model(self.folder, self.dims, self.dtype, self.device, backend, divide, self.overrides)


class Share:
    """One rank's model and caches, which carry out rank 0's orders.

    What a method returns is sent to rank 0, unless it is None.
    """

    def __init__(self, assignment: Assignment, model: LoadedModel, backend: Backend, group: Group) -> None:
        self._model, self._config, self._backend, self._group = model, assignment.retrieval, backend, group
        self.full = FullCache(
            model.shape,
            assignment.context,
            self._config.chunk_size,
            possible=assignment.possible,
            backend=backend,
            offload=assignment.offload,
            landmarks=needs_landmarks(self._config),
        )
        self._chooser = selection_policy(self.full, self._config)
        self._retrieval = RetrievalCache(self.full, self._chooser)
        self._aside: dict[int, Any] = {}  # what caches have set aside, by rank 0's numbers
        self._graphs: Graphs | None = None
        self._models: dict[str, CachedModel] = {}

    def _named(self, name: str) -> CachedModel:
        """The model and cache that rank 0 calls by this name, made at its first use; lossy ones are not recorded."""
        if name not in self._models:
            recorded: dict[str, FullCache | RetrievalCache] = {"full": self.full, "retrieval": self._retrieval}
            module, graphs, graphed = self._model.module, self._graphs, None
            if graphs is not None and name in recorded:
                graphed = GraphedPasses(name, module, recorded[name], graphs, backend=self._backend)
            cache = recorded.get(name) or self._lossy(name)
            self._models[name] = CachedModel(name, module, cache, self._model.shape.device, graphed=graphed)
        return self._models[name]

    def _lossy(self, name: str) -> RetrievalCache:
        method = name.partition("-")[0]  # a second lane's name has a number
        return RetrievalCache(self.full, LOSSY_POLICIES[method](self.full, self._config))

    def record(self) -> str:
        """Record passes from now on. Returns why that is not possible; empty: it is."""
        self._graphs = recorder(self._group)
        return self._graphs.failure

    def launch(self) -> None:
        """Launch all operations of a pass one by one."""
        self._graphs = None

    def feed(self, model: str, start: int, tokens: Sequence[int], anew: bool) -> None:
        """One pass; the ranks sum their results on the way. Only rank 0 uses the logits."""
        self._named(model).feed_tokens(tokens, start, 1, anew=anew)
        self._named(model).meter.reset()  # only rank 0 asks how long passes took

    def change(self, model: str, method: str, *arguments: Any) -> None:
        """Call a method of a model's cache."""
        getattr(self._named(model).cache, method)(*arguments)

    def set_aside(self, model: str, method: str, number: int, *arguments: Any) -> None:
        """Keep what a method of a model's cache returns, under a number."""
        self._aside[number] = getattr(self._named(model).cache, method)(*arguments)

    def give_back(self, model: str, method: str, number: int, *arguments: Any) -> None:
        """Give what was kept under a number to a method of a model's cache."""
        getattr(self._named(model).cache, method)(self._aside.pop(number), *arguments)

    # -------------------- answers

    def chunk_weights(self) -> list[Any]:
        """How much each chunk counted in the choice, [C], averaged over this rank's heads."""
        held = self._retrieval.held_chunks()
        return chosen_weights(held, self._chooser.scores).tolist() if held.shape[2] else []

    def measure_link(self, size_bytes: int) -> float:
        """Bytes per second of a copy of this size from host memory; 0 where the device has no room to measure."""
        try:
            return link_rate(self.full.shape.device, size_bytes)[0]
        except torch.OutOfMemoryError:
            return 0.0

    def measure_sharing(self, size_bytes: int) -> tuple[float, float, float]:
        """The numbers of `Sharing`; the host's is infinite where the device has no room to measure."""
        shape, piece = self.full.shape, self.full.host_memory[0].rows.shape[1:]
        try:
            return measure_sharing(piece, shape.num_heads, self.full.chunk_size, shape.dtype, shape.device, size_bytes)
        except torch.OutOfMemoryError:
            return 0.0, math.inf, 0.0


def recorder(group: Group) -> Graphs:
    """What records passes with their sums; every rank makes it at the same time. Its `failure` says why it cannot."""
    graphs = Graphs(group.device, record=group.device.type == "cuda")

    def summed(x: Tensor) -> Tensor:
        out = x.clone()
        group.add(out)
        return out

    graphs.prepare("sum", summed, torch.ones(1))
    graphs.shared = True
    return graphs


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
    line.send(None)  # it will connect to the others
    group = Group(assignment.meeting, assignment.rank, assignment.num_ranks, assignment.device)
    share = Share(assignment, assignment.load(group, backend), backend, group)
    line.send(None)  # the share is in memory
    while True:
        order: Order = line.recv()
        reply = getattr(share, order.method)(*order.arguments)
        if reply is not None:
            line.send(reply)


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
