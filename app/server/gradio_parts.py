"""Parts of Gradio that are replaced: the stored state of a page, and what fetches an address that a client names.

When a component's properties change, Gradio replaces it by a new one with a new number. The next plain value is stored
under the new number beside the old entry, so a page that is used for hours grows without end (seen with 6.31: 417
entries for 150 components after an hour). Here a replacement keeps the number of the component it replaces.

A message may have a file with an address for a path, which Gradio would fetch for the event that takes the file. Files
are dropped here, never named by an address, so those functions raise, and the event fails.
"""

from typing import Any

import safehttpx  # type: ignore[import-untyped]
from gradio import processing_utils, state_holder, utils
from gradio.blocks import Block

FETCHING = (  # in gradio.processing_utils
    *("async_ssrf_protected_get", "async_ssrf_protected_download", "ssrf_protected_download", "save_url_to_cache"),
    "unsafe_download",
)
NO_ADDRESSES = "Files are dropped, not named by their address."
is_static_file = utils.is_static_file


class PageState(state_holder.SessionState):
    """The components of one page."""

    def __setitem__(self, key: int, value: Any) -> None:
        if isinstance(value, Block):
            value._id = key
        super().__setitem__(key, value)


def keep_numbers() -> None:
    """Use PageState for pages that are opened from now on."""
    state_holder.SessionState = PageState  # type: ignore[misc]


def fetch_nothing() -> None:
    """Let every function of Gradio that fetches an address raise.

    Raises:
        AttributeError: this Gradio has none of that name: see what it has instead.
    """

    def refuse(*_: object, **__: object) -> None:
        raise ValueError(NO_ADDRESSES)

    def look(file: Any) -> bool:  # the first that asks for the file; on Windows that would ask another machine for it
        if str(getattr(file, "path", file)).startswith(("\\\\", "//")):
            refuse()
        return bool(is_static_file(file))

    for module, name in [(safehttpx, "get"), *((processing_utils, name) for name in FETCHING)]:
        getattr(module, name)
        setattr(module, name, refuse)
    utils.is_static_file = look  # type: ignore[assignment]
