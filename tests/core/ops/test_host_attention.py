"""Attention to blocks in host memory against float64 matmuls, and on whose side of the machine that memory lies."""

import os
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from core.ops import host_attention, host_memory
from core.ops.attention import Masses, Partial, partial_reference, rounded, widened
from core.ops.host_attention import HostAttention
from core.ops.native import KEPT_AS, SmallRows
from core.ops.reach import softcapped
from core.ops.scores import kept_as
from core.ops.transfer import HostRows
from tests.core.toys import CPU


def made(
    heads: int, kv_heads: int, rows: int, dtype: torch.dtype, *, dim: int = 16, blocks: int = 5, size: int = 96
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    q = torch.randn(1, rows, heads, dim, generator=generator).transpose(1, 2)  # as models hand it over
    blocks_of_rows = rounded(torch.randn(blocks, 2, kv_heads, size, dim, generator=generator), dtype)
    return q.to(dtype) if dtype.is_floating_point else q, blocks_of_rows


def whole(q: Tensor, blocks: Tensor, softcap: float | None = None) -> Partial:
    k, v = widened(blocks, torch.float64).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None]  # each [1, H_kv, N * R, D]
    if softcap is None:
        return partial_reference(q.float(), k, v, 0.3)
    return softcapped(q, k, v, 0.3, softcap, causal=False)


def alike(found: Partial, expected: Partial, most: float = 1e-5) -> bool:
    assert found.out.dtype == found.lse.dtype == torch.float32
    return all(torch.allclose(a, b, atol=most) for a, b in zip(found, expected, strict=True))


def most_off(dtype: torch.dtype) -> float:
    """What the kernel may be off by: float16 may be multiplied as integers of 16 bits."""
    return 3e-3 if dtype in (torch.float16, torch.int16) else 1e-5


def by_kernel(
    kernel: SmallRows, q: Tensor, blocks: Tensor, softcap: float | None = None, threads: int = 2,
    masses: Masses | None = None,
) -> Partial:  # fmt: skip
    into = Partial(torch.full(q.shape, torch.nan), torch.full(q.shape[:3], torch.nan))
    kernel.blocks(q.float().contiguous(), blocks, 0.3, into, softcap, threads, masses)
    return into


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", KEPT_AS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (16, 1)])
def test_a_row_comes_out_to_the_last_bit_whatever_rows_and_threads_there_are(
    kernel: SmallRows, dtype: torch.dtype, heads: int, kv_heads: int, softcap: float | None
) -> None:
    if dtype == torch.int16 and not kernel.scales(64):
        pytest.skip("this processor does not multiply integers")
    q, blocks = made(heads, kv_heads, 30, dtype, dim=64, blocks=11)
    alone = [by_kernel(kernel, q[:, :, row : row + 1], blocks, softcap, threads=1) for row in range(30)]
    for count, threads in ((30, 3), (25, 1), (9, 16)):
        found = by_kernel(kernel, q[:, :, :count], blocks, softcap, threads)
        for row in range(count):
            assert torch.equal(found.out[:, :, row], alone[row].out[:, :, 0])
            assert torch.equal(found.lse[..., row], alone[row].lse[..., 0])


def masses_reference(q: Tensor, blocks: Tensor, chunk: int, softcap: float | None) -> Masses:
    """Slow twin: the softmax over every block in float64."""
    kv_heads, size = blocks.shape[2:4]
    scores = 0.3 * q.double().reshape(kv_heads, -1, q.shape[3]) @ widened(blocks[:, 0], torch.float64).mT
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    return Masses(scores.softmax(-1).unflatten(3, (size // chunk, chunk)).sum(-1), scores.logsumexp(-1))


def room(q: Tensor, blocks: Tensor, chunk: int, kept: torch.dtype) -> Masses:
    sizes = (len(blocks), blocks.shape[2], q.shape[1] // blocks.shape[2] * q.shape[2])
    return Masses(torch.full((*sizes, blocks.shape[3] // chunk), torch.nan, dtype=kept), torch.full(sizes, torch.nan))


def counted_alike(found: Masses, expected: Masses, most: float = 1e-5) -> bool:
    relative = max(10 * most, 5e-3 if found.shares.dtype == torch.bfloat16 else 0.0)
    within = torch.allclose(found.shares.double(), expected.shares.double(), rtol=relative, atol=1e-8)
    return within and torch.allclose(found.lse.double(), expected.lse.double(), atol=most)


SIZES = [(4, 4, 128, 64, 8), (8, 2, 72, 96, 16), (16, 1, 16, 512, 32), (3, 3, 64, 1056, 8), (2, 1, 64, 40, 8)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "size", "chunk", "dtype", "softcap"),
    [(*SIZES[i], KEPT_AS[j], (None, 2.0)[(i + j) % 2]) for i, j in product(range(5), range(4))],
)
def test_the_kernel_attends_to_blocks_as_float64_does_and_counts_beside_the_same_bits(
    kernel: SmallRows, heads: int, kv_heads: int, dim: int, size: int, chunk: int, dtype: torch.dtype,
    softcap: float | None,
) -> None:  # fmt: skip
    """Blocks that fill what is counted together, and not; rows in one group and in several."""
    if dtype == torch.int16 and not kernel.scales(dim):
        pytest.skip("heads of other sizes are no integers")
    for rows, count, kept in ((1, 19, torch.float32), (9, 2, torch.bfloat16), (64, 9, torch.float32)):
        q, blocks = made(heads, kv_heads, rows, dtype, dim=dim, blocks=count, size=size)
        plain, expected = by_kernel(kernel, q, blocks, softcap), masses_reference(q, blocks, chunk, softcap)
        assert alike(plain, whole(q, blocks, softcap), most_off(dtype)), rows
        first = room(q, blocks, chunk, kept)
        for threads in (1, 3):
            masses = room(q, blocks, chunk, kept)
            found = by_kernel(kernel, q, blocks, softcap, threads, masses)
            assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True)), rows
            assert counted_alike(masses, expected, most_off(dtype)), rows
            first = masses if threads == 1 else first
            assert all(torch.equal(a, b) for a, b in zip(masses, first, strict=True)), rows
        for axis in (0, 3):
            assert not counted_alike(Masses(masses.shares.roll(1, axis), masses.lse), expected), "the control"
        for wrong in (blocks[1:], torch.cat((blocks, blocks[:1])), blocks.flip(1)):  # lost, doubled, keys for values
            assert not alike(by_kernel(kernel, q, wrong.contiguous(), softcap), plain, most_off(dtype)), "the control"


@pytest.mark.parametrize("compiled", [True, False])
def test_one_thread_answers_one_question_after_the_other(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(host_attention, "kernel_here", lambda: None)
    helper = HostAttention(8, 16, 9, CPU)
    for dtype in KEPT_AS[:3]:
        for rows in (9, 1, 5):
            q, blocks = made(8, 2, rows, dtype)
            for part, softcap, chunk in product((blocks[:1], blocks), (None, 2.0), (None, 4, 8)):
                helper.ask(q, part, 0.3, softcap, chunk)
                partial, masses = helper.answer()
                assert alike(partial, whole(q, part, softcap)) and (masses is None) == (chunk is None)
                if masses is not None and chunk is not None:
                    assert masses.shares.dtype == kept_as(q)
                    assert counted_alike(masses, masses_reference(q, part, chunk, softcap))
    with pytest.raises(AssertionError, match="nothing was asked"):
        helper.answer()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux is asked")
@pytest.mark.parametrize(
    ("nodes", "gpu", "moves"),
    [
        (["0-{before}", "{last}-{last},{more}-9999"], "1", True),
        (["0-999"], "0", False),
        (["0-999", "1000-1001"], "-1", False),  # a GPU whose node is not told
        (["0-999", "1000-1001"], "1", False),  # this process may not run there
    ],
)
def test_memory_for_a_gpu_is_touched_first_from_its_own_node(
    nodes: list[str], gpu: str, moves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, seen = os.sched_getaffinity(0), list[set[int]]()
    last = max(own)
    told = {f"devices/system/node/node{number}/cpulist": node for number, node in enumerate(nodes)}
    for name, text in {**told, "bus/pci/devices/0000:81:00.0/numa_node": gpu}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(text.format(before=last - 1, last=last, more=last + 100) + "\n", encoding="ascii")
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x81, pci_device_id=0)
    driver = SimpleNamespace(
        cudaHostRegister=lambda *_: seen.append(os.sched_getaffinity(0)) or 0, cudaHostUnregister=lambda _: 0
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(host_memory, "SYSTEM", tmp_path)
    HostRows((4,), torch.float32, torch.device("cuda", 0))
    assert seen == [{last} if moves else own]
    assert os.sched_getaffinity(0) == own, "and the thread is where it was"
