"""What keys and values depend on besides the text: weights, configuration, tokenizer, template, number format.

Two engines of the same family compute the same rows from the same token ids, so one may use what the other has read.
Weights are identified by their content. Reading 13 GB for that takes a while, so digests are kept beside the saved
books and reused while the files' names, sizes and times stay the same.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from core.caches.base import KVShape
from core.kv_store.bookfile import FORMAT, as_bytes
from core.models.hub.store import weight_files

# What transformers records in a configuration about itself and about its source.
VOLATILE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache")
PIECE_BYTES = 8 << 20  # of a file, hashed at a time


class Family(NamedTuple):
    """What must be equal for rows to be reusable."""

    digest: str
    parts: dict[str, str]


def family_of(module: nn.Module, shape: KVShape, text: str, *, pieces: str, known: Path | None) -> Family:
    """The family of a loaded target.

    Args:
        module: as transformers loads it, with `config` and the folder it came from.
        text: digest of tokenizer and chat template, see `ChatText.identity`.
        pieces: the chunk sizes of reading and of landmarks: with others the last bit may differ.
        known: the file that keeps digests of weights; None: none.
    """
    parts = {
        "format": str(FORMAT),
        "weights": weights_digest(module, known),
        "config": config_digest(module),
        "text": text,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "shape": " x ".join(map(str, shape[:4])),
        "device": shape.device.type,
        "pieces": pieces,
    }
    if shape.narrow is not None:
        parts["kept as"] = str(shape.narrow).removeprefix("torch.")
    return Family(digest_of(json.dumps(parts, sort_keys=True).encode()), parts)


def digest_of(content: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def config_digest(module: nn.Module) -> str:
    """Digest of sizes, RoPE and its scaling, quantisation: everything in the configuration that affects computing."""
    config: Any = getattr(module, "config", None)
    said: dict[str, Any] = config.to_dict() if config is not None else {}
    kept = {name: value for name, value in said.items() if name not in VOLATILE}
    return digest_of(json.dumps(kept, sort_keys=True, default=str).encode())


def weights_digest(module: nn.Module, known: Path | None) -> str:
    """Digest of the weights: of the files they were loaded from, else of the parameters themselves."""
    folder = Path(str(getattr(module, "name_or_path", "") or "."))
    files = sorted(weight_files(folder)) if folder != Path(".") else []
    if not files:
        return parameters_digest(module)
    stamp = json.dumps([[str(file.resolve()), *_stamp(file)] for file in files])
    kept = _kept(known)
    if stamp not in kept:
        with ThreadPoolExecutor(min(4, len(files))) as pool:
            digests = list(pool.map(file_digest, files))
        kept = {**kept, stamp: digest_of("".join(digests).encode())}
        _keep(kept, known)
    return kept[stamp]


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def file_digest(file: Path) -> str:
    """SHA-256 of a file. Cost: reads it; threads can hash several files at a time."""
    found, piece = hashlib.sha256(), memoryview(bytearray(PIECE_BYTES))
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(piece):
            found.update(piece[:count])
    return found.hexdigest()


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
    draft = known.with_name(f"{known.name}.{secrets.token_hex(4)}")
    with suppress(OSError):
        draft.write_text(json.dumps(kept), encoding="utf-8")
        os.replace(draft, known)
    draft.unlink(missing_ok=True)
