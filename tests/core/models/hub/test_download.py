"""Downloads from a hub on this machine: what is cut goes on, what is wrong is noticed, what is refused is told."""

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants, scan_cache_dir, try_to_load_from_cache

from core.errors import CoreError, DamagedDownload, HubRefused, HubUnreachable, NotEnoughDisk, UnsupportedModel
from core.models.hub import download as downloading
from core.models.hub import store
from core.models.hub.catalog import Known
from core.models.hub.client import look_up
from core.models.hub.download import DownloadProgress, download, still_to_come
from tests.core.models.hub.toy_hub import COMMIT, ToyHub, serving

ROOT = Path(__file__).resolve().parents[4]
REPO = "toys/tiny"
WEIGHTS = "model.safetensors"
SIZE = 3 << 20


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyHub]:
    files = {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": random.Random(1).randbytes(20_000),
        "generation_config.json": b"",
        WEIGHTS: random.Random(2).randbytes(SIZE),
        "README.md": b"not needed",
        "pytorch_model.bin": random.Random(3).randbytes(9_000),
        "consolidated.safetensors": random.Random(3).randbytes(9_000),
    }
    monkeypatch.setattr(downloading, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with serving(ToyHub(REPO, files)) as toy:
        monkeypatch.setattr(constants, "ENDPOINT", toy.endpoint)
        yield toy


def fetch(cancel: threading.Event | None = None) -> list[DownloadProgress]:
    return list(download(look_up(REPO), cancel))


def check_arrived(hub: ToyHub, commit: str = COMMIT) -> None:
    folder = store.locate(REPO)
    assert folder is not None and folder.name == commit and not store.missing_files(folder)
    for file in folder.iterdir():
        assert file.read_bytes() == hub.files[file.name], file.name
    assert not store.has_parts(REPO)


def part() -> Path:
    (found,) = (store.repository_folder(REPO) / "blobs").glob(f"*{store.PART}")
    return found


def test_only_what_is_needed_comes_synced_with_its_exact_size_and_the_hub_s_own_library_finds_it(
    hub: ToyHub, synced_before_named: list[str]
) -> None:
    repository = look_up(REPO)
    wanted = ["config.json", "generation_config.json", "tokenizer.json", WEIGHTS]
    assert [file.name for file in repository.files] == wanted
    assert repository.size_bytes == still_to_come(repository) == sum(len(hub.files[name]) for name in wanted)
    seen = list(download(repository))
    check_arrived(hub)
    assert len(synced_before_named) == 5, "four files and the commit"
    assert [p.done_bytes for p in seen] == sorted(p.done_bytes for p in seen)
    assert seen[-1].done_bytes == seen[-1].total_bytes == repository.size_bytes
    assert len({p.file_bytes for p in seen if p.name == WEIGHTS}) > 1  # a large file tells more than its end
    assert still_to_come(repository) == 0
    found = try_to_load_from_cache(REPO, WEIGHTS, cache_dir=store.cache_folder())
    assert isinstance(found, str) and Path(found).read_bytes() == hub.files[WEIGHTS]
    cache = scan_cache_dir(store.cache_folder())
    assert not cache.warnings and [repo.repo_id for repo in cache.repos] == [REPO]
    assert store.remove(REPO) >= SIZE
    assert store.locate(REPO) is None and store.size_on_disk(REPO) == 0 and store.repositories() == []


@pytest.mark.parametrize(
    ("faults", "starts"),
    [  # bytes of the tokenizer, whole as it happens; then of the weights
        ({"cut_after": [20_000, 1_500_000, 700_000]}, [0, 1_500_000, 2_200_000]),
        ({"cut_after": [20_000, 1_000_000], "no_ranges": True}, [0, 1_000_000]),
        ({"failures": [503, 500]}, [0]),
    ],
    ids=str,
)
def test_what_passes_is_tried_again_where_it_broke(hub: ToyHub, faults: dict[str, Any], starts: list[int]) -> None:
    for name, value in faults.items():
        setattr(hub, name, value)
    fetch()
    check_arrived(hub)
    assert [int(wanted[6:-1]) if wanted else 0 for name, wanted, _ in hub.asked if name == WEIGHTS] == starts


@pytest.mark.parametrize("end", ["cancel", "close", "damage"])
def test_whatever_ends_a_download_the_next_one_goes_on(hub: ToyHub, end: str) -> None:
    cancel = threading.Event()
    running = download(look_up(REPO), cancel)
    next(p for p in running if p.name == WEIGHTS and p.file_bytes >= 1 << 20)
    if end == "cancel":
        cancel.set()
        assert list(running) == []
    else:
        running.close()
    held = bytearray(part().read_bytes())
    folder = store.locate(REPO)
    assert len(held) >= 1 << 20 and folder is not None and store.missing_files(folder) == [WEIGHTS]
    hub.asked.clear()
    if end == "damage":  # of the part: it is fetched once more
        held[500] ^= 1
        part().write_bytes(held)
    seen = fetch()
    check_arrived(hub)
    again = [(WEIGHTS, None, 200)] if end == "damage" else []
    assert hub.asked == [(WEIGHTS, f"bytes={len(held)}-", 206), *again]
    assert seen[0].kept_bytes == seen[0].total_bytes - (SIZE - len(held))


DOWNLOAD = """
import sys
from huggingface_hub import constants
constants.HF_HUB_CACHE, constants.ENDPOINT, constants.HF_TOKEN_PATH = sys.argv[1:4]
from core.models.hub.download import download
from core.models.hub.client import look_up
for progress in download(look_up(sys.argv[4])):
    print(progress.done_bytes, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9")
def test_kill_9_at_random_moments_leaves_no_part_of_a_model_that_is_taken_for_whole(hub: ToyHub) -> None:
    dice, unfinished = random.Random(5), 0
    arguments = [constants.HF_HUB_CACHE, hub.endpoint, constants.HF_TOKEN_PATH, REPO]
    for _ in range(8):
        most = dice.randrange(SIZE + 20_000)
        with subprocess.Popen(
            [sys.executable, "-c", DOWNLOAD, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as loading:
            assert loading.stdout is not None
            for line in loading.stdout:
                if int(line) >= most:
                    break
            loading.kill()
        folder = store.locate(REPO)
        missing = store.missing_files(folder) if folder else [WEIGHTS]
        unfinished += WEIGHTS in missing
        for name in set(hub.files) - set(missing):
            file = folder / name if folder else None
            assert file is None or not file.exists() or file.read_bytes() == hub.files[name], f"half of {name}"
        if WEIGHTS not in missing:
            store.remove(REPO)
    assert unfinished > 1
    fetch()
    check_arrived(hub)


# -------------------- what is told


@pytest.mark.parametrize(
    ("faults", "kind", "told"),
    [
        ({"corrupt": [WEIGHTS]}, DamagedDownload, "checksum"),
        ({"failures": [503] * 20}, HubUnreachable, "503"),
        ({"token": "let-me-in"}, HubRefused, "private or gated"),
        ({"repo": "toys/other"}, HubRefused, "has no model"),
        ({"garbage": True}, HubUnreachable, "as a hub would"),
        ({"commit": "../../../outside"}, HubUnreachable, "as a hub would"),
        ({"files": {"config.json": b"{}"}}, UnsupportedModel, "no config.json with weights"),
        ({"ENDPOINT": "http://127.0.0.1:9"}, HubUnreachable, "does not answer"),
        ({"HF_HUB_OFFLINE": True}, HubUnreachable, "offline"),
        ({"HF_HUB_CACHE": __file__}, NotEnoughDisk, "cannot be written"),
    ],
    ids=str,
)
def test_a_refusal_is_told_in_one_line_and_nothing_looks_finished(
    hub: ToyHub, monkeypatch: pytest.MonkeyPatch, faults: dict[str, Any], kind: type[CoreError], told: str
) -> None:
    for name, value in faults.items():
        monkeypatch.setattr(hub if hasattr(hub, name) else constants, name, value)
    with pytest.raises(kind, match=told) as caught:
        fetch()
    assert caught.value.hint and "\n" not in str(caught.value) and not (told == "offline" and hub.tokens)
    assert (folder := store.locate(REPO)) is None or store.missing_files(folder)
    if "corrupt" in faults:  # once, and no part of it stays
        assert store.missing_files(folder) == [WEIGHTS] and not store.has_parts(REPO)
        fetch()
        check_arrived(hub)


def test_a_gated_model_names_its_page_and_comes_with_a_token(hub: ToyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated, hub.token = True, "let-me-in"
    for token in (None, "another"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(HubRefused, match="is gated") as error:
            fetch()
        assert f"{hub.endpoint}/{REPO}" in error.value.hint and "HF_TOKEN" in error.value.hint
    monkeypatch.setenv("HF_TOKEN", "let-me-in")
    fetch()
    check_arrived(hub)


def test_a_file_that_went_away_and_a_name_that_is_none_are_told(hub: ToyHub) -> None:
    repository = look_up(REPO)
    del hub.files["tokenizer.json"]
    with pytest.raises(HubRefused, match="no longer"):
        list(download(repository))
    with pytest.raises(HubRefused, match="no name of a model"):
        look_up("toys/../../etc")


def test_a_full_disk_is_told_before_anything_is_fetched(hub: ToyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.disk_usage

    def nearly_full(path: Path) -> Any:
        return real(path)._replace(free=downloading.SPARE_BYTES + SIZE)

    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    with pytest.raises(NotEnoughDisk) as error:
        fetch()
    assert "HF_HOME" in error.value.hint and not hub.asked
    monkeypatch.setattr(shutil, "disk_usage", real)
    fetch()
    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    fetch()  # what is there needs no room


def test_shards_are_fetched_by_either_kind_of_name_and_names_that_lead_elsewhere_never_written(hub: ToyHub) -> None:
    shards = {"model-00001-of-00001.safetensors", "model.safetensors-00001-of-00001.safetensors"}
    hub.files |= dict.fromkeys(shards, hub.files.pop(WEIGHTS))
    hub.extra = {
        "../../../../outside.json": {"size": 2, "blobId": "0" * 40},
        "deeper/config.json": {"size": 2, "blobId": "0" * 40},
        ".hidden.json": {"size": 2, "blobId": "0" * 40},
        "odd.json": {"size": 2, "blobId": "../../odd"},
        "negative.json": {"size": -2, "blobId": "0" * 40},
    }
    found = {file.name for file in look_up(REPO).files}
    assert shards <= found and not found & set(hub.extra)


# -------------------- commits


def test_a_model_stays_at_the_commit_that_was_downloaded_until_it_is_removed(hub: ToyHub) -> None:
    fetch()
    fetch()
    assert hub.revisions == [None, COMMIT]
    hub.commit = "beef" * 10
    assert look_up(REPO).commit == COMMIT
    store.remove(REPO)
    fetch()
    folder = store.locate(REPO)
    assert folder is not None and folder.name == hub.commit and hub.revisions[-1] is None


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_model_of_the_catalogue_comes_at_its_commit(
    hub: ToyHub, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    row = Known(name="tiny", description="", license="", hub=REPO, commit="beef" * 10)
    monkeypatch.setattr("core.models.hub.catalog.entries", lambda: {"tiny": row})
    hub.stubborn = stubborn
    if stubborn:
        with pytest.raises(HubUnreachable):
            look_up(REPO)
    else:
        fetch()
        check_arrived(hub, "beef" * 10)
    assert hub.revisions == [row.commit]


@pytest.mark.parametrize("links", [True, False])
def test_where_no_link_is_allowed_a_model_has_second_names_or_whole_copies(
    hub: ToyHub, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refused)
    if not links:
        monkeypatch.setattr(os, "link", refused)
    fetch()
    check_arrived(hub)
    folder = store.locate(REPO)
    assert folder and (folder / WEIGHTS).stat().st_nlink == 1 + links, "two names take the room of one"


def test_two_downloads_at_once_fetch_every_file_once(hub: ToyHub) -> None:
    with ThreadPoolExecutor() as both:
        list(both.map(lambda _: fetch(), range(2)))
    check_arrived(hub)
    assert len(hub.asked) == len({name for name, *_ in hub.asked})


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "socks://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_told(hub: ToyHub, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    close_session()
    with pytest.raises(HubUnreachable, match="begin with http://"):
        look_up(REPO)
