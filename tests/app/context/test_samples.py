"""Sample books and their questions, and the note on texts that the bundled model was not made for."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.context.domain_check import ON_COMMAND_LINE, reach_note
from app.context.samples import load_samples, named, sample_file
from app.documents.bundle import extract_documents
from app.documents.document import Document
from core.decoding.registry import EXACT_METHODS
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer


def test_samples_come_smallest_first_with_their_questions(tmp_path: Path) -> None:
    for name in ("tale-32k.txt", "tale-8k.pdf", "tale-8k.epub", "notes.json"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    rows = [{"book": "tale-8k.pdf", "question": f"Question {number}?", "answer": "Yes."} for number in range(5)]
    rows += [{"book": "tale-32k", "question": "Long?", "answer": "Yes."}]
    (tmp_path / "questions.json").write_text(json.dumps(rows), encoding="utf-8")
    samples = load_samples(tmp_path)
    told = [(sample.file.name, len(sample.questions)) for sample in samples]
    assert told == [("tale-8k.epub", 0), ("tale-8k.pdf", 5), ("tale-32k.txt", 1)], (
        "of a file, or its name in any format"
    )
    assert named(samples, "tale-8k.pdf") is samples[1]
    assert named(samples, "mine.pdf").questions == () == load_samples(tmp_path / "nothing")


def test_the_bundled_samples_are_called_and_counted_as_what_they_are() -> None:
    samples = load_samples()
    assert samples[0].label() == "The Market of Seabright\nPDF, 25 pages"
    assert samples[0].label(141.0) == "The Market of Seabright\nPDF, 25 pages, read in about 2 min"
    for sample in samples:
        (document,) = (one for one in extract_documents(sample.file) if isinstance(one, Document))
        assert sample.num_pages == len(document.pages) and sample.num_words == len(document.text.split())
        assert sample.title in (document.title, document.text.split("\n")[0])
        assert sample.questions and set(sample.raced) <= set(sample.questions), "of this book"
        assert not sample.raced or sample.fastest in EXACT_METHODS
    raced = {sample.file.name for sample in samples if sample.raced}
    assert raced >= {"harbour-8k.pdf", "harbour-32k.epub", "harbour-32k.txt"}


def test_a_race_begins_with_the_verified_question_of_the_largest_gain(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")

    def row(question: str, gain: float, **changed: Any) -> dict[str, Any]:
        told = {"question": question, "identical": True, "right": True, "new_tokens": 64}
        return told | {"tokens_per_pass": {"triforce": gain}} | changed

    rows = [
        row("Slow?", 3.0),
        row("Fast?", 11.0),
        row("Wrong?", 12.0, right=False),
        row("Other words?", 13.0, identical=False),
        row("Short?", 14.0, new_tokens=8),
    ]
    (tmp_path / "a.txt.races.json").write_text(json.dumps({"questions": rows, "fastest": "lookup"}), encoding="utf-8")
    (sample,) = load_samples(tmp_path)
    assert (sample.raced, sample.fastest) == (("Fast?", "Slow?"), "lookup")


def test_a_sample_is_found_by_its_very_name() -> None:
    (first, *_) = load_samples()
    assert sample_file(first.file.name) == first.file
    for name in ("", "..", f"../books/{first.file.name}", "questions.json", "\0.txt", f"{'x' * 5000}.txt"):
        assert sample_file(name) is None, name[:20]


# -------------------- what the bundled model was made for

LIMITS = find("harbour").limits
ENGLISH = (
    "The captain looked at the sky for a long while, and then told us that we would not sail before the next morning. "
    "Nobody complained, because all of us had seen the same dark clouds over the hills behind the town."
)
CODE = "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }\nreturn std::sqrt(sum);\n" * 4
CYRILLIC = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему."  # noqa: RUF001


@pytest.fixture(scope="module")
def text() -> ChatText:
    return ChatText(load_tokenizer(find("harbour").target), frozenset())


def test_a_text_of_another_kind_gets_a_note_the_stronger_the_less_it_suits(text: ChatText) -> None:
    def note(document: str, limits: str = LIMITS, way_out: str = "") -> str:
        return reach_note(limits, document, len(text.encode(document)), way_out)

    book = Path("assets/books/harbour-32k.txt").read_text(encoding="utf-8")
    assert note(book) == note("") == note(CODE, limits="") == "", "its own books, no text, a full model"
    assert [("other scripts" in note(one)) for one in (ENGLISH, CODE, CYRILLIC)] == [False, True, True]
    for one in (ENGLISH, CODE):
        shown = [note(one, way_out=way_out) for way_out in ("", ON_COMMAND_LINE)]
        assert ["--model" in line for line in shown] == [False, True]
        assert all(line.startswith(LIMITS) and line.endswith(".") and ".." not in line for line in shown)
