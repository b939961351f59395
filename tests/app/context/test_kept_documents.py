"""Texts that are kept come back as they were."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import pytest
from hypothesis import given

from app.context.context_documents import Book, Library
from app.context.kept_documents import KeptDocuments
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


def test_a_copy_that_is_cut_short_is_not_kept(book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(source: BinaryIO, out: BinaryIO) -> None:
        out.write(source.read(5_000))

    monkeypatch.setattr(shutil, "copyfileobj", cut)
    with pytest.raises(CoreError, match="its copy has another size"):
        KeptDocuments(tmp_path / "kept").keep(book)
    assert not list((tmp_path / "kept").iterdir())
