"""What keys and values depend on besides the text: weights, configuration, tokenizer, template, number format.

Two engines of the same family compute the same rows from the same token ids, so one may use what the other has read.
Weights are identified by their content. Reading 13 GB for that takes a while, so it is done aside, and digests are kept
beside the saved books and reused while the files' names, sizes and times stay the same.
"""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from core.files import file_digest, replace_file
from core.kv_store.bookfile import FORMAT, as_bytes
from core.models.hub.store import weight_files

if TYPE_CHECKING:
    from core.engine import Engine

# What transformers records in a configuration about itself and about its source.
VOLATILE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache")


class Family(NamedTuple):
    """What must be equal for rows to be reusable."""

    stated: dict[str, str]  # all but the weights
    weights: "Future[str]"  # their digest

    @property
    def parts(self) -> dict[str, str]:
        """All of it. Cost: waits for the weights to be read. Raises OSError: they cannot be read."""
        return {**self.stated, "weights": self.weights.result()}

    @property
    def digest(self) -> str:
        """The digest of all parts. As `parts`."""
        return digest_of(json.dumps(self.parts, sort_keys=True).encode())


def family_of(engine: "Engine", known: Path | None = None) -> Family:
    """The family of an engine's target. Files of its weights are read by a thread.

    Args:
        known: the file that keeps digests of weights; None: none.
    """
    module, shape, chunk = engine.target.module, engine.target.shape, engine.config.retrieval.chunk_size
    # With other chunk sizes of reading and of landmarks the last bit may differ
    pieces = f"{engine.plan.prefill_chunk} tokens a pass, {chunk} a landmark, {engine.info.weights} weights"
    stated = {
        "format": str(FORMAT),
        "config": config_digest(module),
        "text": engine.text.identity,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "shape": " x ".join(map(str, shape[:4])),
        "device": shape.device.type,
        "pieces": pieces,
    }
    if shape.narrow is not None:
        stated["kept as"] = str(shape.narrow).removeprefix("torch.")
    return Family(stated, weights_digest(module, known))


def digest_of(content: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def config_digest(module: nn.Module) -> str:
    """Digest of sizes, RoPE and its scaling, quantisation: everything in the configuration that affects computing."""
    config: Any = getattr(module, "config", None)
    said: dict[str, Any] = config.to_dict() if config is not None else {}
    kept = {name: value for name, value in said.items() if name not in VOLATILE}
    return digest_of(json.dumps(kept, sort_keys=True, default=str).encode())


def weights_digest(module: nn.Module, known: Path | None) -> "Future[str]":
    """Digest of the weights: of the files they were loaded from, read by a thread; else of the parameters, at once."""
    folder, digest = Path(str(getattr(module, "name_or_path", "") or ".")), Future[str]()
    files = sorted(weight_files(folder)) if folder != Path(".") else []
    if not files:
        digest.set_result(parameters_digest(module))
        return digest
    stamps = ((str(file.resolve()), file.stat()) for file in files)
    stamp = json.dumps([[path, found.st_size, found.st_mtime_ns] for path, found in stamps])
    if (kept := _kept(known).get(stamp)) is not None:
        digest.set_result(kept)
    else:  # a program that ends does not wait for it
        threading.Thread(target=_read, args=(files, stamp, known, digest), name="weights", daemon=True).start()
    return digest


def _read(files: Sequence[Path], stamp: str, known: Path | None, digest: "Future[str]") -> None:
    try:
        found = digest_of("".join(map(file_digest, files)).encode())
        _keep({**_kept(known), stamp: found}, known)
        digest.set_result(found)
    except OSError as error:
        digest.set_exception(error)


def parameters_digest(module: nn.Module) -> str:
    """SHA-256 of all parameters, by name. Cost: copies all of them to the host."""
    found = hashlib.sha256()
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            found.update(name.encode())
            found.update(as_bytes(parameter.cpu().contiguous()))
    return found.hexdigest()


def _kept(known: Path | None) -> dict[str, str]:
    """Digests computed earlier; empty if the file is unreadable."""
    if known is None:
        return {}
    try:
        kept = json.loads(known.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(stamp): str(digest) for stamp, digest in kept.items()} if isinstance(kept, Mapping) else {}


def _keep(kept: Mapping[str, str], known: Path | None) -> None:
    """Write the digests atomically. If the disk is full, they are only computed again next time."""
    if known is None:
        return
    with suppress(OSError):
        replace_file(known, json.dumps(kept).encode())
