"""`text` as a user runs it: what the model gets of a file, for programs and for people."""

import json
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, NameObject

import launch
from app.documents.readers import read_document
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer
from tests.app.documents import fake_ocr
from tests.app.documents.conftest import MakeEpub, MakePdf, in_this_process, make_epub, make_pdf, writer
from tests.app.documents.fake_ocr import MISSING, write_scan
from tests.hostile.corpus import archive, odt, rtf

__all__ = ["in_this_process", "make_epub", "make_pdf", "writer"]  # fixtures
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


def text(*arguments: object) -> int:
    return launch.main(["text", *map(str, arguments), "--no-venv"])


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["files"]
    files: list[dict[str, Any]] = document["files"]
    return files


def test_programs_get_all_files_as_one_document(
    book: Path, make_epub: MakeEpub, capsys: pytest.CaptureFixture[str]
) -> None:
    epub = make_epub("<h1>Chapter 1</h1><p>A gull.</p>", "<h1>Chapter 2</h1><p>Two gulls.</p>", name="gulls.epub")
    assert text(book, epub, "--json") == 0
    first, second = told(capsys)
    assert {name: first[name] for name in ("name", "format", "title", "warnings")} == {
        "name": "book.pdf",
        "format": "pdf",
        "title": "The Pilot",
        "warnings": [],
    }
    assert [page["label"] for page in first["pages"]] == ["i", "1", "2"]
    assert first["chapters"] == [{"title": "Chapter 1", "page": "i"}, {"title": "Chapter 2", "page": "1"}]
    assert (second["name"], second["format"]) == ("gulls.epub", "epub")
    assert "Two gulls." in "".join(page["text"] for page in second["pages"])


def test_pages_and_tokens_are_those_of_the_text_that_the_model_gets(
    book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text(book, "--json") == 0
    pages = told(capsys)[0]["pages"]
    whole = read_document(book).text
    assert "".join(page["text"] for page in pages) == whole
    tokenizer = ChatText(load_tokenizer(find("harbour").target), frozenset())
    assert sum(page["tokens"] for page in pages) == len(tokenizer.encode(whole))
    assert all(page["tokens"] > 0 for page in pages)


def test_some_pages_are_those_pages_and_their_chapters(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert text(book, "--json") == 0
    (whole,) = told(capsys)
    for pages, first in (("2-3", 1), ("3", 2)):
        assert text(book, "--json", "--pages", pages) == 0
        (part,) = told(capsys)
        assert part["pages"] == whole["pages"][first:] and part["chapters"] == whole["chapters"][first:]


def test_people_get_page_marks_and_warnings_beside(
    make_pdf: MakePdf, writer: PdfWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_pdf(*PAGES)
    garbage = DecodedStreamObject()
    garbage.set_data(b"BT garbage")
    garbage[NameObject("/Filter")] = NameObject("/Unheard")
    writer.pages[2][NameObject("/Contents")] = writer._add_object(garbage)
    writer.write(path)
    assert text(path) == 0
    captured = capsys.readouterr()
    assert "--- page 2, " in captured.out and "On the second day" in captured.out
    assert captured.err == "book.pdf: Missing or damaged, so that text is lost: pages 3.\n"
    assert "Damaged" not in captured.out


def test_words_are_found_with_their_pages(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert text(book, "--find", "HARBOUR") == 0
    assert capsys.readouterr().out.splitlines() == [
        "book.pdf: 1 hit",
        "  page 1, line 2: … the tide. Chapter 2 On the second day he counted none, for the [harbour] was closed. "
        "He went home.",
    ]
    assert text(book, "--find", "he", "--whole-words", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    hits, whole = told["files"][0]["hits"], read_document(book).text
    assert (told["find"], told["files"][0]["name"]) == ("he", "book.pdf")
    assert [(hit["page"], hit["hit"]) for hit in hits] == [("1", "he"), ("2", "He")]
    assert all(whole[hit["start"] : hit["end"]] == hit["hit"] for hit in hits)
    assert text(book, "--find", "he", "--whole-words", "--pages", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["hits"] == hits[1:]
    assert text(book, "--find", "HARBOUR", "--exact", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["hits"] == []


def test_a_file_that_cannot_be_read_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert text(tmp_path / "none.pdf", "--json") == 2
    captured = capsys.readouterr()
    assert "There is no file none.pdf" in captured.err and captured.err.count("\n") == 1
    told = {"problem": "There is no file none.pdf.", "hint": "Check the name and the folder.", "exit_code": 2}
    assert json.loads(captured.out) == {"error": told}


def test_folders_and_zip_files_are_their_documents_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "books").mkdir()
    for name, content in {
        "part 10.txt": b"Ten.",
        "part 2.rtf": rtf("Two."),
        "part 1.odt": odt("<text:p>One.</text:p>"),
    }.items():
        (tmp_path / "books" / name).write_bytes(content)
    (tmp_path / "more.zip").write_bytes(archive({"b.csv": "Name,Tons\nGull,12\n", "a.png": b"\x89PNG\r\n\x1a\n"}))
    assert text(tmp_path / "books", tmp_path / "more.zip", "--json") == 0
    files = told(capsys)
    assert [file["name"] for file in files] == ["part 1.odt", "part 2.rtf", "part 10.txt", "b.csv"]
    assert [file["pages"][0]["text"] for file in files] == ["One.", "Two.", "Ten.", "Name | Tons\nGull | 12"]
    assert files[3]["warnings"] == [
        "Not all of more.zip was opened. a.png is a picture, a sound or a font, which is not supported."
    ]


def test_scans_are_recognised_on_request_marked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_ocr.use(monkeypatch)
    scan = write_scan(tmp_path / "scan.pdf", 60, 70)
    where = ("--data-dir", tmp_path / "data")
    assert text(scan, *where) == 1
    assert "add --ocr" in capsys.readouterr().err
    assert text(scan, "--ocr", *where) == 0
    captured = capsys.readouterr()
    assert "tokens, recognised ---" in captured.out and "A page of shade 70" in captured.out
    assert captured.err == "scan.pdf: Recognised on pictures (OCR), so that letters may be wrong: pages 1–2.\n"
    monkeypatch.setenv(MISSING, "1")
    assert text(scan, "--ocr", "--json", *where) == 0
    assert [page["recognised"] for page in told(capsys)[0]["pages"]] == [True, True]
    assert launch.main(["saved", "clear", *map(str, where), "--no-venv"]) == 0
    capsys.readouterr()
    assert text(scan, "--ocr", *where) == 1
    captured = capsys.readouterr()
    assert "-m pip install -r requirements-ocr.txt" in captured.err and captured.err.count("\n") == 1
