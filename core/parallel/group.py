"""Sums over ranks: NCCL between GPUs, gloo between processes on the CPU; both listen on the loopback only."""

import datetime
import os
import sys
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from core.errors import NotPossibleHere

DIST = cast(Any, dist)  # group objects have no type stubs; they need no process-wide group
MEETING_SECONDS = 120  # time in which the ranks must connect once all of them have started
# Ranks that compute the same pass wait for each other for milliseconds; such a long wait means that a rank hangs.
PATIENCE = datetime.timedelta(seconds=120)
# NCCL's own watchdog would end the whole process of a rank that waits too long, including rank 0 with the page and its
# conversations. Rank 0 watches by itself (`rank_pool.py`), and the other ranks end with it. Read when a group is made.
NO_WATCHDOG = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


class RankLost(RuntimeError):
    """Another rank did not take part in a sum."""


class Group:
    """The ranks of one model. Every rank makes one, and each constructor waits for the others."""

    def __init__(self, meeting: Path, rank: int, num_ranks: int, device: torch.device) -> None:
        """`meeting` is a file that does not exist yet, the same for all ranks; it stays until they end.

        Raises:
            RankLost: the others did not connect.
        """
        self.device = device
        store = DIST.FileStore(str(meeting), num_ranks)
        store.set_timeout(datetime.timedelta(seconds=MEETING_SECONDS))
        try:
            self._backend = _nccl(store, rank, num_ranks) if device.type == "cuda" else _gloo(store, rank, num_ranks)
        except RuntimeError as error:
            raise RankLost(f"did not meet the others ({error})") from error

    def add(self, x: Tensor) -> None:
        """Replace x, contiguous and equally shaped on every rank, by the sum over the ranks: the same bits on each.

        On CUDA it is queued like a kernel.

        Raises:
            RankLost: another rank is gone; on CUDA that may show later, see `abort`.
        """
        try:
            self._backend.allreduce([x]).wait()
        except RuntimeError as error:
            raise RankLost(f"was left alone ({error})") from error

    def abort(self) -> None:
        """Free a process that waits for a lost rank: NCCL's kernels wait for ever, gloo notices by itself."""
        if self.device.type == "cuda":
            self._backend.abort()


def require_group(device_type: str) -> None:
    """Check that processes can sum tensors on this system.

    Raises:
        InvalidSetting: this build of torch has no way to do it (NCCL exists on Linux only).
    """
    has = DIST.is_available() and (DIST.is_nccl_available() if device_type == "cuda" else DIST.is_gloo_available())
    if not has:
        way = "NCCL" if device_type == "cuda" else "gloo"
        raise NotPossibleHere(f"The installed torch comes without {way}.", hint="Leave out --gpus.")


def _gloo(store: object, rank: int, num_ranks: int) -> Any:
    group = DIST.ProcessGroupGloo
    options = group._Options()
    options._devices = [group.create_device(hostname="127.0.0.1")]
    options._timeout = PATIENCE
    return group(store, rank, num_ranks, options)


def _nccl(store: object, rank: int, num_ranks: int) -> Any:
    if sys.platform == "linux":
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # NCCL reads it only when the first group is made
    for name, value in NO_WATCHDOG.items():
        os.environ.setdefault(name, value)
    group = DIST.ProcessGroupNCCL
    options = group.Options()
    options._timeout = PATIENCE
    return group(store, rank, num_ranks, options)
