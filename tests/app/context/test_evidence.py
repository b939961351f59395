"""What an answer has from the book: only what stands there word for word, and all of that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.evidence import MOST_SENTENCES, BookWords, Passage, evidence_in, is_refusal

BOOK = (
    "It began so.\n\nThe carved teapot\nwas lost in the spring tide. Mr. Reed kept the old lighthouse for $5 a day, "
    "and it’s said he slept – never. “Have you seen it?” asked Nora. \n\f"
    "The ship was lost. In the morning nobody came. It rained by 1.5 inches at 5 o’clock. The ship was lost. He said: "
    "Tomorrow the ship was lost on paper.\n\n老人与海的故事开始了。第二天早上没有人来。"
)
PAGE = BOOK.index("\f") + 1


def evidence(answer: str, book: str = BOOK) -> tuple[Passage, ...]:
    return evidence_in(answer, BookWords(book), [book.find("\f") + 1, len(book)])


def found(answer: str, book: str = BOOK) -> list[str]:
    """The words of the book that the answer's passages stand for."""
    return [book[slice(*one.source)] for one in evidence(answer, book) if one.source]


def own(answer: str) -> list[str]:
    return [answer[one.start : one.end] for one in evidence(answer) if one.kind == "own"]


@pytest.mark.parametrize(
    ("answer", "stands"),
    [
        ("The carved teapot was lost in the spring tide.", "The carved teapot\nwas lost in the spring tide"),
        ("the CARVED teapot: was lost, in the spring!", "The carved teapot\nwas lost in the spring"),
        ("**The carved** teapot _was_ lost", "The carved teapot\nwas lost"),
        ("- Mr. Reed kept the old lighthouse for $5 a day", "Mr. Reed kept the old lighthouse for $5 a day"),
        ("And it's said he slept - never.", "and it’s said he slept – never"),
        ("It rained by 1.5 inches at 5 o'clock.", "It rained by 1.5 inches at 5 o’clock"),
        ("The carved teapot was lo", "The carved teapot\nwas lost"),  # the answer was cut there
        ("第二天早上没有人来。", "第二天早上没有人来"),
        ("The carved teapot was found in the spring tide.", ""),
        ("The spring tide was lost in the carved teapot.", ""),
        ("The carved teapot was los.", ""),  # a word of its own, since the answer goes on
        ("Mr. Reed kept the old lighthouse for 5 a day.", ""),
        ("It rained by 15 inches at 5 o'clock.", ""),
        ("It rained by 1 inches at 5 o'clock.", ""),
        ("The ship was lost in the morning.", ""),  # a sentence ends there in the book
        ("第二天早上没有船来了吗。", ""),
    ],
)
def test_a_sentence_of_the_book_is_found_whatever_its_signs_and_other_words_are_the_models_own(
    answer: str, stands: str
) -> None:
    assert (found(answer), own(answer)) == (([stands], []) if stands else ([], [answer]))


def test_too_few_words_are_neither() -> None:
    assert evidence("The ship was. It began so. 老人与海。") == ()


def test_sentences_that_follow_each_other_on_a_page_are_one_passage() -> None:
    answer = "Well:\n\nIn the morning nobody came. It rained by 1.5 inches at 5 o’clock. The ship was lost."
    (one,) = evidence(answer)
    assert answer[one.start : one.end] == answer[7:]
    assert one.source and BOOK[slice(*one.source)].endswith("o’clock. The ship was lost"), "the place behind the rain"
    assert not one.again, "the first sentence stands once"
    apart = evidence("It rained by 1.5 inches at 5 o’clock. In the morning nobody came.")
    assert len(apart) == 2
    across = evidence("“Have you seen it?” asked Nora. The ship was lost.")
    assert [one.source and one.source.start >= PAGE for one in across] == [False, True], "a page ends between them"


def test_words_that_stand_twice_are_told() -> None:
    (one,) = evidence("The ship was lost.")
    assert one.again and one.source and one.source.start == PAGE
    assert not evidence("In the morning nobody came.")[0].again


def test_quotations_are_looked_up_apart_from_the_words_around_them() -> None:
    answer = 'The captain wrote of it that "the carved teapot was lost" and "nobody ever knew why it was so".'
    kinds = [(one.kind, one.source is not None, answer[one.start : one.end]) for one in evidence(answer)]
    assert kinds == [
        ("own", False, "The captain wrote of it that"),
        ("quotation", True, '"the carved teapot was lost"'),
        ("quotation", False, '"nobody ever knew why it was so"'),
    ]
    inside = evidence("It’s said he slept. “Have you seen it?” asked Nora.")
    assert [one.kind for one in inside if one.source] == ["sentence", "sentence"]


@pytest.mark.parametrize(
    ("answer", "stands"),
    [
        ('"the carved teapot was lost".', "The carved teapot\nwas lost"),
        ("“The carved  teapot was lost in the spring tide.”", "The carved teapot\nwas lost in the spring tide"),
        ("«it's said he slept - never»", "it’s said he slept – never"),
        ('"The carved … the spring tide"', "The carved teapot\nwas lost in the spring tide"),
        ('"the carved teapot [...] in the spring"', "The carved teapot\nwas lost in the spring"),
        ('"in the spring ... The carved teapot"', ""),  # in another order
        ('"the carved teapot was lo"', ""),  # a word of its own, since the quotation ends there
    ],
)
def test_a_quotation_is_found_whatever_its_signs(answer: str, stands: str) -> None:
    (quotation,) = [one for one in evidence(f"They say {answer}") if one.kind == "quotation"]
    assert (BOOK[slice(*quotation.source)] if quotation.source else "") == stands


@pytest.mark.parametrize(
    "answer",
    [
        "```\nThe carved teapot was lost.\n```", "# The carved teapot was lost",
        "| The carved teapot was lost | it |", "    The carved teapot was lost.", "\\(The carved teapot was lost\\)",
        "See `the carved teapot was lost` there.",
    ],
)  # fmt: skip
def test_code_tables_headings_and_mathematics_are_left_out(answer: str) -> None:
    assert evidence(answer) == ()


def test_much_is_bounded() -> None:
    assert len(evidence("Nobody ever said that here.\n\n" * (MOST_SENTENCES + 50))) == MOST_SENTENCES
    assert evidence("") == evidence("…", "") == ()
    assert [one.kind for one in evidence("Nobody ever said that here.", "")] == ["own"]
    hostile = "a. " * 5000
    assert [one.kind for one in evidence("a a a a a a.", hostile)] == ["own"]


def test_only_a_short_answer_without_any_words_of_the_book_is_a_refusal() -> None:
    for answer in ("The book does not say.", "I couldn't find any mention of it.", "There is no information on it."):
        assert is_refusal(answer, evidence(answer))
    for answer in (
        "The ship was lost. The book does not say why.",
        "He kept the lighthouse.",
        "The book does not say. " + "But this is what I think of it all. " * 9,
    ):
        assert not is_refusal(answer, evidence(answer)), answer


@given(st.text(alphabet="ab .!?\n\"'`*-|#$\\()5,", max_size=80), st.text(alphabet="ab .!?\n5,", max_size=60))
def test_what_is_found_has_the_same_words_and_passages_keep_their_order(answer: str, book: str) -> None:
    def words(text: str) -> str:
        return " ".join("".join(char if char.isalnum() else " " for char in text).split())

    end = 0
    for one in evidence(answer, book):
        assert 0 <= one.start < one.end <= len(answer)
        if one.kind == "sentence" and one.source:
            assert words(book[slice(*one.source)]).startswith(words(answer[one.start : one.end]))
        if one.kind != "quotation":
            assert one.start >= end, "sentences do not overlap"
            end = one.end
