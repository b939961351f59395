"""Side notes and footnotes are read after the text of their page, not in its midst."""

from itertools import compress, pairwise
from operator import not_

from app.documents.printed import Lines, PrintedLine, usual_size

MIN_LINES = 5  # of text beside which notes can stand
SMALLER = 0.95  # of the usual size: notes are printed in smaller letters than the text
MIN_NOTE_LINES = 2  # in a margin; one is a label or the number of a line
MIN_WORDS = 4  # of a note
MARKS = ",.;:!?()*†‡“”\"'"  # around words
WORDS_ON_A_LINE, WORDS_OF_PARTS = 1.7, 0.6  # of a note: lists, code and formulas have fewer
NEXT_LINE = 1.8  # times the size of a note's letters: the step to its next line is less
MOST_OPEN = 30  # notes at one height that a line may go on with
JUMP = 4.0  # times the usual size: how far up the next column begins at least
FOOTER = 2.5  # times the size: what stands farther below the text is a footer
NEAR_BOTTOM = 12.0  # times the usual size: footnotes begin lower than that above the last line of the text


def without_side_notes(lines: Lines) -> tuple[list[PrintedLine], list[PrintedLine]]:
    """The text of a page, and the notes beside it, in smaller letters, between whose lines they are drawn."""
    size = usual_size(lines)
    body = [line for line in lines if line.size >= SMALLER * size]
    if len(body) < MIN_LINES or len(body) == len(lines):
        return list(lines), []
    lefts, rights = sorted(line.left for line in body), sorted(line.right for line in body)
    left, right = lefts[len(lefts) // 20], rights[len(rights) * 19 // 20]
    top, bottom = max(line.start.y for line in body), min(line.start.y for line in body)

    def stands_beside(line: PrintedLine) -> bool:
        """Whether a line stands beside the text, at the height of its lines."""
        outside = line.left > right or line.right < left
        return line.size < SMALLER * size and outside and bottom - size < line.start.y < top + size

    notes, near = list[list[PrintedLine]](), list[list[PrintedLine]]()
    for line in sorted(filter(stands_beside, lines), key=downwards):
        lowest = line.start.y + NEXT_LINE * SMALLER * size  # of what any line at this height or below goes on with
        near = [note for note in near if note[-1].start.y < lowest][-MOST_OPEN:]
        under = next((note for note in near if is_under(note[-1], line)), None)
        if under:
            under.append(line)
        else:
            near.append([line])
            notes.append(near[-1])
    beside = [line for note in notes if is_note(note) for line in note]
    taken = set(map(id, beside))
    return [line for line in lines if id(line) not in taken], beside


def is_under(above: PrintedLine, line: PrintedLine) -> bool:
    """Whether a line of a note goes on below another."""
    return abs(above.left - line.left) < line.size and above.start.y - line.start.y < NEXT_LINE * line.size


def is_note(lines: Lines) -> bool:
    """Whether lines in a margin are a note: sentences on some lines, no labels, numbers or code."""
    return len(lines) >= MIN_NOTE_LINES and is_wordy(lines)


def is_wordy(lines: Lines) -> bool:
    """Whether lines are mostly words, more than one on each."""
    parts = [part.strip(MARKS) for line in lines for part in line.text.split()]
    words = sum(part.isalpha() for part in parts)
    return words >= max(MIN_WORDS, WORDS_ON_A_LINE * len(lines), WORDS_OF_PARTS * len(parts))


def with_side_notes(lines: Lines, notes: Lines) -> list[PrintedLine]:
    """The lines with notes behind them, but before a last one that stands far below, a footer."""
    end = len(lines)
    if end > 1 and lines[-2].start.y - lines[-1].start.y > FOOTER * lines[-1].size:
        end -= 1
    return [*lines[:end], *notes, *lines[end:]]


def notes_last(lines: Lines) -> list[PrintedLine]:
    """The lines; footnotes under a column that is followed by another come after that one, too."""
    size = usual_size(lines)
    text, notes, held = list[PrintedLine](), list[PrintedLine](), list[PrintedLine]()
    for before, line in pairwise([*lines[:1], *lines]):
        small = line.size < SMALLER * size
        if held and not small:
            (notes if line.start.y > before.start.y + JUMP * size else text).extend(held)
            held = []
        (held if small and text else text).append(line)
    bottom = min((line.start.y for line in notes), default=0.0)
    lowest = min((line.start.y for line in text if line.start.y > bottom), default=0.0)
    if not is_wordy(notes) or any(line.start.y > lowest + NEAR_BOTTOM * size for line in notes):
        return list(lines)
    below = [line.start.y < bottom - line.size for line in text]
    footer = compress(text, below)
    return [*compress(text, map(not_, below)), *held, *notes, *footer]


def downwards(line: PrintedLine) -> float:
    """What grows down the page."""
    return -line.start.y
