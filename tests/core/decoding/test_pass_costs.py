from pathlib import Path

import pytest

from core.config import GenerationConfig
from core.decoding import pace, pass_costs
from core.decoding.pass_costs import Seconds, kept_costs
from core.decoding.speculative import SampledModel
from tests.core.toys import random_prompt, tiny_engine


def test_costs_are_measured_once_for_each_length_and_survive_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def costs(length: int, took: float, model: str = "full", about: str = "a model") -> float:
        def measure() -> Seconds:
            asked.append(took)
            return {1: took, 3: 2 * took}

        return kept_costs(tmp_path, about, model, length, measure)[1]

    assert costs(1000, 1.0) == costs(1010, 2.0) == 1.0, "lengths that are nearly the same share"
    assert costs(2000, 3.0) == 3.0 and costs(1000, 4.0, model="draft") == 4.0 and costs(1000, 5.0, about="other") == 5.0
    monkeypatch.setattr(pass_costs, "_known", {})  # another process
    assert costs(1000, 6.0) == 1.0 and asked == [1.0, 3.0, 4.0, 5.0]


def test_more_rows_never_cost_less(tmp_path: Path) -> None:
    assert kept_costs(tmp_path, "a", "full", 8, lambda: {9: 5.0, 1: 2.0, 3: 1.0}) == {1: 2.0, 3: 2.0, 9: 5.0}


@pytest.mark.parametrize("damaged", ["", "[]", '{"full 12": 3}', '{"full 12": {"x": 1}}'])
def test_a_damaged_file_and_a_folder_that_cannot_be_written_do_not_matter(
    tmp_path: Path, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_costs(tmp_path, "a", "full", 8, lambda: {1: 1.0}) == {1: 1.0}
    (file,) = tmp_path.glob("*.json")
    file.write_text(damaged, encoding="utf-8")
    monkeypatch.setattr(pass_costs, "_known", {})
    assert kept_costs(tmp_path, "a", "full", 8, lambda: {1: 2.0}) == {1: 2.0}
    (tmp_path / "file").touch()
    assert kept_costs(tmp_path / "file", "a", "full", 8, lambda: {1: 3.0}) == {1: 3.0}


@pytest.mark.parametrize("method", ["retrieval", "draft"])
def test_passes_are_timed_as_rounds_compute_them(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification counts what it attends to where a retrieval cache guesses, and nowhere else."""
    engine, counted = tiny_engine(), set()
    timed = SampledModel.time

    def time(model: SampledModel, rows: int) -> float:
        if model.name == "full":
            counted.add((rows > 1, engine.full_cache.votes.wanted))
        return timed(model, rows)

    monkeypatch.setattr(SampledModel, "time", time)
    monkeypatch.setattr(pace, "kept_costs", lambda folder, about, model, length, measure: measure())
    list(engine.generate(random_prompt(200), GenerationConfig(method=method, max_new_tokens=1)))
    assert counted == {(False, False), (True, method == "retrieval")}
    assert not engine.full_cache.votes.wanted
