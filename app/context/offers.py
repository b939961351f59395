"""Parts of a library's books that would fit the context. Nothing is cut until somebody chooses."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.context.context_documents import Chapters, Choice, Library, Pages, Whole, label
from app.context.token_costs import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A possible choice of one book's parts."""

    book: int  # its index
    choice: Choice
    label: str
    num_tokens: int  # of the book with this choice
    total_tokens: int  # of the library with this choice, the other books as they are
    fits: bool


def fits(library: Library, meter: Meter, budget: int) -> tuple[Offer, ...]:
    """The offers for each book, in order: see `offers`. Chooses nothing."""
    return tuple(offer for index in range(len(library.books)) for offer in offers(library, index, meter, budget))


def offers(library: Library, index: int, meter: Meter, budget: int) -> tuple[Offer, ...]:
    """Possible choices of a book, the other books as they are, for a library of at most `budget` tokens.

    Returns:
        Everything; if that does not fit: the most pages from the start that fit, runs of whole chapters (or of pages,
        if there are none) that each fit; then every chapter alone, whether it fits or not. No choice comes twice.
    """
    book = library.books[index]
    rest = meter.library(library) - meter.book(book)

    def offer(choice: Choice) -> Offer:
        num_tokens = meter.book(replace(book, choice=choice))
        return Offer(
            book=index,
            choice=choice,
            label=label(book.document, choice),
            num_tokens=num_tokens,
            total_tokens=rest + num_tokens,
            fits=rest + num_tokens <= budget,
        )

    whole = offer(Whole())
    document = book.document
    num_chapters, num_pages = len(document.chapters), len(document.pages)
    found: list[Offer] = [whole]
    if not whole.fits:
        by_pages = runs(num_pages, lambda first, last: offer(Pages(first, last)))
        from_start = [run for run in by_pages[:1] if isinstance(run.choice, Pages) and run.choice.first == 1]
        by_chapters = runs(num_chapters, lambda first, last: offer(Chapters(tuple(range(first, last + 1)))))
        found += (from_start + by_chapters) if num_chapters else by_pages
    found += [offer(Chapters((number,))) for number in range(1, num_chapters + 1)]
    return tuple({each.choice: each for each in found}.values())


def runs(count: int, offer: Callable[[int, int], Offer]) -> list[Offer]:
    """Consecutive runs of parts 1 to `count`, each as long as fits; parts that do not fit alone are in none."""
    found: list[Offer] = []
    first = 1
    while first <= count:
        lengths = range(1, count - first + 2)
        length = bisect_left(lengths, True, key=lambda n: not offer(first, first + n - 1).fits)
        if length:
            found.append(offer(first, first + length - 1))
        first += max(1, length)
    return found
