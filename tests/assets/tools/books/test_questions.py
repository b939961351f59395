"""The questions that go with a book."""

from assets.tools.books.generated import ABSENT_ANSWER, write_book
from assets.tools.books.questions import COUNTS, choose_questions

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
