"""The other ranks as rank 0 sees them: start, orders, questions, supervision, end.

A lost rank ends the run: its pass, and every later one, raises WorkerLost with the rank's last message. No rank
outlives rank 0.
"""

import logging
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from core.caches.full_parts import Offload
from core.config import EngineConfig
from core.errors import WorkerLost
from core.models.loader import NOTHING, LoadedModel
from core.ops.backend import Backend
from core.ops.graphs import Graphs
from core.ops.link import LINK_BYTES
from core.ops.threads import most_threads, set_most_threads
from core.parallel.group import PATIENCE, Group, RankLost, require_group
from core.parallel.worker import Assignment, Failed, Order, recorder, work
from core.planning.choices import Choice
from core.planning.measured import SHARING_BYTES, Sharing
from core.planning.plan import Plan

log = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 5.0  # time for a failing rank to say why, or to be seen dead
LEAVE_SECONDS = 2.0  # time for a rank to end by itself
WATCH_SECONDS = 0.5

Found = TypeVar("Found")


class Watch:
    """Frees rank 0 when a rank ends or a pass lasts too long: NCCL's kernels would wait for the rank for ever."""

    def __init__(self) -> None:
        self.noticed, self.over = threading.Event(), threading.Event()
        self.begun: float | None = None  # of the running pass

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around a pass, until the device has finished it."""
        self.begun = time.monotonic()
        try:
            yield
        finally:
            self.begun = None

    def run(self, sentinels: Sequence[int], abort: Callable[[], None]) -> None:
        """Until `over`, or until something was noticed; in a thread of its own."""
        while not self.over.is_set():
            lost: Any = wait(sentinels, WATCH_SECONDS)
            begun = self.begun
            hangs = begun is not None and time.monotonic() - begun > PATIENCE.total_seconds()
            if (lost or hangs) and not self.over.is_set():
                self.noticed.set()
                abort()
                return


class RankPool:
    """Ranks 1 to n - 1 of a target. Not thread-safe: it belongs to the engine's owner."""

    def __init__(self, assignment: Assignment) -> None:
        """Start the processes and connect. Cost: seconds, as each imports torch and transformers.

        Raises:
            WorkerLost: one of them did not start.
        """
        self.num_ranks, self.device = assignment.num_ranks, assignment.device
        self.graphs: Graphs | None = None  # what records passes on every rank, after `record`
        self._failure: WorkerLost | None = None
        self._reports: dict[int, Failed] = {}
        self._lines: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._watch, self._threads_before = Watch(), most_threads()
        parts = self._processes, self._lines, self._watch, assignment.meeting.parent
        self._end = weakref.finalize(self, _end, *parts)
        context = get_context("spawn")
        for rank in range(1, assignment.num_ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(replace(assignment, rank=rank), theirs), daemon=True)
            process.start()
            theirs.close()  # so that the connection closes when the process ends
            self._lines.append(ours)
            self._processes.append(process)
        self.hear()
        try:
            self.group = Group(assignment.meeting, 0, assignment.num_ranks, assignment.device)
        except RankLost as error:
            raise self._lose() from error
        set_most_threads(assignment.num_threads)
        sentinels = [process.sentinel for process in self._processes]
        threading.Thread(target=self._watch.run, args=(sentinels, self.group.abort), name="ranks", daemon=True).start()

    # -------------------- telling

    def tell(self, order: Order) -> None:
        """Send an order to every rank, outside of a pass. A lost rank shows in the next pass."""
        if self._failure is not None or not self._end.alive:
            return
        try:
            for line in self._lines:
                line.send(order)
        except OSError:
            self._lose()

    @contextmanager
    def leading(self, model: str, start: int, tokens: Sequence[int], anew: bool) -> Iterator[None]:
        """Around rank 0's pass: every rank runs the same one, and records it `anew` where rank 0 does.

        Raises:
            WorkerLost: a rank is gone, before the pass or in it.
        """
        self.tell(Order("feed", (model, start, tuple(tokens), anew)))
        self._check()
        try:
            if self.device.type != "cuda":  # gloo itself gives up on a rank that hangs
                yield
            else:
                with self._watch.passing():
                    yield
                    torch.cuda.current_stream(self.device).synchronize()
                if self._watch.noticed.is_set():
                    raise RankLost("was aborted")  # results after that would be junk
        except RankLost as error:
            raise self._lose() from error
        except BaseException as error:  # the other ranks are still in the middle of this pass
            self._failure = WorkerLost(0, self.num_ranks, f"left a pass ({type(error).__name__})")
            self.close()
            raise

    def _check(self) -> None:
        if self._failure is None and not self._end.alive:
            self._failure = WorkerLost(1, self.num_ranks, "was ended")
        if self._failure is not None:
            raise self._failure

    # -------------------- asking

    def record(self) -> None:
        """Record passes from now on, if every rank can record sums; before any pass.

        Raises:
            WorkerLost: a rank is gone, or hangs.
        """
        with self._watch.passing():
            mine, others = self._answers(Order("record"), lambda: recorder(self.group))
        if failure := next(filter(None, (mine.failure, *others)), None):
            log.warning("passes are not recorded: %s", failure)
            self.tell(Order("launch"))
        else:
            self.graphs = mine

    def chunk_weights(self, own: Tensor) -> Tensor:
        """Weights [C] averaged over all heads, including rank 0's own."""
        others = self._answers(Order("chunk_weights"), lambda: None)[1]
        return torch.stack([own, *(torch.tensor(said, dtype=own.dtype, device=own.device) for said in others)]).mean(0)

    def link(self, own: Callable[[], Choice[float]], size_bytes: int = LINK_BYTES) -> Choice[float]:
        """The slowest of all ranks' links, measured at the same time by copies of one size; `own` measures rank 0's.

        Raises:
            Whatever `own` raises.
        """
        mine, others = self._answers(Order("measure_link", (size_bytes,)), own)
        rates = [mine.value, *others]
        each = ", ".join(
            f"rank {rank} {rate / 1e9:.1f} GB/s" if rate else f"rank {rank} not measured"
            for rank, rate in enumerate(rates)
        )
        because = f"{mine.because}; measured at the same time, the slowest limits a pass: {each}"
        return Choice(min(filter(None, rates)), because)

    def sharing(self, own: Callable[[], Sharing], size_bytes: int = SHARING_BYTES) -> Sharing:
        """The slowest link and the slowest part of the host, all measured at the same time; `own` measures rank 0's.

        Raises:
            Whatever `own` raises.
        """
        mine, others = self._answers(Order("measure_sharing", (size_bytes,)), own)
        return Sharing(*(max(seconds) for seconds in zip(mine, *others, strict=True)))

    def _answers(self, order: Order, own: Callable[[], Found]) -> tuple[Found, list[Any]]:
        """Rank 0's answer and the others', found at the same time; all are received even if `own` raises."""
        self.tell(order)
        self._check()
        try:
            mine = own()
        finally:
            others = self.hear()
        return mine, others

    def hear(self) -> list[Any]:
        """Receive one message from every rank.

        Raises:
            WorkerLost: a rank has failed instead.
        """
        heard = []
        for rank, (line, process) in enumerate(zip(self._lines, self._processes, strict=True), 1):
            wait([line, process.sentinel])
            try:
                said = line.recv()
            except (EOFError, OSError):
                raise self._lose() from None
            if isinstance(said, Failed):
                self._reports[rank] = said
                raise self._lose()
            heard.append(said)
        return heard

    # -------------------- losing

    def _lose(self) -> WorkerLost:
        """Find out which rank was lost and why, and end the others."""
        until = time.monotonic() + LAST_WORDS_SECONDS
        while (cause := self._cause()) is None and time.monotonic() < until:
            time.sleep(0.02)
        self.close()
        reports = [(rank, said.reason) for rank, said in self._reports.items()]
        rank, reason = cause or (*reports, (1, "does not answer"))[0]
        self._failure = WorkerLost(rank, self.num_ranks, reason)
        return self._failure

    def _cause(self) -> tuple[int, str] | None:
        """The rank that failed first: one that reports it, or one that died silently."""
        for rank, line in enumerate(self._lines, 1):
            try:
                while line.poll():
                    said = line.recv()
                    if isinstance(said, Failed):
                        self._reports[rank] = said
            except (EOFError, OSError):
                continue
        for rank, said in self._reports.items():
            if not said.after_another:
                return rank, said.reason
        for rank, process in enumerate(self._processes, 1):
            code = process.exitcode
            if code is not None and rank not in self._reports:
                return rank, f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return None

    def close(self) -> None:
        """End every process. Closing twice is harmless."""
        if self._end.alive:
            set_most_threads(self._threads_before)
        self._end()


def _end(processes: Sequence[BaseProcess], lines: Sequence[Connection], watch: Watch, meeting: Path) -> None:
    watch.over.set()
    for line in lines:
        line.close()
    until = time.monotonic() + LEAVE_SECONDS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    shutil.rmtree(meeting, ignore_errors=True)


def load_shared(
    folder: Path,
    config: EngineConfig,
    plan: Plan,
    backend: Backend,
    offload: Offload | None = None,
    overrides: Mapping[str, Any] = NOTHING,
    *,
    recorded: bool = False,
) -> tuple[RankPool, LoadedModel]:
    """Load a target over `config.num_gpus` ranks at the same time, rank 0's share here.

    Args:
        plan: of one share. recorded: record passes, if sums can be.
    Raises:
        WorkerLost: a process did not start. InvalidSetting: torch cannot do it here. DamagedAssets, UnsupportedModel:
            see `load_model`.
    """
    require_group(plan.device.value)
    assignment = Assignment(
        num_ranks=config.num_gpus,
        meeting=Path(tempfile.mkdtemp(prefix="triforce-ranks-")) / "ranks",
        folder=folder,
        overrides=dict(overrides),
        dims=plan.target,
        dtype=plan.dtype.value,
        device_type=plan.device.value,
        backend=backend.name,
        num_threads=max(1, most_threads() // config.num_gpus),
        context=plan.context.value,
        possible=min(plan.target.max_context, plan.most_context),
        retrieval=config.retrieval,
        offload=offload,
    )
    ranks = RankPool(assignment)
    try:
        model = assignment.load(ranks.group, backend)
        ranks.hear()
        if recorded:
            ranks.record()
    except BaseException:
        ranks.close()
        raise
    return ranks, model
