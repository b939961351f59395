"""Names of models and where their files are. The names are data (`catalog.json`); a path works in place of a name."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from core.errors import DamagedAssets, UnknownModel

ROOT = Path(__file__).resolve().parents[2]
CATALOG_FILE = Path(__file__).with_name("catalog.json")
SHAPES_FILE = Path(__file__).with_name("shapes.json")  # sizes to plan with (core/models/shapes.py)
WEIGHTS = ("*.safetensors", "*.bin")
WIDENED = "widened:"  # before the sizes that the bundled target is to have (core/models/widen.py)
BUNDLED = "harbour"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A target and, where one is known, its draft."""

    name: str
    target: Path
    draft: Path | None
    description: str
    limits: str = ""  # what it cannot do, for the reader; empty for full models
    acceptance: tuple[float, float] | None = None  # of levels 1 and 2, as measured with this pair
    widened: str | None = None  # the sizes that the target is made to have when it is loaded


def entries() -> dict[str, ModelEntry]:
    """The catalogue, by name."""
    rows = json.loads(CATALOG_FILE.read_text(encoding="utf-8"))
    return {
        name: ModelEntry(
            name,
            ROOT / row["target"],
            ROOT / row["draft"] if row["draft"] else None,
            row["description"],
            row.get("limits", ""),
            tuple(row["acceptance"]) if "acceptance" in row else None,
        )
        for name, row in rows.items()
    }


def find(name: str) -> ModelEntry:
    """The model called `name`, or the one in the folder `name`.

    Raises:
        UnknownModel: neither exists.
        DamagedAssets: a bundled model lacks files.
    """
    known = entries()
    if name.startswith(WIDENED):
        sizes = name.removeprefix(WIDENED)
        description = f"The bundled target computing the same at the sizes {sizes}, for measuring what those cost."
        return replace(find(BUNDLED), name=name, description=description, widened=sizes)
    if name in known:
        entry = known[name]
        for folder in filter(None, (entry.target, entry.draft)):
            _require_files(folder)
        return entry
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return ModelEntry(folder.resolve().name, folder.resolve(), None, "local folder")
    if name in json.loads(SHAPES_FILE.read_text(encoding="utf-8")):
        raise UnknownModel(
            f"Only the sizes of {name!r} are known here, its files are not.", hint="Give the folder that has them."
        )
    raise UnknownModel(
        f"There is no model {name!r}.",
        hint=f"Use one of: {', '.join(known)}, or the path of a folder with config.json and weights.",
    )


def _require_files(folder: Path) -> None:
    complete = (folder / "config.json").is_file() and any(any(folder.glob(pattern)) for pattern in WEIGHTS)
    if not complete:
        raise DamagedAssets(
            f"The bundled model in {folder.relative_to(ROOT)} is incomplete.", hint=restore_hint(folder)
        )


def restore_hint(folder: Path) -> str:
    """What to do about missing or damaged files of a model folder."""
    if folder.is_relative_to(ROOT):
        return f"Restore it with: git checkout -- {folder.relative_to(ROOT).as_posix()}"
    return "Fetch the model again."
