"""Every reason why a document cannot be read: the user's situation, one problem and one action.

DocumentError
├── DocumentNotFound       no such file, or not a file at all
├── AccessDenied           the file is there, but may not be opened
├── EmptyDocument          no bytes, no pages or no text
├── UnsupportedFormat      a format that is not read, or no text at all
├── PasswordProtected      opens with a password only
├── DrmProtected           an EPUB that a shop's software alone can open
├── ScannedDocument        pages that are pictures of text
├── DamagedDocument        cut off or malformed
├── DocumentTooLarge       more than any context could hold
└── ParsingLimitReached    the parser used up its memory or its time
"""

from core.errors import CoreError

SUPPORTED = "PDF, EPUB, Word (.docx), HTML, Markdown or text"


class DocumentError(CoreError):
    """Base of the errors of this package."""


class DocumentNotFound(DocumentError):
    """There is no such file, or it is no regular file."""


class AccessDenied(DocumentError):
    """The file is there, but the system does not let us open it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be opened ({reason}).", hint="Give yourself the right to read it.")


class EmptyDocument(DocumentError):
    """The file has no bytes, no pages or no text."""


class UnsupportedFormat(DocumentError):
    """The content is of a format that is not read, whatever the file's name says."""

    def __init__(self, name: str, what: str, *, hint: str = f"Use a {SUPPORTED} file.") -> None:
        super().__init__(f"{name} is {what}, which is not supported.", hint=hint)


class PasswordProtected(DocumentError):
    """The file opens with a password only."""

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
    """The pages are pictures: there is hardly any text to read."""

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
    """The parser used up the memory or the time it is given, and was stopped."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"Reading {name} was stopped: it took more than {what}.",
            hint="Save it again with another program (for example, print it to PDF) and use that file.",
        )
