"""Wording and number formats of the page: pure functions from values to text, and a few small pieces of HTML.

Everything from a book, a model or a file name passes through `escape` before it enters HTML.
"""

import html

from app.documents.document import Document
from app.runtime.error_text import problem_and_hint
from core.errors import CoreError


def escape(text: str) -> str:
    """Text as HTML, in content and in attributes."""
    return html.escape(text, quote=True)


def written(document: Document) -> str:
    """The attributes of an element that shows a document's text: its language and direction."""
    language = f' lang="{escape(document.language)}"' if document.language else ""
    return f'{language} dir="{document.direction}"'


def bar(share: float, label: str, *, tone: str = "accent") -> str:
    """A horizontal bar, `share` of it filled; `label` is for screen readers, who do not hear of a bar without one."""
    filled = 100 * min(max(share, 0.0), 1.0)
    said = 'aria-hidden="true"'
    if label:
        said = f'role="progressbar" aria-label="{escape(label)}" aria-valuemin="0" aria-valuemax="100"'
        said += f' aria-valuenow="{filled:.0f}"'
    return f'<div class="bar {tone}" {said}><span style="width:{filled:.2f}%"></span></div>'


def problem(error: CoreError, *, closes: str = "") -> str:
    """An error and its action, as a box that screen readers read at once; `closes`: the act of its closing button."""
    what, hint = problem_and_hint(error)
    close = f'<button type="button" class="close" data-act="{closes}" aria-label="Dismiss">×</button>' if closes else ""
    return f'<div class="problem" role="alert"><strong>{escape(what)}</strong><span>{escape(hint)}</span>{close}</div>'


def advice(problem: str, hint: str) -> str:
    """A possible improvement, as a box without alarm."""
    return (
        f'<div class="problem calm" role="status"><strong>{escape(problem)}</strong><span>{escape(hint)}</span></div>'
    )


def chip(text: str, *, tone: str = "", title: str = "") -> str:
    """A short fact in a rounded box; `title` explains it."""
    return f'<span class="chip {tone}" title="{escape(title)}">{escape(text)}</span>'
