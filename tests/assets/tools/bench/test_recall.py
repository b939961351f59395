"""The recall suite: kept texts answer every question, nobody trained on them, judging is strict, rows are complete."""

import random

import pytest

from assets.tools.bench import recall, recall_tasks
from assets.tools.bench.recall import Mark
from assets.tools.bench.speed import Row
from assets.tools.books.generated import ABSENT_ANSWER, Question, write_book
from assets.tools.books.quotes import quote_questions
from core.config import EngineConfig
from core.engine import Engine
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer

CONTEXT, METHODS = 1024, ("triforce", "streamingllm")
GOAT, HOUSE = "Mara Vale kept a goat named Pip", "Mara Vale lived in a house on Mill Lane"
TEXT = ChatText(load_tokenizer(find("harbour").target), frozenset())

# -------------------- texts and questions


@pytest.mark.parametrize("num_tokens", [64, 333, 800])
def test_a_book_is_cut_behind_a_whole_paragraph(num_tokens: int) -> None:
    written = write_book(3_000_001, 800).text
    kept = recall_tasks.cut_at_paragraph(TEXT, written, num_tokens)
    assert len(TEXT.encode(kept)) <= num_tokens and written.startswith(kept + "\n\n")
    following = written[len(kept) :].split("\n\n")[1]
    assert len(TEXT.encode(f"{kept}\n\n{following}")) > num_tokens, "one more paragraph would have fitted"


def test_what_is_asked_about_a_cut_book_has_its_answer_in_it() -> None:
    source = next(recall_tasks.books(TEXT, 1024, 0, 20))
    lower, asked = source.text.lower(), source.questions
    assert all(asked[skill] for skill in recall_tasks.BOOK_SKILLS if skill != "list")
    assert all(one.answer.removesuffix(".").lower() in lower for one in asked["fact"])
    assert all(value.lower() in lower for one in asked["list"] for value in one.values)
    assert all(one.answer in source.text for skill in ("quote", "recite") for one in asked[skill])
    assert {one.answer for one in asked["absent"]} == {ABSENT_ANSWER}
    assert not {one.question for one in asked["absent"]} & {one.question for one in asked["fact"]}


def test_sentences_that_training_reads_as_well_are_not_asked_for() -> None:
    trained, shared = recall_tasks.trained_english(), 0
    for source in recall_tasks.english_texts(TEXT, 120_000, 0, 10_000):
        asked = [question.answer for question in source.questions["quote_any"]]
        assert asked and not any(answer in trained for answer in asked)
        shared += sum(q.answer in trained for q in quote_questions(source.text, 10_000, random.Random(0)))
    assert shared, "topics do share sentences, so leaving them out was needed"


# -------------------- judging


@pytest.mark.parametrize(
    ("answer", "f1"),
    [
        (f"{GOAT}. {HOUSE}.", 1.0),
        (f"{HOUSE}. {GOAT}.", 1.0),  # any order
        (f"{GOAT}.", 2 / 3),  # precision 1, recall 1/2
        (f"{GOAT}. {HOUSE}. The ship sank.", 4 / 5),  # precision 2/3, recall 1
        (f"{GOAT}. {GOAT}. {GOAT}.", 2 / 5),  # a loop earns its sentence once
        (f"{GOAT}. Mara Vale lived in a house on Mill", 1 / 2),  # cut off: neither right nor free
        ("", 0.0),
    ],
)
def test_f1_weighs_what_is_missing_and_what_is_too_much(answer: str, f1: float) -> None:
    assert recall.list_f1(answer, (GOAT, HOUSE)) == pytest.approx(f1)


def test_the_whole_answer_must_be_equal() -> None:
    asked = Question("fact", "?", "It sank.", ("It sank.",))
    for answer, right in (("It sank.", True), ("It sank. It sank.", False), ("it sank.", False)):
        assert recall.judge("fact", asked, answer, [], []) == Mark(right, float(right))


def test_a_recitation_is_judged_by_its_first_tokens() -> None:
    asked = Question("recite", "?", "", ())
    wanted = [*range(recall.RECITED_TOKENS), 7, 7]
    assert recall.judge("recite", asked, "", wanted[:-2], wanted) == Mark(True, 1.0)
    assert recall.judge("recite", asked, "", [*range(50), 0, *range(51, 200)], wanted) == Mark(False, 0.25)


@pytest.mark.parametrize(  # from Wilson's formula, worked out by hand with z = 1.96
    ("rate", "n", "low", "high"),
    [(0.5, 100, 0.4038, 0.5962), (1.0, 100, 0.9630, 1.0), (0.0, 10, 0.0, 0.2775), (0.95, 100, 0.8882, 0.9785)],
)
def test_wilson_intervals(rate: float, n: int, low: float, high: float) -> None:
    assert recall.wilson_interval(rate, n) == pytest.approx((low, high), abs=5e-4)


# -------------------- the suite on the bundled pair


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(EngineConfig(context=2048, device="cpu"))


def test_every_method_and_skill_has_a_row(engine: Engine) -> None:
    rows = list(recall.run_recall(engine, [CONTEXT], METHODS, questions=1, seed=0))
    cells = {(row["method"], row["skill"]): row for row in rows}
    assert len(cells) == len(rows)
    for method in METHODS:
        assert {skill for of, skill in cells if of == method} >= {"fact", "absent", "quote", "recite", "quote_any"}
        total = sum(row["n"] for row in rows if row["method"] == method and row["skill"] != "all")
        assert cells[method, "all"]["n"] == total
    for row in rows:
        assert row["prompt_tokens"] <= CONTEXT and row["texts"] <= row["n"] and row["ms_per_token"]
        assert (row["exact"] is None) == (row["skill"] == "all") and (row["f1"] is None) == (row["skill"] != "list")
        assert (
            row["exact_interval"] is None or row["exact_interval"][0] <= (row["exact"] or 0) <= row["exact_interval"][1]
        )


def test_an_interrupt_leaves_the_rows_so_far_and_texts_are_compared_with_plain_decoding_s(engine: Engine) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("  fact"):
            raise KeyboardInterrupt

    found: list[Row] = []
    methods = ["triforce", "streamingllm", "autoregressive"]
    with pytest.raises(KeyboardInterrupt):
        found.extend(recall.run_recall(engine, [512, 1024], methods, questions=1, seed=0, progress=interrupt))
    assert [(row["context"], row["method"], row["skill"], row["n"]) for row in found] == [
        (512, method, skill, 1)
        for method in ("autoregressive", "triforce", "streamingllm")
        for skill in ("fact", "all")
    ]
    compared = [(row["compared"], row["identical_to_autoregressive"]) for row in found]
    assert compared == [(None, None)] * 2 + [(1, 1)] * 2 + [(None, None)] * 2, "lossy texts are not compared"
