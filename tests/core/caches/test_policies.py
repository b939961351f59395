"""Selection policies by name: those that ship, those of others, and that no text depends on them."""

import pytest
import torch
from torch import Tensor

from core.caches import policies
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.policies import (
    SELECTION_POLICIES,
    TopChunks,
    check_policy,
    needs_landmarks,
    register_policy,
    selection_policy,
)
from core.config import RetrievalConfig
from core.errors import InvalidSetting
from tests.core.toys import answer, random_prompt, tiny_engine, tiny_shape


class Oldest(TopChunks):
    """The first chunks, whatever is asked."""

    def score(self, layer: int, num_eligible: int, scaling: float) -> Tensor:
        return torch.arange(num_eligible, 0, -1).float().expand(self.full.shape.num_kv_heads, -1)


@pytest.fixture(autouse=True)
def own_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "SELECTION_POLICIES", dict(SELECTION_POLICIES))
    for _ in range(2):  # a module that is imported twice
        register_policy("oldest", Oldest)


def test_a_policy_of_one_s_own_chooses_and_texts_stay() -> None:
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


def test_a_policy_of_one_s_own_finds_landmarks_in_host_memory_too() -> None:
    needed = {name: needs_landmarks(RetrievalConfig(policy=name)) for name in policies.SELECTION_POLICIES}
    assert needed == {"verification": False, "landmark": True, "attention": False, "oldest": True}
    for landmarks in (True, False):
        full = FullCache(tiny_shape(), 64, 8, offload=Offload(block_rows=16), landmarks=landmarks)
        assert full.has_landmarks(0) is landmarks


def test_names_are_taken_once_and_unknown_ones_refused() -> None:
    with pytest.raises(InvalidSetting, match="already"):
        register_policy("landmark", Oldest)
    with pytest.raises(InvalidSetting, match="no selection policy 'newest'") as unknown:
        check_policy("newest")
    assert "landmark, attention" in unknown.value.hint
    check_policy("attention", shared=True)
    with pytest.raises(InvalidSetting, match="other processes"):
        check_policy("oldest", shared=True)
