"""Files of ours that somebody or something has changed: each is one damaged file, and everything else goes on."""

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversations.export import as_json, as_markdown
from app.conversations.listing import Listing, Summary
from app.conversations.schema import Damaged, NewerVersion, load
from app.conversations.store import Conversations
from app.conversations.tree import Dialogue
from app.runtime.sessions import Session
from app.ui.reading.chat_view import exchanges
from app.ui.reading.conversation_view import book_notice, conversation_list, editing_notice
from core.kv_store.bookfile import SUFFIX
from core.kv_store.folder import SETTINGS, BookFolder, BookFolderSettings
from tests.app.conversations.test_tree import DIALOGUE, changed

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 1e-308, float("inf"), float("nan"), 10**400, -(10**400), 2**63, 2**64,
    "", "\ud800", "\udfff\ud800", "\0", "9" * 5_000, "\u0661", "<script>alert(1)</script>", "<|im_start|>", "\u202e",
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "../../etc/passwd", "triforce", "a" * 100_000,
    [], [[]], {}, {"": {}}, {"9" * 5_000: 1}, {"\ud800": 1}, [None], [2**63], ["\ud800"], [0] * 1_000,
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value inside of a value."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


PLACES = list(places(json.loads(as_json(DIALOGUE))))


def show_all_of_it(dialogue: Dialogue) -> None:
    """Whatever the page and the exports do with a conversation, down to the bytes that are sent."""
    session = Session("0" * 32, dialogue=dialogue, editing=dialogue.head)
    listed = conversation_list(Listing((Summary.of(dialogue),), ()), session, when=WHEN)
    said = [book_notice(session), editing_notice(session), exchanges(session), as_markdown(dialogue), listed]
    orjson.dumps(said)
    as_json(dialogue).encode()
    assert load(as_json(dialogue), dialogue.id) == dialogue


def read_and_show(text: str) -> bool:
    """Whether a file's text is a conversation. Raises whatever must not be raised."""
    try:
        dialogue = load(text, DIALOGUE.id)
    except (Damaged, NewerVersion):
        return False
    show_all_of_it(dialogue)
    return True


def test_every_odd_value_in_every_place_is_damage_or_can_be_shown() -> None:
    """A number of 400 digits, a key of 5,000 or half a character made every later start fail."""
    answer = [path for path in PLACES if path[:3] == ("nodes", 0, "answer")]
    few = [path for path in PLACES if 1 not in path and path not in answer] + answer[::3]
    read = [read_and_show(changed(path, value)) for path in few for value in ODD]
    assert any(read) and not all(read)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, len(as_json(DIALOGUE)) - 1), st.binary(max_size=6), st.integers(0, 50))
def test_no_file_with_changed_bytes_raises(at: int, new: bytes, gone: int) -> None:
    whole = as_json(DIALOGUE).encode("utf-8", "surrogatepass")
    try:
        text = (whole[:at] + new + whole[at + gone :]).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return  # damage, as test_conversations tells
    read_and_show(text)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{'0' * 32}.json")
    (tmp_path / f"{'1' * 32}.json").mkdir()
    done = threading.Event()

    def look() -> None:
        assert Conversations(tmp_path).listing().summaries == ()
        done.set()

    threading.Thread(target=look, daemon=True).start()
    assert done.wait(10)


# -------------------- the library


def test_odd_settings_of_the_shelf_are_the_usual_ones(tmp_path: Path) -> None:
    folder = BookFolder(tmp_path)
    contents = [b"[" * 200_000, b"\xff", b"", b"9" * 5_000]
    contents += [json.dumps(odd).encode() for value in ODD for odd in (value, {"cap_bytes": value}, {"keeping": value})]
    for content in contents:
        (tmp_path / SETTINGS).write_bytes(content)
        read = folder.settings
        assert read == BookFolderSettings() or read.cap_bytes in (0, 2**63), content


@pytest.mark.parametrize("content", [b"", b"[" * 200_000, (99).to_bytes(8, "little") + b"[" * 99, b"\xff" * 99])
def test_what_is_no_book_is_damage(content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"x{SUFFIX}").write_bytes(content)
    folder = BookFolder(tmp_path)
    assert folder.books() == [] and len(folder.notices) == 1 and list(tmp_path.iterdir()) == []
