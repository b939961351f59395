"""A bench document as a picture, saved as PNG, SVG or PDF: a panel for each context, a bar for each figure.

Knows no engine: a document is what `bench --json` prints. matplotlib is imported where something is drawn; its pyplot
never is, because that keeps global state and may ask for a display.
"""

import importlib
import io
import os
import shlex
import sys
import textwrap
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from app import formats
from app.cli.answering import NotWritten
from core.decoding.registry import METHODS
from core.errors import InvalidSetting, NotPossibleHere

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
REQUIREMENT = "matplotlib>=3.10,<4"
DOTS_PER_INCH = 160
WIDTH, HEAD, PANEL, LINE = 9.6, 1.2, 0.9, 0.27  # inches: of the picture, and high: its text, a panel, a bar
LETTERS = 115  # of a line of text
# The page's colours (assets/static/css/theme.css, light)
PAPER, INK, GRID, ACCENT, FAINT = "#f6f5f1", "#1c2329", "#e2dfd6", "#0c757f", "#626c74"
THEME = {
    "ink-faint": FAINT,
    "accent": ACCENT,
    "level1": "#c9820a",
    "level2": "#256ca6",
    "lookup": "#a3478c",
    "good": "#28734a",
    "bad": "#ae3427",
    "warn": "#8a5a00",
}
COLOURS = {method.name: THEME[method.colour] for method in METHODS.values()}
WORDS = {method.name: method.short_label for method in METHODS.values()} | {
    "fact": "facts",
    "absent": "not in the book",
    "list": "lists",
    "quote": "quotations",
    "quote_any": "foreign quotations",
    "recite": "recitations",
}


class Bar(NamedTuple):
    """One figure. `spread`: ends of its thin line."""

    label: str
    colour: str
    value: float
    note: str
    spread: tuple[float, float]


NAMED = ("placement", "part", "variant", "skill", "method", "answer")  # columns that tell one bar from another
FIGURES = {  # columns, of which the first that was measured is drawn, and the name of the axis
    "exact": "share of right answers",
    "page_ms_per_token": "ms per token, through the page",
    "ms_per_token": "ms per token (lower is better)",
    "tokens_per_full_pass": "tokens per full pass (higher is better)",
}
RATIOS = {  # columns told at the bars, and their meaning
    "speedup_vs_autoregressive": "At the bars: speedup over plain decoding",
    "ratio_to_ours": "At the bars: time as a multiple of our plain decoding's",
    "page_over_alone": "At the bars: time as a multiple of the engine's alone",
}
SPREADS = {"ms_per_token_by_book": "Lines: fastest and slowest book", "exact_interval": "Lines: 95% intervals"}


# -------------------- the request


def check(path: Path) -> None:
    """Refuse a picture that cannot be drawn or saved, before anything is measured.

    Raises:
        InvalidSetting: an unknown ending, no such folder, or no matplotlib.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidSetting(f"{path} is no picture that can be drawn.", hint=f"End it in {', '.join(FORMATS)}.")
    if not path.parent.is_dir():
        raise InvalidSetting(f"There is no folder {path.parent} for the picture.", hint="Make it, or use another one.")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise NotPossibleHere(f"{path} cannot be written.", hint="Choose another name or folder with --plot.")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        command = f'{shlex.quote(sys.executable)} -m pip install "{REQUIREMENT}"'
        raise NotPossibleHere("Drawing needs matplotlib, which is not installed.", hint=f"Run: {command}") from error


def keep(document: dict[str, Any], path: Path) -> None:
    """Draw a document into a file, in the format of the file's ending, and report it on stderr.

    Raises:
        NotWritten: the file could not be written.
    """
    if not figure_of(document):
        print("Nothing was measured that can be drawn: there is no picture.", file=sys.stderr)
        return
    buffer = io.BytesIO()
    draw(document).savefig(buffer, format=path.suffix.lower()[1:], dpi=DOTS_PER_INCH)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        problem = f"The picture could not be written to {path}: {error.strerror}."
        raise NotWritten(problem, hint="The results are above; give --plot another folder next time.") from error
    print(f"The picture is in {path}.", file=sys.stderr, flush=True)


# -------------------- from rows to bars


def figure_of(document: dict[str, Any]) -> str:
    """The column that is drawn; empty: none was measured."""
    return next((name for name in FIGURES if any(row.get(name) is not None for row in document["rows"])), "")


def panels_of(document: dict[str, Any], figure: str) -> dict[int, list[Bar]]:
    """The bars of each context that has any."""
    panels: dict[int, list[Bar]] = {}
    for row in sorted(document["rows"], key=itemgetter("context")):
        if row.get(figure) is not None:
            panels.setdefault(row["context"], []).append(bar_of(row, figure))
    return panels


def bar_of(row: dict[str, Any], figure: str) -> Bar:
    """The bar of a row: what it is of, and what stands at it."""
    label = ", ".join(WORDS.get(row[name], row[name]) for name in NAMED if row.get(name))
    told = [f"{row[name]:.2f}x" for name in RATIOS if row.get(name) is not None]
    told += [f"level 2: {row['acceptance_level2']:.2f}"] if row.get("acceptance_level2") is not None else []
    told += [f"of {row['n']}"] if "n" in row else []
    spread = next((row[name] for name in SPREADS if row.get(name)), (row[figure],))
    colour = COLOURS.get(row["method"]) or (ACCENT if row.get("program") == "ours" else FAINT)
    return Bar(label, colour, row[figure], ", ".join(told), (min(spread), max(spread)))


# -------------------- the picture


def text_lines(document: dict[str, Any]) -> list[str]:
    """What stands above the bars: what was measured, where, and how to read it."""
    config, hardware, rows = document["config"], document["hardware"], document["rows"]
    names = [gpu["name"] for gpu in hardware["gpus"]] if config.get("device") != "cpu" else []
    gpus = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    machine = ", ".join([*gpus, f"{hardware['cpu']} ({formats.plural(hardware['num_cores'], 'core')})"])
    bits = [f"{config['bits']}-bit weights"] if config.get("bits", 16) < 16 else []
    said = [key for name, key in (RATIOS | SPREADS).items() if any(row.get(name) for row in rows)]
    if "max_new_tokens" in config:
        runs = f", medians of {config['repeats']} runs" if config.get("repeats", 1) > 1 else ""
        said.append(f"{formats.plural(config['max_new_tokens'], 'new token')}{runs}")
    said += [f"Commit {document['commit']}"] if document["commit"] else []
    lines = [f"{', '.join([config['model'], config['dtype'], *bits])}, on {machine}", f"{'. '.join(said)}."]
    incomplete = [] if document.get("complete", True) else ["Incomplete: the measurement was interrupted."]
    headline = f"Suite {config['suite']}" + (", rounds fixed" if config.get("counted") else "")
    return [headline, *incomplete, *(short for line in lines for short in textwrap.wrap(line, LETTERS))]


def draw(document: dict[str, Any]) -> "Figure":
    """A document of which something was measured as a figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels, axis = panels_of(document, figure_of(document)), FIGURES[figure_of(document)]
    heights = [PANEL + LINE * len(bars) for bars in panels.values()]
    figure = Figure(figsize=(WIDTH, HEAD + sum(heights)), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(text_lines(document)), x=0.02, ha="left", fontsize=9, color=INK, parse_math=False)
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for axes, (context, bars) in zip(grid[:, 0], panels.items(), strict=True):
        values = [bar.value for bar in bars]
        below = [max(0.0, bar.value - bar.spread[0]) for bar in bars]
        above = [max(0.0, bar.spread[1] - bar.value) for bar in bars]
        drawn = axes.barh([*range(len(bars))], values, 0.78, color=[bar.colour for bar in bars], xerr=[below, above])
        axes.bar_label(drawn, [bar.note for bar in bars], padding=5, fontsize=8, color=INK)
        axes.set_yticks([*range(len(bars))], labels=[bar.label for bar in bars], fontsize=8, parse_math=False)
        axes.set_title(f"{context:,} tokens", loc="left", fontsize=10, fontweight="bold", color=INK)
        axes.set_xlabel(axis, fontsize=9)
        axes.set(facecolor=PAPER, axisbelow=True)
        axes.margins(x=0.2)
        axes.invert_yaxis()
        axes.grid(axis="x", color=GRID)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    return figure
