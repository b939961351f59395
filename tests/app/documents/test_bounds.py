"""What comes after a parser is bounded: processor time of this program alone, which other work changes little."""

import re
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.uploads import Interrupted, Upload
from app.documents.chapters import (
    CHAPTERS,
    LEADING_NUMBER,
    MAX_LEVEL,
    MIN_CHAPTERS,
    PAGE_NUMBER,
    chapter_level,
    in_order,
    kind_of,
)
from app.documents.messages import Heading
from app.documents.ocr import Ocr
from app.runtime.reopening import extract_one
from tests.hostile.corpus import odt

MOST_SECONDS = 2.0  # some eight times what it takes; what grows with the square took 20
LEVELS = "".join(
    f'<text:h text:outline-level="{1 + 49 * number}">Head {number}</text:h><text:p>w</text:p>'
    for number in range(20_000)
)
DOTS = "".join(f"<h2>{'.' * 290}x{number}</h2><p>w" for number in range(2_900))
FILES = {"levels.odt": odt(LEVELS), "dots.html": f"<html><body>{DOTS}</body></html>".encode()}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_read_in_little_time_and_stop_is_heeded(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(FILES[name])
    assert file.stat().st_size < 1_000_000
    upload = Upload(1, name)
    begun = process_time()
    with pytest.raises(Interrupted):
        for step in extract_one(upload, file, lambda *_: None, Ocr(recognise=False)):
            if step.num_done:  # the worker has read it; what follows is done here
                upload.stop.set()
    assert process_time() - begun < MOST_SECONDS


def test_levels_are_capped() -> None:
    found = in_order([Heading(0, 1, 999_999, "a"), Heading(2, 3, 3, "b")])
    assert [heading.level for heading in found] == [MAX_LEVEL, 3]


@pytest.mark.parametrize("pattern", [PAGE_NUMBER, LEADING_NUMBER])
@pytest.mark.parametrize("atom", [".", ". ", "..1", "..1 ", "1", "1.", " ", "\t", ".. "])
def test_numbers_take_time_in_proportion_to_their_line(pattern: re.Pattern[str], atom: str) -> None:
    """With the square, 100,000 signs take minutes."""
    begun = process_time()
    pattern.sub("", atom * (100_000 // len(atom)) + "x", count=1)
    assert process_time() - begun < MOST_SECONDS


def slow_chapter_level(headings: list[Heading]) -> list[Heading]:
    levels = sorted({heading.level for heading in headings})
    counts = {level: sum(heading.level == level for heading in headings) for level in levels}
    named = {level: sum(h.level == level and kind_of(h.title) in CHAPTERS for h in headings) for level in levels}
    best = max(levels, key=lambda level: (named[level], -level), default=0)
    if not levels or named[best] < MIN_CHAPTERS:
        best = min((level for level in levels if counts[level] >= MIN_CHAPTERS), default=0)
    chosen = [heading for heading in headings if heading.level <= best]
    return chosen[1:] if chosen and chosen[0].level < best and counts[chosen[0].level] == 1 else chosen


@given(st.lists(st.tuples(st.integers(1, MAX_LEVEL), st.sampled_from(["Chapter 1", "Part 2", "Quay"])), max_size=12))
def test_the_level_of_chapters_is_that_of_counting_anew(found: list[tuple[int, str]]) -> None:
    headings = [Heading(2 * at, 2 * at + 1, level, title) for at, (level, title) in enumerate(found)]
    assert chapter_level(headings) == slow_chapter_level(headings)
