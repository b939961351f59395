"""How the time of everything that reads text in the app's own process grows with the text.

    python -m tests.hostile.growth [CHARACTERS] [NAME...]     prints what grows too fast, of all functions or of those

Processor time is measured, so that other work on the machine changes little, and what looks wrong is measured again.
"""

import gc
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from time import process_time

from app.context.evidence import BookWords, evidence_in
from app.context.page_ranges import understood
from app.conversations.tree import title_of
from app.documents.archive import Refused
from app.documents.document import Document, Format, make_pages
from app.documents.errors import DocumentError
from app.documents.messages import Heading, Opened, OutlineEntry, PageRead, page_read
from app.documents.readers import read_plain, to_document
from app.documents.sniff import sniff
from app.markdown import standalone
from core.errors import CoreError
from tests.hostile.atoms import ATOMS

SMALLEST, LARGEST = 64, 32_768  # characters
ENDS = "1-\nb"  # behind a word, what comes of its search for a hyphen; behind the rest, no end of theirs
MOST_GROWTH, FLOOR_SECONDS = 3.0, 0.015  # for twice the text: linear work takes twice as long
TRIES = 4
LONGEST_TITLE = 300  # characters, of what workers send
Reads = Callable[[str], object]


def read_text(text: str, kind: Format = "text") -> object:
    """What comes of a text or a Markdown file, from its bytes."""
    try:
        return to_document(kind, "a", *read_plain(io.BytesIO(text.encode("utf-8", "surrogatepass")), kind))
    except (Refused, DocumentError) as error:
        return error


def read_markdown(text: str) -> object:
    return read_text(text, "markdown")


def one_page(text: str) -> PageRead:
    end = min(LONGEST_TITLE, len(text))
    return page_read(text, [Heading(0, end, 1, text[:end])])


def finish(kind: Format, text: str) -> object:
    """What follows a parser."""
    pages = [one_page(page) for page in (text.split("\f") if kind == "pdf" else [text])]
    title = (text[:LONGEST_TITLE] * LONGEST_TITLE)[:LONGEST_TITLE]  # as long for a short text: it is looked for
    outline = [OutlineEntry(title=title, level=1, page=0)] * 3
    opened = Opened(kind="opened", title=text, labels=["1"] * len(pages), outline=outline)
    try:
        return to_document(kind, "a", opened, pages)
    except DocumentError as error:
        return error


BOOK = BookWords("It was a dark and stormy night. " * 2_000)


def choose(text: str) -> object:
    document = Document(name="a", title="a", format="text", text="ab", pages=make_pages([0, 1], 2), has_own_pages=True)
    try:
        return understood(document, text)
    except CoreError as error:
        return error


HOSTILE = '\u201cIt was a dark \u2026 and stormy night\u201d and "a a a a"'
READERS: Mapping[str, Reads] = {
    "the head of a file": lambda text: sniff(text.encode("utf-8", "surrogatepass")),
    "the head of a file in UTF-16": lambda text: sniff(text.encode("utf-16", "surrogatepass")),
    "plain text": read_text,
    "Markdown as a document": read_markdown,
    "the pages of a PDF": lambda text: finish("pdf", text),
    "the sections of an EPUB": lambda text: finish("epub", text),
    "the text of a Word file": lambda text: finish("docx", text),
    "Markdown in a file": standalone,
    "quotations in a hostile answer": lambda text: evidence_in(text, BOOK, []),
    "quotations in a hostile book": lambda text: evidence_in(HOSTILE, BookWords(text), []),
    "a choice of pages": choose,
    "the title of a conversation": title_of,
}


def seconds_of(reads: Reads, text: str) -> float:
    started = process_time()
    reads(text)
    return process_time() - started


def too_fast(reads: Reads, atom: str, ends: str, longest: int = LARGEST) -> str | None:
    """At which length a function takes more than thrice the time for twice the text; None: at none."""
    lengths = [SMALLEST << doubled for doubled in range((longest // SMALLEST).bit_length())]
    texts = {length: (atom * (length // len(atom) + 1))[:length] + ends for length in lengths}
    gc.collect()
    gc.disable()  # its time grows with what other tests left in memory
    try:
        before = seconds_of(reads, texts[SMALLEST])
        for length in lengths[1:]:
            now = seconds_of(reads, texts[length])
            for _ in range(TRIES):
                if now <= MOST_GROWTH * before + FLOOR_SECONDS:
                    break
                before = max(before, seconds_of(reads, texts[length // 2]))
                now = min(now, seconds_of(reads, texts[length]))
            else:
                return f"{length // 2:,} characters take {before * 1e3:.1f} ms, {length:,} take {now * 1e3:.1f} ms"
            before = now
        return None
    finally:
        gc.enable()


def main(argv: Sequence[str]) -> int:
    """Print what grows too fast of the named functions, or of all, a line each. Returns 1 if anything does."""
    longest, *wanted = (int(argv[0]), *argv[1:]) if argv and argv[0].isdecimal() else (LARGEST, *argv)
    found = 0
    for name, reads in READERS.items():
        if wanted and name not in wanted:
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        for atom, ends in product(ATOMS, ("", ENDS)):
            if what := too_fast(reads, atom, ends, longest):
                found += 1
                print(f"{name}: of {atom!r} and {ends!r}, {what}", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
