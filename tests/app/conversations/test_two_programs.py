"""Two programs on one folder of conversations, and writes that fail: nothing that was written is lost."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversations import store as module
from app.conversations.store import ConversationGone, Conversations
from app.conversations.tree import ROOT, Dialogue
from core.generation.events import Finished
from tests.app.conversations.test_tree import a_dialogue, exchange, said

SECONDS = 30.0
APPEND = """
import sys
from pathlib import Path
from app.conversations.store import Conversations

folder, name, own, number = sys.argv[1:]
store = Conversations(Path(folder))
dialogue = store.open(name)
answer = dialogue.nodes[0].exchange
for count in range(int(number)):
    dialogue, node = dialogue.ask(dialogue.tip, f"{own} {count}")
    dialogue = dialogue.answer(node.id, answer)
    store.save(dialogue)
    if count % 100 == 0:
        store.listing()
    if count % 10 == 0:
        store.flush()
store.close()
"""


@pytest.fixture(autouse=True, params=[module.MOST_IN_MEMORY, 0], ids=["in memory", "on disk"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Each test is run once more by programs that keep in memory only what is not written yet."""
    monkeypatch.setattr(module, "MOST_IN_MEMORY", request.param)
    return int(request.param)


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
    name, root = saved(program(), a_dialogue("One?")).id, Path(__file__).resolve().parents[3]
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
    assert two.flush(SECONDS) and one.listing().summaries
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
    assert two.flush(SECONDS) and one.listing().summaries == ()
    new, _ = said(here.show(here.path[1].id), "Three?")
    saved(one, new)
    assert questions(program().open(base.id)) == ["One?", "Three?", "Two?"], "an answer is never lost"


def test_a_conversation_that_the_other_program_deleted_stays_deleted(
    folder: Path, program: Callable[[], Conversations]
) -> None:
    one, two, three = program(), program(), program()
    base = saved(one, a_dialogue("One?"))
    opened = three.open(base.id)
    assert len(two.listing().summaries) == 1
    two.delete(base.id)
    assert two.flush(SECONDS) and one.listing().summaries == ()
    saved(one, base.rename("Once more"))
    saved(three, opened.rename("And again"))
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
    assert [summary.title for summary in one.listing().summaries] == ["Their title"]
    new, _ = said(base, "Two?")
    saved(one, new)
    assert program().open(base.id).title == "Their title"
    saved(one, one.open(base.id).rename("Our title"))
    assert program().open(base.id).title == "Our title"


# -------------------- what the list, other tabs and removals do to it


def answers(dialogue: Dialogue) -> dict[str, str]:
    return {node.question: node.exchange.finished.text if node.exchange else "" for node in dialogue.nodes}


def continued(dialogue: Dialogue, text: str) -> Dialogue:
    """The shown answer, longer."""
    node = dialogue.path[-1]
    return dialogue.answer(node.id, exchange(node.question, text))


@pytest.mark.parametrize("look", ["listing", "open"])
@pytest.mark.parametrize("what", ["remove", "rename", "continue"])
def test_looking_does_not_undo_what_the_other_program_did(
    what: str, look: str, program: Callable[[], Conversations]
) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?", "Two?").rename("Before"))
    there = two.open(base.id)
    if what == "remove":
        two.without(there, there.path[1].id)
    else:
        two.save(there.rename("Theirs") if what == "rename" else continued(there, "Yes, and more."))
    assert two.flush(SECONDS)
    one.listing() if look == "listing" else one.open(base.id)
    saved(one, said(base.show(base.path[0].id), "Instead?")[0])
    for store in (one, two, program()):
        after = store.open(base.id)
        assert questions(after) == ["Instead?", "One?", *(["Two?"] if what != "remove" else [])]
        assert after.title == ("Theirs" if what == "rename" else "Before")
        assert what != "continue" or answers(after)["Two?"] == "Yes, and more."


@pytest.mark.parametrize("what", ["rename", "continue", "remove"])
def test_an_older_tab_undoes_nothing(what: str, folder: Path, program: Callable[[], Conversations]) -> None:
    for store in (program(), Conversations()):
        tab_a = tab_b = saved(store, a_dialogue("One?", "Two?").rename("Before"))
        if what == "remove":
            tab_a = store.without(tab_a, tab_a.path[1].id)
        else:
            tab_a = saved(store, tab_a.rename("Later") if what == "rename" else continued(tab_a, "Yes, and more."))
        tab_b, _ = said(tab_b, "More?", parent=tab_b.path[0].id)
        saved(store, tab_b)
        for reader in (store, program()) if store.folder else (store,):
            after = reader.open(tab_b.id)
            assert questions(after) == ["More?", "One?", *(["Two?"] if what != "remove" else [])]
            assert after.title == ("Later" if what == "rename" else "Before")
            assert what != "continue" or answers(after)["Two?"] == "Yes, and more."
        saved(store, tab_b.rename("Last"))
        assert store.open(tab_b.id).title == "Last", "an older tab can still change it"


def test_removing_all_that_one_program_knows_keeps_what_another_one_wrote(
    folder: Path, program: Callable[[], Conversations]
) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?"))
    saved(two, said(two.open(base.id), "Theirs?", parent=ROOT)[0])
    one.without(base, base.path[0].id)
    assert one.flush(SECONDS) and questions(program().open(base.id)) == ["Theirs?"]
    two.without(two.open(base.id), two.open(base.id).nodes[-1].id)
    assert two.flush(SECONDS) and list(folder.iterdir()) == []


def test_what_another_tab_could_not_write_yet_outlives_a_removal(
    program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = program()
    base = saved(store, a_dialogue("One?", "Two?"))
    monkeypatch.setattr(module, "TRY_AGAIN_SECONDS", ())
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", full)
        saved(store, said(base, "Of the first tab?", parent=base.path[0].id)[0])
        store.without(base, base.path[1].id)
        assert store.flush(SECONDS) and "No space left" in store.listing().notices[0]
    saved(store, a_dialogue("Other?"))
    assert store.flush(SECONDS) and questions(program().open(base.id)) == ["Of the first tab?", "One?"]


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_what_was_not_used_lately_is_on_disk_alone(
    program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_IN_MEMORY", 3)
    store = program()
    made = [saved(store, a_dialogue("One?")) for _ in range(9)]
    assert list(store._latest) == [one.id for one in made[-3:]]
    store.open(made[-3].id)
    saved(store, a_dialogue("One?"))
    assert made[-3].id in store._latest and made[-2].id not in store._latest, "the least used one goes"
    other = program()
    saved(other, said(other.open(made[0].id), "There?")[0])
    saved(store, said(made[0], "In an older tab?")[0])
    assert questions(store.open(made[0].id)) == ["In an older tab?", "One?", "There?"]


def test_the_list_keeps_no_answer_in_memory(program: Callable[[], Conversations]) -> None:
    store, other = program(), program()
    for number in range(5):
        saved(other, a_dialogue(f"{number}?"))

    def in_memory() -> int:
        gc.collect()
        return sum(isinstance(one, Finished) for one in gc.get_objects())

    before = in_memory()
    assert len(store.listing().summaries) == 5 and in_memory() == before


def test_what_was_damaged_once_can_be_deleted_by_another_program(
    folder: Path, program: Callable[[], Conversations]
) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?"))
    (folder / f"{base.id}.json").write_text("{", encoding="utf-8")
    longer = saved(one, said(base, "Two?")[0])
    assert len(list(folder.glob("*.damaged"))) == 1
    two.delete(base.id)
    assert two.flush(SECONDS)
    saved(one, longer.rename("Once more"))
    assert list(folder.glob("*.json")) == []


def test_what_another_program_set_aside_is_written_anew(folder: Path, program: Callable[[], Conversations]) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?", "Other?"))
    (folder / f"{base.id}.json").write_text("{", encoding="utf-8")
    assert two.listing().summaries == ()
    saved(one, said(base.show(base.path[0].id), "Two?")[0])
    assert questions(program().open(base.id)) == ["One?", "Other?", "Two?"]


def test_a_damaged_file_that_cannot_be_set_aside_stays(
    folder: Path, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = program()
    base = saved(store, a_dialogue("One?"))
    file = folder / f"{base.id}.json"
    file.write_text("{", encoding="utf-8")
    monkeypatch.setattr(module, "TRY_AGAIN_SECONDS", ())
    move = os.replace
    with monkeypatch.context() as broken:
        broken.setattr(
            os, "replace", lambda source, target: (full if target.suffix == ".damaged" else move)(source, target)
        )
        saved(store, base.rename("Once more"))
        assert file.read_text(encoding="utf-8") == "{" and "No space left" in store.listing().notices[0]
    store.close()
    assert program().open(base.id).title == "Once more" and len(list(folder.glob("*.damaged"))) == 1


# -------------------- deleting, and the end


@pytest.fixture
def busy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileLock]:
    """What another program holds while it writes."""
    monkeypatch.setattr(module, "TRY_AGAIN_SECONDS", ())
    monkeypatch.setattr(module, "LATER_SECONDS", 0.05)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    yield lock
    lock.release()


def test_a_deletion_waits_for_no_other_program_and_nobody_waits_for_it(
    busy: FileLock, folder: Path, program: Callable[[], Conversations]
) -> None:
    store, done = program(), threading.Event()
    base = saved(store, a_dialogue("One?"))
    busy.acquire()

    def act() -> None:
        store.delete(base.id)
        store.save(said(base, "An answer that was still being written")[0])
        store.save(a_dialogue("Other?"))
        assert [one.title for one in store.listing().summaries] == ["Other?"]
        done.set()

    threading.Thread(target=act, daemon=True).start()
    assert done.wait(module.LOCK_SECONDS / 2) and (folder / f"{base.id}.json").exists(), "the other one still writes"
    busy.release()
    assert store.flush(SECONDS)
    assert [one.title for one in program().listing().summaries] == ["Other?"]


def test_what_was_deleted_here_stays_out_of_this_program(program: Callable[[], Conversations]) -> None:
    one, two = program(), program()
    base = saved(one, a_dialogue("One?"))
    there = two.open(base.id)
    one.delete(base.id)
    assert one.flush(SECONDS)
    saved(two, said(there, "Two?")[0])
    assert questions(program().open(base.id)) == ["One?", "Two?"] and one.listing().summaries == ()
    with pytest.raises(ConversationGone):
        one.open(base.id)


def test_a_deletion_that_fails_is_told_and_tried_again(
    folder: Path, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch, busy: FileLock
) -> None:
    store = program()
    base = saved(store, a_dialogue("One?"))

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", refused)
        store.delete(base.id)
        wait_for(lambda: store.listing().notices != ())
        listing = store.listing()
        assert listing.summaries == () and len(listing.notices) == 1
        assert "1 deleted conversation is still on the disk (Permission denied)" in listing.notices[0]
        with pytest.raises(ConversationGone):
            store.open(base.id)
    wait_for(lambda: list(folder.iterdir()) == [])
    wait_for(lambda: store.listing().notices == ())


def test_a_file_that_is_being_written_while_it_is_deleted_does_not_come_back(
    folder: Path, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, writing, go_on, replace = program(), threading.Event(), threading.Event(), os.replace

    def slow(source: Any, target: Any) -> None:
        writing.set()
        assert go_on.wait(SECONDS)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    monkeypatch.setattr(module, "MOST_WAIT_SECONDS", 0.01)
    base = a_dialogue("One?")
    store.save(base)
    assert writing.wait(SECONDS)
    store.delete(base.id)
    go_on.set()
    assert store.flush(SECONDS) and list(folder.iterdir()) == [] and store.listing().summaries == ()


@pytest.mark.parametrize("what", ["saved", "deleted"])
def test_the_end_tells_what_it_could_not_wait_for(
    what: str,
    busy: FileLock,
    program: Callable[[], Conversations],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = program()
    base = saved(store, a_dialogue("One?"))
    monkeypatch.setattr(module, "MOST_WAIT_SECONDS", 0.1)
    busy.acquire()
    store.save(base.rename("Once more")) if what == "saved" else store.delete(base.id)
    store.close()
    assert f"1 conversation could not be {what}" in caplog.text


def test_once_closed_nothing_is_tried_over_and_over(
    program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tries = program(), []

    def fails(*_: Any) -> None:
        tries.append(1)
        store._closed = True  # it ends while this is tried
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    saved(store, a_dialogue("One?"))
    assert len(tries) <= 2, "and once more at the end"


# -------------------- any two states join

Steps = st.lists(st.tuples(st.sampled_from(["ask", "continue", "rename", "remove"]), st.integers(0, 20)), max_size=6)


def walk(dialogue: Dialogue, steps: list[tuple[str, int]], who: str) -> Dialogue:
    """A state that a page arrives at."""
    for number, (step, where) in enumerate(steps):
        ids = [node.id for node in dialogue.nodes]
        if step == "ask":
            parents = [ROOT, *ids]
            dialogue, _ = said(dialogue, f"{who} {number}", parent=parents[where % len(parents)])
        elif step == "rename":
            dialogue = dialogue.rename(f"{who} {number}")
        elif ids:
            at = ids[where % len(ids)]
            longer = exchange("", f"{who} goes on {number}")
            dialogue = dialogue.answer(at, longer) if step == "continue" else dialogue.remove(at)
    return dialogue


def content(dialogue: Dialogue) -> object:
    """All but the order of nodes, and what is shown; of a removed node that is needed, the place alone."""
    nodes = {node.id: node if node.id not in dialogue.removed else node.parent for node in dialogue.nodes}
    return nodes, dialogue.title, dialogue.titled, dialogue.removed


@settings(max_examples=100, deadline=None)
@given(ours=Steps, theirs=Steps, others=Steps)
def test_states_join_in_any_order_and_lose_no_new_answer(
    ours: list[tuple[str, int]], theirs: list[tuple[str, int]], others: list[tuple[str, int]]
) -> None:
    base = a_dialogue("One?", "Two?", "Three?")
    one, two, three = walk(base, ours, "we"), walk(base, theirs, "they"), walk(base, others, "others")
    joined = one.joined(two)
    assert content(joined) == content(two.joined(one)) == content(joined.joined(two)) == content(joined.joined(base))
    assert content(joined.joined(three)) == content(one.joined(two.joined(three)))
    assert one.joined(one) == one
    ids = [node.id for node in joined.nodes]
    assert len(ids) == len(set(ids)) and (joined.head == ROOT or joined.head in ids)
    for number, node in enumerate(joined.nodes):
        assert node.parent in {ROOT, *ids[:number]}, "a node without the one before it"
    removed = one.removed | two.removed
    for state in (one, two):
        assert {node.id for node in state.nodes} - removed <= set(ids), "nothing is lost but what was removed"
    needed = {above.id for node in joined.nodes if node.id not in removed for above in joined.path_to(node.id)}
    assert not removed & set(ids) - needed
    for node in joined.nodes:
        assert node.answered == max(same.answered for same in (*one.nodes, *two.nodes) if same.id == node.id)
    assert joined.titled == max(one.titled, two.titled) and joined.title in (one.title, two.title)


def test_a_clock_that_was_set_back_hides_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    early = a_dialogue("One?").rename("Before")
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    late = continued(early.rename("After"), "Yes, and more.")
    for joined in (late.joined(early), early.joined(late)):
        assert joined.title == "After" and answers(joined)["One?"] == "Yes, and more."


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

    def fails(self: Conversations, dialogue_id: str) -> None:
        if not right.is_set():
            tried.set()
            raise MemoryError
        write(self, dialogue_id)

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
