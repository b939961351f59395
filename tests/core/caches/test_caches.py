"""The caches against a plain list: whatever the pattern of verdicts, each holds the rows of a prefix of the text.

Keys and values are made from (token index, layer, head), so a row tells which token it belongs to.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.caches import policies
from core.caches.base import KVCache, KVShape
from core.caches.full import FullCache
from core.caches.policies import (
    HeavyHitters,
    SinkOnly,
    TopChunks,
    accumulated_scores,
    attention_scores,
    chosen_weights,
    landmark_scores,
    top_chunks,
    with_neighbor_bonus,
)
from core.caches.query_log import QUERY_LOG
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.config import DraftConfig, RetrievalConfig
from core.errors import ContextTooSmall
from core.ops.backend import STOCK, Backend
from core.ops.native import SmallRows
from tests.core.toys import tiny_shape

SHAPE = tiny_shape(layers=2, heads=4, kv_heads=2, dim=4)
CONFIG = RetrievalConfig(budget=64, chunk_size=4, local_window=24, query_window=4)


def mark(start: int, stop: int, layer: int, shape: KVShape = SHAPE, salt: int = 0) -> Tensor:
    """[1, H_kv, T, D] that names its tokens."""
    index = torch.arange(start, stop, dtype=torch.float32) + 1000 * layer + salt
    heads = 0.25 * torch.arange(shape.num_kv_heads)
    return (index[None, :] + heads[:, None])[None, ..., None].expand(1, -1, -1, shape.head_dim).clone()


def run_pass(cache: KVCache, start: int, count: int, salt: int = 0) -> Tensor:
    """One forward pass without a model; returns the positions it was given."""
    positions = cache.begin(start, count)
    for layer in range(SHAPE.num_layers):
        row = mark(start, start + count, layer, salt=salt)
        cache.stage(layer, row, -row)
        q = torch.randn(1, SHAPE.num_heads, count, SHAPE.head_dim, generator=torch.Generator().manual_seed(start))
        assert cache.attend(layer, q, 0.5).shape == q.shape
    cache.commit(count)
    return positions


def assert_full_holds(cache: FullCache, length: int) -> None:
    assert cache.length == length
    for layer in range(SHAPE.num_layers):
        k, v = cache.rows(layer, 0, length)
        assert torch.equal(k, mark(0, length, layer)[0]) and torch.equal(v, -k)
        complete = length // cache.chunk_size
        expected = mark(0, complete * cache.chunk_size, layer)[0].reshape(2, complete, cache.chunk_size, 4).mean(2)
        assert torch.equal(cache.landmarks(layer, complete), expected)


verdicts = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12)


@given(prompt=st.integers(1, 90), rounds=verdicts)
@settings(max_examples=40, deadline=None)
def test_after_any_verdicts_all_three_caches_hold_the_same_prefix(prompt: int, rounds: list[tuple[int, int]]) -> None:
    """The lockstep of TriForce, with caches alone: guess, verify, truncate, select now and then."""
    full = FullCache(SHAPE, 400, CONFIG.chunk_size)
    retrieval = RetrievalCache(full, TopChunks(full, CONFIG))
    streaming = StreamingCache(SHAPE, DraftConfig(num_sink=2, window=66), lambda keys, delta: keys.clone())
    caches: tuple[KVCache, ...] = (full, retrieval, streaming)
    run_pass(full, 0, prompt)
    retrieval.select()
    length = prompt  # tokens seen by the full cache; one more is always committed
    for number, (guesses, accepted) in enumerate(rounds):
        accepted = min(accepted, guesses)
        for cache in (streaming, retrieval):  # they feed themselves what they lack, then their own guesses
            for span in cache.unseen_spans(length + guesses):
                for start in range(span.start, span.stop, 8):
                    run_pass(cache, start, min(8, span.stop - start), salt=500 if cache is retrieval else 0)
        run_pass(full, length, guesses + 1)
        for cache in caches:
            cache.truncate(length + 1 + accepted - 1)
        length += accepted
        if number % 3 == 2:
            retrieval.select()
        assert full.length == length
        assert_full_holds(full, length)
        for cache in (retrieval, streaming):
            assert cache.length <= length
            assert_rows_belong_to_a_prefix(cache, length)


def assert_rows_belong_to_a_prefix(cache: KVCache, length: int) -> None:
    assert isinstance(cache, (RetrievalCache, StreamingCache))
    rows = cache.nbytes // SHAPE.bytes_per_token
    held = (cache.k[0][0, 0, :rows, 0] % 500).long().tolist()  # a salt of 500 marks approximations
    assert all(0 <= index < cache.length for index in held), held
    newest = range(max(0, cache.length - min(rows, 16)), cache.length)
    assert set(newest) <= set(held), (list(newest), held)
    assert len(set(held)) == len(held)


def filled(num_tokens: int, config: RetrievalConfig = CONFIG) -> FullCache:
    full = FullCache(SHAPE, 600, config.chunk_size)
    for start in range(0, num_tokens, 50):
        run_pass(full, start, min(50, num_tokens - start))
    return full


def test_a_full_cache_that_is_full_says_how_much_is_needed() -> None:
    full = FullCache(SHAPE, 16, 4, possible=1000)
    run_pass(full, 0, 10)
    with pytest.raises(ContextTooSmall) as error:
        full.begin(10, 7)
    assert (error.value.needed, error.value.capacity) == (17, 16)
    assert full.length == 10


def test_landmarks_of_rejected_guesses_do_not_survive() -> None:
    full = filled(30)
    run_pass(full, 30, 9, salt=77)  # wrong tokens complete two chunks
    full.truncate(30)
    run_pass(full, 30, 9)
    assert_full_holds(full, 39)


def test_the_query_log_returns_the_newest_committed_queries_across_its_wrap() -> None:
    full = filled(QUERY_LOG + 40)
    log = full.recent_queries(0, 8)
    asked = torch.randn(1, 4, 18, 4, generator=torch.Generator().manual_seed(150))
    assert torch.equal(log, asked[0, :, 10:18])  # the last pass covered tokens 150 to 167
    full.truncate(QUERY_LOG + 38)
    assert torch.equal(full.recent_queries(0, 8), asked[0, :, 8:16])


def test_a_rewind_finds_the_queries_that_were_remembered_there_and_no_others() -> None:
    full = filled(60)
    asked = [full.recent_queries(layer, 8).clone() for layer in range(SHAPE.num_layers)]
    full.remember_queries(8)
    run_pass(full, 60, QUERY_LOG)  # the ring holds none of them any more
    full.truncate(60)
    assert full.queries_start() == 52
    for layer, queries in enumerate(asked):
        assert torch.equal(full.recent_queries(layer, 8), queries)
    run_pass(full, 60, QUERY_LOG)
    full.truncate(59)
    assert full.recent_queries(0, 8).shape[1] == 0, "what was overwritten is not taken for what was asked"
    run_pass(full, 59, 20)  # another text, which nobody remembers at 60
    run_pass(full, 79, QUERY_LOG)
    full.truncate(60)
    assert full.recent_queries(0, 8).shape[1] == 0, "nor what was asked in another text"
    run_pass(full, 60, 3)
    assert full.queries_start() == 60 and full.recent_queries(0, 8).shape[1] == 3


def test_retrieval_holds_sink_choice_and_local_window_as_exact_copies() -> None:
    full = filled(300)
    cache = RetrievalCache(full, TopChunks(full, CONFIG))
    cache.select()
    assert cache.length == 300
    for layer, chunks in enumerate(cache.held_chunks()):
        for head in range(2):
            index = [c * 4 + i for c in chunks[head].tolist() for i in range(4)]
            rows = cache.k[layer][0, head, : len(index), 0]
            assert torch.equal(rows, mark(0, 300, layer)[0, head, index, 0])
        assert (chunks == 0).any(1).all(), "the sink chunk always stays"
    held = cache.k[0][0, 0, : cache.nbytes // SHAPE.bytes_per_token, 0].tolist()
    assert held[-24:] == list(range(276, 300))


def test_chunks_of_a_text_that_was_taken_back_are_not_taken_for_those_of_the_next_one() -> None:
    """Both texts have the same numbers of chunks; only what stands in them differs."""
    full = filled(160)
    retrieval = RetrievalCache(full, TopChunks(full, CONFIG))
    retrieval.select()
    for cache in (full, retrieval):
        cache.truncate(20)
    run_pass(full, 20, 140, salt=300)
    retrieval.select()
    for layer in range(SHAPE.num_layers):
        for head, chunks in enumerate(retrieval.held_chunks()[layer]):
            tokens = (chunks[:, None] * CONFIG.chunk_size + torch.arange(CONFIG.chunk_size)).flatten()
            assert int(tokens.max()) > 20, "or this tests nothing"
            for ours, theirs in zip((retrieval.k, retrieval.v), full.rows(layer, 0, 160), strict=True):
                assert torch.equal(ours[layer][0, head, : len(tokens)], theirs[head, tokens])


def test_a_second_selection_moves_only_the_chunks_that_changed() -> None:
    full = filled(300)
    cache = RetrievalCache(full, TopChunks(full, CONFIG))
    cache.select()
    first, before = cache.chunks_moved, cache.held_chunks()
    cache.select()
    assert first > 0 and cache.chunks_moved == 0 and torch.equal(cache.held_chunks(), before)
    run_pass(full, 300, 16)
    cache.select()
    after = cache.held_chunks()
    changed = sum(len(set(after[i, j].tolist()) - set(before[i, j].tolist())) for i in range(2) for j in range(2))
    assert cache.chunks_moved == changed
    for layer in range(2):  # slots that stayed were not touched, slots that changed hold the right rows
        for head in range(2):
            index = [c * 4 + i for c in after[layer, head].tolist() for i in range(4)]
            assert torch.equal(cache.k[layer][0, head, : len(index), 0], mark(0, 316, layer)[0, head, index, 0])


def test_the_kernel_moves_what_stock_operations_move(kernel: SmallRows, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    move = kernel.move_chunks
    monkeypatch.setattr(kernel, "move_chunks", lambda *given: (moved.append(len(given[2][0])), move(*given)))
    caches: list[RetrievalCache] = []
    for backend in (STOCK, Backend("compiled", kernel, "", kernel=kernel)):
        torch.manual_seed(5)
        full = filled(300)
        full.backend = backend
        cache = RetrievalCache(full, TopChunks(full, CONFIG))
        cache.select()
        run_pass(full, 300, 40)
        cache.select()
        held = cache.set_aside()
        full.truncate(320)
        cache.truncate(0)
        cache.put_back(held, 320)
        caches.append(cache)
    stock, compiled = caches
    assert torch.equal(stock.held_chunks(), compiled.held_chunks()) and stock.held_chunks().numel()
    assert len(moved) == 2 * 2 * 3 and sum(moved) > 0, moved
    rows = stock._first_recent + stock.length - stock._recent_start
    for layer in range(2):
        assert torch.equal(stock.k[layer][:, :, :rows], compiled.k[layer][:, :, :rows])
        assert torch.equal(stock.v[layer][:, :, :rows], compiled.v[layer][:, :, :rows])


def test_what_was_set_aside_is_put_back_with_its_own_text_behind_what_stayed() -> None:
    """Another answer held chunks of the same numbers behind the prompt, with other tokens in them."""
    full = filled(160)
    cache = RetrievalCache(full, TopChunks(full, CONFIG))
    cache.select()
    aside = cache.set_aside()
    for model in (full, cache):
        model.truncate(20)
    run_pass(full, 20, 140, salt=300)
    cache.select()
    assert (cache.held_chunks() == aside.held)[aside.held > 5].any(), "or this tests nothing"
    full.truncate(20)
    run_pass(full, 20, 140)
    cache.put_back(aside, 20)
    for layer, chunks in enumerate(cache.held_chunks()):
        for head in range(2):
            index = [c * 4 + i for c in chunks[head].tolist() for i in range(4)]
            assert torch.equal(cache.k[layer][0, head, : len(index), 0], mark(0, 160, layer)[0, head, index, 0])


def test_a_context_below_the_budget_is_held_whole() -> None:
    full = filled(40)
    cache = RetrievalCache(full, TopChunks(full, CONFIG))
    cache.select()
    assert sorted(cache.k[1][0, 1, :40, 0].tolist()) == mark(0, 40, 1)[0, 1, :, 0].tolist()


def test_retrieval_takes_over_exact_rows_once_the_full_cache_has_them() -> None:
    full = filled(100)
    cache = RetrievalCache(full, TopChunks(full, CONFIG))
    cache.select()
    run_pass(cache, 100, 5, salt=500)
    assert cache.k[0][0, 0, cache.nbytes // SHAPE.bytes_per_token - 1, 0] == 604
    run_pass(full, 100, 5)
    run_pass(cache, 105, 1, salt=500)
    rows = cache.nbytes // SHAPE.bytes_per_token
    assert cache.k[0][0, 0, rows - 6 : rows, 0].tolist() == [100, 101, 102, 103, 104, 605]


@pytest.mark.parametrize("policy", [SinkOnly, HeavyHitters])
def test_lossy_caches_slide_without_a_full_cache_to_follow(policy: type[SinkOnly] | type[HeavyHitters]) -> None:
    full = filled(200)
    cache = RetrievalCache(full, policy(full, CONFIG))
    cache.select()
    for start in range(200, 700, 10):
        run_pass(cache, start, 10)
    assert cache.length == 700
    rows = cache.nbytes // SHAPE.bytes_per_token
    newest = cache.k[0][0, 0, rows - 30 : rows, 0].tolist()
    assert newest == list(range(670, 700))
    assert (cache.held_chunks() == 0).any(-1).all()


def test_streaming_positions_are_slots_and_the_window_keeps_sink_and_tail() -> None:
    cache = StreamingCache(SHAPE, DraftConfig(num_sink=2, window=66), lambda keys, delta: keys.clone())
    for span in cache.unseen_spans(1000):
        positions = run_pass(cache, span.start, len(span))
    assert positions.max() < 66
    assert cache.length == 1000
    for start in range(1000, 1200):
        assert run_pass(cache, start, 1).item() < 66
    held = cache.k[0][0, 0, : cache.nbytes // SHAPE.bytes_per_token, 0].tolist()
    assert held[:2] == [0, 1] and held[2:] == list(range(1200 - len(held) + 2, 1200))


def test_streaming_that_cannot_rewind_starts_again_from_nothing() -> None:
    cache = StreamingCache(SHAPE, DraftConfig(num_sink=2, window=66), lambda keys, delta: keys.clone())
    for span in cache.unseen_spans(1000):
        run_pass(cache, span.start, len(span))
    cache.truncate(990)
    assert cache.length == 990
    cache.truncate(500)
    assert cache.length == 0 and cache.nbytes == 0
    assert [len(span) for span in cache.unseen_spans(500)] == [2, 48]


def test_chunk_scores_find_the_chunk_that_matters() -> None:
    """One key in chunk 7 points along the query: all three scores put the chunk first."""
    generator = torch.Generator().manual_seed(0)
    keys = 0.3 * torch.randn(2, 80, 16, generator=generator)
    query = torch.randn(4, 1, 16, generator=generator)
    keys[0, 59] += 3 * query[0, 0] + 3 * query[1, 0]
    keys[1, 61] += 3 * query[2, 0] + 3 * query[3, 0]
    means = keys.view(2, 10, 8, 16).mean(2)
    position = torch.tensor([79])
    assert landmark_scores(query, means, 0.25).argmax(1).tolist() == [7, 7]
    assert attention_scores(query, keys, 8, 0.25).argmax(1).tolist() == [7, 7]
    assert accumulated_scores(query, position, keys, 8, 0.25).argmax(1).tolist() == [7, 7]


def test_a_chunk_hands_a_share_of_its_score_to_the_one_behind_it() -> None:
    scores = torch.tensor([[1.0, 8.0, 0.5, 3.0]])
    assert with_neighbor_bonus(scores, 0.5).tolist() == [[1.0, 8.0, 4.0, 3.0]]
    assert torch.equal(with_neighbor_bonus(scores, 0.0), scores)


@pytest.mark.parametrize("num_bytes", [1, 150, 1 << 20])
def test_layers_ranked_in_parts_are_chosen_as_each_by_itself(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TopChunks(filled(128), CONFIG)
    monkeypatch.setattr(policies, "RANKED_BYTES", num_bytes)
    chosen = policy.choose(20, 0.25)
    alone = [
        top_chunks(with_neighbor_bonus(scores, CONFIG.neighbor_bonus), policy.max_chunks) for scores in policy.scores
    ]
    assert len(alone) == SHAPE.num_layers > 1 and torch.equal(chosen, torch.stack(alone))


def test_a_chunk_weighs_the_share_of_score_by_which_heads_chose_it() -> None:
    held = torch.tensor([[[0, 2], [0, 1]], [[0, 1], [0, 2]]])
    scores = torch.tensor([[[1.0, 5.0, 4.0], [2.0, 1.0, 1.0]], [[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
    weights = chosen_weights(held, scores)
    assert weights.tolist() == pytest.approx([(0.1 + 0.5 + 0.75) / 4, (0.25 + 0.25) / 4, 0.4 / 4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("product", [15_000, 120_000])
@pytest.mark.parametrize("tile", [1, 16 << 20])
def test_scores_of_16_bit_tensors_are_not_rounded(
    dtype: torch.dtype, product: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near 15,000 products in float16 have steps of 8, in bfloat16 of 64; 120,000 is too large for float16."""
    monkeypatch.setattr("core.ops.scores.WIDENED_BYTES", tile)
    generator = torch.Generator().manual_seed(0)
    queries = torch.full((4, 3, 64), product / 64 / 6).to(dtype)
    keys = (6 + 0.1 * torch.randn(2, 80, 64, generator=generator)).to(dtype)
    scaling = 1200 / product
    exact = torch.softmax(scaling * queries.double()[0] @ keys.double().mT, -1)  # of each of 12 queries, in groups of 2
    expected = 6 * exact[:, 0].float()
    assert torch.allclose(landmark_scores(queries, keys, scaling), expected, rtol=1e-3)
    blocks = expected.view(2, 10, 8).sum(-1)
    assert torch.allclose(attention_scores(queries, keys, 8, scaling), blocks, rtol=1e-3)
    late = torch.tensor([79, 79, 79])
    assert torch.allclose(accumulated_scores(queries, late, keys, 8, scaling), blocks, rtol=1e-3)


def test_accumulated_attention_does_not_look_into_the_future() -> None:
    generator = torch.Generator().manual_seed(0)
    keys, queries = torch.randn(2, 64, 8, generator=generator), torch.randn(4, 2, 8, generator=generator)
    scores = accumulated_scores(queries, torch.tensor([7, 15]), keys, 8, 1.0)
    assert (scores[:, 2:] == 0).all() and (scores[:, :2] > 0).all()
    assert torch.allclose(scores.sum(1), torch.full((2,), 4.0))  # two queries, two heads of a group


@given(seed=st.integers(0, 200), chunks=st.integers(1, 30), wanted=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_top_chunks_are_distinct_ascending_and_keep_the_sink(seed: int, chunks: int, wanted: int) -> None:
    scores = torch.rand(3, chunks, generator=torch.Generator().manual_seed(seed))
    chosen = top_chunks(scores, wanted)
    assert chosen.shape == (3, min(wanted, chunks))
    assert (chosen[:, 0] == 0).all()
    assert (chosen.diff(dim=1) > 0).all()
