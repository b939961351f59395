"""Wording and number formats."""

from collections.abc import Callable
from typing import Any

import pytest

from app import formats
from app.ui import render
from core.errors import CoreError

HOURS = ((0.2, "a few seconds"), (38, "about 40 s"), (56, "about 1 min"), (776, "about 13 min"))
WORDS: dict[Callable[[Any], str], tuple[tuple[Any, str], ...]] = {
    formats.figure: ((None, "–"), (0.424, "0.42"), (4.213, "4.21"), (42.13, "42.1"), (421.3, "421"), (4213.4, "4,213")),
    formats.percent: ((None, "–"), (0.0, "0%"), (0.004, "<1%"), (0.934, "93%"), (0.9996, "99.9%"), (1.0, "100%")),
    formats.duration: ((0.0, "0.1 s"), (9.97, "10 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")),
    formats.about: (*HOURS, (3590, "about 1 h"), (7800, "about 2 h 10 min")),
    formats.compact: ((7, "7"), (950, "950"), (1234, "1.2k"), (34567, "35k")),
    formats.amount: ((300 << 10, "300 KiB"), (4 << 20, "4.00 MiB"), (3 << 30, "3.00 GiB")),
    formats.probability: ((0, "0"), (1, "1"), (0.004, "under 0.01"), (0.5, "0.50"), (0.999, "over 0.99")),
}


@pytest.mark.parametrize("write", WORDS, ids=lambda function: function.__name__)
def test_numbers_are_written_for_people(write: Callable[[Any], str]) -> None:
    for value, shown in WORDS[write]:
        assert write(value) == shown, value


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 3.0])
def test_a_bar_stays_inside_its_frame(share: float) -> None:
    assert 0 <= float(render.bar(share, "x").split("width:")[1].split("%")[0]) <= 100


def test_everything_that_enters_html_is_escaped() -> None:
    evil = '"><img src=x onerror=alert(1)>'
    for html in (render.problem(CoreError(evil, hint=evil)), render.chip(evil, title=evil), render.bar(0.5, evil)):
        assert "<img" not in html and html.count("&lt;img") >= 1 and evil not in html
