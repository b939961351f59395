"""What the newest pass attended to, counted beside its attention, and chunks chosen by it."""

from itertools import product

import pytest
import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.policies import ByVerification, TopChunks
from core.caches.tokens import Context
from core.caches.votes import Counted, Votes
from core.config import GenerationConfig, RetrievalConfig, SamplingParams, SpeculationConfig
from core.models.cached_model import CachedModel
from core.models.weights import prepared
from core.ops.attention import Masses, rounded, widened
from core.ops.backend import Backend
from core.ops.native import KEPT_AS, VOTERS, SmallRows
from core.ops.reach import Asked
from core.ops.scores import MOST_GROUPS, Tally
from tests.core.caches.passes import Text, read_by_layers, run_pass
from tests.core.toys import CPU, loaded, random_prompt, tiny_config, tiny_engine, tiny_shape


def votes_reference(q: Tensor, k: Tensor, scaling: float, chunk: int, softcap: float | None = None) -> Tensor:
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
    kernel: SmallRows, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], kept: torch.dtype, by_matrices: bool
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


@pytest.mark.parametrize(("rows", "chunk"), [(3, 4), (3, 12), (3, 64), (40, 8)])
def test_what_is_not_counted_attends_all_the_same(kernel: SmallRows, rows: int, chunk: int) -> None:
    q, (k, v) = torch.randn(1, 4, rows, 64), torch.randn(2, 1, 4, 100, 64)
    out, votes = kernel.with_votes(q, k, v, 0.3, chunk)
    assert votes is None and torch.equal(out, kernel(q, k, v, 0.3))


def test_the_newest_are_those_of_the_last_tokens_kept() -> None:
    votes = Votes()
    votes.open(100, 10)
    numbers = torch.arange(3.0)[None, :, None].expand(1, 3, 20) + 1  # of tokens 100 to 103, 104 to 107, 108 and 109
    votes.put(0, Counted(100, VOTERS, numbers))
    # a full group alone, else with the one before it
    expected = {98: None, 99: None, 100: 1, 102: 1, 103: 1, 104: 3, 106: 3, 107: 2, 108: 5, 109: 5, 110: None}
    for last, number in expected.items():
        got = votes.newest(0, last + 1, 5)
        assert (got is None) if number is None else (got is not None and got.tolist() == [[number] * 5]), last
    shapes = [None if (found := votes.newest(0, 105, n)) is None else found.shape[1] for n in (0, None, 21)]
    assert shapes == [0, 20, None] and votes.newest(1, 105, 5) is None
    votes.truncate(101)
    assert votes.newest(0, 101, 5) is not None
    votes.truncate(100)
    assert votes.newest(0, 101, 5) is None, "none of the pass's tokens are left"


def test_a_choice_after_verification_has_the_chunks_of_exact_attention(kernel: SmallRows) -> None:
    """Level by level through a model: what the pass counted is the attention of its rows, not of the rows before."""
    tiny, backend = loaded(tiny_config(heads=4, kv_heads=2), 5), Backend("compiled", kernel, "", kernel=kernel)
    model = prepared(tiny.module, tiny.dims, torch.float32, CPU, backend)
    full = FullCache(model.shape, 1000, 8, backend=backend)
    verifier, tokens = CachedModel("full", model.module, full, CPU), Context(random_prompt(909))
    for at in range(0, 900, 300):
        verifier.feed(tokens, range(at, at + 300), 1)
    full.votes.wanted = True
    config = RetrievalConfig(budget=128, local_window=64, query_window=VOTERS)
    policy, landmarks = ByVerification(full, config), TopChunks(full, config)
    assert torch.equal(policy.choose(80, 0.25), landmarks.choose(80, 0.25)), "nothing was counted yet"
    verifier.feed(tokens, range(900, 908), 8)
    queries, keys = full.recent_queries(1, VOTERS), full.rows(1, 0, 908)[0]
    expected = votes_reference(queries[None], keys[None], model.shape.head_dim**-0.5, 8)[:, -1, :80]
    assert torch.allclose(policy.score(1, 80, 0.25).double(), expected, atol=1e-5)
    full.truncate(900)
    assert torch.equal(policy.score(1, 80, 0.25), landmarks.score(1, 80, 0.25)), "the pass was taken back"


# heads, KV heads, cached, new, blocks that come together, soft cap, share of the blocks that the host attends to
OFFLOADED = [
    (8, 8, 300, 13, 8, None, 0.0),
    (6, 3, 300, 1, 3, None, 0.5),
    (4, 2, 300, 40, 8, None, 0.9),  # more groups of four tokens than are kept
    (4, 4, 5, 7, 8, None, 0.5),  # nothing has left for the host
    (4, 1, 300, 9, 8, 2.0, 0.9),
    (4, 2, 300, 120, 3, None, 0.5),  # a long pass: its last tokens vote
]
WAYS = ["verification", "prompt", "prompt, layer by layer"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", OFFLOADED, ids=str)
def test_a_layer_in_host_memory_counts_what_its_slow_twin_counts(
    case: tuple[int, int, int, int, int, float | None, float],
    kept: torch.dtype,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads, kv_heads, cached, new, together, softcap, share = case
    shape = tiny_shape(layers=2, heads=heads, kv_heads=kv_heads, dim=16)._replace(narrow=kept)
    text, asked = Text(shape), Asked(softcap=softcap) if softcap else None

    def newest() -> Tensor:
        full = FullCache(shape, cached + new + 40, 8, offload=Offload(block_rows=16, group=together))
        full.let_host_attend(share)
        full.votes.wanted = way == "verification"
        for count in (cached, new):
            if way.endswith("layer"):
                read_by_layers(text, count, full, chunk=32, asked=asked)
            else:
                run_pass(text, count, full, asked=asked)
        found = full.votes.newest(1, cached + new)
        assert found is not None and full.votes._by_layer[1].group == group and not full.has_landmarks(1)
        return found.double()

    by_groups = way == "verification" and new <= 64
    group = max(VOTERS, -(-new // MOST_GROUPS)) if by_groups else VOTERS
    voters = min(new, group + (new % group if by_groups else 0))  # an incomplete group votes with the one before it
    q, keys = text.rows(1, cached + new - voters, cached + new)[0], text.k[1, None, :, : cached + new]
    expected = votes_reference(q, keys.to(kept).float(), 0.4, 8, softcap).sum(1)
    assert torch.allclose(newest(), expected, atol=1e-4)
    assert not torch.allclose(newest(), expected.roll(1, 1), atol=1e-3), "the control"
    if share and cached > 128 and new <= 64 and not way.endswith("layer"):
        add = Tally.add_oldest
        rolled = lambda own, masses: add(own, Masses(masses.shares.roll(1, 0), masses.lse))  # noqa: E731
        monkeypatch.setattr(Tally, "add_oldest", rolled)
        assert not torch.allclose(newest(), expected, atol=1e-3), "the control of what the host counts"


def test_what_a_seed_draws_does_not_depend_on_how_a_prompt_came_to_be_read() -> None:
    """At once, after a shorter question about the same book, or held already: the same tokens choose the chunks."""
    shape, sampling = SpeculationConfig(gamma2=4, adaptive=False), SamplingParams(temperature=1.0)
    sampled = GenerationConfig(method="retrieval", max_new_tokens=30, sampling=sampling, speculation=shape)
    prompt, found = random_prompt(500), []
    for earlier in (0, 470, 497, 500):
        engine = tiny_engine(offload=Offload(block_rows=16), prefill_chunk=64)
        if earlier:
            list(engine.generate(prompt[:earlier], sampled))
        list(engine.read(prompt))
        engine._levels.retrieval.select()
        found.append(engine._levels.retrieval.held_chunks().sort(2).values)
    assert all(torch.equal(found[0], other) for other in found[1:])
