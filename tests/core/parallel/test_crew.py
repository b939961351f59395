"""Watching processes: what wakes up whoever waits for a lost one."""

import os
import threading

import pytest

from core.errors import InvalidSetting
from core.parallel import group
from core.parallel.crew import watch_ranks


def watched(*, lost: bool, done: bool) -> tuple[int, bool]:
    """How often the group was aborted, and whether the loss was noticed."""
    sentinel, process = os.pipe()
    noticed, over, aborts = threading.Event(), threading.Event(), []
    if done:
        over.set()
    if lost:
        os.close(process)
    thread = threading.Thread(target=watch_ranks, args=([sentinel], noticed, over, lambda: aborts.append(1)))
    thread.start()
    if not lost:
        thread.join(0.1)
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


def test_a_torch_without_the_means_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group.require_group("cpu")
    monkeypatch.setattr(group.DIST, "is_nccl_available", lambda: False)
    with pytest.raises(InvalidSetting, match="without NCCL"):
        group.require_group("cuda")
