"""Wording and number formats."""

import pytest

from app import formats
from app.ui import render
from core.errors import CoreError


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.424, "0.42"), (4.213, "4.21"), (42.13, "42.1"), (421.3, "421"), (4213.4, "4,213")],
)
def test_a_figure_has_three_digits_that_matter(value: float | None, shown: str) -> None:
    assert formats.figure(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(None, "–"), (0.0, "0%"), (0.004, "<1%"), (0.934, "93%"), (0.9996, "99.9%"), (0.994, "99.4%"), (1.0, "100%")],
)
def test_a_share_is_100_percent_only_when_it_is(share: float | None, shown: str) -> None:
    assert formats.percent(share) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.1 s"),
        (0.84, "0.8 s"),
        (9.97, "10 s"),
        (59.4, "59 s"),
        (59.7, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert formats.duration(seconds) == shown


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 3.0])
def test_a_bar_stays_inside_its_frame(share: float) -> None:
    assert 0 <= float(render.bar(share, "x").split("width:")[1].split("%")[0]) <= 100


def test_everything_that_enters_html_is_escaped() -> None:
    evil = '"><img src=x onerror=alert(1)>'
    for html in (render.problem(CoreError(evil, hint=evil)), render.chip(evil, title=evil), render.bar(0.5, evil)):
        assert "<img" not in html and html.count("&lt;img") >= 1 and evil not in html
