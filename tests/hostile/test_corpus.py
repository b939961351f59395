"""Hostile files: each opens or is refused in a line. A sample; the whole corpus is `launch.py test --long hostile`."""

from dataclasses import replace

import pytest

from tests.hostile.corpus import FORMATS, NAMES, HostileFile, corpus
from tests.hostile.fuzzing import PARSERS, fuzz
from tests.hostile.run import SMALL_BYTES, judge

FILES = list(corpus())
LARGE = (
    "bomb", "MB", "000", "without end", "never end", "far down", "one in the other", "beyond", "giant", "labels",
    "packed",
)  # fmt: skip
SMALL = [file for file in FILES if not any(word in file.what for word in LARGE)]
PLAIN = ("text", "markdown", "old office", "other")  # those that need no process
SAMPLE = [
    file for kind in FORMATS for file in [one for one in SMALL if one.format == kind][:: 8 if kind in PLAIN else 20]
]


SLOWEST = ("many headings, packed", "packed headings that are read")


def name_of(file: HostileFile) -> str:
    return f"{file.format}:{file.number}"


def test_the_corpus_has_500_files_and_is_the_same_every_time() -> None:
    assert len(FILES) >= 500 and {file.format for file in FILES} == set(FORMATS)
    again = {name_of(file): file for file in corpus()}
    assert [(file.what, file.name) for file in again.values()] == [(file.what, file.name) for file in FILES]
    assert all(again[name_of(file)].make() == file.make() for file in SMALL[::40])
    assert {file.name.rpartition(".")[0] or file.name for file in FILES} >= set(NAMES) - {"  "}


@pytest.mark.parametrize("file", SAMPLE, ids=name_of)
def test_a_hostile_file_opens_or_is_refused_in_a_line(file: HostileFile) -> None:
    ending, why, _ = judge(file)
    assert ending in ("opened", "refused"), f"{file.what}: {why}"


PACKED = [file for file in FILES if "packed" in file.what]


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=[pytest.mark.slow] if file.what in SLOWEST else [], id=file.what) for file in PACKED],
)
def test_a_packed_file_takes_little_time_outside_its_parser(file: HostileFile) -> None:
    content = file.make()
    assert len(content) < SMALL_BYTES
    ending, why, _ = judge(replace(file, make=lambda: content))
    assert ending == ("opened" if "read" in file.what else "refused"), why


@pytest.mark.parametrize("kind", list(PARSERS))
def test_no_damaged_file_makes_a_parser_raise_what_its_process_does_not_expect(kind: str) -> None:
    assert fuzz(kind, seconds=0.2, most_inputs=25) > 0


PAGE = b"<html><body><p>Words enough for a page.</p></body></html>"
GOOD = HostileFile("html", 0, "nothing wrong", "a.html", lambda: PAGE)


def test_a_page_without_any_title_in_a_file_without_a_name_has_one() -> None:
    assert judge(replace(GOOD, name="  .html"))[0] == "opened", "it raised StopIteration"


def test_what_cannot_be_shown_or_takes_much_time_of_this_program_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("tests.hostile.run.check", fail)
    assert judge(GOOD)[:2] == ("crashed", "KeyError: 'x'")
    monkeypatch.setattr("tests.hostile.run.MOST_OWN_SECONDS", 0.0)
    assert judge(GOOD)[0] == "hung"
