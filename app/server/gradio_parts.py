"""Parts of Gradio that are replaced: the stored state of a page, and what fetches an address that a client names.

When a component's properties change, Gradio replaces it by a new one with a new number. The next plain value is stored
under the new number beside the old entry, so a page that is used for hours grows without end (seen with 6.31: 417
entries for 150 components after an hour). Here a replacement keeps the number of the component it replaces.

A message may have a file with an address for a path, which Gradio would fetch for the event that takes the file. Files
are dropped here, never named by an address, so those functions raise, and the event fails.

The answer to an upload would name folders of this machine; here it names files by their place in the uploads folder.
"""

import os
from typing import Any

import safehttpx  # type: ignore[import-untyped]
from gradio import processing_utils, routes, state_holder, utils
from gradio.blocks import Block
from gradio.data_classes import FileData

FETCHING = (  # in gradio.processing_utils
    *("async_ssrf_protected_get", "async_ssrf_protected_download", "ssrf_protected_download", "save_url_to_cache"),
    "unsafe_download",
)
NO_ADDRESSES = "Files are dropped, not named by their address."
is_static_file, upload_fn = utils.is_static_file, routes.upload_fn  # type: ignore[attr-defined]


class PageState(state_holder.SessionState):
    """The components of one page."""

    def __setitem__(self, key: int, value: Any) -> None:
        if isinstance(value, Block):
            value._id = key
        super().__setitem__(key, value)


def replace_parts() -> None:
    """Use these parts for pages that are opened from now on.

    Raises:
        AttributeError: this Gradio has no function of a name in FETCHING: see what it has instead.
    """

    def refuse(*_: object, **__: object) -> None:
        raise ValueError(NO_ADDRESSES)

    def look(file: Any) -> bool:  # the first that asks for a file; on Windows that would ask another machine for it
        if str(getattr(file, "path", file)).startswith(("\\\\", "//")):
            refuse()
        if isinstance(file, FileData):
            file.path = os.path.join(utils.get_upload_folder(), file.path)
        return bool(is_static_file(file))

    async def store(*args: Any, **options: Any) -> tuple[list[str], list[str], list[str]]:
        files, *unmoved = await upload_fn(*args, **options)
        return [os.path.relpath(file, utils.get_upload_folder()) for file in files], *unmoved

    for module, name in [(safehttpx, "get"), *((processing_utils, name) for name in FETCHING)]:
        getattr(module, name)
        setattr(module, name, refuse)
    for module, name, ours in (
        (state_holder, "SessionState", PageState), (utils, "is_static_file", look), (routes, "upload_fn", store),
    ):  # fmt: skip
        setattr(module, name, ours)
