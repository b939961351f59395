"""Every reason why a document cannot be read, each with the problem and one action."""

import os
import sys
from pathlib import Path
from typing import ClassVar

from app.document_formats import ONE_OF
from core.errors import CoreError

ROOT = Path(__file__).parents[2]
PYTHON = ".venv" + ("\\Scripts\\python" if os.name == "nt" else "/bin/python")  # as seen from there
INSTALL_OCR = f"{PYTHON if Path(sys.prefix) == ROOT / '.venv' else 'python'} -m pip install -r requirements-ocr.txt"


class DocumentError(CoreError):
    """Base of the errors of this package: what a kind says of every file, with its name and perhaps some words."""

    says: ClassVar[str] = "{name} {what}."
    action: ClassVar[str]

    def __init__(self, name: str, what: str = "", *, hint: str = "") -> None:
        super().__init__(self.says.format(name=name, what=what), hint=hint or self.action)


class DocumentNotFound(DocumentError):
    """There is no such file, or it is not a regular file."""

    wrong_usage = True
    says, action = "{what}.", "Check the name and the folder."


class AccessDenied(DocumentError):
    """The file exists, but the system does not allow access."""

    says, action = "{name} cannot be opened ({what}).", "Give yourself the right to read it."


class EmptyDocument(DocumentError):
    """The file has no bytes, no pages or no text."""

    action = "Choose a file with text in it."


class UnsupportedFormat(DocumentError):
    """The content has an unsupported format, whatever the file's name says."""

    says, action = "{name} is {what}, which is not supported.", f"Use a {ONE_OF} file."


class PasswordProtected(DocumentError):
    """The file opens only with a password."""

    says = "{name} is protected by a password."
    action = "Open it with the password, save or print it as a file without one, and use that."


class DrmProtected(DocumentError):
    """The EPUB or PDF is encrypted for one reader's software (digital rights management)."""

    says, action = "{name} is encrypted (DRM) and opens in the software of its shop only.", "Use a copy without DRM."


class ScannedDocument(DocumentError):
    """The pages are images, with hardly any text."""

    def __init__(self, name: str, num_pages: int, num_pictures: int = 0) -> None:
        """`num_pictures`: pages whose text could be recognised."""
        pages = "its only page is an image" if num_pages == 1 else f"its {num_pages:,} pages are images"
        how = "open the PDF itself on the page, or add --ocr" if num_pictures else "use another program for it"
        super().__init__(name, f"holds no text: {pages}", hint=f"Recognise its text (OCR): {how}.")
        self.num_pages, self.num_pictures = num_pages, num_pictures


class OcrMissing(DocumentError):
    """The engine that recognises text on images is not installed."""

    says = "{name} has pages that are images of text."
    action = f"To recognise it, run this once: {INSTALL_OCR}"


class OcrBroken(DocumentError):
    """The engine that recognises text on images is installed and does not start."""

    says = "The recognition engine does not start."
    action = f"Free memory, or install it again: {INSTALL_OCR} --force-reinstall --no-deps"


class NotRead(DocumentError):
    """The system failed while the file was read: no room for what is unpacked, no process to parse it."""

    says, action = "{name} was not read ({what}).", "Free memory or room on the disk, then open it again."

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(name, error.strerror or type(error).__name__)


class DamagedDocument(DocumentError):
    """The file is cut off or malformed."""

    action = "Download or copy it again."


class DocumentTooLarge(DocumentError):
    """The document is larger than any context could hold."""

    says, action = "{name} is too large: {what}.", "Split it and use the part you need."


class ParsingLimitReached(DocumentError):
    """The parser used up its memory or time, and was stopped."""

    says = "Reading {name} was stopped: it took more than {what}."
    action = "Save it again with another program (for example, print it to PDF) and use that file."


class ParserCrashed(ParsingLimitReached):
    """A parser was ended by the system: for a fault of native code, or because memory ran out."""
