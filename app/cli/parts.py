"""Parts of a text on the command line: those that were asked for, and those that would fit where the whole does not."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from app.cli.reading import (
    check_folder,
    generation_config,
    open_conversation,
    open_engine,
    read_documents,
    usual_method,
)
from app.context.context_documents import Chapters, Choice, Library, Pages
from app.documents.document import Document
from app.formats import plural
from core.decoding.registry import default_method
from core.errors import ContextTooSmall, InvalidSetting

if TYPE_CHECKING:
    from core.config import GenerationConfig
    from core.engine_api import TextEngine
    from core.generation.session import Conversation

MOST_NAMED = 4  # parts in a hint
SLACK = 16  # tokens by which parts that are counted alone may differ from the whole


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
    choice: Choice = Chapters.run(first, last) if args.chapters else Pages(first, last)
    return library.choose(0, choice)


@contextmanager
def opened(args: argparse.Namespace) -> "Iterator[tuple[TextEngine, Library, Conversation, GenerationConfig]]":
    """The model, the text and the settings of a command that answers; closed behind it.

    Raises:
        CoreError: files, settings or memory; raised before any long step where that is possible.
    """
    check_folder(args)
    config = replace(generation_config(args, args.method or default_method(has_draft=True)), end_loops=True)
    library = library_of(list(read_documents(args)), args)
    with closing(open_engine(args)) as engine:
        if args.method is None:
            config = replace(config, method=usual_method(engine.info))
        yield engine, library, open_conversation(engine, library.text), config


@contextmanager
def naming_parts(engine: "TextEngine", library: Library) -> Iterator[None]:
    """Where a text is too long for any context of the model, let the ContextTooSmall name parts that fit."""
    try:
        yield
    except ContextTooSmall as error:
        if error.needed > error.possible:
            error.hint = parts_that_fit(engine, library, error) or error.hint
            error.args = (f"{error.problem} {error.hint}",)
        raise


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
            case Chapters(paths) if len(paths[0]) == 1:
                part = f"--chapters {paths[0][0]}-{paths[-1][0]}"
            case Pages(first, last):
                part = f"--pages {first}-{last}"
            case _:
                continue
        named.append(f"{part} ({offer.num_tokens:,} tokens)")
    more = f", or {len(named) - MOST_NAMED} other parts" if len(named) > MOST_NAMED else ""
    return f"Ask about a part: {', '.join(named[:MOST_NAMED])}{more}." if named else ""
