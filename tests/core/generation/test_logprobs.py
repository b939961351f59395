"""Log-probabilities of an answer's tokens are the target's own, whoever guessed them and however they were drawn."""

import pytest

from core.caches.tokens import Context
from core.config import GenerationConfig, SamplingParams
from core.engine import Engine
from core.errors import InvalidSetting
from core.generation.events import RoundDone, TokenRecord
from tests.core.toys import FIXED, random_prompt, tiny_engine

PROMPT, GREEDY = random_prompt(300), SamplingParams()
SAMPLED = SamplingParams(temperature=1.3, top_p=0.8, top_k=20)


def written(engine: Engine, sampling: SamplingParams, method: str, top: int | None = 3) -> list[TokenRecord]:
    shape = {"method": method, "sampling": sampling, "speculation": FIXED, "seed": 3, "top_logprobs": top}
    events = engine.generate(PROMPT, GenerationConfig(max_new_tokens=12, **shape))
    return [record for event in events if isinstance(event, RoundDone) for record in event.tokens]


@pytest.mark.parametrize(
    ("method", "sampling"),
    [("autoregressive", SAMPLED), ("retrieval", GREEDY), ("triforce", SAMPLED), ("triforce-lookup", GREEDY)],
)
def test_they_are_the_target_s_own_before_any_sampling_option(method: str, sampling: SamplingParams) -> None:
    """The slow twin: one pass of one row a token, over the full cache."""
    records, slow = written(tiny_engine(), sampling, method), tiny_engine()
    assert len(records) == 12 and (method == "autoregressive" or len({record.round for record in records}) < 12)
    text = list(PROMPT)
    for record in records:
        list(slow.read(text))
        expected = slow._levels.parts.full.logits(Context(text), 1)[0].log_softmax(-1)
        slow.settle(text)
        assert record.logprob == pytest.approx(float(expected[record.token_id]), abs=1e-4)
        best = expected.topk(3)
        assert [one.token_id for one in record.top] == best.indices.tolist()
        assert [one.logprob for one in record.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        text.append(record.token_id)


def test_noting_them_changes_no_token_and_costs_nothing_unless_asked_for() -> None:
    noted, silent = (written(tiny_engine(), SamplingParams(temperature=1.0), "triforce", top) for top in (0, None))
    assert [one.token_id for one in noted] == [one.token_id for one in silent]
    assert all(one.logprob is not None and one.top == () for one in noted)
    assert all(one.logprob is None for one in silent)


def test_the_end_of_the_text_has_none_and_so_many_are_refused() -> None:
    records = written(tiny_engine(eos_ids=frozenset(range(0, 64, 2))), GREEDY, "triforce")
    assert records[-1].token_id % 2 == 0 and records[-1].logprob is None
    assert all(record.logprob is not None for record in records[:-1])
    with pytest.raises(InvalidSetting, match="log-probabilities"):
        GenerationConfig(top_logprobs=21)
