"""The result of a race in one sentence, with the reason taken from what was measured where plain decoding won."""

from typing import NamedTuple

from app import formats
from app.runtime.trace import Race, Trace, lead
from core.decoding.registry import method_label

EVEN_SHARE = 0.02  # of plain decoding's time: a smaller difference is none
SHORT_TOKENS = 16  # with fewer the first round is most of an answer


class Result(NamedTuple):
    """One sentence."""

    tone: str  # "good", "amber", "bad" or "none": a class of the page
    text: str
    lane: Trace | None  # the one that is told of beside plain decoding


def best_lane(race: Race) -> Trace | None:
    """The exact lane that was ahead of all others of them, plain decoding apart."""
    exact = [lane for lane in race.lanes if lane.exact and lane is not race.plain and lane.stats.new_tokens]
    if race.plain is None or not exact:
        return None
    plain = race.plain
    return max(exact, key=lambda lane: lead(lane, plain).speedup or 0.0)


def winner(race: Race) -> Trace | None:
    """Plain decoding or the best exact lane, whichever was first; None: hardly a difference, or nothing to compare."""
    lane, plain = best_lane(race), race.plain
    if lane is None or plain is None:
        return None
    seconds, both = lead(lane, plain).seconds, min(plain.stats.new_tokens, lane.stats.new_tokens)
    if abs(seconds) <= EVEN_SHARE * plain.seconds_at(both):
        return None
    return lane if seconds > 0 else plain


def result(race: Race) -> Result | None:
    """The sentence of a race that has ended; None: there is nothing to tell."""
    lane, plain = best_lane(race), race.plain
    if not race.ended or lane is None or plain is None or not plain.stats.new_tokens:
        return None
    name, ahead = method_label(lane.method), lead(lane, plain)
    tone, words = sameness(race, lane)
    if ahead.speedup is None or not lane.finished or not plain.finished:
        return None
    first = winner(race)
    if first is None:
        return Result(tone if tone != "good" else "none", f"{name} and plain decoding were equally fast: {words}", lane)
    if first is plain:
        return Result(
            "bad" if tone == "bad" else "amber", f"Plain was faster here, because {reason(lane, plain)}", lane
        )
    if race.seconds:
        count = formats.plural(abs(ahead.tokens), "token")
        return Result(tone, f"{name} was {count} ahead when time was up: {words}", lane)
    both_ended = plain.stats.new_tokens == lane.stats.new_tokens
    earlier = "finished {} earlier" if both_ended else "wrote as much {} earlier"
    return Result(tone, f"{name} {earlier.format(formats.moment(ahead.seconds))}: {words}", lane)


def sameness(race: Race, lane: Trace) -> tuple[str, str]:
    """How the lane's words compare with plain decoding's, and the tone of that."""
    found = race.judgements.get(lane.method)
    if found is None:
        return "none", "at this temperature every text is a draw of its own" if not race.greedy else "not compared"
    if found.verdict == "identical":
        return "good", "same words" if found.whole else "same words as far as both wrote"
    if found.verdict == "near_tie":
        return "amber", f"the words part at token {(found.index or 0) + 1:,}, where rounding decides"
    return "bad", f"the words part at token {(found.index or 0) + 1:,}, which is a bug"


def is_identical(race: Race, lane: Trace) -> bool:
    """Every token of a whole answer is plain decoding's."""
    found = race.judgements.get(lane.method)
    return found is not None and found.verdict == "identical" and found.whole


def reason(lane: Trace, plain: Trace) -> str:
    """Why a lane was slower: its milliseconds a token by part beside plain decoding's. All figures were measured."""
    stats, theirs = lane.stats, formats.figure(plain.stats.ms_per_token)
    if stats.new_tokens < SHORT_TOKENS:
        took, needed = formats.moment(stats.decode_seconds), formats.moment(plain.stats.decode_seconds)
        count = formats.plural(stats.new_tokens, "token")
        return f"an answer of {count} ended before guesses had paid: {took}, and plain decoding needed {needed}"
    checking = stats.seconds_by_part.get("full", 0.0) * 1e3 / stats.new_tokens
    rest = (stats.ms_per_token or 0.0) - checking
    held = f"one pass over the book confirmed {formats.figure(stats.tokens_per_full_pass)} tokens"
    if not stats.seconds_by_part:
        return f"{held}: {formats.figure(stats.ms_per_token)} ms a token, and plain decoding needed {theirs} ms"
    return (
        f"{held}: guessing took {formats.figure(rest)} ms a token and checking {formats.figure(checking)} ms, "
        f"and plain decoding needed {theirs} ms"
    )
