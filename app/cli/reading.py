"""From the files of a command to a library: pipes, recognition, the parts that were asked for or would fit."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from app.cli.output import ProgressLine
from app.context.context_documents import Chapters, Choice, Library, Pages
from app.documents.bundle import extract_documents
from app.documents.document import Document
from app.documents.errors import DocumentTooLarge, NotRead
from app.formats import plural
from core.errors import ContextTooSmall, InvalidSetting, NotPossibleHere

STDIN = Path("-")
NAME = "stdin"  # of the document
MOST_BYTES = 1 << 30  # of a pipe
BLOCK = 1 << 20
MOST_NAMED = 4  # parts in a hint
SLACK = 16  # tokens by which parts that are counted alone may differ from the whole


def usable_folder(args: argparse.Namespace) -> Path | None:
    """The data folder. Where there is none by default (no usable home), a note that nothing is kept, and None.

    Raises:
        NotPossibleHere: one that was asked for, by --data-dir or --saved, cannot be used.
    """
    from app.runtime.data_folder import data_dir  # what keeps nothing needs no folder

    try:
        return data_dir(args.data_dir)
    except NotPossibleHere as error:
        if args.data_dir or getattr(args, "saved", None):
            raise
        print(f"note: nothing is kept. {error.problem}", file=sys.stderr)
        return None


# -------------------- files


def name_of(file: Path) -> str:
    """The name of a document on the command line."""
    return NAME if file == STDIN else file.name


@contextmanager
def readable(file: Path) -> Iterator[Path]:
    """The file itself, or for the time of the context a copy of what its pipe delivers, which can be read twice.

    Raises:
        DocumentTooLarge, NotRead: of a pipe.
    """
    is_pipe = file == STDIN
    with suppress(OSError):  # whoever opens it will say so
        is_pipe = is_pipe or file.is_fifo()
    if not is_pipe:
        yield file
        return
    with TemporaryDirectory(prefix="triforce-reader-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / (name_of(file) or NAME)
        try:
            with nullcontext(sys.stdin.buffer) if file == STDIN else file.open("rb") as pipe, copy.open("xb") as whole:
                while block := pipe.read(BLOCK):
                    whole.write(block)
                    if whole.tell() > MOST_BYTES:
                        raise DocumentTooLarge(copy.name, f"more than {MOST_BYTES >> 20:,} MiB")
        except OSError as error:
            raise NotRead(name_of(file), error) from error
        yield copy


def read_documents(args: argparse.Namespace) -> Iterator[Document]:
    """The documents of the files, in order; progress of recognition and warnings about their quality go to stderr.

    Raises:
        CoreError: a file cannot be read, or with --ocr: there is no engine.
    """
    ocr = None
    if args.ocr:
        from app.documents.ocr import Ocr
        from app.documents.recognised import FOLDER, RecognisedPages

        folder = usable_folder(args)
        ocr = Ocr(recognise=True, kept=RecognisedPages(folder / FOLDER) if folder else None)
    progress = ProgressLine()
    for file in args.files:
        with readable(file) as path, closing(extract_documents(path, ocr=ocr)) as steps:
            for step in steps:
                if not isinstance(step, Document):
                    progress.show_recognition(step)
                    continue
                progress.close()
                for warning in step.warnings:
                    print(f"{step.name}: {warning}", file=sys.stderr)
                yield step


# -------------------- parts of a text


def check_part(document: Document, last: int, what: str) -> None:
    """Whether a document has so many pages or chapters. Raises InvalidSetting."""
    count = len(document.chapters if what == "chapter" else document.pages)
    if last > count:
        hint = f"Ask for {what}s from 1 to {count} with --{what}s." if count else "Choose pages with --pages A-B."
        raise InvalidSetting(f"{document.name} has {plural(count, what)}.", hint=hint)


def library_of(documents: Sequence[Document], args: argparse.Namespace) -> Library:
    """The documents, or the part of the only one that --pages or --chapters names.

    Raises:
        InvalidSetting: there are several documents, or no such part.
    """
    library = Library.of(documents)
    wanted = args.chapters or args.pages
    if wanted is None:
        return library
    what = "chapter" if args.chapters else "page"
    if len(documents) > 1:
        raise InvalidSetting(f"--{what}s is for one file, and these are {len(documents)}.", hint="Name one file.")
    check_part(documents[0], wanted[1], what)
    choice: Choice = Chapters.run(*wanted) if args.chapters else Pages(*wanted)
    return library.choose(0, choice)


@contextmanager
def naming_parts(encode: Callable[[str], Sequence[int]], library: Library) -> Iterator[None]:
    """Where a text is too long for any context of the model, let the ContextTooSmall name parts that fit."""
    try:
        yield
    except ContextTooSmall as error:
        if error.needed > error.possible:
            error.hint = parts_that_fit(encode, library, error) or error.hint
            error.args = (f"{error.problem} {error.hint}",)
        raise


def parts_that_fit(encode: Callable[[str], Sequence[int]], library: Library, error: ContextTooSmall) -> str:
    """A hint with parts of the only document; "" where none fits."""
    if len(library.books) > 1:
        return f"Name fewer files: this model reads at most {error.possible:,} tokens."
    from app.context.offers import offers  # only a text that is too long needs them
    from app.context.token_costs import Meter

    meter = Meter(lambda text: len(encode(text)))
    named: list[str] = []
    budget = meter.library(library) - (error.needed - error.capacity) - SLACK
    for choice, tokens in offers(library.books[0], meter, budget).items():
        match choice:
            case Chapters(paths):
                named.append(f"--chapters {paths[0][0]}-{paths[-1][0]} ({tokens:,} tokens)")
            case Pages(first, last):
                named.append(f"--pages {first}-{last} ({tokens:,} tokens)")
    more = f", or {len(named) - MOST_NAMED} other parts" if len(named) > MOST_NAMED else ""
    return f"Ask about a part: {', '.join(named[:MOST_NAMED])}{more}." if named else ""
