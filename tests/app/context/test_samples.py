"""Sample books and their questions."""

import json
from pathlib import Path
from typing import Any

from app.context.samples import fastest_method, load_samples, open_questions, race_questions
from app.documents.bundle import extract_documents
from app.documents.document import Document
from core.decoding.registry import EXACT_METHODS


def write_samples(folder: Path) -> None:
    for name in ("tale-32k.txt", "tale-8k.pdf", "tale-8k.epub", "notes.json"):
        (folder / name).write_text("x", encoding="utf-8")
    rows = [{"book": "tale-8k.pdf", "question": f"Question {number}?", "answer": "Yes."} for number in range(5)] + [
        {"book": "tale-32k", "question": "Long?", "answer": "Yes."}
    ]
    (folder / "questions.json").write_text(json.dumps(rows), encoding="utf-8")


def test_samples_come_smallest_first_with_their_questions(tmp_path: Path) -> None:
    write_samples(tmp_path)
    samples = load_samples(tmp_path)
    assert [sample.file.name for sample in samples] == ["tale-8k.epub", "tale-8k.pdf", "tale-32k.txt"]
    assert [len(sample.questions) for sample in samples] == [0, 5, 1], "of this file, or of its name in any format"


def test_asked_questions_are_not_offered_again(tmp_path: Path) -> None:
    write_samples(tmp_path)
    samples = load_samples(tmp_path)
    assert open_questions(samples, "tale-8k.pdf", ("Question 0?",), 2) == ("Question 1?", "Question 2?")
    assert open_questions(samples, "mine.pdf", (), 3) == ()


def test_the_bundled_samples_have_questions() -> None:
    samples = load_samples()
    assert samples and all(sample.questions for sample in samples)
    assert samples[0].label() == "The Market of Seabright\nPDF, 25 pages", (
        "how long it takes is known of a machine alone"
    )
    assert samples[0].label(141.0) == "The Market of Seabright\nPDF, 25 pages, read in about 2 min"


def test_the_bundled_samples_are_called_and_counted_as_what_they_are() -> None:
    for sample in load_samples():
        (document,) = (one for one in extract_documents(sample.file) if isinstance(one, Document))
        assert sample.num_pages == len(document.pages) and sample.num_words == len(document.text.split())
        assert sample.title in (document.title, document.text.split("\n")[0])


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
    samples = load_samples(tmp_path)
    assert fastest_method(samples, "a.txt") == "lookup" and fastest_method(samples, "b.txt") == ""
    assert race_questions(samples, "a.txt", 3) == ("Fast?", "Slow?") and race_questions(samples, "b.txt", 2) == ()
    assert race_questions(samples, "a.txt", 1) == ("Fast?",)


def test_bundled_samples_have_questions_that_were_verified() -> None:
    verified = {sample.file.name: race_questions((sample,), sample.file.name, 3) for sample in load_samples()}
    assert all(verified[name] for name in ("harbour-8k.pdf", "harbour-32k.epub", "harbour-32k.txt")), verified
    for sample in load_samples():
        assert not sample.raced or sample.fastest in EXACT_METHODS
        assert set(sample.raced) <= set(sample.questions), "of this book"


def test_no_folder_no_samples(tmp_path: Path) -> None:
    assert load_samples(tmp_path / "nothing") == ()
