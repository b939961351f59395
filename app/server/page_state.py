"""Gradio's stored state of each page: one entry a component, however often the component changes.

When a component's properties change, Gradio replaces it by a new one with a new number. The next plain value is stored
under the new number beside the old entry, so a page that is used for hours grows without end (seen with 6.31: 417
entries for 150 components after an hour). Here a replacement keeps the number of the component it replaces.
"""

from typing import Any

from gradio import state_holder
from gradio.blocks import Block


class PageState(state_holder.SessionState):
    """The components of one page."""

    def __setitem__(self, key: int, value: Any) -> None:
        if isinstance(value, Block):
            value._id = key
        super().__setitem__(key, value)


def keep_numbers() -> None:
    """Use PageState for pages that are opened from now on."""
    state_holder.SessionState = PageState  # type: ignore[misc]
