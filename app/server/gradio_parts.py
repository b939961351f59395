"""The one part of Gradio that is replaced: the answer to an upload, which would name folders of this machine.

It names files by their place in the uploads folder instead. What Gradio has beside that for handlers of events is not
reached: the page has none (see `bodies.USED`).
"""

import os
from typing import Any

from gradio import routes, utils

upload_fn = routes.upload_fn  # type: ignore[attr-defined]


def replace_parts() -> None:
    """Answer uploads so from now on. Raises AttributeError: this Gradio has no such function: see what it has."""

    async def store(*args: Any, **options: Any) -> tuple[list[str], list[str], list[str]]:
        files, *unmoved = await upload_fn(*args, **options)
        return [os.path.relpath(file, utils.get_upload_folder()) for file in files], *unmoved

    routes.upload_fn = store  # type: ignore[attr-defined]
