"""What Find shows: the field with its two choices, and hits by document. Functions from values to HTML."""

from app import formats
from app.context.context_documents import Book
from app.context.find import MOST_CHARS, MOST_COUNTED, Hit, InBook, Words, excerpt
from app.ui import render

STEP, MOST_SHOWN = 100, 1000  # hits shown at first and for each "more"; more of them are better narrowed down
FIELD = f"""<form class="card find" role="search" data-find="{STEP}"><div>
<input type="search" maxlength="{MOST_CHARS}" placeholder="Find in all open documents" aria-label="Find in all open
documents" aria-keyshortcuts="Control+Shift+F" autocomplete="off" spellcheck="false" dir="auto">
<button type="submit">Find</button></div><p>
<label title="Otherwise “cafe” finds “Café”, too"><input type="checkbox" name="exact">Case and accents</label>
<label title="Otherwise “light” finds “lighthouse”, too"><input type="checkbox" name="whole">Whole words</label>
</p></form>"""
NO_DOCUMENTS = '<p class="quiet" role="status">No document is open: drop one below.</p>'


def found(words: Words, books: tuple[Book, ...], results: tuple[InBook, ...]) -> str:
    """The hits of a search, grouped by document."""
    if not words.text.strip():
        return ""
    if not books:
        return NO_DOCUMENTS
    total, shown = sum(one.total for one in results), sum(len(one.hits) for one in results)
    where = f" in {formats.plural(len(results), 'document')}" if len(books) > 1 and results else ""
    more_than = "More than " if any(one.total - len(one.hits) >= MOST_COUNTED for one in results) else ""
    said = f"{more_than}{formats.plural(total, 'hit')}{where}" if total else f"Nothing found in {_places(len(books))}."
    first = f", the first {shown:,} below" if shown < total else ""
    groups = "".join(_group(one, named=len(books) > 1) for one in results)
    return (
        f'<section class="card found" aria-label="Hits"><p class="quiet" role="status">{said}{first}</p>'
        f"{groups}{_more(shown, total)}</section>"
    )


def _places(num_books: int) -> str:
    return "the open document" if num_books == 1 else f"{num_books:,} open documents"


def _more(shown: int, total: int) -> str:
    if shown == total:
        return ""
    if shown >= MOST_SHOWN:
        return '<p class="quiet">More words narrow the search down.</p>'
    return render.link("Show more", also=f'data-find-more="{shown + STEP}"')


def _group(one: InBook, *, named: bool) -> str:
    title = render.escape(one.book.document.title)
    head = f'<h4 dir="auto">{title} <small>{one.total:,}</small></h4>' if named else ""
    hits = "".join(f"<li>{_hit(one.book, hit)}</li>" for hit in one.hits)
    return f'{head}<ol aria-label="Hits in {title}">{hits}</ol>' if one.hits else head


def _hit(book: Book, hit: Hit) -> str:
    around = excerpt(book.document, hit)
    apart = "" if hit.chosen else " · not in the context"
    place = f"page {render.escape(hit.page.label)}, line {hit.line:,}{apart}"
    language = f' lang="{render.escape(book.document.language)}"' if book.document.language else ""
    before, marked, after = map(render.escape, around)
    words = f'<small>{place}</small><span dir="auto"{language}>{before}<mark>{marked}</mark>{after}</span>'
    return render.button(words, f"preview:{book.key}:{hit.page.number}:{hit.start}-{hit.end}", tone="hit")
