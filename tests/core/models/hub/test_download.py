"""Downloads from a hub on this machine: what is cut goes on, what is wrong is noticed, what is refused is told."""

import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

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


def test_files_are_on_disk_before_they_have_their_names(hub: ToyHub, synced_before_named: list[str]) -> None:
    fetch()
    check_arrived(hub)
    assert len(synced_before_named) == 5, "four files and the commit"


def part() -> Path:
    (found,) = (store.repository_folder(REPO) / "blobs").glob(f"*{store.PART}")
    return found


def the_error(kind: type[CoreError]) -> CoreError:
    with pytest.raises(kind) as caught:
        fetch()
    assert caught.value.hint and "\n" not in str(caught.value)
    return caught.value


def test_only_what_is_needed_comes_with_its_exact_size_and_progress(hub: ToyHub) -> None:
    repository = look_up(REPO)
    wanted = ["config.json", "generation_config.json", "tokenizer.json", WEIGHTS]
    assert [file.name for file in repository.files] == wanted
    assert repository.size_bytes == still_to_come(repository) == sum(len(hub.files[name]) for name in wanted)
    seen = list(download(repository))
    check_arrived(hub)
    assert [p.done_bytes for p in seen] == sorted(p.done_bytes for p in seen)
    assert seen[-1].done_bytes == seen[-1].total_bytes == repository.size_bytes
    assert len({p.file_bytes for p in seen if p.name == WEIGHTS}) > 1  # a large file tells more than its end
    assert still_to_come(repository) == 0


def test_the_hub_s_own_library_finds_what_was_downloaded(hub: ToyHub) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    fetch()
    found = try_to_load_from_cache(REPO, WEIGHTS, cache_dir=store.cache_folder())
    assert isinstance(found, str) and Path(found).read_bytes() == hub.files[WEIGHTS]
    cache = scan_cache_dir(store.cache_folder())
    assert not cache.warnings and [repo.repo_id for repo in cache.repos] == [REPO]


def test_cut_connections_are_gone_on_with_where_they_broke(hub: ToyHub) -> None:
    hub.cut_after = [20_000, 1_500_000, 700_000]  # of the tokenizer, whole as it happens; then twice of the weights
    fetch()
    check_arrived(hub)
    starts = [wanted for name, wanted, _ in hub.asked if name == WEIGHTS]
    assert starts[0] is None and [int(str(w)[6:-1]) for w in starts[1:]] == [1_500_000, 2_200_000]


@pytest.mark.parametrize("end", ["cancel", "close", "interrupt"])
def test_whatever_ends_a_download_the_next_one_goes_on(hub: ToyHub, end: str) -> None:
    cancel = threading.Event()
    running = download(look_up(REPO), cancel)
    for progress in running:
        if progress.name == WEIGHTS and progress.file_bytes >= 1 << 20:
            break
    if end == "cancel":
        cancel.set()
        assert list(running) == []
    elif end == "close":
        running.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises(KeyboardInterrupt):
            running.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    held = part().stat().st_size
    assert held >= 1 << 20
    folder = store.locate(REPO)
    assert folder is not None and store.missing_files(folder) == [WEIGHTS]
    hub.asked.clear()
    seen = fetch()
    check_arrived(hub)
    assert hub.asked == [(WEIGHTS, f"bytes={held}-", 206)]
    assert seen[0].kept_bytes == seen[0].total_bytes - (SIZE - held)


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


def test_a_server_without_ranges_sends_everything_again(hub: ToyHub) -> None:
    hub.no_ranges, hub.cut_after = True, [20_000, 1_000_000]
    fetch()
    check_arrived(hub)


def test_a_wrong_checksum_is_noticed_and_nothing_looks_finished(hub: ToyHub) -> None:
    hub.corrupt = [WEIGHTS]
    assert "checksum" in the_error(DamagedDownload).problem
    folder = store.locate(REPO)
    assert folder is not None and store.missing_files(folder) == [WEIGHTS] and not store.has_parts(REPO)
    fetch()
    check_arrived(hub)


def test_a_damaged_part_of_an_earlier_download_is_fetched_once_more(hub: ToyHub) -> None:
    hub.cut_after = [20_000, 1_000_000]
    hub.failures = []
    running = download(look_up(REPO))
    next(p for p in running if p.name == WEIGHTS and p.file_bytes >= 1_000_000)
    running.close()  # type: ignore[attr-defined]
    held = bytearray(part().read_bytes())
    held[500] ^= 1
    part().write_bytes(held)
    fetch()
    check_arrived(hub)


def test_passing_failures_are_tried_again_and_lasting_ones_told(hub: ToyHub) -> None:
    hub.failures = [503, 500]
    fetch()
    check_arrived(hub)
    store.remove(REPO)
    hub.failures = [503] * 20
    assert "503" in the_error(HubUnreachable).problem


def test_a_gated_model_is_told_with_its_page_and_comes_with_a_token(
    hub: ToyHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated, hub.token = True, "let-me-in"
    error = the_error(HubRefused)
    assert "gated" in error.problem and f"{hub.endpoint}/{REPO}" in error.hint and "HF_TOKEN" in error.hint
    monkeypatch.setenv("HF_TOKEN", "another")
    assert "gated" in the_error(HubRefused).problem
    monkeypatch.setenv("HF_TOKEN", "let-me-in")
    fetch()
    check_arrived(hub)


def test_a_private_model_and_one_that_is_not_there_are_told(hub: ToyHub) -> None:
    with pytest.raises(HubRefused, match="has no model"):
        look_up("toys/other")
    hub.token = "let-me-in"
    with pytest.raises(HubRefused, match="private or gated"):
        look_up(REPO)
    with pytest.raises(HubRefused, match="no name of a model"):
        look_up("toys/../../etc")


def test_a_file_that_went_away_is_told(hub: ToyHub) -> None:
    repository = look_up(REPO)
    del hub.files["tokenizer.json"]
    with pytest.raises(HubRefused, match="no longer"):
        list(download(repository))


def test_offline_asks_nobody(hub: ToyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachable, match="offline"):
        look_up(REPO)
    assert hub.tokens == []


def test_no_answer_and_nonsense_are_told(hub: ToyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.garbage = True
    with pytest.raises(HubUnreachable):
        look_up(REPO)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubUnreachable, match="does not answer"):
        look_up(REPO)


def test_a_full_disk_is_told_before_anything_is_fetched(hub: ToyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.disk_usage

    def nearly_full(path: Any) -> Any:
        return real(path)._replace(free=downloading.SPARE_BYTES + SIZE)

    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    error = the_error(NotEnoughDisk)
    assert "HF_HOME" in error.hint and [name for name, *_ in hub.asked] == []
    monkeypatch.setattr(shutil, "disk_usage", real)
    fetch()
    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    fetch()  # what is there needs no room


def test_a_folder_that_cannot_be_written_is_told(hub: ToyHub) -> None:
    store.cache_folder().parent.mkdir(exist_ok=True)
    store.cache_folder().write_text("a file where the cache should be")
    assert "cannot be written" in the_error(NotEnoughDisk).problem


def test_names_that_lead_elsewhere_are_never_written(hub: ToyHub, tmp_path: Path) -> None:
    hub.extra = {
        "../../../../outside.json": {"size": 2, "blobId": "0" * 40},
        "deeper/config.json": {"size": 2, "blobId": "0" * 40},
        ".hidden.json": {"size": 2, "blobId": "0" * 40},
        "odd.json": {"size": 2, "blobId": "../../odd"},
        "negative.json": {"size": -2, "blobId": "0" * 40},
    }
    assert not {file.name for file in look_up(REPO).files} & set(hub.extra)
    hub.commit = "../../../outside"
    with pytest.raises(HubUnreachable):
        look_up(REPO)


def test_a_repository_without_loadable_weights_is_refused(hub: ToyHub) -> None:
    for name in (WEIGHTS, "pytorch_model.bin"):
        del hub.files[name]
    assert isinstance(the_error(UnsupportedModel), UnsupportedModel)


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


def test_the_hub_s_own_download_keeps_no_part(hub: ToyHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the hub's library goes on where it was cut: take ours away."""
    from huggingface_hub import hf_hub_download, utils

    class Stops(utils.tqdm):
        """A progress that somebody ends, as Stop does."""

        def update(self, n: float | None = 1) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(constants, "ENDPOINT", constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{")[0])
    with pytest.raises(KeyboardInterrupt):
        hf_hub_download(REPO, WEIGHTS, cache_dir=store.cache_folder(), endpoint=hub.endpoint, tqdm_class=Stops)
    assert not store.has_parts(REPO)


def test_removing_takes_everything_and_says_how_much(hub: ToyHub) -> None:
    fetch()
    assert store.remove(REPO) >= SIZE
    assert store.locate(REPO) is None and store.size_on_disk(REPO) == 0 and store.repositories() == []


def test_two_downloads_at_once_fetch_every_file_once(hub: ToyHub) -> None:
    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_arrived(hub)
    assert len(hub.asked) == len({name for name, *_ in hub.asked})
