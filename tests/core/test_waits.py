"""Where the processor waits for the device, counted on a pretended GPU: by kind of work, against a stated budget.

A wait belongs to the innermost work around it: a round's own waits are those outside of passes, of rounds below and of
choosing chunks. Counted are numbers read from the device (`item`, `tolist`, `nonzero`, `equal`, `bincount`, masks as
indices), copies that are not pinned or not asked to run beside, and events and streams that are waited for. Not
counted: waits inside of kernels' own libraries.
"""

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from core.caches.full_parts import Offload
from core.caches.retrieval import RetrievalCache
from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding.speculative import AutoregressiveProposer, Speculative
from core.engine import Engine
from core.generation.decode_loop import Answer
from core.models.cached_model import CachedModel
from tests.core.cuda_stubs import pretended_gpu
from tests.core.test_pretended_gpu import engine_on
from tests.core.toys import random_prompt

OUTSIDE = "the rest of a step"
GAMMA1 = 2


class Ledger:
    """Waits by the work they belong to."""

    def __init__(self) -> None:
        self._stack = [[OUTSIDE, 0]]
        self.most: dict[str, int] = {}  # waits of one piece of work of a kind, at most
        self.why: dict[str, Counter[str]] = defaultdict(Counter)
        self.times: Counter[str] = Counter()
        self.beside = 0  # waits of other threads
        self.link_bytes = (
            0  # of the last pass over the full cache: without any, nothing of an offloaded cache was asked
        )

    def wait(self, what: str) -> None:
        """One more. The thread that attends on the host waits beside the others, and holds nobody up."""
        if threading.current_thread() is not threading.main_thread():
            self.beside += 1
            return
        self._stack[-1][1] += 1
        self.why[self._stack[-1][0]][what] += 1

    @contextmanager
    def inside(self, kind: str) -> Iterator[None]:
        """Waits from here on belong to a piece of work of this kind."""
        self._stack.append([kind, 0])
        try:
            yield
        finally:
            _, count = self._stack.pop()
            self.times[kind] += 1
            self.most[kind] = max(self.most.get(kind, 0), count)


def watch(ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
    """Let the ledger know what runs."""

    def wrap(owner: type, name: str, kind: Callable[[Any], str]) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with ledger.inside(kind(self)):
                return real(self, *args, **kwargs)

        patch.setattr(owner, name, call)

    def wrap_passes(owner: type, name: str, kind: Callable[[Any], str]) -> None:
        """As `wrap`, for what asks for passes: these are inside of it."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with ledger.inside(kind(self)):
                return (yield from real(self, *args, **kwargs))

        patch.setattr(owner, name, call)

    wrap(CachedModel, "feed_tokens", lambda model: f"a pass of the {model.name} model")
    wrap_passes(Speculative, "round", lambda level: f"a round verified by {level._verifier.name}")
    wrap_passes(AutoregressiveProposer, "propose", lambda sampler: "a proposal of the draft")
    wrap(RetrievalCache, "select", lambda _: "choosing chunks")
    wrap(Answer, "round", lambda _: OUTSIDE)


# What a piece of work may wait for at most, and why
RESIDENT = {
    "a pass of the draft model": 0,
    "a pass of the retrieval model": 0,
    "a pass of the full model": 0,
    "a proposal of the draft": GAMMA1,  # each token is fed to the next pass
    "a round verified by retrieval": 2,  # how many guesses hold, and the token drawn
    "a round verified by full": 2,
    "choosing chunks": 3,  # which chunks come, which slots they take, and both on the host
    OUTSIDE: 4,  # the newest pass of each model, whose time is asked for, and the chances of the tokens for display
}
# Tokens that are certain come in one copy, and their chances are known
CERTAIN = {"a round verified by retrieval": 1, "a round verified by full": 1, OUTSIDE: 3}
LAYERS = 2
# Beside that what was stored must be there, and in each layer a buffer must be free for keys and one for values
OFFLOADED = {**RESIDENT, "choosing chunks": 3 + 1 + 2 * LAYERS}
SHARED = {**OFFLOADED, "a pass of the full model": 1}  # the host reads what was stored
BUDGETS = {"resident": RESIDENT, "offloaded": OFFLOADED, "shared with the host": SHARED}
pytestmark = pytest.mark.skipif(
    hasattr(torch._C, "_cuda_getDeviceCount"), reason="torch was built with CUDA: its own functions are there"
)
PROMPT = random_prompt(300)  # of an offloaded layer the newest 192 rows and more stay on the device
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, top_k=20)
WAYS = {
    "resident": {},
    "offloaded": {"offload": Offload(block_rows=64, num_slots=2)},
    "shared with the host": {"offload": Offload(block_rows=64, num_slots=2), "cpu_attention_share": 0.5},
}


def counted(way: str, sampling: SamplingParams, new: int, method: str = "triforce") -> Ledger:
    """Waits of an answer to a prompt that was read."""
    ledger = Ledger()
    with pretended_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.planning.measured.LINK_BYTES", 1 << 12)
        patch.setattr("core.planning.measured.SHARING_BYTES", 1 << 12)
        engine: Engine = engine_on("cuda", **WAYS[way])  # type: ignore[arg-type]
        for _ in engine.read(PROMPT):
            pass
        gpu.on_wait = ledger.wait
        watch(ledger, patch)
        shape = SpeculationConfig(gamma1=GAMMA1, gamma2=2, adaptive=False)
        config = GenerationConfig(method=method, max_new_tokens=new, speculation=shape, sampling=sampling)
        for _ in engine.generate(PROMPT, config):
            pass
        ledger.link_bytes = engine.full_cache.link_bytes
        del engine
    return ledger


def over(ledger: Ledger, budget: dict[str, int]) -> dict[str, int]:
    """Kinds of work that waited more often than they may."""
    return {kind: most for kind, most in ledger.most.items() if most > budget[kind]}


@pytest.mark.parametrize(
    ("way", "sampling"),
    [
        ("resident", SamplingParams()),
        ("resident", SAMPLED),
        ("offloaded", SAMPLED),
        ("shared with the host", SamplingParams()),
    ],
    ids=["resident, greedy", "resident, sampled", "offloaded, sampled", "shared with the host, greedy"],
)
def test_no_piece_of_work_waits_more_often_than_it_may(way: str, sampling: SamplingParams) -> None:
    ledger = counted(way, sampling, 4)
    assert set(ledger.most) == set(BUDGETS[way]), "each kind of work was seen"
    budget = BUDGETS[way] if sampling.temperature else {**BUDGETS[way], **CERTAIN}
    assert ledger.most == budget, {kind: dict(why) for kind, why in ledger.why.items()}
    assert bool(ledger.link_bytes) is (way != "resident"), "the host holds a part, and a pass brings it"
    assert bool(ledger.beside) is (way == "shared with the host")


def test_a_token_of_plain_decoding_waits_once_for_itself_its_time_and_its_chance() -> None:
    ledger = counted("resident", SamplingParams(), 4, "autoregressive")
    assert ledger.most == {"a pass of the full model": 0, OUTSIDE: 2}, dict(ledger.why)


def test_one_more_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: an item() in a pass, and all else that reads from the device."""
    real = CachedModel.feed_tokens

    def feed_tokens(self: CachedModel, *args: object) -> torch.Tensor:
        logits = real(self, *args)  # type: ignore[arg-type]
        if self.name == "retrieval":
            logits.sum().item()
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(CachedModel, "feed_tokens", feed_tokens)
        assert over(counted("resident", SamplingParams(), 3), RESIDENT) == {"a pass of the retrieval model": 1}
    for wait in (lambda x: x[x > 0], lambda x: x.equal(x)):
        with monkeypatch.context() as patch:
            patch.setattr(
                CachedModel, "feed_tokens", lambda self, *args, wait=wait: (wait(found := real(self, *args)), found)[1]
            )
            assert over(counted("resident", SamplingParams(), 1), RESIDENT), wait
