"""The questions that go with a book."""

import json

from assets.tools.books.generated import ABSENT_ANSWER, write_book
from assets.tools.books.questions import COUNTS, choose_questions, to_json

BOOK = write_book(5, 12_000)


def test_there_are_questions_of_every_kind_each_once() -> None:
    rows = choose_questions(BOOK, "new.txt", seed=5)
    assert {kind: sum(row["kind"] == kind for row in rows) for kind in COUNTS} == dict(COUNTS)
    assert len({row["question"] for row in rows}) == len(rows)
    assert {row["book"] for row in rows} == {"new.txt"}


def test_answers_stand_in_the_book_and_those_of_absent_facts_do_not() -> None:
    for row in choose_questions(BOOK, "new.txt", seed=5):
        if row["kind"] in ("recite", "quote"):
            assert row["answer"] in BOOK.text
        assert (row["answer"] == ABSENT_ANSWER) == (row["kind"] == "absent")


def test_the_seed_chooses() -> None:
    assert choose_questions(BOOK, "a", 5) == choose_questions(BOOK, "a", 5)
    assert choose_questions(BOOK, "a", 5) != choose_questions(BOOK, "a", 6)


def test_a_short_book_has_what_there_is() -> None:
    kinds = [row["kind"] for row in choose_questions(write_book(5, 60), "new.txt", seed=5)]
    assert 0 < kinds.count("fact") < COUNTS["fact"] and kinds.count("list") == 0


def test_headings_are_not_to_be_quoted() -> None:
    short = write_book(3, 400)
    rows = choose_questions(short, "new.txt", 3, {"quote": 1_000})
    assert rows and not any(row["answer"].startswith("Chapter") for row in rows)


def test_the_file_is_a_list_that_json_reads() -> None:
    rows = choose_questions(BOOK, "bücher.txt", seed=5)
    assert json.loads(to_json(rows).decode()) == rows
