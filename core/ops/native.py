"""Optional CPU kernels for passes of a few rows, compiled on first use by a C++ compiler (see `compilers`).

Stock operations read keys and values once for a row, and about twice as long for ten (see `attention`). The kernel in
small_rows.cpp reads them once for all rows. It is kept in the user's cache folder and checked against the stock result
before it is used. Nothing depends on it: without a compiler, or on an unsupported processor or system, stock operations
do the work. It uses torch's own threads where it can, see `openmp`.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.ops.attention import SCALE, Masses, Partial, attend
from core.ops.kernel_structs import (
    BesideSizes,
    DecoderSizes,
    LinearSizes,
    ModelSizes,
    QueryRows,
    ScratchPointers,
    Sizes,
)
from core.ops.threads import OpenMP, process_threads, torch_openmp

# Keys and values, by their number in the kernel; int16: `scaled_rows`
KEPT_AS = (torch.float32, torch.float16, torch.bfloat16, torch.int16)
# 65,536 keys in memory, one thread, matrix units / vectors ms, 1, 12 and 24 rows (Intel Xeon, 2026-11-24): bfloat16
# 7.8, 8.7, 13.8 / ., ., .; float16 11.5, 13.1, 19.3 / 8.0, 19.7, 29.1; float32 20.9, 22.2, 28.4 / 18.0, 24.3, 35.0.
FASTER_BY_MATRICES = (torch.float16, torch.bfloat16)
# Integers in place of float16, medians of passes of 1, 4 and 8 rows over 32,768 keys, in turns, times those of vectors:
# 1.03, 1.03, 0.79 with a head of 128 for each KV head (shape of Llama-2 7B), 1.08, 0.76, 0.74 with two (Qwen3 0.6B);
# over 24,576 keys 1.03, 0.8, 0.72 with six of 128 (Qwen2.5-Coder 1.5B), but 1.18, 0.85, 0.79 with three of 64 (SmolLM2
# 135M): two cores of an AMD EPYC (AVX-512 with VNNI and bf16), 2026-11-26, `assets/tools/pass_times.py`
WIDE_HEAD, LEAST_GROUP = 96, 4
MOST_ROWS = 64  # per KV head, whose keys several threads share
MOST_TOGETHER = 192  # rows per KV head that a thread works on at a time
MOST_TOKENS = 32  # of a pass whose rows come out as if alone, whatever the model; a round's verification has at most 25
MOST_DIM = 256
SCALED_DIMS = (64, 96, 128, 256)  # of heads whose rows may be integers, as `takes` of word_attention.h
CHUNKS, VOTERS = (8, 16, 32), 4  # keys of a chunk that gets votes; tokens whose votes are added
# 8 uncut heads take 4 to 6% less time than in shares of 512, 0 to 3% less than in these (12 rows, 2,048 keys and more).
KEYS_OF_A_SHARE = 1024
KEYS_OF_MASSES = 512  # masses of so many keys are computed together
P, N = ctypes.c_void_p, ctypes.c_int64
CALLS: dict[str, tuple[Any, ...]] = {  # of the library: what each gives, and what it takes
    "attention": (None, *[P] * 6, N),
    "attention_from": (None, *[P] * 5, *[N] * 2, *[P] * 2),
    "between": (None, *[P] * 9, *[N] * 2),
    "blocks": (None, *[P] * 2, N, *[P] * 3, N, *[P] * 2, N),
    "brain_product": (N, *[P] * 3, *[N] * 2),
    "has_matrices": (N,),
    "move": (None, *[P] * 5, *[N] * 5),
    "norm": (None, *[P] * 3, *[N] * 2, ctypes.c_float),
    "panel": (N,),
    "pass": (N, *[P] * 3, N, *[P] * 9, N, P),
    "product": (None, *[P] * 3, *[N] * 2),
    "puts": (N, N),
    "rounds": (None, N),
    "scale": (N, *[P] * 2, *[N] * 2),
    "silu": (None, *[P] * 2, N),
    "store": (N, N, P, *[N] * 2, P, N),
    "votes": (None, *[P] * 3, ctypes.c_double, *[N] * 7),
    "widen": (None, *[P] * 2, N, P, N),
}


def _counts(num_new: int, rows: int, chunk: int) -> bool:
    """Whether attention of so many tokens, `rows` for a KV head, can count votes of such chunks."""
    return num_new <= MOST_TOKENS and rows <= MOST_TOGETHER and chunk in CHUNKS


def _room_for_votes(kv_heads: int, num_new: int, total: int, chunk: int) -> Tensor:
    """Memory for the votes of a pass in one layer: whole shares of keys."""
    columns = -(-total // KEYS_OF_A_SHARE) * (KEYS_OF_A_SHARE // chunk)
    return torch.empty(kv_heads, -(-num_new // VOTERS), columns, dtype=torch.float32)


class SmallRows:
    """Attention like `attention.attend`, linear layers, norms and SiLU; float32 on CPU through the kernel.

    A row's result depends only on that row and on what it is multiplied with; attention's also only on the keys and
    values that its token may attend to. It is bit for bit the same (except the sign of a zero) with any other rows, any
    later keys, which must be finite, and any number of threads. For attention this holds wherever stock operations are
    not used, see `__call__`.
    """

    def __init__(self, library: Path, openmp: OpenMP | None = None) -> None:
        self.reads_prompts = True  # whether long passes come here too; where they are measured, `backend` decides
        self.library = loaded = ctypes.CDLL(str(library))
        for name, (gives, *takes) in CALLS.items():
            call = getattr(loaded, f"small_rows_{name}")
            call.restype, call.argtypes = gives, takes
        loaded.small_rows_threads(ctypes.byref(openmp or torch_openmp()))
        self._threads = process_threads()
        self.panel: int = loaded.small_rows_panel()  # outputs whose packed weights lie beside each other
        self.multiplies_brain = bool(loaded.small_rows_brain_product(None, None, None, 0, 0))  # whether `product` can
        self.has_matrices = bool(loaded.small_rows_has_matrices())
        # Types of keys and values that attention multiplies by matrix units, see `amx_attention.h`
        self.by_matrices = frozenset(FASTER_BY_MATRICES if self.has_matrices else ())
        # Types of keys and values whose new rows `whole_pass` can write
        self.puts = frozenset(dtype for kind, dtype in enumerate(KEPT_AS) if loaded.small_rows_puts(kind))

    @property
    def threads(self) -> int:
        """Threads that may compute now."""
        return self._threads.now()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """Causal attention; shapes as in `attention.attend`; keys and values are of a type of KEPT_AS.

        Stock operations handle the unsupported cases: other types and devices, several texts at once, other head sizes;
        and passes of more than MOST_TOKENS tokens where they are faster.
        Memory: for each thread twice the numbers of at most MOST_TOGETHER rows. If heads do not divide by threads, of
        at most MOST_ROWS rows a part for each share, rows / 2000 of the keys and values.
        """
        if self.takes(q, k, v) and (q.shape[2] <= MOST_TOKENS or self.reads_prompts):
            return self._attended(q, k, v, scaling, 0)[0]
        return attend(q, k, v, scaling)

    def with_votes(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, chunk: int) -> tuple[Tensor, Tensor | None]:
        """Attention as `__call__`, and how much of it each chunk of `chunk` keys got: a by-product that costs little.

        Returns:
            [1, H, T, D], and votes [H_kv, T // 4 rounded up, C] float32: the attention of four tokens after one
            another, summed over them and the heads of a group, to each begun chunk. None where this kernel does not
            attend, T is more than MOST_TOKENS, or chunks have another size than 8, 16 or 32 keys.
        """
        rows = q.shape[2] * (q.shape[1] // k.shape[1])
        if not (_counts(q.shape[2], rows, chunk) and self.takes(q, k, v)):
            return self(q, k, v, scaling), None
        return self._attended(q, k, v, scaling, chunk)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, chunk: int) -> tuple[Tensor, Tensor | None]:
        batch, heads, num_new, dim = q.shape
        kv_heads, total = k.shape[1], k.shape[2]
        assert k.stride(3) == v.stride(3) == 1, "keys and values must be contiguous in their last dimension"
        rows = num_new * (heads // kv_heads)
        folded = q.reshape(kv_heads, rows, dim).contiguous()  # models pass transposed views
        out = torch.empty(kv_heads, rows, dim, dtype=torch.float32)  # whatever the default is at this moment
        votes = _room_for_votes(kv_heads, num_new, total, chunk) if chunk else None
        columns = votes.shape[2] if votes is not None else 0
        strides = (k.stride(1), k.stride(2), v.stride(1), v.stride(2))
        threads = self._threads.now()
        cuts = _cuts(kv_heads, rows, total, threads, whole=bool(chunk))
        work = (KEYS_OF_A_SHARE, *cuts, threads, self._unit(k.dtype, dim, heads // kv_heads), chunk, columns)
        sizes = Sizes(scaling, kv_heads, rows, num_new, total, dim, *strides, *work)
        pointers = (folded.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
        told = None if votes is None else votes.data_ptr()
        self.library.small_rows_attention(*pointers, told, ctypes.byref(sizes), KEPT_AS.index(k.dtype))
        return out.view(batch, heads, num_new, dim), None if votes is None else votes[..., : -(-total // chunk)]

    def takes(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether attention to keys and values of one text goes through the kernel; other sizes and types do not."""
        known = q.dtype == torch.float32 and k.dtype == v.dtype and k.dtype in KEPT_AS and q.device.type == "cpu"
        scaled = k.dtype == torch.int16
        known &= k.shape[-1] == q.shape[3] + SCALE * scaled and (not scaled or self.scales(q.shape[3]))
        return known and q.shape[0] == 1 and q.shape[3] % 8 == 0 and q.shape[3] <= MOST_DIM

    def scales(self, dim: int) -> bool:
        """Whether keys and values of heads of `dim` numbers may be integers with a scale."""
        return torch.int16 in self.puts and dim in SCALED_DIMS

    def scaled(self, x: Tensor) -> Tensor | None:
        """Rows x [..., D], float32 on CPU, as integers with a scale; None: a number is infinite, or nearly."""
        rows = x.contiguous()
        out = torch.empty(*x.shape[:-1], x.shape[-1] + SCALE, dtype=torch.int16)
        fits = self.library.small_rows_scale(rows.data_ptr(), out.data_ptr(), x.numel() // x.shape[-1], x.shape[-1])
        return out if fits else None

    def _unit(self, kept: torch.dtype, dim: int, group: int) -> int:
        """What multiplies in attention: 0 vectors, 1 matrix units, 2 integers, where the processor has such.

        Args:
            kept: type of keys and values.
            dim, group: of a head; heads that share a KV head. Not how many rows: each is the same beside any others.
        """
        if kept in self.by_matrices:
            return 1
        return 2 if kept is torch.float16 and (dim >= WIDE_HEAD or group >= LEAST_GROUP) else 0

    def begun(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """What rows q [1, H, T, D] have of keys k, v [1, H_kv, S, D] that they all see; S: full shares.

        Returns:
            [H_kv, H / H_kv, T, D + 2], for `ended`, where rows go on with other keys.
        """
        heads, num_new, dim = q.shape[1:]
        after = torch.empty(k.shape[1], heads // k.shape[1], num_new, dim + 2, dtype=torch.float32)
        self._attend_from(q, k, v, scaling, 0, None, after, 1)
        return after

    def ended(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, begun: Tensor, first: int) -> Tensor:
        """As the call, of rows that `begun` with the `first` keys: the same to the last bit."""
        return self._attend_from(q, k, v, scaling, first, begun.contiguous(), None, q.shape[2])

    def _attend_from(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, first: int, before: Tensor | None,
        after: Tensor | None, num_new: int,
    ) -> Tensor:  # fmt: skip
        _, heads, count, dim = q.shape
        kv_heads, total = k.shape[1], k.shape[2]
        rows = count * (heads // kv_heads)
        folded = q.reshape(kv_heads, rows, dim).contiguous()
        out = torch.empty(kv_heads, rows, dim, dtype=torch.float32)
        strides = (k.stride(1), k.stride(2), v.stride(1), v.stride(2))
        threads = self._threads.now()
        groups = min(rows, _cuts(kv_heads, max(rows, MOST_ROWS + 1), total, threads)[1])  # never cut by keys
        work = (KEYS_OF_A_SHARE, 1, groups, threads, self._unit(k.dtype, dim, heads // kv_heads), 0, 0)
        sizes = Sizes(scaling, kv_heads, rows, num_new, total, dim, *strides, *work)
        pointers = (folded.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), ctypes.byref(sizes))
        states = [None if state is None else state.data_ptr() for state in (before, after)]
        self.library.small_rows_attention_from(*pointers, KEPT_AS.index(k.dtype), first, *states)
        return out.view(1, heads, count, dim)

    def blocks(
        self, q: Tensor, blocks: Tensor, scaling: float, into: Partial, softcap: float | None, threads: int,
        masses: Masses | None = None,
    ) -> None:  # fmt: skip
        """Unmasked attention of every query to every row of every block, in one parallel step.

        The number of blocks sets the order of sums; rows and threads do not.

        Args:
            q: [1, H, T, D] and blocks: [N, 2, H_kv, R, D], keys before values, both contiguous, that it `takes`.
            into: out [1, H, T, D] and lse [1, H, T], both float32 and contiguous; written.
            masses: of every block, in chunks of 8, 16 or 32 keys, shares float32 or bfloat16; written, contiguous.
        Memory: an eighth of a block's results for every block.
        """
        dim = q.shape[3]
        _, _, kv_heads, size, width = blocks.shape
        assert all(tensor.is_contiguous() for tensor in (q, blocks, *into, *(masses or ()))), "as they lie"
        rows = q.shape[1] // kv_heads * q.shape[2]
        strides = (size * width, width) * 2
        chunk, brief = (size // masses.shares.shape[3], masses.shares.itemsize == 2) if masses else (0, False)
        share = -(-size // KEYS_OF_MASSES) * KEYS_OF_MASSES
        work = (share, 1, -(-rows // MOST_TOGETHER), threads, self._unit(blocks.dtype, dim, LEAST_GROUP), chunk, 0)
        sizes = Sizes(scaling, kv_heads, rows, 1, size, dim, *strides, *work, softcap or 0.0)
        pointers = (into.out.data_ptr(), into.lse.data_ptr(), ctypes.byref(sizes))
        told = (None, None) if masses is None else (masses.shares.data_ptr(), masses.lse.data_ptr())
        kind = KEPT_AS.index(blocks.dtype)
        self.library.small_rows_blocks(q.data_ptr(), blocks.data_ptr(), len(blocks), *pointers, kind, *told, brief)

    def votes(self, queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """The attention that queries [H_kv, R, D] give to keys [H_kv, C, D], summed over R: [H_kv, C], float32 on CPU.

        C at least 1; D a multiple of 8, at most MOST_DIM; keys contiguous in it.
        """
        heads, rows, dim = queries.shape
        asked = queries.contiguous()
        out = torch.empty(heads, keys.shape[1], dtype=torch.float32)
        sizes = (scaling, heads, rows, keys.shape[1], dim, keys.stride(0), keys.stride(1), self._threads.now())
        self.library.small_rows_votes(asked.data_ptr(), keys.data_ptr(), out.data_ptr(), *sizes)
        return out

    def move_chunks(self, source: Tensor, target: Tensor, where: tuple[Tensor, Tensor, Tensor], size: int) -> None:
        """Copy chunks of `size` rows of source [1, H_kv, S, D] into target [1, H_kv, S', D]; of one type.

        Args:
            where: heads, chunks of the source and slots of the target, [N] int64 each; no slot of a head twice.
        """
        assert source.dtype == target.dtype, "copied as they lie"
        assert all(rows.stride()[2:] == (rows.shape[3], 1) for rows in (source, target)), (
            "a head's rows follow each other"
        )
        width = size * source.shape[3] * source.element_size()
        from_head, to_head = source.stride(1) * source.element_size(), target.stride(1) * target.element_size()
        indices = [numbers.contiguous() for numbers in where]
        pointers = (source.data_ptr(), target.data_ptr(), *(numbers.data_ptr() for numbers in indices))
        self.library.small_rows_move(*pointers, len(indices[0]), width, from_head, to_head, self._threads.now())

    def product(self, x: Tensor, layer: LinearSizes, *, brain: bool = False) -> Tensor:
        """x [..., I] through a packed layer, [..., O]; float32 on CPU, any number of rows.

        `brain`: of 16-bit weights that bfloat16 holds and an even I, with x rounded to bfloat16; sums are float32.
        """
        rows = x.contiguous()
        out = torch.empty(*x.shape[:-1], layer.outs, dtype=torch.float32)
        num_rows = x.numel() // x.shape[-1]
        call = self.library.small_rows_brain_product if brain else self.library.small_rows_product
        call(ctypes.byref(layer), rows.data_ptr(), out.data_ptr(), num_rows, self._threads.now())
        return out

    def between(
        self,
        done: DecoderSizes | None,
        following: DecoderSizes | None,
        scratch: ScratchPointers,
        attended: Tensor | None,
        heads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        num_rows: int,
    ) -> None:
        """What a pass computes between the attention of two layers, in one parallel step.

        Args:
            done: the layer whose attention gave `attended` [1, H, T, D], contiguous; None before the first layer.
            following: the layer whose q, k and v are computed; None behind the last layer.
            scratch: its x [T, hidden] is the residual stream.
            heads: cos and sin [T, D], and memory for q [H, T, D], k and v [H_kv, T, D].
        """
        layers = [None if layer is None else ctypes.addressof(layer) for layer in (done, following)]
        pointers = (None if attended is None else attended.data_ptr(), *(tensor.data_ptr() for tensor in heads))
        self.library.small_rows_between(*layers, ctypes.addressof(scratch), *pointers, num_rows, self._threads.now())

    def whole_pass(
        self,
        model: ModelSizes,
        scratch: ScratchPointers,
        rows: tuple[Sequence[Tensor], Sequence[Tensor]],
        held: int,
        heads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
        keep: int,
        vocab: int,
        log: QueryRows | None = None,
        chunk: int = 0,
    ) -> tuple[Tensor, list[Tensor]] | None:
        """`between`, writing of new rows, attention, last norm and head of a pass, in one call; to the same bits.

        The number of threads is that of its beginning.

        Args:
            scratch: its x [T, hidden] holds the tokens' embeddings.
            rows: keys and values by layer, [1, H_kv, S, D] of a type of `puts`, all with the same strides.
            held: rows in use; the new ones are written behind them.
            heads: cos and sin [T, D], and memory for q, k, v and what was attended to, as for `between`.
            log: takes the queries; None: they are not kept.
            chunk: keys of a chunk for `with_votes`; 0: nothing is counted.
        Returns:
            Logits of the last tokens, [keep, vocab], and the votes of each layer, if they are counted; None: a key or
            value was too large for 16 bits.
        """
        k, v = rows
        _, kv_heads, num_new, dim = heads[3].shape
        num_heads, total = heads[2].shape[1], held + num_new
        threads, first, folded = self._threads.now(), k[0], num_new * (num_heads // kv_heads)
        strides = (first.stride(1), first.stride(2), v[0].stride(1), v[0].stride(2))
        assert 0 < keep <= num_new and total <= first.shape[2], f"{num_new} rows behind {held} of {first.shape[2]}"
        chunk = chunk if _counts(num_new, folded, chunk) else 0
        votes = [_room_for_votes(kv_heads, num_new, total, chunk) for _ in k] if chunk else []
        columns = votes[0].shape[2] if votes else 0
        cuts = _cuts(kv_heads, folded, total, threads, whole=bool(chunk))
        work = (KEYS_OF_A_SHARE, *cuts, threads, self._unit(first.dtype, dim, num_heads // kv_heads), chunk, columns)
        sizes = Sizes(dim**-0.5, kv_heads, folded, num_new, total, dim, *strides, *work)
        out = torch.empty(keep, vocab, dtype=torch.float32)
        beside = BesideSizes.of(log, votes)
        pointers = [(ctypes.c_void_p * len(kind))(*(layer.data_ptr() for layer in kind)) for kind in (k, v)]
        fits = self.library.small_rows_pass(
            ctypes.byref(model),
            ctypes.byref(scratch),
            ctypes.byref(sizes),
            KEPT_AS.index(first.dtype),
            *pointers,
            *(tensor.data_ptr() for tensor in heads),
            ctypes.byref(beside),
            keep,
            out.data_ptr(),
        )
        return (out, [own[..., : -(-total // chunk)] for own in votes]) if fits else None

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm (arXiv 1910.07467) of x [..., D], times weight [D]; both float32 on CPU, weight contiguous."""
        rows = x.contiguous()
        out = torch.empty_like(rows)
        sizes = (x.numel() // x.shape[-1], x.shape[-1])
        self.library.small_rows_norm(rows.data_ptr(), weight.data_ptr(), out.data_ptr(), *sizes, eps)
        return out

    def silu(self, x: Tensor) -> Tensor:
        """x / (1 + e^-x) of x, float32 on CPU."""
        rows = x.contiguous()
        out = torch.empty_like(rows)
        self.library.small_rows_silu(rows.data_ptr(), out.data_ptr(), x.numel())
        return out


def _cuts(kv_heads: int, rows: int, total: int, threads: int, *, whole: bool = False) -> tuple[int, int]:
    """Into how many pieces of its keys, or groups of its rows, the work of a head is cut for the threads.

    Args:
        whole: never into groups of rows.
    """
    uneven = bool(kv_heads % threads)
    if (rows <= MOST_ROWS or whole) and uneven:
        return min(threads, -(-total // KEYS_OF_A_SHARE)), 1
    groups = -(-rows // MOST_TOGETHER)
    return 1, min(rows, groups * threads) if uneven else groups
