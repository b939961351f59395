"""A model in one GGUF file, as llama.cpp's tools write it: what its header says, and its weights, tensor by tensor.

What a family's files call its sizes and weights is in `core.models.gguf_families`. Needs the package of gguf, which
unpacks the weights.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from core.errors import DamagedAssets, IncompleteModel, UnsupportedModel
from core.models.families import FIXED
from core.models.gguf_families import FREQUENCIES, KINDS, Header, Part, configuration, parts_of, unused
from core.models.gguf_header import AGAIN, PLAIN, StoredTensor, read_header, readable
from core.models.gguf_words import ends_of_text, load_words
from core.models.linear import ROUNDED
from core.models.loading import load_meter
from core.ops.stored_blocks import LAYOUTS, StoredBlocks, cell_bytes

EYES = "the part of a model that sees pictures (mmproj)"
OTHERS = {"mmproj": EYES, "adapter": "an adapter, not a whole model", "imatrix": "a table for quantising"}
OTHERS |= {"clip": EYES, "whisper": "a model that hears speech"}
WORDS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
OF_FEW_BITS = {kind for kind, layout in LAYOUTS.items() if layout.bits <= LAYOUTS[ROUNDED[4]].bits}
AT_ONCE = 1 << 17  # numbers that are unpacked at once: more than the processor's caches hold take twice as long


@dataclass(frozen=True, slots=True)
class GgufFile(Header):
    """A file, of which the header was read."""

    @classmethod
    def read(cls, path: Path) -> "GgufFile":
        """Read the header, once for every state of the file; 0.3 s for a vocabulary of 150,000 tokens.

        Raises:
            UnsupportedModel: it holds something else, or a model that would not be loaded exactly.
            DamagedAssets, IncompleteModel: it cannot be read, or its end is missing.
        """
        status = path.stat()
        return _read(path, status.st_size, status.st_mtime_ns)

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights once they are unpacked, unless another one is computed with."""
        kinds = {tensor.kind for tensor in self.tensors.values()}
        if not kinds <= set(PLAIN):
            return torch.bfloat16
        return next((PLAIN[kind] for kind in ("BF16", "F16") if kind in kinds), torch.float32)

    @property
    def packed_bytes(self) -> int:
        """Of the weights, matrices in the 16 bits of the file where it has such, and the rest in 32."""
        return sum(_packed_bytes(one) for name, one in self.tensors.items() if name != FREQUENCIES)

    @property
    def narrow(self) -> int:
        """Numbers of linear layers that have no more bits than a self-draft's, which shares them."""
        embeddings = "token_embd.weight" if "output.weight" in self.tensors else ""
        held = (one for name, one in self.tensors.items() if name != embeddings and one.kind in OF_FEW_BITS)
        return sum(math.prod(one.shape) for one in held if len(one.shape) == 2)

    def config(self) -> PreTrainedConfig:
        """The configuration that the header stands for.

        Raises:
            UnsupportedModel: it states something that is not known of its family.
            DamagedAssets: it states no model.
        """
        if "rope_factors_long.weight" in self.tensors:
            raise UnsupportedModel(
                f"{self.path.name} changes its rotary frequencies with the length of the text (longrope).", hint=FIXED
            )
        divisors = self.tensors.get(FREQUENCIES)
        with readable(self.path):
            return configuration(self, None if divisors is None else torch.cat(list(self.numbers(divisors))))

    def parts(self, model: nn.Module, config: PreTrainedConfig) -> dict[str, list[Part]]:
        """The tensors that fill each of the weights of a model of transformers, tied ones once.

        Raises:
            UnsupportedModel: one is not known of the family, or a tensor would be left over.
        """
        held, usual = set(model.state_dict()), _names(self.family, config.num_hidden_layers)
        names = [name for name, _ in model.named_parameters()]
        names += [name for name, _ in model.named_buffers() if name in held]
        found = {name: parts_of(name, config, self, usual(name)) for name in names}
        used = {part.tensor for parts in found.values() for part in parts}
        if left := set(self.tensors) - used - unused(self, config):
            raise self.unknown(f"the tensor {min(left)}")
        return found

    def blocks(self, weight: Tensor, parts: Sequence[Part]) -> StoredBlocks | None:
        """What fills a weight [O, I], if it is whole rows of blocks that the kernel multiplies with as they are.

        Of one tensor that is in the weight's order, the file itself, mapped to memory.
        """
        tensors = [tensor for part in parts if (tensor := self.tensors.get(part.tensor)) is not None]
        kinds = {tensor.kind for tensor in tensors}
        changed = any(part.whole is not None for part in parts)
        if weight.ndim != 2 or len(tensors) < len(parts) or changed or len(kinds) != 1 or not kinds <= set(LAYOUTS):
            return None
        rows, (kind,) = torch.arange(len(weight))[:, None], kinds
        orders = [(part.view(rows) if part.view else rows).flatten() for part in parts]
        shapes = [(len(order), weight.shape[1]) for order in orders]
        if [tensor.shape for tensor in tensors] != shapes or sum(map(len, orders)) != len(weight):
            return None
        stored = [
            torch.from_numpy(
                np.memmap(self.path, np.uint8, "c", tensor.start, (len(order), tensor.num_bytes // len(order)))
            )
            for order, tensor in zip(orders, tensors, strict=True)
        ]
        if len(parts) == 1 and parts[0].view is None:
            return StoredBlocks(kind, stored[0])
        blocks = torch.empty(len(weight), stored[0].shape[1], dtype=torch.uint8)
        blocks[torch.cat(orders)] = torch.cat(stored)
        return StoredBlocks(kind, blocks)

    def numbers(self, tensor: StoredTensor, of: int = 1) -> Iterator[Tensor]:
        """A tensor's numbers, unpacked some at a time, always a multiple of `of`."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType[tensor.kind]
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        least = math.lcm(of, per_block)
        step, left = least * max(1, AT_ONCE // least) // per_block * block_bytes, tensor.num_bytes
        with self.path.open("rb", buffering=0) as file:
            file.seek(tensor.start)
            while left:
                read = bytearray(min(step, left))
                if file.readinto(read) < len(read):
                    raise OSError("a file that has become shorter")
                left -= len(read)
                if tensor.kind in PLAIN:
                    yield torch.frombuffer(read, dtype=tensor.dtype)
                    continue
                with np.errstate(all="ignore"):  # a scale that is no number is unpacked as such
                    found = dequantize(np.frombuffer(read, np.uint8)[None], kind)
                yield torch.from_numpy(found)[0]


def _packed_bytes(tensor: StoredTensor) -> int:
    """Of a tensor in the kernel's memory."""
    if len(tensor.shape) != 2:
        return 4 * math.prod(tensor.shape)
    if tensor.kind in LAYOUTS:
        return cell_bytes(tensor.kind, *tensor.shape)
    return math.prod(tensor.shape) * tensor.dtype.itemsize


@functools.lru_cache(maxsize=32)
def _read(path: Path, size: int, _changed: int) -> GgufFile:
    said, tensors = read_header(path)
    family = str(said["general.architecture"])
    refuse_others(path.name, said, family)
    with readable(path):
        end = max((one.start + one.num_bytes for one in tensors.values()), default=size + 1)
        if end > size:
            raise IncompleteModel(
                f"{path.name} is cut short: it has {size:,} of {end:,} bytes.",
                hint="Finish its download, or fetch it again.",
            )
        rows, known = tensors["token_embd.weight"].shape[0], len(said["tokenizer.ggml.tokens"])
        if rows != known:
            raise DamagedAssets(f"{path.name} has {known:,} tokens, and weights for {rows:,}.", hint=AGAIN)
        sizes = {name: value for name, value in said.items() if not name.startswith(WORDS)}
        return GgufFile(path, family, sizes, ends_of_text(said), tensors)


def load_gguf_words(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a file. Raises as `GgufFile.read`."""
    GgufFile.read(path)
    with readable(path, "tokenizer"):
        return load_words(path, read_header(path)[0])


@functools.cache
def _names(family: str, layers: int) -> Callable[[str], str | None]:
    """gguf's own table: the tensor that holds one of transformers' weights."""
    import gguf

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[family], layers)
    return lambda name: names.get_name(name, (".weight", ".bias"))


def refuse_others(name: str, said: Mapping[str, Any], family: str) -> None:
    """Refuse what is no whole text model of a tested family.

    Raises:
        UnsupportedModel: says what it is.
    """
    if found := OTHERS.get(str(said.get("general.type", "model"))) or OTHERS.get(family):
        raise UnsupportedModel(f"{name} is {found}.", hint="Choose the file with the text model.")
    if (parts := said.get("split.count", 1)) > 1:
        raise UnsupportedModel(
            f"{name} is one of {parts} parts of a file.", hint="Join them first: llama-gguf-split --merge PART1 WHOLE"
        )
    if family not in KINDS:
        raise UnsupportedModel(
            f"{name} holds a model of the family {family!r}, whose GGUF files were not compared with folders.",
            hint="Its folder with safetensors may be served: see assets/docs/families.md.",
        )


def load_gguf(
    path: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype | None,
    attention: str,
    *,
    as_stored: bool = False,
    told_bytes: float = 0,
) -> nn.Module:
    """The model on the CPU. Memory never holds more than its weights and some numbers that are being unpacked.

    Args:
        dtype: of the weights; None: each in the narrowest type that holds what the file has.
        as_stored: weights whose blocks the kernel multiplies with are not filled; `core.models.linear.pack` finds the
            blocks by them.
        told_bytes: what the load meter is told in all, in proportion to the bytes that were read.
    Raises:
        UnsupportedModel: the file has tensors that transformers' model has not.
        DamagedAssets: tensors are missing or of another size.
        LoadingStopped: the user has stopped it.
    """
    file, meter = GgufFile.read(path), load_meter()
    with no_init_weights():  # memory that nothing has written to is not taken
        model = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])._from_config(
            config, dtype=dtype or torch.float32, attn_implementation=attention
        )
    model.tie_weights()
    wide = [re.compile(rf"(?:^|\.){re.escape(part)}(?:\.|$)") for part in model._keep_in_fp32_modules_strict or ()]
    weights = file.parts(model, config)
    used = {file.tensors[part.tensor] for parts in weights.values() for part in parts if part.tensor in file.tensors}
    told_share = told_bytes / sum(tensor.num_bytes for tensor in used)
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, parts in weights.items():
        weight = state[name]
        if as_stored and (blocks := file.blocks(weight, parts)) is not None:
            cast(Any, weight).stored_blocks = blocks
            continue
        kinds = {file.tensors[part.tensor].dtype for part in parts if part.tensor in file.tensors}
        kept = dtype or (kinds.pop() if len(kinds) == 1 else torch.float32)
        if any(pattern.search(name) for pattern in wide):
            kept = torch.float32
        if kept != weight.dtype and isinstance(weight, nn.Parameter):  # buffers have a type of their own
            weight.data = torch.empty(weight.shape, dtype=kept)
        for part in parts:
            view, tensor = part.view(weight.data) if part.view else weight.data, file.tensors.get(part.tensor)
            if tensor is None or not _fits(view, tensor.shape, exactly=part.view is None):
                problem = f"{part.tensor} is missing or of another size"
                raise DamagedAssets(f"The weights in {path.name} do not fit its header: {problem}.", hint=AGAIN)
            for filled in _fill(view, file.numbers(tensor, view[0].numel()), part):
                meter.add(told_share * tensor.num_bytes * filled / view.numel())
    model.config.name_or_path = str(path)
    return cast(nn.Module, model.eval())


def _fits(view: Tensor, shape: tuple[int, ...], *, exactly: bool) -> bool:
    if exactly:
        return [size for size in view.shape if size > 1] == [size for size in shape if size > 1]
    return view.numel() == math.prod(shape) and (len(shape) == 1 or view.shape[-1] == shape[-1])


def _fill(view: Tensor, numbers: Iterator[Tensor], part: Part) -> Iterator[int]:
    """Write numbers into a view of a weight, in its order, some at a time; how many."""
    if part.whole is not None:
        numbers = iter([part.whole(torch.cat(list(numbers)).view(view.shape))])
    at = 0
    for some in numbers:
        rows = some.reshape(-1, *view.shape[1:])
        view[at : at + len(rows)] = rows
        at += len(rows)
        yield rows.numel()
