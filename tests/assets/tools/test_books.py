"""Generated books: the same for ever, with one answer to each question, read back as written; `launch.py book`."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import launch
from app.cli.ask import read_questions
from app.documents.readers import read_document
from assets.tools.books.command import MAX_TRIES, TRIED_TOKENS, fit_book
from assets.tools.books.formats import FORMATS
from assets.tools.books.generated import _OBJECT_RELATIONS, _PERSON_RELATIONS, ABSENT_ANSWER, Book, write_book
from assets.tools.books.quotes import QUESTION, quote_questions
from core.errors import InvalidSetting
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer

# -------------------- the generator


def times_told(words: str, text: str) -> int:
    return len(re.findall(rf"\b{re.escape(words.lower())}\b", text.lower()))


@settings(max_examples=30)
@given(st.integers(min_value=0, max_value=2**40), st.integers(min_value=60, max_value=3000))
def test_every_question_of_a_book_has_one_answer_in_it_or_none(seed: int, num_words: int) -> None:
    book = write_book(seed, num_words)
    assert max(Counter(question.question for question in book.questions).values()) == 1
    for fact in book.facts:
        told_in = [times_told(fact.statement, text) for text in (book.text, book.chapters[fact.chapter - 1].text)]
        assert told_in == [1, 1] and fact.statement.endswith(fact.value), fact
        assert times_told(fact.statement.removesuffix(fact.value).strip(), book.text) == 1, "no other value is meant"
    for number, chapter in enumerate(book.chapters, start=1):
        assert chapter.number == number and book.text.count(chapter.text) == 1
        assert chapter.text.startswith(f"Chapter {number}: {chapter.title}\n\n")
    kinds = Counter(question.kind for question in book.questions)
    assert kinds["recite"] == len(book.chapters) and kinds["fact"] == len(book.facts)
    openings = {
        relation.question: relation.statement.split("{v}")[0] for relation in _PERSON_RELATIONS + _OBJECT_RELATIONS
    }
    checked = 0
    for question in book.questions:
        for pattern, opening in openings.items():
            asked = re.fullmatch(re.escape(pattern).replace(r"\{s\}", "(.+)"), question.question)
            if question.kind == "absent" and asked:
                assert not times_told(opening.format(s=asked[1]).strip(), book.text), question
                assert question.answer == ABSENT_ANSWER
                checked += 1
    assert checked, "no question was recognised"


# -------------------- quotations


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_every_phrase_points_to_exactly_one_sentence(book_seed: int, seed: int) -> None:
    text = write_book(book_seed, 400).text
    for question in quote_questions(text, 20, random.Random(seed)):
        phrase = question.question.split('"')[1]
        assert question.question == QUESTION.format(phrase=phrase) and question.values == (question.answer,)
        assert text.count(phrase) == 1 and phrase in question.answer
        assert text.count(question.answer) == 1 and "\n" not in question.answer


# -------------------- a wanted length


@settings(max_examples=40)
@given(st.integers(300, 3000), st.integers(0, 99), st.floats(0.9, 3.0))
@example(30_000, 2, 1.4)
def test_a_book_has_at_most_the_wanted_length_and_hardly_less(wanted: int, seed: int, tokens_per_word: float) -> None:
    counted: list[int] = []

    def count(book: Book) -> int:
        counted.append(round(len(book.text.split()) * tokens_per_word))
        return counted[-1]

    book, num_tokens = fit_book(seed, wanted, count)
    assert wanted - max(70 * tokens_per_word, wanted // 100) <= num_tokens <= wanted
    assert len(counted) <= max(MAX_TRIES, TRIED_TOKENS // wanted) and num_tokens == count(book)


def test_a_length_below_the_shortest_book_is_refused_and_the_one_named_works() -> None:
    with pytest.raises(InvalidSetting, match="No book is as short as 80 tokens") as caught:
        fit_book(7, 80, lambda book: 2 * len(book.text.split()))
    named = int(caught.value.hint.split()[2])
    assert fit_book(7, named, lambda book: 2 * len(book.text.split()))[1] == named


# -------------------- launch.py book


def write(*arguments: object, tokens: int = 1_500) -> int:
    options = ["--tokens", tokens, "--seed", 9, "--no-venv"]
    return launch.main(["book", *map(str, [*options, *arguments])])


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_book_of_that_length_and_its_questions_are_written_and_read_back(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, questions = tmp_path / f"new{suffix}", tmp_path / "new.questions.json"
    assert write("-o", path, "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    document, text = read_document(path), ChatText(load_tokenizer(find("harbour").target), frozenset())
    assert (told["path"], told["questions_path"], document.warnings) == (str(path), str(questions), ())
    assert told["tokens"] == len(text.encode(document.text)) and 1_400 < told["tokens"] <= 1_500
    assert told["chapters"] == document.text.count("Chapter ")
    assert document.title == ("new" if suffix == ".txt" else told["title"])
    assert suffix not in (".md", ".epub") or told["chapters"] == sum(
        "Chapter" in one.title for one in document.chapters
    )
    rows = json.loads(questions.read_text(encoding="utf-8"))
    assert told["questions"] == Counter(row["kind"] for row in rows)
    assert {"fact", "absent", "recite", "quote"} <= set(told["questions"])
    assert read_questions(questions, [path]) == [row["question"] for row in rows]
    assert {file.name for file in tmp_path.iterdir()} == {path.name, questions.name}


def the_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ") and captured.out == ""
    return str(line)


def test_nothing_is_overwritten_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.questions.json").write_text("mine")
    assert write("-o", tmp_path / "new.txt") == 1
    assert "new.questions.json exists already" in the_line(capsys)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]
    assert write("-o", tmp_path / "new.txt", "--force") == 0
    assert "mine" not in [file.read_text(encoding="utf-8") for file in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-o", "missing/new.txt"), 2, "There is no folder"),
        (("-o", "new.txt", "--tokens", 131_073), 2, "131,073 tokens does not fit: the context holds 131,072"),
        (("-o", "new.txt", "--context", 1_000), 2, "1,500 tokens does not fit: the context holds 1,000"),
        (("-o", "new.txt", "--model", "nope"), 2, "no model 'nope'"),
        (("-o", "new.txt", "--seed", 1), 1, "cannot be written (No space left on device)"),
    ],
)
def test_each_mistake_gets_one_line_with_an_action_and_nothing_is_written(
    arguments: tuple[object, ...],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", full)
    assert write(*arguments) == code and words in the_line(capsys)
    assert list(tmp_path.iterdir()) == []
