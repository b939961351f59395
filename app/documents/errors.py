"""Every reason why a document cannot be read, each with the problem and one action.

DocumentError
├── DocumentNotFound       no such file, or not a file at all
├── AccessDenied           the file is there, but may not be opened
├── EmptyDocument          no bytes, no pages or no text
├── UnsupportedFormat      an unsupported format, or no text at all
├── PasswordProtected      opens only with a password
├── DrmProtected           an EPUB that only a shop's software can open
├── ScannedDocument        pages that are images of text
├── DamagedDocument        cut off or malformed
├── DocumentTooLarge       more than any context could hold
└── ParsingLimitReached    the parser used up its memory or time
"""

from app.document_formats import ONE_OF
from core.errors import CoreError

SUPPORTED = ONE_OF


class DocumentError(CoreError):
    """Base of the errors of this package."""


class DocumentNotFound(DocumentError):
    """There is no such file, or it is not a regular file."""


class AccessDenied(DocumentError):
    """The file exists, but the system does not allow access."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be opened ({reason}).", hint="Give yourself the right to read it.")


class EmptyDocument(DocumentError):
    """The file has no bytes, no pages or no text."""


class UnsupportedFormat(DocumentError):
    """The content has an unsupported format, whatever the file's name says."""

    def __init__(self, name: str, what: str, *, hint: str = "") -> None:
        super().__init__(f"{name} is {what}, which is not supported.", hint=hint or f"Use a {SUPPORTED} file.")


class PasswordProtected(DocumentError):
    """The file opens only with a password."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is protected by a password.",
            hint="Open it with the password, save or print it as a file without one, and use that.",
        )


class DrmProtected(DocumentError):
    """The EPUB is encrypted for one reader's software (digital rights management)."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is encrypted (DRM) and opens in the software of its shop only.", hint="Use a copy without DRM."
        )


class ScannedDocument(DocumentError):
    """The pages are images, with hardly any text."""

    def __init__(self, name: str, num_pages: int) -> None:
        pages = "its only page is an image" if num_pages == 1 else f"its {num_pages:,} pages are images"
        super().__init__(
            f"{name} holds no text: {pages}.",
            hint="Run it through text recognition (OCR) first and use the result.",
        )


class DamagedDocument(DocumentError):
    """The file is cut off or malformed."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}.", hint="Download or copy it again.")


class DocumentTooLarge(DocumentError):
    """The document is larger than any context could hold."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} is too large: {what}.", hint="Split it and use the part you need.")


class ParsingLimitReached(DocumentError):
    """The parser used up its memory or time, and was stopped."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"Reading {name} was stopped: it took more than {what}.",
            hint="Save it again with another program (for example, print it to PDF) and use that file.",
        )
