"""Parts of a text on the command line: those that were asked for, and those that would fit where the whole does not."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.context.context_documents import Chapters, Choice, Library, Pages
from app.documents import Document
from app.formats import plural
from core.errors import ContextTooSmall, CoreError, InvalidSetting

if TYPE_CHECKING:
    from core.engine_api import TextEngine

MOST_NAMED = 4  # parts in a hint
SLACK = 16  # tokens by which parts that are counted alone may differ from the whole


class TooLong(CoreError):
    """The text does not fit the context. Nothing is cut; the hint names parts that fit."""


def library_of(documents: Sequence[Document], args: argparse.Namespace) -> Library:
    """The documents, or the part of the only one that --pages or --chapters names.

    Raises:
        InvalidSetting: there are several documents, or no such part.
    """
    library = Library.of(documents)
    wanted = args.chapters or args.pages
    if wanted is None:
        return library
    option, what = ("--chapters", "chapter") if args.chapters else ("--pages", "page")
    if len(documents) > 1:
        raise InvalidSetting(f"{option} is for one file, and these are {len(documents)}.", hint="Name one file.")
    (document,), (first, last) = documents, wanted
    count = len(document.chapters if args.chapters else document.pages)
    if last > count:
        hint = f"Ask for {what}s from 1 to {count} with {option}." if count else "Choose pages with --pages A-B."
        raise InvalidSetting(f"{document.name} has {plural(count, what)}.", hint=hint)
    choice: Choice = Chapters(tuple(range(first, last + 1))) if args.chapters else Pages(first, last)
    return library.choose(0, choice)


@contextmanager
def naming_parts(engine: "TextEngine", library: Library) -> Iterator[None]:
    """Where a text is too long for any context of the model, let the error name parts that fit.

    Raises:
        TooLong: instead of ContextTooSmall.
    """
    try:
        yield
    except ContextTooSmall as error:
        hint = "" if error.needed <= error.possible else parts_that_fit(engine, library, error)
        if not hint:
            raise
        raise TooLong(error.problem, hint=hint) from error


def parts_that_fit(engine: "TextEngine", library: Library, error: ContextTooSmall) -> str:
    """A hint with parts of the only document; "" where none fits."""
    if len(library.books) > 1:
        return f"Name fewer files: this model reads at most {error.possible:,} tokens."
    from app.context.offers import offers  # only a text that is too long needs them
    from app.context.token_costs import Meter

    meter = Meter(lambda text: len(engine.text.encode(text)))
    num_tokens = meter.library(library)
    found = offers(library, 0, meter, num_tokens - (error.needed - error.capacity) - SLACK)
    named: list[str] = []
    for offer in found:
        match offer.choice:
            case Chapters(numbers):
                part = f"--chapters {numbers[0]}-{numbers[-1]}"
            case Pages(first, last):
                part = f"--pages {first}-{last}"
            case _:
                continue
        named.append(f"{part} ({offer.num_tokens:,} tokens)")
    more = f", or {len(named) - MOST_NAMED} other parts" if len(named) > MOST_NAMED else ""
    return f"Ask about a part: {', '.join(named[:MOST_NAMED])}{more}." if named else ""
