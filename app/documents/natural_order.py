"""The order in which people read files of one folder, and which files of a folder nobody means."""

import re

DIGITS = re.compile(r"(\d{1,18})", re.ASCII)
NOBODYS = frozenset(["__MACOSX", "Thumbs.db", "desktop.ini"])  # what systems put beside files


def natural(name: str) -> list[list[tuple[int, str]]]:
    """Sort key of a path: part 2 before part 10, capital and small letters alike, a folder's files together."""
    return [
        [(int(piece), "") if number % 2 else (-1, piece) for number, piece in enumerate(DIGITS.split(part))]
        for part in name.casefold().split("/")
    ]


def is_hidden(name: str) -> bool:
    """Whether a path, or a folder in it, is hidden or a system's own."""
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return any(part.startswith(".") or part in NOBODYS for part in parts)
