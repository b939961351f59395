"""Who guesses for a target: forecasts of machines that are not here, and what loading does with the choice."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from core.config import EngineConfig, GenerationConfig, RetrievalConfig
from core.decoding.adaptive import PassCost
from core.decoding.registry import FASTEST, PLAIN
from core.engine import Engine
from core.engine_builder import LoadedPair, PairFiles, composed_plan
from core.errors import InvalidSetting
from core.generation.events import Finished
from core.models.hub.shapes import find_shape
from core.models.param_count import ModelSize, size_of
from core.planning.choices import Choice, Composition
from core.planning.composition import (
    COMPOSITIONS,
    SELF_DRAFT_OVERLAP,
    Composed,
    Forecast,
    usual_acceptance,
    with_copy,
)
from core.planning.hardware import Machine
from core.planning.machine_spec import make_rig
from core.planning.rig_plan import RigPlan, compose_rig
from core.planning.sizes import DRAFT_WEIGHTS, DRAFTING_WEIGHTS
from core.planning.speed_model import PUBLISHED, reading_seconds
from core.planning.tp_planning import share_of

GIB = 1 << 30
HOST = Machine("cpu", 16, 256 * GIB, 256 * GIB, ())
AS_IT_IS = EngineConfig()
COPY = Composition(FASTEST, has_draft=True, self_draft_bits=4)


@cache
def sizes(model: str) -> tuple[ModelSize, ModelSize | None]:
    shape = find_shape(model)
    assert shape is not None
    return size_of(shape.config, model), size_of(shape.draft.config, "draft") if shape.draft else None


def composed(
    model: str, machine: str, context: int | None, config: EngineConfig = AS_IT_IS, *, draft: bool = True
) -> tuple[RigPlan, Composed]:
    target, small = sizes(model)
    config = replace(config, context=context, retrieval=RetrievalConfig(budget=4096))
    small = small if draft else None
    acceptance = usual_acceptance(None, share_of(small, 1).dims if small else None)
    return compose_rig(target, small, config, make_rig(HOST, assume=machine, host_gib=256), acceptance)


def of(found: Composed, method: str, bits: int = 16) -> Forecast:
    named = [
        one for one in found.forecasts if (one.composition.method, one.composition.self_draft_bits) == (method, bits)
    ]
    return named[0]


@pytest.mark.parametrize(
    ("model", "machine", "context", "chosen"),
    [
        ("llama-3.1-8b", "1xh100", 8192, Composition("draft", has_draft=True)),
        ("llama-3.1-8b", "1x4090", 32768, Composition("lookup")),
        ("llama-3.1-8b", "1x4090", 131072, Composition(FASTEST, has_draft=True)),
        ("llama2-7b-128k", "1x4090", 131072, Composition(FASTEST, has_draft=True)),
        ("qwen3-30b-a3b-2507", "1xh100", 131072, Composition("lookup")),
    ],
)
def test_the_choice_follows_weights_and_keys_and_values(
    model: str, machine: str, context: int, chosen: Composition
) -> None:
    told, found = composed(model, machine, context)
    assert found.loaded == chosen == found.chosen.composition and found.plan.composition is not None
    assert f"{found.chosen.ms_per_token:.3g} ms" in found.because and "plain decoding" in found.because
    least = min(one.ms_per_token for one in found.forecasts if not one.refused)
    assert found.chosen.ms_per_token * 0.97 <= least, "hardly slower than the fastest"
    assert bool(told.plan.bytes_of(DRAFT_WEIGHTS)) is chosen.has_draft, "its memory is planned, or it is not loaded"


def test_a_draft_that_pushes_the_cache_off_the_card_is_left_out() -> None:
    _, found = composed("llama-3.1-8b", "1x4090", 32768)
    with_draft, without = of(found, FASTEST).plan, of(found, "lookup").plan
    assert with_draft and without and with_draft.resident_layers < without.resident_layers == 32
    assert of(found, FASTEST).ms_per_token > of(found, PLAIN).ms_per_token
    _, asked = composed("llama-3.1-8b", "1x4090", 32768, EngineConfig(draft_model="llama-3.2-1b"))
    assert asked.loaded.has_draft, "--draft overrides it"


def test_without_a_draft_a_copy_in_four_bits_guesses_where_there_is_room() -> None:
    told, found = composed("llama-3.1-8b", "1xh100", 32768, draft=False)
    assert found.loaded == Composition("lookup", self_draft_bits=4) and told.self_draft_bits.value == 4
    assert told.plan.bytes_of(DRAFTING_WEIGHTS) == sizes("llama-3.1-8b")[0].self_draft_bytes, "its memory is planned"
    assert of(found, FASTEST).refused == "there is no draft with its tokens"
    _, found = composed("llama-3.1-8b", "1x4090", 131072, draft=False)
    assert found.loaded.self_draft_bits == 16 and "does not" in of(found, "lookup", 4).refused
    told, fixed = composed("llama-3.1-8b", "1xh100", 32768, EngineConfig(self_draft_bits=16), draft=False)
    assert fixed.loaded.self_draft_bits == 16 and not told.plan.bytes_of(DRAFTING_WEIGHTS), "--self-draft-bits 16"


@pytest.mark.parametrize(
    ("machine", "bits", "words"),
    [("cpu", None, "a processor is not faster"), ("2x4090", None, "not shared"), ("1xh100", 8, "quantised already")],
)
def test_why_there_is_no_copy_is_told(machine: str, bits: int | None, words: str) -> None:
    target, draft = sizes("llama-3.1-8b")
    config = EngineConfig(context=8192)
    _, found = compose_rig(target, draft, config, make_rig(HOST, assume=machine, host_gib=256), PUBLISHED, bits)
    assert words in of(found, FASTEST, 4).refused and found.loaded.self_draft_bits == 16


def test_a_method_that_was_asked_for_gets_its_models() -> None:
    for methods, has_draft in ((("triforce",), True), (("lookup",), False), ((PLAIN, "triforce-lookup"), True)):
        _, found = composed("llama-3.1-8b", "1x4090", 32768, EngineConfig(methods=methods))
        assert found.loaded.has_draft is has_draft, methods
    _, found = composed("llama-3.1-8b", "1xh100", 8192, EngineConfig(methods=("triforce",)))
    assert found.loaded == COPY and found.because.startswith("asked for"), "of its two kinds the faster"


def test_the_context_is_not_shortened_for_guesses() -> None:
    """Without a wish the context is what fits with the draft in 16 bits; all are compared there."""
    _, found = composed("llama-3.1-8b", "1xh100", None)
    contexts = {one.plan.context.value for one in found.forecasts if one.plan}
    assert contexts == {131072} and found.plan.context.because == "all that the model can read"


def test_of_a_copy_less_is_accepted() -> None:
    seen = with_copy(PUBLISHED)
    assert (seen.level1, seen.level2) == (PUBLISHED.level1, PUBLISHED.level2 * SELF_DRAFT_OVERLAP)
    small = sizes("llama2-7b-128k")[1]
    assert small is not None and usual_acceptance(None, share_of(small, 1).dims) is PUBLISHED
    large = sizes("llama-3.1-8b")[1]
    assert large is not None and usual_acceptance(None, share_of(large, 1).dims).level1 == 0.7
    assert usual_acceptance((0.6, 0.93), None).level1 == 0.6


# -------------------- mixtures


def test_a_token_of_a_mixture_reads_the_experts_that_it_uses() -> None:
    size = sizes("qwen3-30b-a3b-2507")[0]
    assert size.experts is not None and size.experts.used == 8 / 128
    assert size.experts.parameters == 48 * 128 * 3 * 2048 * 768
    assert size.active_parameters == size.num_parameters - size.experts.parameters * 120 // 128
    assert 3.3e9 < size.active_parameters < 3.4e9, "as its name says"
    assert sizes("llama-3.1-8b")[0].experts is None
    _, found = composed("qwen3-30b-a3b-2507", "1xh100", 8192)
    # 3.4e9 parameters less embeddings that it does not have apart, in 16 bits, and 0.8 GB of keys and values at
    # 3350 GB/s, and 48 layers of 0.25 ms
    assert of(found, PLAIN).ms_per_token == pytest.approx(
        1e3 * (2 * size.active_parameters + 0.8e9) / 3350e9 + 12, rel=0.02
    )


def test_verifying_many_guesses_reads_more_experts() -> None:
    """The story: a pass of nine rows over 128 experts of which a row uses 8 reads 44% of them, not 6%."""
    cost = PassCost(0.0, 0.0, experts=1.0, used=8 / 128)
    assert cost.of(0) == pytest.approx(8 / 128) and cost.of(8) == pytest.approx(1 - (120 / 128) ** 9)
    assert cost.of(8) == pytest.approx(0.44, abs=0.01) and PassCost(1.0, 0.0).of(8) == 1.0
    _, dense = composed("qwen3-8b-yarn", "1xh100", 8192)
    _, mixture = composed("qwen3-30b-a3b-2507", "1xh100", 8192)
    gains = [of(found, "draft").ms_per_token / of(found, PLAIN).ms_per_token for found in (dense, mixture)]
    assert gains[0] < gains[1] and of(mixture, FASTEST).gamma2 == 0


def test_reading_computes_with_the_active_parameters() -> None:
    size = sizes("qwen3-30b-a3b-2507")[0]
    seconds = [reading_seconds(1000, size.dims, n, 1e12) for n in (size.active_parameters, size.num_parameters)]
    assert seconds[0] < 0.3 * seconds[1]


# -------------------- loading


def test_what_is_chosen_is_loaded_and_told() -> None:
    engine = Engine.load(EngineConfig(device="cpu", context=4096))
    chosen = engine.info.plan.composition
    assert chosen == Choice(Composition(FASTEST, has_draft=True), chosen.because if chosen else "")
    assert engine.info.has_draft and engine.info.usual_method == FASTEST and "4,096 tokens" in chosen.because
    files = replace(PairFiles.find("harbour", "auto"), draft=None)
    alone = composed_plan(files, EngineConfig(device="cpu"), HOST).composition
    assert alone is not None and alone.value == Composition("lookup")


def test_a_copy_that_was_chosen_guesses_and_the_text_stays() -> None:
    """As on a GPU: the plan chose 4 bits, no option did; the text is that of plain decoding."""
    files = PairFiles.find("harbour", "auto")
    config = EngineConfig(device="cpu", context=1024, retrieval=RetrievalConfig(budget=256, local_window=64))
    plan = replace(composed_plan(files, config, HOST), composition=Choice(COPY, "as on a GPU"))
    pair = LoadedPair.load(files, config, plan, torch.device("cpu"))
    assert pair.self_draft is not None and pair.looking is pair.self_draft
    engine = Engine.of(pair, config, plan)
    assert engine.info.self_draft_weight_bytes > 0
    prompt = engine.text.encode("The keeper counts the boats in the harbour. " * 40)
    texts = []
    for method in (PLAIN, "triforce"):
        *_, done = engine.generate(prompt, GenerationConfig(method=method, max_new_tokens=12))
        assert isinstance(done, Finished)
        texts.append(done.token_ids)
    assert texts[0] == texts[1]


def test_a_copy_that_cannot_be_made_is_left_out_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: object) -> None:
        raise InvalidSetting("This GPU is too old.", hint="Leave it out.")

    monkeypatch.setattr("core.engine_builder.self_draft_of", refuses)
    files, config = PairFiles.find("harbour", "auto"), EngineConfig(device="cpu", context=512)
    plan = replace(composed_plan(files, config, HOST), composition=Choice(COPY, "as on a GPU"))
    assert LoadedPair.load(files, config, plan, torch.device("cpu")).self_draft is None
    assert "This GPU is too old." in caplog.text
    with pytest.raises(InvalidSetting, match="too old"):
        LoadedPair.load(files, replace(config, self_draft_bits=4), plan, torch.device("cpu"))


def test_every_composition_has_a_method_that_can_be_told() -> None:
    assert len({(one.method, one.self_draft_bits) for one in COMPOSITIONS}) == len(COMPOSITIONS)
