"""Words of real files, by our readers and by others: which words are lost, and how fast each is.

    python -m assets.tools.documents.compared FOLDER [--markdown]

A file named MAKER-NAME was made of NAME.html, if that is there, and pandoc's plain text of it is the reference, else
that of the file itself. Libraries that are not installed are left out: odfdo, striprtf, python-pptx, python-docx,
mammoth, ebooklib, trafilatura, selectolax.
"""

import argparse
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from time import perf_counter

from app.documents.readers import read_document
from assets.tools.documents.table import measured, print_table

WORD = re.compile(r"[^\W_]+")
FOLDED = str.maketrans({"\u00ad": "", "\u2019": "'"})


def words(text: str) -> Counter[str]:
    """How often each word occurs."""
    return Counter(WORD.findall(text.translate(FOLDED).casefold()))


def reference(file: Path) -> str:
    """What another program finds in the file, or in what it was made of."""
    source = file.with_name(file.stem.partition("-")[2] + ".html")
    whole = source if source.exists() else file
    done = subprocess.run(["pandoc", "-t", "plain", "--wrap=none", whole], capture_output=True, check=True, timeout=120)
    return done.stdout.decode()


def _by_odfdo(file: Path) -> str:
    return str(import_module("odfdo").Document(file).get_formatted_text())


def _by_striprtf(file: Path) -> str:
    return str(import_module("striprtf.striprtf").rtf_to_text(file.read_text("latin-1"), errors="replace"))


def _by_python_pptx(file: Path) -> str:
    shapes = [shape for slide in import_module("pptx").Presentation(str(file)).slides for shape in slide.shapes]
    cells = (cell.text for shape in shapes if shape.has_table for row in shape.table.rows for cell in row.cells)
    return "\n".join([*(shape.text_frame.text for shape in shapes if shape.has_text_frame), *cells])


def _by_python_docx(file: Path) -> str:
    document = import_module("docx").Document(str(file))
    cells = (cell.text for table in document.tables for row in table.rows for cell in row.cells)
    return "\n".join([*(paragraph.text for paragraph in document.paragraphs), *cells])


def _by_mammoth(file: Path) -> str:
    mammoth = import_module("mammoth")
    with file.open("rb") as stream:
        return str(mammoth.extract_raw_text(stream).value)


def _by_ebooklib(file: Path) -> str:
    items = import_module("ebooklib.epub").read_epub(str(file)).get_items_of_type(9)  # documents
    return "\n".join(import_module("bs4").BeautifulSoup(item.get_content(), "lxml").get_text(" ") for item in items)


def _by_trafilatura(file: Path) -> str:
    extract = import_module("trafilatura").extract
    return str(extract(file.read_text(errors="replace"), include_comments=False, favor_recall=True) or "")


def _by_selectolax(file: Path) -> str:
    tree = import_module("selectolax.lexbor").LexborHTMLParser(file.read_text(errors="replace"))
    tree.strip_tags(["script", "style", "head"])
    return str(tree.body.text(separator=" "))


OTHERS: Mapping[str, Mapping[str, Callable[[Path], str]]] = {
    ".odt": {"odfdo": _by_odfdo},
    ".rtf": {"striprtf": _by_striprtf},
    ".pptx": {"python-pptx": _by_python_pptx},
    ".docx": {"python-docx": _by_python_docx, "mammoth": _by_mammoth},
    ".epub": {"ebooklib": _by_ebooklib},
    ".html": {"trafilatura": _by_trafilatura, "selectolax": _by_selectolax},
    ".fb2": {},
}


def measure(file: Path) -> list[str]:
    """The row of one file: words that ours loses, its seconds, and words that others lose."""
    expected, told = words(reference(file)), []
    for name, read in {"ours": lambda file: read_document(file).text, **OTHERS[file.suffix]}.items():
        started = perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = words(read(file))
        except ImportError:
            continue
        except Exception as error:  # of a library: that is what it does with the file
            print(f"{file.name}: {name}: {type(error).__name__}: {error}", file=sys.stderr)
            found = Counter()
        lost = f"{100 * (expected - found).total() / max(1, expected.total()):.2f}%"
        told += [lost, f"{perf_counter() - started:.1f}"] if name == "ours" else [f"{name} {lost}"]
    return [file.name, f"{expected.total():,}", *told[:2], "; ".join(told[2:])]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="assets.tools.documents.compared", description="Words of real files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    files = [file for file in args.folder.iterdir() if file.suffix in OTHERS]
    rows = measured(sorted(files, key=lambda file: (file.suffix, file.name)), measure)
    print_table(["file", "words", "lost", "seconds", "others lose"], rows, markdown=args.markdown)


if __name__ == "__main__":
    main()
