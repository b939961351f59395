"""The colours: words can be read on everything they lie on, in the light and in the dark."""

import re
from itertools import product

import pytest

from app.ui.assets import ASSETS

CSS = ASSETS / "static" / "css"
LEAST = 4.5  # WCAG 2.2, AA: contrast of words
SURFACES = ("paper", "sheet", "sheet-sunk", "accent-wash", "good-wash", "bad-wash", "warn-wash")
WORDS = ("ink", "ink-soft", "ink-faint", "accent", "accent-strong", "good", "bad", "warn", "level2", "lookup")


def palette(dark: bool) -> dict[str, str]:
    light, _, rest = (CSS / "theme.css").read_text(encoding="utf-8").partition(".dark {")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", rest if dark else light))


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", from 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_every_surface(dark: bool) -> None:
    colours = palette(dark)
    pairs = [*product(WORDS, SURFACES), ("on-accent", "accent"), ("on-accent", "accent-strong")]
    low = {pair: round(contrast(*(colours[name] for name in pair)), 2) for pair in pairs}
    assert {pair: value for pair, value in low.items() if value < LEAST} == {}


def test_contrast_is_measured_as_wcag_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
