"""Plays a case on an engine and judges every answer."""

import math
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from core.config import GenerationConfig
from core.decoding.registry import EXACT_METHODS
from core.errors import ContextTooSmall
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Finished, PrefillProgress, RoundDone
from core.generation.session import Conversation
from core.kv_store.bookfile import SUFFIX
from core.kv_store.engine_store import BookStore
from core.kv_store.folder import BookFolder
from tests.exactness.cases import Drawing, Wanted
from tests.exactness.judging import Committed, Listener, Outcome, Reference, ending_of, listening, shown_text
from tests.exactness.worlds import quick, world_of

Tell = Callable[[str], None]


def play(case: Drawing, tell: Tell = lambda line: None, *, stop_on_error: bool = False) -> Outcome:
    """Play one case. Whatever breaks in it is a finding about it, unless `stop_on_error`."""
    started, cpu = perf_counter(), process_time()
    with quick(), listening() as listener, tempfile.TemporaryDirectory() as folder:
        playing = _Playing(case, Path(folder), listener, tell)
        try:
            playing.run()
        except Exception as error:  # of any kind: the suite goes on, and this case is told
            if stop_on_error:
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            playing.wrong(f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")
    counts: Any = playing.outcome.counts
    counts["seconds"], counts["CPU seconds"] = perf_counter() - started, process_time() - cpu
    return playing.outcome


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
    def __init__(self, case: Drawing, folder: Path, listener: Listener, tell: Tell) -> None:
        self.case, self.folder, self.listener, self.tell = case, folder, listener, tell
        self.setup, self.book, self.outcome = case.setup(), case.first_book(), Outcome()
        self.world = world_of(self.setup)
        self.engine, self.text = self.world.engine(self.setup), self.world.text
        self.reference = Reference(self.world, case.number, self.outcome, self.wrong)
        self.conversation = Conversation(tuple(self.text.encode(self.book)))
        self.last = _Written()
        self.files_are_whole = True
        self.step = "setting up"
        self._tested = self._accepted = 0
        self.outcome.counts.update(["cases", f"cases: {self.setup.placement}"])
        for name in ("graphs", "self_draft", "cpu_attention_share"):
            self.outcome.counts[f"cases: {name}"] += bool(getattr(self.setup, name))

    def wrong(self, what: str) -> None:
        self.outcome.mismatches.append(f"case {self.case.name}, {self.step}: {what}")
        self.tell(f"  MISMATCH: {what}")

    def run(self) -> None:
        self.tell(repr(self.setup))
        for number, kind in enumerate(self.case.kinds()):
            self.step = f"action {number} ({kind})"
            self.tell(self.step)
            self.outcome.counts[f"actions: {kind}"] += 1
            getattr(self, kind)()
            held = self.engine.held_tokens
            if self.engine.full_cache.length != len(held):
                self.wrong(f"{self.engine.full_cache.length} rows are held for {len(held)} tokens")
        if self._tested:
            self.outcome.acceptance.append(self._accepted / self._tested)

    # -------------------- what a user does; everything is drawn before anything is done

    def ask(self) -> None:
        self._ask(self.case.question(), self.case.wanted())

    def _ask(self, question: str, wanted: Wanted) -> None:
        self._settle_turn()
        self.conversation = self.conversation.ask(question)
        self._answer(wanted)

    def edit(self) -> None:
        share, question, wanted = self.case.rng.random(), self.case.question(), self.case.wanted()
        self.conversation = self.conversation.until(int(share * len(self.conversation.turns))).ask(question)
        self._answer(wanted)

    def regenerate(self) -> None:
        wanted = self.case.wanted()
        if self.conversation.turns:
            self._answer(wanted)
        else:
            self._ask("Why", wanted)

    def go_on(self) -> None:
        rng, continued, last = self.case.rng, self.case.flavour == "continued", self.last
        alike = continued or rng.random() < 0.7  # by the same method and sampling, as who presses a button does
        share = 1.0 if continued or rng.random() < 0.75 else rng.random()  # of the answer's tokens that stay
        wanted = self.case.wanted()
        if not self.conversation.turns:
            self._ask("Why", wanted)
            return
        kept = round(share * len(last.tokens))
        if kept == len(last.tokens) and last.ended:
            kept -= 1
        whole = kept == len(last.tokens)
        config = wanted.config
        if alike and last.config:
            config = replace(config, method=last.config.method, sampling=last.config.sampling)
        # Behind a cut one, the same seed would draw the same tokens again: right, and of no use to statistics.
        if whole and last.config:
            config = replace(config, seed=last.config.seed)
        u, all_sampled = (last.u, last.all_sampled) if whole else ([], False)
        before = _Written(last.tokens[:kept], min(kept, last.judged_from), u, all_sampled, last.config)
        self._answer(replace(wanted, config=config), before)

    def race(self) -> None:
        rng, budget = self.case.rng, self.case.budget()
        drawn = [self.case.wanted(most=30).config for _ in range(rng.randint(2, 4))]
        interruption = rng.choice(("cancel", "close")) if rng.random() < 0.2 else None
        question, after = self.case.question(), rng.randint(1, 30)
        self._settle_turn()
        self.conversation = self.conversation.ask(question)
        prompt, cancel = self._prompt(), threading.Event()
        configs = [self._possible(replace(config, budget=budget)) for config in drawn]
        new: list[list[Committed]] = [[] for _ in configs]
        finished: dict[int | None, Finished] = {}
        stream: Any = self.engine.race(prompt, configs, cancel)
        if self._is_too_long(stream, prompt):
            return
        for number, event in enumerate(stream):
            if isinstance(event.event, RoundDone):
                new[event.lane] += self.listener.committed(event.event.tokens)
            elif isinstance(event.event, Finished):
                finished[event.lane] = event.event
            if number == after and interruption == "cancel":
                cancel.set()
            elif number == after and interruption == "close":
                stream.close()
                break
        lanes = [_Written() for _ in configs]
        for number, config in enumerate(configs):
            self._judge(prompt, config, lanes[number], new[number], finished.get(number))
        self.last = lanes[0]

    def open(self) -> None:
        self.book = self.case.other_book(self.book)
        self.conversation = Conversation(tuple(self.text.encode(self.book)))
        self.last = _Written()

    def reopen(self) -> None:
        """Another engine gets the book from disk: all of it, some of it, or a file in which a bit is flipped."""
        if self.case.world == "windowed":  # their books are not kept
            self.open()
            return
        rng = self.case.rng
        placement = rng.choice(("resident", "resident", "split", "offloaded"))
        stop_after = rng.randint(1, 3) if rng.random() < 0.2 else None
        damaged = rng.random() if rng.random() < 0.15 else None
        self._settle_turn()
        opening = self.conversation.opening_ids(self.text)
        if len(opening) + 1 + LONGEST_ROUND > self.engine.context:
            self.forget()
            return
        for _ in self.engine.read([*opening, 0]):
            pass
        files = BookFolder(self.folder / "saved")
        store = BookStore(self.engine, files)
        if not store.is_saved(opening):
            for _ in store.keep(store.read_book(opening, ["book"], 9.0)):
                pass
        if damaged is not None:
            self.files_are_whole = False  # what is cancelled before it gets there leaves the damage for the next time
            for file in files.path.glob(f"*{SUFFIX}"):
                content = bytearray(file.read_bytes())
                content[int(damaged * (len(content) - 1))] ^= 16
                file.write_bytes(content)
        other: dict[str, Any] = {"cpu_attention_share": None} if placement == "resident" else {"graphs": False}
        self.setup = replace(self.setup, placement=placement, **other)
        self.engine, cancel = self.world.engine(self.setup), threading.Event()
        store = BookStore(self.engine, BookFolder(self.folder / "saved"))
        for number, _ in enumerate(store.fetch([*opening, 0], cancel), 1):
            if number == stop_after:
                cancel.set()
        fetched = len(self.engine.held_tokens)
        self.tell(f"  {fetched} of {len(opening)} tokens came from the disk")
        self.outcome.counts["tokens: from disk"] += fetched
        if self.engine.held_tokens != opening[:fetched]:
            self.wrong("the file brought other tokens than those of the book")
        expected = len(opening) >= 2 * LONGEST_ROUND and self.files_are_whole and stop_after is None
        if expected and fetched != len(opening):
            self.wrong(f"only {fetched} of {len(opening)} tokens came from the disk")

    def compare(self) -> None:
        """The last answer with itself, and with one that differs somewhere."""
        tokens, share = self.last.tokens, self.case.rng.random()
        if not tokens or not self.conversation.turns:
            return
        prompt, at = self._prompt(), int(share * len(tokens))
        if len(prompt) + len(tokens) + LONGEST_ROUND > self.engine.context:
            return
        if self.engine.compare(prompt, tokens, tokens).verdict != "identical":
            self.wrong("a text is not identical with itself")
        vocabulary = 3000 if self.case.world == "bundled" else 60
        other = [*tokens[:at], (tokens[at] + 7) % vocabulary, *tokens[at + 1 :]]
        if other[at] == tokens[at]:
            return
        found = self.engine.compare(prompt, tokens, other)
        if found.verdict == "identical" or found.index != at:
            self.wrong(f"texts that part at token {at} are said to be {found}")

    def look(self) -> None:
        if self.conversation.turns and len(prompt := self._prompt()) + LONGEST_ROUND <= self.engine.context:
            self.engine.weights_after(prompt)

    def forget(self) -> None:
        self.engine.close()

    # -------------------- answers

    def _possible(self, config: GenerationConfig) -> GenerationConfig:
        """H2O needs the whole cache on the device: elsewhere another lossy method takes its place."""
        other = config.method == "h2o" and not self.engine.full_cache.queries.samples
        return replace(config, method="streamingllm") if other else config

    def _prompt(self) -> list[int]:
        return self.conversation.prompt_ids(self.text)

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
            self.outcome.counts["endings: refused, the context is too small"] += 1
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
        prompt, config, cancel = self._prompt(), self._possible(wanted.config), threading.Event()
        written = written or _Written()
        if wanted.stop_at is not None:
            config = replace(config, stop_strings=self._stop_string(prompt, config, written, wanted.stop_at))
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
        return (found,) if found else ()

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
        whole, counts, ended = [*before, *new], self.outcome.counts, finished.stop_reason if finished else "closed"
        self._judge_ending(prompt, config, before, whole, finished)
        exact, greedy = config.method in EXACT_METHODS, config.sampling.greedy
        kind = "not judged" if not exact else "greedy" if greedy else "sampled"
        if new:
            counts[f"answers: {config.method}" if exact else f"not judged: {config.method}"] += 1
            counts[f"tokens: {kind}"] += len(new)
        level2 = finished.stats.level2 if finished else None
        if level2:
            self._tested += level2.tested
            self._accepted += level2.accepted
        how = f"temperature {config.sampling.temperature:.2f}" if not greedy else "greedy"
        accepted = f"{level2.accepted} of {level2.tested}" if level2 and level2.tested else "none"
        self.tell(f"  {config.method}, {how}: {len(before)} + {len(new)} tokens, {ended}, level 2 {accepted}")
        self.step, step = f"{self.step}, {config.method}, {config.sampling}", self.step
        clean, u = False, [math.nan] * len(new)
        if kind == "greedy":
            clean = self.reference.greedy([*prompt, *whole[: written.judged_from]], whole[written.judged_from :])
        elif kind == "sampled":
            same_seed = written.config is not None and written.config.seed == config.seed and written.all_sampled
            so_far = written.u if same_seed else []
            u = self.reference.sampled([*prompt, *before], committed, config.sampling, config.method, so_far)
        self.step, written.tokens, written.config = step, whole, config
        if not clean:
            written.judged_from = len(whole)
        written.all_sampled = written.all_sampled and kind == "sampled"
        written.u = [*written.u, *u]
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
        self.outcome.counts[f"endings: {finished.stop_reason if finished else 'closed'}"] += 1
        if finished is None:
            return
        if list(finished.token_ids) != whole:
            self.wrong("the last event has other tokens than the rounds")
        if finished.stop_reason == "cancelled":
            if due:
                self.wrong(f"cancelled, though it had ended: {due[1]}")
        elif due != (len(whole), finished.stop_reason):
            self.wrong(f"{finished.stop_reason} after {len(whole)} tokens, but due is {due}")
        expected = shown_text(self.text, whole, config.stop_strings, len(before))
        if finished.text != expected:
            self.wrong(f"the text is {finished.text!r} and should be {expected!r}")
