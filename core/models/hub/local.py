"""Models of this machine that the catalogue does not know: in the hub's cache, by whatever program, or at a path.

Reads names, sizes and configurations, never weights, and never asks the network.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.errors import CoreError, InvalidSetting
from core.models.hub import store
from core.models.hub.catalog import entries, find, get_command, require_files
from core.models.loader import ModelDims, read_config, read_dims


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model, and whether it can be used here."""

    name: str  # what `find` takes: a hub id or a path
    shown: str  # for people
    path: Path
    family: str = ""
    dims: ModelDims | None = None  # None: it cannot be used
    problem: str = ""  # why not
    hint: str = ""


def in_cache() -> Iterator[LocalModel]:
    """The text models of the hub's cache that are not in the catalogue, and those of other kinds with the reason."""
    known = {row.hub for row in entries().values()}
    for repo in store.repositories():
        folder = store.locate(repo)
        if folder is None:
            if store.has_parts(repo) and repo not in known:
                hint = f"Finish it with: {get_command(repo)}"
                place = store.repository_folder(repo)
                yield LocalModel(name=repo, shown=repo, path=place, problem="Its download was begun.", hint=hint)
            continue
        for file in sorted(folder.glob(f"*{store.GGUF}")):
            yield look_at(str(file), shown=f"{repo}: {file.name}", path=file)
        if repo not in known and (folder / "config.json").is_file():
            yield look_at(repo, shown=repo, path=folder)


def at_path(typed: str) -> LocalModel:
    """The model in a folder or a file that somebody has named, checked as far as that is possible without loading it.

    A file inside a model's folder means the folder; a folder with one GGUF file means the file.

    Raises:
        InvalidSetting: there is nothing, or nothing that could be meant. CoreError: the model cannot be used.
    """
    words = typed.strip().strip("\"'").strip()
    if not words:
        raise InvalidSetting("No path was given.", hint="Paste the path of a model's folder, or of a .gguf file.")
    path = Path(words).expanduser()
    try:
        exists, path = path.exists(), path.resolve()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a link to itself
        exists = False
    if not exists:
        raise InvalidSetting(
            f"There is nothing at {words[:200]}.", hint="Check the path, on the machine that runs this."
        )
    if path.is_file() and path.suffix != store.GGUF:
        path = path.parent
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob(f"*{store.GGUF}"))
        if len(files) > 1:
            raise InvalidSetting(
                f"{path.name} has {len(files)} GGUF files.", hint=f"Name one, such as {files[0].name}."
            )
        path = files[0] if files else path
    require_files(find(str(path)).target, path.name)
    read_dims(path)
    return look_at(str(path), shown=path.stem if path.is_file() else path.name, path=path)


def look_at(name: str, *, shown: str, path: Path) -> LocalModel:
    """What is known of a model without loading it."""
    try:
        if path.is_dir() and not (path / "config.json").is_file():
            require_files(path, name)
        dims, config = read_dims(path), read_config(path)  # first: what cannot be used need not be finished
        require_files(path, name)
    except CoreError as error:
        return LocalModel(name=name, shown=shown, path=path, problem=error.problem, hint=error.hint)
    except OSError as error:
        problem = f"It cannot be read ({error.strerror})."
        return LocalModel(name=name, shown=shown, path=path, problem=problem, hint="Check who may read it.")
    return LocalModel(name=name, shown=shown, path=path, family=config.model_type, dims=dims)
