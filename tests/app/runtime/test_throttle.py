"""Ten updates a second: the first at once, the last always, nothing lost."""

from app.runtime.events import Pause
from app.runtime.throttle import LIVELY, SPARING, Metronome, in_batches, intervals_beside


class Clock:
    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_fast_stream_is_collected() -> None:
    batches = list(in_batches(range(1000), 0.1, Clock(0.001)))
    assert batches[0] == [0] and [event for batch in batches for event in batch] == list(range(1000))
    assert 8 <= len(batches) <= 14, "1,000 events in one second make about ten updates"


def test_a_slow_stream_is_passed_on_as_it_comes() -> None:
    assert list(in_batches(range(5), 0.1, Clock(0.2))) == [[0], [1], [2], [3], [4]]


def test_what_was_collected_is_shown_when_the_stream_pauses() -> None:
    clock = Clock(0.04)
    assert list(in_batches([1, 2, 3, Pause(), Pause(), Pause(), 4], 0.1, clock)) == [[1], [2, 3], [4]]


def test_no_event_makes_no_update() -> None:
    assert list(in_batches([])) == []


def test_a_long_silence_gives_a_sign_of_life_each_second() -> None:
    batches = list(in_batches([1, *[Pause()] * 50], 0.1, Clock(0.1)))
    assert batches[0] == [1] and 3 <= len(batches[1:]) <= 5 and not any(batches[1:])


def test_updates_are_rarer_only_where_the_decoder_takes_every_core() -> None:
    assert intervals_beside(2, 2) is SPARING and intervals_beside(8, 4) is SPARING
    assert intervals_beside(1, 2) is LIVELY and intervals_beside(4, 8) is LIVELY
    assert SPARING.text > LIVELY.text and SPARING.figures > LIVELY.figures


def test_a_metronome_is_due_at_once_and_then_once_an_interval() -> None:
    metronome = Metronome(0.5, Clock(0.125))
    assert [metronome.due() for _ in range(10)] == [True, *[False] * 3] * 2 + [True, False]
