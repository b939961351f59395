"""Results of a long measurement on disk, one JSON line each, so that one that was ended goes on where it was."""

import json
from pathlib import Path
from typing import Any

from core.errors import InvalidSetting


class Checkpoint:
    """What was measured so far, by key. Without a file it lasts as long as the process.

    Raises (when made):
        InvalidSetting: the file belongs to a measurement with other settings, or cannot be used.
    """

    def __init__(self, file: Path | None, settings: dict[str, Any]) -> None:
        """`settings`: all that a result depends on besides its key; it stands in the first line."""
        self._file, self._found = file, dict[str, Any]()
        first = json.loads(json.dumps(settings))
        if file is None:
            return
        try:
            lines = _whole_lines(file)
            if not lines:
                self._append(first)
        except (OSError, ValueError) as error:
            raise InvalidSetting(f"{file} cannot be used: {error}.", hint="Give --checkpoint another file.") from error
        if lines and lines[0] != first:
            raise InvalidSetting(
                f"{file} has results of a measurement with other settings.", hint="Give --checkpoint another file."
            )
        self._found = {line["key"]: line["result"] for line in lines[1:]}

    def get(self, key: str) -> Any:
        """The result of this key, None if it was not measured yet."""
        return self._found.get(key)

    def put(self, key: str, result: Any) -> None:
        """Keep a result."""
        self._found[key] = result
        if self._file is not None:
            self._append({"key": key, "result": result})

    def _append(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    """The lines that were written to their end; what a killed process left of one is cut off."""
    if not file.exists():
        return []
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
    if whole != content:
        file.write_bytes(whole)
    return lines
