"""Engines with one thing wrong, which the suite must notice: its negative controls.

Each replaces a part of the engine while it is entered, and names the cases in which the error can show.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal
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


def _ruled(rule: Rule, *, at: Callable[[str], bool]) -> AbstractContextManager[Any]:
    """Levels whose judge's name is accepted by `at` verify by another rule."""

    class Wrong(Speculative):
        def __init__(self, proposer: Any, law: Any, *args: Any, **settings: Any) -> None:
            super().__init__(proposer, law, *args, **settings)
            if at(law.name):
                self._rule = rule

    return patch.object(methods, "Speculative", Wrong)


def residual_left_out_at_level_1() -> AbstractContextManager[Any]:
    return _ruled(verify_without_residual, at=lambda name: name == "retrieval")


def residual_left_out_at_level_2() -> AbstractContextManager[Any]:
    return _ruled(verify_without_residual, at=lambda name: name == "full")


def level_2_accepts_everything() -> AbstractContextManager[Any]:
    return _ruled(accept_everything, at=lambda name: name == "full")


def retrieval_has_the_last_word() -> AbstractContextManager[Any]:
    right = methods.models_of

    def wrong(name: str, parts: Any) -> list[CachedModel]:
        judges = right(name, parts)
        return judges[:-1] if len(judges) > 1 and judges[-2] is parts.retrieval else judges

    return patch.object(methods, "models_of", wrong)


def a_rewind_keeps_one_token_too_many() -> AbstractContextManager[Any]:
    right = Engine.cached_prefix

    def wrong(self: Engine, prompt_ids: Sequence[int]) -> int:
        shared = right(self, prompt_ids)
        return shared + (0 < shared < self.full_cache.length)

    return patch.object(Engine, "cached_prefix", wrong)


def continued_replays_its_draws() -> AbstractContextManager[Any]:
    def wrong(rng: Generator, seed: int, num_written: int, *, speculative: bool) -> TokenSampler:
        return TokenSampler(rng.manual_seed(seed))

    return patch.object(decode_loop, "sampler_behind", wrong)


def windows_reach_one_token_less() -> AbstractContextManager[Any]:
    right = Reach.first
    return patch.object(Reach, "first", lambda self, token: min(token, right(self, token) + (token >= self.size)))


def a_remembered_window_is_that_of_another_text() -> AbstractContextManager[Any]:
    right = WindowLayer.put_back

    def wrong(self: WindowLayer, rows: WindowRows) -> None:
        right(self, rows._replace(k=rows.k.roll(1, 2), v=rows.v.roll(1, 2)))

    return patch.object(WindowLayer, "put_back", wrong)


@dataclass(frozen=True, slots=True)
class Control:
    """One error, and how it must show."""

    name: str
    enter: Callable[[], AbstractContextManager[Any]]
    flavour: Flavour
    num_cases: int
    by: Literal["mismatches", "statistics"]  # what must notice it
    world: World = "tiny"


CONTROLS = (
    Control("level 2 accepts everything", level_2_accepts_everything, "greedy", 8, "mismatches"),
    Control("the retrieval cache has the last word", retrieval_has_the_last_word, "greedy", 8, "mismatches"),
    Control("a rewind keeps one token too many", a_rewind_keeps_one_token_too_many, "greedy", 24, "mismatches"),
    Control("windows reach one token less", windows_reach_one_token_less, "greedy", 4, "mismatches", "windowed"),
    Control(
        "windows of another text", a_remembered_window_is_that_of_another_text, "greedy", 24, "mismatches", "windowed"
    ),
    Control("level 2 accepts everything, sampled", level_2_accepts_everything, "sampled", 8, "statistics"),
    Control("a continued answer replays its draws", continued_replays_its_draws, "continued", 80, "statistics"),
    Control("level 2 replaces a guess from p", residual_left_out_at_level_2, "sampled", 12, "statistics"),
    Control("level 1 replaces a guess from p", residual_left_out_at_level_1, "sampled", 40, "statistics"),
)
