import random

from app.documents.running_lines import drop_running_lines

WORDS = ["sea", "wind", "gull", "rope", "sail", "mast", "quay", "tide", "salt", "lamp", "bell", "fish", "the", "of"]


def prose(page: int) -> list[str]:
    """Eight lines that no other page has."""
    rng = random.Random(page)
    return [" ".join(rng.choice(WORDS) for _ in range(9)) for _ in range(8)]


def test_headers_footers_and_page_numbers_go_and_the_text_stays() -> None:
    pages = [["THE HARBOUR", *prose(n), f"Page {n} of 12"] for n in range(1, 13)]
    assert drop_running_lines(pages) == [prose(n) for n in range(1, 13)]


def test_front_matter_is_numbered_in_roman() -> None:
    pages = [[*prose(n), number] for n, number in enumerate(["ii", "iii", "iv", "v"])]
    assert drop_running_lines(pages) == [prose(n) for n in range(4)]


def test_a_title_that_slides_repeat_belongs_to_the_text() -> None:
    pages = [["Results", *prose(n)[:3]] for n in range(9)]
    assert drop_running_lines(pages) == pages
