"""Model files on this machine: the cache that all programs share with the hub's own library, and what is complete.

Layout as documented for huggingface_hub: models--ORG--NAME/ with refs/main (a commit), snapshots/COMMIT/ (the files)
and blobs/ (what they point to; parts of a download end in `.incomplete`). HF_HOME and HF_HUB_CACHE are respected by the
library's constants. Never asks the network.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path

from huggingface_hub import constants

PART, GGUF = ".incomplete", ".gguf"
SINGLE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
INDEXES = tuple(f"{name}.index.json" for name in SINGLE_WEIGHTS)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


def cache_folder() -> Path:
    """The folder of downloaded models, whether it exists or not."""
    return Path(constants.HF_HUB_CACHE)


def repository_folder(repo: str) -> Path:
    """The folder of one hub repository in the cache."""
    return cache_folder() / constants.REPO_ID_SEPARATOR.join(["models", *repo.split("/")])


def is_in_cache(folder: Path) -> bool:
    """Whether a model folder belongs to the cache."""
    return folder.is_relative_to(cache_folder()) or folder.resolve().is_relative_to(cache_folder().resolve())


def name_of(folder: Path) -> str:
    """What people call a model's folder: in the cache the hub id, not the commit that it is named after."""
    if folder.parent.name != "snapshots":
        return folder.name
    prefix = f"models{constants.REPO_ID_SEPARATOR}"
    return folder.parent.parent.name.removeprefix(prefix).replace(constants.REPO_ID_SEPARATOR, "/")


def locate(repo: str) -> Path | None:
    """The files of a hub model: the finished commit, else the newest unfinished one, else None."""
    snapshots, commit = repository_folder(repo) / "snapshots", commit_of(repo)
    if commit is not None and (snapshots / commit).is_dir():
        return snapshots / commit
    found = sorted(snapshots.iterdir(), key=lambda path: path.stat().st_mtime) if snapshots.is_dir() else []
    return found[-1] if found else None


def commit_of(repo: str) -> str | None:
    """The commit of a hub model that was downloaded last, or None."""
    ref = repository_folder(repo) / "refs" / "main"
    return ref.read_text(encoding="utf-8").strip() if ref.is_file() else None


def missing_files(folder: Path) -> list[str]:
    """The files that a model folder still needs: config.json, weights (every shard of the index), a tokenizer.

    A GGUF file is a whole model by itself.
    """
    if folder.suffix == GGUF and folder.is_file():
        return []
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / name).is_file() for name in SINGLE_WEIGHTS):
        index = next((folder / name for name in INDEXES if (folder / name).is_file()), None)
        if index is None:
            missing.append(SINGLE_WEIGHTS[0])
        else:
            missing += [name for name in _shards(index) if name == index.name or not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in TOKENIZERS):
        missing.append(TOKENIZERS[0])
    return missing


def _shards(index: Path) -> list[str]:
    try:
        return sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return [index.name]  # unreadable: it counts as missing


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers would load, safetensors first."""
    if folder.suffix == GGUF:
        return [folder]
    return [*folder.glob("model*.safetensors")] or [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]


def size_on_disk(repo: str) -> int:
    """Bytes of a hub model in the cache, including unfinished parts."""
    files = (file for file in repository_folder(repo).rglob("*") if file.is_symlink() or file.is_file())
    return sum(file.lstat().st_size for file in files)


def has_parts(repo: str) -> bool:
    """Whether an unfinished download has left files."""
    with suppress(OSError):  # it may not be looked into
        return any(part.stat().st_size for part in (repository_folder(repo) / "blobs").glob(f"*{PART}"))
    return False


def remove(repo: str) -> int:
    """Delete a hub model from the cache, including parts; returns the bytes freed. Raises OSError."""
    freed = size_on_disk(repo)
    shutil.rmtree(repository_folder(repo))
    shutil.rmtree(cache_folder() / ".locks" / repository_folder(repo).name, ignore_errors=True)
    return freed


def repositories() -> list[str]:
    """Ids of all hub models in the cache, including those of other programs, and begun ones."""
    prefix = f"models{constants.REPO_ID_SEPARATOR}"
    folders = sorted(cache_folder().glob(f"{prefix}*")) if cache_folder().is_dir() else []
    return ["/".join(folder.name.removeprefix(prefix).split(constants.REPO_ID_SEPARATOR, 1)) for folder in folders]
