"""The tab "Inside": how the newest answer or race was made; it moves along while the answer is written."""

from collections.abc import Sequence
from typing import NamedTuple

import gradio as gr

from app import formats
from app.runtime.sessions import Session
from app.runtime.trace import Trace
from app.ui import render
from app.ui.acts import Act, Values
from app.ui.charts import Bar, Column, Segment, bars, columns
from app.ui.pane import pane, tab_heading
from app.ui.reading.live_strip import ENDINGS
from app.ui.reading.live_strip import tiles as live_tiles
from app.ui.site import Is, Part, Site, standing
from core.decoding.registry import PLAIN, method_label
from core.decoding.stats import LevelStats
from core.generation.events import TokenRecord

EMPTY = (
    '<section class="inside empty" aria-label="Inside the speculation"><div class="welcome"><h2>Inside the speculation'
    "</h2><p>Ask a question or run a race: here you see who wrote every word, how many guesses held, and where the "
    "time went. It moves along while the answer is written.</p></div></section>"
)
ANSWER = "answer"  # of the subjects; the others are methods of the race
MOST_WHILE_RUNNING = 400  # tokens of the text drawn while it grows; at the end all
BYTES = "Keys and values that were read for a token."
PHASES = {"draft": "Draft", "retrieval": "Retrieval cache", "full": "Full cache", "other": "Everything else"}


class Source(NamedTuple):
    """Who wrote a token, and how: its CSS class and description."""

    key: str
    label: str


SOURCES = {
    ("draft", "proposed"): Source("draft-proposed", "Draft, accepted"),
    ("lookup", "proposed"): Source("lookup-proposed", "Found earlier in book or chat, accepted"),
    ("retrieval", "proposed"): Source("retrieval-proposed", "Retrieval cache, accepted"),
    ("retrieval", "corrected"): Source("retrieval-corrected", "Corrected by the retrieval cache"),
    ("retrieval", "bonus"): Source("retrieval-bonus", "Bonus of the retrieval cache"),
    ("retrieval", "drawn"): Source("retrieval-bonus", "Bonus of the retrieval cache"),
    ("full", "corrected"): Source("full-corrected", "Corrected by the full cache"),
    ("full", "bonus"): Source("full-bonus", "Bonus of the full cache"),
    ("full", "drawn"): Source("full-drawn", "Drawn from the full cache"),
}
LOSSY = Source("lossy", "Drawn without the whole book")


def inside(trace: Trace, others: Sequence[Trace] = ()) -> str:
    """Everything about one answer; `others` are answers of other methods, to compare times."""
    return (
        f'<section class="inside" aria-label="Inside the speculation">{_head(trace)}{tiles(trace)}'
        f'<div class="charts">{charts(trace, others)}</div>{provenance(trace)}</section>'
    )


def _head(trace: Trace) -> str:
    state = ENDINGS[trace.finished.stop_reason] if trace.finished else "Writing"
    written = f"{state} · {formats.plural(trace.stats.new_tokens, 'token')}"
    alive = "" if trace.finished else " running"
    badges = render.chip(method_label(trace.method), tone="method") + render.exactness(trace.exact)
    return (
        f'<div class="strip-head{alive}"><span class="dot"></span><span class="status">{written}</span>'
        f'<span class="badges">{badges}</span></div>'
        f'<p class="question">{render.escape(trace.question)}{" (continued)" if trace.before else ""}</p>'
    )


# -------------------- figures


def tiles(trace: Trace) -> str:
    """The big numbers: those of the live strip, and the lengths of guesses."""
    stats, shown = trace.stats, live_tiles(trace)
    if stats.level2 is not None:
        levels = [level for level in (stats.level1, stats.level2) if level is not None]
        lengths = " / ".join(formats.figure(level.gamma_mean) for level in levels)
        which = "level 1 / level 2; " if len(levels) == 2 else ""
        anew = f"{which}chunks chosen anew {formats.plural(stats.reselections, 'time')}"
        shown.append(render.tile("gamma", "Guesses a round", lengths, anew))
    if stats.kv_bytes_read and stats.kv_bytes_read_plain:
        fewer = f"{formats.figure(stats.kv_bytes_read_plain / stats.kv_bytes_read)} times less than plain decoding"
        read, below = stats.kv_bytes_read / max(1, stats.new_tokens), fewer if trace.method != PLAIN else "all of it"
        shown.append(render.tile("bytes", "Read a token", formats.amount(read), below, title=BYTES))
    return f'<div class="tiles">{"".join(shown)}</div>'


# -------------------- charts


def charts(trace: Trace, others: Sequence[Trace] = ()) -> str:
    """The charts for this answer."""
    stats = trace.stats
    drawn = [rounds_chart(stats.level2)] if stats.level2 and stats.level2.rounds else []
    for name, level, tone in (("1", stats.level1, "draft"), ("2", stats.level2, "retrieval")):
        if level and level.tested_at:
            drawn.append(positions_chart(name, level, tone))
    beside = [trace, *others]
    if any(one.stats.seconds_by_part and one.stats.new_tokens for one in beside):
        drawn.append(time_chart(beside))
    return "".join(drawn)


def rounds_chart(level: LevelStats) -> str:
    """A chart of tokens per pass over the full cache."""
    rounds = level.committed_per_round
    longest = max(rounds, default=0)
    data = [
        Column(str(tokens), rounds.get(tokens, 0), said=formats.plural(rounds.get(tokens, 0), "pass", "passes"))
        for tokens in range(1, longest + 1)
    ]
    about = formats.plural(level.rounds, "pass", "passes")
    commonest = [tokens for tokens in rounds if rounds[tokens] == max(rounds.values())]
    if len(commonest) == 1:
        about += f"; most often {formats.plural(commonest[0], 'token')} at once"
    return columns("Tokens per full pass", about, "tokens committed by one pass", data, tone="full")


def positions_chart(name: str, level: LevelStats, tone: str) -> str:
    """A chart of guesses by position: outlined are the tested ones, filled the accepted ones."""
    data = [
        Column(
            str(at + 1),
            tested,
            accepted,
            note=formats.percent(accepted / tested) if tested else "",
            said=f"{accepted:,} of {tested:,} accepted",
        )
        for at, (tested, accepted) in enumerate(zip(level.tested_at, level.accepted_at, strict=True))
        if tested
    ]
    about = "outlined: tested; filled: accepted. What follows a rejection is not tested"
    return columns(f"Level {name}, by place in the guess", about, "place in the guess", data, tone=tone)


def time_chart(traces: Sequence[Trace]) -> str:
    """A chart of a token's milliseconds by part, for each method."""
    data, order = [], list(PHASES)
    for trace in traces:
        stats = trace.stats
        if not stats.new_tokens or not stats.seconds_by_part:
            continue
        per_token = {part: 1e3 * seconds / stats.new_tokens for part, seconds in stats.seconds_by_part.items()}
        segments = tuple(
            Segment(
                part if part in PHASES else "lossy", PHASES.get(part, "Reduced cache"), ms, f"{formats.figure(ms)} ms"
            )
            for part, ms in sorted(per_token.items(), key=lambda item: order.index(item[0]) if item[0] in order else 0)
            if ms > 0
        )
        data.append(Bar(method_label(trace.method), f"{formats.figure(stats.ms_per_token)} ms a token", segments))
    return bars("Time, by part", "milliseconds a token, reading the prompt left out", data)


# -------------------- provenance


def source(record: TokenRecord) -> Source:
    """The source of a token."""
    return SOURCES.get((record.origin.level, record.origin.kind), LOSSY)


def provenance(trace: Trace) -> str:
    """The answer, every token coloured by its source; hovering and the arrow keys show details."""
    records = trace.records if trace.finished else trace.records[-MOST_WHILE_RUNNING:]
    counts: dict[Source, int] = {}
    for record in trace.records:
        counts[source(record)] = counts.get(source(record), 0) + 1
    total = max(1, len(trace.records))
    legend = "".join(
        f'<li><span class="t {one.key}">{one.label}</span><b>{formats.percent(counts[one] / total)}</b></li>'
        for one in dict.fromkeys((*SOURCES.values(), LOSSY))
        if one in counts
    )
    hidden = len(trace.records) - len(records)
    before = f'<span class="quiet">({hidden:,} tokens before) … </span>' if hidden else ""
    return (
        '<section class="provenance" aria-label="Who wrote what"><header><b>Who wrote what</b>'
        "<span>point at a word, or walk with the arrow keys, for its round and probabilities</span></header>"
        f'<ul class="legend">{legend}</ul>'
        f'<p class="written" tabindex="0">{before}{"".join(_token(record) for record in records)}</p></section>'
    )


def _token(record: TokenRecord) -> str:
    if not record.text:  # part of a character, or the end of the text
        return ""
    one = source(record)
    q = "" if record.q is None else f" · q {formats.probability(record.q)}"
    how = f"round {record.round + 1:,} · p {formats.probability(record.p)}{q}"
    return f'<span class="t {one.key}" tabindex="-1" data-tip="{one.label}|{how}">{render.escape(record.text)}</span>'


# -------------------- the tab


def subjects(session: Session) -> dict[str, Trace]:
    """All that the tab can show: the newest answer, and the lanes of the newest race by their methods."""
    lanes = session.race.lanes if session.race else ()
    traces = {ANSWER: session.trace, **{lane.method: lane for lane in lanes}}
    return {key: trace for key, trace in traces.items() if trace and trace.records}


def chosen(session: Session) -> str:
    """What has begun last, the answer or the race's contender, until the reader chooses another."""
    found = subjects(session)
    wanted = session.inside or ANSWER
    return wanted if wanted in found else next(iter(found), "")


def _key(site: Site, session: Session) -> object:
    trace = subjects(session).get(chosen(session))
    return (standing(site, session), Is(trace), len(subjects(session)), len(trace.points) if trace else 0)


def view(session: Session) -> str:
    """The figures, charts and words of the chosen subject."""
    found = subjects(session)
    trace = found.get(chosen(session))
    if trace is None:
        return EMPTY
    others = [one for key, one in found.items() if key != ANSWER and one.method != trace.method]
    return inside(trace, others)


def picker(session: Session) -> str:
    """The choice among several subjects."""
    found = subjects(session)
    if len(found) < 2:
        return ""
    choices = {
        key: (
            "Answer" if key == ANSWER else f"Race: {method_label(key)}",
            f'name="inside" data-act-change="inside:{key}"',
        )
        for key in found
    }
    legend = '<legend class="unseen">Show</legend>'
    return render.radios(legend, choices.values(), value=choices[chosen(session)][1])


def pick(_site: Site, session: Session, key: str, _values: Values) -> None:
    """The reader chose a subject."""
    session.inside = key


ACTS: dict[str, Act] = {"inside": pick}
PARTS = (
    Part("inside", lambda _, session: view(session), _key, tab="inside", rest=0.5),
    Part("inside-picker", lambda _, session: picker(session), tab="inside"),
)


def build_tab() -> None:
    """The tab's places."""
    with gr.Tab("Inside", id="inside", elem_id="inside-tab"), gr.Column(elem_id="inside"):
        tab_heading("Inside")
        pane("inside-picker", "inside-picker")
        pane("inside", "inside-view", EMPTY)
