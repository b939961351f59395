"""The files of open PDFs, for images of their pages: which are kept on disk, and the images used last.

Of a dropped file its upload's own copy is kept, as long as a page has the document open, and deleted then. A file that
the program did not copy, such as a sample book, is never touched.
"""

import threading
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from app.context.upload_files import delete, is_own
from app.documents.page_image import PageImage, PageNotDrawn, draw_page

MOST_KEPT = 1 << 30  # bytes of all copies; half of what uploads may take (app/server/bodies.py)
MOST_IMAGES = 64  # in memory, of some 100 to 500 KB
GONE = (
    "This page cannot be drawn: the file is no longer kept. Remove the book and open its file again to see its pages."
)


class OpenFiles:
    """The files of every page of one program. Safe to use from any thread."""

    def __init__(self, most_kept: int = MOST_KEPT, most_images: int = MOST_IMAGES) -> None:
        self._most_kept, self._draw = most_kept, lru_cache(most_images)(draw_page)
        self._owners: OrderedDict[Path, str] = OrderedDict()  # of own copies, the newest last
        self._lock = threading.Lock()

    def hold(self, owner: str, file: Path) -> None:
        """Keep an upload's own copy for a session; if all take too much, the oldest go."""
        if not is_own(file):
            return
        with self._lock:
            self._owners[file] = owner
            sizes = {one: _size(one) for one in self._owners}
            for old in list(self._owners)[:-1]:
                if sum(sizes.values()) <= self._most_kept:
                    return
                self._let_go(old)
                del sizes[old]

    def holds(self, file: Path) -> bool:
        """Whether a file is kept."""
        with self._lock:
            return file in self._owners

    def retain(self, owner: str, files: set[Path]) -> None:
        """Delete a session's copies but for some."""
        with self._lock:
            for file in [one for one, its in self._owners.items() if its == owner and one not in files]:
                self._let_go(file)

    def close(self) -> None:
        """Delete all copies."""
        with self._lock:
            for file in list(self._owners):
                self._let_go(file)

    def page(self, file: Path, name: str, number: int, num_pages: int, width: int) -> PageImage:
        """A page as an image, drawn unless it was lately; see `draw_page`.

        Raises:
            PageNotDrawn.
        """
        if not file.is_file():
            raise PageNotDrawn(GONE)
        return self._draw(file, name, number, num_pages, width)

    def _let_go(self, file: Path) -> None:
        """Delete a copy, and forget all images; what cannot be deleted is tried again with the next change."""
        self._draw.cache_clear()
        if delete(file):
            del self._owners[file]


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0
