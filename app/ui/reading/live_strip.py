"""What an answer does while nothing but its figures tells it: the strip of figures, and the line in its bubble."""

from collections.abc import Sequence
from typing import Any

from app import formats
from app.context.open_book import Book
from app.conversations.exchange import Exchange
from app.runtime.events import AnswerBegun, Waiting, WorkerEvent
from app.runtime.recording import streamed_text
from app.runtime.sessions import Session
from app.ui import render
from core.decoding.registry import METHODS, PLAIN, REMOTE, is_exact, method_label
from core.decoding.stats import DecodeStats, LevelStats, joined
from core.generation.events import Finished, PrefillProgress, RoundDone, StopReason

ENDINGS: dict[StopReason, str] = {
    "end_of_text": "Complete",
    "stop_string": "Complete",
    "max_new_tokens": "At the limit of tokens",
    "context_full": "The context is full",
    "repeating": "It went on repeating itself",
    "time_up": "Time is up",
    "cancelled": "Stopped",
}
UNTIL = {  # what a job waits for
    "loading": " until the model is loaded",
    "opening": " until the book is open",
    "reading": " until the book is read",
    "counting": " until the book is counted",
    "saving": " until the book is on disk",
    "survey": "",
    "answer": " until this page’s answer is written",
    "race": " until this page’s race has ended",
}
ASK = "Ask a question: the figures of the answer appear here."
ACCEPTED = (
    "Of the guessed tokens, the share that was accepted: of the draft's by the pages at hand (retrieval), "
    "and of what these let pass by the whole book."
)
LEVEL1 = "Of the draft's guesses that the retrieval cache tested, the share it accepted."
LEVEL2 = "Of the guesses that were tested against the whole book, the share that was accepted."
PASSES = "Tokens committed per pass over the full cache. Plain decoding gets exactly 1."
REREAD = "Tokens of the book that had to be read again for this answer."
SPEED = "Decoding only; the time to read the prompt is not in it."
LONG_SECONDS = 20.0  # of a whole reading, from which on its end is worth a notice
LEAST_SECONDS = 2.0  # shorter waits are not counted down
BACK = '<p class="quiet">Stop puts the question back into its box, to be changed.</p>'


class LiveStrip:
    """One answer: apply its events, then ask for the HTML. Without a method: of no answer."""

    def __init__(self, method: str = "") -> None:
        self.method, self.stats = method, DecodeStats()
        self.progress: PrefillProgress | None = None
        self._waiting: Waiting | None = None
        self._begun: AnswerBegun | None = None
        self._finished: Finished | None = None

    def apply(self, events: Sequence[WorkerEvent]) -> "LiveStrip":
        """Apply events."""
        for event in events:
            match event:
                case Waiting():
                    self._waiting = event
                case AnswerBegun():
                    self._waiting, self._begun = None, event
                case PrefillProgress():
                    self.progress = event
                case RoundDone(stats=stats):
                    self.stats = stats
                case Finished():
                    self._finished, self.method, self.stats = event, event.method, event.stats
        return self

    # -------------------- the strip

    def html(self, num_book: int = 0, num_reread: int | None = None) -> str:
        """The strip; of a past answer, `num_book` tokens were open and `num_reread` of them read again for it."""
        name, share = method_label(self.method), None
        badges = render.chip(name, tone="method") if name else ""
        if is_exact(self.method):
            badges += render.exactness(True)
        if self.progress is not None and not self.stats.new_tokens and self._finished is None:
            share = self.progress.done_tokens / max(self.progress.total_tokens, 1)
        if self._begun is not None:
            num_book = self._begun.num_book
            num_reread = self._reread if self.progress else None
        status = self._status()
        bar = render.bar(share or 0, status if share else "", tone="thin")
        state = "running" if self.method and self._finished is None else "resting"
        state += "" if self.method else " empty"
        tiles = "".join(self._tiles(num_book, num_reread))
        return (
            f'<section class="strip {state}" aria-label="Live figures">'
            f'<div class="strip-head"><span class="dot"></span>'
            f'<span class="status">{render.escape(status)}{self._amount()}</span>{self._brief()}'
            f'<span class="badges">{badges}</span></div>{bar}<div class="tiles">{tiles}</div></section>'
        )

    @property
    def _reread(self) -> int:
        assert self._begun is not None and self.progress is not None, "read again before anything is read"
        return max(0, min(self._begun.num_read_before, self._begun.num_book) - self.progress.reused_tokens)

    def _status(self) -> str:
        if self._finished is not None:
            ending = ENDINGS[self._finished.stop_reason].replace("Complete", "Answer complete")
            return ending + (" while it was thinking" if self._finished.in_thought else "")
        if self.stats.new_tokens:
            what = "Writing" if self.stats.answer_tokens or not self.stats.thought_tokens else "Thinking"
            return f"{what} · {formats.plural(self.stats.new_tokens, 'token')}"
        if self._begun is not None and self.progress is not None:
            return reading_line(self.progress, self._begun.num_book, self._begun.num_read_before)
        if self._begun is not None:
            return "Reading the question"
        if self._waiting is not None:
            return waiting_line(self._waiting)
        return "Waiting for its turn" if self.method else ASK

    def _amount(self) -> str:
        """How much was written; a folded strip has no room for it, and the answer says it too."""
        if self._finished is None or not self.stats.new_tokens:
            return ""
        told = f" · {formats.plural(self.stats.new_tokens, 'token')} in {formats.duration(self.stats.decode_seconds)}"
        if self.stats.thought_tokens and self._finished.text:
            told += f", {formats.count(self.stats.thought_tokens)} of them thought"
        return f'<span class="amount">{told}</span>'

    @property
    def _guesser(self) -> str:
        """Who guesses at level 1."""
        method = METHODS.get(self.method)
        if method is None or not method.lookup_at_least:
            return "draft"
        return "draft and lookups" if method.needs_draft else "lookups"

    def _brief(self) -> str:
        """Speed and acceptance in a few words, for the folded strip."""
        stats, told = self.stats, ""
        if stats.tokens_per_second is not None:
            told = f'<span title="{SPEED}"><b>{formats.figure(stats.tokens_per_second)}</b> tokens/s</span>'
        levels = {self._guesser: _acceptance(stats.level1), "retrieval": _acceptance(stats.level2)}
        shares = {level: f"<b>{formats.percent(share)}</b>" for level, share in levels.items() if share is not None}
        if shares:
            one_level = len(shares) == 1
            accepted = ", ".join(share if one_level else f"{level} {share}" for level, share in shares.items())
            told += f'<span class="accepted" title="{ACCEPTED}">guesses right: {accepted}</span>'
        return f'<span class="brief">{told}</span>'

    def _tiles(self, num_book: int, num_reread: int | None) -> list[str]:
        stats, ms = self.stats, "of decoding alone"
        level1, level2 = _acceptance(stats.level1), _acceptance(stats.level2)
        unused = "not used by plain decoding" if self.method == PLAIN else ""
        if stats.ms_per_token is not None:
            ms = f"{formats.figure(stats.ms_per_token)} ms per token"
        unit = "tokens/s" if stats.tokens_per_second is not None else ""
        speed = render.tile("speed", "Speed", formats.figure(stats.tokens_per_second), ms, unit=unit, title=SPEED)
        if self.method == REMOTE:
            return [speed]
        draft, whole = unused or f"{self._guesser} → retrieval", unused or "guesses → book"
        passes = formats.figure(stats.tokens_per_full_pass if stats.new_tokens else None)
        reread = formats.NONE_YET if num_reread is None else formats.count(num_reread)
        book = f"of {num_book:,} book tokens" if num_book else "book tokens"
        return [
            speed,
            render.tile("level1", "Accepted, level 1", formats.percent(level1), draft, share=level1, title=LEVEL1),
            render.tile("level2", "Accepted, level 2", formats.percent(level2), whole, share=level2, title=LEVEL2),
            render.tile("passes", "Tokens per full pass", passes, "plain decoding: 1", title=PASSES),
            render.tile("reread", "Re-read", reread, book, title=REREAD),
        ]

    # -------------------- the bubble

    def bubble(self, session: Session) -> str:
        """Why an answer has no word yet, in one line; "" before anything is known."""
        if self._waiting is not None:
            doing, what = session.doing, waiting_line(self._waiting)
            if self._waiting.reason == "own job" and isinstance(doing, PrefillProgress):
                return _line(what, page_reached(session.book, doing.done_tokens), until(doing)) + BACK
            return _line(what) + BACK
        if self.progress is None or self._begun is None:
            return ""
        what = reads(self.progress, self._begun.num_book, self._begun.num_read_before)
        if what == "the question":
            return _line("Reading the question")
        again = what.replace(" (", ": ").removesuffix(")")
        return _line(f"Reading {again}", page_reached(session.book, self.progress.done_tokens), until(self.progress))


def _acceptance(level: LevelStats | None) -> float | None:
    return level.acceptance if level else None


def _line(*parts: str) -> str:
    """Parts with a dot between; the last may be HTML of `until`."""
    return f'<div class="waits">{" · ".join(filter(None, parts))}</div>'


# -------------------- in words


def waiting_line(waiting: Waiting) -> str:
    """Why a job has not begun."""
    if waiting.reason == "another page":
        pages = "another page" if waiting.num_ahead == 1 else f"{waiting.num_ahead} other pages"
        return f"Queued: {pages} first, one at a time uses the model"
    return "Waiting" + UNTIL[waiting.own if waiting.reason == "own job" else waiting.reason]


def reads(progress: PrefillProgress, num_book: int, num_read_before: int) -> str:
    """What is being read: the question, the book, or the book once more."""
    if progress.total_tokens - progress.reused_tokens <= num_book / 2:
        return "the question"
    again = min(num_read_before, num_book) > progress.reused_tokens
    return "the book again (another page used the model)" if again else "the book"


def reading_line(progress: PrefillProgress, num_book: int, num_read_before: int) -> str:
    """What is being read, and how far."""
    told = f"Reading {reads(progress, num_book, num_read_before)}"
    told += f" · {progress.done_tokens:,} of {progress.total_tokens:,} tokens"
    left = progress.remaining_seconds
    return f"{told} · {formats.duration(left)} left" if left is not None and left > 1 else told


def until(progress: PrefillProgress) -> str:
    """How far a reading is, and how long it still takes, as HTML; tokens and their rate in its tooltip."""
    elapsed = progress.elapsed_seconds
    note = f"{progress.done_tokens:,} of {formats.plural(progress.total_tokens, 'token')}"
    if elapsed > 0 and progress.done_tokens > progress.reused_tokens:
        rate = formats.figure((progress.done_tokens - progress.reused_tokens) / elapsed)
        note += f", {rate} a second so far; later ones take longer, and the time left counts that"
    return f'<b class="until" title="{render.escape(note)}">{waits_for(progress)["told"]}</b>'


def waits_for(progress: PrefillProgress) -> dict[str, Any]:
    """The same for the title of the browser's tab; `long`: the end of the whole reading is worth a notice."""
    left, told = progress.remaining_seconds, f"{progress.done_tokens / max(progress.total_tokens, 1):.0%}"
    if left is not None and left >= LEAST_SECONDS:
        told += f" · {formats.about(left)} left"
    return {"told": told, "long": progress.elapsed_seconds + (left or 0.0) >= LONG_SECONDS}


def page_reached(book: Book | None, num_tokens: int) -> str:
    """ "page 12 of 300" of the newest token read, by position; "" of several documents."""
    if book is None or not book.starts or len(book.library.books) != 1:
        return ""
    token = min(max(num_tokens - book.first_token, 0), len(book.starts) - 1)
    page = book.library.place(book.starts[token]).page
    return f"page {page.number:,} of {len(book.document.pages):,}"


class Writing:
    """The text is one string that only gets longer.

    Args:
        past: the exchanges shown before it, by their ids.
        before: the answer so far, if it continues.
        left: the question, which goes back into the box if there is no answer.
        editing: the exchange that the question replaces.
    """

    def __init__(
        self,
        session: Session,
        method: str,
        question: str,
        past: Sequence[str],
        *,
        before: Exchange | None = None,
        left: str = "",
        editing: str | None = None,
    ) -> None:
        self.question, self.past, self.left, self.editing = question, tuple(past), left, editing
        self.strip = LiveStrip(method)
        self.text = streamed_text(before) if before else ""
        self.thought = before.finished.thought if before else ""
        self.stats = self._before = before.finished.stats if before else DecodeStats()
        self._num_before = len(before.finished.token_ids) if before else 0
        self._number, self._conversation = session.num_cleared, session.dialogue_id
        self._beside = not session.fits  # a conversation about another book is shown
        self._finished: Finished | None = None
        self._wrote = False

    def apply(self, event: WorkerEvent) -> None:
        """Apply one event."""
        self.strip.apply([event])
        if isinstance(event, RoundDone):
            self.text += event.text
            self.thought += event.thought
            self._wrote |= bool(event.tokens or event.text or event.thought)
            self.stats = joined(self._before, event.stats)
        elif isinstance(event, Finished):
            self._finished, self.text, self.thought = event, event.text, event.thought
            self.stats = joined(self._before, event.stats)

    def is_shown(self, session: Session) -> bool:
        """The page still shows the conversation in which the question was asked."""
        return session.num_cleared == self._number

    def past_in(self, session: Session) -> tuple[str, ...]:
        """The exchanges before it; none where its book has begun another conversation than the one shown before."""
        began = self._beside and session.dialogue_id != self._conversation
        return () if began else self.past

    @property
    def answered(self) -> bool:
        """At least one token was written, so the exchange is part of the conversation."""
        if self._finished is None:
            return False
        # The earlier text may have other tokens in another model, so a count alone does not decide.
        return self._wrote or len(self._finished.token_ids) > self._num_before
