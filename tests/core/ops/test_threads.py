"""Threads beside other programs: what a look tells, and what follows from it."""

from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch

from core.config import SamplingParams
from core.decoding import pace
from core.decoding.ledger import Ledger
from core.models import cached_model
from core.models.cached_model import PassMeter
from core.ops import threads
from core.ops.threads import LOOK_SECONDS, Threads, Used, used_now


class Machine:
    """Four cores that other programs and we use for known shares of the time."""

    cores = 4

    def __init__(self) -> None:
        self.used, self.looks = Used(0.0, 0.0, 0.0), 0

    def passes(self, seconds: float, *, others: float, own: float) -> None:
        idle = max(0.0, self.cores - others - own)
        clock, so_far, before = self.used
        self.used = Used(clock + seconds, so_far + idle * seconds, before + own * seconds)

    def look(self) -> Used:
        self.looks += 1
        return self.used

    def threads(self) -> Threads:
        return Threads(self.look, lambda: self.used.clock, self.cores)


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "_lent", threads._Lent(0, 0))  # of passes before
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("others", "own", "expected"),
    [(0.0, 4.0, 4), (0.3, 3.7, 4), (0.8, 3.2, 3), (1.0, 3.0, 3), (2.0, 2.0, 2), (3.9, 0.1, 1)],
)
def test_a_thread_for_each_core_that_others_leave(others: float, own: float, expected: int) -> None:
    machine = Machine()
    chosen = machine.threads()
    assert chosen.now() == 4, "nothing is known yet"
    machine.passes(LOOK_SECONDS, others=others, own=own)
    assert chosen.now() == expected
    machine.passes(LOOK_SECONDS, others=others, own=float(expected))
    assert chosen.now() == expected, "with fewer threads of ours, the same again"


def test_it_looks_four_times_a_second_at_most() -> None:
    machine = Machine()
    chosen = machine.threads()
    for _ in range(1000):
        machine.passes(LOOK_SECONDS / 100, others=1.0, own=3.0)
        chosen.now()
    assert 8 <= machine.looks <= 12


def test_torchs_own_number_is_the_most_and_one_needs_no_look() -> None:
    machine = Machine()
    chosen = machine.threads()
    torch.set_num_threads(2)
    machine.passes(LOOK_SECONDS, others=1.0, own=2.0)
    assert chosen.now() == 2
    torch.set_num_threads(1)
    looks = machine.looks
    machine.passes(1.0, others=0.0, own=1.0)
    assert chosen.now() == 1 and machine.looks == looks


def test_a_benchmark_can_leave_the_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    chosen = machine.threads()
    monkeypatch.setattr(Threads, "adapts", False)
    machine.passes(1.0, others=3.0, own=1.0)
    assert chosen.now() == 4


def test_a_system_that_does_not_tell_leaves_all_threads() -> None:
    def silent() -> Used:
        raise NotImplementedError

    clock = iter(float(second) for second in range(100))
    chosen = Threads(silent, lambda: next(clock), 4)
    assert [chosen.now() for _ in range(5)] == [4] * 5


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


def test_torch_gets_the_same_number_and_its_own_back() -> None:
    machine = Machine()
    chosen = machine.threads()
    machine.passes(LOOK_SECONDS, others=3.0, own=1.0)
    chosen.lend()
    assert torch.get_num_threads() == 1 and threads.most_threads() == 4
    found: list[tuple[int, int]] = []
    begun = Thread(target=lambda: found.append((torch.get_num_threads(), threads.most_threads())))
    begun.start()
    begun.join()
    assert found[0][1] == 4, f"a thread that begins meanwhile is not held down for ever: {found}"
    machine.passes(LOOK_SECONDS, others=0.0, own=1.0)
    chosen.lend()
    assert torch.get_num_threads() == 4
    torch.set_num_threads(2)
    assert threads.most_threads() == 2, "what the user sets is the most"


def test_costs_of_passes_are_forgotten_when_the_number_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    chosen = machine.threads()
    monkeypatch.setattr(cached_model, "process_threads", lambda: chosen)
    meter = PassMeter(torch.device("cpu"))
    chosen.now()
    meter.took(3, 0, 0.5, chosen.changes)
    machine.passes(LOOK_SECONDS, others=0.0, own=4.0)
    chosen.now()
    assert dict(meter.seconds_by_rows) == {3: 0.5}
    machine.passes(LOOK_SECONDS, others=1.0, own=3.0)
    chosen.now()
    assert not meter.seconds_by_rows
    meter.took(3, 0, 9.0, chosen.changes - 1)  # the pass in which the number changed
    assert not meter.seconds_by_rows
    meter.took(3, 0, 0.1, chosen.changes)
    assert dict(meter.seconds_by_rows) == {3: 0.1} and meter.seconds == pytest.approx(9.6)


def test_a_speculation_that_did_not_pay_beside_others_is_tried_again_when_threads_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds measured while threads waited for another program made guessing look bad: it stayed off to the end."""
    machine = Machine()
    chosen = machine.threads()
    monkeypatch.setattr(pace, "process_threads", lambda: chosen)
    chosen.now()
    rounds = object.__new__(pace.Pace)
    level = SimpleNamespace(seconds_per_guess=9.0)
    rounds._threads, rounds.overhead, rounds._levels = chosen.changes, 0.4, [cast(Any, level)]
    rounds.ledger, rounds._sampling = Ledger(1.0, timed=True), SamplingParams()
    rounds.ledger.add(1, 9.0, guessed=False)
    machine.passes(LOOK_SECONDS, others=3.0, own=1.0)
    chosen.now()
    rounds.look_again()
    assert rounds.overhead == 0 and level.seconds_per_guess == 0
    assert rounds.ledger.plain == 1.0 and rounds.ledger.plain_is_due
    rounds.overhead = 0.1
    rounds.look_again()
    assert rounds.overhead == 0.1, "once"
