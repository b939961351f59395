"""Charts as inline SVG: pure functions from numbers to text, with a title, a description and the numbers as a table.

Colours are classes that the style sheet defines for light and dark; no chart relies on colour alone. Columns are drawn
in a box 360 units wide that scales; horizontal bars in per cent of the available width.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from app import formats
from app.ui import render

WIDTH = 360
LEFT, RIGHT, TOP, BOTTOM = 34, 6, 20, 34  # space around the columns for labels
HEIGHT = 170
ROW, ROW_BAR = 46, 20  # a horizontal bar with its label above
LABEL_EVERY = 22  # units between two labels under columns
NOTE_ROOM = 31  # width in units of "100%" above a column


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
    most = max((column.whole for column in data), default=0) or 1
    floor, slot = HEIGHT - BOTTOM, (WIDTH - LEFT - RIGHT) / max(1, len(data))
    width = min(36.0, 0.72 * slot)
    every = max(1, round(LABEL_EVERY / slot + 0.49))

    def height(value: float) -> float:
        return (floor - TOP) * value / most

    marks = [
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>',
        _text(LEFT - 6, TOP + 4, formats.compact(most), anchor="end"),
        _text(LEFT - 6, floor, "0", anchor="end"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, across, anchor="middle"),
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{TOP}" y2="{TOP}"/>',
    ]
    for number, column in enumerate(data):
        x = LEFT + slot * number + (slot - width) / 2
        whole, part = height(column.whole), height(column.whole if column.part is None else column.part)
        shapes = [f"<title>{render.escape(f'{column.label}: {column.said}')}</title>"]
        if column.part is not None:
            shapes.append(_rectangle("whole", x, floor - whole, width, whole))
        shapes.append(_rectangle(f"fill {tone}", x, floor - part, width, part))
        if column.note and slot >= NOTE_ROOM:
            shapes.append(_text(x + width / 2, floor - whole - 4, column.note, anchor="middle"))
        if number % every == 0:
            shapes.append(_text(x + width / 2, floor + 13, column.label, anchor="middle"))
        marks.append(f"<g>{''.join(shapes)}</g>")
    rows = [(column.label, column.said) for column in data]
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return _figure(title, about, box, marks, _table(across, rows))


def bars(title: str, about: str, data: Sequence[Bar], *, table: bool = True) -> str:
    """Horizontal stacked bars on one scale, with a legend if any has several segments."""
    most = max((sum(segment.value for segment in bar.segments) for bar in data), default=0) or 1
    marks: list[str] = []
    for number, bar in enumerate(data):
        y, x = ROW * number, 0.0
        marks.append(f'<text class="strong" x="0" y="{y + 13}">{render.escape(bar.label)}</text>')
        marks.append(f'<text x="100%" y="{y + 13}" text-anchor="end">{render.escape(bar.total)}</text>')
        for segment in bar.segments:
            width = 100 * segment.value / most
            said = render.escape(f"{segment.label}: {segment.said}")
            place = f'x="{x:.2f}%" y="{y + 19}" width="{width:.2f}%" height="{ROW_BAR}"'
            marks.append(f'<g><title>{said}</title><rect class="fill {segment.tone}" {place}/></g>')
            x += width
    rows = [(f"{bar.label}, {segment.label}", segment.said) for bar in data for segment in bar.segments]
    parts = dict.fromkeys((segment.tone, segment.label) for bar in data for segment in bar.segments)
    legend = _legend(parts) if len({label for _, label in parts}) > 1 else ""
    more = _table("Part", rows) if table else ""
    box = f'width="100%" height="{max(ROW * len(data), 1)}"'
    return _figure(title, about, box, marks, legend + more)


def _rectangle(tone: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{tone}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"/>'


def _text(x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{render.escape(text)}</text>'


def _figure(title: str, about: str, box: str, marks: Iterable[str], below: str) -> str:
    caption = f"<b>{render.escape(title)}</b><span>{render.escape(about)}</span>"
    return (
        f'<figure class="chart"><figcaption>{caption}</figcaption>'
        f'<svg {box} role="img" aria-label="{render.escape(f"{title}. {about}")}">'
        f"{''.join(marks)}</svg>{below}</figure>"
    )


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><i class="key {tone}"></i>{render.escape(label)}</li>' for tone, label in entries)
    return f'<ul class="legend">{items}</ul>'


def _table(head: str, rows: Sequence[tuple[str, str]]) -> str:
    columns = f'<th scope="col">{render.escape(head)}</th><th scope="col">Value</th>'
    body = "".join(
        f'<tr><th scope="row">{render.escape(name)}</th><td>{render.escape(value)}</td></tr>' for name, value in rows
    )
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
    return render.fold("Numbers", table, tone="numbers")
