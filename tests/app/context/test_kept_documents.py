"""Texts that are kept come back as they were."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given

from app.context.context_documents import Library
from app.context.kept_documents import KeptDocuments
from app.documents.document import Document
from tests.app.context.test_context_documents import documents


@given(documents())
def test_a_kept_text_comes_back_with_its_pages_chapters_and_sub_chapters(document: Document) -> None:
    with TemporaryDirectory() as folder:
        kept, book = KeptDocuments(Path(folder)), Library().add(document).books[0]
        kept.keep(book)
        assert kept.load(book.digest, document.name).document == document
