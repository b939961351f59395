"""The live strip: the decoder's work and its speculation figures, for one answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from app import formats
from app.runtime.events import AnswerBegun, Waiting, WorkerEvent
from app.ui import render
from core.decoding.registry import METHODS, PLAIN, REMOTE, is_exact, method_label
from core.decoding.stats import DecodeStats, LevelStats
from core.generation.events import Finished, PrefillProgress, RoundDone, StopReason

ENDINGS: dict[StopReason, str] = {
    "end_of_text": "Answer complete",
    "stop_string": "Answer complete",
    "max_new_tokens": "At the limit of tokens",
    "context_full": "Ended: the context is full",
    "repeating": "Ended: it went on repeating itself",
    "time_up": "Ended: its time was up",
    "cancelled": "Stopped",
}
OWN_JOBS = {
    "reading": "Waiting until the book is read",
    "counting": "Waiting until the book is counted",
    "saving": "Waiting until the book is on disk",
    "survey": "Waiting",
    "answer": "Waiting until this page’s answer is written",
    "race": "Waiting until this page’s race has ended",
}
EXPLAINED = {
    "speed": "Decoding only; the time to read the prompt is not in it.",
    "level1": "Of the draft's guesses that the retrieval cache tested, the share it accepted.",
    "level2": "Of the guesses that were tested against the whole book, the share that was accepted.",
    "passes": "Tokens committed per pass over the full cache. Plain decoding gets exactly 1.",
    "reread": "Tokens of the book that had to be read again for this answer.",
}
ACCEPTED = (
    "Of the guessed tokens, the share that was accepted: of the draft's by the pages at hand (retrieval), "
    "and of what these let pass by the whole book."
)


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure: label, value, meaning."""

    key: str
    label: str
    value: str
    unit: str
    below: str
    share: float | None = None


class LiveStrip:
    """The content of the strip. Apply events, then ask for the HTML."""

    def __init__(self, method: str | None = None) -> None:
        self._method = method
        self._status = "Waiting for its turn" if method else "Ask a question: the figures of the answer appear here."
        self._amount = ""  # how much was written; a folded strip has no room for it, and the answer says it too
        self._share: float | None = None  # of the prompt, during prefill
        self._stats = DecodeStats()
        self._running = method is not None
        self._num_book = self._num_read_before = 0
        self._num_reread: int | None = None

    def apply(self, events: Sequence[WorkerEvent]) -> "LiveStrip":
        """Apply events."""
        for event in events:
            self._apply(event)
        return self

    def _apply(self, event: WorkerEvent) -> None:
        match event:
            case Waiting():
                self._status = waiting_line(event)
            case AnswerBegun(num_book=num_book, num_read_before=num_read_before):
                self._num_book, self._num_read_before = num_book, num_read_before
                self._status = "Reading the question"
            case PrefillProgress():
                self._progress(event)
            case RoundDone(stats=stats):
                self._stats, self._share = stats, None
                what = "Writing" if stats.answer_tokens or not stats.thought_tokens else "Thinking"
                self._status = f"{what} · {formats.plural(stats.new_tokens, 'token')}"
            case Finished():
                self._finish(event)

    def _progress(self, progress: PrefillProgress) -> None:
        known = min(self._num_read_before, self._num_book)
        self._num_reread = max(0, known - progress.reused_tokens)
        to_read = progress.total_tokens - progress.reused_tokens
        what = "the question"
        if self._num_reread:
            what = "the book again (another page used the model)"
        elif to_read > self._num_book / 2:
            what = "the book"
        self._share = progress.done_tokens / max(progress.total_tokens, 1)
        self._status = f"Reading {what} · {progress.done_tokens:,} of {progress.total_tokens:,} tokens"
        if progress.remaining_seconds is not None and progress.remaining_seconds > 1:
            self._status += f" · {formats.duration(progress.remaining_seconds)} left"

    def _finish(self, finished: Finished) -> None:
        self._stats, self._share, self._running = finished.stats, None, False
        self._method = finished.method
        tokens = formats.plural(finished.stats.new_tokens, "token")
        self._status = ENDINGS[finished.stop_reason] + (" while it was thinking" if finished.in_thought else "")
        if finished.stats.new_tokens:
            self._amount = f" · {tokens} in {formats.duration(finished.stats.decode_seconds)}"
        if finished.stats.thought_tokens and finished.text:
            self._amount += f", {formats.count(finished.stats.thought_tokens)} of them thought"

    def recall(self, finished: Finished, num_book: int, num_reread: int | None = None) -> "LiveStrip":
        """Show a past answer, after a reload."""
        self._num_book, self._num_reread = num_book, num_reread
        self._finish(finished)
        return self

    def end(self) -> "LiveStrip":
        """Mark the end of the stream, whatever its last event was."""
        if self._running:
            self._running, self._share, self._status = False, None, "Stopped before the first word"
        return self

    def html(self) -> str:
        """The strip."""
        name = method_label(self._method or "")
        badges = render.chip(name, tone="method") if name else ""
        if is_exact(self._method or ""):
            badges += render.chip("exact", tone="exact", title="The text follows the target model's own distribution.")
        state = "running" if self._running else "resting"
        state += "" if self._method else " empty"
        bar = render.bar(self._share or 0, self._status if self._share else "", tone="thin")
        tiles = "".join(map(_tile, self._tiles()))
        amount = f'<span class="amount">{render.escape(self._amount)}</span>' if self._amount else ""
        return (
            f'<section class="strip {state}" aria-label="Live figures">'
            f'<div class="strip-head"><span class="dot"></span><span class="status">'
            f'{render.escape(self._status)}{amount}</span>{self._brief()}<span class="badges">{badges}</span></div>'
            f'{bar}<div class="tiles">{tiles}</div></section>'
        )

    @property
    def _guesser(self) -> str:
        """Who guesses at level 1."""
        method = METHODS.get(self._method or "")
        if method is None or not method.lookup_at_least:
            return "draft"
        return "draft and lookups" if method.needs_draft else "lookups"

    def _brief(self) -> str:
        """Speed and acceptance in a few words, for the folded strip."""
        stats, told = self._stats, ""
        if stats.tokens_per_second is not None:
            speed = formats.figure(stats.tokens_per_second)
            told = f'<span title="{EXPLAINED["speed"]}"><b>{speed}</b> tokens/s</span>'
        levels = {self._guesser: _acceptance(stats.level1), "retrieval": _acceptance(stats.level2)}
        shares = {level: f"<b>{formats.percent(share)}</b>" for level, share in levels.items() if share is not None}
        if shares:
            one_level = len(shares) == 1
            accepted = ", ".join(share if one_level else f"{level} {share}" for level, share in shares.items())
            told += f'<span class="accepted" title="{ACCEPTED}">guesses right: {accepted}</span>'
        return f'<span class="brief">{told}</span>'

    def _tiles(self) -> list[Tile]:
        stats = self._stats
        level1, level2 = _acceptance(stats.level1), _acceptance(stats.level2)
        unused = "not used by plain decoding" if self._method == PLAIN else ""
        ms = "of decoding alone"
        if stats.ms_per_token is not None:
            ms = f"{formats.figure(stats.ms_per_token)} ms per token"
        book = f"of {self._num_book:,} book tokens" if self._num_book else "book tokens"
        reread = formats.NONE_YET if self._num_reread is None else formats.count(self._num_reread)
        passes = formats.figure(stats.tokens_per_full_pass if stats.new_tokens else None)
        speed = Tile("speed", "Speed", formats.figure(stats.tokens_per_second), "tokens/s", ms)
        if self._method == REMOTE:
            return [speed]
        return [
            speed,
            Tile(
                "level1",
                "Accepted, level 1",
                formats.percent(level1),
                "",
                unused or f"{self._guesser} → retrieval",
                level1,
            ),
            Tile("level2", "Accepted, level 2", formats.percent(level2), "", unused or "guesses → book", level2),
            Tile("passes", "Tokens per full pass", passes, "", "plain decoding: 1"),
            Tile("reread", "Re-read", reread, "", book),
        ]


def waiting_line(waiting: Waiting) -> str:
    """Why an answer has not begun."""
    if waiting.reason == "loading":
        return "Waiting until the model is loaded"
    if waiting.reason == "opening":
        return "Waiting until the book is open"
    if waiting.reason == "own job":
        return OWN_JOBS[waiting.own]
    pages = "another page" if waiting.num_ahead == 1 else f"{waiting.num_ahead} other pages"
    return f"Queued: {pages} first, one at a time uses the model"


def _acceptance(level: LevelStats | None) -> float | None:
    return level.acceptance if level else None


def _tile(tile: Tile) -> str:
    known = tile.unit and tile.value != formats.NONE_YET
    unit = f'<span class="unit">{tile.unit}</span>' if known else ""
    meter = "" if tile.share is None else render.bar(tile.share, tile.label, tone=tile.key)
    return (
        f'<div class="tile {tile.key}" title="{render.escape(EXPLAINED[tile.key])}">'
        f'<span class="label">{tile.label}</span><span class="value">{render.escape(tile.value)}{unit}</span>'
        f'<span class="below">{render.escape(tile.below)}</span>{meter}</div>'
    )
