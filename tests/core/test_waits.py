"""No more waits for the device than the stated budget (`waits`), counted on a pretended GPU."""

import pytest
import torch

from core.caches.full_parts import Offload
from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.engine import Engine
from core.models.cached_model import CachedModel
from tests.core.cuda_stubs import pretended_gpu
from tests.core.test_pretended_gpu import engine_on
from tests.core.toys import random_prompt
from tests.core.waits import BUDGETS, CERTAIN, GAMMA1, OUTSIDE, RESIDENT, Ledger, watch

pytestmark = pytest.mark.skipif(
    hasattr(torch._C, "_cuda_getDeviceCount"), reason="torch was built with CUDA: its own functions are there"
)
PROMPT = random_prompt(400)  # of an offloaded layer the newest 192 rows and more stay on the device
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
