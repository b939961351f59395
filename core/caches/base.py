"""The contract of every key/value cache.

A cache has seen a prefix of the conversation, never its newest token. One forward pass of a model over T new tokens is

    positions = cache.begin(start, T)        # once, before the pass: makes room, says which RoPE positions to use
    cache.stage(layer, k, v)                 # per layer: the new keys and values
    cache.attend(layer, q, scaling, asked)   # per layer: attention to everything seen and to the new tokens, causally
    cache.commit(T)                          # once, after the last layer
    cache.truncate(length)                   # later: forget rejected guesses

Only these methods change a cache. Rows written without `commit` are scratch; the next pass overwrites them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from core.caches.votes import Counting
from core.errors import UnsupportedModel
from core.ops.attention import SCALE
from core.ops.host_attention import HostAttention
from core.ops.host_memory import in_large_pages
from core.ops.kernel import scaled
from core.ops.reach import Asked, Reach

if TYPE_CHECKING:
    from core.caches.query_log import QueryLog


class KVShape(NamedTuple):
    """What a cache needs to know about its model."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    reaches: tuple[Reach | None, ...] = ()  # of each layer; None: it attends to all tokens before. Empty: all layers do
    again: tuple[int, ...] = ()  # layers that later layers without keys of their own read, one for each, in order
    windowed_heads: tuple[int, int] | None = None  # H_kv and D of windowed layers, if others than those above
    # Of a model with recurrent layers: which of its layers attend; all other fields are about these
    attending: tuple[int, ...] = ()
    narrow: torch.dtype | None = None  # of keys and values, where it is not `dtype`; int16: `core.ops.attention`

    def of(self, layer: int) -> "KVShape":
        """The shape with the heads of one layer."""
        if self.windowed_heads is None or self.reach(layer) is None:
            return self
        heads, dim = self.windowed_heads
        return self._replace(num_kv_heads=heads, head_dim=dim, windowed_heads=None)

    def times_read(self, layer: int) -> int:
        """How often a pass reads a layer's keys and values."""
        return 1 + self.again.count(layer)

    @property
    def recurrent(self) -> bool:
        """Whether the model keeps running states, too (`core.caches.running_state`)."""
        return bool(self.attending)

    @property
    def kv_dtype(self) -> torch.dtype:
        """The type that keys and values are kept in."""
        return self.narrow or self.dtype

    @property
    def width(self) -> int:
        """Numbers of a key or a value as it is kept."""
        return self.head_dim + (SCALE if self.narrow == torch.int16 else 0)

    def reach(self, layer: int) -> Reach | None:
        """To what a layer attends; None: to everything."""
        return self.reaches[layer] if self.reaches else None

    @property
    def full_layers(self) -> Sequence[int]:
        """The layers that attend to all tokens."""
        every = range(self.num_layers)
        return [layer for layer in every if self.reaches[layer] is None] if self.reaches else every

    @property
    def layer_bytes(self) -> int:
        """Keys and values of one token in one layer, in bytes."""
        return 2 * self.num_kv_heads * self.width * self.kv_dtype.itemsize

    @property
    def bytes_per_token(self) -> int:
        """Keys and values that every token adds: those in the layers that attend to all tokens, in bytes."""
        return len(self.full_layers) * self.layer_bytes

    @property
    def full_reads(self) -> int:
        """How often a pass reads all tokens of a layer."""
        return sum(self.times_read(layer) for layer in self.full_layers)

    @property
    def window_layer_bytes(self) -> int:
        """Keys and values of one token in one windowed layer, in bytes."""
        layer = next((layer for layer, reach in enumerate(self.reaches) if reach is not None), 0)
        return self.of(layer).layer_bytes

    def window_bytes(self, length: int) -> int:
        """Keys and values that a token behind `length` others reads in all windowed layers, in bytes."""
        rows = sum(
            (length - reach.first(length)) * self.times_read(layer)
            for layer, reach in enumerate(self.reaches)
            if reach is not None
        )
        return rows * self.window_layer_bytes

    def check(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k, v [1, H_kv, T, D] of a layer as they are kept, [1, H_kv, T, width]: rounded before rows attend.

        Checks their shape: a copy would silently broadcast a single head over all.

        Raises:
            UnsupportedModel: the shape is another, or a number is too large for the narrow type.
        """
        width = self.width if k.dtype == self.kv_dtype else self.head_dim  # rows of a saved book are as they are kept
        fits = (1, self.num_kv_heads, k.shape[2], width)
        if k.shape != fits or v.shape != fits:
            raise UnsupportedModel(
                f"A layer of this model has keys {tuple(k.shape)} and values {tuple(v.shape)} (text, heads, tokens, "
                f"dimensions), its config.json says {fits}.",
                hint="Choose another model.",
            )
        return self.kept(k), self.kept(v)

    def kept(self, x: Tensor) -> Tensor:
        """Keys or values x [..., D] as they are kept, [..., width].

        Raises:
            UnsupportedModel: a number is too large.
        """
        if self.narrow in (None, x.dtype):
            return x
        rounded = scaled(x) if self.narrow == torch.int16 else x.to(self.narrow)
        if rounded is None or (rounded.is_floating_point() and not bool(torch.isfinite(rounded).all())):
            raise too_large()
        return rounded

    def allocate(self, num_rows: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for one layer's keys or values, [1, H_kv, num_rows, width], uninitialised: untouched pages cost none.

        dtype: for D numbers of this type instead.

        An odd number of rows is allocated: heads that lie a power of two apart compete for the same cache lines (one
        query at S = 32768, 131072 rows: 5.7 ms; 131073 rows: 5.1 ms).
        """
        width = self.head_dim if dtype else self.width
        rows = torch.empty(1, self.num_kv_heads, num_rows | 1, width, dtype=dtype or self.kv_dtype, device=self.device)
        in_large_pages(rows)
        return rows[:, :, :num_rows]


def too_large() -> UnsupportedModel:
    """The error where keys or values do not fit the narrow type."""
    return UnsupportedModel("This model's keys or values are too large for 16 bits.", hint="Use --kv-bits 32.")


class FixedRows(NamedTuple):
    """Rows that stay where they are during a pass, so that it can be recorded, or be computed in one call."""

    k: list[Tensor]  # per layer [1, H_kv, capacity, width]
    v: list[Tensor]
    held: int  # rows in use; the running pass writes behind them
    log: "QueryLog | None" = None  # takes the queries
    counting: Sequence[Counting | None] = ()  # of each layer; empty: none counts
    attend: Callable[..., Tensor] | None = None  # the function that attends to them; None: `attend` of the cache

    @property
    def capacity(self) -> int:
        """Rows of the buffers."""
        return self.k[0].shape[2]


class Moving:
    """Callbacks before rows are freed or moved, because recorded passes refer to their memory."""

    def __init__(self) -> None:
        self._keepers: list[Callable[[], None]] = []

    def tell(self, keeper: Callable[[], None]) -> None:
        """Register a callback for each time before rows are freed, replaced or moved."""
        self._keepers.append(keeper)

    def __call__(self) -> None:
        """Call every callback: rows are about to be freed, replaced or moved."""
        for keeper in self._keepers:
            keeper()


class RunningPass(Protocol):
    """What a model needs of a cache while it computes."""

    @property
    def length(self) -> int:
        """Conversation tokens before the running pass."""

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Keep k, v [1, H_kv, T, D] of the running pass."""

    def attend(self, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        """Causal attention of q [1, H, T, D] to the held and the staged rows; returns [1, H, T, D].

        Args:
            asked: how it differs from the plain one.
        """


class KVCache(RunningPass, Protocol):
    """Keys and values of one conversation, as one model sees it."""

    moving: Moving

    @property
    def length(self) -> int:
        """Conversation tokens seen (a prefix); the number of rows held may be smaller."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values that one pass reads now."""

    @property
    def link_bytes(self) -> int:
        """Of those, bytes that come from host memory."""

    def fixed(self) -> FixedRows | None:
        """The rows; None while they do not lie at fixed places."""

    def unseen_spans(self, total: int) -> list[range]:
        """Which of the first `total` tokens to feed, in order, so that the cache has seen all. May forget rows."""

    def begin(self, start: int, num_new: int) -> Tensor:
        """Make room for tokens [start, start + num_new) and return their RoPE positions, [T] int64 in host memory.

        Raises:
            ContextTooSmall: the tokens do not fit (caches that drop old rows never raise).
        """

    def commit(self, num_new: int) -> None:
        """Count the staged tokens as seen."""

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; then `self.length <= length` (0 where a cache cannot rewind so far)."""


class CpuShare(NamedTuple):
    """What the host computes in short passes."""

    helper: HostAttention
    share: float  # of each layer's blocks in host memory

    def blocks_of(self, count: int) -> int:
        """Number of a layer's blocks; the same in every pass, so that passes of one row and of many sum alike."""
        return int(self.share * count + 1e-9)  # 0.7 * 10 is 7


class LayerStore(ABC):
    """Keys and values of one layer. What is not abstract is that of rows that stay in place on the device."""

    def open(self, help: CpuShare | None) -> None:  # noqa: B027
        """Begin a pass in which the host attends to a share of its blocks; None: the pass brings all of them."""

    def pieces(self) -> Sequence[Tensor]:
        """The blocks that the pass must bring from the host, in order, in groups."""
        return ()

    @property
    def link_bytes(self) -> int:
        """Bytes of these blocks."""
        return 0

    @abstractmethod
    def stage(self, start: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] as rows [start, start + T); rows before are valid."""

    @abstractmethod
    def attend(
        self, start: int, q: Tensor, scaling: float, asked: Asked | None = None, counting: Counting | None = None
    ) -> Tensor:
        """Causal attention of q [1, H, T, D], whose rows begin at `start`, to themselves and all rows before.

        `counting`: what the rows attend to is counted, where the layer can.
        """

    def commit(self, length: int) -> None:  # noqa: B027
        """Rows [0, length) become valid; the oldest may move."""

    def truncate(self, length: int) -> None:  # noqa: B027
        """Rows from `length` on become scratch."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of rows [start, stop) on the device, each [H_kv, stop - start, D]."""

    def chunks_away(self, chunk_size: int) -> int:
        """Number of leading chunks that lie on the host; all others lie on the device."""
        return 0

    def gather(self, heads: Tensor, chunks: Tensor, away: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
        """Copies of chosen chunks on the device.

        Args:
            heads, chunks: [N] int64 on the device, chunks on the host first.
            away: [2, A] int64 in host memory: heads and chunks of those on the host.
        Returns:
            k, v [N, chunk_size * D].
        """
        raise AssertionError("nothing is chosen in this layer")
