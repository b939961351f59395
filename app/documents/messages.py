"""What a parsing process tells its parent, one JSON object a line: Opened, PageRead for each page, Done; or Failed."""

from typing import Literal, TypedDict

Reason = Literal["cut off", "damaged", "password", "memory", "protected", "no container", "oversized", "entities"]


class Opened(TypedDict):
    """First message of a file that can be read."""

    kind: Literal["opened"]
    title: str
    labels: list[str]  # one a page


class PageRead(TypedDict):
    """The text of the next page: of a PDF, or what an EPUB has in their place, a section of any length."""

    kind: Literal["page"]
    text: str
    has_image: bool
    damaged: bool  # its content is malformed or missing; text is missing or incomplete


class Done(TypedDict):
    """Last message: every page has been sent."""

    kind: Literal["done"]


class Failed(TypedDict):
    """Last message instead of Done."""

    kind: Literal["failed"]
    reason: Reason


Message = Opened | PageRead | Done | Failed
