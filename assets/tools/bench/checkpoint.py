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
        if file is None:
            return
        first = json.loads(json.dumps(settings))
        another = "Give --checkpoint another file."
        try:
            content = file.read_bytes() if file.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]  # without what a killed process left of a line
            lines = [json.loads(line) for line in whole.splitlines()]
            file.write_bytes(whole or json.dumps(first).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise InvalidSetting(f"{file} cannot be used: {error}.", hint=another) from error
        if lines and lines[0] != first:
            raise InvalidSetting(f"{file} has results of a measurement with other settings.", hint=another)
        self._found = {line["key"]: line["result"] for line in lines[1:]}

    def get(self, key: str) -> Any:
        """The result of this key, None if it was not measured yet."""
        return self._found.get(key)

    def put(self, key: str, result: Any) -> None:
        """Keep a result."""
        self._found[key] = result
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "result": result}) + "\n")
