"""The time left of a reading: right from early on, whatever a model's attention costs."""

import pytest

from core.generation.reading_pace import USUAL_DOUBLING, ReadingPace, work_of


def read(pace: ReadingPace, doubling: float, until: int, *, chunk: int = 1024, unit: float = 1e-3) -> float:
    """Read chunk by chunk on a machine where a token costs twice as much at `doubling`; the seconds it took."""

    def seconds(tokens: int) -> float:
        return unit * (tokens + tokens * tokens / 2 / doubling)

    for start in range(0, until, chunk):
        pace.learn(work_of(start), work_of(start + chunk), seconds(start + chunk) - seconds(start))
    return seconds(until)


@pytest.mark.parametrize(("doubling", "within"), [(USUAL_DOUBLING, 0.01), (2000.0, 0.15), (60000.0, 0.25)])
def test_the_time_left_is_right_after_a_tenth(doubling: float, within: float) -> None:
    pace, total = ReadingPace(), 122_880
    took = read(pace, doubling, total // 10)
    found = pace.remaining(work_of(0), work_of(total // 10), work_of(total), took)
    right = 1e-3 * (total + total * total / 2 / doubling) - took
    assert found == pytest.approx(right, rel=within)


def test_nothing_is_known_before_the_first_chunk_of_all_but_of_every_later_reading() -> None:
    pace = ReadingPace()
    assert pace.remaining(work_of(0), work_of(0), work_of(4096), 0.0) is None
    took = read(pace, USUAL_DOUBLING, 4096)
    pace.remaining(work_of(0), work_of(4096), work_of(4096), took)
    assert pace.remaining(work_of(0), work_of(0), work_of(4096), 0.0) == pytest.approx(took)


def test_what_a_text_takes_is_known_of_texts_alone() -> None:
    pace = ReadingPace()
    pace.remaining(work_of(0), work_of(20), work_of(20), 1.0)
    assert pace.whole(122_880) is None, "a question of a few words tells nothing of a book"
    took = read(pace, 2000.0, 16_384)
    pace.remaining(work_of(0), work_of(16_384), work_of(16_384), took)
    pace.remaining(work_of(16_384), work_of(16_404), work_of(16_404), 1.0)
    assert pace.whole(16_384) == pytest.approx(took)
    assert pace.whole(122_880) == pytest.approx(1e-3 * (122_880 + 122_880**2 / 4000), rel=0.15)
