"""Two programs on one folder of conversations, and writes that fail: nothing that was written is lost."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import conversations as module
from app.conversation_merge import merge
from app.conversations import Conversations
from app.dialogue import ROOT, Dialogue
from tests.app.test_dialogue import a_dialogue, said

SECONDS = 30.0
APPEND = """
import sys
from pathlib import Path
from app.conversations import Conversations

folder, name, own, number = sys.argv[1:]
store = Conversations(Path(folder))
dialogue = store.open(name)
answer = dialogue.nodes[0].exchange
for count in range(int(number)):
    dialogue, node = dialogue.ask(dialogue.tip, f"{own} {count}")
    dialogue = dialogue.answer(node.id, answer)
    store.save(dialogue)
    if count % 10 == 0:
        store.flush()
store.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


@pytest.fixture
def program(folder: Path) -> Iterator[Callable[[], Conversations]]:
    """Another program on the same folder."""
    stores: list[Conversations] = []

    def start() -> Conversations:
        stores.append(Conversations(folder))
        return stores[-1]

    yield start
    for store in stores:
        store.close()


def saved(store: Conversations, dialogue: Dialogue) -> Dialogue:
    store.save(dialogue)
    assert store.flush(SECONDS)
    return dialogue


def questions(dialogue: Dialogue) -> list[str]:
    return sorted(node.question for node in dialogue.nodes)


def test_a_thousand_exchanges_of_two_processes_are_all_there(
    folder: Path, program: Callable[[], Conversations]
) -> None:
    name, root = saved(program(), a_dialogue("One?")).id, Path(__file__).resolve().parents[2]
    both = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(folder), name, own, "500"], cwd=root) for own in ("a", "b")
    ]
    assert [process.wait(SECONDS * 4) for process in both] == [0, 0]
    wanted = sorted(["One?", *(f"{own} {count}" for own in "ab" for count in range(500))])
    assert questions(program().open(name)) == wanted
    assert [file.name for file in folder.iterdir()] == [f"{name}.json"]


def test_what_the_other_program_removed_does_not_come_back(program: Callable[[], Conversations]) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?", "Two?"))
    here, there = one.open(base.id), two.open(base.id)
    two.without(there, there.path[1].id)
    assert two.flush(SECONDS)
    left, _ = said(here.show(here.path[0].id), "Instead of two?")
    saved(one, left)
    assert questions(program().open(base.id)) == ["Instead of two?", "One?"]
    saved(one, one.open(base.id).rename("Later"))
    assert questions(program().open(base.id)) == ["Instead of two?", "One?"], "nor with a later write"


def test_a_new_answer_keeps_the_questions_before_it(program: Callable[[], Conversations]) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?", "Two?", "Other?"))
    here = one.open(base.id)
    two.delete(base.id)
    new, _ = said(here.show(here.path[1].id), "Three?")
    saved(one, new)
    assert questions(program().open(base.id)) == ["One?", "Three?", "Two?"], "an answer is never lost"


def test_a_conversation_that_the_other_program_deleted_stays_deleted(
    folder: Path, program: Callable[[], Conversations]
) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?"))
    two.listing()
    two.delete(base.id)
    saved(one, base.rename("Once more"))
    assert list(folder.glob("*.json")) == []


def test_a_file_that_was_damaged_meanwhile_is_written_anew(folder: Path, program: Callable[[], Conversations]) -> None:
    one = program()
    base = saved(one, a_dialogue("One?"))
    (folder / f"{base.id}.json").write_text("{", encoding="utf-8")
    new, _ = said(base, "Two?")
    saved(one, new)
    assert questions(program().open(base.id)) == ["One?", "Two?"] and len(list(folder.glob("*.damaged"))) == 1


def test_titles_of_the_other_program_are_kept(program: Callable[[], Conversations]) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?"))
    saved(two, two.open(base.id).rename("Their title"))
    new, _ = said(base, "Two?")
    saved(one, new)
    assert program().open(base.id).title == "Their title"
    saved(one, one.open(base.id).rename("Our title"))
    assert program().open(base.id).title == "Our title"


Steps = st.lists(st.tuples(st.sampled_from(["ask", "remove"]), st.integers(0, 20)), max_size=6)


def walk(dialogue: Dialogue, steps: list[tuple[str, int]], who: str) -> tuple[Dialogue, frozenset[str]]:
    """A state that a program arrives at, and what it removed on the way."""
    removed: frozenset[str] = frozenset()
    for number, (step, where) in enumerate(steps):
        ids = [ROOT, *(node.id for node in dialogue.nodes)]
        if step == "ask":
            dialogue, _ = said(dialogue, f"{who} {number}", parent=ids[where % len(ids)])
        elif dialogue.nodes:
            left = dialogue.remove(ids[1:][where % len(ids[1:])])
            removed |= {node.id for node in dialogue.nodes} - {node.id for node in left.nodes}
            dialogue = left
    return dialogue, removed


@given(ours=Steps, theirs=Steps)
def test_a_merge_keeps_every_new_answer_and_drops_what_was_removed(
    ours: list[tuple[str, int]], theirs: list[tuple[str, int]]
) -> None:
    base = a_dialogue("One?", "Two?", "Three?")
    (mine, removed), (disk, taken) = walk(base, ours, "we"), walk(base, theirs, "they")
    merged = merge(mine, base, disk, removed)
    known = {node.id for node in base.nodes}
    ids = [node.id for node in merged.nodes]
    assert len(ids) == len(set(ids)) and {node.id for node in mine.nodes} - known <= set(ids)
    for number, node in enumerate(merged.nodes):
        assert node.parent in {ROOT, *ids[:number]}, "a node without the one before it"
    for node in disk.nodes:
        path = {one.id for one in disk.path_to(node.id)}
        assert node.id in ids or path & removed, "theirs is lost only with what we removed"
    needed = {one.id for node in mine.nodes if node.id not in known for one in mine.path_to(node.id)}
    assert not (removed | taken) & set(ids) - needed
    assert merged.head == ROOT or merged.find(merged.head) is not None
    assert merge(mine, mine, mine, removed) == mine


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(28, "No space left")])
def test_a_write_that_fails_once_is_tried_again_at_once(
    error: OSError, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, replace, failures = program(), os.replace, [error]

    def fails_once(source: Any, target: Any) -> None:
        if failures:
            raise failures.pop()
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails_once)
    base = saved(store, a_dialogue("One?"))
    assert program().open(base.id) == base and store.listing().notices == ()


def test_a_write_that_fails_for_long_comes_back_by_itself(
    program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tried, right = program(), threading.Event(), threading.Event()
    write = Conversations._write

    def fails(self: Conversations, dialogue: Dialogue) -> None:
        if not right.is_set():
            tried.set()
            raise MemoryError
        write(self, dialogue)

    monkeypatch.setattr(module, "LATER_SECONDS", 0.05)
    monkeypatch.setattr(Conversations, "_write", fails)
    base = a_dialogue("One?")
    store.save(base)
    assert tried.wait(SECONDS) and store.flush(SECONDS)
    assert "MemoryError" in store.listing().notices[0]
    right.set()
    wait_for(lambda: store.listing().notices == ())
    assert program().open(base.id) == base


@pytest.mark.parametrize("works", [True, False])
def test_what_failed_is_tried_once_more_at_the_end_and_told(
    works: bool,
    program: Callable[[], Conversations],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, write = program(), Conversations._write

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "TRY_AGAIN_SECONDS", ())
    monkeypatch.setattr(Conversations, "_write", fails)
    base = saved(store, a_dialogue("One?"))
    if works:
        monkeypatch.setattr(Conversations, "_write", write)
    store.close()
    assert ("1 conversation could not be saved (No space left on device)" in caplog.text) is not works
    assert bool(program().listing().summaries) is works and base.nodes


def wait_for(done: Callable[[], bool]) -> None:
    for _ in range(int(SECONDS * 20)):
        if done():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it never came")
