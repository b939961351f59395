"""Texts that are kept come back as they were."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import pytest
from hypothesis import given

from app.context.context_documents import Book, Library
from app.context.kept_documents import KeptDocuments, KeptTextGone
from app.documents.document import Document
from core.errors import CoreError
from tests.app.context.test_context_documents import documents
from tests.app.fakes import document_of


@given(documents())
def test_a_kept_text_comes_back_with_its_pages_chapters_and_sub_chapters(document: Document) -> None:
    with TemporaryDirectory() as folder:
        kept, book = KeptDocuments(Path(folder)), Library().add(document).books[0]
        kept.keep(book)
        assert kept.load(book.digest, document.name).document == document


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """A book with its PDF."""
    (tmp_path / "a.pdf").write_bytes(b"%PDF" * 5_000)
    return Library().add(document_of("ab"), tmp_path / "a.pdf").books[0]


def test_kept_files_are_on_disk_before_they_have_their_names(
    book: Book, tmp_path: Path, synced_before_named: list[str]
) -> None:
    KeptDocuments(tmp_path / "kept").keep(book)
    assert sorted(Path(name).suffix for name in synced_before_named) == [".json", ".pdf"]


def test_the_texts_that_were_not_opened_for_longest_go_with_their_copies(book: Book, tmp_path: Path) -> None:
    others = [Library().add(document_of(text)).books[0] for text in ("b" * 9_000, "c" * 9_000)]
    kept = KeptDocuments(tmp_path / "kept", most_bytes=35_000)
    for one in (book, others[0]):
        kept.keep(one)
    for file in (tmp_path / "kept").iterdir():
        os.utime(file, (1_000, 1_000) if file.suffix == ".pdf" else (2_000, 2_000))
    assert kept.load(book.digest, "").file, "opened again"
    kept.keep(others[1])
    assert [kept.has(one.digest) for one in (book, *others)] == [True, False, True] and kept.load(book.digest, "").file


def test_a_damaged_text_goes_and_is_kept_again(book: Book, tmp_path: Path) -> None:
    kept = KeptDocuments(tmp_path / "kept")
    kept.keep(book)
    (text,) = (tmp_path / "kept").glob("*.json")
    text.write_bytes(text.read_bytes()[:-5])
    with pytest.raises(KeptTextGone, match="no longer kept"):
        kept.load(book.digest, "ab.txt")
    assert not kept.has(book.digest)
    kept.keep(book)
    assert kept.load(book.digest, "").document == book.document


def test_a_copy_that_is_cut_short_is_not_kept(book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(source: BinaryIO, out: BinaryIO) -> None:
        out.write(source.read(5_000))

    monkeypatch.setattr(shutil, "copyfileobj", cut)
    with pytest.raises(CoreError, match="its copy has another size"):
        KeptDocuments(tmp_path / "kept").keep(book)
    assert not list((tmp_path / "kept").iterdir())
