"""Models that the user has brought: paths of folders and GGUF files, kept in the data folder."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from app.private_files import SET_ASIDE
from core.files import replace_file

if TYPE_CHECKING:  # importing it loads torch: the engine's thread does that while the page is already served
    from core.models.hub.local import LocalModel

NAME = "models.json"
MOST = 100  # paths


class ModelFolders:
    """The list; `file` None: it is kept in memory alone."""

    def __init__(self, file: Path | None = None) -> None:
        self._file, self._kept = file, list[str]()

    def all(self) -> "Iterator[LocalModel]":
        """The models that are still there, usable or not. Raises nothing."""
        from core.models.hub.local import look_at_path

        for name in self.names():
            try:
                if not Path(name).exists():
                    continue
            except (OSError, ValueError):  # closed to this program: the row tells it
                pass
            yield look_at_path(name)

    def bring(self, typed: str) -> "LocalModel":
        """Check what is at a path, and keep it. Raises CoreError, as `core.models.hub.local.at_path`."""
        from core.models.hub.local import at_path

        found = at_path(typed)
        self._keep(lambda names: [found.name, *(name for name in names if name != found.name)])
        return found

    def forget(self, name: str) -> None:
        """Take a path off the list; its files stay."""
        self._keep(lambda names: [one for one in names if one != name])

    def _keep(self, change: Callable[[list[str]], list[str]]) -> None:
        self._kept = change(self.names())[:MOST]
        if self._file is not None:
            try:
                replace_file(self._file, json.dumps(self._kept).encode())
            except OSError:  # then the list lasts until the program ends
                self._file = None

    def names(self) -> list[str]:
        """The paths as the file has them: another program may have changed it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._kept = _read(self._file)
        return self._kept


def _read(file: Path) -> list[str]:
    """The paths of a file, none if there is no file; one that holds no list is set aside, and so not overwritten.

    Raises:
        OSError: it cannot be read.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        file.replace(file.with_name(file.name + SET_ASIDE))
        return []
    return [one for one in found if isinstance(one, str)][:MOST]
