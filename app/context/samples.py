"""The sample books that come with the project, and questions whose answers are in them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app import formats

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "books"
SUFFIXES = (".pdf", ".epub", ".txt", ".md")
RACES_SUFFIX = ".races.json"  # behind a file's name: what `launch.py races` measured
LEAST_TOKENS = 32  # of an answer that is worth a race


@dataclass(frozen=True, slots=True)
class Sample:
    """A book on disk and questions about it."""

    file: Path
    questions: tuple[str, ...]
    raced: tuple[str, ...] = ()  # questions verified for a race, those with the largest gain first
    title: str = ""
    fastest: str = ""  # the exact method that took the least time over them; "": none was raced
    num_pages: int = 0  # of a printed page's size, where the file has none of its own; 0: not listed
    num_words: int = 0  # separated by white space; 0: not listed

    def label(self, read_seconds: float | None = None) -> str:
        """Two lines: its title, then its format, its pages, and how long it takes to read here; None: not known."""
        if not self.title:
            return self.file.name
        read = f", read in {formats.about(read_seconds)}" if read_seconds is not None else ""
        return f"{self.title}\n{self.file.suffix[1:].upper()}, {self.num_pages} pages{read}"


def load_samples(folder: Path = FOLDER) -> tuple[Sample, ...]:
    """The books of a folder, smallest first; none if the folder does not exist."""
    files = [file for file in sorted(folder.glob("*")) if file.suffix in SUFFIXES]
    listed = folder / "questions.json"
    rows = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    named = folder / "titles.json"
    titles: dict[str, tuple[str, int, int]] = json.loads(named.read_text(encoding="utf-8")) if named.is_file() else {}
    return tuple(_sample(file, rows, *titles.get(file.name, ("", 0, 0))) for file in sorted(files, key=_length))


def one_of_each(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """The samples to choose from: a book that comes in several formats is offered in the first of them alone."""
    return tuple({sample.file.stem: sample for sample in reversed(samples)}.values())[::-1]


def sample_file(name: str) -> Path | None:
    """The sample book with a file's name, if there is one."""
    file = FOLDER / name
    return file if file.name == name and file.suffix in SUFFIXES and os.path.isfile(file) else None


def _sample(file: Path, rows: list[dict[str, str]], title: str, num_pages: int, num_words: int) -> Sample:
    mine = [row for row in rows if row["book"] in (file.name, file.stem)]
    raced, fastest = _raced(file.with_name(file.name + RACES_SUFFIX))
    questions = tuple(row["question"] for row in mine)
    return Sample(file, questions, raced, title=title, fastest=fastest, num_pages=num_pages, num_words=num_words)


def _raced(file: Path) -> tuple[tuple[str, ...], str]:
    """Of a file that `launch.py races` wrote: its verified questions, the largest gain first, and the fastest method.

    The gain is counted in tokens that one pass over the book confirms.
    """
    if not file.is_file():
        return (), ""
    told = json.loads(file.read_text(encoding="utf-8"))
    kept = [row for row in told["questions"] if row["identical"] and row["right"] and row["new_tokens"] >= LEAST_TOKENS]
    ranked = sorted(kept, key=lambda row: -max(row["tokens_per_pass"].values()))
    return tuple(row["question"] for row in ranked), told.get("fastest", "")


def _length(file: Path) -> tuple[int, str]:
    """Sort key: the number in `harbour-32k`, because file sizes differ between formats."""
    digits = "".join(char for char in file.stem if char.isdigit())
    return int(digits or 0), file.name


def named(samples: Sequence[Sample], name: str) -> Sample:
    """The sample with a file's name; one without questions where there is none."""
    return next((sample for sample in samples if sample.file.name == name), Sample(Path(name), ()))
