"""Watching processes: what wakes up whoever waits for a lost one."""

import os
import threading
from types import SimpleNamespace

import pytest

from core.errors import InvalidSetting
from core.parallel import group
from core.parallel.group import PATIENCE
from core.parallel.rank_pool import PassClock, watch_ranks


class Pass(PassClock):
    """Runs for so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @property
    def seconds(self) -> float:
        return self._seconds


def watched(*, lost: bool, done: bool, passed: float = 0.0) -> tuple[int, bool]:
    """How often the group was aborted, and whether the loss was noticed; `passed`: seconds that a pass has taken."""
    sentinel, process = os.pipe()
    noticed, over, aborts = threading.Event(), threading.Event(), []
    if done:
        over.set()
    if lost:
        os.close(process)
    thread = threading.Thread(
        target=watch_ranks, args=([sentinel], noticed, over, lambda: aborts.append(1), Pass(passed))
    )
    thread.start()
    if not lost:
        thread.join(60 if passed > PATIENCE.total_seconds() else 0.1)
        over.set()
    thread.join(10)
    assert not thread.is_alive()
    os.close(sentinel)
    if not lost:
        os.close(process)
    return len(aborts), noticed.is_set()


def test_a_lost_process_wakes_up_whoever_waits_for_it() -> None:
    assert watched(lost=True, done=False) == (1, True)


@pytest.mark.parametrize("lost", [True, False])
def test_processes_that_end_when_all_is_done_wake_up_nobody(lost: bool) -> None:
    assert watched(lost=lost, done=True) == (0, False)


@pytest.mark.parametrize(("share", "aborts"), [(0.9, 0), (1.1, 1)])
def test_a_pass_that_hangs_is_let_go_without_the_end_of_a_process(share: float, aborts: int) -> None:
    """A rank that is there and does not answer: NCCL's kernels would wait for it for ever."""
    found = watched(lost=False, done=False, passed=share * PATIENCE.total_seconds())
    assert found == (aborts, bool(aborts))


def test_only_a_pass_that_runs_takes_time() -> None:
    clock = PassClock()
    assert clock.seconds == 0.0
    with pytest.raises(KeyError), clock.running():
        assert clock.seconds >= 0.0 and clock._begun is not None
        raise KeyError
    assert clock.seconds == 0.0


def test_nccl_s_own_watchdog_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end rank 0, and with it the page, after a rank has hung for as long as our patience."""
    made: list[dict[str, str | None]] = []
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")
    for name in names:
        monkeypatch.setenv(name, "unset")  # so that it is put back
        monkeypatch.delenv(name)

    class Nccl:
        Options = SimpleNamespace

        def __init__(self, *_: object) -> None:
            made.append({name: os.environ.get(name) for name in names})

    monkeypatch.setattr(group.DIST, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    group._nccl(None, 0, 2)
    assert made == [dict.fromkeys(names, "0")]


def test_a_torch_without_the_means_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group.require_group("cpu")
    monkeypatch.setattr(group.DIST, "is_nccl_available", lambda: False)
    with pytest.raises(InvalidSetting, match="without NCCL"):
        group.require_group("cuda")
