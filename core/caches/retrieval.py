"""The retrieval cache: a contiguous copy of the chunks of the full cache that matter now, and everything recent.

Rows, per layer and KV head: [selected chunks, the sink among them | recent tokens]. Keys keep the RoPE phase of their
true position, so the order of rows does not matter and a re-selection moves only chunks that changed. With another
policy the same cache is a lossy eviction method (StreamingLLM, H2O) for comparison. TriForce, arXiv 2404.11912, sec. 4.
"""

import torch
from torch import Tensor

from core.caches.base import FixedRows, KVShape
from core.caches.full import FullCache
from core.caches.selection import ChunkPolicy
from core.caches.stores import by_chunk

GROWTH = 192  # recent rows beyond the local window before old ones must go; bounds tokens between two selections


class RetrievalCache:
    """A part of `full`, chosen by `policy`. Tokens that `full` has not seen are kept as this cache computed them."""

    def __init__(self, full: FullCache, policy: ChunkPolicy) -> None:
        self._full = full
        self.shape: KVShape = full.shape
        self._scaling = self.shape.head_dim**-0.5
        self.adopt(policy)

    def adopt(self, policy: ChunkPolicy) -> None:
        """Let `policy` choose from now on, with room for what it may choose. What was held is forgotten."""
        self._policy = policy
        self._chunk_rows = policy.max_chunks * self._full.chunk_size
        self._rows = self._chunk_rows + policy.local_window + self._full.chunk_size + GROWTH
        self.lend_rows()  # the old ones go before new ones are asked for
        self.take_rows()
        self.chunks_moved = 0  # copied by the last selection, over all layers and heads
        self.selections = 0

    def lend_rows(self) -> None:
        """Forget everything and give the memory up, until `take_rows`; no pass may run meanwhile."""
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        none = (self.shape.num_layers, self.shape.num_kv_heads, 0)
        self._held = torch.empty(none, dtype=torch.int64, device=self.shape.device)  # chunk of each slot, [L, H_kv, n]
        self._recent_start = 0  # conversation index of the first recent row
        self._synced = 0  # recent rows before this index are exact copies of the full cache
        self._length = 0

    def take_rows(self) -> None:
        """Take the memory again.

        Raises:
            torch.OutOfMemoryError: the device has no room; nothing was taken.
        """
        k, v = ([self.shape.allocate(self._rows) for _ in range(self.shape.num_layers)] for _ in "kv")
        if self.shape.device.type == "cuda":  # recorded passes multiply rows that they hide by 0: they must be finite
            for buffer in (*k, *v):
                buffer.zero_()
        self.k, self.v = k, v

    @property
    def length(self) -> int:
        """Conversation tokens seen."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes read by one pass."""
        return (self._first_recent + self._length - self._recent_start) * self.shape.bytes_per_token

    @property
    def _first_recent(self) -> int:
        return self._held.shape[2] * self._full.chunk_size

    @property
    def tokens_since_selection(self) -> int:
        """Tokens seen beyond the local window that the last selection kept."""
        return self._length - self._recent_start - self._policy.local_window

    def held_chunks(self) -> Tensor:
        """Chunk numbers held now, [L, H_kv, n] int64; what was loaded, not a proof of what was used."""
        return self._held.clone()

    def select(self) -> None:
        """Adopt everything the full cache has seen, choosing chunks anew and moving only those that changed."""
        size, length = self._full.chunk_size, self._full.length
        num_eligible = max(0, length - self._policy.local_window) // size
        self._recent_start = num_eligible * size
        self.selections += 1
        wanted = self._policy.choose(num_eligible, self._scaling).to(self.shape.device)
        assert wanted.shape[2] * size <= self._chunk_rows, f"{wanted.shape[2]} chunks in {self._chunk_rows} rows"
        self._hold(wanted, num_eligible)
        for layer in range(self.shape.num_layers):
            self._copy_recent(layer, self._recent_start, length)
        self._length = self._synced = length

    def _hold(self, wanted: Tensor, num_eligible: int) -> None:
        """Bring the chunks `wanted` [L, H_kv, n] into the slots; a chunk that stays keeps its slot."""
        held = self._held
        if held.shape != wanted.shape:
            held = torch.full_like(wanted, num_eligible)  # nothing is held: every slot is empty
        held = held.clamp(max=num_eligible)  # chunks that a rewind made part of the recent rows leave their slots
        want = _membership(wanted, num_eligible)  # [L, H_kv, C + 1]
        have = _membership(held, num_eligible)
        layer, head, chunk = (want & ~have)[..., :-1].nonzero(as_tuple=True)  # to bring in, by layer, then by head
        free_layer, free_head, slot = (~want.gather(2, held)).nonzero(as_tuple=True)
        same = torch.equal(layer, free_layer) and torch.equal(head, free_head)
        assert same, "a head must free as many slots as it fills"
        self._held = self._held[..., :0]  # if copying breaks off, nothing is held
        counts = torch.bincount(layer, minlength=self.shape.num_layers).tolist()  # waits for the device
        parts = zip(*(torch.split(numbers, counts) for numbers in (head, chunk, slot)), strict=True)
        for number, (heads, chunks, slots) in enumerate(parts):
            if len(heads):
                self._bring(number, heads, chunks, slots)
        held[layer, head, slot] = chunk
        self._held, self.chunks_moved = held, len(chunk)

    def _bring(self, layer: int, heads: Tensor, chunks: Tensor, slots: Tensor) -> None:
        """Copy chunks of heads into their slots, [N] each."""
        size = self._full.chunk_size
        k, v = self._full.gather(layer, heads, chunks)  # [N, chunk_size * D]
        by_chunk(self.k[layer][0], size)[heads, slots] = k
        by_chunk(self.v[layer][0], size)[heads, slots] = v

    def _copy_recent(self, layer: int, start: int, stop: int) -> None:
        k, v = self._full.rows(layer, start, stop)
        at = self._first_recent + start - self._recent_start
        self.k[layer][0, :, at : at + stop - start] = k
        self.v[layer][0, :, at : at + stop - start] = v

    @property
    def link_bytes(self) -> int:
        """All rows lie on the device."""
        return 0

    def fixed(self) -> FixedRows:
        """Where the rows lie, for recorded passes."""
        return FixedRows(self.k, self.v, self._first_recent + self._length - self._recent_start)

    def missing(self, total: int) -> list[range]:
        """Everything behind the prefix that was seen."""
        return [range(self._length, total)]

    def begin(self, start: int, num_new: int) -> Tensor:
        """Replace own approximations by rows that the full cache has computed meanwhile; make room by sliding."""
        assert start == self._length, f"tokens from {start} do not follow a cache of length {self._length}"
        exact = min(self._full.length, self._length)
        if exact > self._synced:
            for layer in range(self.shape.num_layers):
                self._copy_recent(layer, self._synced, exact)
            self._synced = exact
        if self._first_recent + start - self._recent_start + num_new > self._rows:
            self._slide()
        return torch.arange(start, start + num_new, device=self.shape.device)

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
        at = self._first_recent + self._length - self._recent_start
        self.k[layer][:, :, at : at + k.shape[2]] = k
        self.v[layer][:, :, at : at + k.shape[2]] = v

    def attend(self, layer: int, q: Tensor, scaling: float) -> Tensor:
        """Causal attention over the chunks held and all recent tokens."""
        end = self._first_recent + self._length - self._recent_start + q.shape[2]
        return self._full.backend.attend(q, self.k[layer][:, :, :end], self.v[layer][:, :, :end], scaling)

    def commit(self, num_new: int) -> None:
        """The staged tokens count as seen."""
        self._length += num_new

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; further back than the recent rows reach, forget everything."""
        if length < self._recent_start:
            self._held = self._held[..., :0]
            self._recent_start = length = 0
        self._length = min(self._length, length)
        self._synced = min(self._synced, self._length)


def _membership(chunks: Tensor, num_chunks: int) -> Tensor:
    """[L, H_kv, n] numbers -> [L, H_kv, num_chunks + 1] bool; the last column stands for empty slots."""
    mask = torch.zeros(*chunks.shape[:2], num_chunks + 1, dtype=torch.bool, device=chunks.device)
    return mask.scatter_(2, chunks, True)
