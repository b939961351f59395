"""The board of a race: lanes side by side, their differences, and whether the texts are equal.

A finished board contains its own replay: for every lane the points (lane clock, text length, tokens), which the page's
script draws without the server.
"""

import json
from collections.abc import Sequence

from app import formats
from app.runtime.sessions import Racing
from app.runtime.trace import Lead, Point, Race, Trace, lead
from app.ui import render
from app.ui.race.result import best_lane, is_stopped, result, verdict, winner
from app.ui.race.stage import scenes
from app.ui.reading.live_strip import ENDINGS, reading_line, waiting_line
from core.decoding.registry import COMPARED, FASTEST, METHODS, PLAIN, method_label

EMPTY = "Choose the lanes and start: every method answers the same question after one reading of the book."
GAP_TITLE = (
    "Times and seconds: to the last token that both have written. Tokens: at the newest time both clocks have reached."
)
LOOKUP_TOLD = "where the last words stand in the book, too, the words behind them there are the guess."
TOLD = {
    PLAIN: "One pass over the whole book for every token.",
    "triforce": "One pass over the whole book verifies a run of guesses.",
    FASTEST: f"TriForce; {LOOKUP_TOLD}",
    "lookup": LOOKUP_TOLD.capitalize(),
}
AT_FIRST = (*COMPARED, FASTEST)  # lanes, until the model is known
MOST_POINTS = 600  # in one lane's replay; more would not be visible


def race(racing: Racing, usual: tuple[str, ...] = AT_FIRST) -> str:
    """The content of the board; before a race the `usual` lanes."""
    race, status, share = racing.race, _status(racing), 0.0
    if race and race.reading and racing.running and not _writes(race):
        share = race.reading.done_tokens / max(race.reading.total_tokens, 1)
    state = ("running" if racing.running else "resting") + ("" if race else " empty")
    bar = render.bar(share, status if share else "", tone="thin")
    error = render.problem(racing.error) if racing.error else ""
    body = board(race) if race else _empty_board(usual)
    question = f'<p class="asked">{render.escape(race.question)}</p>' if race else ""
    replay = buttons = shown = ""
    if race and racing.finished:
        replay, buttons, shown = f' data-replay="{render.escape(replay_points(race))}"', REPLAY, scenes(race)
    return (
        f'<section class="race {state}" aria-label="Race"{replay}><div class="strip-head"><span class="dot"></span>'
        f'<span class="status">{render.escape(status)}</span>{buttons}</div>'
        f"{bar}{error}{question}{body}{shown}</section>"
    )


def _status(racing: Racing) -> str:
    race = racing.race
    if racing.error is not None:
        return "No race"
    if race is None:
        waiting = waiting_line(racing.waiting) if racing.waiting else "Waiting for its turn"
        return waiting if racing.waits else EMPTY
    shared = _shared(race.num_reread)
    if racing.running and all(lane.finished for lane in race.lanes):
        return "Comparing the texts" + shared
    if racing.running and _writes(race):
        return "Racing, in fair turns" + shared
    if racing.running:
        return reading_line(race)
    if not racing.finished:
        return "Stopped before the first word"
    return ("Stopped" if is_stopped(race) else "Finished") + shared


def _writes(race: Race) -> bool:
    return any(lane.stats.new_tokens or lane.finished for lane in race.lanes)


REPLAY = (
    '<span class="replay" role="group" aria-label="Replay">'
    + render.button("Replay 1×", tone="replay-button", also='data-speed="1"')
    + render.button("4×", tone="replay-button", also='data-speed="4"')
    + "</span>"
)


def replay_points(race: Race) -> str:
    """JSON for the page's script: per lane [milliseconds, characters, tokens] after each round, in order."""
    return json.dumps(
        [
            drawn_points((*lane.points[: -1 : len(lane.points) // MOST_POINTS + 1], lane.points[-1]))
            for lane in race.lanes
        ]
    )


def drawn_points(points: Sequence[Point]) -> list[list[int]]:
    """Milliseconds, characters and tokens, as the page's script draws them."""
    return [[round(point.seconds * 1000), point.num_chars, point.num_tokens] for point in points]


def board(race: Race) -> str:
    """Lanes, the difference between plain decoding and its contender, and the verdict."""
    lanes = [lane_html(race, number) for number in range(len(race.lanes))]
    plain, contender = race.plain, (best_lane(race) if race.ended else None) or race.contender
    gap = _gap(contender, lead(contender, plain)) if plain and contender else ""
    lanes.insert(1 if len(lanes) == 2 else 0, gap)
    found = result(race)
    verdicts = [(lane, verdict(race, lane)) for lane in race.lanes if lane is not plain]
    told = (one for lane, one in verdicts if found is None or lane is not found.lane or one.tone == "bad")
    below = "".join(
        f'<li class="verdict {tone}"><b>{render.escape(title)}</b><span>{render.escape(text)}</span></li>'
        for tone, title, text in told
    )
    sides = _board(len(race.lanes), "".join(lanes))
    line = f'<p class="result {found.tone}" role="status">{render.escape(found.text)}</p>' if found else ""
    return f'{line}{sides}<ul class="verdicts" aria-label="Equality">{below}</ul>'


def _empty_board(lanes: tuple[str, ...]) -> str:
    ghosts = "".join(
        f'<article class="lane ghost {"plain" if name == PLAIN else ""}"><header><h3>{method_label(name)}</h3></header>'
        f'<p class="rate"><b>{formats.NONE_YET}</b><span>tokens/s</span></p>'
        f'<p class="quiet">{TOLD.get(name, METHODS[name].summary)}</p></article>'
        for name in lanes
    )
    return _board(len(lanes), ghosts)


def _board(count: int, lanes: str) -> str:
    """Lanes beside each other: more than four of them in two rows."""
    columns = count if count <= 4 else -(-count // 2)
    return f'<div class="board lanes-{count}" style="--columns:{columns}">{lanes}</div>'


def lane_html(race: Race, number: int) -> str:
    """A lane with its clock and its text."""
    trace = race.lanes[number]
    stats, ended = trace.stats, trace.finished
    won = " won" if race.ended and trace is winner(race) else ""
    tone = "plain" if trace is race.plain else "fast" if trace.exact else "lossy"
    ending = ENDINGS[ended.stop_reason] if ended else "Writing" if stats.new_tokens else "Ready"
    share = stats.decode_seconds / race.seconds if race.seconds else stats.new_tokens / _finish_line(race)
    name = method_label(trace.method)
    alive = "" if race.ended or ended else " alive"
    live = "" if race.ended else " data-live"  # the script draws it
    words = "" if live else render.escape(trace.text)
    return (
        f'<article class="lane {tone}{alive}{won}" data-lane="{number}" aria-label="{name}"><header><h3>{name}</h3>'
        f"{render.exactness(trace.exact) if trace.method in METHODS else ''}</header>"
        f'<p class="rate"><b{live}>{formats.figure(stats.tokens_per_second)}</b> <span>tokens/s</span></p>'
        f"{render.bar(share, f'{name}: how far', tone='track')}"
        f'<p class="counts"><span><b class="tokens"{live}>{stats.new_tokens:,}</b> tokens</span>'
        f'<span><b class="clock"{live}>{stats.decode_seconds:.2f}</b> s</span><span class="ending">{ending}</span></p>'
        f'<div class="lane-text" tabindex="0" aria-label="Text by {name}"><p{live}>{words}</p></div>'
        "</article>"
    )


def _finish_line(race: Race) -> int:
    """Tokens at which a lane's bar is full: the limit during the race, the longest text at the end."""
    if all(lane.finished for lane in race.lanes):
        return max(1, *(lane.stats.new_tokens for lane in race.lanes))
    return max(config.max_new_tokens for config in race.configs)


def _gap(contender: Trace, ahead: Lead) -> str:
    speedup = formats.NONE_YET if ahead.speedup is None else f"{ahead.speedup:.2f}×"
    name = method_label(contender.method)
    tokens, seconds = ahead.tokens, ahead.seconds
    noun = "token" if abs(tokens) == 1 else "tokens"
    much = f"<b>{abs(tokens):,}</b><span>{noun} {'behind' if tokens < 0 else 'ahead'}</span>"
    early = f"<b>{abs(seconds):.2f} s</b><span>{'behind' if seconds < 0 else 'ahead'}</span>"
    return (
        f'<aside class="gap" title="{GAP_TITLE}" aria-label="{name} against plain decoding">'
        f'<p class="speedup"><b>{speedup}</b><span>{name} against plain</span></p>'
        f"<p>{much}</p><p>{early}</p></aside>"
    )


def _shared(num_reread: int | None) -> str:
    """What the lanes had in common; None: unknown."""
    if num_reread is None:
        return ""
    again = f", {formats.plural(num_reread, 'token')} of it again for this race" if num_reread else ""
    return f" · the book was read once for all lanes{again}"


def short_text(text: str, most: int) -> str:
    """A text, or its beginning and how much was left out."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most].rstrip()} … ({left:,} more characters)"
