"""The programs of endurance find what is lost or damaged, and a short run of each finds nothing."""

import importlib
import inspect
import random
from pathlib import Path

import pytest

from app.conversations.database import NAME
from app.conversations.store import Conversations
from tests import long
from tests.app.conversations.test_tree import a_dialogue
from tests.endurance import kills, siege, soak
from tests.endurance.kills import Found, look
from tests.endurance.person import Ledger
from tests.endurance.soak import Sample, Soak


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Conversations(tmp_path / "conversations")
    store.save(a_dialogue("Told and kept?"))
    store.close()
    return tmp_path


def seen(folder: Path, *told: str, ago: float = 5.0) -> Found:
    found = Found()
    look(folder, Ledger(answered=dict.fromkeys(told, 100.0 - ago)), 100.0, found)
    return found


def test_an_answer_that_is_nowhere_is_lost(folder: Path) -> None:
    assert seen(folder, "Told and kept?").failures == []
    assert seen(folder, "Told and kept?", "Told and gone?").lost == ["Told and gone?"]
    assert seen(folder, "Told just now?", ago=0.1).lost == [], "it was on its way"


def test_damaged_files_are_found(folder: Path) -> None:
    (folder / "conversations" / NAME).write_bytes(b"no database" * 1000)
    (folder / "shelf").mkdir()
    (folder / "shelf" / "x.book.safetensors").write_bytes(b"no book")
    assert len(seen(folder).damaged) == 2


@pytest.mark.parametrize(("last", "found"), [(1000, 0), (1019, 0), (1021, 1)])
def test_growth_is_found(last: int, found: int) -> None:
    samples = [Sample(float(second), (1000 if second < 80 else last) << 20, 9, 9) for second in range(101)]
    assert len(Soak(1, 1.0, samples).failures(Ledger(), Found())) == found


def test_one_suite_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str]]] = []

    def note(name: str, arguments: list[str]) -> int:
        ran.append((name, list(arguments)))
        return int(name == "kills")

    monkeypatch.setattr(long, "run", note)
    assert long.main(["soak", "--minutes", "1"]) == 0 and long.main(["--case", "3"]) == 0 and long.main([]) == 1
    assert ran[:2] == [("soak", ["--minutes", "1"]), ("exactness", ["--case", "3"])]
    assert [name for name, _ in ran[2:]] == list(long.SUITES)
    mains = [importlib.import_module(module).main for module, _ in long.SUITES.values()]
    assert [len(inspect.signature(main).parameters) for main in mains] == [1] * len(mains), "each takes its arguments"


@pytest.mark.slow
def test_a_few_kills_lose_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1000)
    found = kills.run(3, tmp_path / "data", seed=seed, minutes=5)
    assert found.kills == 3 and found.failures == [], f"seed {seed}"


@pytest.mark.slow
def test_a_minute_of_use_loses_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1000)
    run, ledger, found = soak.run(1.0, 4, seed, tmp_path, filled=False)
    assert (run.crashes, ledger.hangs, found.failures) == ([], [], []), f"seed {seed}"
    assert sum(ledger.acts.values()) > 20


@pytest.mark.slow
def test_a_short_siege_lets_nobody_in(tmp_path: Path) -> None:
    found = siege.run(50, 1, tmp_path)
    assert set(found.answers) == {"401"} and len(found.quiet) == len(found.besieged) == siege.QUESTIONS
