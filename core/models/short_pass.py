"""Passes of few tokens through a Llama-like model on a processor, with one call of the kernel between two attentions.

The modules of transformers take some 40 small operations a layer. For a handful of rows their calls cost more than what
they compute (2 cores, the bundled target, one row: 3.0 ms of Python and dispatch a pass, 0.5 so). The kernel computes
the same: norms, products, rotary positions, SiLU. Keys, values and attention go through the cache as always, or, where
its rows stand still, through the same call.

Only families whose layers were compared are known here, and each model is tried once against its own modules.
"""

import ctypes
import logging
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from core.caches.base import FixedRows, KVShape, RunningPass, too_large
from core.caches.full import FullCache
from core.caches.votes import Counted
from core.models.families import FIXED_ROPE
from core.models.hf_attention import forward
from core.models.layer_reach import reaches_of
from core.models.layerwise import DecoderLayers
from core.models.linear import FewRowsNorm, PackedLinear, exact_products
from core.ops.attention import SCALE
from core.ops.kernel_structs import DecoderSizes, ModelSizes, ScratchPointers
from core.ops.native import MOST_DIM, MOST_TOKENS, VOTERS

log = logging.getLogger(__name__)

BLOCK = 1024  # positions whose rotations are computed together
MOST_BLOCKS = 16  # kept: conversations that are decoded together have one each
TRIED = 5  # tokens of the comparison
TOLERANCE = 1e-4  # of logits, relative to the largest

_made: "WeakKeyDictionary[nn.Module, ShortPass | None]" = WeakKeyDictionary()  # caches of one model share its memory


class ShortPass:
    """Computes logits of few tokens, each as if it were alone. One thread at a time, like the model itself.

    Memory for them is kept: it grows to the most tokens of a pass.
    """

    def __init__(self, model: nn.Module) -> None:
        """`model` must be one that `short_pass_of` accepts."""
        body = cast(Any, model).model
        self._body: Any = body
        self._head = cast(PackedLinear, cast(Any, model).lm_head)
        self.kernel, self._vocab = self._head.kernel, int(self._head.out_features)
        layers = list(body.layers)
        first = layers[0].self_attn
        self._dim, hidden = int(first.head_dim), first.q_proj.in_features
        heads, kv_heads = first.q_proj.out_features // self._dim, first.k_proj.out_features // self._dim
        self._layers = [_decoder(layer, self._dim) for layer in layers]
        wide = max(heads * self._dim, layers[0].mlp.gate_proj.out_features)
        self._widths = (hidden, hidden, wide, max(wide, 2 * kv_heads * self._dim))
        self._counts = (heads, kv_heads, kv_heads)
        self._pointers = (ctypes.c_void_p * len(self._layers))(*map(ctypes.addressof, self._layers))
        self._whole = ModelSizes(
            ctypes.addressof(self._pointers),
            len(self._layers),
            body.norm.weight.data_ptr(),
            ctypes.addressof(self._head.sizes),
            body.norm.variance_epsilon,
        )
        self._make_room(MOST_TOKENS)
        self._rotations: dict[int, tuple[Tensor, Tensor]] = {}  # by the first position of a block

    @property
    def shape(self) -> KVShape:
        """What a cache needs to know of the model."""
        return KVShape(len(self._layers), *self._counts[:2], self._dim, torch.float32, torch.device("cpu"))

    def _make_room(self, rows: int) -> None:
        self._memory = [torch.empty(rows, width, dtype=torch.float32) for width in self._widths]
        self._scratch = ScratchPointers(*(memory.data_ptr() for memory in self._memory))
        heads = (*self._counts, self._counts[0])  # of q, k, v and what was attended to
        self._between = [torch.empty(rows * count * self._dim, dtype=torch.float32) for count in heads]

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: RunningPass,
        keep: int | Tensor,
        rows: FixedRows | None = None,
    ) -> Tensor:
        """As `core.models.hf_attention.forward`: tokens [T] at positions [T]; logits [keep, V].

        Args:
            rows: the cache's, if they stand still: where the kernel can, it then computes the whole pass in one call.
        """
        count, dim = len(tokens), self._dim
        if count > len(self._memory[0]):
            self._make_room(count)
        self._memory[0][:count] = self._body.embed_tokens(tokens)
        cos, sin = self._rotation(positions.tolist())
        q, k, v = (
            own[: count * n * dim].view(1, n, count, dim) for own, n in zip(self._between, self._counts, strict=False)
        )
        heads = (cos, sin, q, k, v)
        if rows is not None and isinstance(keep, int) and self._in_one_call(rows):
            kept, memory = (rows.k, rows.v), (*heads, self._between[3])
            queries, counting = rows.log.rows(rows.held) if rows.log else None, [own for own in rows.counting if own]
            chunk, taken = counting[0].chunk_size if counting else 0, (kept, rows.held, memory, keep, self._vocab)
            found = self.kernel.whole_pass(self._whole, self._scratch, *taken, queries, chunk)
            if found is None:
                raise too_large()
            for own, votes in zip(counting, found[1], strict=False):  # none, where these rows cannot be counted
                own.put(Counted(rows.held, VOTERS, votes))
            return found[0]
        done, attended = None, None
        for number, layer in enumerate(self._layers):
            self.kernel.between(done, layer, self._scratch, attended, heads, count)
            cache.stage(number, k, v)
            attended = cache.attend(number, q, dim**-0.5).contiguous()
            done = layer
        self.kernel.between(done, None, self._scratch, attended, heads, count)
        x = self._memory[0][:count][keep if isinstance(keep, Tensor) else slice(count - keep, count)]
        norm = self._body.norm
        return self.kernel.product(self.kernel.norm(x, norm.weight, norm.variance_epsilon), self._head.sizes)

    def _in_one_call(self, rows: FixedRows) -> bool:
        known = rows.k[0].dtype in self.kernel.puts and rows.attend is self.kernel
        shape, width = (len(rows.k), rows.k[0].shape[1]), self._dim + (SCALE if rows.k[0].dtype == torch.int16 else 0)
        return known and shape == (len(self._layers), self._counts[1]) and rows.k[0].shape[3] == width

    def _rotation(self, positions: list[int]) -> tuple[Tensor, Tensor]:
        """cos and sin of positions, [T, D] each."""
        found, at = [], 0
        for end in range(1, len(positions) + 1):  # consecutive ones lie beside each other
            if end == len(positions) or positions[end] != positions[end - 1] + 1 or end - at == MOST_TOKENS:
                found.append(self._consecutive(positions[at], end - at))
                at = end
        if len(found) == 1:
            return found[0]
        cos, sin = zip(*found, strict=True)
        return torch.cat(cos), torch.cat(sin)

    def _consecutive(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        first = start // BLOCK * BLOCK
        if first not in self._rotations:
            positions = torch.arange(first, first + BLOCK + MOST_TOKENS)
            cos, sin = self._body.rotary_emb(self._memory[0], positions[None])
            while len(self._rotations) >= MOST_BLOCKS:
                del self._rotations[next(iter(self._rotations))]
            self._rotations[first] = cos[0].contiguous(), sin[0].contiguous()
        rows = slice(start - first, start - first + count)
        return self._rotations[first][0][rows], self._rotations[first][1][rows]


def short_pass_of(model: nn.Module) -> ShortPass | None:
    """The short pass of a model whose layers were replaced by those of `core.models.linear`; None: it has none."""
    if model not in _made:
        short = ShortPass(model) if _is_known(model) else None
        if short is not None and not _agrees(model, short):
            log.info("short passes go through the modules: %s computes something else", type(model).__name__)
            short = None
        _made[model] = short
    return _made[model]


def _is_known(model: nn.Module) -> bool:
    whole, decoder = cast(Any, model), DecoderLayers.of(model) if hasattr(model, "config") else None
    if decoder is None or not len(decoder.layers) or not type(model).__name__.endswith("ForCausalLM"):
        return False
    if getattr(decoder.rotary, "rope_type", "") not in FIXED_ROPE or reaches_of(whole.config):
        return False
    linear, norms = [whole.lm_head], [whole.model.norm]
    for layer in decoder.layers:
        own_linear, own_norms = _decoder_parts(layer)
        linear += own_linear
        norms += own_norms
    known = all(isinstance(part, PackedLinear) for part in linear)
    known &= all(isinstance(part, FewRowsNorm) for part in norms)
    dim = cast(Any, decoder.layers[0]).self_attn.head_dim
    return known and dim % 8 == 0 and 0 < dim <= MOST_DIM


def _decoder_parts(layer: Any) -> tuple[list[Any], list[Any]]:
    attention, mlp = layer.self_attn, layer.mlp
    linear = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [norm for name in ("q_norm", "k_norm") if (norm := getattr(attention, name, None)) is not None]
    return [*linear, mlp.gate_proj, mlp.up_proj, mlp.down_proj], norms


def _decoder(layer: Any, dim: int) -> DecoderSizes:
    linear, norms = _decoder_parts(layer)
    weights = [norm.weight.data_ptr() for norm in norms]
    weights += [None] * (4 - len(weights))
    heads = linear[0].out_features // dim, linear[1].out_features // dim
    return DecoderSizes(*weights, *(part.sizes for part in linear), *heads, dim, norms[0].variance_epsilon)


def _agrees(model: nn.Module, short: ShortPass) -> bool:
    """Whether both give the same logits for a few tokens, up to rounding."""
    positions = torch.arange(BLOCK - 1, BLOCK - 1 + TRIED)
    tokens = positions % cast(Any, model).config.vocab_size
    with torch.inference_mode(), exact_products(model):
        wanted = forward(model, tokens, positions, FullCache(short.shape, TRIED, TRIED), TRIED)
        found = short(tokens, positions, FullCache(short.shape, TRIED, TRIED), TRIED)
    return torch.allclose(found, wanted, rtol=0.0, atol=TOLERANCE * float(wanted.abs().max()))
