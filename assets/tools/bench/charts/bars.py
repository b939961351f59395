"""Groups of bars as a figure, with numbers, a legend, and lines of text above.

Owns sizes, colours and the layout of text; does not know what the numbers mean. matplotlib is imported where something
is drawn; its pyplot never is, because that keeps global state and may ask for a display.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The page's colours (assets/static/css/theme.css, light).
PAPER, INK, INK_SOFT, INK_FAINT = "#f6f5f1", "#1c2329", "#5a646d", "#626c74"
LINE, LINE_STRONG = "#e2dfd6", "#cbc7bb"
ACCENT, LEVEL1, LEVEL2, LOOKUP = "#0c757f", "#c9820a", "#256ca6", "#a3478c"
GOOD, BAD, WARN = "#28734a", "#ae3427", "#8a5a00"
THEME = {
    "ink-faint": INK_FAINT,
    "accent": ACCENT,
    "level1": LEVEL1,
    "level2": LEVEL2,
    "lookup": LOOKUP,
    "good": GOOD,
    "bad": BAD,
    "warn": WARN,
}
OTHERS = (LEVEL2, LEVEL1, LOOKUP, GOOD, BAD, WARN)

WIDTH, MARGIN = 9.6, 0.3  # inches
AXIS_ROOM = 0.75  # inches for the labels of an axis, roughly
POINTS = 72  # per inch
FEWEST_SLOTS = 9  # a bar is at most a ninth of the width
GROUP_GAP, HEADING_GAP = 0.9, 0.7  # between groups, and in addition between headings; in bar widths
LEGEND_LINE = 0.24  # height in inches
ABOVE = 0.3  # inches free above the text and below the legend
NAME_LINE, BAR_GAP = 0.15, 0.12  # inches: height of horizontal bars per line of their names, and the gap between them
BESIDE_BARS = 0.8  # inches for the text of their panel
LABEL_LETTERS = 40  # in one line of a name beside a bar
BEHIND_NOTES = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.3}  # interrupts grid lines behind the text
LETTER = 0.62  # width of a digit as a share of the font size, roughly


class Bar(NamedTuple):
    """One number. `spread`: ends of its thin line; `asked`: the number of questions it is a share of."""

    series: str
    value: float
    note: str = ""
    spread: tuple[float, float] | None = None
    asked: int | None = None

    @property
    def top(self) -> float:
        """The upper end of the bar or of its thin line."""
        return max(self.value, self.spread[1]) if self.spread else self.value


class Group(NamedTuple):
    """Bars side by side, with one label."""

    heading: str  # shared with other groups
    label: str  # its own name; "": the heading
    bars: list[Bar]


class Style(NamedTuple):
    """The arrangement of bars."""

    axis: str  # label of the axis
    most_bars: int | None = 32  # in a panel; None: one panel for each heading
    beneath: bool = False  # headings stand under the groups' labels
    sideways: bool = False  # horizontal bars
    percent: bool = False  # shares: the axis ends at 100%, and `asked` is shown

    @property
    def height(self) -> float:
        """Inches of a panel of vertical bars."""
        return 2.7 if self.percent else 3.3


class Chart(NamedTuple):
    """All content of a figure."""

    headline: str
    subject: str
    remarks: str
    warning: str  # "": none
    groups: list[Group]  # groups of one heading are adjacent
    style: Style
    colours: Mapping[str, str]  # of series; others get the remaining colours in turn
    names: Mapping[str, str]  # of series, for people


def draw(chart: Chart) -> "Figure":
    """A chart as a figure; it has at least one bar."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style, panels = chart.style, panels_of(chart.groups, chart.style.most_bars)
    heights = [sideways_height(panel) if style.sideways else style.height for panel in panels]
    series = list(dict.fromkeys(bar.series for group in chart.groups for bar in group.bars))
    unknown = cycle(OTHERS)
    colours = {name: chart.colours.get(name) or next(unknown) for name in series}
    names = {name: chart.names.get(name, name) for name in series}
    lines = header(chart)
    above = sum(line.height for line in lines) + LEGEND_LINE * -(-len(series) // legend_columns(names)) + ABOVE
    height = above + sum(heights)
    figure = Figure(figsize=(WIDTH, height), facecolor=PAPER)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", rect=(0.01, 0, 0.98, 1 - above / height), h_pad=0.1, w_pad=0.1)
    legend(figure, colours, names, write(figure, lines))
    biggest = max(bar.top for group in chart.groups for bar in group.bars)
    grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(grid[number])
        axes.set_facecolor(PAPER)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        axes.tick_params(which="both", length=0, labelsize=9, labelcolor=INK_SOFT)
        if style.most_bars is None:
            axes.set_title(panel[0].heading, loc="left", fontsize=10, fontweight="bold", color=INK)
        if style.sideways:
            horizontal(axes, panel, style, colours)
        else:
            upright(axes, panel, style, colours, biggest)
    return figure


def panels_of(groups: Iterable[Group], most_bars: int | None) -> list[list[Group]]:
    """The groups of each heading, or of as many headings as have at most `most_bars` bars together."""
    panels: list[list[Group]] = []
    for _, same in groupby(groups, key=lambda group: group.heading):
        together = list(same)
        if panels and most_bars and num_bars([*panels[-1], *together]) <= most_bars:
            panels[-1] += together
        else:
            panels.append(together)
    return panels


def num_bars(groups: Iterable[Group]) -> int:
    """The number of bars in groups."""
    return sum(len(group.bars) for group in groups)


def sideways_height(groups: Sequence[Group]) -> float:
    """Inches of a panel of horizontal bars."""
    most_lines = max(label.count("\n") + 1 for label in map(broken, groups))
    return BESIDE_BARS + num_bars(groups) * (most_lines * NAME_LINE + BAR_GAP)


def broken(group: Group) -> str:
    """The name of a group beside its bar, broken into lines."""
    return textwrap.fill(group.label, LABEL_LETTERS)


# -------------------- text


class Line(NamedTuple):
    """One line above the bars; `height` in inches."""

    text: str
    size: float
    colour: str
    height: float
    bold: bool = False


def header(chart: Chart) -> list[Line]:
    """The lines above the legend."""
    lines = [Line(chart.headline, 15, INK, 0.32, bold=True)]
    lines += [Line(text, 10.5, INK, 0.22) for text in textwrap.wrap(drawable(chart.subject), 105)]
    lines += [Line(text, 8.5, INK_SOFT, 0.18) for text in textwrap.wrap(chart.remarks, 130)]
    if chart.warning:
        lines.append(Line(chart.warning, 8.5, BAD, 0.18, bold=True))
    return lines


def drawable(text: str) -> str:
    """A text with ? for signs that the font lacks: models can have any name."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    return "".join(sign if font.get_char_index(ord(sign)) else "?" for sign in text)


def write(figure: "Figure", lines: Sequence[Line]) -> float:
    """Write left-aligned lines at the top. Returns the top of the next line, in inches from the bottom."""
    at = figure.get_figheight() - 0.22
    for line in lines:
        figure.text(
            MARGIN / WIDTH,
            at / figure.get_figheight(),
            line.text,
            fontsize=line.size,
            fontweight="bold" if line.bold else "normal",
            color=line.colour,
            va="top",
            parse_math=False,
        )
        at -= line.height
    return at


def legend_columns(names: Mapping[str, str]) -> int:
    """How many names of series fit side by side."""
    widest = max(map(len, names.values()))
    return max(1, min(len(names), int((WIDTH - 2 * MARGIN) * POINTS / (34 + 9 * LETTER * widest))))


def legend(figure: "Figure", colours: Mapping[str, str], names: Mapping[str, str], top: float) -> None:
    """The colours, each with its name, from `top` down (inches from the bottom)."""
    from matplotlib.patches import Patch

    columns = legend_columns(names)
    order = [name for column in range(columns) for name in [*colours][column::columns]]  # filled column by column
    drawn = figure.legend(
        [Patch(color=colours[name]) for name in order],
        [names[name] for name in order],
        loc="upper left",
        bbox_to_anchor=(MARGIN / WIDTH, (top - 0.06) / figure.get_figheight()),
        ncols=columns,
        fontsize=9,
        labelcolor=INK,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.6,
    )
    drawn.set_in_layout(False)


# -------------------- bars


def places(groups: Sequence[Group], *, apart: bool, gap: float = GROUP_GAP) -> list[list[float]]:
    """The positions of each group's bars, in bar widths; `apart`: with additional room between headings."""
    at, found = 0.0, []
    for before, group in zip([None, *groups], groups, strict=False):
        if before is not None:
            at += gap + (HEADING_GAP if apart and before.heading != group.heading else 0)
        found.append([at + number for number in range(len(group.bars))])
        at += len(group.bars)
    return found


def put(
    axes: "Axes",
    spots: Sequence[list[float]],
    groups: Sequence[Group],
    style: Style,
    colours: Mapping[str, str],
    size: float,
) -> None:
    """Draw the bars of every series, with their spreads and, at their ends, notes of a font's `size`."""
    placed = [pair for at, group in zip(spots, groups, strict=True) for pair in zip(at, group.bars, strict=True)]
    for name, colour in colours.items():
        own = [(at, bar) for at, bar in placed if bar.series == name]
        if not own:
            continue
        at, values = [at for at, _ in own], [bar.value for _, bar in own]
        if style.sideways:
            drawn = axes.barh(at, values, 0.78, color=colour, label=name)
        else:  # with an edge, so that 0 is visible as a line on the axis
            look: dict[str, Any] = {"color": colour, "edgecolor": colour, "clip_on": False, "zorder": 2.6}
            lines = {"ecolor": INK, "elinewidth": 1, "zorder": 2.7}
            drawn = axes.bar(
                at, values, 0.86, label=name, yerr=spreads([bar for _, bar in own]), error_kw=lines, **look
            )
        notes = [bar.note for _, bar in own]
        gap = 5 if style.sideways else 1.5
        axes.bar_label(drawn, notes, padding=gap, fontsize=size, color=INK, bbox=BEHIND_NOTES)


def spreads(bars: Sequence[Bar]) -> list[list[float]] | None:
    """The distances of each thin line's ends below and above the bar's end; None if no bar has a thin line."""
    if not any(bar.spread for bar in bars):
        return None
    ends = [(bar.value, *(bar.spread or (bar.value, bar.value))) for bar in bars]
    return [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]


def upright(axes: "Axes", groups: Sequence[Group], style: Style, colours: Mapping[str, str], biggest: float) -> None:
    """Vertical bars with names under their groups; `biggest`: the highest of all panels, which share a scale."""
    spots = places(groups, apart=style.beneath)
    last = spots[-1][-1]
    slots = max(last + 1, FEWEST_SLOTS) + 0.6
    room = (WIDTH - AXIS_ROOM - MARGIN) * POINTS / slots  # points for each bar
    notes = [bar.note for group in groups for bar in group.bars]
    put(axes, spots, groups, style, colours, fitting(notes, room, 8.5))
    axes.set_xlim(last / 2 - slots / 2, last / 2 + slots / 2)
    axes.set_ylim(0, 1.03 if style.percent else biggest * 1.12)
    if style.percent:
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], labels=["0%", "25%", "50%", "75%", "100%"])
    axes.set_ylabel(style.axis, fontsize=9, color=INK_SOFT)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.spines["bottom"].set(visible=True, color=LINE_STRONG)
    middles = [(xs[0] + xs[-1]) / 2 for xs in spots]
    axes.set_xticks(middles, labels=[group.label or group.heading for group in groups])
    axes.tick_params(axis="x", which="major", labelcolor=INK)
    if style.percent:
        tell_asked(axes, spots, groups, room)
    if style.beneath:
        for _, same in groupby(zip(middles, groups, strict=True), key=lambda pair: pair[1].heading):
            pairs = list(same)
            middle = (pairs[0][0] + pairs[-1][0]) / 2
            below(axes, ("data", "axes fraction"), (middle, 0), (0, -20), pairs[0][1].heading, fontweight="bold")


def tell_asked(axes: "Axes", spots: Sequence[list[float]], groups: Sequence[Group], room: float) -> None:
    """Write the number of questions under each bar, once if it is equal in a group; names go below that."""
    counts: list[tuple[float, str]] = []
    crowded: list[str] = []
    for xs, group in zip(spots, groups, strict=True):
        asked = [str(bar.asked) for bar in group.bars]
        if len(set(asked)) == 1:
            counts.append(((xs[0] + xs[-1]) / 2, asked[0]))
        else:
            counts += zip(xs, asked, strict=True)
            crowded += asked
    size = fitting(crowded, 0.85 * room, 7.5)
    axes.xaxis.remove_overlapping_locs = False  # otherwise the middle count of a group disappears
    axes.set_xticks([x for x, _ in counts], labels=[count for _, count in counts], minor=True)
    axes.tick_params(axis="x", which="minor", labelsize=size, pad=5)
    axes.tick_params(axis="x", which="major", pad=18)
    below(axes, "axes fraction", (0, 0), (-9, -6), "n")


def horizontal(axes: "Axes", groups: Sequence[Group], style: Style, colours: Mapping[str, str]) -> None:
    """Horizontal bars, the first on top, with their notes after them."""
    spots = places(groups, apart=False, gap=0)
    put(axes, spots, groups, style, colours, 8.5)
    labels = [broken(group) for group in groups]
    taken = 9 * LETTER * max(len(line) for label in labels for line in label.split("\n"))
    room = (WIDTH - 3 * MARGIN) * POINTS - taken
    behind = 8.5 * LETTER * max(len(bar.note) for group in groups for bar in group.bars)
    axes.set_xlim(0, max(bar.value for group in groups for bar in group.bars) / (1 - behind / room))
    axes.set_ylim(spots[-1][-1] + 0.6, -0.6)
    axes.set_yticks([(ys[0] + ys[-1]) / 2 for ys in spots], labels=labels)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_xlabel(style.axis, fontsize=9, color=INK_SOFT)
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.spines["left"].set(visible=True, color=LINE_STRONG)


def below(
    axes: "Axes",
    of: "str | tuple[str, str]",
    point: tuple[float, float],
    offset: tuple[float, float],
    text: str,
    fontweight: str = "normal",
) -> None:
    """Text under the axis, `offset` points from a point."""
    axes.annotate(
        text, point, offset, of, "offset points", ha="center", va="top", fontsize=9, fontweight=fontweight, color=INK
    )


def fitting(texts: Iterable[str], room: float, most: float) -> float:
    """The largest font size, up to `most`, at which each text is at most `room` points wide."""
    return min(most, room / (LETTER * max((1, *map(len, texts)))))
