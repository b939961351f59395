"""Claims about the recall suite: what is asked has an answer in the kept text, judging is strict, rows say what was."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

import pytest

from core.bench import recall
from core.bench.recall import Mark, RecallRow, Skill, Source
from core.bench.world import ABSENT_ANSWER, Question, write_book
from core.config import EngineConfig
from core.engine import Engine
from core.errors import InvalidSetting
from core.models.catalog import find
from core.models.loader import load_tokenizer
from core.text import ChatText

TEXT = ChatText(load_tokenizer(find("harbour").target), frozenset())
CONTEXT = 1024
CRATE, LAMP = "Mara Vale kept a goat named Pip", "Mara Vale lived in a house on Mill Lane"


def question(kind: Skill, answer: str, *values: str) -> Question:
    assert kind != "quote_any"
    return Question(kind, "?", answer, values or (answer,))


# -------------------- judging


@pytest.mark.parametrize(
    ("answer", "f1"),
    [
        (f"{CRATE}. {LAMP}.", 1.0),
        (f"{LAMP}. {CRATE}.", 1.0),  # any order
        (f"{CRATE}.", 2 / 3),  # precision 1, recall 1/2
        (f"{CRATE}. {LAMP}. The ship sank.", 4 / 5),  # precision 2/3, recall 1
        (f"{CRATE}. {CRATE}. {CRATE}.", 2 / 5),  # a loop earns its sentence once
        (f"{CRATE}. Mara Vale lived in a house on Mill", 1 / 2),  # cut off: neither right nor free
        ("", 0.0),
    ],
)
def test_f1_weighs_what_is_missing_and_what_is_too_much(answer: str, f1: float) -> None:
    assert isclose(recall.list_f1(answer, (CRATE, LAMP)), f1)


def test_the_expected_list_of_any_book_has_f1_one() -> None:
    lists = [q for q in write_book(3_000_000, 4000).questions if q.kind == "list"]
    assert lists and all(recall.list_f1(q.answer, q.values) == 1.0 for q in lists)


@pytest.mark.parametrize(
    ("said", "share"), [([1, 2, 3, 4], 1.0), ([1, 2, 9, 4], 0.5), ([9, 2, 3, 4], 0.0), ([1, 2, 3, 4, 5], 1.0), ([], 0)]
)
def test_only_what_stands_before_the_first_error_counts(said: list[int], share: float) -> None:
    assert recall.prefix_share(said, [1, 2, 3, 4]) == share


def test_a_recitation_is_judged_by_its_first_200_tokens() -> None:
    wanted = list(range(300))
    chapter = question("recite", "text")
    assert recall.judge("recite", chapter, "", wanted[:200], wanted) == Mark(True, 1.0)
    assert recall.judge("recite", chapter, "", [*wanted[:150], 0], wanted) == Mark(False, 0.75)


@pytest.mark.parametrize(
    ("answer", "right"), [("It sank.", True), ("It sank. It sank.", False), ("It sank", False), ("it sank.", False)]
)
def test_the_whole_answer_must_be_equal(answer: str, right: bool) -> None:
    assert recall.judge("fact", question("fact", "It sank."), answer, [], []) == Mark(right, float(right))


@pytest.mark.parametrize(  # from Wilson's formula, worked out by hand with z = 1.96
    ("rate", "n", "low", "high"),
    [(0.5, 100, 0.4038, 0.5962), (1.0, 100, 0.9630, 1.0), (0.0, 10, 0.0, 0.2775), (0.95, 100, 0.8882, 0.9785)],
)
def test_wilson_intervals(rate: float, n: int, low: float, high: float) -> None:
    assert recall.wilson_interval(rate, n) == pytest.approx((low, high), abs=5e-4)


# -------------------- texts and questions


@pytest.mark.parametrize("num_tokens", [64, 100, 333, 800])
def test_a_book_is_cut_behind_a_whole_paragraph(num_tokens: int) -> None:
    written = write_book(3_000_001, 800).text
    kept = recall.cut_at_paragraph(TEXT, written, num_tokens)
    assert len(TEXT.encode(kept)) <= num_tokens
    assert written.startswith(kept + "\n\n")
    following = written[len(kept) :].split("\n\n")[1]
    assert len(TEXT.encode(f"{kept}\n\n{following}")) > num_tokens, "one more paragraph would have fitted"


def test_a_text_that_fits_is_not_cut_and_one_paragraph_too_long_leaves_nothing() -> None:
    assert recall.cut_at_paragraph(TEXT, "One.\n\nTwo.", 100) == "One.\n\nTwo."
    assert recall.cut_at_paragraph(TEXT, "One and two and three and four.\n\nTwo.", 3) == ""


def test_what_is_asked_about_a_cut_book_has_its_answer_in_it() -> None:
    source = next(recall.books(TEXT, CONTEXT, 0, 20))
    lower = source.text.lower()
    assert all(source.questions[skill] for skill in recall.BOOK_SKILLS if skill != "list")
    for asked in source.questions["fact"]:
        assert asked.answer.removesuffix(".").lower() in lower
    for asked in source.questions["list"]:
        assert all(value.lower() in lower for value in asked.values)
    for skill in ("quote", "recite"):
        assert all(asked.answer in source.text for asked in source.questions[skill])
    told = {asked.question for asked in source.questions["fact"]}
    for asked in source.questions["absent"]:
        assert asked.answer == ABSENT_ANSWER and asked.question not in told


def test_questions_whose_answer_was_cut_off_are_dropped() -> None:
    book = write_book(3_000_002, 900)
    kept = recall.cut_at_paragraph(TEXT, book.text, 400)
    standing = [q for q in book.questions if recall.stands_in(q, kept, kept.lower())]
    for kind in ("fact", "recite"):
        all_of, left = (sum(q.kind == kind for q in of) for of in (book.questions, standing))
        assert 0 < left < all_of, f"{left} of {all_of} questions of the kind {kind}"


def test_books_are_distinct_and_of_the_suite_s_own_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    real = recall.long_enough_book
    monkeypatch.setattr(recall, "long_enough_book", lambda t, n, seed: seeds.append(seed) or real(t, n, seed))
    for seed in (0, 1, 10**9):
        for _, _ in zip(range(3), recall.books(TEXT, 512, seed, 1), strict=False):
            pass
    assert len(set(seeds)) == len(seeds) >= 9
    assert all(3_000_000 <= seed < 4_000_000 for seed in seeds), "training and its measurements use 10,000,000 on"


def test_english_comes_from_every_second_topic_and_is_asked_for_by_phrases_in_it() -> None:
    names = recall.measured_topics()
    assert names == [name for index, name in enumerate(sorted(recall.topics)) if index % 2 == 1]
    for source in recall.english_texts(TEXT, 2048, 0, 5):
        assert 0 < len(TEXT.encode(source.text)) <= 2048 - recall.QUESTION_ROOM
        for asked in source.questions["quote_any"]:
            assert source.text.count(asked.answer) == 1 and "\n" not in asked.answer


def test_paragraphs_lose_their_line_breaks_and_code_keeps_them() -> None:
    prose, code = "An assignment is\na statement.  It binds\nnames.", "   x = [\n      1]"
    assert recall.unwrapped(f"Title\n*****\n\n{prose}\n\n{code}\n") == (
        f"Title\n*****\n\nAn assignment is a statement. It binds names.\n\n{code}"
    )


def sources(*counts: int) -> Iterator[Source]:
    for number, count in enumerate(counts):
        asked = [Question("fact", f"Question {number}.{index}?", "Yes.", ("Yes.",)) for index in range(count)]
        yield Source(f"Text {number}.", {"fact": asked})


@pytest.mark.parametrize(
    ("context", "counts", "asked"),
    [
        (8192, (99, 99, 99), [5, 5]),  # two texts, although one would do
        (8192, (2, 3, 99), [2, 3, 5]),  # more where they hold too little
        (8192, (2, 3), [2, 3]),  # fewer questions where there are no more texts
        (65536, (99, 99), [10]),
    ],
)
def test_questions_are_spread_over_few_texts(context: int, counts: tuple[int, ...], asked: list[int]) -> None:
    readings = list(recall.choose_readings(TEXT, context, sources(*counts), {"fact": 10}))
    assert [len(reading.asked["fact"]) for reading in readings] == asked


def test_questions_that_do_not_fit_behind_the_text_are_not_asked() -> None:
    long = Question("fact", "Why " + "and why " * 200, "Yes.", ("Yes.",))
    short = Question("fact", "Why?", "Yes.", ("Yes.",))
    reading = next(recall.choose_readings(TEXT, 128, iter([Source("Text.", {"fact": [long, short]})]), {"fact": 2}))
    assert reading.asked["fact"] == (short,)


def test_what_costs_more_is_asked_less() -> None:
    assert recall.cell_size("fact", 8192, 100) == recall.cell_size("fact", 122880, 100) == 100
    assert recall.cell_size("list", 122880, 100) < recall.cell_size("list", 8192, 100) < 100
    assert recall.cell_size("recite", 122880, 1) == 1, "never nothing"
    assert recall.num_asked("triforce", 122880, 50) == 50
    assert recall.num_asked("h2o", 122880, 50) < recall.num_asked("h2o", 8192, 50) < 50


# -------------------- the suite on the bundled pair


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(EngineConfig(context=2048, device="cpu"))


@pytest.fixture(scope="module")
def rows(engine: Engine) -> list[RecallRow]:
    methods = ("triforce", "autoregressive", "streamingllm")
    return list(recall.run_recall(engine, [CONTEXT], methods, questions=1, seed=0))


def test_every_method_and_skill_has_a_row(rows: list[RecallRow]) -> None:
    cells = {(row.method, row.skill): row for row in rows}
    assert len(cells) == len(rows)
    for method in ("autoregressive", "triforce", "streamingllm"):
        assert {skill for of, skill in cells if of == method} >= {"fact", "absent", "quote", "recite", "quote_any"}
        total = sum(row.n for row in rows if row.method == method and row.skill != "all")
        assert cells[method, "all"].n == total
    for row in rows:
        assert row.prompt_tokens <= CONTEXT and row.texts <= row.n and row.ms_per_token
        assert (row.exact is None) == (row.skill == "all") and (row.f1 is None) == (row.skill != "list")
        assert row.exact_interval is None or row.exact_interval[0] <= (row.exact or 0) <= row.exact_interval[1]


def test_the_book_is_read_once_for_all_questions_and_methods(rows: list[RecallRow]) -> None:
    assert [row.book_tokens_reread for row in rows] == [0] * len(rows)


def test_triforce_writes_what_plain_decoding_writes(rows: list[RecallRow]) -> None:
    """Also a check of the measurement: the lossy method is not compared, and plain decoding not with itself."""
    for row in rows:
        if row.method == "triforce":
            assert row.compared == row.n and row.acceptance_level2
            assert row.identical_to_autoregressive == row.n - (row.near_ties or 0)
        else:
            assert row.compared is None and row.acceptance_level2 is None


def test_an_interrupt_leaves_the_rows_so_far(engine: Engine) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("  fact"):
            raise KeyboardInterrupt

    found: list[RecallRow] = []
    measured = recall.run_recall(engine, [512, 1024], ["streamingllm"], questions=1, seed=0, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        found.extend(measured)
    assert [(row.context, row.skill, row.n) for row in found] == [(512, "fact", 1), (512, "all", 1)]


@pytest.mark.parametrize("context", [100, 2048])
def test_a_context_without_room_is_refused_before_anything_is_read(engine: Engine, context: int) -> None:
    with pytest.raises(InvalidSetting, match=f"{context:,} tokens"):
        next(recall.run_recall(engine, [1024, context], ["autoregressive"], questions=1, seed=0))
