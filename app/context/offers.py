"""Parts of a library's books that fit the context. Nothing is cut until somebody chooses."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from app.context.context_documents import Book, ChapterPath, Chapters, Choice, Library, Pages, Whole, label, spans
from app.context.token_costs import Meter
from app.documents.document import Chapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A choice of one book's parts with which the library fits."""

    book: int  # its index
    choice: Choice
    label: str
    num_tokens: int  # of the book with this choice
    total_tokens: int  # of the library with this choice, the other books as they are


def offers(library: Library, index: int, meter: Meter, budget: int) -> tuple[Offer, ...]:
    """Choices of a book that fit, the other books as they are, in a library of at most `budget` tokens.

    Returns:
        Everything; if that does not fit: the most pages from the start, runs of whole chapters (or of pages, if there
        are none), each as long as fits; then chapters alone, and sub-chapters of those that do not fit alone. No choice
        comes twice; none where the others are too long.
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
        )

    def fits(choice: Choice) -> bool:
        return offer(choice).total_tokens <= budget

    document = book.document
    num_chapters, num_pages = len(document.chapters), len(document.pages)
    found: list[Choice] = [Whole()]
    if not fits(Whole()):
        by_pages = [Pages(*run) for run in runs(num_pages, lambda first, last: fits(Pages(first, last)))]
        by_chapters = [
            Chapters.run(*run) for run in runs(num_chapters, lambda first, last: fits(Chapters.run(first, last)))
        ]
        from_start = [run for run in by_pages[:1] if run.first == 1]
        found = [*from_start, *by_chapters] if num_chapters else [*by_pages]
    found += filter(fits, (Chapters((path,)) for path in divided(book, meter, budget - rest)))
    return tuple(map(offer, dict.fromkeys(found)))


def from_the_start(library: Library, meter: Meter, budget: int) -> tuple[Choice | None, ...]:
    """For each book the most of it that fits beside the books before: all, parts or pages from the start, or None.

    With the chosen books alone a library has at most `budget` tokens.
    """
    found: list[Choice | None] = []
    taken = Library()
    for book in library.books:
        most = _most(taken, book, meter, budget)
        found.append(most)
        if most is not None:
            taken = Library((*taken.books, replace(book, choice=most)))
    return tuple(found)


def _most(before: Library, book: Book, meter: Meter, budget: int) -> Choice | None:
    def fits(choice: Choice) -> bool:
        return meter.library(Library((*before.books, replace(book, choice=choice)))) <= budget

    if fits(Whole()):
        return Whole()
    paths = divided(book, meter, budget)

    def part(first: int, last: int) -> Choice:
        return Chapters(paths[first - 1 : last]) if paths else Pages(first, last)

    first = next(runs(len(paths) or len(book.document.pages), lambda first, last: fits(part(first, last))), None)
    return part(*first) if first and first[0] == 1 else None


def divided(book: Book, meter: Meter, budget: int) -> tuple[ChapterPath, ...]:
    """The chapters of a book in parts that one can choose: one longer than `budget` tokens by its sub-chapters.

    A sub-chapter that is too long is divided, too, as far as the book divides it. Together they are all chapters.
    """

    def parts(path: ChapterPath, chapter: Chapter) -> Iterator[ChapterPath]:
        if not chapter.sections or meter.chapter(book, chapter) <= budget:
            yield path
            return
        for number, one in enumerate(chapter.sections, chapter.first_section):
            yield from parts((*path, number), one)

    return tuple(path for at, one in enumerate(book.document.chapters, 1) for path in parts((at,), one))


def with_only(library: Library, choices: Mapping[str, Choice]) -> Library:
    """The library of those books whose keys have a choice, with these choices.

    Raises:
        ValueError: a document has no such pages or chapters.
    """
    kept = tuple(replace(book, choice=choices[book.key]) for book in library.books if book.key in choices)
    for book in kept:
        spans(book.document, book.choice)
    return Library(kept)


def runs(count: int, fits: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """First and last of consecutive runs of parts 1 to `count`, each as long as fits; no run has a part too long."""
    first = 1
    while first <= count:
        lengths = range(1, count - first + 2)
        length = bisect_left(lengths, True, key=lambda n: not fits(first, first + n - 1))
        if length:
            yield first, first + length - 1
        first += max(1, length)
