"""Files in, text out, with its pages and chapters: the formats of `app/document_formats.py`.

`read_document(path)` in one call, or `extract_document(path)` step by step for progress and Stop; `read_documents` and
`extract_documents` open a folder or a ZIP file as the documents in it, too. Every problem of a
file is a DocumentError. Knows nothing of models, tokens or the app around it; imports no parser itself.
"""

from app.documents.bundle import extract_documents, read_documents
from app.documents.document import Chapter, Document, Extracting, Page
from app.documents.errors import DocumentError
from app.documents.readers import extract_document, read_document

__all__ = [
    "Chapter",
    "Document",
    "DocumentError",
    "Extracting",
    "Page",
    "extract_document",
    "extract_documents",
    "read_document",
    "read_documents",
]
