"""Models of this machine that the catalogue does not know: in the hub's cache, by whatever program, or at a path.

Reads names, sizes and configurations, never weights, and never asks the network.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.errors import CoreError, InvalidSetting, UnsupportedModel
from core.models.hub import store
from core.models.hub.catalog import entries, get_command, place_of, require_files
from core.models.loader import ModelDims, read_config, read_dims
from core.models.param_count import size_in

READERS = "Check who may read it."


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
    known = {row.repo: row.gguf for row in entries().values()}
    for repo in store.repositories():
        place = store.repository_folder(repo)
        try:
            folder = store.locate(repo)
            if folder is None:
                if store.has_parts(repo) and repo not in known:
                    hint = f"Finish it with: {get_command(repo)}"
                    yield LocalModel(name=repo, shown=repo, path=place, problem="Its download was begun.", hint=hint)
                continue
            for file in sorted(folder.glob(f"*{store.GGUF}")) if not known.get(repo) else ():
                yield look_at(str(file), shown=f"{repo}: {file.name}", path=file)
            if repo not in known and (folder / "config.json").is_file():
                yield look_at(repo, shown=repo, path=folder)
        except (OSError, ValueError):  # closed to this program, or no text where a commit is named
            yield LocalModel(name=repo, shown=repo, path=place, problem="Its folder cannot be read.", hint=READERS)


def at_path(typed: str) -> LocalModel:
    """The model in a folder or a file that somebody has named, checked as far as that is possible without loading it.

    A file inside a model's folder means the folder; a folder with one GGUF file means the file.

    Raises:
        InvalidSetting: there is nothing, or nothing that could be meant. CoreError: the model cannot be used.
    """
    words = typed.strip().strip("\"'").strip()
    if not words:
        raise InvalidSetting("No path was given.", hint="Paste the path of a model's folder, or of a .gguf file.")
    try:
        path = Path(words).expanduser()
        path.stat()
        path = _meant(place_of(path))
    except PermissionError as error:
        raise InvalidSetting(f"{words[:200]} may not be read by this program.", hint=READERS) from error
    except (OSError, ValueError, RuntimeError) as error:  # none, too long, a NUL, a link to itself, ~nobody
        raise InvalidSetting(
            f"There is nothing at {words[:200]}.", hint="Check the path, on the machine that runs this."
        ) from error
    found = look_at_path(path)
    if found.dims is None:
        raise UnsupportedModel(found.problem, hint=found.hint)
    size_in(path)  # sizes that make no model
    return found


def _meant(path: Path) -> Path:
    """The folder or the GGUF file that a path stands for. Raises InvalidSetting, OSError."""
    if path.is_file() and path.suffix != store.GGUF:
        path = path.parent
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob(f"*{store.GGUF}"))
        if len(files) > 1:
            raise InvalidSetting(
                f"{path.name} has {len(files)} GGUF files.", hint=f"Name one, such as {files[0].name}."
            )
        path = files[0] if files else path
    return path


def look_at_path(name: str | Path) -> LocalModel:
    """As `look_at`, with the path as the name."""
    path = Path(name)
    return look_at(str(name), shown=path.stem if path.suffix == store.GGUF else path.name, path=path)


def look_at(name: str, *, shown: str, path: Path) -> LocalModel:
    """What is known of a model without loading it; whatever its files hold, this raises nothing."""
    try:
        if path.is_dir() and not (path / "config.json").is_file():
            require_files(path, shown)
        dims, config = read_dims(path), read_config(path)  # first: what cannot be used need not be finished
        require_files(path, shown)
    except CoreError as error:
        problem, hint = error.problem, error.hint
    except OSError as error:
        problem, hint = f"It cannot be read ({error.strerror}).", READERS
    except Exception as error:  # transformers' code for a family may fail in any way on odd values
        problem, hint = f"Its configuration cannot be used ({type(error).__name__}).", "Fetch its files again."
    else:
        return LocalModel(name=name, shown=shown, path=path, family=config.model_type, dims=dims)
    return LocalModel(name=name, shown=shown, path=path, problem=problem, hint=hint)
