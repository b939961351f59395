"""The page as another program drives it: upload, ask, stop, and everything a user can get wrong."""

import argparse
import gc
import inspect
import re
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client, handle_file

from app.runtime.worker import EngineWorker
from app.ui.reading.checklist_view import checklist
from core.config import EngineConfig
from core.decoding.registry import FASTEST
from core.engine import Engine
from core.errors import UnknownModel
from core.generation.text import ChatText
from core.models.hub import catalog
from core.models.loader import load_tokenizer
from tests.app.fakes import GRADIO_WARNINGS, MACHINE, FakeEngine, FakeInfo, write_book
from tests.core.toys import tiny_engine

pytestmark = GRADIO_WARNINGS

SETTINGS = (FASTEST, 0.0, 1.0, 24)
CARD, LIST, PREVIEW = 0, 4, 5  # among the outputs of a click in the library
ServeOn = Callable[[EngineWorker], str]


@pytest.fixture
def served(serve: ServeOn, worker: EngineWorker) -> Iterator[Client]:
    """A client of a page on the scripted engine."""
    client = Client(serve(worker), verbose=False)
    yield client
    client.close()


def enter(client: Client) -> str:
    return str(client.predict("", api_name="/enter")[0])


def run(client: Client, *inputs: Any, api: str) -> list[tuple[Any, ...]]:
    """All updates of an event, in order."""
    return list(client.submit(*inputs, api_name=api))


def open_book(client: Client, session_id: str, file: Path) -> str:
    """The card after a file was dropped."""
    return drop(client, session_id, file)


def drop(client: Client, session_id: str, *files: Path) -> str:
    """The card after files were dropped together."""
    card, *_ = run(client, session_id, [handle_file(str(file)) for file in files], api="/open")[-1]
    return str(card)


def click(client: Client, session_id: str, action: str) -> tuple[str, str, str]:
    """Card, list and preview after a click in the library; empty where it does not change."""
    outputs = run(client, session_id, action, api="/library")
    shown = ([update[at] for update in outputs if isinstance(update[at], str)] for at in (CARD, LIST, PREVIEW))
    card, listed, page = (found[-1] if found else "" for found in shown)
    return card, listed, page


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"][0]["text"] for message in messages]


def test_upload_ask_answer(served: Client, engine: FakeEngine, tmp_path: Path) -> None:
    session_id = enter(served)
    assert "Read once" in open_book(served, session_id, write_book(tmp_path))
    engine.enqueue("It was dark, and *stormy*.")
    updates = run(served, session_id, "How was it?", *SETTINGS, api="/ask")
    assert texts(updates[0][1]) == ["How was it?", "…"]
    strip, chat = updates[-2][:2]
    assert "Answer complete" in updates[-1][0] and "Answer complete" in strip
    assert texts(chat) == ["How was it?", "It was dark, and *stormy*. "]
    ended = texts(updates[-1][1])
    assert [re.sub("<[^>]*>", "", text) for text in ended[::2]] == texts(chat)
    assert "5 tokens" in ended[-1], "figures stand below"
    assert list((tmp_path / "data" / "uploads").rglob("book.txt")) == [], "no copy of the book stays on disk"


def test_stop_keeps_what_was_written_and_the_next_question_works(
    served: Client, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = enter(served)
    open_book(served, session_id, write_book(tmp_path))
    engine.enqueue("One two | three.")
    updates = iter(served.submit(session_id, "Count!", *SETTINGS, api_name="/ask"))
    assert any("Writing" in strip for strip, *_ in updates), "it has begun"
    served.predict(session_id, api_name="/stop")
    (*_, (strip, chat, *_), _) = updates
    assert 'Stopped<span class="amount"> · 2 tokens' in strip and texts(chat) == ["Count!", "One two "], (
        "figures come with the next update"
    )
    engine.writing.set()
    engine.enqueue("Four.")
    assert "Answer complete" in run(served, session_id, "Go on", *SETTINGS, api="/ask")[-1][0]


def test_the_real_engine_behind_the_page(
    serve: ServeOn, start_worker: Callable[..., EngineWorker], tmp_path: Path
) -> None:
    engine = with_words(tiny_engine(context=1024))
    client = Client(serve(start_worker(engine)), verbose=False)
    session_id = enter(client)
    assert "Read once" in open_book(client, session_id, write_book(tmp_path))
    plain, fast = (
        run(client, session_id, "How was it?", method, 0.0, 1.0, 24, api="/ask")
        for method in ("autoregressive", FASTEST)
    )
    client.close()
    assert "24 tokens" in plain[-1][0] and "24 tokens" in fast[-1][0] and ">0<" in fast[-1][0]
    assert len(texts(fast[-2][1])) == 6, "two questions and answers, figures and buttons of the first"


def with_words(engine: Engine) -> Engine:
    """A tiny random model that takes any text: token ids of the bundled tokenizer, folded into its 64."""

    class Folded(ChatText):
        def encode(self, text: str) -> list[int]:
            return [token % 60 for token in super().encode(text)]

        def pieces(self, roles: Sequence[str], thinking: str | None = None) -> list[list[int]]:
            return [[token % 60 for token in piece] for piece in super().pieces(roles, thinking)]

    engine.text = Folded(load_tokenizer(catalog.find("harbour").target), frozenset())
    return engine


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ((FASTEST, -1, 1.0, 24), "Temperature -1"),
        ((FASTEST, 0.0, 0.0, 24), "top-p 0"),
        ((FASTEST, 0.0, 1.0, 0), "At least one new token"),
        ((FASTEST, None, 1.0, 24), "A field in Settings is empty."),
    ],
)
def test_a_wrong_setting_is_said_and_the_question_stays(
    settings: tuple[Any, ...], problem: str, served: Client, tmp_path: Path
) -> None:
    session_id = enter(served)
    open_book(served, session_id, write_book(tmp_path))
    strip, _, box, *_, told = run(served, session_id, "Well?", *settings, api="/ask")[-1]
    assert problem in told and 'role="alert"' in told and box == "Well?"
    assert "Answer complete" not in strip


def test_bad_files_are_explained_and_the_app_goes_on(served: Client, tmp_path: Path) -> None:
    session_id = enter(served)
    open_book(served, session_id, write_book(tmp_path, name="good.txt"))
    binary = tmp_path / "binary.txt"
    binary.write_bytes(bytes(range(256)) * 40)
    cut = tmp_path / "cut.pdf"
    cut.write_bytes(b"%PDF-1.7\n1 0 obj")
    for file in (write_book(tmp_path, "", "empty.txt"), binary, cut):
        card = open_book(served, session_id, file)
        assert 'role="alert"' in card and "The book below stays open" in card and "good" in card, card
    card = open_book(served, session_id, write_book(tmp_path, "A long text. " * 2000, "long.txt"))
    assert 'role="alert"' in card and "Until then questions go to good" in card, card
    assert "Answer complete" in run(served, session_id, "Still here?", *SETTINGS, api="/ask")[-1][0]


def test_several_files_are_one_shelf(served: Client, engine: FakeEngine, worker: EngineWorker, tmp_path: Path) -> None:
    session_id = enter(served)
    files = [write_book(tmp_path, f"The book {name}. " * 40, f"{name}.txt") for name in "ab"]
    card = drop(served, session_id, *files, write_book(tmp_path, "", "empty.txt"))
    assert "2 documents, read in this order" in card and "Read once" in card and "empty.txt is empty." in card
    assert card.count("<i>1 page · 480 tokens</i>") == 2
    session = worker.sessions.get(session_id)
    first, second = (book.key for book in session.uploads.library.books)
    card, listed, _ = click(served, session_id, f"up:{second}")
    assert listed.index(">b<") < listed.index(">a<") and "Read once" in card
    *_, page = click(served, session_id, f"preview:{first}:1")
    assert "The book a." in page and "of 1" in page and "480 tokens" in page
    assert "already there" in drop(served, session_id, write_book(tmp_path, "The book a. " * 40, "a.txt"))
    card, *_ = click(served, session_id, f"choose:{first}:9-12")
    assert "a.txt has no part “9-12”." in card and 'role="alert"' in card
    card, listed, _ = click(served, session_id, f"remove:{second}")
    assert "2 documents" not in card and ">b<" not in listed
    card, listed, page = click(served, session_id, "start-over")
    assert "No book yet" in card and "Nothing in the library yet" in listed and "Choose “Preview”" in page
    assert list((tmp_path / "data" / "uploads").rglob("*.txt")) == []


def test_what_is_too_long_is_chosen_from_and_then_read(
    served: Client, engine: FakeEngine, worker: EngineWorker, tmp_path: Path
) -> None:
    session_id = enter(served)
    card = open_book(served, session_id, write_book(tmp_path, "A long text. " * 2000, "long.txt"))
    assert "Too long to read at once" in card and "Read once" not in card
    listed = checklist(worker.sessions.get(session_id))
    offer = re.search(r'data-act="(choose:[^"]+)"', listed)
    assert offer
    card, listed, _ = click(served, session_id, offer[1])
    assert "Read once" in card and "Too long" not in card and "Read page 1:" in listed
    book = worker.sessions.get(session_id).book
    assert book is not None and book.num_opening + 512 <= engine.context
    assert "Answer complete" in run(served, session_id, "How long?", *SETTINGS, api="/ask")[-1][0]


def test_a_click_on_the_strip_opens_the_page_with_what_was_loaded(
    served: Client, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = enter(served)
    open_book(served, session_id, write_book(tmp_path, "The teapot was lost in the great spring tide. " * 60))
    engine.weights = [0.5, 0.0, 0.0, 0.5]
    engine.enqueue("In the great spring tide.")
    *_, last = run(served, session_id, "When?", *SETTINGS, api="/ask")
    (strip,) = (one for one in last if isinstance(one, str) and "Where in the book" in one)
    assert "checked against the whole book" in strip and 'data-act="page:0"' in strip and "most loaded" in strip
    page = served.predict(session_id, "page:0", api_name="/where")
    assert '<mark class="strong">the great</mark>' in page, "tokens 24 to 31 of the prompt, and a letter for the word"
    assert served.predict(session_id, "close", api_name="/where") == ""


def test_questions_without_a_book_or_without_words(served: Client, tmp_path: Path) -> None:
    session_id = enter(served)
    assert "There is no book yet." in run(served, session_id, "What?", *SETTINGS, api="/ask")[-1][-1]
    open_book(served, session_id, write_book(tmp_path))
    assert "The question is empty." in run(served, session_id, "  ", *SETTINGS, api="/ask")[-1][-1]
    assert "its book is gone" in run(served, "unknown", "What?", *SETTINGS, api="/ask")[-1][-1]


def test_a_reload_shows_the_conversation_again(served: Client, engine: FakeEngine, tmp_path: Path) -> None:
    session_id = enter(served)
    open_book(served, session_id, write_book(tmp_path))
    engine.enqueue("Dark.")
    run(served, session_id, "How was it?", *SETTINGS, api="/ask")
    again, card, chat, strip, *rest = served.predict(session_id, api_name="/enter")
    assert again == session_id and "Read once" in card and "Answer complete" in strip
    assert texts(chat["value"])[::2] == ["How was it?", "Dark. "]
    assert any("book.txt" in str(one) and "Preview" in str(one) for one in rest), "the library"


def test_a_model_that_does_not_load_is_explained_in_the_page(serve: ServeOn) -> None:
    def load() -> Any:
        raise UnknownModel("There is no model 'x'.", hint="Use harbour.")

    worker = EngineWorker(load)
    worker.start()
    client = Client(serve(worker), verbose=False)
    head, banner, *_ = run(client, "", api="/watch_model")[-1]
    client.close()
    worker.close()
    assert "No model" in head and "There is no model &#x27;x&#x27;." in banner and "Use harbour." in banner


@pytest.mark.parametrize(
    ("usual", "packed", "shown"),
    [
        ("lookup", '["autoregressive"]', "autoregressive"),
        ("lookup", '["triforce"]', "lookup"),
        ("autoregressive", '["triforce"]', FASTEST),
        ("autoregressive", "", "autoregressive"),
        ("lookup", "{", "lookup"),
        ("lookup", "[]", "lookup"),
    ],
)
def test_a_reload_keeps_the_chosen_decoding(
    served: Client, monkeypatch: pytest.MonkeyPatch, usual: str, packed: str, shown: str
) -> None:
    monkeypatch.setattr(FakeInfo, "usual_method", usual)
    method = run(served, enter(served), packed, api="/watch_model")[-1][2]
    assert method == shown


def test_the_page_is_served_while_the_model_loads(serve: ServeOn) -> None:
    worker = EngineWorker(lambda: (_ for _ in ()).throw(AssertionError("not started")))  # type: ignore[arg-type]
    with urllib.request.urlopen(serve(worker)) as response:
        html, headers = response.read().decode(), response.headers
    assert "Loading the model" in html
    assert "default-src 'self'" in headers["Content-Security-Policy"] and headers["Referrer-Policy"] == "no-referrer"
    assert "<style>" in html and "--paper" in html


def test_auth_guards_the_page(serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace) -> None:
    arguments.auth = "reader:secret"
    address = serve(worker)
    with pytest.raises(Exception, match="credentials"):
        Client(address, verbose=False)
    client = Client(address, auth=("reader", "secret"), verbose=False)
    assert enter(client)
    client.close()


def test_the_bundled_model_answers_through_the_page(
    serve: ServeOn, start_worker: Callable[..., EngineWorker], tmp_path: Path
) -> None:
    engine = Engine.load(EngineConfig(context=2048))
    client = Client(serve(start_worker(engine)), verbose=False)
    session_id = enter(client)
    assert "Read once" in open_book(client, session_id, write_book(tmp_path))
    updates = run(client, session_id, "How was the night?", FASTEST, 0.0, 1.0, 16, api="/ask")
    client.close()
    assert "TriForce" in updates[-1][0] and "exact" in updates[-1][0] and ">0<" in updates[-1][0]
    assert MACHINE.num_cores and texts(updates[-2][1])[-1].strip()


def test_an_event_with_nothing_to_show_empties_nothing(worker: EngineWorker) -> None:
    # Gradio sets every output of a generator that ends without a yield to nothing, on the page too.
    from app.context.samples import load_samples
    from app.ui.models.rows import ModelSource
    from app.ui.page import build_page

    source = ModelSource(
        config=EngineConfig, load=lambda config: pytest.fail("nothing is loaded"), unavailable="none here"
    )
    page = build_page(worker, load_samples(), source=source)
    current = worker.sessions.enter("")
    events = [event for event in page.fns.values() if inspect.isgeneratorfunction(event.fn)]
    assert len(events) > 15, "the generators are not found any more"
    for event in events:
        updates = event.fn(current.id, *[getattr(block, "value", None) or "" for block in event.inputs[1:]])
        assert next(updates, None), f"{event.name} may end without an update"
        updates.close()
    del page, events, event
    gc.collect()  # what Gradio leaves open goes while its warnings are expected
