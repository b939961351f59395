"""Where the processor waits for the device, counted on a pretended GPU: by kind of work, against a stated budget.

A wait belongs to the innermost work around it: a round's own waits are those outside of passes, of rounds below and of
choosing chunks. Not counted: waits inside of kernels' own libraries.
"""

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

from core.caches.full_parts import Offload
from core.caches.retrieval import RetrievalCache
from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding.speculative import AutoregressiveProposer, Speculative
from core.generation.decode_loop import Answer
from core.models.cached_model import CachedModel
from tests.core.cuda_stubs import pretended_gpu
from tests.core.toys import engine_on, random_prompt

OUTSIDE = "the rest of a step"
GAMMA1, LAYERS = 2, 2
PROMPT = random_prompt(300)  # of an offloaded layer the newest 192 rows and more stay on the device
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9, top_k=20)
AWAY = Offload(block_rows=64, num_slots=2)
WAYS: dict[str, dict[str, Any]] = {
    "resident": {},
    "offloaded": {"offload": AWAY},
    "shared with the host": {"offload": AWAY, "cpu_attention_share": 0.5},
}
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
# Beside that what was stored must be there, and in each layer a buffer must be free for keys and one for values
OFFLOADED = {**RESIDENT, "choosing chunks": 3 + 1 + 2 * LAYERS}
SHARED = {**OFFLOADED, "a pass of the full model": 1}  # the host reads what was stored
BUDGETS = {"resident": RESIDENT, "offloaded": OFFLOADED, "shared with the host": SHARED}


PIECES: dict[CodeType, Callable[[Any], str]] = {
    CachedModel.feed_tokens.__code__: lambda model: f"a pass of the {model.name} model",
    Speculative.round.__code__: lambda level: f"a round verified by {level._verifier.name}",
    AutoregressiveProposer.propose.__code__: lambda _: "a proposal of the draft",
    RetrievalCache.select.__code__: lambda _: "choosing chunks",
    Answer.round.__code__: lambda _: OUTSIDE,
}


class Ledger:
    """Waits by the work they belong to, which stands on the stack; one frame is one piece."""

    def __init__(self) -> None:
        self.pieces: dict[str, Counter[FrameType]] = defaultdict(Counter)
        self.why: Counter[tuple[str, str]] = Counter()
        self.beside = 0  # waits of the thread that attends on the host, which holds nobody up
        self.link_bytes = 0  # of the last pass over the full cache

    def wait(self, what: str) -> None:
        """One more."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in PIECES:
            frame = frame.f_back
        if threading.current_thread() is not threading.main_thread():
            self.beside += 1
        elif frame is not None:
            kind = PIECES[frame.f_code](frame.f_locals["self"])
            self.pieces[kind][frame] += 1
            self.why[kind, what] += 1

    def close(self) -> None:
        """Let the frames go, which hold tensors."""
        self.most = {kind: max(count.values()) for kind, count in self.pieces.items()}  # of one piece of a kind
        self.pieces.clear()


def counted(way: str, sampling: SamplingParams, new: int, method: str = "triforce") -> Ledger:
    """Waits of an answer to a prompt that was read."""
    ledger = Ledger()
    with pretended_gpu() as gpu:
        engine = engine_on("cuda", **WAYS[way])
        list(engine.read(PROMPT))
        gpu.on_wait = ledger.wait
        shape = SpeculationConfig(gamma1=GAMMA1, gamma2=2, adaptive=False)
        config = GenerationConfig(method=method, max_new_tokens=new, speculation=shape, sampling=sampling)
        list(engine.generate(PROMPT, config))
        ledger.link_bytes = engine.full_cache.link_bytes
        ledger.close()
        del engine
    return ledger


def budgeted(way: str, sampling: SamplingParams) -> dict[str, int]:
    """Where an answer may wait."""
    budget = {**BUDGETS[way], **(CERTAIN if sampling.greedy else {})}
    return {kind: most for kind, most in budget.items() if most}


@pytest.mark.parametrize(
    ("way", "sampling"),
    [("resident", GREEDY), ("resident", SAMPLED), ("offloaded", SAMPLED), ("shared with the host", GREEDY)],
)
def test_no_piece_of_work_waits_more_often_than_it_may(way: str, sampling: SamplingParams) -> None:
    ledger = counted(way, sampling, 4)
    assert ledger.most == budgeted(way, sampling), ledger.why
    assert bool(ledger.link_bytes) is (way != "resident"), "the host holds a part, and a pass brings it"
    assert bool(ledger.beside) is (way == "shared with the host")


def test_a_token_of_plain_decoding_waits_once_for_itself_its_time_and_its_chance() -> None:
    ledger = counted("resident", GREEDY, 4, "autoregressive")
    assert ledger.most == {OUTSIDE: 2}, ledger.why


@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.equal(x)])
def test_one_more_wait_is_noticed(wait: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what reads from the device in a pass."""
    real = CachedModel.feed_tokens

    def feed_tokens(self: CachedModel, *args: Any) -> torch.Tensor:
        logits = real(self, *args)
        if self.name == "retrieval":
            wait(logits)
        return logits

    monkeypatch.setattr(CachedModel, "feed_tokens", feed_tokens)
    monkeypatch.setitem(PIECES, feed_tokens.__code__, PIECES[real.__code__])
    expected = {**budgeted("resident", GREEDY), "a pass of the retrieval model": 1}
    assert counted("resident", GREEDY, 3).most == expected
