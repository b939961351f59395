"""A bench document as a picture of bars, saved as PNG, SVG or PDF.

Owns which numbers of a row are drawn, and the words. Knows no engine: a document is what `bench --json` prints. The
drawing is in `bars`.
"""

import importlib
import io
import os
import shlex
import sys
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from app import formats
from app.cli.answering import NotWritten
from assets.tools.bench.charts import bars
from assets.tools.bench.charts.bars import Bar, Chart, Group, Style
from core.decoding.registry import METHODS
from core.errors import InvalidSetting, NotPossibleHere

FORMATS = (".png", ".svg", ".pdf")
REQUIREMENT = "matplotlib>=3.10,<4"
DOTS_PER_INCH = 160
MOST_LABELLED_BARS = 16  # in a panel where each pair of bars has a name below

ALONE, PAGE = "the engine alone", "through the page"
COLOURS = {
    **{method.name: bars.THEME[method.colour] for method in METHODS.values()},
    "ours": bars.ACCENT,
    ALONE: bars.INK_FAINT,
    PAGE: bars.ACCENT,
}
WORDS = {
    **{method.name: method.short_label for method in METHODS.values()},
    "fact": "facts",
    "absent": "not in the book",
    "list": "lists",
    "quote": "quotations",
    "quote_any": "foreign quotations",
    "recite": "recitations",
}


class Suite(NamedTuple):
    """How a suite is drawn: its words, and which values of a row become bars."""

    headline: str
    style: Style
    key: str  # meaning of the numbers at the bars
    label: Callable[[dict[str, Any]], str]  # name of a row's group; "": one group for each context
    bars: Callable[[dict[str, Any]], list[Bar]]
    spread: str = ""  # meaning of thin lines


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
        InvalidSetting: the file could not be written.
    """
    chart = chart_of(document)
    if not chart.groups:
        print("Nothing was measured that can be drawn: there is no picture.", file=sys.stderr)
        return
    buffer = io.BytesIO()
    title = {"Title": f"{chart.headline}: {chart.subject}"}
    bars.draw(chart).savefig(buffer, format=path.suffix.lower()[1:], dpi=DOTS_PER_INCH, metadata=title)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        problem = f"The picture could not be written to {path}: {error.strerror}."
        raise NotWritten(problem, hint="The results are above; give --plot another folder next time.") from error
    print(f"The picture is in {path}.", file=sys.stderr, flush=True)


# -------------------- from rows to bars


def speed_bars(row: dict[str, Any]) -> list[Bar]:
    """Time per token and speedup; the thin line is the spread over several books."""
    by_book = row.get("ms_per_token_by_book") or ()
    spread = (min(by_book), max(by_book)) if len(by_book) > 1 else None
    return some(row["method"], row["ms_per_token"], times(row["speedup_vs_autoregressive"]), spread)


def peer_bars(row: dict[str, Any]) -> list[Bar]:
    """Time per token, and its ratio to this program's plain decoding."""
    return some(row.get("program", row["method"]), row["ms_per_token"], times(row["ratio_to_ours"], 2))


def page_bars(row: dict[str, Any]) -> list[Bar]:
    """The same answer by engine and page, with the ratio."""
    ratio = times(row["page_over_alone"], 2)
    return some(ALONE, row["alone_ms_per_token"]) + some(PAGE, row["page_ms_per_token"], ratio)


def recall_bars(row: dict[str, Any]) -> list[Bar]:
    """The share of right answers, its interval, and the number of questions."""
    interval = row["exact_interval"]
    return some(row["method"], row["exact"], "", interval and tuple(interval), row["n"])


def ablation_bars(row: dict[str, Any]) -> list[Bar]:
    """Time per token with the speedup (which drifts less) and the acceptance of level 2."""
    ms, acceptance = row["ms_per_token"], row["acceptance_level2"]
    note = "" if ms is None else f"{ms:.1f} ms, {times(row['speedup_vs_autoregressive'], 2)}"
    return some(row["method"], ms, note + ("" if acceptance is None else f", level 2: {acceptance:.2f}"))


def count_bars(row: dict[str, Any]) -> list[Bar]:
    """Tokens per full pass, and the acceptance of level 2."""
    acceptance = row["acceptance_level2"]
    return some(row["method"], row["tokens_per_full_pass"], "" if acceptance is None else f"level 2: {acceptance:.3f}")


def some(
    series: str,
    value: float | None,
    note: str = "",
    spread: tuple[float, float] | None = None,
    asked: int | None = None,
) -> list[Bar]:
    """A list with the bar of a value; empty if there was no measurement."""
    return [] if value is None else [Bar(series, value, note, spread, asked)]


def times(ratio: float | None, digits: int = 1) -> str:
    """1.8x, 12x."""
    return "" if ratio is None else f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.{digits}f}x"


def variant_label(row: dict[str, Any]) -> str:
    """The part that an ablation changed, and to what."""
    return f"{row['part']}: {row['variant']}" if row["variant"] else str(row["part"])


TIME = "ms per token (lower is better)"
OVER_PLAIN = "On the bars: speedup over plain decoding"
SUITES = {
    "speed": Suite(
        "Time per token",
        style=Style(TIME),
        key=OVER_PLAIN,
        spread="Lines: fastest and slowest book",
        label=lambda row: "",
        bars=speed_bars,
    ),
    "peers": Suite(
        "Beside other programs",
        style=Style(TIME, most_bars=None, sideways=True),
        key="On the bars: time as a multiple of our plain decoding's",
        label=lambda row: row["method"] + (f" ({row['answer']})" if row.get("answer") in ("free", "quote") else ""),
        bars=peer_bars,
    ),
    "offload": Suite(
        "Time per token by where the full cache lies",
        style=Style(TIME, beneath=True),
        key=f"{OVER_PLAIN} in the same place",
        label=lambda row: str(row["placement"]),
        bars=speed_bars,
    ),
    "page": Suite(
        "What the page costs",
        style=Style(TIME, most_bars=MOST_LABELLED_BARS, beneath=True),
        key="On the bars: time as a multiple of the engine's alone",
        label=lambda row: words(row["method"]),
        bars=page_bars,
    ),
    "recall": Suite(
        "Right answers by skill",
        style=Style("share of right answers", most_bars=None, percent=True),
        key="n: questions asked",
        spread="Lines: 95% intervals",
        label=lambda row: words(row["skill"]),
        bars=recall_bars,
    ),
    "ablation": Suite(
        "Time per token, one part changed at a time",
        style=Style(TIME, most_bars=None, sideways=True),
        key="Level 2: the share of guesses that the full cache accepts",
        label=variant_label,
        bars=ablation_bars,
    ),
    "counts": Suite(  # of an ablation without times
        "Tokens per full pass, one part changed at a time",
        style=Style("tokens per full pass (higher is better)", most_bars=None, sideways=True),
        key="Level 2: the share of guesses that the full cache accepts. Fixed rounds",
        label=variant_label,
        bars=count_bars,
    ),
}


def suite_of(document: dict[str, Any]) -> Suite:
    """How a document is drawn."""
    config = document["config"]
    return SUITES["counts" if config.get("counted") else config["suite"]]


def chart_of(document: dict[str, Any]) -> Chart:
    """The chart of a document: its bars, context by context, and its text."""
    suite = suite_of(document)
    groups: dict[tuple[int, str], list[Bar]] = {}
    for row in document["rows"]:
        groups.setdefault((row["context"], suite.label(row)), []).extend(suite.bars(row))
    found = [
        Group(f"{context:,} tokens", label, groups[context, label])
        for context, label in sorted(groups, key=itemgetter(0))
    ]
    return Chart(
        headline=suite.headline,
        subject=subject(document),
        remarks=remarks(document, spread=any(bar.spread for group in found for bar in group.bars)),
        warning="" if document.get("complete", True) else "Incomplete: the measurement was interrupted.",
        groups=[group for group in found if group.bars],
        style=suite.style,
        colours=COLOURS,
        names=WORDS,
    )


# -------------------- text


def words(name: str) -> str:
    """A method or a skill in plain words."""
    return WORDS.get(name, name)


def subject(document: dict[str, Any]) -> str:
    """The subject of the measurement: harbour, float32, on AMD EPYC (2 cores)."""
    config, hardware = document["config"], document["hardware"]
    names = [gpu["name"] for gpu in hardware["gpus"]] if config.get("device") != "cpu" else []
    gpus = [f"{names.count(name)}\u00a0× {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    machine = ", ".join([*gpus, f"{hardware['cpu']} ({formats.plural(hardware['num_cores'], 'core')})"])
    bits = [f"{config['bits']}-bit weights"] if config.get("bits", 16) < 16 else []
    self_draft = config.get("self_draft_bits")
    bits += [f"{self_draft}-bit self-draft"] if (self_draft or 16) < 16 else []
    return f"{', '.join([config['model'], config['dtype'], *bits])}, on {machine}"


def remarks(document: dict[str, Any], *, spread: bool) -> str:
    """Explains the numbers at the bars, the thin lines and the measurement."""
    suite, config = suite_of(document), document["config"]
    said = [suite.key]
    if spread:
        said.append(suite.spread)
    if "max_new_tokens" in config:
        runs = f", medians of {config['repeats']} runs" if config.get("repeats", 1) > 1 else ""
        said.append(f"{formats.plural(config['max_new_tokens'], 'new token')}{runs}")
    if document["commit"]:
        said.append(f"Commit {document['commit']}")
    return ". ".join(said) + "."
