"""The caches against a plain list: whatever the pattern of verdicts, each holds the rows of a prefix of the text."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.caches import policies
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.layer_storage import SHORT_PASS
from core.caches.policies import (
    SELECTION_POLICIES,
    HeavyHitters,
    SinkOnly,
    TopChunks,
    accumulated_scores,
    attention_scores,
    check_policy,
    chosen_weights,
    landmark_scores,
    needs_landmarks,
    register_policy,
    selection_policy,
    top_chunks,
    with_neighbor_bonus,
)
from core.caches.query_log import QUERY_LOG
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.config import MOST_GUESSES_OVER_LINK, MOST_QUERIES, DraftConfig, RetrievalConfig
from core.errors import ContextTooSmall, InvalidSetting
from core.generation.decode_loop import LONGEST_ROUND
from core.ops.backend import STOCK, Backend
from core.ops.native import SmallRows
from tests.core.caches.passes import Text, read, run_pass
from tests.core.toys import answer, random_prompt, tiny_engine, tiny_shape

SHAPE = tiny_shape(layers=2, heads=4, kv_heads=2, dim=4)
CONFIG = RetrievalConfig(budget=64, chunk_size=4, local_window=24, query_window=4)
TEXT, OTHER = Text(SHAPE), Text(SHAPE, 8)


def filled(num_tokens: int) -> tuple[FullCache, RetrievalCache]:
    """A full cache that has read so much, and a part of it that was chosen there."""
    full = FullCache(SHAPE, 600, CONFIG.chunk_size)
    read(TEXT, num_tokens, full)
    part = RetrievalCache(full, TopChunks(full, CONFIG))
    part.select()
    return full, part


def streaming(num_sink: int = 2) -> StreamingCache:
    return StreamingCache(SHAPE, DraftConfig(num_sink=num_sink, window=num_sink + 64), lambda keys, delta: keys.clone())


def held(cache: RetrievalCache | StreamingCache) -> Tensor:
    """Which token each held row is, [L, H_kv, n]; a half more: of the other text. Keys and values are that token's."""
    rows = cache.nbytes // SHAPE.bytes_per_token
    k, v = (torch.stack([layer[0, :, :rows] for layer in kind]) for kind in (cache.k, cache.v))
    numbers = 256 * k[..., 0]
    at = numbers.long()[..., None].expand_as(k)
    for found, kind in ((k, "k"), (v, "v")):
        ours, theirs = (getattr(text, kind).gather(2, at) for text in (TEXT, OTHER))
        assert torch.equal(found, torch.where(numbers[..., None] % 1 == 0, ours, theirs))
    return numbers


def assert_full_holds(full: FullCache, length: int) -> None:
    assert full.length == length
    complete, newest = length // 4, slice(max(0, length - 4), length)
    for layer in range(SHAPE.num_layers):
        k, v = full.rows(layer, 0, length)
        assert torch.equal(k, TEXT.k[layer, :, :length]) and torch.equal(v, TEXT.v[layer, :, :length])
        means = k[:, : 4 * complete].reshape(2, complete, 4, 4).mean(2)
        assert torch.allclose(full.landmarks(layer, complete), means, atol=1e-6)
        assert torch.equal(full.recent_queries(layer, 4), TEXT.q[layer, :, newest])


def assert_copies(cache: RetrievalCache, other_from: int = 9999) -> None:
    """Chosen chunks by slot, the sink among them, then every recent token; of the other text from a token on."""
    numbers, chunks = held(cache), cache.held_chunks()
    chosen = (4 * chunks[..., None] + torch.arange(4)).flatten(2)
    recent = numbers.shape[2] - chosen.shape[2]
    assert recent >= min(CONFIG.local_window, cache.length) and (chunks == 0).any(-1).all()
    newest = torch.arange(cache.length - recent, cache.length).expand(*chunks.shape[:2], recent)
    tokens = torch.cat((chosen, newest), 2)
    assert torch.equal(numbers, tokens + 0.5 * (tokens >= other_from))


verdicts = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12)


@given(prompt=st.integers(1, 90), rounds=verdicts)
@settings(max_examples=40, deadline=None)
def test_after_any_verdicts_all_three_caches_hold_the_same_prefix(prompt: int, rounds: list[tuple[int, int]]) -> None:
    """The lockstep of TriForce, with caches alone: guess, verify, truncate, select now and then.

    The retrieval cache computes approximations, and rejected guesses are other tokens: both of the other text.
    """
    full, stream = FullCache(SHAPE, 400, CONFIG.chunk_size), streaming()
    retrieval = RetrievalCache(full, TopChunks(full, CONFIG))
    run_pass(TEXT, prompt, full)
    retrieval.select()
    for number, (guesses, accepted) in enumerate(rounds):
        length, accepted = full.length, min(accepted, guesses)
        for text, cache in ((TEXT, stream), (OTHER, retrieval)):  # they feed themselves what they lack, then guesses
            for span in cache.unseen_spans(length + guesses):
                for start in range(span.start, span.stop, 8):
                    run_pass(text, min(8, span.stop - start), cache, start=start)
        run_pass(TEXT.then(OTHER, length + 1 + accepted), guesses + 1, full)
        for cache in (full, retrieval, stream):
            cache.truncate(length + accepted)
        if number % 3 == 2:
            retrieval.select()
        assert_full_holds(full, length + accepted)
        for cache in (retrieval, stream):
            assert cache.length <= full.length
            for tokens in held(cache).floor().flatten(0, 1).tolist():
                newest = range(max(0, cache.length - min(len(tokens), 16)), cache.length)
                assert len(set(tokens)) == len(tokens) and set(newest) <= set(tokens) <= set(range(cache.length))


def test_a_full_cache_that_is_full_says_how_much_is_needed() -> None:
    full = FullCache(SHAPE, 16, 4, possible=1000)
    run_pass(TEXT, 10, full)
    with pytest.raises(ContextTooSmall) as error:
        full.begin(10, 7)
    assert (error.value.needed, error.value.capacity, full.length) == (17, 16, 10)


def test_a_rewind_finds_the_queries_that_were_remembered_there_and_no_others() -> None:
    full, _ = filled(60)
    full.remember_queries(8)
    run_pass(TEXT, QUERY_LOG, full)  # the ring holds none of them any more
    full.truncate(60)
    for layer in range(SHAPE.num_layers):
        assert torch.equal(full.recent_queries(layer, 8), TEXT.q[layer, :, 52:60])
    run_pass(TEXT, QUERY_LOG, full)
    full.truncate(59)
    assert full.recent_queries(0, 8).shape[1] == 0, "what was overwritten is not taken for what was asked"
    run_pass(OTHER, 20, full)  # another text, which nobody remembers at 60
    run_pass(OTHER, QUERY_LOG, full)
    full.truncate(60)
    assert full.recent_queries(0, 8).shape[1] == 0, "nor what was asked in another text"
    run_pass(TEXT, 3, full)
    assert full.queries_start() == 60 and torch.equal(full.recent_queries(0, 8), TEXT.q[0, :, 60:63])


# -------------------- the longest rounds, 48 guesses and the token behind them


LONGEST = MOST_GUESSES_OVER_LINK + 1  # rows of a round's verification


def verified(full: FullCache, rows: int, accepted: int) -> int:
    """A pass over so many tokens, of which the first and `accepted` guesses stay; the new length."""
    length = full.length + 1 + accepted
    run_pass(TEXT.then(OTHER, length), rows, full)
    full.truncate(length)
    return length


@pytest.mark.parametrize(("rows", "num_resident"), [(25, 2), (33, 0), (LONGEST, 0), (LONGEST_ROUND, 2)])
def test_a_rewind_behind_the_longest_round_keeps_every_query_that_votes(rows: int, num_resident: int) -> None:
    full = FullCache(SHAPE, 1100, 8, offload=Offload(num_resident=num_resident, block_rows=64))
    verified(full, 70, 69)
    generator = torch.Generator().manual_seed(rows)
    for number in range(20):
        accepted = 0 if number % 3 == 0 else int(torch.randint(0, rows, (), generator=generator))
        length = verified(full, rows, accepted)
        for layer in range(SHAPE.num_layers):
            expected = TEXT.q[layer, :, length - MOST_QUERIES : length]
            assert torch.equal(full.recent_queries(layer, MOST_QUERIES), expected), (number, accepted)


def test_the_longest_round_is_short_for_every_store_and_one_that_were_longer_would_lose_queries() -> None:
    """The bound is exact: two rows more than a round may have take one of the queries."""
    assert min(LONGEST_ROUND, SHORT_PASS, QUERY_LOG - MOST_QUERIES) >= LONGEST
    full = FullCache(SHAPE, 1024, 8)
    verified(full, 300, 299)
    verified(full, QUERY_LOG - MOST_QUERIES + 2, 0)
    assert full.recent_queries(0, MOST_QUERIES).shape[1] == MOST_QUERIES - 1


# -------------------- the retrieval cache


def test_a_selection_moves_only_the_chunks_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, bring = list[int](), RetrievalCache._bring_all
    monkeypatch.setattr(RetrievalCache, "_bring_all", lambda *all: (moved.append(len(all[1])), bring(*all)))
    full, cache = filled(300)
    assert_copies(cache)
    before = cache.held_chunks()
    cache.select()
    assert moved[0] > 0 == moved[1] and torch.equal(cache.held_chunks(), before)
    run_pass(TEXT, 16, full)
    cache.select()
    pairs = zip(cache.held_chunks().flatten(0, 1).tolist(), before.flatten(0, 1).tolist(), strict=True)
    assert moved[2] == sum(len(set(now) - set(then)) for now, then in pairs) > 0
    assert_copies(cache)


def test_chunks_of_another_text_are_never_taken_for_this_one_s() -> None:
    """Both texts have the same numbers of chunks; only what stands in them differs. Nor in what was set aside."""
    full, cache = filled(160)
    aside = cache.set_aside()
    for one in (full, cache):
        one.truncate(20)
    read(OTHER, 160, full)
    cache.select()
    assert_copies(cache, other_from=20)
    assert (cache.held_chunks() == aside.held)[aside.held > 5].any(), "or this tests nothing"
    full.truncate(20)
    read(TEXT, 160, full)
    cache.put_back(aside, 20)
    assert torch.equal(cache.held_chunks(), aside.held)
    assert_copies(cache)


def test_the_kernel_moves_what_stock_operations_move(kernel: SmallRows, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, move, found = list[int](), kernel.move_chunks, []
    monkeypatch.setattr(kernel, "move_chunks", lambda *given: (moved.append(len(given[2][0])), move(*given)))
    for backend in (STOCK, Backend("compiled", kernel, "", kernel=kernel)):
        full, _ = filled(300)
        full.backend = backend
        cache = RetrievalCache(full, TopChunks(full, CONFIG))
        cache.select()
        run_pass(TEXT, 40, full)
        cache.select()
        aside = cache.set_aside()
        full.truncate(320)
        cache.truncate(0)
        cache.put_back(aside, 320)
        found.append((cache.held_chunks(), held(cache)))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert len(moved) == 2 * 2 * 3 and sum(moved) > 0, moved


def test_a_context_below_the_budget_is_held_whole() -> None:
    _, cache = filled(40)
    assert torch.equal(held(cache).sort(2).values, torch.arange(40.0).expand(2, 2, -1))


def test_retrieval_takes_over_exact_rows_once_the_full_cache_has_them() -> None:
    full, cache = filled(100)
    run_pass(OTHER, 5, cache)
    assert (held(cache)[..., -1] == 104.5).all()
    run_pass(TEXT, 5, full)
    run_pass(OTHER, 1, cache)
    assert held(cache)[1, 1, -6:].tolist() == [100, 101, 102, 103, 104, 105.5]


@pytest.mark.parametrize("policy", [SinkOnly, HeavyHitters])
def test_lossy_caches_slide_without_a_full_cache_to_follow(policy: type[SinkOnly] | type[HeavyHitters]) -> None:
    full, _ = filled(200)
    cache = RetrievalCache(full, policy(full, CONFIG))
    cache.select()
    read(TEXT, 700, cache, piece=10)
    assert cache.length == 700 and (cache.held_chunks() == 0).any(-1).all()
    assert (held(cache)[..., -30:] == torch.arange(670, 700)).all()


def test_streaming_positions_are_slots_and_a_window_that_cannot_rewind_starts_again() -> None:
    cache = streaming()
    positions = [run_pass(TEXT, len(span), cache, start=span.start).positions for span in cache.unseen_spans(800)]
    positions += [run_pass(TEXT, 1, cache).positions for _ in range(200)]
    assert torch.cat(positions).max() == 65 and cache.length == 1000
    tokens = held(cache)[0, 0].tolist()
    assert tokens[:2] == [0, 1] and tokens[2:] == list(range(1000 - len(tokens) + 2, 1000)) and len(tokens) > 40
    cache.truncate(990)
    assert cache.length == 990
    cache.truncate(500)
    assert cache.length == 0 and cache.nbytes == 0
    assert [len(span) for span in cache.unseen_spans(500)] == [2, 48]
    wide = streaming(num_sink=50)
    assert wide.unseen_spans(49) == [range(49)], "fewer tokens than the sink holds"


# -------------------- scores and choices


def masses(queries: Tensor, keys: Tensor, scaling: float, positions: Tensor | None = None) -> Tensor:
    """Slow twin: attention to each key in float64, summed over queries and the heads of a group, [H_kv, S]."""
    scores = scaling * queries.double() @ keys.double().repeat_interleave(len(queries) // len(keys), 0).mT
    if positions is not None:
        scores = scores.masked_fill(torch.arange(keys.shape[1]) > positions[:, None], float("-inf"))
    return torch.softmax(scores, -1).reshape(len(keys), -1, keys.shape[1]).sum(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("product", [15_000, 120_000])
@pytest.mark.parametrize("tile", [1, 16 << 20])
def test_scores_of_16_bit_tensors_are_not_rounded(
    dtype: torch.dtype, product: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near 15,000 products in float16 have steps of 8, in bfloat16 of 64; 120,000 is too large for float16."""
    monkeypatch.setattr("core.ops.scores.WIDENED_BYTES", tile)
    generator, scaling = torch.Generator().manual_seed(0), 1200 / product
    queries = (product / 64 / 6 * (1 + 0.05 * torch.randn(4, 3, 64, generator=generator))).to(dtype)
    keys = (6 + 0.1 * torch.randn(2, 80, 64, generator=generator)).to(dtype)
    exact, late = masses(queries, keys, scaling), torch.tensor([23, 50, 79])
    assert torch.allclose(landmark_scores(queries, keys, scaling).double(), exact, rtol=2e-3)
    by_chunk = attention_scores(queries, keys, 8, scaling).double()
    assert torch.allclose(by_chunk, exact.view(2, 10, 8).sum(-1), rtol=2e-3)
    causal = accumulated_scores(queries, late, keys, 8, scaling).double()
    assert torch.allclose(causal, masses(queries, keys, scaling, late).view(2, 10, 8).sum(-1), rtol=2e-3)


def test_a_chunk_hands_a_share_of_its_score_to_the_one_behind_it() -> None:
    scores = torch.tensor([[1.0, 8.0, 0.5, 3.0]])
    assert with_neighbor_bonus(scores, 0.5).tolist() == [[1.0, 8.0, 4.0, 3.0]]
    assert torch.equal(with_neighbor_bonus(scores, 0.0), scores)


@pytest.mark.parametrize("num_bytes", [1, 150, 1 << 20])
def test_layers_ranked_in_parts_are_chosen_as_each_by_itself(num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TopChunks(filled(128)[0], CONFIG)
    monkeypatch.setattr(policies, "RANKED_BYTES", num_bytes)
    chosen = policy.choose(20, 0.25)
    alone = [top_chunks(with_neighbor_bonus(one, CONFIG.neighbor_bonus), policy.max_chunks) for one in policy.scores]
    assert len(alone) == SHAPE.num_layers > 1 and torch.equal(chosen, torch.stack(alone))


def test_a_chunk_weighs_the_share_of_score_by_which_heads_chose_it() -> None:
    held = torch.tensor([[[0, 2], [0, 1]], [[0, 1], [0, 2]]])
    scores = torch.tensor([[[1.0, 5.0, 4.0], [2.0, 1.0, 1.0]], [[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
    weights = chosen_weights(held, scores)
    assert weights.tolist() == pytest.approx([(0.1 + 0.5 + 0.75) / 4, (0.25 + 0.25) / 4, 0.4 / 4])


@given(seed=st.integers(0, 200), chunks=st.integers(1, 30), wanted=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_top_chunks_are_the_sink_and_the_best_of_the_others(seed: int, chunks: int, wanted: int) -> None:
    scores = torch.rand(3, chunks, generator=torch.Generator().manual_seed(seed))
    best = [sorted([0, *(1 + row[1:].argsort(descending=True)[: wanted - 1]).tolist()]) for row in scores]
    assert top_chunks(scores, wanted).tolist() == best


# -------------------- policies by name


class Oldest(TopChunks):
    """The first chunks, whatever is asked."""

    def score(self, layer: int, num_eligible: int, scaling: float) -> Tensor:
        return torch.arange(num_eligible, 0, -1).float().expand(self.full.shape.num_kv_heads, -1)


@pytest.fixture
def own_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "SELECTION_POLICIES", dict(SELECTION_POLICIES))
    for _ in range(2):  # a module that is imported twice
        register_policy("oldest", Oldest)


def test_a_policy_of_one_s_own_chooses_and_texts_stay(own_policy: None) -> None:
    found = {}
    for name in ("landmark", "oldest"):
        levels = (engine := tiny_engine(budget=96))._levels
        levels.chunks = RetrievalConfig(budget=96, chunk_size=8, local_window=32, policy=name)
        levels._chooser = selection_policy(levels.full, levels.chunks)
        levels.retrieval.set_policy(levels._chooser)
        object.__setattr__(engine.config, "retrieval", levels.chunks)
        found[name] = answer(engine, random_prompt(400), tokens=16).token_ids, levels.retrieval.held_chunks()
    (plain, built_in), (own, held) = found.values()
    assert own == plain
    assert torch.equal(held[0, 0], torch.arange(held.shape[2])) and not torch.equal(held, built_in)


def test_a_policy_of_one_s_own_finds_landmarks_in_host_memory_too(own_policy: None) -> None:
    needed = {
        name: needs_landmarks(RetrievalConfig(policy=name))
        for name in ("verification", "landmark", "attention", "oldest")
    }
    assert needed == {"verification": False, "landmark": True, "attention": False, "oldest": True}
    for landmarks in (True, False):
        full = FullCache(tiny_shape(), 64, 8, offload=Offload(block_rows=16), landmarks=landmarks)
        assert full.has_landmarks(0) is landmarks


def test_names_of_policies_are_taken_once_and_unknown_ones_refused(own_policy: None) -> None:
    with pytest.raises(InvalidSetting, match="already"):
        register_policy("landmark", Oldest)
    with pytest.raises(InvalidSetting, match="no selection policy 'newest'") as unknown:
        check_policy("newest")
    assert "landmark, attention" in unknown.value.hint
    check_policy("attention", shared=True)
    with pytest.raises(InvalidSetting, match="other processes"):
        check_policy("oldest", shared=True)
