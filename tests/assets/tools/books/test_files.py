"""Files appear whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from assets.tools.books.files import NotWritten, check_free, write_together


def test_files_are_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_together({tmp_path / "a.txt": b"one", tmp_path / "b.json": b"two"})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a.txt": b"one", "b.json": b"two"}


def test_a_failure_leaves_neither_new_files_nor_half_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"before")
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotWritten, match=r"b\.json cannot be written \(No space left on device\)"):
        write_together({tmp_path / "a.txt": b"one", tmp_path / "b.json": b"two"})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a.txt": b"before"}


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_together({tmp_path / "a.txt": b"one"})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # and not chmod: the tests may run as root
    with pytest.raises(NotWritten, match=r"a\.txt cannot be written \(Permission denied\)"):
        write_together({tmp_path / "a.txt": b"one"})


def test_what_exists_is_replaced_only_when_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "link.txt").symlink_to(tmp_path / "nowhere")
    check_free([tmp_path / "b.txt"], force=False)
    check_free([tmp_path / "a.txt", tmp_path / "link.txt"], force=True)
    for name in ("a.txt", "link.txt"):
        with pytest.raises(NotWritten, match="exists already"):
            check_free([tmp_path / "b.txt", tmp_path / name], force=False)


def test_folders_are_neither_made_nor_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(NotWritten, match="is a folder"):
        check_free([tmp_path / "folder.txt"], force=True)
    for folder in ("missing", "file"):
        with pytest.raises(NotWritten, match="There is no folder"):
            check_free([tmp_path / folder / "a.txt"], force=True)
