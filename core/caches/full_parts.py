"""Arguments and results of the full cache: where layers lie, the end of a conversation, marks."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from core.caches.base import KVShape
from core.caches.layer_storage import piece_shape
from core.caches.query_log import SavedQueries
from core.caches.running_state import Point
from core.caches.window_layer import WindowRows
from core.ops.transfer import PrefetchRing


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Which layers lie in host memory, and the size of the blocks that cross the link."""

    num_resident: int = 0  # the first of the layers that attend to all tokens; windowed ones always are
    block_rows: int = 4096  # keys and values that move to the host at a time; a multiple of the chunk size
    group: int = 1  # blocks that cross the link to the device at a time
    num_slots: int = 3  # buffers of the ring

    def ring(self, shape: KVShape) -> PrefetchRing:
        """The ring that all offloaded layers share."""
        piece = piece_shape(shape, self.block_rows)
        return PrefetchRing(piece, shape.kv_dtype, shape.device, self.num_slots, self.group)


class Suffix(NamedTuple):
    """The end of a conversation, set aside."""

    start: int
    num_tokens: int
    rows: list[tuple[Tensor, Tensor]]  # k, v of each layer that attends to all tokens: [H_kv, T, D]
    windows: list[WindowRows]  # of each windowed layer
    queries: SavedQueries
    state: Point  # of recurrent layers, at its end


class Mark(NamedTuple):
    """What a rewind to a length needs, in host memory."""

    queries: Tensor  # the newest ones [L, H, W, D] of the layers that attend to all tokens
    votes: dict[int, Tensor]  # of the newest tokens, by layer: [H_kv, C]
