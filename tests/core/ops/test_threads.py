"""Threads beside other programs, and what passes took: what a look tells, and what follows from it."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import psutil
import pytest
import torch

from core.config import SamplingParams
from core.decoding import pace
from core.decoding.adaptive import Ledger
from core.models import cached_model
from core.models.cached_model import PassMeter
from core.ops import threads
from core.ops.threads import LOOK_SECONDS, Threads, Used, used_now
from tests.core.cuda_stubs import CUDA, pretended_gpu


class Machine:
    """Four cores that other programs and we use for known shares of the time."""

    cores = 4

    def __init__(self) -> None:
        self.used, self.looks = Used(0.0, 0.0, 0.0), 0
        self.threads = Threads(self.look, lambda: self.used.clock, self.cores)

    def passes(self, others: float, own: float, seconds: float = LOOK_SECONDS) -> int:
        """So many cores were used; the threads that are chosen then."""
        idle = max(0.0, self.cores - others - own)
        clock, so_far, before = self.used
        self.used = Used(clock + seconds, so_far + idle * seconds, before + own * seconds)
        return self.threads.now()

    def look(self) -> Used:
        self.looks += 1
        return self.used


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(threads, "_lent", threads._Lent(0, 0))  # of passes before
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    made = Machine()
    assert made.threads.now() == 4, "nothing is known yet"
    for module in (pace, cached_model):
        monkeypatch.setattr(module, "process_threads", lambda: made.threads)
    yield made
    torch.set_num_threads(before)


@pytest.mark.parametrize(("others", "expected"), [(0.0, 4), (0.3, 4), (0.8, 3), (1.0, 3), (2.0, 2), (3.9, 1)])
def test_a_thread_for_each_core_that_others_leave(machine: Machine, others: float, expected: int) -> None:
    assert machine.passes(others, 4 - others) == expected
    assert machine.passes(others, expected) == expected, "with fewer threads of ours, the same again"
    torch.set_num_threads(1)
    looks = machine.looks
    assert machine.passes(0.0, 1.0) == 1 and machine.looks == looks, "torch's own number is the most; one needs no look"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_a_container_uses_no_more_threads_than_it_has_cores(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more, the system stops all of them for most of each tenth of a second."""
    for name, told in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(told)
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    monkeypatch.setattr(threads, "own_cores", lambda: set(range(8)))
    monkeypatch.setattr(threads, "most_threads", lambda: 8)
    assert Threads(lambda: Used(0.0, 0.0, 0.0)).now() == expected


def test_it_looks_four_times_a_second_at_most(machine: Machine) -> None:
    for _ in range(1000):
        machine.passes(1.0, 3.0, LOOK_SECONDS / 100)
    assert 8 <= machine.looks <= 12


def test_a_system_that_does_not_tell_and_a_benchmark_leave_all_threads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent() -> Used:
        raise NotImplementedError

    clock = iter(float(second) for second in range(100))
    chosen = Threads(silent, lambda: next(clock), 4)
    assert [chosen.now() for _ in range(5)] == [4] * 5
    monkeypatch.setattr(Threads, "adapts", False)
    assert machine.passes(3.0, 1.0) == 4


@pytest.mark.parametrize(("mine", "idle"), [({0, 1}, 0.0), ({5}, 10.0)])
def test_a_system_that_counts_nothing_or_other_cores_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, mine: set[int], idle: float
) -> None:
    """Zeros looked like cores that others use: one thread was left, for ever."""
    monkeypatch.setattr(threads, "own_cores", lambda: mine)
    counted = [psutil.cpu_times()._replace(**dict.fromkeys(psutil.cpu_times()._fields, idle))] * 2
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: counted)
    with pytest.raises(NotImplementedError):
        used_now()


def test_torch_gets_the_same_number_and_its_own_back(machine: Machine) -> None:
    machine.passes(3.0, 1.0)
    machine.threads.lend()
    assert torch.get_num_threads() == 1 and threads.most_threads() == 4
    found: list[int] = []
    begun = Thread(target=lambda: found.append(threads.most_threads()))
    begun.start()
    begun.join()
    assert found == [4], "a thread that begins meanwhile is not held down for ever"
    machine.passes(0.0, 1.0)
    machine.threads.lend()
    assert torch.get_num_threads() == 4
    torch.set_num_threads(2)
    assert threads.most_threads() == 2, "what the user sets is the most"


def test_costs_of_passes_are_forgotten_when_the_number_changes(machine: Machine) -> None:
    meter = PassMeter(torch.device("cpu"))
    meter.took(3, 0, 0.5, machine.threads.changes)
    machine.passes(0.0, 4.0)
    assert dict(meter.seconds_by_rows) == {3: 0.5}
    machine.passes(1.0, 3.0)
    assert not meter.seconds_by_rows
    meter.took(3, 0, 9.0, machine.threads.changes - 1)  # the pass in which the number changed
    assert not meter.seconds_by_rows
    meter.took(3, 0, 0.1, machine.threads.changes)
    assert dict(meter.seconds_by_rows) == {3: 0.1} and meter.seconds == pytest.approx(9.6)


def test_a_speculation_that_did_not_pay_beside_others_is_tried_again_when_threads_change(machine: Machine) -> None:
    """Rounds measured while threads waited for another program made guessing look bad: it stayed off to the end."""
    rounds = object.__new__(pace.Pace)
    level = SimpleNamespace(seconds_per_guess=9.0)
    rounds._threads, rounds.overhead, rounds._levels = machine.threads.changes, 0.4, [level]
    rounds.ledger, rounds._sampling = Ledger(1.0, timed=True), SamplingParams()
    rounds.ledger.add(1, 9.0, guessed=False)
    machine.passes(3.0, 1.0)
    rounds.look_again()
    assert rounds.overhead == 0 and level.seconds_per_guess == 0
    assert rounds.ledger.plain == 1.0 and rounds.ledger.plain_is_due
    rounds.overhead = 0.1
    rounds.look_again()
    assert rounds.overhead == 0.1, "once"


# -------------------- a device that computes later


def test_a_device_that_lags_is_waited_for_only_by_whoever_asks() -> None:
    with pretended_gpu() as gpu:
        meter = PassMeter(CUDA)
        for _ in range(200):
            with meter.measure(2, 100):
                pass
        assert gpu.waits == 0 and meter.passes == 200
        for _ in range(2):  # each counts once
            assert meter.seconds == pytest.approx(200 * 1e-4) and gpu.waits == 1
        assert dict(meter.seconds_by_rows) == {2: pytest.approx(1e-4)}
        with meter.measure(2, 100):
            pass
        meter.reset()  # a rank that is led counts passes for ever, and forgets them
        assert not meter._pending and meter.seconds == 0 and gpu.waits == 1
