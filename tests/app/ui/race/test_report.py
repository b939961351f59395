"""The figures of a race as JSON."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from app.runtime.race_job import race_report
from app.runtime.trace import Race
from core.config import SamplingParams
from tests.app.fakes import MACHINE, FakeEngine
from tests.app.ui.race.conftest import PAIR, RaceOf, config

Figures = Callable[[Race], dict[str, Any]]
METHODS = ("autoregressive", "triforce", "h2o")


TEXTS = ("It was dark.", "It was dark.", "It was light.")


@pytest.fixture
def race(race_of: RaceOf) -> Race:
    return race_of(*TEXTS, configs=[config(method) for method in METHODS])


@pytest.fixture
def figures(engine: FakeEngine) -> Figures:
    return lambda race: race_report(race, cast(Any, engine.info), MACHINE)


def test_the_json_is_that_of_the_command_line_and_more(race: Race, figures: Figures) -> None:
    report = json.loads(json.dumps(figures(race)))
    assert {"model", "device", "dtype", "placement", "prompt_tokens", "prefill_seconds"} <= report.keys()
    assert list(report["methods"]) == list(METHODS) and report["speedup"] == 4
    triforce = report["methods"]["triforce"]
    assert triforce["text"] == "It was dark. " and triforce["new_tokens"] == 3 == len(triforce["token_ids"])
    assert triforce["acceptance"] == {"level1": 0.5, "level2": 0.75} and triforce["tokens_per_full_pass"] == 3
    assert report["equality"] == {"verdict": "identical", "first_divergence": None}
    assert list(report["equality_by_method"]) == ["triforce"], "a lossy lane is not judged"
    assert report["hardware"]["num_cores"] == 2 and "torch" in report["versions"]
    assert report["settings"] == {"max_new_tokens": 256, "seconds": None, "temperature": 0, "top_p": 1, "seed": 0}


def test_the_worst_verdict_is_the_race_s(figures: Figures, race_of: RaceOf) -> None:
    race = race_of(*TEXTS, configs=[*PAIR, config("draft")])
    equality = figures(race)["equality"]
    assert equality == {"verdict": "mismatch", "first_divergence": {"index": 2, "logit_gap": 1.25}}


def test_sampled_texts_are_not_comparable(figures: Figures, race_of: RaceOf) -> None:
    lively = SamplingParams(temperature=0.7)
    race = race_of(configs=[config(method, sampling=lively) for method in METHODS[:2]], seconds=0.2)
    report = figures(race)
    assert report["equality"]["verdict"] == "not_comparable" and report["settings"]["seconds"] == 0.2
    assert report["settings"]["temperature"] == 0.7
