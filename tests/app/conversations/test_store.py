"""Conversations on disk: private, found again, never lost by someone else's mistake; files of earlier versions too."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from app.conversations import database
from app.conversations import folder as module
from app.conversations.database import NAME
from app.conversations.export import as_json, as_markdown
from app.conversations.schema import VERSION
from app.conversations.store import ConversationGone, Conversations
from app.conversations.tree import Dialogue
from tests.app.conversations.on_disk import saved, text_of
from tests.app.conversations.test_tree import a_dialogue, said
from tests.app.fakes import SECONDS

OLD = Path(__file__).parent / "old"  # files of the version before the database, and what it exported of them


@pytest.fixture
def store(program: Callable[[], Conversations]) -> Conversations:
    return program()


def titles(store: Conversations, search: str = "") -> list[str]:
    return [one.title for one in store.listing(search).summaries]


@pytest.mark.skipif(os.name != "posix", reason="modes are of posix")
def test_only_the_owner_can_read(folder: Path, program: Callable[[], Conversations]) -> None:
    folder.mkdir(mode=0o755)
    (folder / NAME).touch(0o644)
    saved(program(), a_dialogue("One?"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert modes == {NAME: 0o600}


def test_ids_are_no_names_of_files(store: Conversations, folder: Path) -> None:
    dialogue = saved(store, a_dialogue("../../../etc/passwd"))
    for name in ("../" + dialogue.id, dialogue.id.upper() + "/", "", "x" * 32):
        with pytest.raises(ConversationGone):
            store.open(name)
        store.delete(name)
    assert titles(store) == [dialogue.title]


# -------------------- damage


@pytest.mark.parametrize("at", ["header", "pages", "no database at all"])
def test_a_damaged_database_is_set_aside_whole_and_the_app_goes_on(
    at: str, folder: Path, program: Callable[[], Conversations]
) -> None:
    one, file = program(), folder / NAME
    first = saved(one, a_dialogue("One?"))
    rest = [saved(one, a_dialogue(f"{number}?", "long " * 900)) for number in range(20)]
    other = program()
    one.close()
    content, num_pages = bytearray(file.read_bytes()), file.stat().st_size // 4096
    for page in (0,) if at == "header" else range(num_pages // 2, num_pages, 3):
        content[page * 4096 : (page + 1) * 4096] = os.urandom(4096)
    file.write_bytes(b"junk" * 9_000 if at == "no database at all" else content)
    content = bytearray(file.read_bytes())
    again = program()
    found = set(titles(again))
    for dialogue in rest:
        saved(again, dialogue.rename("Written again"))
    assert len(titles(again)) >= 20, "and what pages still hold is written again"
    assert titles(program()) == titles(again)
    (aside,) = folder.glob("*.damaged")
    assert aside.read_bytes() == content, "never changed"
    (notice,) = [*again.listing().notices, *program().listing().notices]
    assert "was damaged and set aside" in notice and aside.name in notice and "\n" not in notice
    assert at != "pages" or found, "what can be read stays"
    assert saved(other, first.rename("First")).id and "First" in titles(again), "the other program goes on, too"


def test_both_sides_of_a_damaged_page_of_the_list_are_read(folder: Path, program: Callable[[], Conversations]) -> None:
    program().close()
    all_ids, file, one = [f"{number:032x}" for number in range(300)], folder / NAME, a_dialogue("One?")
    with closing(database.opened(file)) as db, db:
        db.execute("BEGIN")
        for name in all_ids:
            database.write(db, replace(one, id=name))
        (root,) = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name LIKE '%autoindex_conversations%'"
        ).fetchone()
    content = bytearray(file.read_bytes())
    page = content[(root - 1) * 4096 :]
    cell = int.from_bytes(page[14:16])  # the second of at least three leaves
    leaf = int.from_bytes(page[cell : cell + 4])
    content[(leaf - 1) * 4096 : leaf * 4096] = bytes(4096)
    file.write_bytes(content)
    left = {summary.id for summary in program().listing().summaries}
    assert {all_ids[0], all_ids[-1]} <= left and len(left) > 100


def test_an_index_that_is_wrong_is_made_anew_as_soon_as_nobody_writes(
    folder: Path, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    store, base = program(), a_dialogue("One?")
    saved(store, said(base, "Two?")[0])
    store.close()
    with closing(sqlite3.connect(folder / NAME, isolation_level=None)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name LIKE '%autoindex_exchanges%'").fetchone()
        content = (folder / NAME).read_bytes()
        db.execute("DELETE FROM exchanges WHERE question = 'Two?'")
    with (folder / NAME).open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(content[(root - 1) * 4096 : root * 4096])
    again = program()
    with closing(sqlite3.connect(folder / NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "database is locked" in again.listing().notices[0] and not titles(again)
    assert titles(again) == ["One?"] and again.listing().notices == ()
    assert saved(again, said(base, "Three?")[0]) and len(program().open(base.id).nodes) == 2
    assert not [*folder.glob("*.damaged")]


def test_a_row_that_cannot_be_read_is_named_and_stays(store: Conversations, folder: Path) -> None:
    good, bad = saved(store, a_dialogue("Good?")), saved(store, a_dialogue("Bad?"))
    with closing(sqlite3.connect(folder / NAME, isolation_level=None)) as db:
        db.execute("UPDATE exchanges SET answer = '{' WHERE conversation = ?", (bad.id,))
        db.execute("UPDATE conversations SET stamp = '' WHERE id = ?", (bad.id,))
    assert titles(store) == [good.title]
    assert "1 conversation on disk cannot be read" in store.listing().notices[0]
    with pytest.raises(ConversationGone):
        store.open(bad.id)
    assert "Bad?" in text_of(folder)


def test_a_database_of_a_newer_version_is_left_alone_and_told(folder: Path, store: Conversations) -> None:
    base = saved(store, a_dialogue("One?"))
    store.close()
    with closing(sqlite3.connect(folder / NAME)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    content, newer = (folder / NAME).read_bytes(), Conversations(folder)
    saved(newer, said(base, "Two?")[0])
    assert any("newer version" in notice for notice in newer.listing().notices)
    assert titles(newer) == [base.title] and len(newer.open(base.id).nodes) == 2, "memory has it"
    newer.close()
    assert (folder / NAME).read_bytes() == content


def test_a_database_that_is_gone_is_made_anew(store: Conversations, folder: Path) -> None:
    base = saved(store, a_dialogue("One?"))
    shutil.rmtree(folder)
    saved(store, said(base, "Two?")[0])
    assert len(Conversations(folder).open(base.id).nodes) == 2


# -------------------- the list


def test_search_finds_titles_questions_answers_and_books(store: Conversations) -> None:
    dialogue, _ = said(a_dialogue("Where is the teapot?"), "And then?", "On the QUAY, under the Straße lamp.")
    saved(store, dialogue)
    saved(store, a_dialogue("Who sang?").rename("The choir"))
    for search in ("TEAPOT", "quay lamp", "strasse", "choir", "sang"):
        assert len(titles(store, search)) == 1, search
    assert len(titles(store, "book.txt")) == len(titles(store)) == 2 and titles(store, "teapot choir") == []


def test_a_deleted_conversation_does_not_come_back_and_is_gone_from_the_disk(
    store: Conversations, folder: Path
) -> None:
    dialogue = saved(store, a_dialogue("A secret?"))
    other = saved(store, a_dialogue("Kept?", "Another secret?"))
    saved(store, other.remove(other.path[1].id))
    store.delete(dialogue.id)
    saved(store, said(dialogue, "An answer that was still being written")[0])
    assert titles(store) == ["Kept?"] and store.was_deleted(dialogue.id)
    assert not any(b"secret" in file.read_bytes() for file in folder.iterdir()), "with the log"


def test_saving_takes_no_time_of_the_engine(store: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that calls `save` hands a value over; a disk that hangs is not its business."""
    hangs, go_on, written = threading.Event(), threading.Event(), list[int]()
    write = module.database.write

    def hang(db: sqlite3.Connection, dialogue: Dialogue) -> None:
        written.append(len(dialogue.nodes))
        hangs.set()
        go_on.wait(SECONDS)
        write(db, dialogue)

    monkeypatch.setattr(module.database, "write", hang)
    dialogue = a_dialogue(*["One?"] * 200)
    store.save(dialogue)
    assert hangs.wait(SECONDS)
    for _ in range(20):
        dialogue, _ = said(dialogue, "More?")
        store.save(dialogue)
    go_on.set()
    assert store.flush(SECONDS) and written == [200, 220], "only the newest state is written"
    assert store.open(dialogue.id) == dialogue


def test_without_a_folder_memory_has_it() -> None:
    store = Conversations()
    dialogue = saved(store, a_dialogue("One?"))
    assert store.open(dialogue.id) == dialogue and titles(store) == [dialogue.title]
    store.delete(dialogue.id)
    assert store.flush(SECONDS) and titles(store) == []


# -------------------- files of earlier versions


def old_files(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [Path(shutil.copy(file, folder)) for file in sorted(OLD.glob("*.json"))]


def test_files_of_earlier_versions_are_taken_over_once_by_programs_that_start_at_once_and_export_as_before(
    folder: Path, program: Callable[[], Conversations]
) -> None:
    files = old_files(folder)
    for number in range(50):
        dialogue = replace(a_dialogue(f"{number}?"), id=f"{number:032x}")
        files.append(folder / f"{dialogue.id}.json")
        files[-1].write_text(as_json(dialogue), encoding="utf-8")
    contents = [file.read_bytes() for file in files]
    look = (
        "import sys\nfrom pathlib import Path\nfrom app.conversations.store import Conversations\n"
        "store = Conversations(Path(sys.argv[1]))\nprint(len(store.listing().summaries), store.listing().notices)"
    )
    command, root = [sys.executable, "-c", look, str(folder)], Path(__file__).parents[3]
    starts = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [one.communicate(timeout=60)[0] for one in starts] == ["55 ()\n"] * 3
    store = program()
    for old in OLD.glob("*.json"):
        dialogue = store.open(old.stem)
        assert json.loads(as_json(dialogue)) == json.loads(old.with_suffix(".export").read_text(encoding="utf-8"))
        assert as_markdown(dialogue) == old.with_suffix(".md").read_text(encoding="utf-8")
    assert len(titles(store)) == len(files) and store.listing().notices == ()
    assert [(folder / "imported" / file.name).read_bytes() for file in files] == contents
    assert list(folder.glob("*.json")) == [] and stat.S_IMODE((folder / "imported").stat().st_mode) & 0o077 == 0


def test_what_cannot_be_taken_over_is_named_and_stays(
    folder: Path, program: Callable[[], Conversations], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, *others = old_files(folder)
    newer = json.loads(others[0].read_text(encoding="utf-8")) | {"version": VERSION + 1, "nodes": "of another kind"}
    others[0].write_text(json.dumps(newer), encoding="utf-8")
    others[1].write_bytes(b"\xff\xfe\x00{")
    others[2].write_text("{", encoding="utf-8")
    others[3].write_text(" " * 10_000, encoding="utf-8")
    (folder / "notes.json").write_text("mine", encoding="utf-8")
    (folder / "sub").mkdir()
    monkeypatch.setattr(module, "MOST_BYTES", 9_999)
    contents = {file: file.read_bytes() for file in others}
    for _ in range(2):
        (notice,) = program().listing().notices
        assert notice.startswith("4 old conversations in ") and "newer version" in notice and "\n" not in notice
    assert len(titles(program())) == 1 and good.stem
    assert {file: file.read_bytes() for file in others} == contents and (folder / "notes.json").exists()


def test_a_file_that_comes_again_brings_nothing_back_and_removes_nothing(
    folder: Path, program: Callable[[], Conversations]
) -> None:
    """A start that was killed before it moved the files, or an earlier version that still runs."""
    files, store = old_files(folder), program()
    deleted, kept = (store.open(file.stem) for file in files[:2])
    store.delete(deleted.id)
    assert store.flush(SECONDS) and not (folder / "imported" / files[0].name).exists(), "deleted is deleted"
    files[0].write_bytes((OLD / files[0].name).read_bytes())
    data = json.loads((OLD / files[1].name).read_text(encoding="utf-8"))
    data |= {"nodes": [], "removed": [node.id for node in kept.nodes], "head": ""}
    files[1].write_text(json.dumps(data), encoding="utf-8")
    again = program()
    assert len(titles(again)) == 4 and again.open(kept.id).nodes == kept.nodes
    with pytest.raises(ConversationGone):
        again.open(deleted.id)


# -------------------- where the folder is


@pytest.mark.skipif(os.name != "posix", reason="mounts are of posix")
def test_a_network_file_system_is_known_by_its_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = (("/", "ext4"), ("/home", "nfs4"), ("/home/here", "ext4"), ("/a b", "smbfs"))
    parts = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: parts)
    (link := tmp_path / "link").symlink_to("/a b/me")
    remote = {"/home/me", "/a b/me", str(link)}
    found = {name for name in ("/data", "/home/here/me", "/homes", *remote) if database.on_network(Path(name) / NAME)}
    assert found == remote
