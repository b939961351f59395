"""The budget of the context: books, conversation, reserve for the next answer, and the free rest."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from app import formats
from app.context.context_documents import Library
from app.context.uploads import Fit
from app.runtime.sessions import Session
from app.ui import render
from app.ui.header import PAGE_TOKENS

TOKEN = "A token is a piece of a word. The context is all that the model has before it: {context:,} tokens."
MEANING = {
    "books": "The text of what is open",
    "talk": "Your questions and the answers to them",
    "reserve": "Stays free for the next question, its answer, and the marks between them",
    "free": "Room for further documents and for more of this conversation",
}


class Part(NamedTuple):
    """A part of the context."""

    kind: str
    name: str
    num_tokens: int


def fit_of(session: Session) -> Fit | None:
    """The present budget: since the library was opened, the conversation may have grown or changed its branch."""
    fit = session.uploads.fit
    if fit is None or not fit.fits or session.book is None:
        return fit
    return replace(fit, talk=session.num_talk)


def budget(fit: Fit, library: Library) -> str:
    """The meter, with a legend in pages like those that are open, and in tokens."""
    parts = list(_parts(fit, len(library.books)))
    over, page = fit.needed - fit.context, page_tokens(fit, library)
    said = ", ".join(f"{part.name} {_pages(part, page, library)}, {part.num_tokens:,} tokens" for part in parts)
    if over > 0:
        said += f": {over:,} tokens more than the context of {fit.context:,} holds"
    whole = max(fit.needed, fit.context)
    rows = "".join(
        f'<li title="{MEANING[part.kind]}: {formats.percent(part.num_tokens / fit.context)} of the context">'
        f'<i class="key {part.kind}"></i><span>{part.name}</span><b>{render.escape(_pages(part, page, library))}</b>'
        f"<i>{formats.plural(part.num_tokens, 'token')}</i></li>"
        for part in parts
    )
    limit = f'<s style="left:{100 * fit.context / whole:.2f}%"></s>' if over > 0 else ""
    room = formats.plural(max(1, round(fit.context / page)), "page")
    head = f'<span title="{TOKEN.format(context=fit.context)}">Room for about {room} at once</span>'
    if over > 0:
        pages = formats.plural(max(1, ceil(over / page)), "page")
        head = f'<strong title="{over:,} tokens">About {pages} too many</strong>'
    bar = render.stack(((part.kind, part.num_tokens, part.name) for part in parts), whole, label=said, also=limit)
    return f'<div class="budget{" over" if over > 0 else ""}">{bar}<p class="quiet">{head}</p><ul>{rows}</ul></div>'


def page_tokens(fit: Fit, library: Library) -> float:
    """Tokens of a page of what is open, on average; of a printed page where nothing is."""
    pages = num_pages(library)
    return fit.books / pages if fit.books and pages else PAGE_TOKENS


def num_pages(library: Library) -> int:
    """The pages that are chosen, empty ones of whole books included, as everything else on the page counts them."""
    return sum(pages_of_books(library))


def pages_of_books(library: Library) -> list[int]:
    """The same, by book."""
    placed = Counter(page.book for page in library.pages)
    return [len(one.document.pages) if one.is_whole else placed[at] for at, one in enumerate(library.books)]


def _pages(part: Part, page: float, library: Library) -> str:
    """A part in pages: those of the books are counted, all others are as many as would take its tokens."""
    if part.kind == "books" and library.books:
        return formats.plural(num_pages(library), "page")
    return formats.plural(round(part.num_tokens / page), "page") if part.num_tokens >= page else "<1 page"


def _parts(fit: Fit, num_books: int) -> Iterator[Part]:
    yield Part("books", "Books" if num_books > 1 else "Book", fit.books)
    if fit.talk:
        yield Part("talk", "Conversation", fit.talk)
    yield Part("reserve", "Next answer", fit.reserve + fit.frame)
    if fit.fits:
        yield Part("free", "Free", fit.context - fit.needed)
