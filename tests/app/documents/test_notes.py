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
