"""From the common command-line options to the engine: its settings, and its import.

Nothing here imports torch before it is asked to, so the page can be served first.
"""

import argparse
import gc
from functools import cache
from typing import TYPE_CHECKING

from core.config import EngineConfig, RetrievalConfig, SpeculationConfig
from core.models.hub.catalog import recommended

if TYPE_CHECKING:
    from core.engine import Engine


@cache
def engine_type() -> "type[Engine]":
    """The engine, imported: seconds. Nothing of that is garbage, so none is looked for, neither meanwhile nor later."""
    gc.disable()
    try:
        from core.engine import Engine
    finally:
        gc.enable()
    gc.freeze()
    return Engine


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The settings from the common options, with the catalogue's budget for the model, which a plan may change."""
    name = args.model or EngineConfig().model
    advice = recommended(name)
    return EngineConfig(
        model=name,
        draft_model=args.draft,
        bits=args.bits,
        kv_bits=args.kv_bits,
        prefill_bits=args.prefill_bits,
        self_draft_bits=args.self_draft_bits,
        device=args.device,
        context=args.context,
        layerwise=args.layerwise,
        attention=args.attention,
        graphs=args.graphs,
        cpu_attention_share=args.cpu_attention_share,
        gpu_memory_gib=args.gpu_memory,
        num_gpus=1 if args.gpus is None else args.gpus,
        methods=tuple(getattr(args, "methods", None) or filter(None, [getattr(args, "method", None)])),
        retrieval=RetrievalConfig(budget=advice.budget, grows=True) if advice else RetrievalConfig(),
    )


def speculation_config(model: str | None) -> SpeculationConfig:
    """The round lengths a model starts with."""
    advice = recommended(model) if model else None
    return SpeculationConfig(gamma1=advice.gamma1, gamma2=advice.gamma2) if advice else SpeculationConfig()
