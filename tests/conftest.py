"""Shared by all tests: what a missing device or program makes impossible is skipped by name, never passed."""

import atexit
import gc
import os
import shutil
import sys
import tempfile

import pytest

try:
    import hypothesis
except ImportError:  # the tests of the GPU need none
    pass
else:
    # A busy machine may hold an example up for seconds, and no run may fail by examples that the next would not draw.
    hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("steady")

# What a user has downloaded changes no test: the hub's folder is an empty one, for the programs that tests start too.
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="triforce-tests-hub-")
os.environ.pop("HF_HUB_CACHE", None)
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

# Every worker and every program that a test starts would compile the app anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: each of several processes has a core of its own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a thread that waits leaves its core to the other processes


def has_cuda() -> bool:
    """Whether torch finds a CUDA device. Imports torch, which takes seconds, so ask only when it matters."""
    import torch

    return torch.cuda.is_available()


def chromium() -> str | None:
    """The Chromium on the PATH; one that can only be without a window takes a third less of the processor."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


def pytest_collection_finish() -> None:
    """Modules stay as long as the run: a collection of garbage need not walk through torch and gradio each time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests without a CUDA device and `browser` tests without Chromium."""
    for marker, is_there, reason in (
        ("gpu", has_cuda, "no CUDA device"),
        ("browser", chromium, "no chromium on PATH"),
    ):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not is_there():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def synced_before_named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that files get by `os.replace`: each fails whose whole content was not synced before."""
    synced, named = set[tuple[int, int]](), list[str]()
    sync, name = os.fsync, os.replace

    def record(handle: int) -> None:
        sync(handle)
        found = os.fstat(handle)
        synced.add((found.st_ino, found.st_size))

    def check(draft: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
        found = os.stat(draft)
        assert (found.st_ino, found.st_size) in synced, f"{path} was not synced"
        name(draft, path)
        named.append(os.fspath(path))

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "replace", check)
    return named
