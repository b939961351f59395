"""Books read once for several engines: the next one reads nothing again, and measures what it would have measured."""

from pathlib import Path

import pytest

from assets.tools.bench.readings import Readings
from core.config import GenerationConfig, SpeculationConfig
from core.engine import Engine
from core.generation.events import Finished
from tests.core.toys import random_prompt, tiny_engine

PROMPT = random_prompt(914)
GREEDY = GenerationConfig(max_new_tokens=16, speculation=SpeculationConfig(gamma1=2, gamma2=6, adaptive=False))


def answer(engine: Engine) -> Finished:
    *_, finished = engine.generate(PROMPT, GREEDY)
    assert isinstance(finished, Finished)
    return finished


@pytest.mark.parametrize("query_window", [1, 8])
def test_the_second_engine_loads_what_the_first_has_read(
    query_window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings, fresh = Readings(tmp_path, 8), tiny_engine(query_window=query_window)
    readings.read(tiny_engine(), PROMPT)
    loaded = tiny_engine(query_window=query_window)
    read = loaded.read
    with monkeypatch.context() as patch:
        patch.setattr(loaded, "read", lambda ids: pytest.fail("read") if loaded.cached_prefix(ids) < 913 else read(ids))
        readings.read(loaded, PROMPT)
    wanted, found = answer(fresh), answer(loaded)
    assert found.token_ids == wanted.token_ids and found.stats.level2 == wanted.stats.level2
    assert found.stats.full_passes == wanted.stats.full_passes, "its choices are those of an engine that has read"
