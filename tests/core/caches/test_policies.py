"""Selection policies by name: those that ship, those of others, and that no text depends on them."""

from pathlib import Path

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
from core.engine import Engine
from core.errors import InvalidSetting
from tests.core.toys import answer, random_prompt, tiny_engine, tiny_shape

ROOT = Path(__file__).parents[3]


class Oldest(TopChunks):
    """The first chunks, whatever is asked."""

    def score(self, layer: int, num_eligible: int, scaling: float) -> Tensor:
        return torch.arange(num_eligible, 0, -1).float().expand(self.full.shape.num_kv_heads, -1)


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "SELECTION_POLICIES", dict(SELECTION_POLICIES))


def chosen(engine: Engine, name: str) -> tuple[tuple[int, ...], Tensor]:
    """The text, and the chunks that were held at its end."""
    engine._levels.chunks = RetrievalConfig(budget=96, chunk_size=8, local_window=32, policy=name)
    engine._levels._chooser = selection_policy(engine._levels.full, engine._levels.chunks)
    engine._levels.retrieval.set_policy(engine._levels._chooser)
    object.__setattr__(engine.config, "retrieval", engine._levels.chunks)
    finished = answer(engine, random_prompt(400), tokens=16)
    return finished.token_ids, engine._levels.retrieval.held_chunks()


def test_a_policy_of_one_s_own_chooses_and_texts_stay() -> None:
    register_policy("oldest", Oldest)
    register_policy("oldest", Oldest)  # a module that is imported twice
    plain, built_in = chosen(tiny_engine(budget=96), "landmark")
    own, held = chosen(tiny_engine(budget=96), "oldest")
    assert own == plain
    assert torch.equal(held[0, 0], torch.arange(held.shape[2])) and not torch.equal(held, built_in)


def test_a_policy_of_one_s_own_finds_landmarks_in_host_memory_too() -> None:
    assert [name for name in SELECTION_POLICIES if not needs_landmarks(RetrievalConfig(policy=name))] == [
        "verification",
        "attention",
    ]
    assert needs_landmarks(RetrievalConfig(policy="oldest"))
    kept = [
        FullCache(tiny_shape(), 64, 8, offload=Offload(block_rows=16), landmarks=needed) for needed in (True, False)
    ]
    assert [cache.has_landmarks(0) for cache in kept] == [True, False]


def test_names_are_taken_once_and_unknown_ones_refused() -> None:
    with pytest.raises(InvalidSetting, match="already"):
        register_policy("landmark", Oldest)
    with pytest.raises(InvalidSetting, match="no selection policy 'newest'") as unknown:
        check_policy("newest")
    assert "landmark, attention" in unknown.value.hint
    register_policy("oldest", Oldest)
    check_policy("attention", shared=True)
    with pytest.raises(InvalidSetting, match="other processes"):
        check_policy("oldest", shared=True)
