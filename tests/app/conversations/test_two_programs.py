"""Two programs on one folder of conversations, and writes that fail: nothing that was written is lost."""

import gc
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.conversations import database
from app.conversations import store as module
from app.conversations.database import NAME
from app.conversations.store import ConversationGone, Conversations
from app.conversations.tree import Dialogue
from core.generation.events import Finished
from tests.app.conversations.on_disk import LIMIT, refuse, saved, text_of
from tests.app.conversations.test_tree import a_dialogue, exchange, said
from tests.app.fakes import SECONDS, wait_for

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
    if count % 20 == 0:
        store.listing()
    if count % 10 == 0:
        store.flush()
store.close()
"""


@pytest.fixture(autouse=True, params=[False, True], ids=["wal", "network"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each test is run once more as on a network file system, without a write-ahead log."""
    monkeypatch.setattr(database, "on_network", lambda _: request.param)
    return bool(request.param)


def questions(dialogue: Dialogue) -> list[str]:
    return sorted(node.question for node in dialogue.nodes)


def test_all_exchanges_of_two_processes_are_there(folder: Path, program: Callable[[], Conversations]) -> None:
    name, root = saved(program(), a_dialogue("One?")).id, Path(__file__).resolve().parents[3]
    both = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(folder), name, own, "60"], cwd=root) for own in ("a", "b")
    ]
    assert [process.wait(SECONDS * 4) for process in both] == [0, 0]
    wanted = sorted(["One?", *(f"{own} {count}" for own in "ab" for count in range(60))])
    assert questions(program().open(name)) == wanted


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
    assert program().listing().summaries == () and text_of(folder).isdisjoint({"One?", "Once more"})


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
        two.save(there.remove(there.path[1].id))
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
            tab_a = saved(store, tab_a.remove(tab_a.path[1].id))
        else:
            tab_a = saved(store, tab_a.rename("Later") if what == "rename" else continued(tab_a, "Yes, and more."))
        tab_b, _ = said(tab_b, "More?", parent=tab_b.path[0].id)
        saved(store, tab_b)
        for reader in (store, program()) if store._disk else (store,):
            after = reader.open(tab_b.id)
            assert questions(after) == ["More?", "One?", *(["Two?"] if what != "remove" else [])]
            assert after.title == ("Later" if what == "rename" else "Before")
            assert what != "continue" or answers(after)["Two?"] == "Yes, and more."
        saved(store, tab_b.rename("Last"))
        assert store.open(tab_b.id).title == "Last", "an older tab can still change it"


def test_what_another_tab_could_not_write_yet_outlives_a_removal(program: Callable[[], Conversations]) -> None:
    store = program()
    base = saved(store, a_dialogue("One?", "Two?"))
    refuse(store)
    saved(store, said(base, "Of the first tab?", "long " * 2000, parent=base.path[0].id)[0])
    saved(store, base.remove(base.path[1].id))
    assert "disk is full" in store.listing().notices[0]
    assert questions(store.open(base.id)) == ["Of the first tab?", "One?"], "and it is shown meanwhile"
    refuse(store, LIMIT)
    saved(store, a_dialogue("Other?"))
    assert questions(program().open(base.id)) == ["Of the first tab?", "One?"] and store.listing().notices == ()


def test_the_list_keeps_no_answer_in_memory(program: Callable[[], Conversations]) -> None:
    store, other = program(), program()
    for number in range(5):
        saved(other, a_dialogue(f"{number}?"))

    def in_memory() -> int:
        gc.collect()
        return sum(isinstance(one, Finished) for one in gc.get_objects())

    before = in_memory()
    assert len(store.listing().summaries) == 5 and in_memory() == before


# -------------------- deleting, and the end


@pytest.fixture
def busy(
    folder: Path, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> Iterator[sqlite3.Connection]:
    """Another program in the middle of a write; `rollback` ends it."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    monkeypatch.setattr(module, "LATER_SECONDS", 0.05)
    program().close()
    with closing(sqlite3.connect(folder / NAME, isolation_level=None, check_same_thread=False)) as other:
        yield other


def test_a_deletion_waits_for_no_other_program_and_nobody_waits_for_it(
    busy: sqlite3.Connection, program: Callable[[], Conversations]
) -> None:
    store, done = program(), threading.Event()
    base = saved(store, a_dialogue("One?"))
    busy.execute("BEGIN IMMEDIATE")

    def act() -> None:
        store.delete(base.id)
        store.save(said(base, "An answer that was still being written")[0])
        store.save(a_dialogue("Other?"))
        assert [one.title for one in store.listing().summaries] == ["Other?"]
        done.set()

    threading.Thread(target=act, daemon=True).start()
    assert done.wait(SECONDS)
    wait_for(lambda: "1 deleted conversation is still on the disk (database is locked)" in str(store.listing().notices))
    with pytest.raises(ConversationGone):
        store.open(base.id)
    busy.rollback()
    wait_for(lambda: store.listing().notices == ())
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


@pytest.mark.parametrize("what", ["saved", "deleted"])
def test_the_end_tells_what_it_could_not_wait_for(
    what: str, busy: sqlite3.Connection, program: Callable[[], Conversations], caplog: pytest.LogCaptureFixture
) -> None:
    store = program()
    base = saved(store, a_dialogue("One?"))
    busy.execute("BEGIN IMMEDIATE")
    store.save(base.rename("Once more")) if what == "saved" else store.delete(base.id)
    store.close()
    assert f"1 conversation could not be {what} (database is locked)" in caplog.text


@pytest.mark.parametrize(("pragma", "reason"), [("max_page_count = 1", "disk is full"), ("query_only = 1", "readonly")])
def test_what_failed_is_shown_and_written_by_itself_later_or_at_the_end(
    pragma: str, reason: str, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LATER_SECONDS", 0.05)
    store = program()
    for ends in (False, True):
        old = saved(store, a_dialogue("One?"))
        refuse(store, pragma)
        monkeypatch.setattr(module, "LATER_SECONDS", SECONDS if ends else 0.05)
        new = saved(store, said(old, "Two? " * 2000)[0])
        wait_for(lambda: len(store.listing().notices) == 1)
        assert reason in store.listing().notices[0] and "Make room" in store.listing().notices[0]
        assert store.open(old.id) == new and program().open(old.id) == old
        refuse(store, LIMIT if "page" in pragma else "query_only = 0")
        if ends:
            store.close()
        else:
            wait_for(lambda: store.listing().notices == ())
        assert program().open(old.id) == new
