"""Models that the user has brought: paths of folders and GGUF files, kept in the data folder."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.files import replace_file

if TYPE_CHECKING:  # importing it loads torch: the engine's thread does that while the page is already served
    from core.models.hub.local import LocalModel

NAME = "models.json"
MOST = 100  # paths


class ModelFolders:
    """The list; `file` None: it is kept in memory alone."""

    def __init__(self, file: Path | None = None) -> None:
        self._file, self._kept = file, list(_read(file))

    def all(self) -> "Iterator[LocalModel]":
        """The models that are still there, usable or not."""
        from core.models.hub.local import look_at

        for name in self._kept:
            path = Path(name)
            if path.exists():
                yield look_at(name, shown=path.stem if path.is_file() else path.name, path=path)

    def bring(self, typed: str) -> "LocalModel":
        """Check what is at a path, and keep it. Raises CoreError, as `core.models.hub.local.at_path`."""
        from core.models.hub.local import at_path

        found = at_path(typed)
        self._keep([found.name, *(name for name in self._kept if name != found.name)])
        return found

    def forget(self, name: str) -> None:
        """Take a path off the list; its files stay."""
        self._keep([one for one in self._kept if one != name])

    def _keep(self, names: list[str]) -> None:
        self._kept = names[:MOST]
        if self._file is not None:
            with contextlib.suppress(OSError):  # then the list lasts until the program ends
                replace_file(self._file, json.dumps(self._kept).encode())


def _read(file: Path | None) -> list[str]:
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file is not None else []
    except (OSError, ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, str)][:MOST] if isinstance(found, list) else []
