"""`python launch.py models`: the known models and the local ones; downloads a model or deletes it from disk.

Sizes come from shapes or files, never from a table: parameters are counted, keys and values computed.
"""

import argparse
import sys
from dataclasses import asdict
from typing import Any

from app.cli.output import ProgressLine, print_json
from app.formats import disk_size, loading, plural
from app.runtime.data_folder import data_place
from app.runtime.model_folders import NAME, ModelFolders
from app.ui.models.rows import counted
from core.errors import CoreError, InvalidSetting, NotPossibleHere, UnknownModel
from core.models.hub import store
from core.models.hub.catalog import HUB_ID, Known, entries, get_command, known_row, repositories
from core.models.hub.client import look_up
from core.models.hub.download import DownloadProgress, download, still_to_come
from core.models.hub.local import LocalModel, in_cache
from core.models.loading import LoadProgress
from core.planning.fit import MOST_CONTEXT
from core.planning.sizes import kv_bytes_per_token

GIB = float(1 << 30)
CONTEXTS = (32_768, 131_072)  # context lengths for which the size of keys and values is shown
STATES = {"here": "here", "bundled": "bundled", "part": "begun", "none": "-"}


def run(args: argparse.Namespace) -> int:
    """List, show, get or remove. Returns 0.

    Raises:
        CoreError: no such model; the hub, the network or the disk.
    """
    if (args.name is None) != (args.action == "list"):
        what = "takes no name" if args.name else "needs the NAME of a model"
        raise InvalidSetting(f"models {args.action} {what}.", hint="See: python launch.py models --help")
    if args.action == "list":
        list_models(ModelFolders(data_place(args.data_dir) / NAME), as_json=args.json)
    else:
        act = {"show": show_model, "get": get_model, "remove": remove_model}[args.action]
        act(args.name, as_json=args.json)
    return 0


def list_models(brought: ModelFolders, *, as_json: bool) -> None:
    """All rows of the catalogue, targets first, then other models in the hub's cache and those the user brought."""
    rows = [report(row) for row in entries().values()]
    others = [*in_cache(), *brought.all()]
    if as_json:
        print_json({"models": rows, "others_here": list(map(found, others)), "cache": str(store.cache_folder())})
        return
    print(f"{'name':<20}{'context':>10}{'weights':>11}{'KV at 32K':>11}{'at 128K':>9}  {'here':<8}draft, licence")
    for row in rows:
        print(line(row))
    if others:
        print("\nAlso on this machine, for --model:")
    for other in sorted(others, key=lambda one: (one.dims is None, one.name)):
        print(other_line(other))
    print(f"\nDownloads are kept in {store.cache_folder()}. Details: python launch.py models show NAME")


def found(other: LocalModel) -> dict[str, Any]:
    """A model outside the catalogue as JSON."""
    dims = other.dims
    return {
        "name": other.name,
        "path": str(other.path),
        "usable": dims is not None,
        "family": other.family or None,
        "context": dims.max_context if dims else None,
        "weight_bytes": dims.weight_bytes if dims else None,
        "problem": other.problem or None,
    }


def other_line(other: LocalModel) -> str:
    """A model outside the catalogue for people."""
    if other.dims is None:
        return f"{other.name}: not usable. {other.problem} {other.hint}"
    size = f"{other.dims.weight_bytes / 1e9:.2f} GB"
    return f"{other.name}: {other.family}, reads {other.dims.max_context:,} tokens, {size}"


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    kv = [f"{row['kv_bytes'][str(c)] / GIB:.1f}" if str(c) in row["kv_bytes"] else "-" for c in CONTEXTS]
    draft = row["draft"] or ("a draft" if row["role"] == "draft" else "no draft")
    licence = row["license"] + (", gated" if row["gated"] else "")
    size = f"{row['file_bytes'] / 1e9:.2f} GB"
    figures = f"{row['name']:<20}{row['context']:>10,}{size:>11}{kv[0]:>11}{kv[1]:>9}"
    return f"{figures}  {STATES[row['state']]:<8}{draft}, {licence}"


def show_model(name: str, *, as_json: bool) -> None:
    """Everything about one model of the catalogue."""
    row = report(known_row(name))
    if as_json:
        return print_json(row)
    advice, state = row["speculation"], row["state"]
    here = {"bundled": "comes with this project", "here": row["path"], "none": f"no: {get_command(name)}"}
    told = {
        "from": source(row),
        "licence": row["license"] + ("; gated: accept it on the hub before the download" if row["gated"] else ""),
        "context": f"{row['context']:,} tokens",
        "parameters": f"{row['parameters'] / 1e9:.3g} billion, {row['weight_bytes'] / 1e9:.2f} GB as {row['dtype']}",
        "weights": ", ".join(f"{size / 1e9:.2f} GB at {bits} bits" for bits, size in row["bits_bytes"].items()),
        "KV": f"{row['kv_bytes_per_token'] / 1024:.0f} KiB a token"
        + "".join(f", {size / GIB:.1f} GiB at {int(c):,}" for c, size in row["kv_bytes"].items()),
        "draft": row["draft"] or "none: lookup and retrieval draft",
        "chat format": row["chat_format"] or "-",
        "speculation": advice
        and f"budget {advice['budget']:,}, gamma1 {advice['gamma1']}, gamma2 {advice['gamma2']} to start from "
        f"({advice['source']})",
        "loaded with": row["overrides"],
        "checked": row["checked"] and f"{row['checked']}, with the model's card",
        "here": here.get(state, f"in part: {get_command(name)} goes on"),
    }
    print(f"{row['name']}: {row['description']}")
    print("\n".join(f"  {label:<12} {text}" for label, text in told.items() if text))


def source(row: dict[str, Any]) -> str:
    """Where the files of a model come from."""
    if row["gguf"]:
        package, kinds = row["gguf"]["package"], " and ".join(row["gguf"]["kinds"])
        place = f"the wheel {package} of pip's index" if package else f"{row['hub']}, {row['gguf']['file']}"
        return f"{place}, {disk_size(row['file_bytes'])} in {kinds}"
    return str(row["hub"] or row["folder"])


def report(row: Known) -> dict[str, Any]:
    """One model as JSON: the catalogue's row, what was computed from its shape, and its state on this machine."""
    size, state = counted(row.name), state_of(row)
    dtype, weight_bytes = size.dims.disk_dtype, size.num_parameters * size.dims.disk_dtype.itemsize
    kv = kv_bytes_per_token(size.dims, dtype)
    return {
        **{name: value for name, value in asdict(row).items() if name != "config"},
        "context": size.dims.max_context,
        "parameters": size.num_parameters,
        "dtype": str(dtype).removeprefix("torch."),
        "weight_bytes": weight_bytes,
        "file_bytes": row.gguf.size_bytes if row.gguf else weight_bytes,
        "bits_bytes": {str(bits): size.weight_bytes(bits) for bits in (16, 8, 4)},
        "kv_bytes_per_token": kv,
        "kv_bytes": {str(context): kv * context for context in CONTEXTS if context <= size.dims.max_context},
        "usable_context": min(size.dims.max_context, MOST_CONTEXT),
        "state": state,
        "path": str(row.path()) if state in ("here", "bundled") else None,
        "disk_bytes": store.size_on_disk(row.repo) if row.repo else None,
    }


def state_of(row: Known) -> str:
    """One of bundled, here, part, none."""
    if row.folder is not None:
        return "bundled"
    assert row.repo is not None
    path = row.path()
    if path is not None and not store.missing_files(path):
        return "here"
    return "part" if path is not None or store.has_parts(row.repo) else "none"


def repository_of(name: str) -> str:
    """The id in the cache behind a name of the catalogue, or the hub id itself.

    Raises:
        InvalidSetting: the model is bundled. UnknownModel: neither a name nor an id.
    """
    row = entries().get(name)
    if row is None:
        if HUB_ID.fullmatch(name):
            return name
        raise UnknownModel(
            f"There is no model {name!r}.",
            hint="Use a name of: python launch.py models list; or an id like Qwen/Qwen3-8B.",
        )
    if row.repo is None:
        raise InvalidSetting(f"{name} comes with this project.", hint="Choose a model of the hub.")
    return row.repo


def remove_model(name: str, *, as_json: bool) -> None:
    """Delete a model's files from the cache; other programs that use it must download it again."""
    repo = repository_of(name)
    if not store.repository_folder(repo).is_dir():
        raise UnknownModel(f"The model {name} is not on this machine.", hint="See: python launch.py models list")
    try:
        freed = store.remove(repo)
    except OSError as error:
        raise NotPossibleHere(
            f"{name} cannot be removed ({error.strerror}).", hint="Check who may write there."
        ) from error
    if as_json:
        print_json({"model": name, "repository": repo, "freed_bytes": freed})
    else:
        print(f"Removed {name}: {freed / 1e9:.2f} GB freed.")


def get_model(name: str, *, as_json: bool) -> None:
    """Download a model, and its draft if the catalogue has one. Continues an earlier partial download."""
    repos = [repository_of(name), *(repositories(name)[1:] if name in entries() else ())]
    told = []
    for repo in repos:
        try:
            told.append(fetch(repo))
        except CoreError as error:
            if not told:
                raise
            raise type(error)(f"{repos[0]} is here, its draft is not. {error.problem}", hint=error.hint) from error
    if as_json:
        print_json({"model": name, "repositories": told})


def fetch(repo: str) -> dict[str, Any]:
    """Download one repository; prints its exact size first, then progress."""
    repository = look_up(repo)
    to_come = still_to_come(repository)
    kept = repository.size_bytes - to_come
    print(
        f"{repo}: {disk_size(repository.size_bytes)} in {plural(len(repository.files), 'file')}"
        + (f", {disk_size(kept)} are here already" if kept else ""),
        file=sys.stderr,
    )
    line = ProgressLine()
    try:
        for progress in download(repository):
            is_last = progress.file_bytes == progress.file_total_bytes
            line.put(progress_text(progress), is_last=is_last)
    except KeyboardInterrupt:
        arrived = repository.size_bytes - still_to_come(repository)
        kept_now = f"{disk_size(arrived)} are kept" if arrived else "Nothing is kept"
        print(f"\nStopped. {kept_now}. To go on: {get_command(repo)}", file=sys.stderr)
        raise
    finally:
        line.close()
    folder = store.locate(repo)
    print(f"{repo} is in {folder}", file=sys.stderr)
    return {
        "repository": repo,
        "commit": repository.commit,
        "size_bytes": repository.size_bytes,
        "fetched_bytes": to_come,
        "path": str(folder),
    }


def progress_text(progress: DownloadProgress) -> str:
    """[3/9] model-00001-of-00004.safetensors, 42.0 MB/s · 3.11 GB of 16.07 GB · 19% · 5 min left."""
    rate, to_come = progress.bytes_per_second, progress.total_bytes - progress.done_bytes
    whole = LoadProgress(progress.done_bytes, progress.total_bytes, to_come / rate if rate > 0 else None)
    file = f"[{progress.number}/{progress.num_files}] {progress.name}, {rate / 1e6:.1f} MB/s"
    return " · ".join(filter(None, (file, loading(whole))))
