import pytest

from app.documents import notes
from app.documents.layout import page_text
from app.documents.printed import PrintedLine
from tests.app.documents.test_columns import LEFT, RIGHT, side
from tests.app.documents.test_layout import line


def small(texts: list[str], x: float, top: float) -> list[PrintedLine]:
    return [line(text, x, top - 9 * number, size=7) for number, text in enumerate(texts)]


def filled(text: str) -> list[str]:
    return [one for one in text.split("\n") if one]


NOTE = ["1 He told this to his son,", "who told it to me"]


def test_a_footnote_of_the_first_column_comes_after_the_second() -> None:
    lines = [*side(LEFT, 72), *small(NOTE, 72, 500), *side(RIGHT, 320)]
    assert filled(page_text(lines)) == [*LEFT, *RIGHT, *NOTE]


def test_small_print_that_is_no_note_stays_where_it_is() -> None:
    formula = ["x + y = z", "a - b = c", "f(x) = 0", "g(y) = 1"]
    lines = [*side(LEFT, 72), *small(formula, 72, 500), *side(RIGHT, 320)]
    assert filled(page_text(lines)) == [*LEFT, *formula, *RIGHT]
    high = [*side(LEFT[:5], 72), *small(NOTE, 72, 630), *side(LEFT[5:], 72, 600), *side(RIGHT, 320)]
    assert filled(page_text(high)) == [*LEFT[:5], *NOTE, *LEFT[5:], *RIGHT], "a caption in the midst of a column"


@pytest.mark.parametrize(("step_down", "step_right"), [(9.0, 0.0), (0.0, 9.0), (20.0, 9.0), (0.01, 0.0)])
def test_a_page_of_twice_the_notes_takes_twice_the_work(
    step_down: float, step_right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def counted(above: PrintedLine, below: PrintedLine) -> bool:
        nonlocal calls
        calls += 1
        return is_under(above, below)

    is_under = notes.is_under
    monkeypatch.setattr(notes, "is_under", counted)
    text = [line("the text of the page " * 200, 72, y, width=100) for y in (9_000, 7_000, 5_000, 2_000, 0)]
    work = []
    for num_notes in (200, 400):
        before = calls
        beside = [line("two words", 400 + step_right * at, 8_990 - step_down * at, size=7) for at in range(num_notes)]
        found = notes.without_side_notes([*text, *beside])
        assert len(found.text) == len(text) + (num_notes if step_right else 0), "what stands alone is no note"
        work.append(calls - before)
    assert work[1] < 2.5 * max(work[0], 1)
