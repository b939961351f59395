"""How fast and how large the images of real pages are, and whether sentences are found on them: a table.

    python -m assets.tools.documents.drawing FOLDER [--markdown]        every PDF in a folder, up to PAGES pages of each

Each page is drawn as the app draws it, in a new process. "Processor" is the time of a core that this takes, "seconds"
the wait, which other work on the machine makes longer (medians). "PNG", "JPEG": what the same image would take as such
a file, in kilobytes. Every sentence of a page's text is then looked for on its image.
"""

import argparse
import base64
import io
import os
import re
from pathlib import Path
from statistics import median
from time import perf_counter

from PIL import Image

from app.documents.page_image import draw_page
from app.documents.readers import read_document
from assets.tools.documents.table import measured, print_table

PAGES = 4  # of each file, evenly spaced
WIDTH = 1_200  # pixels
SENTENCE = re.compile(r"\S[^.]{30,400}?\.")
HEAD = ["file", "pages", "processor", "seconds", "kB", "PNG", "JPEG", "sentences", "placed"]


def measure(file: Path) -> list[str]:
    """The row of one file."""
    document = read_document(file)
    seconds: list[float] = []
    computed: list[float] = []
    sizes: list[tuple[float, float, float]] = []
    found = sentences = 0
    for page in document.pages[:: max(1, -(-len(document.pages) // PAGES))]:
        begun, before = perf_counter(), of_children()
        image = draw_page(file, document.name, page.number, len(document.pages), WIDTH)
        seconds.append(perf_counter() - begun)
        computed.append(of_children() - before)
        own = base64.b64decode(image.image)
        shown = Image.open(io.BytesIO(own)).convert("RGB")
        sizes.append((len(own) / 1000, size_as(shown, "PNG"), size_as(shown, "JPEG", quality=88)))
        text = document.page_text(page)
        spans = [match.span() for match in SENTENCE.finditer(text)]
        found += sum(map(bool, image.marks(text, spans)))
        sentences += len(spans)
    means = [f"{sum(some) / len(sizes):.0f}" for some in zip(*sizes, strict=True)]
    share = f"{found / sentences:.1%}" if sentences else "-"
    times = [f"{median(computed):.2f}", f"{median(seconds):.2f}"]
    return [file.name, f"{len(document.pages):,}", *times, *means, f"{sentences:,}", share]


def of_children() -> float:
    """Seconds of computing by processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def size_as(image: Image.Image, kind: str, **options: int) -> float:
    """The size of an image as a file of some kind, in kilobytes."""
    packed = io.BytesIO()
    image.save(packed, kind, **options)
    return len(packed.getvalue()) / 1000


def main() -> None:
    """Measure every PDF of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    print_table(HEAD, measured(sorted(args.folder.glob("*.pdf")), measure), markdown=args.markdown)


if __name__ == "__main__":
    main()
