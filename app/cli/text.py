"""`python launch.py text FILE...`: what the model gets of each file, page by page. Loads a tokenizer, no weights."""

import argparse
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from app.cli.output import print_json
from app.cli.reading import check_part, read_documents
from app.context.context_documents import Library
from app.context.find import MOST_CHARS, Words, excerpt, find
from app.documents.document import Document, Page
from app.documents.metadata import byline
from app.formats import plural
from app.runtime.options import engine_config
from core.errors import InvalidSetting
from core.models.hub import catalog

if TYPE_CHECKING:
    from core.generation.text import ChatText

Report = Callable[[Document, Sequence[Page]], dict[str, Any]]


def run(args: argparse.Namespace) -> int:
    """Read the files, and print their text or where words are in it. Returns 0.

    Raises:
        CoreError: the model is unknown, there is nothing to find, a file cannot be read or has no such pages.
    """
    head, report, lines = searching(args) if args.find is not None else ({}, reporting(args), text_lines)
    told = []
    for document in read_documents(args):
        first, last = args.pages or (1, len(document.pages))
        check_part(document, last, "page")
        told.append(report(document, document.pages[first - 1 : last]))
        if not args.json:
            print("\n".join(lines(told[-1])))
    if args.json:
        print_json({**head, "files": told})
    return 0


# -------------------- where words are


def searching(args: argparse.Namespace) -> "tuple[dict[str, str], Report, Callable[[dict[str, Any]], Iterator[str]]]":
    """What is found, the JSON of a file's hits that begin on some pages, and the same for people. No tokenizer."""
    words = Words(args.find, exact=args.exact, whole=args.whole_words)
    if len(words.text) > MOST_CHARS:
        raise InvalidSetting("--find has too many words.", hint=f"Use at most {MOST_CHARS} characters.")
    if not words.text.strip():
        raise InvalidSetting("--find has no words.", hint='Name some, such as --find "the old pilot".')

    def report(document: Document, pages: Sequence[Page]) -> dict[str, Any]:
        numbers = range(pages[0].number, pages[-1].number + 1)
        found = find(words, Library.of([document]).books, sys.maxsize)
        hits = [
            {"page": hit.page.label, "line": hit.line, "start": hit.start, "end": hit.end}
            | excerpt(document, hit)._asdict()
            for one in found
            for hit in one.hits
            if hit.page.number in numbers
        ]
        return {"name": document.name, "title": document.title, "hits": hits}

    return {"find": words.text}, report, hit_lines


def hit_lines(told: dict[str, Any]) -> Iterator[str]:
    """Hits for people, each on a line with its words in brackets."""
    yield f"{told['name']}: {plural(len(told['hits']), 'hit')}"
    for hit in told["hits"]:
        yield f"  page {hit['page']}, line {hit['line']}: {hit['before']}[{hit['hit']}]{hit['after']}"


# -------------------- all of it


def reporting(args: argparse.Namespace) -> Report:
    """The JSON of some pages of a file, with the model's tokens."""
    from core.generation.text import ChatText  # takes seconds
    from core.models.loader import load_tokenizer

    tokenizer = ChatText(load_tokenizer(catalog.find(engine_config(args).model).target), eos_ids=frozenset())

    def report(document: Document, pages: Sequence[Page]) -> dict[str, Any]:
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
                for page, count in zip(pages, token_counts(document, pages, tokenizer), strict=True)
            ],
            "chapters": [
                {"title": chapter.title, "page": document.pages[chapter.first_page - 1].label}
                for chapter in document.chapters
                if chapter.first_page in numbers
            ],
            "warnings": list(document.warnings),
        }

    return report


def token_counts(document: Document, pages: Sequence[Page], tokenizer: "ChatText") -> list[int]:
    """How many of the tokens of the whole text begin on each page. Without offsets each page is counted alone."""
    if not tokenizer.knows_offsets:
        return [len(tokenizer.encode(document.page_text(page))) for page in pages]
    starts = tokenizer.offsets(document.text)
    return [bisect_left(starts, page.char_end) - bisect_left(starts, page.char_start) for page in pages]


def text_lines(told: dict[str, Any]) -> Iterator[str]:
    """One file for people."""
    size = f"{plural(len(told['pages']), 'page')}, {sum(page['tokens'] for page in told['pages']):,} tokens"
    about = (told["title"], byline(tuple(told["authors"])), told["language"])
    yield f"{told['name']} ({told['format']}): {', '.join(filter(None, about))}, {size}"
    for chapter in told["chapters"]:
        yield f"  page {chapter['page']}: {chapter['title']}"
    for page in told["pages"]:
        how = ", recognised" if page["recognised"] else ""
        yield from ("", f"--- page {page['label']}, {page['tokens']:,} tokens{how} ---", page["text"].rstrip("\n"))
    yield ""
