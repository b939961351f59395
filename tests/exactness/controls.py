"""Engines with one thing wrong, which the suite must notice: its negative controls.

Each replaces a part of the engine while it is entered, and names the cases in which the error can show.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

from torch import Generator

from core.caches.window_layer import WindowLayer, WindowRows
from core.decoding import methods
from core.decoding.sampling import TokenSampler
from core.decoding.speculative import Rule, Speculative
from core.engine import Engine
from core.generation import decode_loop
from core.models.cached_model import CachedModel
from core.ops.reach import Reach
from tests.core.decoding.test_output_law import accept_everything, verify_without_residual
from tests.exactness.cases import Flavour, World

Wrong = AbstractContextManager[Any]


def ruled(rule: Rule, at: str) -> Wrong:
    """The level whose verifier has this name verifies by another rule."""

    class Ruled(Speculative):
        def __init__(self, proposer: Any, verifier: Any, *args: Any, **settings: Any) -> None:
            super().__init__(proposer, verifier, *args, **settings)
            if verifier.name == at:
                self._rule = rule

    return patch.object(methods, "Speculative", Ruled)


def retrieval_has_the_last_word() -> Wrong:
    right = methods.models_of

    def wrong(name: str, parts: Any) -> list[CachedModel]:
        models = right(name, parts)
        return models[:-1] if len(models) > 1 and models[-2] is parts.retrieval else models

    return patch.object(methods, "models_of", wrong)


def a_rewind_keeps_one_token_too_many() -> Wrong:
    right = Engine.cached_prefix

    def wrong(self: Engine, prompt_ids: Sequence[int]) -> int:
        shared = right(self, prompt_ids)
        return shared + (0 < shared < self.full_cache.length)

    return patch.object(Engine, "cached_prefix", wrong)


def continued_replays_its_draws() -> Wrong:
    def wrong(rng: Generator, seed: int, num_written: int, *, speculative: bool) -> TokenSampler:
        return TokenSampler(rng.manual_seed(seed))

    return patch.object(decode_loop, "sampler_behind", wrong)


def windows_reach_one_token_less() -> Wrong:
    right = Reach.first
    return patch.object(Reach, "first", lambda self, token: min(token, right(self, token) + (token >= self.size)))


def a_remembered_window_is_that_of_another_text() -> Wrong:
    right = WindowLayer.put_back

    def wrong(self: WindowLayer, rows: WindowRows) -> None:
        right(self, rows._replace(k=rows.k.roll(1, 2), v=rows.v.roll(1, 2)))

    return patch.object(WindowLayer, "put_back", wrong)


class Control(NamedTuple):
    name: str
    enter: Callable[[], Wrong]
    flavour: Flavour
    num_cases: int
    by: Literal["mismatches", "statistics"] = "mismatches"  # what must notice it
    world: World = "tiny"


all_accepted = partial(ruled, accept_everything, "full")
no_residual = partial(ruled, verify_without_residual)
CONTROLS = (
    Control("level 2 accepts everything", all_accepted, "greedy", 8),
    Control("the retrieval cache has the last word", retrieval_has_the_last_word, "greedy", 8),
    Control("a rewind keeps one token too many", a_rewind_keeps_one_token_too_many, "greedy", 24),
    Control("windows reach one token less", windows_reach_one_token_less, "greedy", 4, world="windowed"),
    Control("windows of another text", a_remembered_window_is_that_of_another_text, "greedy", 24, world="windowed"),
    Control("level 2 accepts everything, sampled", all_accepted, "sampled", 8, "statistics"),
    Control("a continued answer replays its draws", continued_replays_its_draws, "continued", 80, "statistics"),
    Control("level 2 replaces a guess from p", partial(no_residual, "full"), "sampled", 12, "statistics"),
    Control("level 1 replaces a guess from p", partial(no_residual, "retrieval"), "sampled", 40, "statistics"),
)
