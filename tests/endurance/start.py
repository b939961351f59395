"""The app as `launch.py` starts it, but every book that was read is kept on disk."""

import signal
import sys
from pathlib import Path

import core.kv_store.engine_store
import launch
from core.kv_store.folder import BookFolder, BookFolderSettings


def main(arguments: list[str]) -> int:
    """Run the page with the arguments of `launch.py`; `--data-dir` must be one of them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    core.kv_store.engine_store.WORTH_SECONDS = 0.0
    folder = Path(arguments[arguments.index("--data-dir") + 1]) / "shelf"
    BookFolder(folder).choose(BookFolderSettings(keeping="always", cap_bytes=1 << 30))
    return launch.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
