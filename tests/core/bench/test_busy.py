"""The busy suite: conditions, what it starts and ends, and ratios of the same turns."""

import subprocess
from collections.abc import Iterator

import pytest
import torch

from core.bench import busy
from core.bench.busy import BusyRow, Condition, computing, run_busy
from core.config import EngineConfig
from core.engine import Engine
from core.errors import InvalidSetting
from core.ops.threads import Threads, most_threads, set_most_threads


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = most_threads()
    set_most_threads(2)  # tests before this one may have left a loan
    yield
    set_most_threads(before)


def test_other_programs_run_meanwhile_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def started_by(command: list[str]) -> subprocess.Popen[bytes]:
        started.append(start(command))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", started_by)
    with pytest.raises(KeyboardInterrupt), computing(Condition(2, 1)):
        assert [process.poll() for process in started] == [None, None]
        assert torch.get_num_threads() == 1 and not Threads.adapts
        raise KeyboardInterrupt
    assert len(started) == 2 and None not in [process.poll() for process in started]
    assert torch.get_num_threads() == 2 and Threads.adapts
    with computing(Condition(0, None)):
        assert torch.get_num_threads() == 2 and Threads.adapts


def test_each_method_is_measured_under_each_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "LOAD", "import time; time.sleep(60)")  # tests share their cores with others
    engine = Engine.load(EngineConfig(device="cpu", context=1088))
    rows = list(run_busy(engine, (768,), ("triforce",), repeats=1, max_new_tokens=4, seed=900_000))
    assert [(row.method, row.other_programs, row.threads) for row in rows] == [
        (method, others, threads)
        for method in ("autoregressive", "triforce")
        for others, numbers in ((0, ("chosen", "2", "1")), (1, ("chosen", "2", "1")), (4, ("chosen", "1")))
        for threads in numbers
    ]
    base: BusyRow = rows[2]
    assert base.to_quiet_one_thread == 1.0 and all(row.identical_to_first and row.new_tokens == 4 for row in rows)
    assert all(row.to_quiet_one_thread == row.ms_per_token / base.ms_per_token for row in rows[:8])
    assert all(
        other.speedup_vs_autoregressive == plain.ms_per_token / other.ms_per_token
        for plain, other in zip(rows[:8], rows[8:], strict=True)
    )


def test_one_thread_leaves_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "most_threads", lambda: 1)
    with pytest.raises(InvalidSetting, match="nothing to choose"):
        next(run_busy(None, (768,), (), repeats=1, max_new_tokens=4, seed=0))  # type: ignore[arg-type]
