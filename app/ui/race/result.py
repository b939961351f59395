"""The result of a race: who was first, with the reason where plain decoding won, and whether texts are equal."""

from typing import NamedTuple

from app import formats
from app.runtime.trace import Judgement, Race, Trace, first_difference, lead
from core.decoding.registry import method_label

EVEN_SHARE = 0.02  # of plain decoding's time: a smaller difference is none
SHORT_TOKENS = 16  # with fewer the first round is most of an answer


class Result(NamedTuple):
    """Who was first, and whether the texts are equal, in two sentences."""

    tone: str  # "good", "amber", "bad" or "none": a class of the page
    text: str
    lane: Trace  # the one that is told of beside plain decoding


class Verdict(NamedTuple):
    """How the text of a lane compares with plain decoding's."""

    tone: str  # as of `Result`
    title: str
    text: str


def best_lane(race: Race) -> Trace | None:
    """The exact lane that was ahead of all others of them, plain decoding apart."""
    plain = race.plain
    exact = [lane for lane in race.lanes if lane.exact and lane is not plain and lane.stats.new_tokens]
    return max(exact, key=lambda lane: lead(lane, plain).speedup or 0.0, default=None) if plain else None


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
    """What is told of a race that has ended; None: there is nothing to tell."""
    lane, plain = best_lane(race), race.plain
    if not race.ended or lane is None or plain is None or not lane.finished or not plain.finished:
        return None
    name, ahead, first = method_label(lane.method), lead(lane, plain), winner(race)
    if ahead.speedup is None:
        return None
    tone, _, words = verdict(race, lane)
    if first is plain:
        tone, told = "bad" if tone == "bad" else "amber", f"Plain was faster here, because {reason(lane, plain)}"
    elif first is None:
        tone, told = "none" if tone == "good" else tone, f"{name} and plain decoding were equally fast"
    elif race.seconds:
        told = f"{name} was {formats.plural(abs(ahead.tokens), 'token')} ahead when time was up"
    else:
        what = "finished" if plain.stats.new_tokens == lane.stats.new_tokens else "wrote as much"
        told = f"{name} {what} {formats.moment(ahead.seconds)} earlier"
    return Result(tone, f"{told}. {words}", lane)


def verdict(race: Race, lane: Trace) -> Verdict:
    """The verdict on one lane."""
    name, found, plain = method_label(lane.method), race.judgements.get(lane.method), race.plain
    if found is not None:
        return _judged(name, found)
    if not race.ended:
        return Verdict("pending", name, "Its text is compared with plain decoding’s at the end, token by token.")
    why, both = "There is too little text.", plain and plain.finished and lane.finished
    if not race.greedy:
        why = "At a temperature above 0 each text is a draw of its own, so equal texts are not expected."
    elif plain is None:
        why = "Plain decoding did not run in this race."
    elif not lane.exact and both:
        assert plain.finished and lane.finished, "lanes that still run"
        ours, theirs = plain.finished.token_ids, lane.finished.token_ids
        index = first_difference(ours, theirs)
        if index is not None:
            why = f"Its text differs from plain decoding’s from token {index + 1:,}."
            return Verdict("amber", f"{name}: not exact", why)
        far = formats.plural(min(len(ours), len(theirs)), "token")
        why = f"Equal this time as far as both wrote ({far}); nothing guarantees it."
        return Verdict("none", f"{name}: not exact", why)
    return Verdict("none", f"{name}: not comparable", why)


def _judged(name: str, found: Judgement) -> Verdict:
    if found.verdict == "identical":
        much = f"All {found.num_compared:,} tokens are" if found.num_compared > 1 else "The only token is"
        much += " the same as plain decoding’s"
        if not found.whole:
            much = f"The same as plain decoding’s as far as both wrote: {formats.plural(found.num_compared, 'token')}"
        return Verdict("good", f"{name}: identical", f"{much}.")
    assert found.index is not None, "texts that part nowhere"
    bug = "This is a bug in TriForce Reader: please save the figures and send them."
    if found.logit_gap is None:
        told = f"One text ends at token {found.index:,} and the other goes on. {bug}"
        return Verdict("bad", f"{name}: mismatch", told)
    place, gap = f"The texts differ from token {found.index + 1:,}, where", f"{found.logit_gap:.2g} logits"
    if found.verdict == "near_tie":
        near = f"{place} both tokens lie within {gap} of the model’s best one: rounding decides between them."
        return Verdict("amber", f"{name}: near tie", near)
    return Verdict("bad", f"{name}: mismatch", f"{place} one token lies {gap} below the model’s best one. {bug}")


def is_stopped(race: Race) -> bool:
    """A lane was stopped by the reader."""
    return any(lane.finished and lane.finished.stop_reason == "cancelled" for lane in race.lanes)


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
