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
from tests.endurance import crowd, kills, siege, soak
from tests.endurance.kills import Found
from tests.endurance.person import Ledger
from tests.endurance.soak import Sample, Soak


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Conversations(tmp_path / "conversations")
    store.save(a_dialogue("Told and kept?"))
    store.close()
    return tmp_path


def faults(folder: Path, *told: str, ago: float = 5.0) -> list[str]:
    found = Found()
    found.look(folder, Ledger(answered=dict.fromkeys(told, 100.0 - ago)), 100.0)
    return [*found.faults]


def test_an_answer_that_is_nowhere_is_lost_and_one_in_two_places_doubled(folder: Path) -> None:
    assert faults(folder, "Told and kept?") == []
    assert faults(folder, "Told and kept?", "Told and gone?") == ["lost: Told and gone?"]
    assert faults(folder, "Told just now?", ago=0.1) == [], "it was on its way"
    store = Conversations(folder / "conversations")
    store.save(a_dialogue("Told and kept?"))
    store.close()
    assert faults(folder) == ["doubled: Told and kept?"]


def test_damaged_files_are_found(folder: Path) -> None:
    (folder / "conversations" / NAME).write_bytes(b"no database" * 1000)
    (folder / "shelf").mkdir()
    (folder / "shelf" / "x.book.safetensors").write_bytes(b"no book")
    assert [fault.partition(":")[0] for fault in faults(folder)] == ["damaged", "damaged"]


@pytest.mark.parametrize(
    ("mib", "threads", "found"), [(1000, 9, ""), (1019, 17, ""), (1021, 9, "memory"), (1000, 18, "9 more threads")]
)
def test_growth_is_found(mib: int, threads: int, found: str) -> None:
    first, last = (1000 << 20, 9, 9), (mib << 20, threads, 9)
    samples = [Sample(float(second), *(first if second < 80 else last)) for second in range(101)]
    told = Soak(samples).growths()
    assert bool(told) == bool(found) and all(found in line for line in told)


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
    found, during = kills.run(3, tmp_path / "data", seed=seed, minutes=5)
    assert during.total() == 3 and not found.faults, f"seed {seed}"


@pytest.mark.slow
def test_a_minute_of_use_loses_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1000)
    run, ledger = soak.run(1.0, 4, seed, tmp_path, filled=False)
    assert run.faults == [] and ledger.acts.total() > 20, f"seed {seed}"


@pytest.mark.slow
def test_a_small_crowd_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert crowd.main(["--tabs", "10", "--files", "5"]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_a_short_siege_lets_nobody_in(tmp_path: Path) -> None:
    found = siege.run(50, 1, tmp_path)
    assert set(found.answers) == {"401"} and len(found.quiet) == len(found.besieged) == siege.QUESTIONS
