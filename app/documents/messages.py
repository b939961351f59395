"""What a parsing process tells its parent, one JSON object a line: Opened, PageRead for each page, Done; or Failed."""

from typing import Literal, NotRequired, TypedDict

Reason = Literal["cut off", "damaged", "password", "memory", "protected", "no container", "oversized", "entities"]


class OutlineEntry(TypedDict):
    """One line of the list of contents that comes with a file."""

    title: str
    level: int  # 1: the highest
    page: int  # the index of the page or section that it points to


class Heading(TypedDict):
    """A heading in the text of a page."""

    title: str
    level: int  # 1: the highest
    char_start: int  # in that page's text
    char_end: int


class Opened(TypedDict):
    """First message of a file that can be read."""

    kind: Literal["opened"]
    title: str
    labels: list[str]  # one a page
    outline: list[OutlineEntry]


class PageRead(TypedDict):
    """The text of the next page: of a PDF, or what other formats have in their place, a section of any length."""

    kind: Literal["page"]
    text: str
    has_image: bool  # not looked for on pages full of text
    damaged: bool  # its content is malformed or missing; text is missing or incomplete
    headings: list[Heading]  # those that the format marks as such
    by_pypdf: NotRequired[bool]  # a page of a PDF that PDFium could not read


class Done(TypedDict):
    """Last message: every page has been sent."""

    kind: Literal["done"]


class Failed(TypedDict):
    """Last message instead of Done."""

    kind: Literal["failed"]
    reason: Reason


Message = Opened | PageRead | Done | Failed
