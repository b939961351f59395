"""The compiled kernel against its slow twin; without a compiler these tests are skipped by name."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.policies import landmark_scores
from core.caches.tokens import Context
from core.models.cached_model import CachedModel
from core.models.linear import PackedLinear
from core.models.weights import prepared
from core.ops import native
from core.ops.attention import FULL, SCALE, attend, attend_reference, rounded, scaled_reference, widened
from core.ops.backend import STOCK, Attend, Backend
from core.ops.native import KEPT_AS, SCALED_DIMS, SmallRows
from core.ops.threads import Threads
from tests.core.toys import CPU, loaded, random_prompt, tiny_config

Shape = tuple[int, int, int, int, int]  # heads, KV heads, cached keys, new rows, dimensions of a head
SHAPES: list[Shape] = [
    *((1, 1, 0, 1, 8), (6, 6, 6, 9, 64), (4, 4, 63, 1, 64), (4, 4, 57, 7, 64), (8, 2, 130, 5, 128)),
    *((5, 5, 1029, 12, 72), (2, 1, 500, 32, 256), (4, 2, 700, 300, 64), (4, 1, 0, 260, 72)),
    (3, 3, 2600, 1, 64),  # heads that do not divide by two threads: cut into shares
    (8, 1, 1200, 25, 64),  # more rows of a KV head than the kernel takes at once
    (64, 1, 1200, 2, 64),
    *((2, 2, 200 - new, new, dim) for dim in (16, 24, 40, 80, 96, 104, 192) for new in range(1, 6)),  # sums at a time
]


@pytest.fixture(autouse=True)
def as_many_threads_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does."""
    monkeypatch.setattr(Threads, "adapts", False)


UNITS = [
    *(("vectors", kept) for kept in KEPT_AS if kept != torch.int16),
    ("integers", torch.int16),
    *(("matrix units", kept) for kept in KEPT_AS),
]


@pytest.fixture(params=UNITS, ids=str)
def kept(request: pytest.FixtureRequest, kernel: SmallRows, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The type of keys and values; what computes attention follows from it."""
    name, dtype = request.param
    if name == "matrix units" and not kernel.has_matrices:
        pytest.skip("this processor has no matrix units")
    if dtype == torch.int16 and not kernel.scales(64):
        pytest.skip("this processor does not multiply integers")
    monkeypatch.setattr(kernel, "by_matrices", frozenset((dtype,) if name == "matrix units" else ()))
    assert isinstance(dtype, torch.dtype)
    return dtype


def tensors(heads: int, kv_heads: int, cached: int, new: int, dim: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(heads * 1000 + cached + new)
    q = 2 * torch.randn(1, new, heads, dim, generator=generator).transpose(1, 2)  # as models hand it over
    k, v = torch.randn(2, 1, kv_heads, cached + new + 3, dim, generator=generator)[..., : cached + new, :]
    return q, k, v


def tolerance(dim: int, kept: torch.dtype = torch.float32) -> float:
    """Scores here reach 40, each a sum of `dim` products in float32, or of integers in place of float16."""
    return 3e-5 * dim if kept in (torch.float16, torch.int16) else 1.5e-5 * max(1.0, dim / 128)


def twin(q: Tensor, k: Tensor, v: Tensor, scaling: float = 0.3) -> Tensor:
    return attend_reference(q, widened(k, torch.float32), widened(v, torch.float32), scaling)


# -------------------- attention


def test_the_kernel_equals_its_slow_twin(kernel: SmallRows, kept: torch.dtype) -> None:
    for shape in SHAPES:
        q, k, v = tensors(*shape)
        k, v = rounded(k, kept), rounded(v, kept)
        assert torch.allclose(kernel(q, k, v, 0.3), twin(q, k, v), atol=tolerance(shape[-1], kept)), shape
    q, k, v = tensors(4, 4, 300, 3, 64)  # scores far apart neither overflow nor vanish
    k, v = rounded(k, kept), rounded(v, kept)
    for scaling, most in ((0.0, 2e-4), (30.0, 100 * tolerance(64, kept))):
        found = kernel(q, k, v, scaling)
        assert torch.allclose(found, twin(q, k, v, scaling), atol=most) and torch.isfinite(found).all()


def test_float16_keys_and_values_are_widened_exactly(kernel: SmallRows) -> None:
    """Bit for bit what float32 rows of the same numbers give, subnormal ones too; in heads of 72, never of integers."""
    for by_matrices, shape in product(
        (frozenset(), frozenset(KEPT_AS)), ((1, 1, 0, 1, 8), (5, 5, 1029, 12, 72), (4, 1, 0, 260, 72))
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "by_matrices", by_matrices if kernel.has_matrices else frozenset())
            q, k, v = tensors(*shape)
            k, v = (torch.cat((x[..., :4] * 1e-6, x[..., 4:]), -1).half() for x in (k, v))
            assert torch.equal(kernel(q, k, v, 0.3), kernel(q, k.float(), v.float(), 0.3))


@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("bias", [0.0, 300.0], ids=["alike", "one dimension outweighs"])
def test_integers_lose_less_than_keeping_keys_and_values_in_float16_did(
    kernel: SmallRows, dim: int, bias: float
) -> None:
    q, k, v = tensors(8, 2, 3000, 5, dim)
    k[..., 5] += bias  # as the K bias of Qwen 2.5
    v *= torch.logspace(-2, 2, v.shape[2])[:, None]  # values of very different lengths
    scaling = dim**-0.5

    def loss(k: Tensor, v: Tensor, found: Tensor) -> float:
        return float((found.double() - attend_reference(q.double(), k.double(), v.double(), scaling)).square().mean())

    kept = loss(k, v, attend_reference(q.double(), k.half().double(), v.half().double(), scaling))
    assert loss(k.half(), v.half(), kernel(q, k.half(), v.half(), scaling)) < kept
    if kernel.scales(dim):
        assert loss(k, v, kernel(q, kernel.scaled(k), kernel.scaled(v), scaling)) < 1.5 * kept, "about as little"
    fewer = (k / 2**4).round() * 2**4 if bias else k.bfloat16()
    assert loss(k, v, kernel(q, fewer.half(), v.half(), scaling)) > kept, "the control"


@pytest.mark.parametrize("dim", SCALED_DIMS)
def test_rows_become_integers_as_their_slow_twin_says(kernel: SmallRows, dim: int) -> None:
    """Up to the last place of a length; rows of zeros, of tiny and of huge numbers, and what is infinite."""
    if not kernel.scales(dim):
        pytest.skip("this processor does not multiply integers")
    x = torch.randn(2, 50, dim) * torch.logspace(-14, 17, 50)[:, None]
    x[0, 3] = 0
    found = kernel.scaled(x)
    assert found is not None and found.shape == (2, 50, dim + SCALE) and not found[0, 3].any()
    assert (found[..., :dim].int() - scaled_reference(x)[..., :dim].int()).abs().max() <= 1
    step, off = x.norm(dim=-1, keepdim=True) / FULL, (widened(found, torch.float32) - x).abs()
    most = 0.5 + FULL * torch.finfo(torch.float32).eps  # half a level, and what float32 rounds the largest by
    assert bool((off <= most * step).all()) and not bool((off <= 0.4 * step).all()), "the control"
    x[1, 7, 5] = torch.inf
    assert kernel.scaled(x) is None


def rows_that_differ(
    kernel: Attend, shape: Shape, threads: Callable[[int], None], most_threads: int, kept: torch.dtype = torch.float32
) -> int:
    """Rows of one pass that differ in any bit from the same query alone, behind the keys before it."""
    cached, new = shape[2:4]
    q, k, v = tensors(*shape)
    k, v = rounded(k, kept), rounded(v, kept)
    alone = []
    for row in range(new):
        threads(1 + row % most_threads)
        end = cached + row + 1
        alone.append(kernel(q[:, :, row : row + 1], k[:, :, :end], v[:, :, :end], 0.3)[:, :, 0])
    differ = set()
    for number in range(1, most_threads + 1):
        threads(number)
        together = kernel(q, k, v, 0.3)
        differ |= {row for row in range(new) if not torch.equal(alone[row], together[:, :, row])}
    return len(differ)


# heads, KV heads, dimensions of a head
HEADS = [(2, 2, 128), (3, 3, 64), (6, 3, 72), (5, 5, 8), (8, 2, 128), (4, 1, 256)]
LENGTHS = [(0, 13), (55, 9), (1015, 9), (1022, 7), (3060, 13)]  # keys, rows behind them
PASSES: list[Shape] = [(*HEADS[i][:2], *LENGTHS[(i + j) % 5], HEADS[i][2]) for i in range(6) for j in (0, 2)]
# More rows than the kernel takes at once: such passes once went to stock operations, which sum in another order
PASSES += [(group, 1, 1200, new, 64) for group, new in ((3, 25), (7, 10), (8, 25), (64, 2), (5, 32))]
# Integers are multiplied where they lie for few rows, packed for eight rows or more a head
SCALED = [(2 * group, 2, 79 * group % 200, 8, dim) for group in range(1, 7) for dim in SCALED_DIMS]


def test_a_row_comes_out_bit_for_bit_whatever_rows_keys_and_threads_there_are(
    kernel: SmallRows, threads: Callable[[int], None], kept: torch.dtype
) -> None:
    """What keeps verification of many rows equal to plain decoding of one."""
    for shape in PASSES:
        own = (*shape[:4], 64) if kept == torch.int16 else shape  # heads of other sizes are no integers
        assert rows_that_differ(kernel, own, threads, 3, kept) == 0, shape
    for shape in SCALED if kept == torch.int16 else ():
        assert rows_that_differ(kernel, shape, threads, 1, kept) == 0, shape
    assert rows_that_differ(attend, (6, 3, 1020, 13, 64), threads, 4) > 0, "the control: another order of sums"


@pytest.mark.parametrize("threads", [1, 2, 7, 200])
def test_no_thread_gets_more_rows_than_its_task_holds_or_none(threads: int) -> None:
    for kv_heads, rows, keys in product((1, 3, 8), (1, 64, 65, 192, 193, 1024), (1, 1025, 5000)):
        pieces, groups = native._cuts(kv_heads, rows, keys, threads)
        assert 1 <= groups <= rows and rows <= groups * native.MOST_TOGETHER
        assert pieces == 1 or (groups == 1 and pieces <= -(-keys // native.KEYS_OF_A_SHARE))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "kept"), [(*HEADS[i], KEPT_AS[(i + j) % 4]) for i in range(6) for j in (0, 1)]
)
def test_rows_that_begin_together_and_end_apart_come_out_bit_for_bit(
    kernel: SmallRows, threads: Callable[[int], None], heads: int, kv_heads: int, dim: int, kept: torch.dtype
) -> None:
    """Conversations about one text: its keys are read once for the rows of all, and each goes on with its own."""
    if kept == torch.int16 and not kernel.scales(dim):
        pytest.skip("heads of other sizes are no integers")
    first, sizes, tails = 2 * native.KEYS_OF_A_SHARE, (1, 13, 7, 60), (40, 13, 1500, 1061)
    q, k, v = tensors(heads, kv_heads, first, sum(sizes), dim)
    k, v = rounded(k, kept), rounded(v, kept)
    for number in (1, 2):
        threads(number)
        begun, at = kernel.begun(q, k[:, :, :first], v[:, :, :first], 0.3), 0
        for size, tail in zip(sizes, tails, strict=True):
            rows, own = slice(at, at + size), rounded(torch.randn(2, 1, kv_heads, tail, dim), kept)
            mine = [torch.cat((part[:, :, :first], new), 2) for part, new in zip((k, v), own, strict=True)]
            found = kernel.ended(q[:, :, rows], *mine, 0.3, begun[:, :, rows], first)
            assert torch.equal(found, kernel(q[:, :, rows], *mine, 0.3))
            at += size
        mine[0][:, :, 5] = 0.0  # the control: what was begun with is not read again
        again = kernel.ended(q[:, :, rows], *mine, 0.3, begun[:, :, rows], first)
        assert torch.equal(again, found) and not torch.equal(kernel(q[:, :, rows], *mine, 0.3), found)


def test_what_the_kernel_was_not_made_for_goes_to_stock_operations(kernel: SmallRows) -> None:
    odd, brain = tensors(4, 4, 40, 2, 60), [x.bfloat16() for x in tensors(4, 4, 40, 2, 64)]
    for q, k, v in (odd, brain, [x.expand(2, -1, -1, -1) for x in tensors(4, 4, 40, 2, 64)]):
        assert torch.equal(kernel(q, k, v, 0.3), attend(q, k, v, 0.3))


def test_results_are_float32_whatever_the_default_type_is(kernel: SmallRows) -> None:
    """Another thread may be making a model in 16 bits."""
    q, k, v = tensors(4, 2, 300, 5, 64)
    before = kernel(q, k, v, 0.3), kernel.votes(q[0], k[0].repeat(2, 1, 1), 0.3)
    torch.set_default_dtype(torch.bfloat16)
    try:
        after = kernel(q, k, v, 0.3), kernel.votes(q[0], k[0].repeat(2, 1, 1), 0.3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(one.dtype == torch.float32 and torch.equal(one, other) for one, other in zip(after, before, strict=True))


# -------------------- layers, votes and chunks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("inner", "outer", "rows"), [(64, 64, 1), (162, 240, 5), (520, 1000, 13), (700, 9, 40)])
def test_packed_layers_equal_their_slow_twin_and_rows_do_not_depend_on_one_another(
    kernel: SmallRows, threads: Callable[[int], None], inner: int, outer: int, rows: int, dtype: torch.dtype
) -> None:
    linear = torch.nn.Linear(inner, outer, bias=rows % 2 == 1).requires_grad_(False)
    linear.weight.data = linear.weight.data.to(dtype).float()
    linear.weight.data[0, 0] = 2.0**-40 if dtype == torch.bfloat16 else linear.weight.data[0, 0]  # float16 has no such
    x, packed = torch.randn(rows, inner), PackedLinear(linear, kernel)
    assert packed.packed.dtype == dtype and torch.equal(packed.weight, linear.weight)
    together = packed(x[None])
    assert torch.allclose(together[0].double(), linear.double()(x.double()), atol=1e-7 * inner)
    for number in (1, 2, 3, 4):
        threads(number)
        assert torch.equal(packed(x), together[0])
        assert all(torch.equal(packed(x[row : row + 1])[0], together[0, row]) for row in range(rows))


@pytest.mark.parametrize(("dim", "rows"), [(64, 1), (162, 5), (336, 13), (520, 7), (1000, 13), (7, 32), (3, 1)])
def test_norms_and_silu_equal_their_slow_twin_and_rows_do_not_depend_on_one_another(
    kernel: SmallRows, dim: int, rows: int
) -> None:
    generator = torch.Generator().manual_seed(dim)
    x, weight = 20 * torch.randn(rows, dim, generator=generator), torch.randn(dim, generator=generator)
    wide = x.double()
    exact = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    normed, active = kernel.norm(x[None], weight, 1e-5)[0], kernel.silu(x[None])[0]
    assert torch.allclose(normed.double(), exact, rtol=1e-5, atol=1e-6)
    assert torch.allclose(active.double(), wide * wide.sigmoid(), rtol=1e-6, atol=1e-30)
    for row in range(rows):
        alone = x[row : row + 1]
        assert torch.equal(kernel.norm(alone, weight, 1e-5)[0], normed[row])
        assert torch.equal(kernel.silu(alone)[0], active[row])
    ends = kernel.silu(torch.tensor([0.0, -0.0, 200.0, -200.0, 3e38, float("inf"), float("nan")]))
    assert torch.equal(ends[:-1], torch.tensor([0.0, 0.0, 200.0, 0.0, 3e38, float("inf")])) and ends[-1].isnan()


@pytest.mark.parametrize(
    ("heads", "num_chunks", "dim"), [(4, 1, 64), (2, 8, 128), (6, 700, 64), (2, 64, 24), (3, 129, 256)]
)
def test_chunks_are_scored_through_the_kernel_as_without(
    kernel: SmallRows, threads: Callable[[int], None], heads: int, num_chunks: int, dim: int
) -> None:
    generator = torch.Generator().manual_seed(num_chunks)
    queries = torch.randn(2 * heads, 8, dim, generator=generator)
    landmarks = 2 * torch.randn(heads, num_chunks + 50, dim, generator=generator)[:, :num_chunks]
    asked = list[int]()

    def counted(folded: Tensor, keys: Tensor, by: float) -> Tensor:
        asked.append(folded.shape[1])
        return kernel.votes(folded, keys, by)

    found = landmark_scores(queries, landmarks, 0.5, counted)
    assert asked == [16] and torch.allclose(found.sum(1), torch.full((heads,), 16.0))
    assert torch.allclose(found, landmark_scores(queries, landmarks, 0.5), atol=2e-5)
    for number in (1, 2, 3):
        threads(number)
        assert torch.equal(landmark_scores(queries, landmarks, 0.5, kernel.votes), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_chunks_are_moved_as_by_stock_operations(kernel: SmallRows, dtype: torch.dtype) -> None:
    source, target = torch.randn(1, 3, 203, 8).to(dtype), torch.randn(1, 3, 77, 8).to(dtype)
    heads, slots = torch.tensor([0, 0, 2, 1, 2]), torch.tensor([18, 0, 3, 5, 4])
    chunks, wanted = torch.tensor([49, 0, 7, 7, 50 - 1]), target.clone()
    for head, chunk, slot in zip(heads.tolist(), chunks.tolist(), slots.tolist(), strict=True):
        wanted[0, head, 4 * slot : 4 * slot + 4] = source[0, head, 4 * chunk : 4 * chunk + 4]
    for some in (5, 0):
        kernel.move_chunks(source, target, (heads[:some], chunks[:some], slots[:some]), 4)
        assert torch.equal(target, wanted)


# -------------------- whole models


@pytest.mark.parametrize(
    ("kind", "heads", "kv_heads", "kept", "lengths"),
    [
        ("llama", 6, 3, None, (500, 1020, 2045, 3065)),  # KV heads that do not divide by two threads; several shares
        ("llama", 8, 1, torch.float16, (1020, 2045)),  # more rows of a KV head than the kernel takes at once
        ("qwen2", 4, 2, None, (80, 1020)),  # its query layer has a bias
        ("qwen3", 6, 3, torch.int16, (80, 1020)),  # norms of queries and keys
        ("qwen3", 4, 4, None, (80, 2045)),
        ("mistral", 4, 4, torch.float16, (1020,)),
    ],
)
def test_a_model_keeps_its_logits_and_verifies_to_the_last_bit(
    kernel: SmallRows, kind: str, heads: int, kv_heads: int, kept: torch.dtype | None, lengths: tuple[int, ...]
) -> None:
    """With the kernels a pass of many rows has the logits of passes of one row; without them the last bits differ."""
    if kept == torch.int16 and not kernel.scales(64):
        pytest.skip("this processor does not multiply integers")
    tokens, differ = Context(random_prompt(lengths[-1] + 25)), {"torch": 0, "compiled": 0}
    logits: dict[str, list[Tensor]] = {"torch": [], "compiled": []}
    for chosen in (STOCK, Backend("compiled", kernel, "test", kernel=kernel)):
        own = {"head_dim": 64} if kept == torch.int16 else {}
        own["intermediate_size"] = 104  # as the bundled target's, no multiple of what torch's SiLU takes at a time
        tiny = loaded(tiny_config(kind, heads=heads, kv_heads=kv_heads, **own), 5)
        model = prepared(tiny.module, replace(tiny.dims, kv_dtype=kept), torch.float32, CPU, chosen)
        judge = CachedModel("full", model.module, FullCache(model.shape, lengths[-1] + 32, 8, backend=chosen), CPU)
        for length in lengths:
            for at in range(judge.cache.length, length, 256):
                judge.feed(tokens, range(at, min(at + 256, length)), 1)
            alone = torch.cat([judge.feed(tokens, range(at, at + 1), 1) for at in range(length, length + 25)])
            for rows in (2, 7, 13, 25):
                judge.cache.truncate(length)
                together = judge.feed(tokens, range(length, length + rows), rows)
                differ[chosen.name] += sum(not torch.equal(*pair) for pair in zip(alone, together, strict=False))
            judge.cache.truncate(length)
            logits[chosen.name].append(alone)
    assert differ["compiled"] == 0
    assert differ["torch"] > 0, "the comparison sees nothing"
    most = 1e-3 if kept is None else 2e-2
    assert all(torch.allclose(*pair, atol=most) for pair in zip(*logits.values(), strict=True))
