"""Watching processes: what wakes up whoever waits for a lost one."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from core.errors import InvalidSetting
from core.parallel import group
from core.parallel.group import NO_WATCHDOG, PATIENCE
from core.parallel.rank_pool import Watch


@pytest.mark.parametrize(
    ("lost", "over", "passed", "aborts"),
    [
        (True, False, None, 1),  # whoever waits for a lost rank wakes up
        (True, True, None, 0),  # ranks that end when all is done
        (False, True, 1.1, 0),
        (False, False, None, 0),
        (False, False, 0.9, 0),
        (False, False, 1.1, 1),  # a rank that is there and does not answer
    ],
)
def test_a_lost_rank_and_a_pass_that_hangs_wake_up_whoever_waits(
    lost: bool, over: bool, passed: float | None, aborts: int
) -> None:
    """`passed`: how long a pass has been running, as a share of our patience."""
    sentinel, process = os.pipe()
    watch, seen = Watch(), []
    watch.begun = None if passed is None else time.monotonic() - passed * PATIENCE.total_seconds()
    if over:
        watch.over.set()
    if lost:
        os.close(process)
    thread = threading.Thread(target=watch.run, args=([sentinel], lambda: seen.append(1)))
    thread.start()
    thread.join(60 if aborts or over else 0.1)
    watch.over.set()
    thread.join(10)
    assert not thread.is_alive() and (len(seen), watch.noticed.is_set()) == (aborts, bool(aborts))
    for end in (sentinel,) if lost else (sentinel, process):
        os.close(end)


def test_only_a_pass_that_runs_takes_time() -> None:
    watch = Watch()
    with pytest.raises(KeyError), watch.passing():
        assert watch.begun is not None
        raise KeyError
    assert watch.begun is None


def test_nccl_s_own_watchdog_ends_no_process_and_a_torch_without_nccl_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would end rank 0, and with it the page, after a rank has hung for as long as our patience."""
    made: list[dict[str, str | None]] = []
    for name in (*NO_WATCHDOG, "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "unset")  # so that it is put back
        monkeypatch.delenv(name)

    class Nccl:
        Options = SimpleNamespace

        def __init__(self, *_: object) -> None:
            made.append({name: os.environ.get(name) for name in NO_WATCHDOG})

    monkeypatch.setattr(group.DIST, "ProcessGroupNCCL", Nccl, raising=False)
    group._nccl(None, 0, 2)
    wanted = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")
    assert made == [dict.fromkeys(wanted, "0")]
    group.require_group("cpu")
    monkeypatch.setattr(group.DIST, "is_nccl_available", lambda: False)
    with pytest.raises(InvalidSetting, match="without NCCL"):
        group.require_group("cuda")
