"""Tables of what real files give, for people or as in assets/docs/documents.md."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from app.documents.errors import DocumentError

Source = TypeVar("Source")


def measured(sources: Iterable[Source], measure: Callable[[Source], Sequence[str]]) -> list[Sequence[str]]:
    """A row of each source, told on stderr as it comes; of one that cannot be read, why."""
    rows = []
    for source in sources:
        try:
            rows.append(measure(source))
        except DocumentError as error:
            print(f"{source}: {error}", file=sys.stderr)
            continue
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, markdown: bool, names: int = 1) -> None:
    """Print rows below their heads; the first `names` columns stand left, figures right."""
    lines = [head, *rows]
    if markdown:
        lines.insert(1, ["---"] * names + ["---:"] * (len(head) - names))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        pairs = enumerate(zip(cells, widths, strict=True))
        told = [cell.ljust(width) if at < names else cell.rjust(width) for at, (cell, width) in pairs]
        print(f"| {' | '.join(told)} |" if markdown else "  ".join(told))
