"""Files in, text out, with its pages and chapters: the formats of `app/document_formats.py`.

`read_document(path)` in one call, or `extract_document(path)` step by step for progress and Stop; `read_documents` and
`extract_documents` open a folder or a ZIP file as the documents in it, too. Every problem of a
file is a DocumentError. Knows nothing of models, tokens or the app around it; imports no parser itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
MODULES = {  # where each is, if not in `app.documents.document`
    "DocumentError": "errors",
    "extract_document": "readers",
    "extract_documents": "bundle",
    "read_document": "readers",
    "read_documents": "bundle",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: every parsing process imports this package, few of its modules."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"app.documents.{MODULES.get(name, 'document')}"), name)
