"""Where cases take place: tiny random models, and the bundled pair. Each world has engines and independent references.

A reference shares nothing with an engine under test but the weights, which nobody writes to.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Protocol, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from core.caches import full
from core.config import DraftConfig, EngineConfig, RetrievalConfig
from core.engine import Engine
from core.engine_builder import LoadedPair, PairFiles
from core.generation import interleave
from core.generation.loaded import LoadedModels
from core.generation.text import ChatText
from core.models.loader import LoadedModel
from core.models.self_draft import self_draft_of
from core.ops.graphs import Graphs
from core.planning import measured, sizes
from core.planning.plan import make_plan
from tests.core.models.tiny_families import tiny_family
from tests.core.toys import CPU, MACHINE, loaded, sized, tiny_config, tiny_model
from tests.exactness.cases import Case, LetterChat, Pair, Setup


class World(Protocol):
    """What playing and judging need of a case's models."""

    text: ChatText

    def engine(self, setup: Setup) -> Engine:
        """The engine under test."""

    def plain_engine(self, context: int) -> Engine:
        """An engine for plain decoding that nobody has used: resident, nothing ends its answers early."""

    def logits(self, tokens: Sequence[int], keep: int) -> Tensor:
        """The target's logits after each of the last `keep` tokens, by transformers alone, [keep, V]."""

    def stock_text(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Greedy tokens behind a prompt by transformers' own `generate`."""


@torch.inference_mode()
def stock_logits(module: nn.Module, tokens: Sequence[int], keep: int) -> Tensor:
    """One pass without any cache, [keep, V]."""
    output = cast(Any, module)(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=keep)
    return cast(Tensor, output.logits[0].float())


@torch.inference_mode()
def stock_generate(module: nn.Module, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Greedy tokens, past any end-of-text token."""
    ids = torch.tensor([prompt])
    out = cast(Any, module).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return cast(list[int], out[0, len(prompt) :].tolist())


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


def plain_config(context: int) -> EngineConfig:
    small = RetrievalConfig(budget=32, chunk_size=8, local_window=16)
    return EngineConfig(
        context=context, device="cpu", placement="resident", retrieval=small, draft=DraftConfig(window=68)
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


class TinyWorld:
    """A tiny random pair. `eos_ids` end answers of the engine under test."""

    def __init__(self, case: Case) -> None:
        assert case.setup.pair is not None
        self._pair = case.setup.pair
        self._target, self._draft, self._stock = tiny_pair(self._pair)
        self.text: ChatText = LetterChat(case.setup.eos_ids)

    def engine(self, setup: Setup) -> Engine:
        config = config_of(setup)
        plan = make_plan(sized(self._target.dims), self._draft.dims, config, MACHINE)
        offload = plan.offload and setup.block_rows and replace(plan.offload, block_rows=setup.block_rows)
        return Engine(
            config,
            plan,
            self.text,
            LoadedModels(
                target=self._target,
                draft=self._draft,
                self_draft=tiny_self_draft(self._pair) if setup.self_draft else None,
            ),
            offload=offload or None,
            graphs=Graphs(CPU, record=False) if setup.graphs else None,
        )

    def plain_engine(self, context: int) -> Engine:
        config = plain_config(context)
        plan = make_plan(sized(self._target.dims), None, config, MACHINE)
        return Engine(config, plan, LetterChat(), LoadedModels(target=self._target))

    def logits(self, tokens: Sequence[int], keep: int) -> Tensor:
        return stock_logits(self._stock, tokens, keep)

    def stock_text(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        return stock_generate(self._stock, prompt, num_tokens)


class Endless(ChatText):
    """A model's tokenizer, without a token that ends answers."""

    def __init__(self, pair: LoadedPair) -> None:
        super().__init__(pair.tokenizer, frozenset(), pair.files.entry.chat_template)


class BundledWorld:
    """The bundled pair, loaded once."""

    def __init__(self) -> None:
        self._files = PairFiles.find("harbour", "auto")
        config = plain_config(8192)
        self._machine = MACHINE
        self._pair = LoadedPair.load(self._files, config, self._plan(config), CPU)
        self.text: ChatText = self.engine_of(config).text

    def _plan(self, config: EngineConfig) -> Any:
        return make_plan(self._files.size(), self._files.draft, config, self._machine)

    def engine_of(self, config: EngineConfig, self_draft: nn.Module | None = None) -> Engine:
        return Engine.of(replace(self._pair, self_draft=self_draft), config, self._plan(config))

    @cached_property
    def _self_draft(self) -> nn.Module:
        return self_draft_of(self._pair.target.module, CPU)

    @cached_property
    def _stock(self) -> nn.Module:
        return self._load_stock(self._files.entry.target)

    @staticmethod
    def _load_stock(folder: object) -> nn.Module:
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        return cast(nn.Module, module.eval().requires_grad_(False))

    def engine(self, setup: Setup) -> Engine:
        assert not setup.eos_ids
        return self.engine_of(config_of(setup), self._self_draft if setup.self_draft else None)

    def plain_engine(self, context: int) -> Engine:
        engine = self.engine_of(plain_config(context))
        engine.text = Endless(self._pair)
        return engine

    def logits(self, tokens: Sequence[int], keep: int) -> Tensor:
        return stock_logits(self._stock, tokens, keep)

    def stock_text(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        return stock_generate(self._stock, prompt, num_tokens)


@lru_cache(maxsize=1)
def bundled_world() -> BundledWorld:
    return BundledWorld()


def world_of(case: Case) -> World:
    return bundled_world() if case.world == "bundled" else TinyWorld(case)


@contextmanager
def quick() -> Iterator[None]:
    """One thread, a short look at the link, and turns of one round, so that a race changes lanes as often as can be.

    Windowed layers can forget no more than a round, so that going back needs what is remembered, or reads again.
    """
    before = interleave.SLICE_SECONDS, measured.LINK_BYTES, torch.get_num_threads()
    folder_log, level = logging.getLogger("core.kv_store.folder"), logging.getLogger("core.kv_store.folder").level
    folder_log.setLevel(logging.ERROR)  # books are damaged on purpose
    interleave.SLICE_SECONDS, measured.LINK_BYTES = 0.0, 1 << 20
    torch.set_num_threads(1)  # several would wait for one another where other work has the same cores
    try:
        with patch.object(full, "FORGETTABLE", 96), patch.object(sizes, "FORGETTABLE", 96):
            yield
    finally:
        interleave.SLICE_SECONDS, measured.LINK_BYTES = before[:2]
        torch.set_num_threads(before[2])
        folder_log.setLevel(level)
