"""What passes of a model cost on this machine: measured once by context length and kept in the user's cache folder.

A seed gives the same text again only with the same round shapes, which depend on these times.
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from core.ops.kernel_build import cache_folder

STEPS_AN_OCTAVE = 4  # lengths of context with measurements of their own: a pass costs up to a fifth more at the next
Seconds = dict[int, float]  # by rows of a pass

_known: dict[Path, dict[str, Seconds]] = {}  # of this process, also where nothing can be written


def costs_folder() -> Path:
    """Where they are kept; without a home, a place where nothing can be written."""
    try:
        return cache_folder("pass-costs")
    except RuntimeError:
        return Path(os.devnull) / "pass-costs"


def kept_costs(
    folder: Path, about: str, model: str, length: int, measure: Callable[[], Seconds]
) -> Mapping[int, float]:
    """Seconds of a model's passes by their rows, behind so many tokens; measured if they are not known.

    Args:
        about: everything else that they depend on.
    """
    file = folder / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"
    if file not in _known:
        _known[file] = _read(file)
    key = f"{model} {round(STEPS_AN_OCTAVE * math.log2(max(length, 1)))}"
    if key not in _known[file]:
        measured = {key: _rising(measure())} if key not in _read(file) else {}
        _known[file] = {**measured, **_read(file), **_known[file]}  # another process may have measured it meanwhile
        if measured:
            _write(file, _known[file])
    return _known[file][key]


def _rising(seconds: Seconds) -> Seconds:
    """More rows never cost less: what says so was disturbed."""
    least, rising = 0.0, {}
    for rows, took in sorted(seconds.items()):
        least = rising[rows] = max(least, took)
    return rising


def _read(file: Path) -> dict[str, Seconds]:
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): {int(rows): float(took) for rows, took in by_rows.items()} for key, by_rows in held.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write(file: Path, held: Mapping[str, Seconds]) -> None:
    with contextlib.suppress(OSError):  # then only this process knows them
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, part = tempfile.mkstemp(dir=file.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(held, out)
        os.replace(part, file)
