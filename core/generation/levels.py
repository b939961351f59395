"""The target and the draft, each with its caches: the parts of decoders."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.oom_fallback import OomFallback, make_full_cache
from core.caches.policies import (
    LOSSY_POLICIES,
    ByVerification,
    ChunkPolicy,
    chosen_weights,
    needs_landmarks,
    selection_policy,
)
from core.caches.retrieval import RetrievalCache
from core.caches.running_state import LIKELY_QUESTION
from core.caches.streaming import StreamingCache
from core.caches.tokens import Context
from core.config import EngineConfig, GenerationConfig
from core.decoding.methods import Decoder, Parts
from core.decoding.ngram_lookup import TokenIndex
from core.decoding.pace import costs_folder
from core.decoding.registry import default_method
from core.errors import NotEnoughMemory, NotPossibleHere
from core.generation.placement import Placement
from core.generation.text import ChatText
from core.models.cached_model import CachedModel
from core.models.graphed import GraphedPasses
from core.models.loader import LoadedModel
from core.models.rotary import KeyShift
from core.ops.backend import STOCK, Backend
from core.ops.graphs import Graphs
from core.ops.threads import THREADS_AT_START
from core.planning.hardware import cpu_name, free_memory_bytes
from core.planning.plan import Plan
from core.planning.sizes import Sizes, grown_window

if TYPE_CHECKING:
    from core.parallel.rank_pool import RankPool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModels:
    """A target and the models that guess for it."""

    target: LoadedModel
    draft: LoadedModel | None = None
    backend: Backend = STOCK
    ranks: "RankPool | None" = None  # the other ranks, where several share the target
    self_draft: nn.Module | None = None  # the target with weights of 4 bits, for passes over the retrieval cache

    @property
    def looking(self) -> nn.Module:
        """The model for passes over the retrieval cache."""
        return self.target.module if self.self_draft is None else self.self_draft


class Levels:
    """All models and caches of one conversation.

    Args:
        placement: has the present plan.
        offload: replaces the plan's placement. graphs: record passes.
        full: an existing full cache.
    """

    def __init__(
        self,
        config: EngineConfig,
        placement: Placement,
        models: LoadedModels,
        offload: Offload | None = None,
        graphs: Graphs | None = None,
        full: FullCache | None = None,
    ) -> None:
        self._config, self._models, self.placement, self._graphs = config, models, placement, graphs
        self.full = full or self._full_cache(placement.plan, offload or placement.plan.offload)
        self.chunks = config.retrieval  # the retrieval cache's present settings
        self._chooser = selection_policy(self.full, self.chunks)
        block_rows = self._block_rows(self.full.capacity)
        self.oom_fallback = OomFallback(self.full, block_rows, free_memory_bytes)  # no pass is running yet
        self.retrieval = self.oom_fallback.retry(lambda: self._part_of_full("retrieval", self._chooser), lambda: None)
        self._evicting: dict[str, CachedModel] = {}
        self.parts = self._parts()

    def _full_cache(self, plan: Plan, offload: Offload | None) -> FullCache:
        target, ranks, context = self._models.target, self._models.ranks, plan.capacity
        make = partial(
            make_full_cache,
            target.shape,
            context,
            self._config.retrieval.chunk_size,
            possible=min(target.dims.max_context, plan.most_context),
            backend=self._models.backend,
            offload=offload,
            block_rows=self._block_rows(context),
            landmarks=needs_landmarks(self._config.retrieval),
        )
        if not ranks:
            return make()
        from core.parallel.leader_caches import LedFullCache

        full = make(kind=LedFullCache)
        assert isinstance(full, LedFullCache)
        full.lead(ranks.tell)
        return full

    def _block_rows(self, context: int) -> int:
        target = self._models.target
        return Sizes(target.dims, self._config, target.shape.dtype).block_rows(context)

    def may_move_layers(self) -> None:
        """From now on passes run: where the device runs out of memory, layers of the full cache move to the host.

        A pass that fails has ended the other processes that hold the rest of each layer.
        """
        self.oom_fallback.moved, self.oom_fallback.may_move = self.placement.layers_moved, self._models.ranks is None

    def _parts(self) -> Parts:
        models = self._models
        return Parts(
            full=self._model("full", models.target.module, self.full),
            retrieval=self._model("retrieval", models.looking, self.retrieval),
            draft=self._draft_model(models.draft) if models.draft else None,
            index=TokenIndex(),
            vocab=models.target.dims.vocab_size,
            evicting=self._evicting_model,
            config=self._config.retrieval,
            costs_about=self._costs_about,
            costs_folder=costs_folder(),
            count_votes=self._count_votes,
            most_guesses=lambda: self.placement.plan.most_guesses,
        )

    def _count_votes(self, wanted: bool) -> None:
        self.full.count_votes(wanted and isinstance(self._chooser, ByVerification))

    def _draft_model(self, draft: LoadedModel) -> CachedModel:
        window = grown_window(self._config.draft, draft.dims, draft.shape.dtype)
        shift = KeyShift.of(draft.module, draft.shape)
        streaming = StreamingCache(draft.shape, window, shift, backend=self._models.backend)
        return self._model("draft", draft.module, streaming, vocab=self._models.target.dims.vocab_size)

    def _model(
        self,
        name: str,
        module: nn.Module,
        cache: FullCache | RetrievalCache | StreamingCache,
        *,
        vocab: int | None = None,
        recorded: bool = True,
    ) -> CachedModel:
        ranks = self._models.ranks if name != "draft" else None  # which runs on rank 0 alone
        lead, graphed = ranks.leading if ranks else None, None
        if self._graphs is not None and recorded and (ranks is None or ranks.graphs is not None):
            graphed = GraphedPasses(name, module, cache, self._graphs, backend=self._models.backend)
        return CachedModel(name, module, cache, self._models.target.shape.device, lead, vocab=vocab, graphed=graphed)

    def try_graphs(self) -> None:
        """Record a first pass of each model, so that failures show at the start."""
        for model in filter(None, (self.parts.full, self.parts.retrieval, self.parts.draft)):
            if model.graphs is not None:
                model.logits(Context([0]), 1)
                model.cache.truncate(0)

    def likely_boundary(self, total: int) -> int:
        """Where a book may end in a prompt, to keep running states there; 0: the model has none."""
        return max(0, total - LIKELY_QUESTION) if self.full.shape.recurrent else 0

    def branch(self, shared: int, most: int) -> "Levels":
        """Levels of a conversation that continues the first `shared` tokens here with at most so many of its own.

        It takes over what the full cache holds behind them; then rewind these levels to `shared`.
        """
        from core.caches.branch import BranchCache

        full = BranchCache(self.full, shared, min(most, self.full.capacity - shared))
        return Levels(self._config, self.placement, self._models, full=full)

    # -------------------- what the caches hold

    def rewind(self, length: int) -> None:
        """Every cache forgets the conversation from `length` on."""
        self.full.truncate(length)
        length = min(length, self.full.length)
        for model in (self.parts.retrieval, self.parts.draft, *self._evicting.values()):
            if model is not None:
                model.cache.truncate(length)

    def use_budget(self, budget: int | None) -> int:
        """See `Engine.use_budget`."""
        loaded, per_token = self._config.retrieval, self._models.target.shape.bytes_per_token
        wanted = loaded if budget is None else replace(loaded, budget=budget)
        if wanted == self.chunks:
            return wanted.budget
        if self._models.ranks:
            raise NotPossibleHere(
                "The retrieval budget cannot be changed while several processes share the model.",
                hint=f"Leave it at {self.chunks.budget:,} tokens.",
            )
        plan = self.placement.plan
        free = max(plan.usable_bytes - plan.total_bytes, 0)
        if (wanted.budget - loaded.budget) * per_token > free:
            raise NotEnoughMemory(
                f"A retrieval budget of {budget:,} tokens does not fit beside the model and its context.",
                hint=f"Choose one of at most {loaded.budget + free // per_token:,} tokens.",
            )
        chooser = selection_policy(self.full, wanted)
        try:
            self.oom_fallback.retry(lambda: self.retrieval.set_policy(chooser), lambda: None)
        except NotEnoughMemory:
            self.retrieval.set_policy(self._chooser)
            raise
        self.chunks, self._chooser = wanted, chooser
        self.parts.retrieval.meter.forget_costs()
        self._evicting.clear()
        return wanted.budget

    def chunk_weights(self) -> torch.Tensor:
        """See `core.caches.policies.chosen_weights`: [C] float32; empty: none was chosen."""
        held, ranks = self.retrieval.held_chunks(), self._models.ranks
        if held.shape[2] == 0:
            return torch.empty(0)
        weights = chosen_weights(held, self._chooser.scores)
        return ranks.chunk_weights(weights) if ranks else weights

    @property
    def holds_all_chunks(self) -> bool:
        """Whether the retrieval cache has room for every chunk."""
        return self.retrieval.held_chunks().shape[2] < self._chooser.max_chunks

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Free the retrieval cache's memory; its rows are chosen again before the next answer anyway."""
        self.retrieval.release_buffers()
        try:
            yield
        finally:
            self.oom_fallback.retry(self.retrieval.allocate_buffers, lambda: None)

    # -------------------- lossy methods

    def decoder(
        self, config: GenerationConfig, text: ChatText, prompt_ids: Sequence[int], written: Sequence[int] = ()
    ) -> Decoder:
        """The decoder of an answer. Raises InvalidSetting, UnsupportedModel."""
        return self._decoder(config, self.parts, text, prompt_ids, written)

    def _decoder(
        self, config: GenerationConfig, parts: Parts, text: ChatText, prompt_ids: Sequence[int], written: Sequence[int]
    ) -> Decoder:
        schema, grammar = config.json_schema, None
        if schema is not None:
            from core.generation.json_grammar import grammar_of

            grammar = grammar_of(text, schema, prompt_ids, parts.vocab, written)
        usual = default_method(has_draft=parts.draft is not None)
        return Decoder(config.method or usual, parts, config.sampling, config.speculation, grammar)

    def lane_decoders(
        self, configs: Sequence[GenerationConfig], text: ChatText, prompt_ids: Sequence[int]
    ) -> list[Decoder]:
        """One decoder for each lane of a race. A lossy method needs a cache of its own for each of its lanes."""
        before: Counter[str] = Counter()
        decoders = []
        for config in configs:
            parts = replace(self.parts, evicting=partial(self._evicting_model, lane=before[config.method]))
            decoders.append(self._decoder(config, parts, text, prompt_ids, ()))
            before[config.method] += 1
        return decoders

    def _evicting_model(self, method: str, lane: int = 0) -> CachedModel:
        name = f"{method}-{lane + 1}" if lane else method
        if name not in self._evicting:
            policy = LOSSY_POLICIES[method](self.full, self.chunks)  # the plan does not count these rows
            cache = self.oom_fallback.retry(lambda: self._part_of_full(name, policy), lambda: None)
            self._evicting[name] = self._model(name, self._models.target.module, cache, recorded=False)
        return self._evicting[name]

    def _part_of_full(self, name: str, policy: ChunkPolicy) -> RetrievalCache:
        ranks = self._models.ranks
        if not ranks:
            return RetrievalCache(self.full, policy)
        from core.parallel.leader_caches import LedRetrievalCache

        return LedRetrievalCache(self.full, policy, name, ranks.tell)

    def gap(self, prompt: list[int], tokens: Sequence[int]) -> float:
        """By how much the least of these tokens' logits lies below the best one's, after a prompt that was read."""
        logits = self.oom_fallback.retry(
            lambda: self.parts.full.logits(Context(prompt), 1), lambda: self.full.truncate(len(prompt) - 1)
        )[0].float()
        return float(logits.max() - logits[list(tokens)].min())

    def _costs_about(self) -> str:
        """What the costs of passes depend on, besides their rows and the context's length."""
        models, plan, device = self._models, self.placement.plan, self.full.shape.device
        kernel = models.backend.kernel
        on = (
            torch.cuda.get_device_properties(device).name
            if device.type == "cuda"
            else f"{cpu_name()} {THREADS_AT_START}"
        )
        parts = [
            on,
            models.backend.name if kernel is None else Path(kernel.library._name).name,  # of its code and compiler
            models.target.dims,
            models.draft and models.draft.dims,
            self.full.shape,
            plan.bits.value,
            plan.resident_layers,
            plan.cpu_attention.value,
            self.chunks,
            self._config.draft,
            models.self_draft is not None,
            self._graphs is not None,
            torch.__version__,
        ]
        return ", ".join(map(str, parts))
