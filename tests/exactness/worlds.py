"""Where cases take place: tiny random models, and the bundled pair; each has engines and an independent reference.

A reference shares nothing with an engine under test but the weights, which nobody writes to.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from core.caches import full
from core.config import EngineConfig
from core.engine import Engine
from core.engine_builder import LoadedPair, PairFiles
from core.generation import interleave
from core.generation.levels import LoadedModels
from core.generation.text import ChatText
from core.models.loader import LoadedModel
from core.models.self_draft import self_draft_of
from core.ops.graphs import Graphs
from core.planning import measured, sizes
from core.planning.plan import make_plan
from tests.core.models.tiny_families import tiny_family
from tests.core.toys import CPU, MACHINE, loaded, sized, tiny_config, tiny_model
from tests.exactness.cases import LetterChat, Pair, Setup


class World:
    """What playing and judging need of a case's models."""

    text: ChatText
    stock: Any  # transformers' own version of the target

    def engine(self, setup: Setup) -> Engine:
        raise NotImplementedError

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], keep: int) -> Tensor:
        """The target's logits after each of the last `keep` tokens, by one pass without any cache, [keep, V]."""
        logits: Tensor = self.stock(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=keep).logits
        return logits[0].float()


def config_of(setup: Setup) -> EngineConfig:
    return EngineConfig(
        context=setup.context,
        device="cpu",
        prefill_chunk=setup.prefill_chunk,
        placement=setup.placement,
        cpu_attention_share=setup.cpu_attention_share,
        gpu_memory_gib=None if setup.placement == "resident" else 1.0,
        retrieval=setup.retrieval,
        draft=setup.draft,
    )


@lru_cache(maxsize=128)
def tiny_pair(pair: Pair) -> tuple[LoadedModel, LoadedModel, nn.Module]:
    """Target, draft, and transformers' own version of the target."""

    def config(family: str = pair.family) -> PreTrainedConfig:  # a model of its own each: it names the attention
        if pair.windowed:
            return tiny_family(family)
        return tiny_config(pair.family, layers=pair.layers, heads=pair.heads, kv_heads=pair.kv_heads)

    target = loaded(config(), pair.seed)
    if pair.noise is None or not target.dims.drafts:
        draft = loaded(config("qwen2" if pair.windowed else pair.family), pair.seed + 100)
    else:
        draft = loaded(config(), pair.seed, pair.noise)
    stock = tiny_model(config(), 0, "eager")
    stock.load_state_dict(target.module.state_dict())
    return target, draft, stock


@lru_cache(maxsize=16)
def tiny_self_draft(pair: Pair) -> nn.Module:
    return self_draft_of(tiny_pair(pair)[0].module, CPU)


class TinyWorld(World):
    """A tiny random pair. `eos_ids` end answers of the engine under test."""

    def __init__(self, setup: Setup) -> None:
        assert setup.pair is not None
        self._pair = setup.pair
        self._target, self._draft, self.stock = tiny_pair(self._pair)
        self.text = LetterChat(setup.eos_ids)

    def engine(self, setup: Setup) -> Engine:
        config, twin = config_of(setup), tiny_self_draft(self._pair) if setup.self_draft else None
        plan = make_plan(sized(self._target.dims), self._draft.dims, config, MACHINE)
        offload = plan.offload and setup.block_rows and replace(plan.offload, block_rows=setup.block_rows)
        models = LoadedModels(target=self._target, draft=self._draft, self_draft=twin)
        graphs = Graphs(CPU, record=False) if setup.graphs else None
        return Engine(config, plan, self.text, models, offload=offload or None, graphs=graphs)


class BundledWorld(World):
    def __init__(self) -> None:
        self._files = PairFiles.find("harbour", "auto")
        config = EngineConfig(context=8192, device="cpu", placement="resident")
        self._pair = LoadedPair.load(self._files, config, self._plan(config), CPU)
        self.text = self.engine_of(config).text

    def _plan(self, config: EngineConfig) -> Any:
        return make_plan(self._files.size(), self._files.draft, config, MACHINE)

    def engine_of(self, config: EngineConfig, self_draft: nn.Module | None = None) -> Engine:
        return Engine.of(replace(self._pair, self_draft=self_draft), config, self._plan(config))

    @cached_property
    def _self_draft(self) -> nn.Module:
        return self_draft_of(self._pair.target.module, CPU)

    @cached_property
    def stock(self) -> Any:
        folder = self._files.entry.target
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        return module.eval().requires_grad_(False)

    def engine(self, setup: Setup) -> Engine:
        assert not setup.eos_ids
        return self.engine_of(config_of(setup), self._self_draft if setup.self_draft else None)


@lru_cache(maxsize=1)
def bundled_world() -> BundledWorld:
    return BundledWorld()


def world_of(setup: Setup) -> World:
    return TinyWorld(setup) if setup.pair else bundled_world()


@contextmanager
def quick() -> Iterator[None]:
    """One thread, a short look at the link, and turns of one round, so that a race changes lanes as often as can be.

    Windowed layers can forget no more than a round, so that going back needs what is remembered, or reads again.
    """
    threads, log = torch.get_num_threads(), logging.getLogger("core.kv_store.folder")
    torch.set_num_threads(1)  # several would wait for one another where other work has the same cores
    try:
        with (
            patch.object(interleave, "SLICE_SECONDS", 0.0),
            patch.object(measured, "LINK_BYTES", 1 << 20),
            patch.object(full, "FORGETTABLE", 96),
            patch.object(sizes, "FORGETTABLE", 96),
            patch.object(log, "disabled", True),  # books are damaged on purpose
        ):
            yield
    finally:
        torch.set_num_threads(threads)
