"""Files appear whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from assets.tools.books.files import NotWritten, write_together


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
