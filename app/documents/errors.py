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
SUPPORTED = ONE_OF


class DocumentError(CoreError):
    """Base of the errors of this package."""


class NamedProblem(DocumentError):
    """A problem that is the same for every file, but for its name and perhaps some words."""

    says: ClassVar[str]
    action: ClassVar[str]

    def __init__(self, name: str, what: str = "") -> None:
        super().__init__(self.says.format(name=name, what=what), hint=self.action)


class DocumentNotFound(DocumentError):
    """There is no such file, or it is not a regular file."""

    wrong_usage = True


class AccessDenied(NamedProblem):
    """The file exists, but the system does not allow access."""

    says, action = "{name} cannot be opened ({what}).", "Give yourself the right to read it."


class EmptyDocument(DocumentError):
    """The file has no bytes, no pages or no text."""


class UnsupportedFormat(DocumentError):
    """The content has an unsupported format, whatever the file's name says."""

    def __init__(self, name: str, what: str, *, hint: str = "") -> None:
        super().__init__(f"{name} is {what}, which is not supported.", hint=hint or f"Use a {SUPPORTED} file.")


class PasswordProtected(NamedProblem):
    """The file opens only with a password."""

    says = "{name} is protected by a password."
    action = "Open it with the password, save or print it as a file without one, and use that."


class DrmProtected(NamedProblem):
    """The EPUB is encrypted for one reader's software (digital rights management)."""

    says, action = "{name} is encrypted (DRM) and opens in the software of its shop only.", "Use a copy without DRM."


class ScannedDocument(DocumentError):
    """The pages are images, with hardly any text."""

    def __init__(self, name: str, num_pages: int, num_pictures: int = 0) -> None:
        """`num_pictures`: pages whose text could be recognised."""
        pages = "its only page is an image" if num_pages == 1 else f"its {num_pages:,} pages are images"
        how = "open the PDF itself on the page, or add --ocr" if num_pictures else "use another program for it"
        super().__init__(f"{name} holds no text: {pages}.", hint=f"Recognise its text (OCR): {how}.")
        self.num_pages, self.num_pictures = num_pages, num_pictures


class OcrMissing(NamedProblem):
    """The engine that recognises text on images is not installed."""

    says = "{name} has pages that are images of text."
    action = f"To recognise it, run this once: {INSTALL_OCR}"


class OcrBroken(DocumentError):
    """The engine that recognises text on images is installed and does not start."""

    def __init__(self) -> None:
        super().__init__(
            "The recognition engine does not start.",
            hint=f"Free memory, or install it again: {INSTALL_OCR} --force-reinstall --no-deps",
        )


class NotRead(DocumentError):
    """The system failed while the file was read: no room for what is unpacked, no process to parse it."""

    def __init__(self, name: str, error: OSError) -> None:
        what = error.strerror or type(error).__name__
        super().__init__(f"{name} was not read ({what}).", hint="Free room on the disk, then open it again.")


class DamagedDocument(NamedProblem):
    """The file is cut off or malformed."""

    says, action = "{name} {what}.", "Download or copy it again."


class DocumentTooLarge(NamedProblem):
    """The document is larger than any context could hold."""

    says, action = "{name} is too large: {what}.", "Split it and use the part you need."


class ParsingLimitReached(NamedProblem):
    """The parser used up its memory or time, and was stopped."""

    says = "Reading {name} was stopped: it took more than {what}."
    action = "Save it again with another program (for example, print it to PDF) and use that file."
