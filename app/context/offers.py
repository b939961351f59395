"""Parts of a library's books that fit the context. Nothing is cut until somebody chooses."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from app.context.context_documents import Book, ChapterPath, Chapters, Choice, Library, Pages, Whole
from app.context.token_costs import Meter
from app.documents.document import Chapter


def offers(book: Book, meter: Meter, budget: int) -> dict[Choice, int]:
    """Parts of a book, which is longer than `budget` tokens, that fit: their tokens.

    The most pages from the start, runs of whole chapters (or of pages, if there are none), each as long as fits; then
    chapters alone.
    """

    def tokens(choice: Choice) -> int:
        return meter.book(replace(book, choice=choice))

    def most(count: int, part: Callable[[int, int], Choice]) -> list[Choice]:
        return [part(*run) for run in runs(count, lambda first, last: tokens(part(first, last)) <= budget)]

    pages, num_chapters = most(len(book.document.pages), Pages), len(book.document.chapters)
    if num_chapters:
        alone = (Chapters.run(number, number) for number in range(1, num_chapters + 1))
        from_start = [run for run in pages[:1] if isinstance(run, Pages) and run.first == 1]
        found = [*from_start, *most(num_chapters, Chapters.run), *(one for one in alone if tokens(one) <= budget)]
    else:
        found = pages
    return {choice: tokens(choice) for choice in found}


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
    """The library of those books whose keys have a choice, with these choices."""
    return Library(tuple(replace(book, choice=choices[book.key]) for book in library.books if book.key in choices))


def runs(count: int, fits: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """First and last of consecutive runs of parts 1 to `count`, each as long as fits; no run has a part too long."""
    first = 1
    while first <= count:
        lengths = range(1, count - first + 2)
        length = bisect_left(lengths, True, key=lambda n: not fits(first, first + n - 1))
        if length:
            yield first, first + length - 1
        first += max(1, length)
