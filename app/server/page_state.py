"""What Gradio keeps of each page: one entry a component, however often the component changes.

Where a component's properties change, Gradio makes another one in its place and numbers it anew. The next plain value
finds that one and is kept under the new number, beside what is there: a page that is used for hours grows without end
(seen with 6.31: 417 entries for 150 components after an hour). So whatever takes a place takes its number, too.
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
    """Let pages that are opened from here on keep their components so."""
    state_holder.SessionState = PageState  # type: ignore[misc]
