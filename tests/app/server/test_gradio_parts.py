"""A page that is used for long does not grow, and what would fetch an address raises."""

import asyncio
from typing import Any

import gradio as gr
import pytest
import safehttpx
from gradio import processing_utils, state_holder, utils
from gradio.data_classes import FileData

from app.server.gradio_parts import FETCHING, NO_ADDRESSES, PageState, replace_parts

(GRADIO_ALONE,) = PageState.__bases__  # served pages have put ours in its place


def used(kind: type[state_holder.SessionState], times: int) -> tuple[state_holder.SessionState, int]:
    """A page on which a component changed its properties and its value so often; its components at first."""
    with gr.Blocks() as blocks:
        box = gr.HTML("")
        gr.Button().click(lambda: None, None, box)
    state = kind(blocks)
    at_first = len(state.blocks_config.blocks)
    for number in range(times):
        for value in (gr.update(visible=bool(number % 2)), f"<p>{number}</p>"):
            asyncio.run(blocks.postprocess_data(blocks.fns[0], value, state))
    assert state.config_values[box._id]["props"]["visible"] is bool((times - 1) % 2)
    return state, at_first


def test_changed_components_take_the_place_of_the_old_ones() -> None:
    state, at_first = used(PageState, 20)
    assert len(state.blocks_config.blocks) == at_first and len(state.config_values) == at_first
    assert "<p>19</p>" in [values["props"].get("value") for values in state.config_values.values()]


def test_gradio_alone_keeps_them_all() -> None:
    """If this fails, Gradio keeps one entry by itself: take PageState away."""
    state, at_first = used(GRADIO_ALONE, 20)
    assert len(state.blocks_config.blocks) >= at_first + 19


def test_pages_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_holder, "SessionState", GRADIO_ALONE)  # put back at the end
    replace_parts()
    holder: Any = state_holder.StateHolder()
    with gr.Blocks() as blocks:
        gr.HTML("")
    holder.set_blocks(blocks)
    assert isinstance(holder["a page"], PageState)


def test_what_would_fetch_an_address_raises() -> None:
    replace_parts()
    for name in FETCHING:
        with pytest.raises(ValueError, match=NO_ADDRESSES):
            getattr(processing_utils, name)("https://books.example/a.txt", "")
    with pytest.raises(ValueError, match=NO_ADDRESSES):
        safehttpx.get("https://books.example/a.txt")


@pytest.mark.parametrize("path", ["\\\\machine\\a.txt", "//machine/a.txt"])
def test_no_machine_is_asked_for_a_file(path: str) -> None:
    """On Windows such a path is a folder of another machine."""
    replace_parts()
    for file in (path, FileData(path=path)):
        with pytest.raises(ValueError, match=NO_ADDRESSES):
            utils.is_static_file(file)
    assert not utils.is_static_file(FileData(path="C:/Users/reader/a.txt"))


def test_a_gradio_that_fetches_by_other_functions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(processing_utils, FETCHING[0])
    with pytest.raises(AttributeError, match=FETCHING[0]):
        replace_parts()
