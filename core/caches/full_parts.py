"""What the full cache hands out: chosen chunks, the end of a conversation, and what it remembers of a length."""

from typing import NamedTuple

from torch import Tensor

from core.caches.query_log import SavedQueries
from core.caches.running_state import Point
from core.caches.window_layer import WindowRows


class Gathered(NamedTuple):
    """Chosen chunks of one layer."""

    layer: int
    which: Tensor  # [n] int64: indices into the requested chunks
    k: Tensor  # [n, chunk_size * D]
    v: Tensor


class Suffix(NamedTuple):
    """The end of a conversation, set aside."""

    start: int
    num_tokens: int
    rows: list[tuple[Tensor, Tensor]]  # k, v of each layer that attends to all tokens: [H_kv, T, D]
    windows: list[WindowRows]  # of each windowed layer
    queries: SavedQueries
    state: Point | None = None  # of recurrent layers, at its end


class Mark(NamedTuple):
    """What is remembered of a length, in host memory."""

    queries: Tensor  # the newest ones [L, H, W, D] of the layers that attend to all tokens
    windows: list[WindowRows]  # what later tokens attend to, of each windowed layer
