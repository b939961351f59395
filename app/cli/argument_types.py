"""What single values of the command line may be: argparse types. Standard library only, as `arguments.py`."""

import sys
from argparse import ArgumentTypeError
from pathlib import Path

MOST_QUESTION_BYTES = 1 << 20


def question(text: str) -> str:
    """A question, `@FILE` for one in a file, `@-` for one on stdin, `@@...` if it begins so."""
    if text.startswith("@@") or not text.startswith("@"):
        return text.removeprefix("@") if text.startswith("@@") else text
    name = text[1:]
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            raw = file.read(MOST_QUESTION_BYTES + 1)
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "no such name"
        raise ArgumentTypeError(f"{name!r} cannot be read ({told}): name a file after @") from None
    if len(raw) > MOST_QUESTION_BYTES:
        raise ArgumentTypeError(f"{name!r} is longer than a question may be, {MOST_QUESTION_BYTES:,} bytes")
    try:
        return raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ArgumentTypeError(f"{name!r} is not UTF-8 text (byte {error.start})") from None


def port_number(text: str) -> int:
    """1 to 65535."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is not a port: use a number from 1 to 65535")
    return int(text)


def page_range(text: str) -> tuple[int, int]:
    """`7` or `3-12`, pages counted from 1."""
    first, dash, last = text.partition("-")
    numbers = first, last if dash else first
    if not all(number.isdecimal() for number in numbers) or not 1 <= int(numbers[0]) <= int(numbers[1]):
        raise ArgumentTypeError(f"{text!r} is no range of pages: use for example 7 or 3-12")
    return int(numbers[0]), int(numbers[1])


def name_list(text: str) -> tuple[str, ...]:
    """`a,b`."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ArgumentTypeError(f"{text!r} is not a list: use names with commas between them")
    return names


def float_list(text: str) -> tuple[float, ...]:
    """`0.3,0.92`."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a list of numbers: use for example 0.3,0.92") from None
