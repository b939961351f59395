"""The engine: owns the weights, caches and random numbers of one conversation at a time, and emits events.

Only tokens behind the common prefix with the last prompt are read, so a second question never reads the book again.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.oom_fallback import give_back
from core.caches.tokens import common_prefix
from core.config import EngineConfig, GenerationConfig
from core.decoding.methods import Decoder, models_of
from core.engine_builder import LoadedPair, PairFiles, planned_pair
from core.engine_info import NEAR_TIE_GAP, Equality, engine_info, graphs_choice
from core.errors import ContextTooSmall, InvalidSetting, NotEnoughMemory, let_go
from core.generation.decode_loop import LONGEST_ROUND, Answer, Question
from core.generation.events import Event, LaneEvent, PrefillProgress
from core.generation.levels import Levels, LoadedModels
from core.generation.placement import Placement
from core.generation.prefill import Prefill
from core.generation.text import ChatText
from core.models.hub.catalog import ModelEntry
from core.models.layerwise import DecoderLayers
from core.models.loader import LoadedModel
from core.ops.graphs import Graphs
from core.planning.choices import Choice
from core.planning.fit import begun
from core.planning.plan import Plan

TALK = 4096  # tokens of questions and answers for which there is room behind a text that is read anew


class Engine:
    """One loaded model pair and the caches of one conversation. Not thread-safe: one thread owns it.

    Args:
        plan: made for these models.
        text: the chat template and the tokenizer.
        about: the catalogue's entry of the model, for display.
        offload: replaces the plan's placement. graphs: record passes.
    """

    def __init__(
        self,
        config: EngineConfig,
        plan: Plan,
        text: ChatText,
        models: LoadedModels,
        about: ModelEntry | None = None,
        *,
        offload: Offload | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.config = config = plan.settled(config)
        self.text, self._models, self._graphs, self._offload = text, models, graphs, offload
        self._layers = DecoderLayers.of(models.target.module) if models.ranks is None else None
        if self._layers is None and plan.prefill_block.value:
            because = "chunk by chunk, as the layers of this model are not called one by one"
            plan = replace(plan, prefill_block=Choice(0, because))
        self.context = plan.context.value  # most tokens of book, conversation and answer together
        first = begun(plan) if offload is None else plan
        self.info = engine_info(first, models, about, text)
        self._lay_out(first)
        if graphs is not None:
            self._levels.try_graphs()
            self._tell()

    def _lay_out(self, plan: Plan) -> None:
        """Free the caches that there are, and allocate those of a plan."""
        models, config = self._models, self.config
        if self._graphs is not None:
            for name in ("full", "retrieval", "draft"):
                self._graphs.forget(name)
        for own in ("_levels", "_placement", "_prefill"):
            self.__dict__.pop(own, None)
        give_back(models.target.shape.device)
        self._placement = Placement(plan, config, models.ranks, self._tell)
        self._levels = Levels(config, self._placement, models, self._offload, self._graphs)
        self._levels.may_move_layers()
        self._prefill = Prefill(self._levels, self._layers, self.info.pace)
        self._placement.follow(self._levels.full)

    def make_room(self, prompt_ids: Sequence[int], room: int) -> None:
        """Lay the caches out for a prompt, as the plan says; a changed layout is empty.

        Call it before decoders are made, which belong to a layout. A prompt that is too long changes nothing.

        Args:
            room: most tokens of prompt and answer together.
        Raises:
            NotEnoughMemory: the device has no room for the caches, whatever the plan says.
        """
        plan, new = self.plan, 2 * self.cached_prefix(prompt_ids) < len(prompt_ids)
        needed = max(len(prompt_ids) + (TALK if new else 0), room) + LONGEST_ROUND
        if plan.longer and plan.capacity < needed and len(prompt_ids) + LONGEST_ROUND <= self.context:
            wanted = plan.longer
        elif new and not plan.longer and needed <= plan.most_resident:
            wanted = begun(plan)
        else:
            return
        try:
            return self._lay_out(wanted)
        except NotEnoughMemory as error:
            let_go(error)  # of what was allocated
            failure = error
        self._lay_out(plan)
        raise failure

    @classmethod
    def load(cls, config: EngineConfig, files: PairFiles | None = None) -> "Engine":
        """Plan, then load the models that the settings name, or these. Raises what `planned_pair` raises."""
        pair, plan = planned_pair(config, files)
        return cls.of(pair, config, plan)

    @classmethod
    def of(cls, pair: LoadedPair, config: EngineConfig, plan: Plan) -> "Engine":
        """An engine for weights that are loaded. Raises NotEnoughMemory where the device has no room for the caches."""
        entry = pair.files.entry
        text = ChatText(pair.tokenizer, pair.ends, entry.chat_template, entry.template_options)
        return cls(config, plan, text, pair, entry, graphs=pair.recorder(config))

    @property
    def plan(self) -> Plan:
        """The present plan."""
        return self._placement.plan

    def _tell(self) -> None:
        """Update `info` after layers have moved, or passes were recorded."""
        now, graphs = self._placement, self.info.graphs
        if self._graphs is not None:
            ranks = self._models.ranks
            graphs = graphs_choice(self._graphs, without_sums=ranks is not None and ranks.graphs is None)
        link = now.link if now.host_memory else None
        self.info = replace(self.info, plan=now.plan, host_memory=now.host_memory, link=link, graphs=graphs)

    def close(self) -> None:
        """Forget the conversation; memory is freed with the engine."""
        self._prefill.rewind(0)

    def knows(self, token_ids: Sequence[int]) -> bool:
        """Whether all of these tokens are in the model's vocabulary."""
        return all(0 <= token < self._levels.parts.vocab for token in token_ids)

    def cached_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Number of leading tokens of this prompt that need not be read again."""
        return self._prefill.cached_prefix(prompt_ids)

    def use_budget(self, budget: int | None) -> int:
        """Set the budget of the retrieval cache, and of the lossy caches, from the next answer on; None: as loaded.

        Returns:
            The budget in use. A new budget frees and allocates the rows, and chunks are chosen again.
        Raises:
            InvalidSetting: core cannot use this budget. NotEnoughMemory: the plan has no room for it.
        """
        return self._levels.use_budget(budget)

    @property
    def full_cache(self) -> FullCache:
        """The target's full cache, for code that saves it to disk."""
        return self._levels.full

    @property
    def held_tokens(self) -> list[int]:
        """The tokens whose keys and values the full cache holds."""
        return self._prefill.held_tokens

    @property
    def target(self) -> LoadedModel:
        """The loaded target."""
        return self._models.target

    @contextmanager
    def refilled(self, token_ids: Sequence[int], *, logged: int, room: int = 0) -> Iterator[FullCache]:
        """Inside, the caller writes the rows of these tokens; see `FullCache.refilled`. Committed rows count.

        `room`: as in `make_room`, of the answer that follows: another layout would be empty again.
        """
        self.make_room(token_ids, room)
        self._prefill.rewind(0)
        try:
            with self._levels.full.refilled(logged):
                yield self._levels.full
        finally:
            self._prefill.settle([*token_ids, 0])

    def retrieves(self, method: str) -> bool:
        """Whether a method drafts with the retrieval cache, so that `chunk_weights` describes its answers."""
        return self._levels.parts.retrieval in models_of(method, self._levels.parts)

    def chunk_weights(self) -> torch.Tensor:
        """How much each chunk counted when the retrieval cache was filled, [C] float32; empty: no chunk was chosen."""
        return self._levels.chunk_weights()

    @property
    def holds_all_chunks(self) -> bool:
        """Whether the retrieval cache has room for every chunk, so that there was no choice to make."""
        return self._levels.holds_all_chunks

    def weights_after(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> torch.Tensor | None:
        """The `chunk_weights` that the answer to a prompt would have; None: cancelled.

        Reads the part of the prompt that is new, and leaves the caches at its end. Raises what `read` raises.
        """
        for _ in self.read(prompt_ids, cancel):
            pass
        if cancel and cancel.is_set():
            return None
        self._levels.oom_fallback.retry(self._levels.retrieval.select, lambda: self._levels.retrieval.truncate(0))
        return self.chunk_weights()

    def read(
        self,
        prompt_ids: Sequence[int],
        cancel: threading.Event | None = None,
        *,
        boundary: int = 0,
        room: int = 0,
    ) -> Generator[PrefillProgress, None, PrefillProgress]:
        """Prefill: bring the full cache to all tokens but the last. `cancel` ends it early; what was read stays.

        Args:
            room: as in `make_room`.
            boundary: tokens of the book. If it is not read yet, a step ends there, and the cache marks that length.
        Returns:
            The last event.
        Raises:
            ContextTooSmall: the prompt leaves no room for an answer.
        """
        needed = len(prompt_ids) + LONGEST_ROUND
        if needed > self.context:
            raise ContextTooSmall(needed, self.context, possible=self.info.most_context)
        if not prompt_ids:
            raise InvalidSetting("The prompt is empty.", hint="Give it a token.")
        self.make_room(prompt_ids, room)
        return (yield from self._prefill.read(prompt_ids, cancel, boundary))

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        cancel: threading.Event | None = None,
        *,
        written: Sequence[int] = (),
        boundary: int = 0,
    ) -> Generator[Event]:
        """Read the new part of the prompt, then answer: PrefillProgress*, RoundDone*, Finished.

        Closing the generator or setting `cancel` leaves the caches at a prefix of the committed tokens.

        Args:
            written: tokens of the answer that exist already; the answer continues behind them. Finished has the whole
                answer; counts, times and token limit cover the new part.
                Greedy text equals that of one long answer; so does plain decoding's with a seed.
            boundary: see `read`.
        Raises:
            ContextTooSmall, InvalidSetting, UnsupportedModel, NotEnoughMemory: before anything is read.
        """
        answer = yield from self.opened(Question(prompt_ids, config, cancel, boundary), written)
        try:
            while answer.stop_reason is None:
                if cancel and cancel.is_set():
                    answer.stop_reason = "cancelled"
                else:
                    yield answer.round()
        finally:
            self.settle(answer.tokens)
        yield answer.finished()

    def opened(self, question: Question, written: Sequence[int] = ()) -> Generator[PrefillProgress, None, Answer]:
        """Read a prompt, and return its answer, ready for the first round; `settle` its tokens when it has ended.

        Answers of several engines for the same models can be decoded together (`core.generation.together`).
        """
        prompt_ids, config, cancel, boundary = question
        whole, room = [*prompt_ids, *written], question.room + len(written)
        self.make_room(whole, room)
        self.use_budget(config.budget)
        decoder = self._levels.decoder(config, self.text, prompt_ids, written)
        read = yield from self.read(whole, cancel, boundary=boundary, room=room)
        return self._answer(decoder, question, read, written).begin(cancel)

    def _answer(
        self, decoder: Decoder, question: Question, read: PrefillProgress, written: Sequence[int] = ()
    ) -> Answer:
        return Answer(
            self.text,
            decoder,
            question.prompt_ids,
            question.config,
            written=written,
            read=read,
            context=self._levels.full.capacity,
            kv_bytes_per_token=self.info.kv_bytes_per_token,
            oom_fallback=self._levels.oom_fallback,
            link_calibration=self._placement.link.value if self._placement.link else None,
        )

    def race(
        self,
        prompt_ids: Sequence[int],
        configs: Sequence[GenerationConfig],
        cancel: threading.Event | None = None,
        *,
        seconds: float | None = None,
        boundary: int = 0,
    ) -> Generator[LaneEvent]:
        """Several methods answer the same prompt in fair turns: read once, then slices of a quarter of a second.

        A lane's clock runs only while it computes. Between slices its rows and the contents of its smaller caches are
        set aside, which no clock counts. Every lane writes what it would write alone, with a seed too.

        Args:
            configs: all lanes have the retrieval budget of the first.
            seconds: a budget on each lane's clock, after which it ends with "time_up"; None: no limit.
            boundary: see `read`.
        Raises what `generate` raises.
        """
        from core.generation.interleave import raced

        room = len(prompt_ids) + max(config.max_new_tokens for config in configs)
        self.make_room(prompt_ids, room)
        self.use_budget(configs[0].budget)
        decoders = []
        for number, config in enumerate(configs):
            lane = sum(other.method == config.method for other in configs[:number])
            decoders.append(self._levels.decoder(config, self.text, prompt_ids, lane=lane))
        for read in self.read(prompt_ids, cancel, boundary=boundary, room=room):
            yield LaneEvent(None, read)
        pairs = zip(decoders, configs, strict=True)
        answers = [self._answer(decoder, Question(prompt_ids, config), read) for decoder, config in pairs]
        try:
            yield from raced(answers, self._levels.full, cancel, seconds)
        finally:
            self.settle(list(prompt_ids))

    def settle(self, tokens: list[int]) -> None:
        """Set the committed tokens [S]; caches keep at most all but the newest."""
        self._prefill.settle(tokens)
        if self._graphs is not None:
            self._tell()

    def compare(self, prompt_ids: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> Equality:
        """Compare greedy texts (token ids) after one prompt: where they differ, and whether rounding explains it.

        Rounding explains it if both tokens lie within `NEAR_TIE_GAP` of the best one. Nothing is compared behind the
        first difference. A text that ends where the other goes on is a mismatch.
        """
        shared = common_prefix(list(plain), list(other))
        if shared in (len(plain), len(other)):
            return Equality.of_ends(shared, len(plain), len(other))
        prompt = [*prompt_ids, *plain[:shared]]
        for _ in self.read(prompt):
            pass
        gap = self._levels.gap(prompt, (plain[shared], other[shared]))
        self.settle(prompt)
        near = gap <= NEAR_TIE_GAP[self.plan.dtype.value]
        return Equality("near_tie" if near else "mismatch", shared, gap)

    def answer_together(self, questions: Sequence[Question]) -> Generator[LaneEvent]:
        """Answer questions about one text together, in one pass where they need the same model.

        Each answer is what it would be alone, with a seed too. The text is read once, and its rows are not copied.
        Lanes are numbers of questions; each has the events of `generate`. Raises what `generate` raises.
        """
        from core.generation.together import answered_together, one_by_one, shared_tokens

        room = max(question.room for question in questions)
        self.make_room(questions[0].prompt_ids, room)
        number, shared = self.together(questions).value, shared_tokens(questions)
        if number > 1:
            yield from answered_together(lambda question: self._branch(question, shared, room), questions, number)
        else:
            yield from one_by_one(self.generate, questions)

    def together(self, questions: Sequence[Question]) -> Choice[int]:
        """How many of the questions `answer_together` answers at a time, and why not more."""
        from core.generation.together import number_together

        return number_together(self._levels, self._models, self.plan, questions)

    def _branch(self, question: Question, shared: int, room: int) -> Generator[PrefillProgress, None, Answer]:
        """As `opened`, in caches that continue the first `shared` tokens of the full cache."""
        prompt_ids, config, cancel, boundary = question
        decoder = self._levels.decoder(config, self.text, prompt_ids)
        read = yield from self.read(prompt_ids, cancel, boundary=boundary, room=room)
        if not question.cancelled:
            levels = self._levels.branch(shared, question.room - shared + LONGEST_ROUND)
            levels.use_budget(config.budget)
            decoder = levels.decoder(config, self.text, prompt_ids)
        self._prefill.rewind(min(shared, self._levels.full.length))  # other answers continue there
        return self._answer(decoder, question, read).begin(cancel)
