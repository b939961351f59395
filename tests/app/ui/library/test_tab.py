"""The library at work: what a click changes, states of files, and documents of any size."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.context.context_documents import AlreadyThere, Library, Pages
from app.context.token_costs import Meter
from app.context.uploads import Uploads
from app.documents.document import Document
from app.documents.ocr import Ocr
from app.documents.readers import extract_document
from app.runtime.context_loader import _book, talk_tokens
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.library.acts import changes
from app.ui.library.page_viewer import preview
from app.ui.library.view import PARTS, incoming
from app.ui.reading.book_view import book_card
from app.ui.reading.checklist_view import checklist
from app.ui.site import Drawer, Site
from core.errors import InvalidSetting
from core.generation.text import ChatText, Turn
from core.models.hub import catalog
from core.models.loader import load_tokenizer
from tests.app.fakes import FakeEngine, FakeText, document_of, opened, write_book
from tests.app.ui.pages import PageOf


def a_long_document(num_pages: int) -> Document:
    return document_of(*["A page of some words, one like the other. " * 40] * num_pages, title="Long")


# -------------------- clicks


def test_a_click_means_a_change_of_the_shelf() -> None:
    library = Library()
    for number in (3, 4, 5):
        library = library.add(a_long_document(number))
    keys = [book.key for book in library.books]

    def after(verb: str, key: str, detail: str = "") -> list[str]:
        change = changes(library, verb, key, detail)
        return [book.key for book in change(library).books] if change else []

    assert after("up", keys[2]) == [keys[0], keys[2], keys[1]]
    assert after("down", keys[0]) == [keys[1], keys[0], keys[2]]
    assert after("up", keys[0]) == after("down", keys[2]) == [], "already there"
    assert after("remove", keys[1]) == [keys[0], keys[2]]
    assert after("only", keys[1]) == [keys[1]]
    assert after("start-over", "") == []
    assert after("remove", "gone") == after("hack", keys[0]) == []
    change = changes(library, "choose", keys[1], "2-3")
    assert change and change(library).books[1].choice == Pages(2, 3)
    change = changes(library, "parts", "_", f"{keys[1]}=#2-#3")
    assert change and [(one.key, one.choice) for one in change(library).books] == [(keys[1], Pages(2, 3))]
    assert change(Library()).books == (), "the library was emptied meanwhile"
    for none in ("", "gone=all", "nonsense"):
        assert changes(library, "parts", "_", none) is None
    with pytest.raises(InvalidSetting, match="has no part"):
        changes(library, "parts", "_", f"{keys[0]}=all;{keys[1]}=c1")
    with pytest.raises(InvalidSetting, match="has no part"):
        changes(library, "choose", keys[1], "chapter 1")


def test_the_list_is_drawn_again_only_where_something_changed(worker: EngineWorker) -> None:
    session = Session("x")
    drawer = Drawer(
        Site(worker), session, "library", tuple(one for one in PARTS if one.name in ("incoming", "library"))
    )
    before = drawer.state()
    assert drawer.state()["library"] is before["library"]
    session.uploads.expect(["a.pdf"])
    expected = drawer.state()
    assert expected["library"] == "" and "a.pdf" in expected["incoming"]
    session.uploads.pending[0].num_done = 3
    session.uploads.pending[0].stage = "extracting"
    after = drawer.state()
    assert after["library"] is expected["library"] and after["incoming"] != expected["incoming"]


def test_acts_open_arrange_and_undo_and_a_refusal_is_told(
    worker: EngineWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    page, names = PageOf(worker), []
    for name, number in (("two", 2), ("ten", 10), ("one", 1)):
        (folder := tmp_path / "uploads" / name).mkdir(parents=True)
        file = write_book(folder, f"The book {name}. " * 40, f"{number}.txt")
        names.append(str(file.relative_to(tmp_path / "uploads")))

    def titles(act: str = "", **values: Any) -> list[str]:
        """Of the library after an act."""
        assert not act or page.does(act, **values)
        page.rests()
        return [book.document.title for book in page.session.uploads.library.books]

    assert titles("open", files=names) == ["1", "2", "10"], "in natural order, however they came"
    keys = [book.key for book in page.session.uploads.library.books]
    assert page.does(f"preview:{keys[1]}:1") and "The book two." in page.session.leaves["library"]
    assert titles(f"up:{keys[2]}") == ["1", "10", "2"]
    assert titles(f"move:{keys[1]}:0") == ["2", "1", "10"]
    assert titles(f"remove:{keys[0]}") == ["2", "10"]
    assert not page.session.leaves, "a page of what was removed is not left standing"
    assert titles("undo") == ["2", "1", "10"]
    assert not page.does(f"choose:{keys[0]}:9-99") and "has no part “9-99”" in page.problem
    assert page.does("find:100::book ten") and page.session.hits.count("<mark>") == 40
    assert page.problem == "", "the next act takes it away"
    for wrong in ("open", "move:x:y", "dismiss:x", "stop-recognising:", "find:x", "sample:../../etc", "preview:"):
        page.does(wrong, **({"files": "x"} if wrong == "open" else {}))
    assert titles() == ["2", "1", "10"] and page.session.is_read


# -------------------- files on their way


def test_every_file_has_a_state_of_its_own(worker: EngineWorker, tmp_path: Path, monkeypatch: Any) -> None:
    session = worker.sessions.enter("")
    files = [write_book(tmp_path, f"The book {name}. " * 40, f"{name}.txt") for name in "ab"]
    files.insert(1, write_book(tmp_path, "", "empty.txt"))
    seen: list[tuple[str, ...]] = []

    def noting(path: Path, *, ocr: Ocr) -> Iterator[Any]:
        seen.append(tuple(one.stage for one in session.uploads.pending))
        yield from extract_document(path, ocr=ocr)

    monkeypatch.setattr("app.runtime.extracting.extract_documents", noting)
    events = worker.open_books(session.id, files)
    assert [one.stage for one in session.uploads.pending] == ["waiting"] * 3, "at once, before anything is read"
    list(events)
    assert seen == [
        ("extracting", "waiting", "waiting"),
        ("extracted", "extracting", "waiting"),
        ("extracted", "failed", "extracting"),
    ]
    assert session.is_read and [one.name for one in session.uploads.pending] == ["empty.txt"]


def test_a_page_that_is_left_says_later_what_did_not_come(worker: EngineWorker, tmp_path: Path) -> None:
    session = worker.sessions.enter("")
    events = worker.open_books(session.id, [write_book(tmp_path), write_book(tmp_path, "Other. " * 30, "other.txt")])
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert {one.stage for one in session.uploads.pending} <= {"failed", "extracted"}
    assert "other.txt was not opened" in book_card(session) and not session.is_reading
    assert "other.txt was not opened" in incoming(session)


def test_the_same_text_is_refused_in_one_line(worker: EngineWorker, tmp_path: Path) -> None:
    session_id = opened(worker, write_book(tmp_path))
    list(worker.open_book(session_id, write_book(tmp_path, name="copy.txt")))
    session = worker.sessions.get(session_id)
    (refused,) = session.uploads.pending
    assert isinstance(refused.error, AlreadyThere)
    assert "copy.txt holds the same text as book.txt." in book_card(session) and len(session.uploads.library.books) == 1


@pytest.mark.parametrize(
    ("titles", "shown"),
    [
        (["Preface", "1. Overview", "2. Setup"], ["Preface", "1. Overview", "2. Setup"]),
        (["Preface", "Overview"], ["1. Preface", "2. Overview"]),
        (["Prologue", "Introduction", "1. Setup"], ["1. Prologue", "2. Introduction", "1. Setup"]),
    ],
)
def test_the_checklist_numbers_chapters_only_where_the_book_does_not(
    titles: list[str], shown: list[str], worker: EngineWorker, tmp_path: Path
) -> None:
    text = "".join(f"# {title}\n\n{'Words of it. ' * 200}\n\n" for title in titles)
    session = worker.sessions.enter("")
    list(worker.open_book(session.id, write_book(tmp_path, text, "book.md")))
    assert re.findall(r'<span dir="auto">([^<]*)</span>', checklist(session)) == shown


def test_what_is_ticked_is_told_with_its_share_of_the_room(worker: EngineWorker, tmp_path: Path) -> None:
    text = "".join(f"# {title}\n\n{'Words of it. ' * 150}\n\n" for title in ("One", "Two", "Three"))
    page = PageOf(worker)
    list(worker.open_book(page.session.id, write_book(tmp_path, text, "book.md")))
    (book,) = page.session.uploads.library.books

    def said(ticked: str) -> str:
        assert page.does(f"tick:{ticked}")
        told = page.state()["ticked"]
        assert told["fits"] is ("ticked: fits" in told["said"])
        return str(told["said"])

    assert "ticked: fits, 5" in said(f"{book.key}=c2")
    assert "ticked: does not fit, 1" in said(f"{book.key}=all")
    assert said("") == "Nothing is ticked."
    assert said(f"{book.key}=c9") == "These pages are not in the document."


# -------------------- budget


def test_a_conversation_counts_by_what_it_takes_of_a_prompt() -> None:
    text: Any = FakeText()
    assert talk_tokens(text, ()) == 0
    assert talk_tokens(text, (Turn("Who?", (1, 2, 3)),)) == len("Who?") + 2 + 3


def test_tokens_of_a_book_stay_what_they_are_when_another_follows() -> None:
    """Seen with the bundled tokenizer, whose pieces could join across the border: then all would be read again."""
    text = ChatText(load_tokenizer(catalog.find("harbour").target), frozenset())
    engine: Any = FakeEngine(context=9999)
    engine.text = text
    one = Library().add(document_of("The end of the first book"))
    two = one.add(document_of("s begin to sing.", title="Two"))
    (first, ids), (second, more) = (_book(library, Meter(len), engine) for library in (one, two))
    assert more[: len(ids)] == ids and len(more) > len(ids)
    assert list(second.starts[: len(first.starts)]) == list(first.starts)
    assert text.decode(more).split() == two.text.split()
    for start, token in list(zip(second.starts, more, strict=True))[1:]:
        piece = text.decode([token]).strip()
        assert two.text[start:].lstrip().startswith(piece)


# -------------------- any size


def test_a_page_beyond_the_last_is_the_last_and_an_unknown_book_none() -> None:
    session = Session("x")
    session.uploads.library = Library().add(a_long_document(3))
    key = session.uploads.library.books[0].key
    assert 'value="3"' in preview(session, key, 99) and 'value="1"' in preview(session, key, -4)
    assert "Choose “Preview”" in preview(session, "gone", 1)


def test_an_intake_numbers_its_files_and_forgets_what_failed_before() -> None:
    uploads = Uploads()
    first, second = uploads.expect(["a", "b"])
    first.fail(InvalidSetting("No.", hint="Yes."))
    (third,) = uploads.expect(["c"])
    assert uploads.pending == (second, third) and third.number == 3
