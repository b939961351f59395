"""Updates that a slow browser must not lose: what Gradio sends of them, applied as its client does."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
import pytest
from app.ui.updates import Updates, lasting
from gradio.utils import diff

from app.runtime.worker import EngineWorker
from app.ui.page import build_page

NAMES = ("chat", "box", "card")


def sent(stream: Iterator[Updates]) -> list[list[Any]]:
    """Each update as Gradio sends it: a component that it leaves out gets an empty update."""
    return [[update.get(name, {"__type__": "update"}) for name in NAMES] for update in stream]  # type: ignore[call-overload]


def patched(held: Any, edits: list[Any]) -> Any:
    """What the client makes of the value it holds: whole values are replaced, parts are changed in place."""
    for action, path, value in edits:
        if not path:
            held = held + value if action == "append" else value
            continue
        at = held
        for key in path[:-1]:
            at = at[key]
        if action == "delete":
            del at[path[-1]]
        elif action == "append":
            at[path[-1]] += value
        else:
            at[path[-1]] = value
    return held


def drawn(stream: Iterator[Updates]) -> dict[str, dict[str, Any]]:
    """The properties of each component when a browser takes in every message before it draws the first."""
    updates = sent(stream)
    messages, held = [updates[0]], list(updates[0])
    for before, after in itertools.pairwise(updates):
        held = [patched(one, diff(old, new)) for one, old, new in zip(held, before, after, strict=True)]
        messages.append(list(held))
    shown: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
    for message in messages:
        for name, value in zip(NAMES, message, strict=True):
            is_update = isinstance(value, dict)
            shown[name] |= {k: v for k, v in value.items() if k != "__type__"} if is_update else {"value": value}
    return shown


def one_answer() -> Iterator[Any]:
    """The properties of a box change twice, the chat is emptied with another placeholder, and then left alone."""
    yield {"chat": gr.update(placeholder="The book is open"), "box": gr.update(submit=False, stop=True)}
    yield {"chat": gr.update(value=[], placeholder="Ask a book"), "card": "Reading"}
    yield {"card": "Read"}
    yield {"box": gr.update(submit=True, stop=False, value="a question")}
    yield {"card": gr.skip()}


def test_a_slow_browser_shows_every_update() -> None:
    shown = drawn(lasting(one_answer)())
    assert shown["chat"] == {"value": [], "placeholder": "Ask a book"}
    assert shown["box"] == {"submit": True, "stop": False, "value": "a question"} and shown["card"] == {"value": "Read"}


def test_without_the_wrapper_they_are_lost() -> None:
    """Otherwise the test above tests nothing."""
    shown = drawn(one_answer())
    assert "value" not in shown["chat"] and "value" not in shown["box"]


def test_choices_come_before_what_is_chosen() -> None:
    def one_choice() -> Iterator[Any]:
        yield {"box": gr.update(choices=["a", "b"], value="b")}

    first, second = sent(lasting(one_choice)())
    at = NAMES.index("box")
    assert first[at]["choices"] == ["a", "b"] and second[at] == "b"


def test_a_page_that_goes_ends_the_handler() -> None:
    ended = []

    def one_reading() -> Iterator[Any]:
        try:
            yield {"card": "Reading"}
            yield {"card": "Read"}
        finally:
            ended.append(True)

    stream = lasting(one_reading)()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert ended


def test_every_stream_of_the_page_is_lasting(worker: EngineWorker) -> None:
    steady = getattr(lasting(one_answer), "__code__")  # noqa: B009

    def lasts(handler: Callable[..., Any]) -> bool:
        while getattr(handler, "__code__", None) is not steady:
            if not hasattr(handler, "__wrapped__"):
                return False
            handler = handler.__wrapped__
        return True

    streams = [one.fn for one in build_page(worker, ()).fns.values() if inspect.isgeneratorfunction(one.fn)]
    assert len(streams) > 15 and not [one for one in streams if not lasts(getattr(one, "__func__", one))]


@pytest.fixture
def worker(engine: Any) -> Iterator[EngineWorker]:
    from tests.app.fakes import worker_of

    made = worker_of(engine)
    yield made
    made.close()
