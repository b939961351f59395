"""The report of a race: the file's contents, its JSON, and that nothing of it reaches for the outside."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest

from app.runtime.trace import Race
from app.runtime.worker import EngineWorker
from app.ui.assets import CSS
from app.ui.race.report import Setting, report_html, report_json
from core.config import SamplingParams
from tests.app.fakes import MACHINE, FakeEngine, opened, write_book
from tests.app.ui.pages import EVIL
from tests.app.ui.race.conftest import PAIR, RaceOf, config, run

METHODS = ("autoregressive", "triforce", "h2o")


TEXTS = ("It was dark.", "It was dark.", "It was light.")


@pytest.fixture
def race(race_of: RaceOf) -> Race:
    return race_of(*TEXTS, configs=[config(method) for method in METHODS])


@pytest.fixture
def setting(engine: FakeEngine) -> Setting:
    return Setting(cast(Any, engine.info), MACHINE, {"python": "3.11", "torch": "2.11"})


def test_the_json_is_that_of_the_command_line_and_more(race: Race, setting: Setting) -> None:
    report = json.loads(json.dumps(report_json(race, setting)))
    assert {"model", "device", "dtype", "placement", "prompt_tokens", "prefill_seconds"} <= report.keys()
    assert list(report["methods"]) == list(METHODS) and report["speedup"] == 4
    triforce = report["methods"]["triforce"]
    assert triforce["text"] == "It was dark. " and triforce["new_tokens"] == 3 == len(triforce["token_ids"])
    assert triforce["acceptance"] == {"level1": 0.5, "level2": 0.75} and triforce["tokens_per_full_pass"] == 3
    assert report["equality"] == {"verdict": "identical", "first_divergence": None}
    assert list(report["equality_by_method"]) == ["triforce"], "a lossy lane is not judged"
    assert report["hardware"]["num_cores"] == 2 and report["versions"]["torch"] == "2.11"
    assert report["settings"] == {"max_new_tokens": 256, "seconds": None, "temperature": 0, "top_p": 1, "seed": 0}


def test_the_worst_verdict_is_the_race_s(setting: Setting, race_of: RaceOf) -> None:
    race = race_of(*TEXTS, configs=[*PAIR, config("draft")])
    equality = report_json(race, setting)["equality"]
    assert equality == {"verdict": "mismatch", "first_divergence": {"index": 2, "logit_gap": 1.25}}


def test_sampled_texts_are_not_comparable(setting: Setting, race_of: RaceOf) -> None:
    lively = SamplingParams(temperature=0.7)
    race = race_of(configs=[config(method, sampling=lively) for method in METHODS[:2]], seconds=0.2)
    report = report_json(race, setting)
    assert report["equality"]["verdict"] == "not_comparable" and report["settings"]["seconds"] == 0.2
    assert "temperature 0.7" in report_html(race, setting, CSS) and "not comparable" in report_html(race, setting, CSS)


class Closed(HTMLParser):
    """Every tag is closed in order; no attribute runs or fetches anything."""

    VOID = ("meta", "br", "rect", "line", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "iframe", "link", "object", "embed", "base", "form"), tag
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href", "action")], attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.VOID or self.open.pop() == tag, tag


def test_nothing_of_a_hostile_race_runs_and_nothing_is_fetched(
    worker: EngineWorker, engine: FakeEngine, setting: Setting, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path, name="a<script>.txt"))
    for _ in METHODS:
        engine.enqueue(f"{EVIL} </style></main> <script>alert(1)</script>")
    run(worker.race(session_id, f"{EVIL}</title>", [config(method) for method in METHODS]))
    race = worker.sessions.get(session_id).race
    assert race is not None
    html = report_html(race, setting, CSS)
    parser = Closed()
    parser.feed(html)
    assert parser.open == [] and "&lt;script&gt;" in html
    assert not re.search(r"https?:|//\w|url\(|@import", html.split("</style>")[0]), "styles name nothing outside"
