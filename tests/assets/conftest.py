"""What the recipe's tests share: the tokenizer and the target before any training."""

from __future__ import annotations

import pytest
from transformers import LlamaForCausalLM

from assets.training.run import Schedule, first_model
from assets.training.shapes import TARGET
from assets.training.tokens import Layout
from core.models.hub.catalog import find
from tests.core.conftest import one_thread as one_thread  # threads cost tiny models much on shared cores


@pytest.fixture(scope="session")
def layout() -> Layout:
    """The bundled pair's tokenizer."""
    return Layout.load(find("harbour").target)


@pytest.fixture(scope="session")
def model(layout: Layout) -> LlamaForCausalLM:
    """The target before any training."""
    return first_model(TARGET, layout).eval()


def short_leg(steps: int, rate: float) -> Schedule:
    """A leg at one rate for all weights."""
    return Schedule(
        steps=steps,
        peak_rate=rate,
        warmup=0,
        tokens_per_step=64,
        stages=((1.0, (64,)),),
        circuit_shares=((1.0, 1.0),),
        floors=(1.0, 1.0),
        skip_positions=False,
    )
