"""`python launch.py text FILE...`: what the model gets of each file, page by page. Loads a tokenizer, no weights."""

import argparse
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from app.cli.reading import print_json, read_documents
from app.context.context_documents import Library
from app.context.find import Words, excerpt, find
from app.documents.document import Document, Page
from app.documents.metadata import byline
from app.formats import plural
from app.runtime.options import engine_config
from core.errors import InvalidSetting
from core.models.hub import catalog

if TYPE_CHECKING:
    from core.generation.text import ChatText


def run(args: argparse.Namespace) -> int:
    """Read the files and print their text. Returns 0.

    Raises:
        CoreError: the model is unknown, a file cannot be read or has no such pages.
    """
    if args.find is not None:
        return run_find(args)
    from core.generation.text import ChatText  # takes seconds
    from core.models.loader import load_tokenizer

    tokenizer = ChatText(load_tokenizer(catalog.find(engine_config(args).model).target), eos_ids=frozenset())
    told = []
    for document in read_documents(args):
        told.append(report(document, chosen(document, args.pages), tokenizer))
        if not args.json:
            print("\n".join(lines(told[-1])))
    if args.json:
        print_json({"files": told})
    return 0


def run_find(args: argparse.Namespace) -> int:
    """Print where words are in the files. Needs no tokenizer. Returns 0.

    Raises:
        CoreError: there is nothing to find, a file cannot be read or has no such pages.
    """
    words = Words(args.find, exact=args.exact, whole=args.whole_words)
    if not words.text.strip():
        raise InvalidSetting("--find has no words.", hint='Name some, such as --find "the old pilot".')
    told = []
    for document in read_documents(args):
        pages = chosen(document, args.pages)
        hits = hits_in(document, words, range(pages[0].number, pages[-1].number + 1))
        told.append({"name": document.name, "title": document.title, "hits": hits})
        if not args.json:
            print("\n".join(hit_lines(document, hits)))
    if args.json:
        print_json({"find": words.text, "files": told})
    return 0


def hits_in(document: Document, words: Words, numbers: range) -> list[dict[str, Any]]:
    """The JSON of all hits that begin on pages with these numbers."""
    found = find(words, Library.of([document]).books, sys.maxsize)
    hits = [hit for one in found for hit in one.hits if hit.page.number in numbers]
    return [
        {"page": hit.page.label, "line": hit.line, "start": hit.start, "end": hit.end}
        | excerpt(document, hit)._asdict()
        for hit in hits
    ]


def hit_lines(document: Document, hits: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Hits for people, each on a line with its words in brackets."""
    yield f"{document.name}: {plural(len(hits), 'hit')}"
    for hit in hits:
        yield f"  page {hit['page']}, line {hit['line']}: {hit['before']}[{hit['hit']}]{hit['after']}"


def chosen(document: Document, numbers: tuple[int, int] | None) -> Sequence[Page]:
    """The pages from one number to another, both included; None: all.

    Raises:
        InvalidSetting: there are no such pages.
    """
    if numbers is None:
        return document.pages
    first, last = numbers
    if last > len(document.pages):
        raise InvalidSetting(
            f"{document.name} has {plural(len(document.pages), 'page')}.",
            hint=f"Ask for pages from 1 to {len(document.pages)} with --pages.",
        )
    return document.pages[first - 1 : last]


def report(document: Document, pages: Sequence[Page], tokenizer: "ChatText") -> dict[str, Any]:
    """The JSON of one file."""
    counts = token_counts(document, pages, tokenizer)
    numbers = {page.number for page in pages}
    return {
        "name": document.name,
        "format": document.format,
        "title": document.title,
        "authors": list(document.authors),
        "language": document.language,
        "direction": document.direction,
        "pages": [
            {
                "label": page.label,
                "text": document.page_text(page),
                "tokens": count,
                "recognised": page.number in document.recognised_pages,
            }
            for page, count in zip(pages, counts, strict=True)
        ],
        "chapters": [
            {"title": chapter.title, "page": document.pages[chapter.first_page - 1].label}
            for chapter in document.chapters
            if chapter.first_page in numbers
        ],
        "warnings": list(document.warnings),
    }


def token_counts(document: Document, pages: Sequence[Page], tokenizer: "ChatText") -> list[int]:
    """How many of the tokens of the whole text begin on each page. Without offsets each page is counted alone."""
    if not tokenizer.knows_offsets:
        return [len(tokenizer.encode(document.page_text(page))) for page in pages]
    starts = tokenizer.offsets(document.text)
    return [bisect_left(starts, page.char_end) - bisect_left(starts, page.char_start) for page in pages]


def lines(told: dict[str, Any]) -> list[str]:
    """One file for people."""
    num_tokens = sum(page["tokens"] for page in told["pages"])
    size = f"{plural(len(told['pages']), 'page')}, {num_tokens:,} tokens"
    about = (told["title"], byline(tuple(told["authors"])), told["language"])
    found = [
        f"{told['name']} ({told['format']}): {', '.join(filter(None, about))}, {size}",
        *(f"  page {chapter['page']}: {chapter['title']}" for chapter in told["chapters"]),
    ]
    for page in told["pages"]:
        how = ", recognised" if page["recognised"] else ""
        found += ["", f"--- page {page['label']}, {page['tokens']:,} tokens{how} ---", page["text"].rstrip("\n")]
    return [*found, ""]
