"""Where the keys and values of one layer lie: on the device, or in host memory with their newest rows on the device.

A store holds rows [0, length) and scratch behind them. Layers are independent, so a cache may offload only some.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.caches.base import CpuShare, KVShape, LayerStore
from core.caches.votes import Counted, Counting
from core.ops.attention import Partial, add_part, union
from core.ops.backend import Backend
from core.ops.host_attention import HostAttention
from core.ops.native import VOTERS
from core.ops.reach import Asked, attend_as, partials_as, with_sinks
from core.ops.scores import Tally
from core.ops.transfer import HostRows, PrefetchRing

# Newest rows that stay on the device when a block goes to the host: more than a round's guesses, so that forgetting
# rejected guesses never reaches into a block.
KEPT_ROWS = 128
# Parts of a short pass's attention that are merged at once: merging two takes seven launches, more than the part
# itself, and a pass over 64 GiB has 8,192 parts. Parts of a long pass are large and merged one by one.
MERGED_TOGETHER = 32
SHORT_PASS = 64  # rows that a pass can always write on the device: the longest round of guesses


def tail_rows(block_rows: int) -> int:
    """Rows of an offloaded layer that have room on the device."""
    return block_rows + KEPT_ROWS + SHORT_PASS


def by_chunk(rows: Tensor, chunk_size: int) -> Tensor:
    """A view of rows [H_kv, S, D] as complete chunks, [H_kv, S // chunk_size, chunk_size * D]: one long row each."""
    heads, size, dim = rows.shape
    complete = size // chunk_size
    return rows[:, : complete * chunk_size].view(heads, complete, chunk_size * dim)


class ResidentLayer(LayerStore):
    """All rows on the device, in place."""

    def __init__(self, shape: KVShape, capacity: int, backend: Backend) -> None:
        self._shape, self._capacity, self._backend = shape, capacity, backend
        self._k, self._v = shape.allocate(capacity), shape.allocate(capacity)  # each [1, H_kv, capacity, D]

    def take_out(self, length: int) -> tuple[Tensor, Tensor]:
        """Move rows [0, length) to ordinary host memory, each [H_kv, length, D], and free the device's memory."""
        k, v = (rows.to("cpu", copy=True) for rows in self.rows(0, length))
        del self._k, self._v
        return k, v

    def put_back(self, k: Tensor, v: Tensor) -> None:
        """Allocate device memory again and fill it with the rows from `take_out`."""
        self._k, self._v = self._shape.allocate(self._capacity), self._shape.allocate(self._capacity)
        for rows, source in ((self._k, k), (self._v, v)):
            rows[0, :, : source.shape[1]] = source

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """All keys and values, each [1, H_kv, capacity, D]."""
        return self._k, self._v

    def stage(self, start: int, k: Tensor, v: Tensor) -> None:
        rows = slice(start, start + k.shape[2])
        self._k[:, :, rows] = k
        self._v[:, :, rows] = v

    def attend(
        self, start: int, q: Tensor, scaling: float, asked: Asked | None = None, counting: Counting | None = None
    ) -> Tensor:
        """The compiled kernel counts the votes of every row, if there are few."""
        end = start + q.shape[2]
        k, v = self._k[:, :, :end], self._v[:, :, :end]
        if asked is not None:
            return attend_as(q, k, v, scaling, asked, self._backend)
        if counting is None or self._backend.kernel is None:
            return self._backend.attend(q, k, v, scaling)
        out, votes = self._backend.kernel.with_votes(q, k, v, scaling, counting.chunk_size)
        if votes is not None:
            counting.put(Counted(start, VOTERS, votes))
        return out

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._k[0, :, start:stop], self._v[0, :, start:stop]

    def gather(self, heads: Tensor, chunks: Tensor, away: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
        k, v = (by_chunk(x[0], chunk_size)[heads, chunks] for x in (self._k, self._v))
        return k, v


class OffloadedLayer(LayerStore):
    """Complete blocks of rows in host memory, the newest rows on the device.

    A pass brings every block once, attends to it while the next one is on its way, and merges by log-sum-exp with the
    rows on the device. A block is written to the host once, beside computing, when enough rows stand behind it. Only
    complete blocks cross the link, so the traffic is [0, length), never the capacity.

    In a long pass (a piece of a prompt) each layer sends its blocks to the host as soon as it has attended, where they
    are scratch until `commit`.

    In a short pass the host may attend to the oldest blocks in place; the pass brings the others.

    Host memory: capacity rows. Device memory: `tail_rows`, twice while a long pass runs.
    `reads`: how often a pass attends: once more for every later layer without keys of its own; each brings all blocks.
    """

    def __init__(
        self, shape: KVShape, capacity: int, ring: PrefetchRing, *, block_rows: int, chunk_size: int, reads: int = 1
    ) -> None:
        assert block_rows % chunk_size == 0, f"blocks of {block_rows} rows cut chunks of {chunk_size}"
        self._shape, self._ring, self._block = shape, ring, block_rows
        blocks = -(-capacity // block_rows)
        size = (blocks, *piece_shape(shape, block_rows))
        self.memory = HostRows(size, shape.kv_dtype, shape.device)
        self._host = self.memory.rows  # [blocks, 2, H_kv, block_rows, D]
        self._most = tail_rows(block_rows)
        self._k, self._v = shape.allocate(self._most), shape.allocate(self._most)  # rows [offloaded, ...)
        self._offloaded = 0  # rows in host memory; a multiple of block_rows
        self._helper: HostAttention | None = None  # of the latest pass
        self._helped = 0  # number of blocks the helper attends to, the oldest ones
        self._new: tuple[Tensor, Tensor] | None = None  # k, v [1, H_kv, T, D] of a long pass, until it has attended
        self._at = 0  # rows on the device before the new ones
        self._left: tuple[Tensor, Tensor] | None = None  # k, v [H_kv, n, D]: a long pass's rows that stay on the device
        self._sent, self._reads, self._unread = 0, reads, 0  # rows of a long pass in host memory, not valid yet

    def put_back(self, k: Tensor, v: Tensor) -> None:
        """Start with rows [0, n) from host memory, k, v [H_kv, n, D], as `ResidentLayer.take_out` returned them."""
        blocks = max(0, k.shape[1] - KEPT_ROWS) // self._block
        self._offloaded = blocks * self._block
        for kind, source in enumerate((k, v)):
            whole = source[:, : self._offloaded].reshape(len(source), blocks, self._block, self._shape.width)
            self._host[:blocks, kind] = whole.transpose(0, 1)
        for tail, source in ((self._k, k), (self._v, v)):
            tail[0, :, : source.shape[1] - self._offloaded] = source[:, self._offloaded :]

    def open(self, help: CpuShare | None) -> None:
        """The host attends to the oldest blocks, which arrived there first."""
        self._helper, self._unread = help.helper if help else None, self._reads
        self._helped = help.blocks_of(self._offloaded // self._block) if help else 0

    def pieces(self) -> Sequence[Tensor]:
        """Every block with rows, except those that the host attends to."""
        return [
            self._carried[first : first + self._ring.group] for first in range(0, len(self._carried), self._ring.group)
        ]

    @property
    def _carried(self) -> Tensor:
        return self._host[self._helped : self._offloaded // self._block]

    @property
    def link_bytes(self) -> int:
        """Bytes of the latest pass."""
        return self._carried.nbytes

    def stage(self, start: int, k: Tensor, v: Tensor) -> None:
        """Write behind the rows on the device; of a long pass only keep a reference."""
        at, count = start - self._offloaded, k.shape[2]
        self._new = self._left = None
        self._at, self._sent = at, 0
        if at + count > self._most:
            self._new = k, v
            return
        self._k[:, :, at : at + count] = k
        self._v[:, :, at : at + count] = v

    def attend(
        self, start: int, q: Tensor, scaling: float, asked: Asked | None = None, counting: Counting | None = None
    ) -> Tensor:
        """Attend to the rows on the device, to each group of blocks as it arrives, then merge the host's result.

        Of a long pass only the last VOTERS count.
        """
        partial, causal_partial = partials_as(asked)
        softcap, short = asked.softcap if asked else None, q.shape[2] <= SHORT_PASS
        tally = None
        if counting is not None:
            voters = q if counting.every and short else q[:, :, -VOTERS:]
            tally = Tally(voters, self._shape.num_kv_heads, scaling, counting.chunk_size, softcap)
        helper = self._helper if self._helped else None
        if helper is not None:
            helper.ask(q, self._host[: self._helped], scaling, softcap, counting.chunk_size if counting else None)
        at, end = start - self._offloaded, start - self._offloaded + q.shape[2]
        new_k, new_v = self._new or (self._k[:, :, at:end], self._v[:, :, at:end])
        result = causal_partial(q, new_k, new_v, scaling)
        result = Partial(result.out.float(), result.lse)
        if at:
            result = add_part(result, partial(q, self._k[:, :, :at], self._v[:, :, :at], scaling))
        parts, together = [result], MERGED_TOGETHER if short else 2
        del result  # large in a long pass
        for _ in self.pieces():
            group = self._ring.take()
            # A part of a long pass is large
            for blocks in (group,) if short else torch.tensor_split(group, len(group)):
                k, v = blocks[:, 0], blocks[:, 1]  # [P, H_kv, block_rows, D]
                part = partial(q.expand(len(blocks), -1, -1, -1), k, v, scaling)
                parts.append(part)
                if tally is not None:
                    tally.add(k, part.lse[:, :, -tally.tokens :])
                if sum(len(merged.lse) for merged in parts) >= together:
                    parts = [union(parts)]
            self._ring.release()
        if helper is not None:
            part, masses = helper.answer()
            parts.append(part)
            if tally is not None and masses is not None:
                tally.add_oldest(masses)
        result = union(parts)
        if tally is not None and counting is not None:
            tally.finish((self._k[0, :, :at], new_k[0]), result.lse[:, :, -tally.tokens :])
            counting.put(Counted(start + q.shape[2] - tally.tokens, tally.group, tally.votes))
        self._unread -= 1
        self._send_away()
        if asked is not None and asked.sinks is not None:
            return with_sinks(result, asked.sinks).to(q.dtype)
        return result.out.to(q.dtype)

    def _send_away(self) -> None:
        """Send complete blocks of a long pass to the host; copy the remaining rows, so that the originals can go."""
        if self._new is None or self._unread > 0:
            return
        self._ring.reclaim()  # of the previous layer's rows
        old = (self._k[0, :, : self._at], self._v[0, :, : self._at])
        new = (self._new[0][0], self._new[1][0])
        stop = self._at + new[0].shape[1]
        self._send([old, new], stop, stop)
        left = [
            torch.cat((a[:, self._sent :], b[:, max(0, self._sent - self._at) :]), 1)
            for a, b in zip(old, new, strict=True)
        ]
        self._left = left[0], left[1]
        self._new = None

    def _send(self, spans: Sequence[tuple[Tensor, Tensor]], ready: int, stop: int) -> None:
        """Send complete blocks to the host, behind the valid ones and those sent before.

        Args:
            spans: consecutive keys and values [H_kv, n, D]; the first row follows the host's valid ones.
            ready: number of these rows that exist; `stop`: number there will be, of which the newest stay.
        """
        blocks = min(ready, max(0, stop - KEPT_ROWS)) // self._block
        for number in range(self._sent // self._block, blocks):
            parts, at = [], -number * self._block  # where a span begins, relative to the block
            for k, v in spans:
                first, last = max(at, 0), min(at + k.shape[1], self._block)
                if first < last:
                    rows, place = slice(first - at, last - at), slice(first, last)
                    parts += [((0, slice(None), place), k[:, rows]), ((1, slice(None), place), v[:, rows])]
                at += k.shape[1]
            self._ring.store(self._host[self._offloaded // self._block + number], parts)
        self._sent = blocks * self._block

    def bring(self, into: ResidentLayer, length: int) -> None:
        """Copy rows [0, length) to the layer's workspace; the host's part arrives through `pieces`, in order."""
        self._left, self._sent = None, 0
        assert not self._helped, f"{self._helped} blocks were left to the host"
        k, v = (rows[0] for rows in into.buffers)
        first = 0
        for _ in self.pieces():
            blocks = self._ring.take()
            rows = slice(first, first + len(blocks) * self._block)
            k[:, rows], v[:, rows] = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)
            first = rows.stop
            self._ring.release()
        for whole, newest in ((k, self._k), (v, self._v)):
            whole[:, self._offloaded : length] = newest[0, :, : length - self._offloaded]

    def keep(self, worked: ResidentLayer, ready: int, stop: int) -> None:
        """Take rows up to `ready` from the layer's workspace; they are scratch until `commit`.

        They are sent while the layer computes later rows, up to `stop`; call `kept` when all exist.
        Cost: each block crosses the link once.
        """
        self._send([worked.rows(self._offloaded, stop)], ready - self._offloaded, stop - self._offloaded)

    def kept(self, worked: ResidentLayer, stop: int) -> None:
        """Take the remaining rows, which all exist now. Then another layer may use the workspace."""
        self.keep(worked, stop, stop)
        k, v = worked.rows(self._offloaded + self._sent, stop)
        self._left = k.clone(), v.clone()
        self._ring.reclaim()

    def commit(self, length: int) -> None:
        """Send complete blocks to the host if enough rows stand behind them."""
        self._unread = 0
        self._send_away()
        self._ring.reclaim()
        if self._left is not None:
            left = self._left[0].shape[1]
            for tail, rows in zip((self._k, self._v), self._left, strict=True):
                tail[0, :, :left] = rows
            self._offloaded += self._sent
            self._left, self._sent = None, 0
        while length - self._offloaded >= self._block + KEPT_ROWS:
            have = length - self._offloaded
            self._send([(self._k[0, :, :have], self._v[0, :, :have])], self._block, have)
            behind = slice(self._block, have)
            remaining = [tail[:, :, behind].clone() for tail in (self._k, self._v)]  # both before either is written to
            self._ring.reclaim()
            for tail, moved in zip((self._k, self._v), remaining, strict=True):
                tail[:, :, : moved.shape[2]] = moved
            self._offloaded += self._block
            self._sent = 0

    def truncate(self, length: int) -> None:
        """Bring a block that is cut back to the device."""
        self._new = self._left = None
        self._sent = 0
        self._ring.reclaim()
        if length >= self._offloaded:
            return
        first = length // self._block * self._block
        self._ring.settle()
        k, v = self._from_host(first, length)
        self._k[0, :, : length - first], self._v[0, :, : length - first] = k, v
        self._offloaded = first

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Copies of the host's rows, followed by those of the device."""
        at = self._offloaded
        newest = slice(max(start, at) - at, max(stop - at, 0))
        k, v = self._k[0, :, newest], self._v[0, :, newest]
        if start >= at:
            return k, v
        self._ring.settle()
        old = self._from_host(start, min(stop, at))
        return torch.cat((old[0], k), 1), torch.cat((old[1], v), 1)

    def _from_host(self, start: int, stop: int) -> Tensor:
        """Copies of rows [start, stop) that have arrived on the host, [2, H_kv, stop - start, D] on the device."""
        row = torch.arange(start, stop)
        kind_and_head = torch.arange(2 * self._shape.num_kv_heads)[:, None]
        numbers = (row // self._block * len(kind_and_head) + kind_and_head) * self._block + row % self._block
        rows = self._k.new_empty(2, self._shape.num_kv_heads, stop - start, self._shape.width)
        flat = rows.view(-1, self._shape.width)
        self._ring.pick(self._host.view(-1, self._shape.width), numbers.flatten(), flat)
        return rows

    def chunks_away(self, chunk_size: int) -> int:
        return self._offloaded // chunk_size

    def gather(self, heads: Tensor, chunks: Tensor, away: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
        """The processor picks chunks that lie on the host; everything stored must have arrived there."""
        count, width = away.shape[1], chunk_size * self._shape.width
        k, v = self._k.new_empty(2, len(chunks), width)
        if count:
            head, chunk = away
            kv_heads, per_block = self._shape.num_kv_heads, self._block // chunk_size
            keys = (chunk // per_block * 2 * kv_heads + head) * per_block + chunk % per_block
            for kind, rows in enumerate((k, v)):
                self._ring.pick(self._host.view(-1, width), keys + kind * kv_heads * per_block, rows[:count])
        if count < len(chunks):
            heads, here = heads[count:], chunks[count:] - self.chunks_away(chunk_size)
            k[count:], v[count:] = (by_chunk(tail[0], chunk_size)[heads, here] for tail in (self._k, self._v))
        return k, v


def piece_shape(shape: KVShape, block_rows: int) -> tuple[int, int, int, int]:
    """A block of one layer: [2, H_kv, block_rows, D], keys before values."""
    return 2, shape.num_kv_heads, block_rows, shape.width
