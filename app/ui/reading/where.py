"""The strip of pages, by `library.pages`, and one page with its loaded passages or a quotation marked."""

from bisect import bisect_right
from collections.abc import Sequence

from app import formats
from app.context.evidence import is_refusal
from app.context.open_book import Book
from app.context.retrieval_map import STRONG, Weights
from app.documents.document import Document
from app.runtime.sessions import Session
from app.ui import render
from app.ui.library.page_viewer import Mark, Wanted, leaf, tool

MOST_BARS = 120
MOST_TOP = 4  # pages named below the strip
TOP_SHARE = 0.3  # a page is named from this share of the strongest page's weight
LEVELS = ((0.75, "most"), (0.5, "much"), (0.25, "some"), (0.05, "a little"), (0.0, "nothing"))
QUOTED = "The marked words stand in the answer."
SHOWN = (
    "The taller a bar, the more of that page was at hand while the next words were guessed. "
    "Every guess was then checked against the whole book."
)


def where(session: Session) -> str:
    """The strip for the last shown answer; empty without a book."""
    book, loaded = session.book, session.where
    if book is None:
        return ""
    if loaded is None:
        return _strip("Ask a question: this strip then shows from which pages its words are guessed.", _room(book))
    if _refused(session, book):
        return ""
    if not loaded.kept:
        return _strip("It was not recorded which pages were loaded for this answer.")
    if not loaded.retrieves:
        return _strip("This way of decoding loads no pages: every token reads the whole book.")
    if not book.chunk_pages:
        return _strip("This model’s tokenizer does not tell which characters a token stands for.")
    if loaded.num_seen == 0:
        return _strip("The pages show with the first words of the answer.", _room(book))
    weights = Weights(book, loaded, session.baseline_for(loaded))
    if loaded.all_held:
        return _strip("The book is so short that all of it is loaded for every question.")
    if not weights.tells:
        return _strip("For this question the same pages are loaded as for any other.")
    pages = weights.pages()
    return _strip("", _bars(book, pages) + _top(book, pages), loaded.budget)


def _refused(session: Session, book: Book) -> bool:
    """The shown answer has nothing of the book, so no page helped it."""
    node = session.last_node
    if node is None or node.exchange is None:
        return False
    answer = node.exchange.finished.text
    return is_refusal(answer, book.evidence(answer))


def _strip(instead: str, inside: str = "", budget: int = 0) -> str:
    much = f"At most {formats.plural(budget, 'token')} of the book for each head of attention" if budget else ""
    line = f'<p class="quiet">{instead}</p>' if instead else f'<p class="quiet" title="{much}">{SHOWN}</p>'
    return (
        '<section class="where" aria-label="Where in the book"><header><b>Where in the book</b>'
        f"{line}</header>{inside}</section>"
    )


def _room(book: Book) -> str:
    """An empty strip of the final height, so that nothing below moves when it fills."""
    if not book.chunk_pages:
        return ""
    return _bars(book, [0.0] * len(book.library.pages)) + '<p class="top"></p>'


def _bars(book: Book, weights: Sequence[float]) -> str:
    per_bar = -(-len(weights) // MOST_BARS)
    bars = "".join(_bar(book, weights, first, per_bar) for first in range(0, len(weights), per_bar))
    several = len(book.library.books) > 1
    first, last = (render.escape(page_words(book, index, short=not several)) for index in (0, len(weights) - 1))
    ends = f'<p class="ends" aria-hidden="true"><span>{first}</span><span>{last}</span></p>'
    return f'<div class="pages" role="group" aria-label="Pages, by what was loaded of them">{bars}</div>{ends}'


def _bar(book: Book, weights: Sequence[float], first: int, per_bar: int) -> str:
    """A bar for one page or several consecutive ones; a click opens the one with the largest weight."""
    indices = range(first, min(first + per_bar, len(weights)))
    strongest = max(indices, key=lambda index: weights[index])
    weight = weights[strongest]
    level = next(word for least, word in LEVELS if weight >= least)
    name = page_words(book, first, short=False)
    if len(indices) > 1:
        name = f"{name} to {page_words(book, indices[-1])}"
    said = f"{name}: {level} loaded"
    if len(indices) > 1 and weight >= LEVELS[-2][0]:
        said += f", most on {page_words(book, strongest)}"
    starts = first == 0 or book.library.pages[first].book != book.library.pages[first - 1].book
    kind = f"bar-page {level.split()[-1]}{' begins' if starts and first else ''}"
    bar = f'<span style="height:{max(4, round(100 * weight))}%"></span>'
    also = 'tabindex="-1"' if first else ""  # the Tab key passes them all at once; arrow keys walk
    return render.button(bar, page_act(book, strongest), tone=kind, title=said, name=said, also=also)


def _top(book: Book, weights: Sequence[float]) -> str:
    ranked = sorted(range(len(weights)), key=lambda index: -weights[index])[:MOST_TOP]
    first, *more = (
        render.button(render.escape(page_words(book, index)), page_act(book, index), tone="chip")
        for index in ranked
        if weights[index] >= TOP_SHARE or index == ranked[0]
    )
    words = f'<span class="words"><span class="quiet">Guessed mostly from</span>{first}</span>'  # not without a page
    return f'<p class="top">{words}{"".join(more)}</p>'


def page_words(book: Book, index: int, *, short: bool = True) -> str:
    """A page of the library by its own label; with its document's title if there are several."""
    placed = book.library.pages[index]
    return label_of(book, book.library.books[placed.book].document, placed.number, short=short)


def label_of(book: Book, document: Document, number: int, *, short: bool = False) -> str:
    """The same of a page of any of its documents."""
    label, alone = document.pages[number - 1].label, len(book.library.books) == 1
    if short:
        return f"page {label}" if alone else f"page {label} of {document.title}"
    return f"Page {label}" if alone else f"{document.title}, page {label}"


def page_of(book: Book, char: int) -> int:
    """The index in `library.pages` of the page with a character of the joined text."""
    return bisect_right(book.library.pages, char, key=lambda page: page.end)


def page_act(book: Book, index: int, mark: tuple[int, int] | None = None) -> str:
    """The act that shows a page of the library by its index. `mark`: characters of the joined text."""
    placed, library = book.library.pages[index], book.library
    moved = library.source(placed) - placed.start
    where = mark and (mark[0] + moved, mark[1] + moved)
    return f"page:{Wanted(library.books[placed.book].key, placed.number, where).detail}"


# -------------------- one page


def opened_page(session: Session, wanted: Wanted) -> str:
    """A page of the open book beside the conversation: with the words that an answer has, else with loaded passages."""
    book, shown = session.book, session.book.library.book(wanted.key) if session.book else None
    if book is None or shown is None:
        return ""
    places = [(book.library.books[one.book].key, one.number) for one in book.library.pages]
    number = min(max(wanted.number, 1), len(shown.document.pages))
    index = places.index((wanted.key, number)) if (wanted.key, number) in places else None
    marks, line = list[Mark](), ""
    if wanted.mark:
        page = shown.document.pages[number - 1]
        line = QUOTED if wanted.mark[0] < page.char_end and wanted.mark[1] > page.char_start else ""
        line += " It goes on on the next page." if line and wanted.mark[1] > page.char_end else ""
    elif index is not None:
        marks, line = _loaded(session, book, index)
    title, closes = label_of(book, shown.document, number), tool("close", "Close the page", "×")
    return leaf(session, shown, wanted, "page", title=title, marks=marks, line=line, closes=closes)


def _loaded(session: Session, book: Book, index: int) -> tuple[list[Mark], str]:
    """The passages of a page that were loaded for the answer, in its document's text, and a line about them."""
    placed, loaded = book.library.pages[index], session.where
    if loaded is None or not (loaded.retrieves and loaded.num_seen and len(book.chunk_pages)):
        return [], ""
    passages = Weights(book, loaded, session.baseline_for(loaded)).passages(placed)
    moved = book.library.source(placed) - placed.start
    marks = [
        Mark(one.start + moved, one.end + moved, "strong" if one.strength >= STRONG else "some") for one in passages
    ]
    told = f"{formats.plural(len(marks), 'passage')} of this page loaded more than for other questions"
    return marks, told if marks else "Nothing of this page was loaded for this answer alone"
