"""The folder of kept books: whole files or none, whoever writes, reads, evicts or dies at the same time."""

import errno
import os
import signal
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
from core.kv_store.bookfile import SUFFIX, BookReader, BookWriter, Label, Part
from core.kv_store.folder import BookFolder, BookFolderSettings

FAMILY, TOKENS = "ab" * 32, 40
ROWS = {f"part.{at}": Part(torch.float32, (10, 30)) for at in range(8)}
posix = pytest.mark.skipif(os.name != "posix", reason="forks and kills")


def label(name: str = "harbour.txt") -> Label:
    told = {"family": FAMILY, "identity": {"dtype": "float32"}, "model": "toy", "block_rows": 16, "read_seconds": 1.0}
    return Label(names=(name,), num_tokens=TOKENS, **told)  # type: ignore[arg-type]


def tokens_of(seed: int) -> torch.Tensor:
    return torch.randint(0, 1000, (TOKENS,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def rows_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + 1)
    return [torch.randn(part.shape, generator=generator) for part in ROWS.values()]


def write(
    shelf: BookFolder, seed: int = 0, name: str = "harbour.txt", meanwhile: Callable[[], object] = lambda: None
) -> Path:
    """A book of random rows; what they are depends on the seed alone."""
    tokens = tokens_of(seed)
    with shelf.writing(FAMILY, tokens) as file:
        writer = BookWriter(file, label(name), {"tokens": Part(torch.int32, (TOKENS,)), **ROWS})
        writer.add(tokens)
        meanwhile()
        for part in rows_of(seed):
            writer.add(part)
        writer.finish()
    return shelf.path / f"{folder.book_id(FAMILY, tokens)}{SUFFIX}"


def is_whole(shelf: BookFolder, path: Path, seed: int = 0) -> bool:
    with shelf.opened(path) as reader:
        _, *rows = (part.clone() for part in reader.read())
        return torch.equal(reader.tokens(), tokens_of(seed)) and all(map(torch.equal, rows, rows_of(seed)))


@pytest.fixture
def shelf(tmp_path: Path) -> BookFolder:
    return BookFolder(tmp_path / "shelf")


def test_what_is_written_comes_back_and_safetensors_itself_reads_it(shelf: BookFolder) -> None:
    path = write(shelf)
    assert is_whole(shelf, path) and path.stat().st_mode & 0o077 == 0
    (book,) = shelf.books()
    assert (book.path, book.name, book.size_bytes) == (path, "harbour.txt", path.stat().st_size)
    assert book.label == label()
    held = load_file(path)
    assert torch.equal(held["tokens"], tokens_of(0))
    assert all(torch.equal(held[f"part.{at}"], row) for at, row in enumerate(rows_of(0)))


def test_the_book_that_shares_most_is_found(shelf: BookFolder) -> None:
    write(shelf, 0)
    other = write(shelf, 1)
    wanted = [*tokens_of(1)[:30].tolist(), *tokens_of(5).tolist()]
    found = shelf.find(FAMILY, wanted)
    assert found is not None and found.book.path == other and found.shared == 30
    assert shelf.find("cd" * 32, wanted) is None and shelf.find(FAMILY, tokens_of(9).tolist()) is None


def test_every_flipped_bit_and_every_cut_is_noticed(shelf: BookFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is closed before it is removed, as Windows wants it."""
    path, remove, still_open = write(shelf), Path.unlink, set[int]()
    opened, close = BookReader._opened, BookReader.close
    monkeypatch.setattr(BookReader, "_opened", lambda self: (opened(self), still_open.add(id(self)))[0])
    monkeypatch.setattr(BookReader, "close", lambda self: (still_open.discard(id(self)), close(self))[1])
    monkeypatch.setattr(Path, "unlink", lambda self: still_open or remove(self))
    content = path.read_bytes()
    header, end = 8 + int.from_bytes(content[:8], "little"), len(content)
    flips = [*range(0, header, 13), content.index(b"toy"), *range(header, end, 211), end - 3]
    damaged = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in flips]
    for found in (*damaged, content[:-1], content[:5], b""):
        path.write_bytes(found)
        shelf.notices.clear()
        with pytest.raises(FileNotFoundError):
            is_whole(shelf, path)
        assert not path.exists() and "damaged" in shelf.notices[0]


def test_books_of_other_versions_are_left_alone_and_the_first_ones_are_told_and_cleared(
    shelf: BookFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(bookfile, "FORMAT", bookfile.FORMAT + 1)
        newer = write(shelf, 1)
    assert shelf.books() == [] and newer.exists() and shelf.notices == []
    newer.unlink()
    first, present = shelf.path / "0123.book", write(shelf)
    first.write_bytes(b"TFRSHELF" + bytes(3 << 20))
    (notice,) = BookFolder(shelf.path).notices
    assert "4 MiB" in notice and "saved clear" in notice and "\n" not in notice
    assert [book.path for book in shelf.clear()] == [present] and list(shelf.path.iterdir()) == []


def test_the_books_unused_for_longest_make_way(shelf: BookFolder) -> None:
    paths = [write(shelf, seed) for seed in range(4)]
    for number, path in enumerate(paths):
        os.utime(path, (time.time() - 100 + number,) * 2)
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


def test_a_disk_that_fills_up_while_saving_leaves_nothing_and_says_so(
    shelf: BookFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(shelf)
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bookfile.os, "fsync", fail)
    for seed in (0, 1):
        with pytest.raises(BookFolderFull, match=os.strerror(errno.ENOSPC)):
            write(shelf, seed)
    assert [file.name for file in shelf.path.iterdir()] == [path.name] and path.read_bytes() == before


def test_a_folder_that_somebody_has_removed_is_made_again(shelf: BookFolder) -> None:
    shelf.path.rmdir()
    shelf.room_for(1)
    assert is_whole(shelf, write(shelf))


def test_a_book_is_named_by_its_id_or_its_document(shelf: BookFolder) -> None:
    first = write(shelf, 0, "a.txt")
    for seed in (1, 2):
        write(shelf, seed, "b.txt")
    for name in ("a.txt", first.name.removesuffix(SUFFIX), first.name[:6]):
        assert shelf.named(name).path == first
    for unknown in ("b.txt", "c.txt", "", first.name[:3]):
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
        write(other)
        rows = [first, *(part.clone() for part in parts)]
        assert all(map(torch.equal, rows, [tokens_of(0), *rows_of(0)]))
    assert is_whole(shelf, path)


def test_a_living_writer_s_draft_stays_a_killed_one_s_goes_and_two_that_write_one_book_leave_one(
    shelf: BookFolder,
) -> None:
    def meanwhile() -> None:
        (draft,) = shelf.path.glob("*.part")
        left = draft.with_name(f"a.{os.getpid()}.part")  # a container gives every start the same number
        left.write_bytes(b"half a book")
        write(BookFolder(shelf.path))
        assert draft.exists() and not left.exists()

    path = write(shelf, meanwhile=meanwhile)
    assert is_whole(shelf, path) and len(list(shelf.path.iterdir())) == 1


# -------------------- killed


def in_child(work: Callable[[], object]) -> int:
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


@posix
def test_kill_9_at_every_step_of_saving_leaves_the_old_book_or_the_new_one(shelf: BookFolder) -> None:
    old, outcomes = write(shelf, 1), list[tuple[int, int]]()
    for steps in range(60):
        left = [steps]

        def before(real: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def step(*arguments: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments)

            return step

        def save(before: Callable[..., Any] = before) -> None:
            bookfile.os.fsync = folder.os.fsync = before(os.fsync)
            folder.os.replace = before(os.replace)
            BookWriter.add = before(BookWriter.add)  # type: ignore[method-assign]
            shelf.choose(BookFolderSettings())
            write(shelf)

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
