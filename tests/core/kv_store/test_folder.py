"""The folder of kept books: whole files or none, whoever writes, reads, evicts or dies at the same time."""

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.errors import BookFolderFull, UnknownBook
from core.kv_store import bookfile, folder
from core.kv_store.bookfile import SUFFIX, BookWriter, Label, Part
from core.kv_store.folder import BookFolder, BookFolderSettings

FAMILY = "ab" * 32
posix = pytest.mark.skipif(os.name != "posix", reason="forks and kills")


def label(num_tokens: int = 40, name: str = "harbour.txt", family: str = FAMILY) -> Label:
    return Label(
        family=family,
        identity={"dtype": "float32"},
        names=(name,),
        model="toy",
        num_tokens=num_tokens,
        block_rows=16,
        read_seconds=1.0,
    )


def tokens_of(seed: int, num_tokens: int = 40) -> torch.Tensor:
    return torch.randint(0, 1000, (num_tokens,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def write(shelf: BookFolder, seed: int = 0, num_tokens: int = 40, name: str = "harbour.txt") -> Path:
    """A book of random rows; what they are depends on the seed alone."""
    tokens = tokens_of(seed, num_tokens)
    with shelf.writing(FAMILY, tokens) as file:
        writer = BookWriter(file, label(num_tokens, name), parts_of(num_tokens))
        writer.add(tokens)
        for part in rows_of(seed, num_tokens):
            writer.add(part)
        writer.finish()
    return shelf.path / f"{folder.book_id(FAMILY, tokens)}{SUFFIX}"


def rows_of(seed: int, num_tokens: int = 40) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + 1)
    return [torch.randn((10, 30), generator=generator) for _ in range(2 + 2 * -(-num_tokens // 16))]


def parts_of(num_tokens: int = 40) -> dict[str, Part]:
    rows = {f"part.{at}": Part(torch.float32, (10, 30)) for at in range(len(rows_of(0, num_tokens)))}
    return {"tokens": Part(torch.int32, (num_tokens,)), **rows}


def is_whole(shelf: BookFolder, path: Path, seed: int = 0) -> bool:
    with shelf.opened(path) as reader:
        _, *rows = (part.clone() for part in reader.read())
        return torch.equal(reader.tokens(), tokens_of(seed)) and all(map(torch.equal, rows, rows_of(seed)))


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture
def shelf(tmp_path: Path) -> BookFolder:
    return BookFolder(tmp_path / "shelf")


def test_what_is_written_comes_back(shelf: BookFolder) -> None:
    path = write(shelf)
    assert is_whole(shelf, path) and path.stat().st_mode & 0o077 == 0
    (book,) = shelf.books()
    assert (book.path, book.name, book.size_bytes) == (path, "harbour.txt", path.stat().st_size)
    with shelf.opened(path) as reader:
        assert reader.label == label()
    held = load_file(path)
    assert torch.equal(held["tokens"], tokens_of(0)), "safetensors itself reads it"
    assert all(torch.equal(held[f"part.{at}"], row) for at, row in enumerate(rows_of(0)))


def test_the_book_that_shares_most_is_found(shelf: BookFolder) -> None:
    write(shelf, 0)
    other = write(shelf, 1)
    wanted = [*tokens_of(1)[:30].tolist(), *tokens_of(5).tolist()]
    found = shelf.find(FAMILY, wanted)
    assert found is not None and found.book.path == other and found.shared == 30
    assert shelf.find("cd" * 32, wanted) is None and shelf.find(FAMILY, tokens_of(9).tolist()) is None


@pytest.mark.parametrize("where", ["length", "label", "offsets", "tokens", "middle", "checksums", "cut", "empty"])
def test_every_flipped_bit_and_every_cut_is_noticed(where: str, shelf: BookFolder) -> None:
    path = write(shelf)
    content = bytearray(path.read_bytes())
    first = 8 + int.from_bytes(content[:8], "little")
    places = {
        "length": 1,
        "label": content.index(b"toy"),
        "offsets": content.index(b"data_offsets") + 18,
        "tokens": first + 5,
        "middle": len(content) // 2,
        "checksums": len(content) - 3,
    }
    if where in places:
        content[places[where]] ^= 1
    else:
        del content[-1 if where == "cut" else 0 :]
    path.write_bytes(content)
    with pytest.raises(FileNotFoundError):
        is_whole(shelf, path)
    assert not path.exists() and shelf.books() == [] and "damaged" in shelf.notices[0]


def test_a_book_of_another_version_is_left_alone(shelf: BookFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(bookfile, "FORMAT", bookfile.FORMAT + 1)
        path = write(shelf)
    assert shelf.books() == [] and path.exists() and shelf.notices == []


def test_books_of_the_first_format_are_told_and_cleared(shelf: BookFolder) -> None:
    old, new = shelf.path / "0123.book", write(shelf)
    old.write_bytes(b"TFRSHELF" + bytes(3 << 20))
    (notice,) = BookFolder(shelf.path).notices
    assert "4 MiB" in notice and "saved clear" in notice and "\n" not in notice
    assert [book.path for book in shelf.clear()] == [new] and list(shelf.path.iterdir()) == []


def test_the_books_unused_for_longest_make_way(shelf: BookFolder) -> None:
    paths = [write(shelf, seed) for seed in range(4)]
    for number, path in enumerate(paths):
        age(path, 100 - number)
    shelf.touch(shelf.books()[-1])  # the oldest was just opened
    size = paths[0].stat().st_size
    shelf.choose(BookFolderSettings(cap_bytes=2 * size + 10))
    assert {book.path for book in shelf.books()} == {paths[0], paths[3]}
    shelf.room_for(size)
    assert {book.path for book in shelf.books()} == {paths[0]}
    with pytest.raises(BookFolderFull, match="may take"):
        shelf.room_for(3 * size)
    assert len(shelf.books()) == 1, "a book too large for the saved books drives nobody out"


def test_a_disk_without_room_is_told_before_anything_is_removed(
    shelf: BookFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(shelf)
    usage = type("Usage", (), {"free": folder.SPARE_BYTES + 5})
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(BookFolderFull, match="the disk lacks"):
        shelf.room_for(1 << 20)
    assert len(shelf.books()) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fills_up_while_saving_leaves_nothing_and_says_so(
    number: int, shelf: BookFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(shelf)
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(bookfile.os, "fsync", fail)
    for seed in (0, 1):
        with pytest.raises(BookFolderFull, match=os.strerror(number)):
            write(shelf, seed)
    assert [file.name for file in shelf.path.iterdir()] == [path.name] and path.read_bytes() == before


def test_a_book_is_named_by_its_id_or_its_document(shelf: BookFolder) -> None:
    first = write(shelf, 0, name="a.txt")
    write(shelf, 1, name="b.txt")
    write(shelf, 2, name="b.txt")
    assert (
        shelf.named("a.txt").path
        == shelf.named(first.name.removesuffix(SUFFIX)).path
        == shelf.named(first.name[:6]).path
        == first
    )
    for unknown in ("b.txt", "c.txt", ""):
        with pytest.raises(UnknownBook):
            shelf.named(unknown)


# -------------------- several at once


@posix
def test_a_book_that_is_removed_while_it_is_read_is_read_to_its_end(shelf: BookFolder) -> None:
    path = write(shelf)
    with shelf.opened(path) as reader:
        parts = reader.read()
        first = next(parts).clone()
        other = BookFolder(shelf.path)
        assert other.remove(other.books()[0]) and not path.exists()
        write(other, 0)
        rows = [first, *(part.clone() for part in parts)]
        assert all(map(torch.equal, rows, [tokens_of(0), *rows_of(0)]))
    assert is_whole(shelf, path)


def test_the_draft_of_a_living_writer_is_not_swept_and_that_of_a_killed_one_is(shelf: BookFolder) -> None:
    tokens = tokens_of(0)
    with shelf.writing(FAMILY, tokens) as file:
        (draft,) = shelf.path.glob("*.part")
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            pass
        left = draft.with_name(draft.name.replace(f".{os.getpid()}.", f".{ended.pid}."))
        left.write_bytes(b"half a book")
        BookFolder(shelf.path)
        assert draft.exists() and not left.exists()
        writer = BookWriter(file, label(), parts_of())
        writer.add(tokens)
        for part in rows_of(0):
            writer.add(part)
        writer.finish()
    assert is_whole(shelf, shelf.books()[0].path)


def test_two_that_write_the_same_book_leave_one(shelf: BookFolder) -> None:
    tokens = tokens_of(0)
    with shelf.writing(FAMILY, tokens) as file:
        writer = BookWriter(file, label(), parts_of())
        writer.add(tokens)
        path = write(BookFolder(shelf.path), 0)
        for part in rows_of(0):
            writer.add(part)
        writer.finish()
    assert is_whole(shelf, path) and len(list(shelf.path.iterdir())) == 1


# -------------------- killed


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process, which costs no import; returns its exit code, -9 if it was killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch: the child does not use them
        child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Fuse:
    """Kills its process at the n-th step towards the disk."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return step


@posix
def test_kill_9_at_every_step_of_saving_leaves_the_old_book_or_the_new_one(shelf: BookFolder) -> None:
    old = write(shelf, 1)
    outcomes = []
    for steps in range(60):

        def save(steps: int = steps) -> None:
            fuse = Fuse(steps)
            bookfile.os.fsync = folder.os.fsync = fuse.before(os.fsync)
            folder.os.replace = fuse.before(os.replace)
            BookWriter.add = fuse.before(BookWriter.add)  # type: ignore[method-assign]
            write(shelf, 0)

        code = in_child(save)
        after = BookFolder(shelf.path)  # a restart
        assert not list(shelf.path.glob("*.part")), "the killed writer's draft goes"
        new = [book for book in after.books() if book.path != old]
        assert is_whole(after, old, 1) and all(is_whole(after, book.path) for book in new) and after.notices == []
        outcomes.append((code, len(new)))
        for book in new:
            after.remove(book)
        if code == 0:
            break
    assert outcomes[-1] == (0, 1) and (-9, 0) in outcomes and (-9, 1) in outcomes and len(outcomes) > 10
