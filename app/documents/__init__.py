"""Files in, text out: PDF, EPUB, Word, HTML, Markdown and plain text, with its pages and chapters.

`read_document(path)` in one call, or `extract_document(path)` step by step for progress and Stop. Every problem of a
file is a DocumentError. Knows nothing of models, tokens or the app around it; imports no parser itself.
"""

from app.documents.document import Chapter, Document, Extracting, Page
from app.documents.errors import DocumentError
from app.documents.readers import extract_document, read_document

__all__ = ["Chapter", "Document", "DocumentError", "Extracting", "Page", "extract_document", "read_document"]
