"""Wording and number formats of the page: pure functions from values to text, and a few small pieces of HTML.

Everything from a book, a model or a file name passes through `escape` before it enters HTML.
"""

import html
from collections.abc import Iterable

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


def stack(parts: Iterable[tuple[str, float, str]], whole: float, *, label: str = "", also: str = "") -> str:
    """A bar of parts side by side: their classes, values and meanings.

    Args:
        whole: the value that fills it.
        label: for screen readers.
        also: further HTML in it.
    """
    spans = "".join(
        f'<span class="key {tone}" title="{escape(meaning)}" style="width:{100 * value / whole:.2f}%"></span>'
        for tone, value, meaning in parts
        if value
    )
    said = f' role="img" aria-label="{escape(label)}"' if label else ""
    return f'<div class="stack"{said}>{spans}{also}</div>'


def box(problem: str, below: str, *, tone: str = "", role: str = "alert", closes: str = "", title: str = "") -> str:
    """What went wrong or could go better, as a box that screen readers read at once.

    Args:
        below: what to do about it, as HTML.
        tone: "calm" for one without alarm.
        closes: the act of its closing button.
        title: explains the problem.
    """
    explained = f' title="{escape(title)}"' if title else ""
    close = dismiss(closes) if closes else ""
    kind = f"problem {tone}".strip()
    return f'<div class="{kind}" role="{role}"><strong{explained}>{escape(problem)}</strong>{below}{close}</div>'


def problem(error: CoreError, *, closes: str = "") -> str:
    """An error and its action."""
    what, hint = problem_and_hint(error)
    return box(what, f"<span>{escape(hint)}</span>", closes=closes)


def fold(summary: str, body: str, *, tone: str = "", opened: bool = False, also: str = "") -> str:
    """A part that opens; it stays as the reader has it. `summary`, `body`: as HTML; `also`: further attributes."""
    kind = f' class="{tone}"' if tone else ""
    state = " open" if opened else ""
    return f"<details{kind}{also} data-keep{state}><summary>{summary}</summary>{body}</details>"


def items(texts: Iterable[str], tone: str, also: str = "") -> str:
    """A list of lines; "" without any."""
    rows = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="{tone}"{also}>{rows}</ul>' if rows else ""


def button(label: str, act: str = "", *, tone: str = "", title: str = "", name: str = "", also: str = "") -> str:
    """A button.

    Args:
        label: what it shows, as HTML.
        act: what the server does when it is pressed.
        tone: its class.
        title: explains it.
        name: for screen readers, where the label does not say it.
        also: further attributes, as HTML.
    """
    given = {"class": tone, "data-act": act, "title": title, "aria-label": name}
    attributes = "".join(f' {key}="{escape(value)}"' for key, value in given.items() if value)
    return f'<button type="button"{attributes}{f" {also}" if also else ""}>{label}</button>'


def link(label: str, act: str = "", **how: str) -> str:
    """A button that looks like a link."""
    return button(label, act, tone="link", **how)


def status(told: str, tone: str = "quiet") -> str:
    """A line that screen readers read once it is there; `told`: as HTML."""
    return f'<p class="{tone}" role="status">{told}</p>'


def excerpt(parts: Iterable[str]) -> str:
    """Words, found ones and words: the found ones marked."""
    before, found, after = map(escape, parts)
    return f"{before}<mark>{found}</mark>{after}"


def dismiss(act: str) -> str:
    """The button that closes a notice."""
    return button("×", act, tone="close", name="Dismiss")


def facts(rows: Iterable[tuple[str, str, str]]) -> str:
    """A table of names, values and reasons; a reason may be empty."""
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}'
        + (f' <span class="because">{escape(reason)}</span>' if reason else "")
        + "</td></tr>"
        for name, value, reason in rows
    )
    return f'<table class="facts"><tbody>{body}</tbody></table>'


def chip(text: str, *, tone: str = "", title: str = "") -> str:
    """A short fact in a rounded box; `title` explains it."""
    return f'<span class="chip {tone}" title="{escape(title)}">{escape(text)}</span>'


def exactness(exact: bool) -> str:
    """Whether a method writes what the model itself would, as a chip."""
    if exact:
        return chip("exact", tone="exact", title="The text follows the target model’s own distribution.")
    lossy = "Drops part of the book from the cache: fast, and not what the model would write."
    return chip("not exact", tone="bad", title=lossy)


def tile(
    key: str, label: str, value: str, below: str, *, unit: str = "", share: float | None = None, title: str = ""
) -> str:
    """A big number with a line below; `share`: as a bar, too; `title` explains it."""
    meter = "" if share is None else bar(share, label, tone=key)
    explained, told = (f' title="{escape(title)}"', "") if title else ("", f' title="{escape(below)}"')
    with_unit = f'{value}<span class="unit">{unit}</span>' if unit else value
    return (
        f'<div class="tile {key}"{explained}><span class="label">{label}</span><span class="value">{with_unit}</span>'
        f'<span class="below"{told}>{escape(below)}</span>{meter}</div>'
    )


def number(label: str, field: str, *, info: str = "", also: str = "") -> str:
    """A number to type. `field`: attributes of its field as HTML; `also`: of the whole."""
    told = f'<small class="info">{info}</small>' if info else ""
    return f'<label class="choice"{also}><span>{label}</span>{told}<input type="number" {field}></label>'


def radios(legend: str, choices: Iterable[tuple[str, str]], *, also: str = "", info: str = "", value: str = "") -> str:
    """One choice of several, as HTML.

    Args:
        choices: labels, and the attributes of their fields as HTML.
        also: further attributes of the whole.
        value: the attributes of the chosen one.
    """
    rows = "".join(
        f'<label><input type="radio" {field}{" checked" if field == value else ""}><span>{escape(label)}</span></label>'
        for label, field in choices
    )
    told = f'<p class="info">{info}</p>' if info else ""
    return f'<fieldset class="choice"{also}>{legend}{told}<div class="options">{rows}</div></fieldset>'
