"""Conversations on disk: whole or not at all, private, found again, never lost by someone else's mistake."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.conversations import store as module
from app.conversations.schema import VERSION, dump
from app.conversations.store import ConversationGone, Conversations
from app.conversations.tree import Dialogue, sendable
from core.errors import InvalidSetting
from tests.app.conversations.test_tree import BOOK, EVIL, a_dialogue, said

SECONDS = 10.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


@pytest.fixture
def open_store(folder: Path) -> Iterator[Callable[[], Conversations]]:
    stores: list[Conversations] = []

    def make() -> Conversations:
        stores.append(Conversations(folder))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], Conversations]) -> Conversations:
    return open_store()


def saved(store: Conversations, dialogue: Dialogue) -> Dialogue:
    store.save(dialogue)
    assert store.flush(SECONDS)
    return dialogue


def titles(store: Conversations, search: str = "") -> list[str]:
    return [one.title for one in store.listing(search).summaries]


def files(folder: Path) -> list[str]:
    return sorted(file.suffix for file in folder.iterdir())


def test_after_a_restart_everything_is_there(store: Conversations, open_store: Callable[[], Conversations]) -> None:
    one, two = saved(store, a_dialogue("One?", "More?")), saved(store, a_dialogue(sendable(EVIL)))
    again = open_store()
    assert again.open(one.id) == one and again.open(two.id) == two
    assert titles(again) == [two.title, one.title], "newest first"


@pytest.mark.skipif(os.name != "posix", reason="modes are of posix")
def test_only_the_owner_can_read(store: Conversations, folder: Path) -> None:
    saved(store, a_dialogue("One?"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]


def test_file_names_are_of_no_text(store: Conversations, folder: Path) -> None:
    dialogue = saved(store, a_dialogue("../../../etc/passwd"))
    assert [file.name for file in folder.iterdir()] == [f"{dialogue.id}.json"]
    for name in ("../" + dialogue.id, dialogue.id.upper() + "/", "", "x" * 32):
        with pytest.raises(ConversationGone):
            store.open(name)
        store.delete(name)


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_write_that_fails_midway_leaves_the_old_state(
    at: str, store: Conversations, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = saved(store, a_dialogue("One?"))

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        if at == "write":
            broken.setattr(os, "fdopen", fail)
        else:
            broken.setattr(os, at, fail)
        new, _ = said(old, "Two?")
        saved(store, new)
    assert Conversations(folder).open(old.id) == old and files(folder) == [".json"], "nothing half-written is left"
    assert "No space left" in store.listing().notices[0] and store.open(old.id) == new, "memory has it"
    saved(store, a_dialogue("Other?"))
    assert store.flush(SECONDS) and Conversations(folder).open(old.id) == new, "it was tried again"
    assert store.listing().notices == ()


def test_a_killed_writer_leaves_a_whole_file(folder: Path) -> None:
    """A process that rewrites one conversation is killed at random moments; what is there always loads."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom app.conversations.store import Conversations\n"
        "store = Conversations(Path(sys.argv[1]))\ndialogue = store.open(sys.argv[2])\n"
        "answer = dialogue.nodes[0].exchange\nprint('ready', flush=True)\n"
        "while True:\n    dialogue, node = dialogue.ask(dialogue.tip, 'More?')\n"
        "    dialogue = dialogue.answer(node.id, answer)\n    store.save(dialogue)\n"
    )
    name, root = saved(Conversations(folder), a_dialogue(*["One?"] * 40)).id, Path(__file__).resolve().parents[3]
    for wait in (0.02, 0.17):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(folder), name], cwd=root, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stdout.readline()
            time.sleep(wait)
            process.kill()
        store = Conversations(folder)
        assert len(store.open(name).nodes) >= 40 and store.listing().notices == ()
    Conversations(folder)
    assert list(folder.glob("*.part")) == [], "its drafts are swept away"


def test_a_damaged_file_is_set_aside_and_named(store: Conversations, folder: Path) -> None:
    good, bad = saved(store, a_dialogue("Good?")), "0" * 32
    content = dump(a_dialogue("Bad?"))[:-20]
    (folder / f"{bad}.json").write_text(content, encoding="utf-8")
    assert titles(store) == [good.title]
    (notice,) = store.listing().notices
    (aside,) = folder.glob("*.damaged")
    assert "1 damaged conversation was set aside" in notice and aside.name in notice and "\n" not in notice
    assert aside.read_text(encoding="utf-8") == content, "never deleted"
    with pytest.raises(ConversationGone):
        store.open(bad)


def test_bytes_that_are_no_text_are_damage(store: Conversations, folder: Path) -> None:
    (folder / f"{'0' * 32}.json").write_bytes(b"\xff\xfe\x00{")
    assert titles(store) == [] and len(list(folder.glob("*.damaged"))) == 1


def test_a_newer_version_is_left_alone_and_named(store: Conversations, folder: Path) -> None:
    dialogue = a_dialogue("From the future?")
    file = folder / f"{dialogue.id}.json"
    text = json.dumps({**json.loads(dump(dialogue)), "version": VERSION + 1, "nodes": "of another kind"})
    file.write_text(text, encoding="utf-8")
    assert titles(store) == [] and "newer version" in store.listing().notices[0]
    with pytest.raises(ConversationGone):
        store.open(dialogue.id)
    assert file.read_text(encoding="utf-8") == text


def test_foreign_files_are_not_touched(store: Conversations, folder: Path) -> None:
    (folder / "notes.json").write_text("mine", encoding="utf-8")
    (folder / "sub").mkdir()
    assert titles(store) == [] and store.listing().notices == () and (folder / "notes.json").exists()


def test_search_finds_titles_questions_answers_and_books(store: Conversations) -> None:
    dialogue, _ = said(a_dialogue("Where is the teapot?"), "And then?", "On the QUAY, under the Straße lamp.")
    saved(store, dialogue)
    saved(store, a_dialogue("Who sang?").rename("The choir"))
    for search, found in {
        "TEAPOT": 1,
        "quay lamp": 1,
        "strasse": 1,
        "choir": 1,
        "sang": 1,
        "book.txt": 2,
        "teapot choir": 0,
        "": 2,
    }.items():
        assert len(titles(store, search)) == found, search


def test_a_deleted_conversation_does_not_come_back(store: Conversations, folder: Path) -> None:
    dialogue = saved(store, a_dialogue("One?"))
    store.delete(dialogue.id)
    saved(store, said(dialogue, "An answer that was still being written")[0])
    assert titles(store) == [] and list(folder.iterdir()) == [] and store.was_deleted(dialogue.id)


def test_deleting_the_last_exchange_deletes_the_conversation(store: Conversations, folder: Path) -> None:
    dialogue = saved(store, a_dialogue("One?", "Two?"))
    left = store.without(dialogue, dialogue.path[1].id)
    assert store.flush(SECONDS) and len(Conversations(folder).open(dialogue.id).nodes) == 1
    assert store.without(left, left.path[0].id).nodes == () and titles(store) == []
    with pytest.raises(ConversationGone):
        store.open(dialogue.id)
    assert store.flush(SECONDS) and list(folder.iterdir()) == [] and titles(store) == []


def test_two_pages_that_write_one_conversation_lose_nothing(store: Conversations, folder: Path) -> None:
    base = saved(store, a_dialogue("One?"))
    one, _ = said(base, "From the first page?")
    two, _ = said(base, "From the second page?")
    for state in (one, two):
        saved(store, state)
    questions = {node.question for node in Conversations(folder).open(base.id).nodes}
    assert questions == {"One?", "From the first page?", "From the second page?"}


def test_two_programs_write_beside_each_other(open_store: Callable[[], Conversations]) -> None:
    one, two = open_store(), open_store()
    here, there = saved(one, a_dialogue("Here?")), saved(two, a_dialogue("There?"))
    assert set(titles(one)) == set(titles(two)) == {here.title, there.title}
    saved(two, here.rename("Renamed there"))
    assert "Renamed there" in titles(one) and one.open(here.id).title == "Renamed there", "the last writer wins"


def test_saving_takes_no_time_of_the_engine(store: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that calls `save` hands a value over; a disk that hangs is not its business."""
    hangs, go_on, tries = threading.Event(), threading.Event(), []

    def hang(_: int) -> None:
        tries.append(threading.current_thread())
        hangs.set()
        go_on.wait(SECONDS)

    monkeypatch.setattr(os, "fsync", hang)
    dialogue = a_dialogue(*["One?"] * 200)
    store.save(dialogue)
    assert hangs.wait(SECONDS)
    for _ in range(20):
        store.save(dialogue)
    assert len(tries) == 1 and tries[0] is not threading.current_thread(), "all that time the disk was hanging"
    go_on.set()
    assert store.flush(SECONDS)


def test_only_the_newest_state_is_written(store: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    gate, replace = threading.Event(), os.replace

    def slow(source: Path, target: Path) -> None:
        gate.wait(SECONDS)
        written.append(len(json.loads(source.read_text(encoding="utf-8"))["nodes"]))
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    dialogue = a_dialogue("One?")
    for _ in range(9):
        dialogue, _ = said(dialogue, "More?")
        store.save(dialogue)
    gate.set()
    assert store.flush(SECONDS) and written[-1] == 10 and len(written) <= 2
    assert store.open(dialogue.id) == dialogue, "and what is shown is as it was saved last"


def test_without_a_folder_nothing_is_written() -> None:
    store = Conversations()
    dialogue = a_dialogue("One?")
    store.save(dialogue)
    assert store.open(dialogue.id) == dialogue and titles(store) == [dialogue.title]


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(InvalidSetting, match="--data-dir"):
        Conversations(tmp_path / "file" / "conversations")


def test_a_huge_file_is_not_read(store: Conversations, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(store, a_dialogue("One?"))
    monkeypatch.setattr(module.files, "MOST_BYTES", 10)
    assert titles(Conversations(folder)) == [] and BOOK.title
