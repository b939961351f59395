"""The updates that handlers return to the page."""

from typing import Any

from gradio.blocks import Block

Updates = dict[Block, Any]  # component -> its new value, or an update of its properties
