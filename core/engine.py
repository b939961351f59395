"""The engine: owns weights, caches and random numbers of one conversation at a time, and speaks in events.

The full cache keeps what it has read. A prompt that begins like the last one costs only the tokens behind the common
prefix, so a second question, an edit or a regenerate never reads the book again.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn

from core.caches.base import KVCache
from core.caches.full import FullCache, Offload
from core.caches.oom_fallback import Relief, make_full_cache
from core.caches.policies import LOSSY_POLICIES, ChunkPolicy, TopChunks, chosen_weights
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.caches.tokens import Context, common_prefix
from core.config import EngineConfig, GenerationConfig
from core.decoding.adaptive import PassCost
from core.decoding.methods import Decoder, Parts, judges_of
from core.decoding.ngram_lookup import TokenIndex
from core.engine_builder import LoadedPair, PairFiles
from core.engine_info import EngineInfo, Equality
from core.errors import ContextTooSmall, InvalidSetting, NotEnoughMemory
from core.generation.decode_loop import LONGEST_ROUND, Answer
from core.generation.events import Event, LaneEvent, PrefillProgress
from core.generation.interleave import Lane
from core.generation.prefill import Prefill, Step, reading_cost
from core.generation.text import ChatText
from core.kv_store.identity import Family, family_of
from core.models.cached_model import Judge
from core.models.graphed import GraphedPasses
from core.models.layerwise import DecoderLayers
from core.models.loader import LoadedModel
from core.models.quantised import FORMATS
from core.models.rotary import KeyShift
from core.models.self_draft import drafting_bytes
from core.ops.backend import STOCK, Backend
from core.ops.graphs import MOST_ROWS, Graphs
from core.ops.transfer import pinning
from core.parallel.leader_caches import LedFullCache, LedRetrievalCache
from core.parallel.rank_pool import Crew
from core.planning.cache_sizes import CacheSizes
from core.planning.choices import Choice, choose_coattention
from core.planning.cost_model import PassReads, measure_link, measure_sharing, pass_cost, share_of
from core.planning.hardware import cap_memory, free_memory_bytes, resolve_device, this_machine
from core.planning.memory_plan import Plan, block_changed, placed
from core.planning.planner import make_plan
from core.planning.tp_planning import one_share, told

log = logging.getLogger(__name__)

# How far below the best a token may lie that rounding explains: some ulps of logits around 20, over many layers.
NEAR_TIE_GAP = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
GRAPHS_ON = f"passes of up to {MOST_ROWS} new tokens are recorded once and then replayed in one launch"
DRAFT_GRAPHS = f"{GRAPHS_ON}, the draft's alone: several processes share the target, and would have to record its sums"


class Engine:
    """One loaded model pair and the caches of one conversation. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        config: EngineConfig,
        plan: Plan,
        text: ChatText,
        target: LoadedModel,
        draft: LoadedModel | None,
        *,
        name: str = "model",
        description: str = "",
        limits: str = "",
        draft_because: str = "",
        backend: Backend = STOCK,
        offload: Offload | None = None,
        crew: Crew | None = None,
        graphs: Graphs | None = None,
        drafting: nn.Module | None = None,
    ) -> None:
        self.config, self.plan, self.text = config, plan, text
        self._target, self._draft = target, draft
        # What looks through the retrieval cache, and never at the full one
        self._drafting = target.module if drafting is None else drafting
        context, device = plan.context.value, target.shape.device
        possible = min(target.dims.max_context, plan.most_context)
        chunk_size = config.retrieval.chunk_size
        self._crew = crew  # of the other ranks, where several share the target
        block_rows = CacheSizes.of(target.dims, config, target.shape.dtype).block_rows(context)
        self._full = make_full_cache(
            target.shape,
            context,
            chunk_size,
            possible=possible,
            backend=backend,
            offload=offload or plan.offload,
            block_rows=block_rows,
            kind=LedFullCache if crew else FullCache,
        )
        if crew and isinstance(self._full, LedFullCache):
            self._full.lead(crew.tell)
        self._chunks = config.retrieval  # what the retrieval cache keeps now
        self._chooser = TopChunks(self._full, self._chunks)
        making = Relief(self._full, block_rows, free_memory_bytes, lambda: None)
        self._retrieval = making.retry(lambda: self._part_of_full("retrieval", self._chooser), lambda: None)
        self._relief = Relief(self._full, block_rows, free_memory_bytes, self._placement_changed, may_move=crew is None)
        self._graphs = graphs
        self._evicting: dict[str, Judge] = {}
        self._weights_read: dict[str, int] = {}  # bytes of weights that a pass reads, by judge
        draft_judge = None
        if draft is not None:
            streaming = StreamingCache(
                draft.shape, config.draft, KeyShift.of(draft.module, draft.shape), backend=backend
            )
            passes = self._passes("draft", draft.module, streaming, backend)
            vocab = target.dims.vocab_size
            draft_judge = Judge("draft", draft.module, streaming, device, vocab=vocab, graphed=passes)
        self._parts = Parts(
            full=self._target_judge("full", self._full, self._passes("full", target.module, self._full, backend)),
            retrieval=self._target_judge(
                "retrieval",
                self._retrieval,
                self._passes("retrieval", self._drafting, self._retrieval, backend),
                self._drafting,
            ),
            draft=draft_judge,
            index=TokenIndex(),
            vocab=target.dims.vocab_size,
            evicting=self._evicting_judge,
            config=config.retrieval,
            nominal_cost=self._nominal_cost,
            most_guesses=lambda: self.plan.most_guesses.value,
        )
        layers = DecoderLayers.of(target.module) if crew is None else None
        if layers is None and plan.prefill_block.value:
            self.plan = block_changed(plan, 0, "chunk by chunk, as the layers of this model are not called one by one")
        self._prefill = Prefill(
            self._parts.full,
            self._full,
            self._relief,
            layers=layers,
            chunk=plan.prefill_chunk.value,
            block=self.plan.prefill_block.value,
            lent=self._lent,
            shrunk=self._block_shrunk,
        )
        self._link: Choice[float] | None = None
        self._coattention: Choice[float | None] | None = None  # None: nothing has gone to host memory yet
        self._seen: list[int] = []  # tokens whose keys and values the full cache holds: the first `full.length` count
        self.info = EngineInfo(
            model=name,
            description=description,
            limits=limits,
            has_draft=draft is not None,
            draft_because=draft_because,
            plan=plan,
            weights=FORMATS.get(plan.bits.value, str(plan.dtype.value).removeprefix("torch.")),
            quantised=plan.bits.value in FORMATS,
            attention=backend.name,
            attention_because=backend.because,
            most_context=target.dims.max_context,
            kv_bytes_per_token=target.shape.bytes_per_token,
            target_weight_bytes=target.weight_bytes,
            draft_weight_bytes=draft.weight_bytes if draft else 0,
            target_layers=target.dims.num_layers,
            draft_layers=draft.dims.num_layers if draft else 0,
            host_memory=None,
            link=None,
            drafting_weight_bytes=0 if drafting is None else drafting_bytes(drafting),
            num_ranks=crew.num_ranks if crew else 1,
        )
        self._tell_placement()
        if graphs is not None:
            self._try_graphs(graphs)

    def _passes(
        self, name: str, model: nn.Module, cache: FullCache | RetrievalCache | StreamingCache, backend: Backend
    ) -> GraphedPasses | None:
        if self._graphs is None or (self._crew and name != "draft"):  # it lives on rank 0, and needs no other one
            return None
        return GraphedPasses(name, model, cache, self._graphs, backend=backend)

    def _try_graphs(self, graphs: Graphs) -> None:
        """Record a first pass of each judge, so that what cannot work is known before it is needed."""
        for judge in filter(None, (self._parts.full, self._parts.retrieval, self._parts.draft)):
            if judge.graphs is not None:
                judge.logits(Context([0]), 1)
                judge.cache.truncate(0)
        self._tell_graphs(graphs)

    def _tell_graphs(self, graphs: Graphs) -> None:
        on = DRAFT_GRAPHS if self._crew else GRAPHS_ON
        self.info = replace(self.info, graphs=Choice(not graphs.failure, graphs.failure or on))

    @classmethod
    def load(cls, config: EngineConfig) -> "Engine":
        """Plan, then load.

        Raises:
            UnknownModel, UnsupportedModel, DamagedAssets, NotEnoughMemory, ContextTooSmall: see `core.errors`.
        """
        files, machine = PairFiles.find(config.model, config.draft_model), this_machine()
        entry, dims = files.entry, files.target
        if config.num_gpus > 1:
            if config.bits in FORMATS:
                raise InvalidSetting(
                    "Quantised weights are not shared between GPUs.", hint="Leave out --bits or --gpus."
                )
            if entry.widened is not None:
                raise InvalidSetting("Widened models are not shared between GPUs.", hint="Leave out --gpus.")
            dims, machine = one_share(entry.target, dims, config, machine)
        unused = machine.unused_gpu
        if unused is not None and unused.known_from == "torch" and config.device == "auto":  # launch.py tells the rest
            log.warning("%s %s", unused.because, unused.hint)
        plan = told(make_plan(dims, files.draft, config, machine, files.counted(config)), config.num_gpus)
        device = resolve_device(plan.device.value)
        cap_memory(device, config.gpu_memory_gib)
        if config.num_gpus > 1:
            pair = LoadedPair.load_shared(replace(files, target=dims), config, plan, device)
        else:
            pair = LoadedPair.load(files, config, plan, device)
        return cls.of(pair, config, plan)

    @classmethod
    def of(cls, pair: LoadedPair, config: EngineConfig, plan: Plan) -> "Engine":
        """An engine for weights that are loaded.

        Raises:
            NotEnoughMemory: the device has no room for the caches, whatever the plan says.
        """
        entry, device = pair.files.entry, pair.target.shape.device
        recorded = config.graphs and device.type == "cuda" and (pair.crew is None or pair.draft is not None)
        return cls(
            config,
            plan,
            ChatText(pair.tokenizer, pair.target.eos_ids, entry.chat_template, entry.template_options),
            pair.target,
            pair.draft,
            name=entry.name,
            description=entry.description,
            limits=entry.limits,
            draft_because=entry.draft_because,
            backend=pair.backend,
            crew=pair.crew,
            graphs=Graphs(device) if recorded else None,
            drafting=pair.drafting,
        )

    def _placement_changed(self) -> None:
        """Fewer layers are resident than before."""
        self.plan = placed(self.plan, self._full.resident_layers, "the device ran out of memory, and the others went")
        self._tell_placement()

    def _block_shrunk(self, block: int) -> None:
        """The device had no room for the block that was to be read layer by layer."""
        how = "smaller blocks are read layer by layer" if block else "prompts are read chunk by chunk"
        self.plan = block_changed(self.plan, block, f"the device ran out of memory: {how}")
        self.info = replace(self.info, plan=self.plan)
        log.warning("out of memory: %s", how)

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """The retrieval cache gives its memory up; what it held is chosen anew before the next answer anyway."""
        self._retrieval.lend_rows()
        try:
            yield
        finally:
            self._relief.retry(self._retrieval.take_rows, lambda: None)

    def _tell_placement(self) -> None:
        resident = self._full.resident_layers
        if resident != self.plan.resident_layers:
            self.plan = placed(self.plan, resident, "the device had less room than planned")
        host = None
        if self._full.host_memory:
            host = Choice(*pinning(self._full.host_memory))
            with suppress(torch.OutOfMemoryError):  # then its use cannot be told
                self._link = self._link or self._measured_link()
            if self._coattention is None:
                self._coattention = self._choose_coattention()
                self._full.let_host_attend(self._coattention.value or 0.0)
            self.plan = replace(self.plan, coattention=self._coattention)
        self.info = replace(self.info, plan=self.plan, host_memory=host, link=self._link if host else None)

    def _measured_link(self) -> Choice[float]:
        own = partial(measure_link, self._target.shape.device)
        return self._crew.link(own) if self._crew else own()

    def _choose_coattention(self) -> Choice[float | None]:
        shape = self._target.shape
        choice = choose_coattention(self.config, shape.device.type, away=True)
        if choice.value is not None:
            return choice
        piece = self._full.host_memory[0].rows.shape[1:]
        try:
            return share_of(measure_sharing(piece, shape.num_heads, shape.dtype, shape.device))
        except torch.OutOfMemoryError:
            return Choice(0.0, "the device had no room to measure it")

    def close(self) -> None:
        """Forget the conversation; memory is freed with the engine."""
        self._seen.clear()
        self._full.truncate(0)

    @property
    def context(self) -> int:
        """Tokens that book, conversation and answer may have together."""
        return self._full.capacity

    def knows(self, token_ids: Sequence[int]) -> bool:
        """Whether the model has all of these tokens."""
        return all(0 <= token < self._parts.vocab for token in token_ids)

    def cached_prefix(self, prompt_ids: Sequence[int]) -> int:
        """How many leading tokens of this prompt would not be read again."""
        known = self._seen[: self._full.length]
        return common_prefix(known, list(prompt_ids[: len(known)]))

    def use_budget(self, budget: int | None) -> int:
        """Give the retrieval cache, and the lossy ones, so many tokens from the next answer on; None: as loaded.

        Returns:
            The budget in use. Another one frees and allocates its rows; what was held is chosen again.
        Raises:
            InvalidSetting: core cannot use it. NotEnoughMemory: the plan has no room for it.
        """
        wanted = self.config.retrieval if budget is None else replace(self.config.retrieval, budget=budget)
        if wanted == self._chunks:
            return wanted.budget
        if self._crew:
            raise InvalidSetting(
                "The retrieval budget cannot be changed while several processes share the model.",
                hint=f"Leave it at {self._chunks.budget:,} tokens.",
            )
        more = (wanted.budget - self.config.retrieval.budget) * self.info.kv_bytes_per_token
        free = self.plan.usable_bytes - self.plan.total_bytes
        if more > max(free, 0):
            possible = self.config.retrieval.budget + max(free, 0) // self.info.kv_bytes_per_token
            raise NotEnoughMemory(
                f"A retrieval budget of {budget:,} tokens does not fit beside the model and its context.",
                hint=f"Choose one of at most {possible:,} tokens.",
            )
        self._chunks, self._chooser = wanted, TopChunks(self._full, wanted)
        self._retrieval.adopt(self._chooser)
        self._parts.retrieval.meter.forget_costs()
        self._evicting.clear()
        return wanted.budget

    @property
    def full_cache(self) -> FullCache:
        """What the target has read, for those who keep it on disk."""
        return self._full

    @property
    def held_tokens(self) -> list[int]:
        """The tokens whose keys and values are there."""
        return self._seen[: self._full.length]

    def family(self, known: Path | None = None) -> Family:
        """What the rows of the full cache depend on beside the text. `known`: a file that keeps digests of weights."""
        target, config = self._target, self.config
        pieces = f"{self.plan.prefill_chunk.value} tokens a pass, {config.retrieval.chunk_size} a landmark"
        pieces += f", {self.info.weights} weights"
        return family_of(target.module, target.shape, self.text.identity, pieces=pieces, known=known)

    @contextmanager
    def refilled(self, token_ids: Sequence[int], *, logged: int) -> Iterator[FullCache]:
        """Somebody else brings the rows of these tokens. As many as were committed count, even if that ends early.

        Args:
            logged: the length at which the newest queries were saved.
        """
        self._rewind(0)
        try:
            with self._full.refilled(len(token_ids), logged):
                yield self._full
        finally:
            self._seen = list(token_ids[: self._full.length])

    def held_chunks(self) -> torch.Tensor:
        """Chunk numbers in the retrieval cache, [L, H_kv, n] int64: what was loaded for drafting, not a proof."""
        own = self._retrieval.held_chunks()
        return self._crew.held_chunks(own) if self._crew else own

    def retrieves(self, method: str) -> bool:
        """Whether a method drafts with the retrieval cache, so that `held_chunks` speaks of its answers."""
        return self._parts.retrieval in judges_of(method, self._parts)

    def chunk_weights(self) -> torch.Tensor:
        """How much each chunk counted when those in the retrieval cache were chosen, [C] float32; empty: none was.

        See `core.caches.policies.chosen_weights`. What was loaded for drafting, not a proof.
        """
        held = self._retrieval.held_chunks()
        if held.shape[2] == 0:
            return torch.empty(0)
        own = chosen_weights(held, self._chooser.scores)
        return self._crew.chunk_weights(own) if self._crew else own

    @property
    def holds_all_chunks(self) -> bool:
        """Whether there was no choice to make: the retrieval cache has room for every chunk."""
        return self._retrieval.held_chunks().shape[2] < self._chooser.max_chunks

    def weights_after(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> torch.Tensor | None:
        """`chunk_weights` as they would be for the answer to a prompt; None: cancelled.

        Reads what is new of the prompt, and leaves the caches at it. Raises what `read` raises.
        """
        for _ in self.read(prompt_ids, cancel):
            pass
        if cancel and cancel.is_set():
            return None
        self._relief.retry(self._retrieval.select, lambda: self._retrieval.truncate(0))
        return self.chunk_weights()

    def read(
        self, prompt_ids: Sequence[int], cancel: threading.Event | None = None, *, boundary: int = 0
    ) -> Iterator[PrefillProgress]:
        """Prefill: bring the full cache to all tokens but the last. `cancel` ends it early; what was read stays.

        Args:
            boundary: tokens after which a step ends, if they are not there yet: the cache then holds just these.
        Raises:
            ContextTooSmall: the prompt leaves no room for an answer.
        """
        total, needed = len(prompt_ids) - 1, len(prompt_ids) + LONGEST_ROUND
        if needed > self.context:
            raise ContextTooSmall(needed, self.context, possible=self.info.most_context)
        context = Context(list(prompt_ids))
        reused = min(self.cached_prefix(prompt_ids), total)
        self._rewind(reused)
        voting = max(0, total - self._chunks.query_window)  # from here on queries choose the chunks
        if reused > voting and self._full.queries_start() > voting:  # they are gone: ask them again
            reused = voting
            self._rewind(reused)
        if reused == total:
            self._full.remember_queries(self._chunks.query_window)
        started, done = time.perf_counter(), reused
        yield _progress(Step(done, done, reading_cost(done)), total, reused, 0.0)
        with closing(self._steps(context, done, boundary, total)) as steps:
            while not (cancel and cancel.is_set()) and (step := next(steps, None)):
                self._seen[done:] = prompt_ids[done : step.kept]
                done = step.kept
                if done == total:
                    self._full.remember_queries(self._chunks.query_window)
                yield _progress(step, total, reused, time.perf_counter() - started)

    def _steps(self, context: Context, done: int, *ends: int) -> Generator[Step]:
        for end in ends:
            if done < end:
                with closing(cast("Generator[Step]", self._prefill.steps(context, done, end))) as steps:
                    yield from steps
                done = end

    def _rewind(self, length: int) -> None:
        """Every cache forgets the conversation from `length` on."""
        self._full.truncate(length)
        del self._seen[length:]
        for judge in (self._parts.retrieval, self._parts.draft, *self._evicting.values()):
            if judge is not None:
                judge.cache.truncate(length)

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        cancel: threading.Event | None = None,
        *,
        written: Sequence[int] = (),
        boundary: int = 0,
    ) -> Iterator[Event]:
        """Read what is new of the prompt, then answer: PrefillProgress*, RoundDone*, Finished.

        Closing the generator or setting `cancel` leaves the caches at a prefix of the committed tokens.

        Args:
            written: tokens of the answer that are there already: it goes on behind them, and nothing is read that the
                cache holds. Finished has the whole answer; counts, times and the limit of tokens are of what is new.
                Greedy text is what one long answer would have been; so is plain decoding's with a seed.
            boundary: see `read`.
        Raises:
            ContextTooSmall, InvalidSetting, UnsupportedModel, NotEnoughMemory: before anything is read.
        """
        self.use_budget(config.budget)
        decoder = Decoder(config.method, self._parts, config.sampling, config.speculation)
        reused, prefill_seconds = 0, 0.0
        for progress in self.read([*prompt_ids, *written], cancel, boundary=boundary):
            reused, prefill_seconds = progress.reused_tokens, progress.elapsed_seconds
            yield progress
        answer = self._answer(decoder, prompt_ids, config, written)
        try:
            started = time.perf_counter()
            decoder.reset_meters()
            if not (cancel and cancel.is_set()):
                self._relief.retry(decoder.start, decoder.forget)
            prefill_seconds += time.perf_counter() - started
            while answer.stop_reason is None:
                if cancel and cancel.is_set():
                    answer.stop_reason = "cancelled"
                else:
                    yield answer.round()
        finally:
            self._settle(answer.tokens)
        yield answer.finished(reused_tokens=reused, prefill_seconds=prefill_seconds)

    def _answer(
        self, decoder: Decoder, prompt_ids: Sequence[int], config: GenerationConfig, written: Sequence[int] = ()
    ) -> Answer:
        return Answer(
            self.text,
            decoder,
            prompt_ids,
            config,
            written=written,
            context=self.context,
            kv_bytes_per_token=self.info.kv_bytes_per_token,
            relief=self._relief,
            link_calibration=self._link.value if self._link else None,
        )

    def race(
        self,
        prompt_ids: Sequence[int],
        configs: Sequence[GenerationConfig],
        cancel: threading.Event | None = None,
        *,
        seconds: float | None = None,
    ) -> Iterator[LaneEvent]:
        """Several methods answer the same prompt in fair turns: read once, then slices of a quarter of a second.

        A lane's clock runs only while it computes, so the lanes advance side by side and none slows another. Between
        slices a lane's own rows and what its smaller caches hold lie aside; moving them is on no clock. Every lane
        writes what it would write alone, with a seed too: when its turns come changes nothing.

        Args:
            configs: the retrieval budget is one for all lanes, the first one's.
            seconds: a budget on each lane's clock, after which it ends with "time_up"; None for none.
        Raises:
            ContextTooSmall, InvalidSetting, UnsupportedModel, NotEnoughMemory: before anything is read.
        """
        self.use_budget(configs[0].budget)
        decoders = self._lane_decoders(configs)
        reused, prefill_seconds = 0, 0.0
        for progress in self.read(prompt_ids, cancel):
            reused, prefill_seconds = progress.reused_tokens, progress.elapsed_seconds
            yield LaneEvent(None, progress)
        answers = [self._answer(d, prompt_ids, c) for d, c in zip(decoders, configs, strict=True)]
        lanes = [Lane(answer, self._full) for answer in answers]
        running = dict(enumerate(lanes))
        if cancel and cancel.is_set():  # perhaps while reading: nothing may begin on half a text
            for answer in answers:
                answer.stop_reason = "cancelled"
        try:
            while running:
                for number, lane in list(running.items()):
                    if lane.answer.stop_reason is None:
                        for done in lane.slice(cancel, seconds):
                            yield LaneEvent(number, done)
                    if lane.answer.stop_reason is not None:
                        del running[number]
                        ended = lane.answer.finished(reused_tokens=reused, prefill_seconds=prefill_seconds)
                        yield LaneEvent(number, ended)
        finally:
            with ExitStack() as ending:  # in reverse; one that fails keeps none of the others from it
                ending.callback(self._settle, list(prompt_ids))  # as far as they were read
                for lane in lanes:
                    ending.callback(lane.end)

    def _lane_decoders(self, configs: Sequence[GenerationConfig]) -> list[Decoder]:
        """One for each lane. The cache of a lossy method is all its lane has, so two lanes of it need two."""
        before: Counter[str] = Counter()
        decoders = []
        for config in configs:
            parts = replace(self._parts, evicting=partial(self._evicting_judge, lane=before[config.method]))
            decoders.append(Decoder(config.method, parts, config.sampling, config.speculation))
            before[config.method] += 1
        return decoders

    def _settle(self, tokens: list[int]) -> None:
        """Committed tokens [S]: caches keep at most all but the newest."""
        length = min(self._full.length, len(tokens) - 1)
        self._seen = tokens[:length]
        self._rewind(length)
        if self._graphs and self._graphs.failure:
            self._tell_graphs(self._graphs)

    def compare(self, prompt_ids: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> Equality:
        """Greedy token ids of two methods after the same prompt: where they part, and whether rounding explains it.

        It does where both tokens lie within `NEAR_TIE_GAP` of the best one. Behind that place the texts answer
        different prompts, so nothing is compared there. A text that ends where the other goes on is a mismatch.
        """
        shared = common_prefix(list(plain), list(other))
        if shared == len(plain) == len(other):
            return Equality("identical", None, None)
        if shared in (len(plain), len(other)):
            return Equality("mismatch", shared, None)
        prompt = [*prompt_ids, *plain[:shared]]
        for _ in self.read(prompt):
            pass
        logits = self._relief.retry(
            lambda: self._parts.full.logits(Context(prompt), 1), lambda: self._full.truncate(len(prompt) - 1)
        )
        written = logits[0, [plain[shared], other[shared]]].float()
        gap = float(logits[0].float().max() - written.min())
        self._settle(prompt)
        near = gap <= NEAR_TIE_GAP[self.plan.dtype.value]
        return Equality("near_tie" if near else "mismatch", shared, gap)

    def _evicting_judge(self, method: str, lane: int = 0) -> Judge:
        name = f"{method}-{lane + 1}" if lane else method
        if name not in self._evicting:
            policy = LOSSY_POLICIES[method](self._full, self._chunks)  # its rows are no part of the plan
            cache = self._relief.retry(lambda: self._part_of_full(name, policy), lambda: None)
            self._evicting[name] = self._target_judge(name, cache)
        return self._evicting[name]

    def _part_of_full(self, name: str, policy: ChunkPolicy) -> RetrievalCache:
        if self._crew:
            return LedRetrievalCache(self._full, policy, name, self._crew.tell)
        return RetrievalCache(self._full, policy)

    def _target_judge(
        self, name: str, cache: KVCache, graphed: GraphedPasses | None = None, model: nn.Module | None = None
    ) -> Judge:
        lead = self._crew.leading if self._crew else None
        model = self._target.module if model is None else model
        return Judge(name, model, cache, self._target.shape.device, lead, graphed=graphed)

    def _nominal_cost(self, judge: Judge) -> PassCost:
        """What the plan says that a pass costs: a seed draws the same text wherever the plan is the same.

        So the host attends to the share that was asked for, not to one that was measured. A layer that had to move
        changed the plan, and counts from the next round on: the one that broke off has drawn in vain already.
        """
        model = self._draft if judge is self._parts.draft else self._target
        assert model is not None
        weight_bytes, device = self._weights_read.get(judge.name), self.plan.device.value
        if weight_bytes is None:  # counting takes longer than deciding how long a round should be
            weight_bytes = model.weight_bytes
            if judge is self._parts.retrieval and device == "cuda":  # a processor gains nothing by 4 bits
                weight_bytes = sum(parameter.nbytes for parameter in judge.model.parameters())
            self._weights_read[judge.name] = weight_bytes
        layers, away = model.dims.num_layers, judge is self._parts.full
        share = choose_coattention(self.config, device, away=True).value or 0.0
        resident = self.plan.resident_layers if away else None
        reads = PassReads.of(layers, weight_bytes, judge.cache.nbytes, resident, share)
        return pass_cost(device, reads, self.plan.nominal)


def _progress(step: Step, total: int, reused: int, elapsed: float) -> PrefillProgress:
    read = step.cost - reading_cost(reused)
    remaining = max(0.0, reading_cost(total) - step.cost) * elapsed / read if read > 0 else None
    return PrefillProgress(
        done_tokens=step.done,
        ahead_tokens=step.done - step.kept,
        total_tokens=total,
        reused_tokens=reused,
        elapsed_seconds=elapsed,
        remaining_seconds=remaining,
    )
