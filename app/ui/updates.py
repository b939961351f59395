"""The updates that handlers return to the page."""

import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any, ParamSpec

import gradio as gr
from gradio.blocks import Block

Updates = dict[Block, Any]  # component -> its new value, or an update of its properties
P = ParamSpec("P")


def lasting(handler: Callable[P, Iterator[Updates]]) -> Callable[P, Iterator[Updates]]:
    """Wrap a handler that yields updates, so that a slow browser loses none of them; every one of the page has it.

    Gradio sends what changed since the update before, and its client applies that to the same object, even while the
    update before still waits to be drawn. A property that the next update leaves out is then gone before it was seen.
    So properties are sent again until the handler ends, and a value goes alone: it is replaced whole.
    """

    @functools.wraps(handler)
    def steady(*args: P.args, **kwargs: P.kwargs) -> Iterator[Updates]:
        stream = handler(*args, **kwargs)
        try:
            yield from _never_less(stream)
        finally:
            if isinstance(stream, Generator):
                stream.close()  # the page has gone: what the handler cleans up is not left to chance

    return steady


def _never_less(stream: Iterator[Updates]) -> Iterator[Updates]:
    properties: dict[Block, dict[str, Any]] = {}
    for update in stream:
        values: Updates = {}
        for block, news in update.items():
            if not (isinstance(news, dict) and news.get("__type__") == "update"):
                values[block] = news
                continue
            own = {name: value for name, value in news.items() if name not in ("value", "__type__")}
            if own:
                properties[block] = properties.get(block, {}) | own
            if "value" in news:
                values[block] = news["value"]
            elif block not in properties:
                values[block] = news  # nothing changes
        again = {block: gr.update(**own) for block, own in properties.items()}
        yield values | again
        if again.keys() & values.keys():  # as Gradio does: choices first, then which of them is chosen
            yield again | values
