"""Plays a case on an engine and judges every answer."""

import math
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from core.config import GenerationConfig
from core.decoding.registry import EXACT_METHODS
from core.engine import Engine
from core.errors import ContextTooSmall
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Finished, LaneEvent, PrefillProgress, RoundDone
from core.generation.session import Conversation
from core.kv_store.bookfile import SUFFIX
from core.kv_store.engine_store import BookStore
from core.kv_store.folder import BookFolder
from tests.exactness.cases import (
    Ask,
    Case,
    Compare,
    Continue,
    Edit,
    Forget,
    Look,
    Open,
    Race,
    Regenerate,
    Reopen,
    Wanted,
)
from tests.exactness.judging import Reference, Verdict, ending_of, shown_text
from tests.exactness.listening import Committed, Listener, listening
from tests.exactness.uniformity import Pool
from tests.exactness.worlds import World, quick, world_of

Tell = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """What one case has shown, or several together."""

    cases: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    actions: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)  # answers by method
    endings: Counter[str] = field(default_factory=Counter)  # answers by how they ended
    setups: Counter[str] = field(default_factory=Counter)  # cases by placement and kind of passes
    tokens: Counter[str] = field(default_factory=Counter)
    near_ties: int = 0
    at_a_cut: int = 0
    worst_gap: float = 0.0
    mismatches: list[str] = field(default_factory=list)
    acceptance: list[float] = field(default_factory=list)  # of level 2, by case in which anything was tested
    pool: Pool = field(default_factory=Pool)

    def merge(self, other: "Outcome") -> None:
        """Take in another outcome."""
        self.cases += other.cases
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds
        for mine, theirs in (
            (self.actions, other.actions),
            (self.methods, other.methods),
            (self.endings, other.endings),
            (self.setups, other.setups),
            (self.tokens, other.tokens),
        ):
            mine.update(theirs)
        self.near_ties += other.near_ties
        self.at_a_cut += other.at_a_cut
        self.worst_gap = max(self.worst_gap, other.worst_gap)
        self.mismatches += other.mismatches
        self.acceptance += other.acceptance
        self.pool.merge(other.pool)


def play(case: Case, tell: Tell = lambda line: None, *, stop_on_error: bool = False) -> Outcome:
    """Play one case. Whatever breaks in it is a finding about it, unless `stop_on_error`."""
    started, cpu = perf_counter(), process_time()
    with quick(), listening() as listener, tempfile.TemporaryDirectory() as folder:
        playing = _Playing(case, world_of(case), Path(folder), listener, tell)
        try:
            playing.run()
        except Exception as error:  # of any kind: the suite goes on, and this case is told
            if stop_on_error:
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            playing.wrong(f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")
    outcome = playing.outcome
    outcome.seconds, outcome.cpu_seconds = perf_counter() - started, process_time() - cpu
    return outcome


@dataclass(slots=True)
class _Written:
    """The answer to the last question so far."""

    tokens: list[int] = field(default_factory=list)
    judged_from: int = 0  # its tokens from here on are greedy ones of exact methods
    u: list[float] = field(default_factory=list)  # of its tokens, by token id; NaN: not known
    all_sampled: bool = True  # by exact methods
    config: GenerationConfig | None = None  # of what was written last
    ended: bool = False  # by an end-of-text token


class _Playing:
    def __init__(self, case: Case, world: World, folder: Path, listener: Listener, tell: Tell) -> None:
        self.case, self.world, self.folder, self.listener, self.tell = case, world, folder, listener, tell
        self.setup = case.setup
        self.engine = world.engine(case.setup)
        self.reference = Reference(world, case.setup.context, case.number)
        self.text = world.text
        self.conversation = Conversation(tuple(self.text.encode(case.book)))
        self.last = _Written()
        self.shelf_is_whole = True
        self.step = "setting up"
        self._tested = self._accepted = 0
        self.outcome = Outcome(cases=1)
        setup = case.setup
        self.outcome.setups[setup.placement] += 1
        for name, is_so in (("graphs' twin", setup.graphs), ("4-bit drafting", setup.self_draft)):
            self.outcome.setups[name] += is_so
        self.outcome.setups["host attends"] += bool(setup.cpu_attention_share)

    def wrong(self, what: str) -> None:
        self.outcome.mismatches.append(f"case {self.case.name}, {self.step}: {what}")
        self.tell(f"  MISMATCH: {what}")

    def run(self) -> None:
        for number, action in enumerate(self.case.actions):
            kind = type(action).__name__
            self.step = f"action {number} ({kind})"
            self.tell(f"{number} {_short(action)}")
            self.outcome.actions[kind] += 1
            getattr(self, f"_{kind.lower()}")(action)
            self._check_what_is_held()
        if self._tested:
            self.outcome.acceptance.append(self._accepted / self._tested)

    # -------------------- actions

    def _ask(self, action: Ask) -> None:
        self._settle_turn()
        self.conversation = self.conversation.ask(action.question)
        self._answer(action.wanted)

    def _edit(self, action: Edit) -> None:
        turn = int(action.turn * len(self.conversation.turns))
        self.conversation = self.conversation.until(turn).ask(action.question)
        self._answer(action.wanted)

    def _regenerate(self, action: Regenerate) -> None:
        if self._is_asked(action.wanted):
            self._answer(action.wanted)

    def _continue(self, action: Continue) -> None:
        if not self._is_asked(action.wanted):
            return
        last, wanted = self.last, action.wanted
        kept = round(action.share * len(last.tokens))
        if kept == len(last.tokens) and last.ended:
            kept -= 1
        whole = kept == len(last.tokens)
        kept_text = shown_text(self.text, last.tokens[:kept], ())
        stops = tuple(stop for stop in wanted.config.stop_strings if stop not in kept_text)
        config = replace(wanted.config, stop_strings=stops)
        if action.alike and last.config:
            config = replace(config, method=last.config.method, sampling=last.config.sampling)
        # Behind a cut one, the same seed would draw the same tokens again: right, and of no use to statistics.
        seed = last.config.seed if whole and last.config else config.seed
        wanted = replace(wanted, config=replace(config, seed=seed))
        before = _Written(
            last.tokens[:kept],
            min(kept, last.judged_from),
            last.u if whole else [],
            last.all_sampled and whole,
            last.config,
        )
        self._answer(wanted, before)

    def _race(self, action: Race) -> None:
        self._settle_turn()
        self.conversation = self.conversation.ask(action.question)
        prompt = self._prompt()
        configs = [self._possible(lane.config) for lane in action.lanes]
        new: list[list[Committed]] = [[] for _ in configs]
        finished: dict[int, Finished] = {}
        cancel = threading.Event()
        stream: Any = self.engine.race(prompt, configs, cancel)
        if self._is_too_long(stream, prompt):
            return
        for number, event in enumerate(stream):
            assert isinstance(event, LaneEvent)
            if event.lane is not None:
                if isinstance(event.event, RoundDone):
                    new[event.lane] += self.listener.committed(event.event.tokens)
                elif isinstance(event.event, Finished):
                    finished[event.lane] = event.event
            if number == action.after and action.interruption == "cancel":
                cancel.set()
            elif number == action.after and action.interruption == "close":
                stream.close()
                break
        for number, config in enumerate(configs):
            written = _Written()
            self._judge(prompt, config, written, new[number], finished.get(number))
            if number == 0:
                self.last = written

    def _open(self, action: Open) -> None:
        self.conversation = Conversation(tuple(self.text.encode(action.book)))
        self.last = _Written()

    def _reopen(self, action: Reopen) -> None:
        self._settle_turn()
        opening = self.conversation.opening_ids(self.text)
        if len(opening) + 1 + LONGEST_ROUND > self.engine.context:
            self._forget(Forget())
            return
        for _ in self.engine.read([*opening, 0]):
            pass
        shelf = BookFolder(self.folder / "shelf")
        store = BookStore(self.engine, shelf)
        if not store.is_saved(opening):
            for _ in store.keep(store.read_book(opening, ["book"], 9.0)):
                pass
        if action.damaged is not None:
            self.shelf_is_whole = False  # what is cancelled before it gets there leaves the damage for the next time
            for file in shelf.path.glob(f"*{SUFFIX}"):
                content = bytearray(file.read_bytes())
                content[int(action.damaged * (len(content) - 1))] ^= 16
                file.write_bytes(content)
        self.setup = replace(self.setup, placement=action.placement)
        if action.placement == "resident":
            self.setup = replace(self.setup, cpu_attention_share=None)
        else:
            self.setup = replace(self.setup, graphs=False)
        self.engine = self.world.engine(self.setup)
        cancel = threading.Event()
        for number, _ in enumerate(
            BookStore(self.engine, BookFolder(self.folder / "shelf")).fetch([*opening, 0], cancel)
        ):
            if number + 1 == action.stop_after:
                cancel.set()
        fetched = len(self.engine.held_tokens)
        self.tell(f"  {fetched} of {len(opening)} tokens came from the disk")
        self.outcome.tokens["from disk"] += fetched
        if self.engine.held_tokens != opening[:fetched]:
            self.wrong("the shelf brought other tokens than those of the book")
        expected = len(opening) >= 2 * LONGEST_ROUND and self.shelf_is_whole and action.stop_after is None
        if expected and fetched != len(opening):
            self.wrong(f"only {fetched} of {len(opening)} tokens came from the disk")

    def _compare(self, action: Compare) -> None:
        tokens = self.last.tokens
        if not tokens or not self.conversation.turns:
            return
        prompt = self._prompt()
        if len(prompt) + len(tokens) + LONGEST_ROUND > self.engine.context:
            return
        if self.engine.compare(prompt, tokens, tokens).verdict != "identical":
            self.wrong("a text is not identical with itself")
        at = int(action.at * len(tokens))
        vocabulary = 3000 if self.case.world == "bundled" else 60
        other = [*tokens[:at], (tokens[at] + 7) % vocabulary, *tokens[at + 1 :]]
        if other[at] == tokens[at]:
            return
        found = self.engine.compare(prompt, tokens, other)
        if found.verdict == "identical" or found.index != at:
            self.wrong(f"texts that part at token {at} are said to be {found}")

    def _look(self, action: Look) -> None:
        if self.conversation.turns:
            prompt = self._prompt()
            if len(prompt) + LONGEST_ROUND <= self.engine.context:
                self.engine.weights_after(prompt)

    def _forget(self, action: Forget) -> None:
        self.engine.close()

    # -------------------- answers

    def _possible(self, config: GenerationConfig) -> GenerationConfig:
        """H2O needs the whole cache on the device: elsewhere another lossy method takes its place."""
        other = config.method == "h2o" and not self.engine.full_cache.queries.samples
        return replace(config, method="streamingllm") if other else config

    def _prompt(self) -> list[int]:
        return self.conversation.prompt_ids(self.text)

    def _is_asked(self, wanted: Wanted) -> bool:
        """Whether there is a question; asks one if not."""
        if self.conversation.turns:
            return True
        self._ask(Ask("Why", wanted))
        return False

    def _settle_turn(self) -> None:
        """The answer so far becomes part of the conversation, if there is a question without one."""
        if self.conversation.turns and self.conversation.turns[-1].answer_ids is None:
            self.conversation = self.conversation.answered(tuple(self.last.tokens), self.text.eos_ids)
            self.last = _Written()

    def _is_too_long(self, stream: Iterator[object], prompt: Sequence[int]) -> bool:
        """Whether the conversation is beyond the context, which must be said at once; then a question is taken back."""
        if len(prompt) + LONGEST_ROUND <= self.engine.context:
            return False
        held = self.engine.held_tokens
        try:
            next(stream)
        except ContextTooSmall:
            self.outcome.endings["refused: the context is too small"] += 1
            if self.engine.held_tokens != held:
                self.wrong("a refused question changed what the cache holds")
        else:
            self.wrong(f"{len(prompt)} tokens were accepted by a context of {self.engine.context}")
        self.conversation = self.conversation.until(max(0, len(self.conversation.turns) // 2 - 1))
        if not self.conversation.turns:  # the book itself may be too long
            self.conversation = Conversation(self.conversation.book_ids[: self.engine.context // 3])
        self.last = _Written()
        if self.conversation.turns:
            self.conversation = self.conversation.until(len(self.conversation.turns) - 1)
        return True

    def _answer(self, wanted: Wanted, written: _Written | None = None) -> None:
        prompt, config = self._prompt(), self._possible(wanted.config)
        written = written or _Written()
        if wanted.stop_at is not None:
            config = replace(config, stop_strings=self._stop_string(prompt, config, written, wanted.stop_at))
        cancel = threading.Event()
        boundary = len(self.conversation.opening_ids(self.text)) if wanted.boundary else 0
        was_held = self.engine.cached_prefix([*prompt, *written.tokens])
        stream: Any = self.engine.generate(prompt, config, cancel, written=tuple(written.tokens), boundary=boundary)
        if self._is_too_long(stream, [*prompt, *written.tokens]):
            return
        counted = RoundDone if wanted.interruption in ("cancel", "close") else PrefillProgress
        new: list[Committed] = []
        finished: Finished | None = None
        reused, seen = None, 0
        for event in stream:
            if isinstance(event, PrefillProgress) and reused is None:
                reused = event.reused_tokens
            if isinstance(event, RoundDone):
                new += self.listener.committed(event.tokens)
            elif isinstance(event, Finished):
                finished = event
            if wanted.interruption and isinstance(event, counted):
                seen += 1
                if seen > wanted.after:
                    cancel.set()
                    if wanted.interruption.startswith("close"):
                        stream.close()
                        break
        total = len(prompt) + len(written.tokens) - 1
        voting = max(0, total - self.setup.retrieval.query_window)  # read again where their queries are gone
        if reused not in (min(was_held, total), min(was_held, voting)):
            self.wrong(f"{was_held} tokens were there, {reused} were not read again")
        self._judge(prompt, config, written, new, finished)
        self.last = written

    def _stop_string(
        self, prompt: Sequence[int], config: GenerationConfig, written: _Written, at: float
    ) -> tuple[str, ...]:
        """A few letters of what the answer will say, if it is greedy, so that it ends there."""
        whole = [*prompt, *written.tokens]
        room = self.engine.context - LONGEST_ROUND - len(whole)
        if room < 0 or config.method not in EXACT_METHODS or not config.sampling.greedy:
            return config.stop_strings
        text = self.text.decode(self.reference.plain(whole, config.max_new_tokens))
        start = int(at * len(text))
        found = text[start : start + 2 + start % 2]
        return (found,) if found and found not in self.text.decode(written.tokens) else ()

    def _judge(
        self,
        prompt: list[int],
        config: GenerationConfig,
        written: _Written,
        committed: Sequence[Committed],
        finished: Finished | None,
    ) -> None:
        """Judge new tokens behind `written`, and add them to it."""
        before, new = list(written.tokens), [one.record.token_id for one in committed]
        whole = [*before, *new]
        self._judge_ending(prompt, config, before, whole, finished)
        exact, greedy = config.method in EXACT_METHODS, config.sampling.greedy
        name = config.method if exact else f"{config.method} (not judged)"
        if new:
            self.outcome.methods[name] += 1
            kind = "not judged" if not exact else "greedy" if greedy else "sampled"
            self.outcome.tokens[kind] += len(new)
        if finished:
            self._count_acceptance(finished)
        verdict = Verdict()
        if exact and greedy:
            verdict = self.reference.greedy([*prompt, *whole[: written.judged_from]], whole[written.judged_from :])
        elif exact:
            same_seed = written.config is not None and written.config.seed == config.seed and written.all_sampled
            so_far = written.u if same_seed else []
            verdict = self.reference.sampled([*prompt, *before], committed, config.sampling, config.method, so_far)
        for what in verdict.mismatches:
            self.wrong(f"{config.method}, {'greedy' if greedy else config.sampling}: {what}")
        self.outcome.near_ties += verdict.near_ties
        self.outcome.at_a_cut += verdict.at_a_cut
        self.outcome.worst_gap = max(self.outcome.worst_gap, verdict.worst_gap)
        self.outcome.tokens["by transformers' generate too"] += verdict.by_stock
        if verdict.stretch:
            self.outcome.pool.add(verdict.stretch)
        self.tell(
            f"  {config.method}, {'greedy' if greedy else f'temperature {config.sampling.temperature:.2f}'}: "
            f"{len(before)} + {len(new)} tokens, {finished.stop_reason if finished else 'closed'}, "
            f"level 2 {_acceptance(finished)}"
        )
        written.tokens = whole
        if not (exact and greedy) or verdict.mismatches or verdict.near_ties:
            written.judged_from = len(whole)
        written.all_sampled = written.all_sampled and exact and not greedy
        written.u = [*written.u, *(verdict.u or [math.nan] * len(new))]
        written.config = config
        written.ended = bool(whole) and whole[-1] in self.text.eos_ids

    def _judge_ending(
        self,
        prompt: list[int],
        config: GenerationConfig,
        before: list[int],
        whole: list[int],
        finished: Finished | None,
    ) -> None:
        due = ending_of(self.text, len(prompt), len(before), whole, config, self.engine.context)
        if due and due[0] < len(whole):
            self.wrong(f"{len(whole)} tokens, but it ends after {due[0]}: {due[1]}")
        if finished is None:
            self.outcome.endings["closed"] += 1
            return
        self.outcome.endings[finished.stop_reason] += 1
        if list(finished.token_ids) != whole:
            self.wrong("the last event has other tokens than the rounds")
        if finished.stop_reason == "cancelled":
            if due:
                self.wrong(f"cancelled, though it had ended: {due[1]}")
        elif due != (len(whole), finished.stop_reason):
            self.wrong(f"{finished.stop_reason} after {len(whole)} tokens, but due is {due}")
        expected = shown_text(self.text, whole, config.stop_strings)
        if finished.text != expected:
            self.wrong(f"the text is {finished.text!r} and should be {expected!r}")

    def _count_acceptance(self, finished: Finished) -> None:
        if level2 := finished.stats.level2:
            self._tested += level2.tested
            self._accepted += level2.accepted

    def _check_what_is_held(self) -> None:
        """The full cache holds a prefix of what was last read and written, and knows it."""
        engine: Engine = self.engine
        held = engine.held_tokens
        if engine.full_cache.length != len(held):
            self.wrong(f"{engine.full_cache.length} rows are held for {len(held)} tokens")


def _acceptance(finished: Finished | None) -> str:
    level2 = finished.stats.level2 if finished else None
    return f"{level2.accepted} of {level2.tested}" if level2 and level2.tested else "none"


def _short(action: object) -> str:
    text = repr(action)
    return text if len(text) < 400 else f"{text[:300]} ... {text[-80:]}"
