"""Downloading a model: resume every file where it stopped, check the hub's digest, then put it into the cache.

A file is written to `blobs/DIGEST.incomplete` and gets its name only when size and digest are right; the commit becomes
the model's when all files are there. A download that ends at any moment leaves parts that the next one continues, and
nothing that looks finished. (huggingface_hub's own download deletes its parts when it ends early.)
"""

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from huggingface_hub import constants
from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]  # HTTPError: of its client
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, but its types do not export them
    WeakFileLock,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from core.errors import CoreError, DamagedDownload, NotEnoughDisk
from core.files import replace_file
from core.models.hub import wheel
from core.models.hub.client import HubFile, Repository, explain, status_of
from core.models.hub.store import PART, cache_folder, repository_folder

PIECE_BYTES = 1 << 20
ATTEMPTS = 5  # in a row without new bytes
SECONDS_OF_SILENCE = 30.0
FIRST_PAUSE_SECONDS = 0.5  # doubled for every attempt
SPARE_BYTES = 64 << 20  # left free on the disk
TRY_AGAIN = (None, 408, 429, 500, 502, 503, 504)  # statuses; None: no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadProgress:
    """Progress of a download: the present file, and all of them."""

    name: str
    number: int  # of the file, from 1
    num_files: int
    file_bytes: int
    file_total_bytes: int
    done_bytes: int
    total_bytes: int
    kept_bytes: int  # present before the download
    elapsed_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Over the network, since the start."""
        return (self.done_bytes - self.kept_bytes) / self.elapsed_seconds if self.elapsed_seconds > 0 else 0.0


def still_to_come(repository: Repository) -> int:
    """Bytes that a download would fetch: all except those present, including those of parts."""
    blobs = repository_folder(repository.repo) / "blobs"
    return sum(file.size_bytes - _held_bytes(blobs, file) for file in repository.files)


def free_bytes() -> int:
    """Free space on the disk of the cache."""
    folder = cache_folder()
    return shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free


def check_disk(*repositories: Repository) -> None:
    """Check that the remaining bytes of all repositories fit on the disk: a wheel and what comes out of it at once.

    Raises:
        NotEnoughDisk: they do not.
    """
    free, needed = free_bytes(), sum(still_to_come(one) * (1 if one.wheel is None else 2) for one in repositories)
    if needed + SPARE_BYTES > free:
        names, verb = " and ".join(one.repo for one in repositories), "need" if repositories[1:] else "needs"
        raise NotEnoughDisk(
            f"{names} {verb} {needed / 1e9:.2f} GB more, {cache_folder()} has room for {free / 1e9:.2f} GB.",
            hint="Free some space, or set HF_HOME to a folder on a larger disk.",
        )


def download(repository: Repository, cancel: threading.Event | None = None) -> Iterator[DownloadProgress]:
    """Download the missing files of a model. Ends early if `cancel` is set; parts are always kept.

    Raises:
        NotEnoughDisk: before the download begins, or when the disk is full.
        HubRefused, HubUnreachable: the hub, or the network. DamagedDownload: a file differs from the hub's listing.
    """
    check_disk(repository)
    cancel = cancel or threading.Event()
    folder = repository_folder(repository.repo)
    blobs, snapshot, locks = folder / "blobs", folder / "snapshots" / repository.commit, cache_folder() / ".locks"
    kept = repository.size_bytes - still_to_come(repository)
    started, before = time.perf_counter(), 0

    def progress(number: int, file: HubFile, size: int) -> DownloadProgress:
        return DownloadProgress(
            name=file.name,
            number=number,
            num_files=len(repository.files),
            file_bytes=size,
            file_total_bytes=file.size_bytes,
            done_bytes=before + size,
            total_bytes=repository.size_bytes,
            kept_bytes=kept,
            elapsed_seconds=time.perf_counter() - started,
        )

    try:
        for path in (blobs, snapshot, locks / folder.name):
            path.mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(repository.files, 1):
            blob, part = blobs / file.digest, blobs / f"{file.digest}{PART}"
            with WeakFileLock(locks / folder.name / f"{file.digest}.lock"):  # the hub's library takes the same
                if not _is_whole(blobs, file):
                    for size in _fetch(repository, file, part, cancel):
                        yield progress(number, file, size)
                    if cancel.is_set():
                        return
                    with part.open("r+b") as whole:
                        os.fsync(whole.fileno())  # the name says that the content is right, through a power cut too
                    os.replace(part, blob)
                _show(blob, snapshot / file.name)
            yield progress(number, file, file.size_bytes)
            before += file.size_bytes
        _write_ref(folder, repository.commit)
    except OSError as error:
        raise NotEnoughDisk(
            f"The download cannot be written to {cache_folder()}: {error.strerror or error}.",
            hint="See that there is room and that you may write there, then start again.",
        ) from error


def _fetch(repository: Repository, file: HubFile, part: Path, cancel: threading.Event) -> Iterator[int]:
    """Complete a part and check it. Yields its size in bytes as it grows."""
    fresh = not part.exists() or repository.wheel is not None
    while True:
        if repository.wheel is None:
            yield from _fill(repository, file, part, cancel)
        else:
            yield from wheel.unpack(repository.wheel, file, part, cancel)
        if cancel.is_set() or _digest(part, file) == file.digest:
            return
        part.unlink()
        if fresh:
            raise DamagedDownload(
                f"{file.name} of {repository.repo} arrived with another checksum than was announced.",
                hint="Start again; if it happens again, something on the way changes files.",
            )
        fresh = True  # an earlier download's part may be wrong: start once more, from nothing


def _fill(repository: Repository, file: HubFile, part: Path, cancel: threading.Event) -> Iterator[int]:
    """Append to a part until it has its full size, over as many connections as needed."""
    idle = 0  # connections in a row that brought nothing
    with part.open("ab") as out:
        if out.tell() > file.size_bytes:
            _empty(out)
        while (before := out.tell()) < file.size_bytes:
            problem: CoreError = DamagedDownload(
                f"The hub sends less of {file.name} of {repository.repo} than it announced.", hint="Start again later."
            )
            told = 0
            try:
                for piece in _stream(repository, file, out):
                    out.write(piece[: file.size_bytes - out.tell()])
                    if cancel.is_set():
                        return
                    if out.tell() >= told + PIECE_BYTES:
                        told = out.tell()
                        yield told
            except (HTTPError, OfflineModeIsEnabled) as error:
                problem = explain(error, repository.repo)
                if isinstance(error, OfflineModeIsEnabled) or status_of(error) not in TRY_AGAIN:
                    raise problem from error
            idle = 0 if out.tell() > before else idle + 1
            if idle == ATTEMPTS:
                raise problem
            cancel.wait(FIRST_PAUSE_SECONDS * 2**idle if idle else 0)
            if cancel.is_set():
                return


def _stream(repository: Repository, file: HubFile, out: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file behind those in `out`, over one connection; `out` is emptied if they come from the start."""
    url = f"{constants.ENDPOINT}/{repository.repo}/resolve/{repository.commit}/{file.name}"
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if out.tell():
        headers["Range"] = f"bytes={out.tell()}-"
    with get_session().stream("GET", url, headers=headers, timeout=SECONDS_OF_SILENCE) as response:
        hf_raise_for_status(response)
        if out.tell() and response.headers.get("Content-Range", "").split("-")[0] != f"bytes {out.tell()}":
            _empty(out)  # the range was not served: the whole file comes, or bytes of an unknown place
            if response.status_code != 200:
                return
        yield from response.iter_raw()  # unbuffered: buffered bytes would be lost with the connection


def _empty(out: BinaryIO) -> None:
    out.seek(0)
    out.truncate()


# -------------------- files


def _digest(part: Path, file: HubFile) -> str:
    """SHA-256 of the bytes, or git's SHA-1, which covers the size too."""
    start = b"blob %d\0" % part.stat().st_size
    with part.open("rb") as whole:
        kind = hashlib.sha256 if len(file.digest) == 64 else lambda: hashlib.sha1(start, usedforsecurity=False)
        return hashlib.file_digest(whole, kind).hexdigest()


def _is_whole(blobs: Path, file: HubFile) -> bool:
    blob = blobs / file.digest  # it got its name after its digest was checked
    return blob.is_file() and blob.stat().st_size == file.size_bytes


def _held_bytes(blobs: Path, file: HubFile) -> int:
    if _is_whole(blobs, file):
        return file.size_bytes
    part = blobs / f"{file.digest}{PART}"
    held = part.stat().st_size if part.is_file() else 0
    return held if held <= file.size_bytes else 0


def _show(blob: Path, pointer: Path) -> None:
    """Link a file of a snapshot to its blob; with a second name where links are not allowed (Windows)."""
    target = Path(os.path.relpath(blob, pointer.parent))
    if pointer.is_symlink() and Path(os.readlink(pointer)) == target:
        return
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(target)
    except OSError:
        try:
            os.link(blob, pointer)
        except OSError:  # exFAT
            replace_file(pointer, blob)


def _write_ref(folder: Path, commit: str) -> None:
    ref = folder / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    new = ref.with_name(f"main.{os.getpid()}.{threading.get_ident()}")  # two threads may end at once, too
    with new.open("w", encoding="utf-8") as out:
        out.write(commit)
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, ref)
