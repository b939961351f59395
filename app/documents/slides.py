"""Presentations to Document: each slide is a page, its title a chapter."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from app.documents.document import Document, Extracting, make_pages, stem_of
from app.documents.errors import DamagedDocument, EmptyDocument, ScannedDocument
from app.documents.flowing import MAX_TITLE
from app.documents.marked_chapters import marked_chapters
from app.documents.metadata import about
from app.documents.parsing import LIMITS, Parser, ParsingLimits, parse
from app.documents.quality import FEW_LETTERS, garbled, num_letters, ranges

PRESENTATION = Parser("app.documents.pptx_worker", "a PowerPoint presentation")
BETWEEN = "\n\n"  # slides


def extract_slides(file: Path, name: str, limits: ParsingLimits = LIMITS) -> Iterator[Extracting | Document]:
    """Read a presentation; see `readers.extract_document`.

    Raises:
        DocumentError: there are no slides, or they have no text.
    """
    opened, slides = yield from parse(PRESENTATION, file, name, limits)
    if slides and all(slide["damaged"] for slide in slides):
        raise DamagedDocument(name, "is damaged: none of its slides can be read")
    texts = [slide["text"] + BETWEEN for slide in slides]
    text = "".join(texts).rstrip("\n")
    pictures = [
        index for index, slide in enumerate(slides) if slide["has_image"] and num_letters([slide["text"]]) < FEW_LETTERS
    ]
    if len(pictures) > len(slides) / 2 and num_letters([text]) < FEW_LETTERS * len(slides):
        raise ScannedDocument(name, len(slides))
    if not text.strip():
        raise EmptyDocument(f"{name} holds no text.", hint="Choose a file with text in it.")
    starts = [min(start, len(text)) for start in accumulate(map(len, texts[:-1]), initial=0)]
    damaged = [index for index, slide in enumerate(slides) if slide["damaged"]]
    flaws = ((pictures, "Only images, which are not read"), (damaged, "Missing or damaged, so that text is lost"))
    titles = (opened["title"], *(heading["title"] for slide in slides for heading in slide["headings"]), stem_of(name))
    yield Document(
        name=name,
        title=next(title for words in titles if (title := " ".join(words.split())[:MAX_TITLE])),
        format="pptx",
        text=text,
        pages=make_pages(starts, len(text), opened["labels"]),
        has_own_pages=True,
        warnings=(
            *(f"{flaw}: slides {ranges(indices)}." for indices, flaw in flaws if indices),
            *garbled(text, starts),
        ),
        chapters=marked_chapters(text, starts, opened, slides, starts),
        **about(opened),
    )
