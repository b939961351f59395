"""What reads text in the app's own process: in proportion to the text, and without keeping other threads waiting."""

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from app.documents.document import MOST_CHARS, bounds, by_stretches, num_words
from app.documents.prose import HEAP, MOST_MARKS, composed
from tests.hostile.growth import READERS, too_fast
from tests.hostile.stalls import longest_wait

ROOT = Path(__file__).parents[2]
SHORT = ("4096", "the head of a file", "quotations in a hostile answer")
LIMIT_SECONDS = 600.0  # of a program that takes seconds: what grows exponentially never ends


def test_what_meets_every_file_and_every_answer_takes_time_in_proportion_to_it() -> None:
    """A file of 25 times "<!---->" kept the whole app waiting for seconds, one of 40 would have for half a day."""
    command = [sys.executable, "-m", "tests.hostile.growth", *SHORT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "atom", "ends"),
    [
        ("Markdown in a file", "\\(", ""),
        ("Markdown in a file", "$$\\[\\(", ""),
        ("Markdown in a file", "`", ""),
        ("Markdown in a file", "` `` ", ""),
        ("Markdown in a file", "```\n", ""),
        ("the pages of a PDF", "1\f", ""),
        ("the pages of a PDF", "\u0301\u0327", ""),
        ("the pages of a PDF", "a", "1-\nb"),
        ("the text of a Word file", "Part one - - ", ""),
    ],
)
def test_what_once_took_its_square_takes_no_more_than_its_double(name: str, atom: str, ends: str) -> None:
    assert too_fast(READERS[name], atom, ends) is None


@pytest.mark.parametrize("text", ["\n" * 6_000_000, " " * 6_000_000, "caf\u00e9 \u00fcber, " * 300_000], ids=len)
def test_a_large_text_keeps_no_other_thread_waiting(text: str) -> None:
    assert longest_wait(lambda: READERS["plain text"](text)) < 0.5


# -------------------- what makes it so


LINES, LONGEST = "a line\n" * MOST_CHARS, "a" * (MOST_CHARS - 1)


@pytest.mark.parametrize(
    "text",
    ["", "a", "word " * MOST_CHARS, LINES, "a" * (3 * MOST_CHARS + 1), "\n" * MOST_CHARS,
     *(LONGEST + end for end in (" b", "b", "bc d", "\n b"))],
    ids=range(10),
)  # fmt: skip
def test_stretches_are_the_text_and_end_where_lines_or_words_do(text: str) -> None:
    assert by_stretches(str, text) == text and num_words(text) == len(text.split())
    assert all(0 < end - start <= MOST_CHARS for start, end in bounds(text))
    assert text != LINES or {text[end - 1] for _, end in bounds(text)} == {"\n"}


def test_marks_upon_a_letter_are_kept_but_for_heaps_of_them() -> None:
    assert composed("e\u0301 o\u0302\u0301") == "\u00e9 \u1ed1"
    heaped = composed("e" + "\u0301\u0327" * 5_000 + " f")
    assert len(heaped) <= MOST_MARKS + 3 and heaped.startswith("\u0229") and heaped.endswith(" f")
    assert HEAP.fullmatch("".join(filter(unicodedata.combining, map(chr, range(sys.maxunicode))))), "every mark is one"
    assert composed("\u3002\uff0c" * 50) == "\u3002\uff0c" * 50, "signs are no marks"
