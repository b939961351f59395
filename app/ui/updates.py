"""The updates that handlers return to the page."""

from typing import Any

from gradio.blocks import Block

Updates = dict[Block, Any]  # component -> its new value, or an update of its properties
# Of two updates of one component in one frame Gradio keeps the later, even if that has no new value.
FRAME_SECONDS = 0.3
