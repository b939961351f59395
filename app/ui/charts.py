"""Charts of HTML: pure functions from numbers to text, with a title, a description and the numbers as a table.

Colours are classes that the style sheet defines for light and dark; no chart relies on colour alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

from app import formats
from app.ui import render

MOST_NOTES, MOST_LABELS = 10, 16  # columns that have room for a note above, for a label below


class Column(NamedTuple):
    """A column: a total, and its filled part."""

    label: str
    whole: float
    part: float | None = None  # None: all is filled
    note: str = ""  # above the column
    said: str = ""  # for the table and the tooltip


class Segment(NamedTuple):
    """A part of a stacked bar."""

    tone: str
    label: str
    value: float
    said: str


class Bar(NamedTuple):
    """A horizontal bar, made of segments from left to right."""

    label: str
    total: str
    segments: tuple[Segment, ...]


def columns(title: str, about: str, across: str, data: Sequence[Column], *, tone: str) -> str:
    """Columns side by side; where a column has a part, the total is an outline."""
    most, every = max((column.whole for column in data), default=0) or 1, -(-len(data) // MOST_LABELS)
    shown = ""
    for number, column in enumerate(data):
        part = 100.0 if column.part is None else 100 * column.part / (column.whole or 1)
        note = column.note if len(data) <= MOST_NOTES else ""
        label = "" if number % every else column.label
        shown += (
            f'<li title="{render.escape(f"{column.label}: {column.said}")}"><div class="whole" '
            f'style="height:{100 * column.whole / most:.1f}%"><small>{render.escape(note)}</small>'
            f'<i class="key {tone}" style="height:{part:.1f}%"></i></div><span>{render.escape(label)}</span></li>'
        )
    marks = f'<ol class="columns" data-most="{formats.compact(most)}">{shown}</ol><p>{render.escape(across)}</p>'
    return _figure(title, about, marks, _table(across, [(column.label, column.said) for column in data]))


def bars(title: str, about: str, data: Sequence[Bar], *, table: bool = True) -> str:
    """Horizontal stacked bars on one scale, with a legend if any has several segments."""
    most = max((sum(segment.value for segment in bar.segments) for bar in data), default=0) or 1
    marks = "".join(
        f'<p class="bar-line"><b>{render.escape(bar.label)}</b> <span>{render.escape(bar.total)}</span></p>'
        + render.stack(((one.tone, one.value, f"{one.label}: {one.said}") for one in bar.segments), most)
        for bar in data
    )
    rows = [(f"{bar.label}, {segment.label}", segment.said) for bar in data for segment in bar.segments]
    parts = dict.fromkeys((segment.tone, segment.label) for bar in data for segment in bar.segments)
    keys = "".join(f'<li><i class="key {tone}"></i>{render.escape(label)}</li>' for tone, label in parts)
    legend = f'<ul class="legend">{keys}</ul>' if len({label for _, label in parts}) > 1 else ""
    return _figure(title, about, marks, legend + (_table("Part", rows) if table else ""))


def _figure(title: str, about: str, marks: str, below: str) -> str:
    title, about = render.escape(title), render.escape(about)
    return (
        f'<figure class="chart"><figcaption><b>{title}</b><span>{about}</span></figcaption>'
        f'<div class="marks" role="img" aria-label="{title}. {about}">{marks}</div>{below}</figure>'
    )


def _table(head: str, rows: Sequence[tuple[str, str]]) -> str:
    columns = f'<th scope="col">{render.escape(head)}</th><th scope="col">Value</th>'
    body = "".join(
        f'<tr><th scope="row">{render.escape(name)}</th><td>{render.escape(value)}</td></tr>' for name, value in rows
    )
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
    return render.fold("Numbers", table, tone="numbers")
