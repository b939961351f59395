"""Default methods on a scripted clock: whatever guesses cost and however they fare, plain decoding is hardly faster."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from core.caches.retrieval import RetrievalCache
from core.caches.tokens import Context
from core.config import RetrievalConfig, SamplingParams, SpeculationConfig
from core.decoding import adaptive
from core.decoding.adaptive import MOST_LOSS, RecentAcceptance
from core.decoding.methods import Decoder, Parts
from core.decoding.ngram_lookup import TokenIndex
from core.decoding.sampling import TokenSampler
from core.models.cached_model import CachedModel
from core.ops.threads import process_threads

VOCAB, BOOK, NEW = 64, 400, 160
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.01)  # both write the script; times are used in one
ROW = 0.12  # of a pass over the full cache, for each row but the first: as measured on a 1.5B target
DEAR, CHEAP = (0.27, 0.75), (0.05, 0.3)  # draft (of 0.5B) and retrieval passes, where one over the full cache costs 1


class ScriptedCache:
    """Knows how many tokens it has seen."""

    nbytes = link_bytes = 0

    def __init__(self, length: int = 0) -> None:
        self.length = length

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)

    def unseen_spans(self, total: int) -> list[range]:
        return [range(self.length, total)]


class ScriptedPart(ScriptedCache, RetrievalCache):  # type: ignore[misc]
    """A part of the full cache, which takes over what that has seen; choosing takes no time here."""

    length = tokens_since_selection = 0

    def __init__(self, full: ScriptedCache) -> None:
        self.length, self._scripted = 0, full

    def select(self) -> None:
        self.length = self._scripted.length


class ScriptedModel(CachedModel):
    """Writes the script, but for places where it is wrong; a pass takes `cost` and `row` for each further row."""

    def __init__(self, name: str, world: "World", right: float, cost: float, row: float, cache: ScriptedCache) -> None:
        super().__init__(name, nn.Module(), cast(Any, cache), torch.device("cpu"))
        rng = random.Random(f"{name} {right}")
        self._writes = [token if rng.random() < right else (token + 1) % VOCAB for token in world.script]
        self._world, self._cost, self._row = world, cost, row

    def feed_tokens(self, token_ids: Sequence[int], start: int, keep: int) -> Tensor:
        cache, rows = cast(ScriptedCache, self.cache), len(token_ids)
        assert start == cache.length
        cache.length += rows
        self._world.now += (seconds := self._cost + self._row * (rows - 1))
        self._world.passes.append((self.name, rows))
        if self._world.cancel:
            self._world.cancel.set()
        self.meter.took(rows, 0, seconds, process_threads().changes)
        following = torch.tensor(self._writes[cache.length - keep + 1 : cache.length + 1])
        return 10.0 * torch.nn.functional.one_hot(following, VOCAB).float()


class World:
    """A book, an answer that is the script, a clock that only passes move, and the parts of a decoder.

    Args:
        kind: an answer that quotes the book, has nothing of it, changes, or misleads.
        acceptance: how often draft and retrieval cache are right.
        costs: seconds of their passes.
    """

    cancel: threading.Event | None = None  # set by the next pass

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        kind: str,
        acceptance: tuple[float, float],
        costs: tuple[float, float] = DEAR,
    ) -> None:
        for module in ("core.decoding.methods", "core.decoding.pace", "core.decoding.speculative"):
            monkeypatch.setattr(f"{module}.time", self)
        self.now, self.passes = 0.0, list[tuple[str, int]]()
        self.script = [*self._text(kind), *[0] * 80]
        full = ScriptedCache(BOOK - 1)
        models: dict[str, Any] = {
            "draft": ScriptedModel("draft", self, acceptance[0], costs[0], costs[0] * ROW, ScriptedCache()),
            "retrieval": ScriptedModel("retrieval", self, acceptance[1], costs[1], ROW, ScriptedPart(full)),
            "full": ScriptedModel("full", self, 1.0, 1.0, ROW, full),
        }
        self.parts = Parts(
            **models,
            index=TokenIndex(),
            vocab=VOCAB,
            evicting=lambda _: models["full"],
            config=RetrievalConfig(),
            costs_about=lambda: str(costs),
            costs_folder=folder,
            most_guesses=lambda: 24,
        )

    @staticmethod
    def _text(kind: str) -> list[int]:
        rng = random.Random(kind)
        book = [rng.randrange(VOCAB) for _ in range(BOOK)]
        quoted, new = book[40 : 40 + NEW], [rng.randrange(VOCAB) for _ in range(NEW)]
        misleading = [token for at in range(0, NEW, 4) for token in (*book[at : at + 3], rng.randrange(VOCAB))]
        mixed = [*quoted[: NEW // 3], *new[: NEW // 3], *quoted[NEW // 3 :]]
        return [*book, *{"quote": quoted, "new": new, "mixed": mixed, "misleading": misleading}[kind][:NEW]]

    def perf_counter(self) -> float:
        return self.now

    def decoder(self, method: str, sampling: SamplingParams) -> Decoder:
        return Decoder(method, self.parts, sampling, SpeculationConfig())

    def seconds(self, method: str, sampling: SamplingParams) -> float:
        """Seconds of a token of an answer behind the book."""
        decoder, tokens = self.decoder(method, sampling), self.script[:BOOK]
        self.parts.full.cache.truncate(BOOK - 1)
        decoder.start(Context(tokens))
        began = self.now
        while len(tokens) < BOOK + NEW:
            tokens += decoder.step(Context(tokens), TokenSampler(torch.Generator())).tokens
        assert tokens == self.script[: len(tokens)], "the text is the target's"
        return (self.now - began) / (len(tokens) - BOOK)


@pytest.fixture
def worst(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The dearest token, whatever is accepted at either level and whatever passes cost."""
    grid = (((0.1, 0.3), DEAR), ((0.95, 0.3), DEAR), ((0.1, 0.99), DEAR), ((0.6, 0.93), DEAR), ((0.1, 0.3), CHEAP))

    def seconds(method: str, kind: str, sampling: SamplingParams) -> float:
        return max(World(monkeypatch, tmp_path, kind, *costs).seconds(method, sampling) for costs in grid)

    return seconds


@pytest.mark.parametrize("method", ["triforce-lookup", "triforce", "retrieval", "lookup", "draft"])
@pytest.mark.parametrize(
    ("kind", "sampling"),
    [("quote", GREEDY), ("new", GREEDY), ("misleading", GREEDY), ("mixed", SAMPLED), ("misleading", SAMPLED)],
    ids=["quote", "new", "misleading", "mixed, sampled", "misleading, sampled"],
)
def test_no_method_loses_more_than_it_may(worst: Any, method: str, kind: str, sampling: SamplingParams) -> None:
    assert worst(method, kind, sampling) <= 1 + MOST_LOSS + 0.001


def test_the_ledger_holds_even_where_nothing_is_learnt(worst: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecentAcceptance, "add", lambda *_: None)
    assert worst("triforce", "new", GREEDY) <= 1 + MOST_LOSS + 0.001
    for limit in ("MOST_LOSS", "STOP_LOSS", "TRIED"):
        monkeypatch.setattr(adaptive, limit, 99.0)
    assert worst("triforce", "new", GREEDY) > 1.05


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("method", "kind", "costs", "most"),
    [
        ("lookup", "quote", DEAR, 0.3),  # straight to the target: a retrieval pass would not pay
        ("triforce-lookup", "quote", DEAR, 0.3),
        ("lookup", "mixed", DEAR, 0.6),
        ("triforce", "new", CHEAP, 0.65),
        ("retrieval", "new", CHEAP, 0.6),
        ("draft", "new", CHEAP, 0.4),
    ],
)
def test_guessing_that_pays_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, kind: str, costs: Any, most: float, sampling: Any
) -> None:
    assert World(monkeypatch, tmp_path, kind, (0.95, 0.99), costs).seconds(method, sampling) < most


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_greedy_answer_begins_with_what_the_last_one_has_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sampling: SamplingParams
) -> None:
    """Where a draft is nearly always right, a second answer is faster; sampled ones depend on none before."""
    world = World(monkeypatch, tmp_path, "new", (0.95, 0.3), (0.27, 0.3))
    first, second = world.seconds("draft", sampling), world.seconds("draft", sampling)
    assert second < 0.98 * first if sampling.greedy else second == pytest.approx(first, rel=1e-9)


def test_timing_before_an_answer_can_be_cancelled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = World(monkeypatch, tmp_path, "new", (0.9, 0.9), (0.3, 0.3))
    world.cancel = threading.Event()
    world.decoder("triforce", SAMPLED).start(Context(world.script[:BOOK]), world.cancel)
    assert world.passes == [("draft", 1)], "no pass behind the one in which it was cancelled"
    world.cancel = None
    world.seconds("triforce", SAMPLED)  # what is not known is timed
