"""Two programs and their tabs on one folder of conversations, and writes that fail: nothing is lost."""

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversations import database
from app.conversations import store as module
from app.conversations.database import NAME
from app.conversations.store import ConversationGone, Conversations
from app.conversations.tree import ROOT, Dialogue, Node, sendable
from tests.app.conversations.on_disk import LIMIT, refuse, saved, text_of
from tests.app.conversations.test_tree import EVIL, a_dialogue, exchange, said
from tests.app.fakes import SECONDS, wait_for

# -------------------- what the database has of several states


def content(dialogue: Dialogue) -> object:
    """All but the order of nodes, and what is shown."""
    return {node.id: node for node in dialogue.nodes}, dialogue.title, dialogue.titled, dialogue.removed


def by_definition(states: Sequence[Dialogue], removed: frozenset[str], named: Sequence[Dialogue]) -> object:
    """Newest answers, and removed nodes as long as a node follows that was not; the newest title of `named`."""
    nodes: dict[str, Node] = {}
    for state in states:
        for node in state.nodes:
            nodes[node.id] = max(node, nodes.get(node.id, node), key=lambda one: one.answered)
    removed = removed.union(*(state.removed for state in states))
    needed = set[str]()
    for node_id in nodes.keys() - removed:
        while node_id:
            needed.add(node_id)
            node_id = nodes[node_id].parent
    titled = max(named, key=lambda state: state.titled)
    left = {node_id: node for node_id, node in nodes.items() if node_id in needed}
    return (left, titled.title, titled.titled, removed) if left else None


def changed(dialogue: Dialogue, act: str, where: int, words: str) -> Dialogue:
    """What a page makes of a state."""
    ids = [node.id for node in dialogue.nodes]
    if act == "ask":
        return said(dialogue, words, parent=[ROOT, *ids][where % (len(ids) + 1)])[0]
    if act == "rename":
        return dialogue.rename(words)
    if not ids:
        return dialogue
    node = dialogue.nodes[where % len(ids)]
    return dialogue.remove(node.id) if act == "remove" else dialogue.answer(node.id, exchange(node.question, words))


CHANGES = ("ask", "continue", "rename", "remove")
LOOKS = ("reload", "list", "delete", "restart")


def merged(*states: Dialogue) -> Dialogue:
    """What the database has of states that were written in this order."""
    with database.in_memory() as db:
        for state in states:
            database.write(db, state)
        return database.read(db, states[0].id) or Dialogue.begin(states[0].book, "")


@settings(max_examples=30)
@given(
    acts=st.lists(st.tuples(st.sampled_from((*CHANGES, *LOOKS)), st.integers(0, 1), st.integers(0, 20)), max_size=10),
    network=st.booleans(),
)
def test_two_programs_and_their_older_tabs_undo_nothing_and_lose_nothing(
    acts: list[tuple[str, int, int]], network: bool
) -> None:
    """After each act both programs, and the disk, have exactly what the definition says."""
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", count(10**18, 1000).__next__)  # no two changes at one moment
        patch.setattr(database, "on_network", lambda _: network)
        folder = Path(place)
        programs = [Conversations(folder), Conversations(folder)]
        base = saved(programs[0], a_dialogue(sendable(EVIL), "Two?"))
        tabs, written, named, gone = [base, base], [base], [base], frozenset[str]()
        for number, (act, who, where) in enumerate(acts):
            store = programs[who]
            if act == "list":
                store.listing()
            elif act == "restart":
                store.close()
                programs[who] = Conversations(folder)
            elif act == "delete":
                store.delete(base.id)
                assert store.flush(SECONDS)
                gone = gone.union(*([node.id for node in state.nodes] for state in written))
            elif act == "reload" and store.listing().summaries:
                tabs[who] = store.open(base.id)
            elif act in CHANGES:
                tabs[who] = saved(store, changed(tabs[who], act, where, f"{who}, {number}"))
                if not store.was_deleted(base.id):
                    written.append(tabs[who])
                    named.append(tabs[who])
            wanted = by_definition(written, gone, named or written)
            if wanted is None:
                named.clear()
            for store in programs:
                if wanted is None or store.was_deleted(base.id):
                    assert store.listing().summaries == ()
                    with pytest.raises(ConversationGone):
                        store.open(base.id)
                else:
                    found = store.open(base.id)
                    ids = [node.id for node in found.nodes]
                    assert found.head in (ROOT, *ids)
                    assert all(node.parent in (ROOT, *ids[:at]) for at, node in enumerate(found.nodes))
                    assert content(found) == wanted and [one.title for one in store.listing().summaries] == [
                        found.title
                    ]
                    assert text_of(folder) == {found.title, *(node.question for node in found.nodes)}
            assert wanted or text_of(folder) == set()
        for store in programs:
            store.close()


def test_what_comes_back_stands_behind_what_it_follows() -> None:
    """Removed nodes that a database never had are in no order; then an older tab goes on from them."""
    base = a_dialogue("One?")
    above, below = (replace(base.nodes[0], id=name, parent=parent) for name, parent in (("b", base.head), ("a", "b")))
    older, _ = said(replace(base, nodes=(*base.nodes, above, below)), "Further?", parent="a")
    found = merged(replace(base, removed=frozenset("ab")), older)
    assert found.nodes == older.nodes and found.removed == {"a", "b"}


def test_a_clock_that_was_set_back_hides_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    early = a_dialogue("One?").rename("Before")
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    late = changed(early.rename("After"), "continue", 0, "Yes, and more.")
    for joined in (merged(late, early), merged(early, late)):
        assert joined.title == "After" and joined.exchanges[0].finished.text == "Yes, and more."


# -------------------- programs that run, on a local and on a network file system

APPEND = """
import sys
from pathlib import Path
from app.conversations import database
from app.conversations.store import Conversations

folder, name, own, number, network = sys.argv[1:]
database.on_network = lambda _: network == "True"
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


@pytest.fixture(params=[False, True], ids=["wal", "network"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the folder is on a network file system, without a write-ahead log."""
    monkeypatch.setattr(database, "on_network", lambda _: request.param)
    return bool(request.param)


def questions(dialogue: Dialogue) -> list[str]:
    return sorted(node.question for node in dialogue.nodes)


def test_all_exchanges_of_two_processes_are_there(
    network: bool, folder: Path, program: Callable[[], Conversations]
) -> None:
    name, root = saved(program(), a_dialogue("One?")).id, Path(__file__).resolve().parents[3]
    told = [str(folder), name, "{}", "60", str(network)]
    both = [
        subprocess.Popen([sys.executable, "-c", APPEND, *(one.format(own) for one in told)], cwd=root) for own in "ab"
    ]
    assert [process.wait(SECONDS * 4) for process in both] == [0, 0]
    wanted = sorted(["One?", *(f"{own} {count}" for own in "ab" for count in range(60))])
    assert questions(program().open(name)) == wanted


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


# -------------------- deleting, and the end


@pytest.fixture
def busy(
    network: bool, folder: Path, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> Iterator[sqlite3.Connection]:
    """Another program in the middle of a write; `rollback` ends it."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    monkeypatch.setattr(module, "LATER_SECONDS", 0.05)
    program().listing()  # makes it
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
    assert store.flush(SECONDS) and [one.title for one in program().listing().summaries] == ["Other?"]


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


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(("pragma", "reason"), [("max_page_count = 1", "disk is full"), ("query_only = 1", "readonly")])
def test_what_failed_is_shown_and_written_by_itself_later_or_at_the_end(
    pragma: str, reason: str, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = program()
    for ends in (False, True):
        monkeypatch.setattr(module, "LATER_SECONDS", 0.05)
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
