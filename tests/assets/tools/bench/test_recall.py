"""Claims about the recall suite: judging is strict, rows say what was measured, an interrupt keeps it."""

from __future__ import annotations

from math import isclose

import pytest

from assets.tools.bench import recall
from assets.tools.bench.recall import Mark, RecallRow
from assets.tools.bench.recall_tasks import Skill
from assets.tools.books.generated import Question
from core.config import EngineConfig
from core.engine import Engine

CONTEXT, METHODS = 1024, ("triforce", "streamingllm")
GOAT, HOUSE = "Mara Vale kept a goat named Pip", "Mara Vale lived in a house on Mill Lane"


def question(kind: Skill, answer: str, *values: str) -> Question:
    assert kind != "quote_any"
    return Question(kind, "?", answer, values or (answer,))


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
    assert isclose(recall.list_f1(answer, (GOAT, HOUSE)), f1)


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


# -------------------- the suite on the bundled pair


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(EngineConfig(context=2048, device="cpu"))


@pytest.fixture(scope="module")
def rows(engine: Engine) -> list[RecallRow]:
    return list(recall.run_recall(engine, [CONTEXT], METHODS, questions=1, seed=0))


def test_every_method_and_skill_has_a_row(rows: list[RecallRow]) -> None:
    cells = {(row.method, row.skill): row for row in rows}
    assert len(cells) == len(rows)
    for method in METHODS:
        assert {skill for of, skill in cells if of == method} >= {"fact", "absent", "quote", "recite", "quote_any"}
        total = sum(row.n for row in rows if row.method == method and row.skill != "all")
        assert cells[method, "all"].n == total
    for row in rows:
        assert row.prompt_tokens <= CONTEXT and row.texts <= row.n and row.ms_per_token
        assert (row.exact is None) == (row.skill == "all") and (row.f1 is None) == (row.skill != "list")
        assert row.exact_interval is None or row.exact_interval[0] <= (row.exact or 0) <= row.exact_interval[1]


def test_an_interrupt_leaves_the_rows_so_far(engine: Engine) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("  fact"):
            raise KeyboardInterrupt

    found: list[RecallRow] = []
    measured = recall.run_recall(engine, [512, 1024], ["streamingllm"], questions=1, seed=0, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        found.extend(measured)
    assert [(row.context, row.skill, row.n) for row in found] == [(512, "fact", 1), (512, "all", 1)]
