"""`text`: what the model gets of a file, for programs and for people."""

from pathlib import Path

import pytest
from pypdf import PdfWriter

from app.documents.readers import read_document
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer
from tests.app.cli.conftest import Run
from tests.app.documents import fake_ocr
from tests.app.documents.conftest import MakeEpub, MakePdf
from tests.app.documents.fake_ocr import MISSING, write_scan

PAGES = [
    ["Chapter 1", "The old pilot stood on the quay and counted the boats that", "came in with the tide."],
    ["Chapter 2", "On the second day he counted none, for the harbour was", "closed."],
    ["He went home."],
]


@pytest.fixture
def book(make_pdf: MakePdf, writer: PdfWriter, in_this_process: None) -> Path:
    """Three pages that are called i, 1 and 2, with two chapters."""
    path = make_pdf(*PAGES)
    for number, title in enumerate(("Chapter 1", "Chapter 2")):
        writer.add_outline_item(title=title, page_number=number)
    writer.set_page_label(0, 0, "/r")
    writer.set_page_label(1, 2, "/D", start=1)
    writer.add_metadata({"/Title": "The Pilot"})
    writer.write(path)
    return path


def test_programs_get_pages_chapters_and_tokens_of_the_text_that_the_model_gets(
    book: Path, make_epub: MakeEpub, run: Run
) -> None:
    epub = make_epub("<h1>Chapter 1</h1><p>A gull.</p>", "<h1>Chapter 2</h1><p>Two gulls.</p>", name="gulls.epub")
    told = run("text", book, epub, "--json").json
    first, second = told["files"]
    assert list(told) == ["files"]
    head = {"name": "book.pdf", "format": "pdf", "title": "The Pilot", "warnings": []}
    assert {name: first[name] for name in head} == head
    assert [page["label"] for page in first["pages"]] == ["i", "1", "2"]
    assert first["chapters"] == [{"title": "Chapter 1", "page": "i"}, {"title": "Chapter 2", "page": "1"}]
    assert (second["name"], second["format"]) == ("gulls.epub", "epub")
    assert "Two gulls." in "".join(page["text"] for page in second["pages"])
    whole = read_document(book).text
    tokenizer = ChatText(load_tokenizer(find("harbour").target), frozenset())
    assert "".join(page["text"] for page in first["pages"]) == whole
    assert sum(page["tokens"] for page in first["pages"]) == len(tokenizer.encode(whole))
    assert all(page["tokens"] > 0 for page in first["pages"])
    for pages, begin in (("2-3", 1), ("3", 2)):
        (part,) = run("text", book, "--json", "--pages", pages).json["files"]
        assert part["pages"] == first["pages"][begin:] and part["chapters"] == first["chapters"][begin:]


def test_words_are_found_with_their_pages(book: Path, run: Run) -> None:
    head, hit = run("text", book, "--find", "HARBOUR").out.splitlines()
    assert head == "book.pdf: 1 hit" and hit.startswith("  page 1, line 2: … the tide. Chapter 2 On the second day")
    assert hit.endswith("for the [harbour] was closed. He went home.")
    told = run("text", book, "--find", "he", "--whole-words", "--json").json
    hits, whole = told["files"][0]["hits"], read_document(book).text
    assert (told["find"], told["files"][0]["name"]) == ("he", "book.pdf")
    assert [(hit["page"], hit["hit"]) for hit in hits] == [("1", "he"), ("2", "He")]
    assert all(whole[hit["start"] : hit["end"]] == hit["hit"] for hit in hits)
    part = run("text", book, "--find", "he", "--whole-words", "--pages", "3", "--json").json
    assert part["files"][0]["hits"] == hits[1:]
    assert run("text", book, "--find", "HARBOUR", "--exact", "--json").json["files"][0]["hits"] == []


def test_scans_are_recognised_on_request_marked_and_kept(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ocr.use(monkeypatch)
    scan = write_scan(tmp_path / "scan.pdf", 60, 70)
    assert "add --ocr" in run("text", scan, code=1).error
    ran = run("text", scan, "--ocr")
    assert "--- page 2, " in ran.out and "tokens, recognised ---" in ran.out and "A page of shade 70" in ran.out
    assert ran.err == "scan.pdf: Recognised on pictures (OCR), so that letters may be wrong: pages 1–2.\n"
    monkeypatch.setenv(MISSING, "1")
    pages = run("text", scan, "--ocr", "--json").json["files"][0]["pages"]
    assert [page["recognised"] for page in pages] == [True, True], "it was kept"
    run("saved", "clear")
    assert "-m pip install -r requirements-ocr.txt" in run("text", scan, "--ocr", code=1).error
