"""The retrieval cache (TriForce, arXiv 2404.11912, sec. 4): rows [chosen chunks with the sink | recent tokens].

Keys keep the RoPE phase of their true position, so a new selection moves only chunks that changed. Windowed layers hold
their window. With another policy this is a lossy eviction method (StreamingLLM, H2O).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from core.caches.base import FixedRows, KVShape, Moving
from core.caches.full import FullCache
from core.caches.layer_storage import by_chunk
from core.caches.policies import ChunkPolicy
from core.caches.running_state import RunningState
from core.caches.window_layer import SHORT, WindowLayer
from core.ops.reach import Asked, attend_as

GROWTH = 192  # recent rows beyond the local window before old ones are dropped; bounds tokens between two selections


class HeldPart(NamedTuple):
    """What a retrieval cache holds, by chunk number: its rows are copies of the full cache's."""

    held: Tensor  # [L, H_kv, n] int64 chunk numbers by slot, of the layers that attend to all tokens
    recent_start: int
    length: int


class RetrievalCache:
    """A part of `full`, chosen by `policy`. Tokens that `full` has not seen keep the rows that this cache computed."""

    def __init__(self, full: FullCache, policy: ChunkPolicy) -> None:
        self._full = full
        self.shape: KVShape = full.shape
        self._scaling = self.shape.head_dim**-0.5
        self.moving = Moving()
        self.set_policy(policy)

    def set_policy(self, policy: ChunkPolicy) -> None:
        """Let `policy` choose from now on, and make room for its choice. Forgets what was held."""
        self._policy = policy
        self._chunk_rows = policy.max_chunks * self._full.chunk_size
        self._rows = self._chunk_rows + policy.local_window + self._full.chunk_size + GROWTH
        self.release_buffers()  # free the old buffers before allocating new ones
        self.allocate_buffers()

    def release_buffers(self) -> None:
        """Forget everything and free the memory, until `allocate_buffers`; no pass may run meanwhile."""
        self.moving()
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        self._windows: dict[int, WindowLayer] = {}  # by layer
        self.state = RunningState(self.shape.attending)
        none = (len(self.shape.full_layers), self.shape.num_kv_heads, 0)
        self._held = torch.empty(none, dtype=torch.int64, device=self.shape.device)  # chunk of each slot, [L, H_kv, n]
        self._recent_start = 0  # conversation index of the first recent row
        self._synced = 0  # recent rows before this index are exact copies of the full cache
        self._length = 0

    def allocate_buffers(self) -> None:
        """Allocate the memory again.

        Raises:
            torch.OutOfMemoryError: the device has no room; nothing was allocated.
        """
        rows = [0 if self.shape.reach(layer) else self._rows for layer in range(self.shape.num_layers)]
        k, v = ([self.shape.allocate(num_rows) for num_rows in rows] for _ in "kv")
        backend, capacity = self._full.backend, self._full.capacity
        windows = {
            layer: WindowLayer(self.shape.of(layer), capacity, reach, backend, SHORT)
            for layer, reach in enumerate(self.shape.reaches)
            if reach is not None
        }
        if self.shape.device.type == "cuda":  # recorded passes multiply hidden rows by 0, so they must be finite
            for buffer in (*k, *v):
                buffer.zero_()
        self.k, self.v, self._windows = k, v, windows

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        rows = self._first_recent + self._length - self._recent_start
        held = rows * self.shape.full_reads * self.shape.layer_bytes
        return held + self.shape.window_bytes(self._length) + self.state.nbytes

    @property
    def _first_recent(self) -> int:
        return self._held.shape[2] * self._full.chunk_size

    @property
    def tokens_since_selection(self) -> int:
        """Tokens seen since the last selection, beyond the local window that it kept."""
        return self._length - self._recent_start - self._policy.local_window

    def held_chunks(self) -> Tensor:
        """Chunk numbers held now, [L, H_kv, n] int64; what was loaded, not a proof of what was used."""
        return self._held.clone()

    def select(self) -> None:
        """Adopt everything the full cache has seen: choose chunks again, and move only those that changed."""
        size, length = self._full.chunk_size, self._full.length
        num_eligible = max(0, length - self._policy.local_window) // size
        self._recent_start = num_eligible * size
        wanted = self._policy.choose(num_eligible, self._scaling).to(self.shape.device)
        assert wanted.shape[2] * size <= self._chunk_rows, f"{wanted.shape[2]} chunks in {self._chunk_rows} rows"
        self._hold(wanted, num_eligible)
        self._copy_all_recent(length)
        self._length = self._synced = length
        self.state.adopt(self._full.state.point)

    def _copy_all_recent(self, length: int) -> None:
        self._copy_recent(self._recent_start, length)
        for layer, window in self._windows.items():
            window.adopt(self._full.windows[layer], length)

    def _hold(self, wanted: Tensor, num_eligible: int) -> None:
        """Bring the chunks `wanted` [L, H_kv, n] into the slots; a chunk that stays keeps its slot."""
        held = self._held
        if held.shape != wanted.shape:
            held = torch.full_like(wanted, num_eligible)  # nothing is held: every slot is empty
        held = held.clamp(max=num_eligible)  # free the slots of chunks that a rewind made part of the recent rows
        want = _membership(wanted, num_eligible)  # [L, H_kv, C + 1]
        have = _membership(held, num_eligible)
        layer, head, chunk = (want & ~have)[..., :-1].nonzero(as_tuple=True)  # chunks to copy, by layer, then by head
        slot = (~want.gather(2, held)).nonzero(as_tuple=True)[2]  # each head frees as many as it fills
        assert len(slot) == len(chunk), f"{len(chunk)} chunks for {len(slot)} slots"
        self._held = self._held[..., :0]  # if copying fails, nothing is held
        self._bring_all(layer, head, chunk, slot)
        held[layer, head, slot] = chunk
        self._held = held

    def _bring_all(self, layer: Tensor, head: Tensor, chunk: Tensor, slot: Tensor) -> None:
        """Copy chunks of heads of layers into their slots, [N] each, sorted by layer."""
        kernel, rows = self._full.backend.kernel, self._full.fixed()
        if kernel is not None and rows is not None and not self.shape.reaches and self.shape.device.type == "cpu":
            counts = torch.bincount(layer, minlength=self.shape.num_layers).tolist()
            parts = zip(*(torch.split(numbers, counts) for numbers in (head, chunk, slot)), strict=True)
            for number, where in enumerate(parts):
                kernel.move_chunks(rows.k[number], self.k[number], where, self._full.chunk_size)
                kernel.move_chunks(rows.v[number], self.v[number], where, self._full.chunk_size)
            return
        numbers = torch.tensor(self.shape.full_layers, dtype=torch.int64)
        layer, size = numbers.to(layer.device)[layer] if self.shape.reaches else layer, self._full.chunk_size
        for number, which, k, v in self._full.gather(layer, head, chunk):
            heads, slots = head[which], slot[which]
            by_chunk(self.k[number][0], size)[heads, slots] = k
            by_chunk(self.v[number][0], size)[heads, slots] = v

    def _copy_recent(self, start: int, stop: int) -> None:
        """Take over the full cache's rows of recent tokens [start, stop)."""
        at = self._first_recent + start - self._recent_start
        for layer in self.shape.full_layers:
            k, v = self._full.rows(layer, start, stop)
            self.k[layer][0, :, at : at + stop - start] = k
            self.v[layer][0, :, at : at + stop - start] = v

    @property
    def link_bytes(self) -> int:
        return 0

    def fixed(self) -> FixedRows | None:
        """The rows; None where windows move."""
        if self._windows:
            return None
        held = self._first_recent + self._length - self._recent_start
        return FixedRows(self.k, self.v, held, attend=self._full.backend.attend)

    def set_aside(self) -> HeldPart:
        """The chunk numbers held now, to put back after another answer has used this cache. Moves no rows."""
        return HeldPart(self._held.clone(), self._recent_start, self._length)

    def put_back(self, part: HeldPart, shared: int) -> None:
        """Hold again what was set aside, each chunk in its slot; the full cache must have the same tokens as then.

        Rows of tokens that only this cache had seen are fed again. Moves only rows that differ from the present ones.

        Args:
            shared: leading tokens that stayed the same in between; chunks behind them are always copied.
        """
        size, held = self._full.chunk_size, self._held
        changed = part.held >= shared // size
        if held.shape == part.held.shape:
            changed |= held != part.held
        else:
            changed = torch.ones_like(changed)
        self._held = held[..., :0]  # if copying fails, nothing is held
        self._length = self._synced = self._recent_start = 0
        layer, head, slot = changed.nonzero(as_tuple=True)
        self._bring_all(layer, head, part.held[layer, head, slot], slot)
        self._held, self._recent_start = part.held.clone(), part.recent_start
        self._length = self._synced = min(part.length, self._full.length)
        self._copy_all_recent(self._length)
        self.state.adopt(self._full.state.point)

    def forget(self, part: HeldPart) -> None:
        """Free what was set aside and will not be put back."""

    def unseen_spans(self, total: int) -> list[range]:
        if self.shape.recurrent:
            self._follow(total)
        return [range(self._length, total)]

    def _follow(self, total: int) -> None:
        """Take over the full cache's running states where it has seen as much: this cache's are approximations."""
        seen = self._full.length
        if not self._length <= seen < total:
            return
        if self._first_recent + seen - self._recent_start > self._rows:
            self.select()
            return
        self._copy_recent(self._synced, seen)
        self._length = self._synced = seen
        self.state.adopt(self._full.state.point)

    def begin(self, start: int, num_new: int) -> Tensor:
        """Replace rows that this cache computed by those of the full cache, where it has them; slide to make room."""
        assert start == self._length, f"tokens from {start} do not follow a cache of length {self._length}"
        exact = min(self._full.length, self._length)
        if exact > self._synced:
            self._copy_recent(self._synced, exact)
            for layer, window in self._windows.items():
                window.refresh(self._full.windows[layer], self._synced, exact)
            self._synced = exact
        if self._first_recent + start - self._recent_start + num_new > self._rows:
            self._slide()
        return torch.arange(start, start + num_new)

    def _slide(self) -> None:
        """Drop the oldest recent rows, keeping the local window. Only methods without a full cache come here."""
        first, keep = self._first_recent, self._policy.local_window
        used = self._length - self._recent_start
        for buffer in (*self.k, *self.v):
            buffer[:, :, first : first + keep] = buffer[:, :, first + used - keep : first + used].clone()
        self._recent_start = self._length - keep
        self._synced = max(self._synced, self._recent_start)

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] behind the recent rows."""
        k, v = self.shape.of(layer).check(k, v)
        if (window := self._windows.get(layer)) is not None:
            window.stage(self._length, k, v)
            return
        at = self._first_recent + self._length - self._recent_start
        self.k[layer][:, :, at : at + k.shape[2]] = k
        self.v[layer][:, :, at : at + k.shape[2]] = v

    def attend(self, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        """Causal attention over the chunks held and all recent tokens, or within a layer's window."""
        if (window := self._windows.get(layer)) is not None:
            return window.attend(self._length, q, scaling, asked)
        end = self._first_recent + self._length - self._recent_start + q.shape[2]
        k, v = self.k[layer][:, :, :end], self.v[layer][:, :, :end]
        if asked is not None:
            assert asked.reach is None, f"layer {layer} asks for {asked.reach}, which its config.json does not say"
            return attend_as(q, k, v, scaling, asked, self._full.backend)
        return self._full.backend.attend(q, k, v, scaling)

    def commit(self, num_new: int) -> None:
        self._length += num_new
        for window in self._windows.values():
            window.commit(self._length)
        self.state.commit(self._length)

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; if that is before the recent rows, forget everything."""
        length = min(length, self._length)
        lost = self._full.length < length and self.state.rewindable(length) < length
        if length < self._recent_start or lost or not all(w.reaches_back_to(length) for w in self._windows.values()):
            self._held = self._held[..., :0]
            self._recent_start = length = 0
        self._length = length
        self._synced = min(self._synced, self._length)
        for window in self._windows.values():
            window.truncate(self._length)
        self.state.truncate(self.state.rewindable(self._length))  # `_follow` takes over the full cache's


def _membership(chunks: Tensor, num_chunks: int) -> Tensor:
    """[L, H_kv, n] numbers -> [L, H_kv, num_chunks + 1] bool; the last column is for empty slots."""
    mask = torch.zeros(*chunks.shape[:2], num_chunks + 1, dtype=torch.bool, device=chunks.device)
    return mask.scatter_(2, chunks, True)
