"""From printed lines with their places to the text of a page: which lines are one, what stands apart, what comes first.

Pure functions. The order in which a file draws its lines is the order of reading, except for what is drawn out of turn
at the edges of the page (headers, footers), and for columns drawn line by line (`columns.py`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from app.documents.columns import by_columns
from app.documents.printed import SAME_LINE, Place, PrintedLine, downwards
from app.documents.tables import joined

APART = 1.25  # times the usual step from line to line: more is a blank line
APART_UNKNOWN = 1.6  # times the size of the letters, where the usual step is not known
MOST_STEP = 4.0  # times the size: a larger step says nothing about the usual one
INDENTS = (0.7, 4.0)  # times the size: how far the first line of a paragraph may begin to the right
SENTENCE_ENDS = tuple(".!?:…\"'”’»)")
LONG_LINE = 0.6  # of the longest on the page
MAX_OUT_OF_TURN = 4  # lines at one edge of the page


def page_text(lines: Sequence[PrintedLine], *, scanned: bool = False) -> str:
    """The text of a page: one line for each printed line, blank ones where the page leaves room.

    Args:
        scanned: the lines were found on a picture.
    """
    text = upright([line for line in lines if line.text.strip()])
    ordered = in_turn(list(joined(by_columns(text, scanned=scanned))))
    steps = usual_steps(ordered)
    longest = max((line.end.x - line.start.x for line in ordered), default=0.0)
    pieces = [line.text for line in ordered[:1]]
    for index, (before, line) in enumerate(pairwise(ordered), 1):
        following = ordered[index + 1] if index + 1 < len(ordered) else None
        apart = stands_apart(before, line, steps) or is_indented(before, line, following, longest)
        pieces.append(("\n\n" if apart else "\n") + line.text)
    return "".join(pieces)


def upright(lines: Sequence[PrintedLine]) -> list[PrintedLine]:
    """The lines turned so that most run from left to right, as on a page that is turned by a quarter or a half."""
    across, along = ([line.end[axis] - line.start[axis] for line in lines] for axis in (0, 1))
    lying = sum(map(abs, along)) > sum(map(abs, across))
    sign = 1.0 if sum(along) > 0 else -1.0
    if not lying and not (sum(across) < 0 and is_upwards(lines)):  # Arabic runs to the left, too, but downwards
        return list(lines)

    def turned(place: Place) -> Place:
        return Place(sign * place.y, -sign * place.x) if lying else Place(-place.x, -place.y)

    return [replace(line, start=turned(line.start), end=turned(line.end)) for line in lines]


def in_turn(lines: Sequence[PrintedLine]) -> list[PrintedLine]:
    """The lines; of the last to be drawn, those above all before them come first; of the first, those below all last.

    A page whose lines are drawn upwards stays as it is.
    """
    most = min(MAX_OUT_OF_TURN, (len(lines) - 1) // 3)
    if most < 1 or is_upwards(lines):
        return list(lines)
    highest, lowest = max(line.start.y for line in lines[:-most]), min(line.start.y for line in lines[most:])
    above = [line for line in lines[-most:] if line.start.y > highest + SAME_LINE * line.size]
    below = [line for line in lines[:most] if line.start.y < lowest - SAME_LINE * line.size]
    between = [line for line in lines if line not in above and line not in below]
    return [*sorted(above, key=downwards), *between, *sorted(below, key=downwards)]


def is_upwards(lines: Sequence[PrintedLine]) -> bool:
    """Whether most lines stand above the one drawn before."""
    return 2 * sum(line.start.y > before.start.y for before, line in pairwise(lines)) > len(lines)


def usual_steps(lines: Sequence[PrintedLine]) -> Mapping[int, float]:
    """The usual step down from line to line, by the rounded size of the letters; only where it can be known."""
    steps: defaultdict[int, list[float]] = defaultdict(list)
    for before, line in pairwise(lines):
        step = before.start.y - line.start.y
        if size_class(before) == size_class(line) and 0 < step < MOST_STEP * line.size:
            steps[size_class(line)].append(step)
    return {size: sorted(found)[len(found) // 4] for size, found in steps.items() if len(found) >= 3}


def size_class(line: PrintedLine) -> int:
    """The size of a line's letters in half points."""
    return round(2 * line.size)


def stands_apart(before: PrintedLine, line: PrintedLine, steps: Mapping[int, float]) -> bool:
    """Whether there is room for more than nothing between two lines."""
    step = before.start.y - line.start.y
    usual = steps.get(size_class(line)) if size_class(before) == size_class(line) else None
    return step > (APART * usual if usual else APART_UNKNOWN * max(before.size, line.size))


def is_indented(before: PrintedLine, line: PrintedLine, following: PrintedLine | None, longest: float) -> bool:
    """Whether a line begins a paragraph by beginning farther to the right than those around it."""
    if not following or not before.text.rstrip().endswith(SENTENCE_ENDS):  # else it may be a list's second line
        return False
    if before.end.x - before.start.x < LONG_LINE * longest or before.start.y <= line.start.y:
        return False
    least, most = (line.size * indent for indent in INDENTS)
    returns = abs(following.start.x - before.start.x) < 0.3 * line.size
    return returns and least <= line.start.x - before.start.x <= most
