"""Writes the sample books and their questions anew: `python assets/recipe/books.py`.

Owns their seeds, which no model was trained or measured on, and a plain typesetter for the PDF.
"""

from __future__ import annotations

import json
import random
import sys
import textwrap
from pathlib import Path

from pypdf import PageObject, PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from assets.recipe.tokens import Layout  # noqa: E402
from core.bench.world import Book, write_book  # noqa: E402

SEED_8K, SEED_32K = 1874, 1892
TOKENS_8K, TOKENS_32K = 8_000, 31_500
QUESTIONS = (("fact", 10), ("list", 2), ("recite", 2))

PAGE_WIDTH, PAGE_HEIGHT, MARGIN = 420, 595, 54  # points: an A5 page
LEADING, LINE_CHARACTERS, LINES_PER_PAGE = 14, 62, 33


def fit(seed: int, num_tokens: int, layout: Layout) -> Book:
    """A book of `seed` with at most `num_tokens` tokens and hardly fewer."""
    words = num_tokens
    while True:
        book = write_book(seed, words)
        excess = len(layout.ids(book.text)) - num_tokens
        if excess <= 0:
            return book
        words -= max(10, int(excess * 0.8))


def typeset(text: str) -> list[list[str]]:
    """Lines of every page; an empty line stands between paragraphs."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += [*textwrap.wrap(paragraph, LINE_CHARACTERS, break_on_hyphens=False), ""]
    return [lines[start : start + LINES_PER_PAGE] for start in range(0, len(lines) - 1, LINES_PER_PAGE)]


def _text_line(x: float, y: float, text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"1 0 0 1 {x} {y} Tm ({escaped}) Tj"


def draw_page(page: PageObject, lines: list[str], header: str, number: int) -> None:
    """Put a running header, the lines and the page number on an empty page."""
    top = PAGE_HEIGHT - MARGIN
    commands = ["BT", "/F1 8 Tf", _text_line(MARGIN, top + 20, header), "/F1 10.5 Tf"]
    commands += [_text_line(MARGIN, top - LEADING * row, line or " ") for row, line in enumerate(lines)]
    commands += ["/F1 8 Tf", _text_line(PAGE_WIDTH / 2, MARGIN - 24, str(number)), "ET"]
    stream = StreamObject()
    stream.set_data("\n".join(commands).encode("cp1252"))
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Times-Roman"),
            NameObject("/Encoding"): NameObject("/WinAnsiEncoding"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): font})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    page[NameObject("/Contents")] = stream.flate_encode()


def write_pdf(book: Book, path: Path) -> None:
    """Write the book as a paged PDF with running headers and page numbers."""
    writer = PdfWriter()
    for number, lines in enumerate(typeset(book.text), start=1):
        draw_page(writer.add_blank_page(PAGE_WIDTH, PAGE_HEIGHT), lines, book.title.upper(), number)
    writer.add_metadata({"/Title": book.title})
    writer.write(path)


def sample_questions(book: Book, name: str, seed: int) -> list[dict[str, str]]:
    """A fixed random choice of questions of every kind."""
    rng = random.Random(seed)
    chosen = []
    for kind, count in QUESTIONS:
        chosen += rng.sample([q for q in book.questions if q.kind == kind], count)
    return [{"book": name, "kind": q.kind, "question": q.question, "answer": q.answer} for q in chosen]


def main() -> None:
    """Write both books and questions.json."""
    folder = ROOT / "assets" / "books"
    layout = Layout.load(ROOT / "assets" / "models" / "harbour-target")
    short, long = fit(SEED_8K, TOKENS_8K, layout), fit(SEED_32K, TOKENS_32K, layout)
    write_pdf(short, folder / "harbour-8k.pdf")
    (folder / "harbour-32k.txt").write_text(long.text + "\n", encoding="utf-8")
    questions = sample_questions(short, "harbour-8k.pdf", SEED_8K) + sample_questions(long, "harbour-32k.txt", SEED_32K)
    (folder / "questions.json").write_text(json.dumps(questions, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
