"""A parsing process's messages, one JSON object a line: Opened, PageRead for each page,
then "done", or "failed" with a Reason.

The process that draws a page sends one PageDrawn and "done".
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, NotRequired, TypedDict

Reason = Literal[
    "cut off", "damaged", "password", "memory", "protected", "no container", "oversized", "binary", "entities",
    "no engine", "broken engine", "no text", "packed",
]  # fmt: skip

MAX_ENTRIES, MAX_ENTRY = 5_000, 300  # of a list of contents; characters of one


class OutlineEntry(TypedDict):
    """One entry of a file's list of contents."""

    title: str
    level: int  # 1: the highest
    page: int  # index of the page or section it points to


class Heading(NamedTuple):
    """A heading in a text: of a page, or of the whole document."""

    char_start: int
    char_end: int
    level: int  # 1: the highest
    title: str


class Opened(TypedDict):
    """The first message for a readable file."""

    kind: Literal["opened"]
    title: str
    labels: list[str]  # one for each page
    outline: list[OutlineEntry]
    authors: NotRequired[list[str]]
    language: NotRequired[str]  # as the file states it
    cover: NotRequired[str]  # a data URL of a small picture
    warning: NotRequired[str]  # about the whole file


class PageRead(TypedDict):
    """The text of the next page: of a PDF; for other formats a section of any length."""

    kind: Literal["page"]
    text: str
    has_image: bool  # not looked for on pages full of text
    damaged: bool  # its content is malformed or missing; text is missing or incomplete
    headings: list[Heading]  # those that the format marks as such
    by_pypdf: NotRequired[bool]  # a page of a PDF that PDFium could not read
    recognised: NotRequired[bool]  # its text was recognised on its picture


class FileUnpacked(TypedDict):
    """One file of a ZIP file."""

    kind: Literal["file"]
    name: str
    content: str  # base64
    refused: NotRequired[Reason]  # why it was left out


class PageDrawn(TypedDict):
    """One page as an image, and its letters with their places."""

    kind: Literal["drawn"]
    image: str  # base64
    media: str  # its media type
    width: int  # pixels
    height: int
    letters: str  # as PDFium orders them; none if there are too many
    boxes: list[int]  # left, top, right, bottom of each letter, in pixels of the image


Message = Opened | PageRead | FileUnpacked | PageDrawn  # of a parser


def page_read(
    text: str = "", headings: Sequence[Heading] = (), *, has_image: bool = False, damaged: bool = False
) -> PageRead:
    """The message about a page."""
    return PageRead(kind="page", text=text, has_image=has_image, damaged=damaged, headings=list(headings))
