"""What a judge knows of its passes without waiting for the device."""

import pytest
import torch

from core.models.cached_model import PassMeter


class Event:
    """A mark that a device passes when a test says so; times are counted in marks."""

    made = passed = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.made += 1
        self.number = Event.made

    def synchronize(self) -> None:
        Event.passed = max(Event.passed, self.number)

    def elapsed_time(self, other: "Event") -> float:
        assert max(self.number, other.number) <= Event.passed, "neither is known before it has passed"
        return 1e3 * (other.number - self.number)


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "made", 0)
    monkeypatch.setattr(Event, "passed", 0)
    monkeypatch.setattr(torch.cuda, "Event", Event)


def passes(meter: PassMeter, count: int, behind: int) -> None:
    for _ in range(count):
        with meter.measure(2, 100):
            Event.passed = max(0, Event.made - behind)


def test_a_device_that_lags_is_waited_for_only_by_whoever_asks() -> None:
    meter = PassMeter(torch.device("cuda"))
    passes(meter, 200, behind=1000)
    assert Event.passed == 0 and meter.passes == 200
    assert meter.seconds == pytest.approx(200.0) and Event.passed == Event.made
    assert meter.seconds == pytest.approx(200.0), "each counts once"
    assert dict(meter.seconds_by_rows) == {2: pytest.approx(1.0)}


def test_times_that_nobody_asked_for_do_not_pile_up() -> None:
    """A rank that is led counts passes for ever, and forgets them."""
    meter = PassMeter(torch.device("cuda"))
    passes(meter, 3, behind=1000)
    meter.reset()
    assert not meter._pending and meter.seconds == 0 and Event.passed == 0
