"""What the newest pass attended to, counted beside its attention, and chunks chosen by it."""

from itertools import product

import pytest
import torch

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.policies import ByVerification, TopChunks
from core.caches.tokens import Context
from core.caches.votes import Counted, Votes
from core.config import GenerationConfig, RetrievalConfig, SamplingParams, SpeculationConfig
from core.models.cached_model import CachedModel
from core.models.weights import prepared
from core.ops.attention import Masses
from core.ops.backend import Backend
from core.ops.native import KEPT_AS, VOTERS, SmallRows
from core.ops.reach import Asked
from core.ops.scaled_rows import rounded, widened
from core.ops.scores import MOST_GROUPS, Tally
from tests.core.toys import loaded, random_prompt, tiny_config, tiny_engine, tiny_shape

CPU = torch.device("cpu")


def votes_reference(
    q: torch.Tensor, k: torch.Tensor, scaling: float, chunk: int, softcap: float | None = None
) -> torch.Tensor:
    """Slow twin: the whole softmax in float64, summed over VOTERS tokens, the heads of a group and a chunk's keys."""
    heads, num_new, kv_heads, total = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    scores = scaling * q.double() @ widened(k, torch.float64).repeat_interleave(heads // kv_heads, 1).mT
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    future = torch.arange(total) > total - num_new + torch.arange(num_new)[:, None]
    shares = torch.softmax(scores.masked_fill(future, float("-inf")), -1)[0]
    by_token = shares.view(kv_heads, -1, num_new, total).sum(1)
    padded = torch.nn.functional.pad(by_token, (0, -total % chunk, 0, -num_new % VOTERS))
    return padded.view(kv_heads, -1, VOTERS, padded.shape[2] // chunk, chunk).sum((2, 4))


# heads, KV heads, cached keys, new rows, dimensions of a head, keys of a chunk
SHAPES = [
    (8, 8, 3000, 13, 64, 8),
    (6, 3, 1100, 25, 64, 16),  # heads that do not divide by two threads
    (3, 3, 2600, 1, 72, 8),
    (4, 2, 50, 5, 128, 32),
    (1, 1, 0, 7, 64, 8),
    (8, 8, 1024, 3, 64, 8),
]


@pytest.mark.parametrize(("shape", "kept", "by_matrices"), list(product(SHAPES, KEPT_AS, [False, True]))[::5], ids=str)
def test_votes_equal_their_slow_twin_and_attention_stays_to_the_last_bit(
    kernel: SmallRows,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int, int, int, int, int],
    kept: torch.dtype,
    by_matrices: bool,
) -> None:
    if by_matrices and not kernel.has_matrices:
        pytest.skip("this processor has no matrix units")
    monkeypatch.setattr(kernel, "by_matrices", frozenset(KEPT_AS if by_matrices else ()))
    heads, kv_heads, cached, new, dim, chunk = shape
    generator = torch.Generator().manual_seed(cached)
    q = torch.randn(1, new, heads, dim, generator=generator).transpose(1, 2)
    k, v = rounded(torch.randn(2, 1, kv_heads, cached + new, dim, generator=generator), kept)
    out, votes = kernel.with_votes(q, k, v, 0.3, chunk)
    if kept == torch.int16 and not kernel.scales(dim):
        assert votes is None
        return
    assert votes is not None and torch.equal(out, kernel(q, k, v, 0.3))
    expected, most = votes_reference(q, k, 0.3, chunk), 5e-3 if kept in (torch.float16, torch.int16) else 5e-6
    assert votes.shape == expected.shape and torch.allclose(votes.double(), expected, atol=most)
    assert not torch.allclose(votes.double(), expected.roll(1, 2), atol=most) or expected.shape[2] == 1, "the control"


def test_what_is_not_counted_attends_all_the_same(kernel: SmallRows) -> None:
    q, (k, v) = torch.randn(1, 4, 3, 64), torch.randn(2, 1, 4, 100, 64)
    for chunk in (4, 12, 64):
        out, votes = kernel.with_votes(q, k, v, 0.3, chunk)
        assert votes is None and torch.equal(out, kernel(q, k, v, 0.3))
    many = torch.randn(1, 4, 40, 64)
    assert kernel.with_votes(many, k, v, 0.3, 8)[1] is None


def test_the_newest_are_those_of_the_last_tokens_kept() -> None:
    votes = Votes()
    votes.open(100, 10)
    numbers = torch.arange(3.0)[None, :, None].expand(1, 3, 20) + 1  # of tokens 100 to 103, 104 to 107, 108 and 109
    votes.put(0, Counted(100, VOTERS, numbers))
    found = {last: votes.newest(0, last + 1, 5) for last in range(98, 112)}
    assert [found[last] for last in (98, 99, 110, 111)] == [None] * 4
    # a full group alone, else with the one before it
    expected = {100: 1, 102: 1, 103: 1, 104: 3, 106: 3, 107: 2, 108: 5, 109: 5}
    for last, number in expected.items():
        got = found[last]
        assert got is not None and got.tolist() == [[number] * 5], last
    none, whole = votes.newest(0, 105, 0), votes.newest(0, 105)
    assert none is not None and none.shape == (1, 0) and whole is not None and whole.shape == (1, 20)
    assert votes.newest(0, 105, 21) is None and votes.newest(1, 105, 5) is None
    votes.truncate(101)
    assert votes.newest(0, 101, 5) is not None
    votes.truncate(100)
    assert votes.newest(0, 101, 5) is None, "none of the pass's tokens are left"


def test_a_choice_after_verification_has_the_chunks_of_exact_attention(kernel: SmallRows) -> None:
    """Level by level through a model: what the pass counted is the attention of its rows, not of the rows before."""
    tiny = loaded(tiny_config("llama", heads=4, kv_heads=2), 5)
    model = prepared(tiny.module, tiny.dims, torch.float32, CPU, Backend("compiled", kernel, "", kernel=kernel))
    full = FullCache(model.shape, 1000, 8, backend=Backend("compiled", kernel, "", kernel=kernel))
    judge = CachedModel("full", model.module, full, CPU)
    tokens = Context(random_prompt(909))
    for at in range(0, 900, 300):
        judge.feed(tokens, range(at, at + 300), 1)
    full.votes.wanted = True
    config = RetrievalConfig(budget=128, local_window=64, query_window=VOTERS)
    policy, landmarks = ByVerification(full, config), TopChunks(full, config)
    assert torch.equal(policy.choose(80, 0.25), landmarks.choose(80, 0.25)), "nothing was counted yet"
    judge.feed(tokens, range(900, 908), 8)
    counted = policy.score(1, 80, 0.25)
    queries, keys = full.recent_queries(1, VOTERS), full.rows(1, 0, 908)[0]
    expected = votes_reference(queries[None], keys[None], model.shape.head_dim**-0.5, 8)[:, -1, :80]
    assert torch.allclose(counted.double(), expected, atol=1e-5)
    full.truncate(900)
    assert torch.equal(policy.score(1, 80, 0.25), landmarks.score(1, 80, 0.25)), "the pass was taken back"


OFFLOADED = [
    (8, 8, 300, 13, 8, None),
    (6, 3, 300, 1, 3, None),
    (4, 2, 300, 40, 8, None),  # more groups of four tokens than are kept
    (4, 4, 5, 7, 8, None),  # nothing has left for the host
    (4, 2, 300, 9, 8, 2.0),
    (4, 2, 300, 120, 3, None),  # a long pass: its last tokens vote
]


@pytest.mark.parametrize(
    ("shape", "kept", "way"),
    list(product(OFFLOADED, [torch.float32, torch.float16], ["verification", "prompt", "prompt, layer by layer"]))[::5],
    ids=str,
)
def test_a_layer_in_host_memory_counts_what_its_slow_twin_counts(
    shape: tuple[int, int, int, int, int, float | None], kept: torch.dtype, way: str
) -> None:
    layerwise = way.endswith("layer")
    heads, kv_heads, cached, new, group, softcap = shape
    sizes = tiny_shape(layers=2, heads=heads, kv_heads=kv_heads, dim=16)._replace(narrow=kept)
    offload = Offload(num_resident=0, block_rows=16, group=group)
    full, generator = FullCache(sizes, cached + new + 40, 8, offload=offload), torch.Generator().manual_seed(new)
    asked, keys, q = Asked(softcap=softcap) if softcap else None, [], torch.empty(0)
    full.votes.wanted = way == "verification"
    for count in (cached, new):
        reading = full.layerwise(count, full.workspace(full.length + count)) if layerwise else None
        if reading is None:
            full.begin(full.length, count)
        for layer in range(2):
            q = torch.randn(1, heads, count, 16, generator=generator)
            k, v = torch.randn(2, 1, kv_heads, count, 16, generator=generator)
            if layer == 1:
                keys.append(k.to(kept).float())
            if reading is None:
                full.stage(layer, k, v)
                full.attend(layer, q, 0.7, asked)
            else:
                reading.enter(layer)
                reading.begin(full.length, count)
                reading.stage(layer, k, v)
                reading.attend(layer, q, 0.7, asked)
                reading.leave(layer)
        if reading is None:
            full.commit(count)
        else:
            reading.commit()
            reading.close()
    found, counted = full.votes.newest(1, cached + new), full.votes._by_layer[1]
    by_groups = way == "verification" and new <= 64
    group = max(VOTERS, -(-new // MOST_GROUPS)) if by_groups else VOTERS
    behind = new % group if by_groups else 0  # an incomplete group votes with the one before it
    asked_rows = q[:, :, -min(new, group + behind) :]
    expected = votes_reference(asked_rows, torch.cat(keys, 2), 0.7, 8, softcap).sum(1)
    assert found is not None and counted.group == group and not full.has_landmarks(1)
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert not torch.allclose(found.double(), expected.roll(1, 1), atol=1e-3), "the control"


def counted(
    share: float, new: int, heads: int, kv_heads: int, softcap: float | None, kept: torch.dtype, wanted: bool
) -> Counted:
    """By the last layer of a cache in host memory, of whose blocks the host attends to a share."""
    sizes = tiny_shape(layers=2, heads=heads, kv_heads=kv_heads, dim=16)._replace(narrow=kept)
    full = FullCache(sizes, 600, 8, offload=Offload(block_rows=32, group=3))
    full.let_host_attend(share)
    full.votes.wanted = wanted
    generator, asked = torch.Generator().manual_seed(new), Asked(softcap=softcap) if softcap else None
    for count in (500, new):
        full.begin(full.length, count)
        for layer in range(2):
            q = torch.randn(1, heads, count, 16, generator=generator)
            full.stage(layer, *torch.randn(2, 1, kv_heads, count, 16, generator=generator))
            full.attend(layer, q, 0.7, asked)
        full.commit(count)
    votes = full.votes.newest(1, full.length, full.length // 8)
    assert votes is not None, "counted for every chunk"
    return full.votes._by_layer[1]


HALF_PRECISION = [(torch.float32, True), (torch.float16, True), (torch.float32, False)]  # and whether votes are wanted


@pytest.mark.parametrize(
    ("asked", "case", "counting"),
    list(product([(0.5, 1), (0.9, 26), (0.5, 40)], [(4, 4, None), (6, 2, None), (4, 1, 2.0)], HALF_PRECISION))[::4],
    ids=str,
)
def test_what_the_host_attends_to_counts_as_if_it_had_been_brought(
    asked: tuple[float, int],
    case: tuple[int, int, float | None],
    counting: tuple[torch.dtype, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (share, new), (kept, wanted) = asked, counting
    brought, helped = counted(0.0, new, *case, kept, wanted), counted(share, new, *case, kept, wanted)
    assert helped[:2] == brought[:2] and helped.votes.shape == brought.votes.shape
    assert torch.allclose(helped.votes, brought.votes, rtol=1e-3, atol=1e-7)
    moved = Tally.add_oldest
    monkeypatch.setattr(
        Tally, "add_oldest", lambda own, masses: moved(own, Masses(masses.shares.roll(1, 0), masses.lse))
    )
    wrong = counted(share, new, *case, kept, wanted).votes
    assert not torch.allclose(wrong, brought.votes, rtol=1e-3, atol=1e-7), "the control"


def test_what_a_seed_draws_does_not_depend_on_how_a_prompt_came_to_be_read() -> None:
    """At once, after a shorter question about the same book, or held already: the same tokens choose the chunks."""
    sampled = GenerationConfig(
        method="retrieval",
        max_new_tokens=30,
        sampling=SamplingParams(temperature=1.0),
        speculation=SpeculationConfig(gamma2=4, adaptive=False),
    )
    prompt = random_prompt(500)
    found = []
    for earlier in ([], [prompt[:470]], [prompt[:497]], [prompt]):
        engine = tiny_engine(offload=Offload(block_rows=16), prefill_chunk=64)
        for text in earlier:
            list(engine.generate(text, sampled))
        list(engine.read(prompt))
        engine._levels.retrieval.select()
        found.append(engine._levels.retrieval.held_chunks().sort(2).values)
    assert all(torch.equal(found[0], other) for other in found[1:])
