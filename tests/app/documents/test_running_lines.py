import random

from app.documents.running_lines import drop_running_lines, roman_value

WORDS = ["sea", "wind", "gull", "rope", "sail", "mast", "quay", "tide", "salt", "lamp", "bell", "fish", "the", "of"]


def prose(page: int) -> list[str]:
    """Eight lines that no other page has."""
    rng = random.Random(page)
    return [" ".join(rng.choice(WORDS) for _ in range(9)) for _ in range(8)]


def test_headers_footers_and_page_numbers_go_and_the_text_stays() -> None:
    pages = [["THE HARBOUR", *prose(n), f"Page {n} of 12"] for n in range(1, 13)]
    assert drop_running_lines(pages) == [prose(n) for n in range(1, 13)]


def test_left_and_right_pages_may_have_different_headers() -> None:
    pages = [[f"{n} The Harbour" if n % 2 else f"Chapter the First {n}", *prose(n)] for n in range(5, 25)]
    assert drop_running_lines(pages) == [prose(n) for n in range(5, 25)]


def test_headers_that_change_with_the_chapter_go() -> None:
    pages = [[f"{n // 8 + 1}. A chapter", *prose(n), str(n)] for n in range(32)]
    assert drop_running_lines(pages) == [prose(n) for n in range(32)]


def test_front_matter_is_numbered_in_roman() -> None:
    pages = [[*prose(n), number] for n, number in enumerate(["ii", "iii", "iv", "v"])]
    assert drop_running_lines(pages) == [prose(n) for n in range(4)]
    assert [roman_value(number) for number in ("i", "iv", "ix", "xiv", "xl", "civil", "")] == [
        1,
        4,
        9,
        14,
        40,
        None,
        None,
    ]


def test_a_page_number_needs_no_more_than_two_pages() -> None:
    assert drop_running_lines([[*prose(1), "1"], [*prose(2), "2"]]) == [prose(1), prose(2)]


def test_numbers_that_do_not_count_pages_stay() -> None:
    pages = [[*prose(n), f"There were {n * n} ships"] for n in range(9)]
    assert drop_running_lines(pages) == pages


def test_a_line_twice_in_a_book_is_no_header() -> None:
    pages = [["So it goes.", *prose(n)] if n in (3, 4) else prose(n) for n in range(12)]
    assert drop_running_lines(pages) == pages


def test_a_title_that_slides_repeat_belongs_to_the_text() -> None:
    pages = [["Results", *prose(n)[:3]] for n in range(9)]
    assert drop_running_lines(pages) == pages


def test_a_short_page_at_the_end_of_a_chapter_loses_its_header_too() -> None:
    pages = [["THE HARBOUR", *prose(n)] for n in range(5)] + [["THE HARBOUR", "The end."]]
    assert drop_running_lines(pages)[-1] == ["The end."]


def test_a_single_page_stays_as_it_is() -> None:
    assert drop_running_lines([["Title", "text", "1"]]) == [["Title", "text", "1"]]


def test_empty_pages_do_no_harm() -> None:
    assert drop_running_lines([]) == []
    assert drop_running_lines([[], [""], []]) == [[], [""], []]


def test_headers_with_roman_page_numbers_are_dropped() -> None:
    bodies = [[f"line {letter}{page} of it" for letter in "abcdefgh"] for page in "pqrs"]
    romans = ("vii", "viii", "ix", "x")
    pages = [[f"The Pilot {roman}", *body] for roman, body in zip(romans, bodies, strict=True)]
    assert drop_running_lines(pages) == bodies
    pages = [[f"{roman} The Pilot", *body] for roman, body in zip(romans, bodies, strict=True)]
    assert drop_running_lines(pages) == bodies
