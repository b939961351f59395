"""A race as one HTML file that needs no other file, and its JSON.

The HTML has the page's own style sheets and charts, no script and no external address. Importing this module loads the
engine's packages, so the page imports it only when a report is requested.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app import formats
from app.runtime.answer_json import answer_report, engine_report, equality_report, prefill_report, rounded
from app.runtime.trace import Judgement, Race, Trace, lead
from app.ui import render
from app.ui.inside.view import charts, provenance, tiles
from app.ui.race.view import board, ending_line, short_text
from core.decoding.registry import method_label
from core.engine_info import EngineInfo, Equality
from core.planning.hardware import Machine

MOST_LOSSY_TOKENS, MOST_LOSSY_CHARS = 160, 600  # of a text that is not exact: more of it proves nothing
WORST_LAST = ("identical", "near_tie", "mismatch")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # no text in the report can load anything
LAYOUT = """
*, *::before { box-sizing: border-box; }
body, h1, h2, h3, p, ul, figure { margin: 0; padding: 0; }
.gradio-container.gradio-container {
  .report { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
  .report > h1 { font-size: 26px; line-height: 1.25; }
  .part > h2 { margin: 26px 0 -12px; font-size: 19px; }
  .report > .facts { margin: 18px 0; }
  .report > .facts th { width: 190px; }
  .report .board .lane-text.lane-text { display: block; height: auto; overflow: visible; }
  .part { display: grid; gap: 14px; }
  .tile { cursor: default; }
  .tile .below { white-space: normal; }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); border: var(--edge);
    border-radius: var(--round); overflow: hidden; background: var(--sheet); }
}
@media print { .chart, .lane, .verdict { break-inside: avoid; } }
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """The environment of a race."""

    info: EngineInfo
    machine: Machine
    versions: Mapping[str, str]


def report_json(race: Race, setting: Setting) -> dict[str, Any]:
    """The document of `race --json`, with the page's further figures."""
    finished = {lane.method: lane.finished for lane in race.lanes if lane.finished is not None}
    config, judged = race.configs[0], worst(tuple(race.judgements.values()))
    return {
        **engine_report(setting.info),
        **(prefill_report(next(iter(finished.values()))) if finished else {}),
        "methods": {name: answer_report(answer) for name, answer in finished.items()},
        "speedup": rounded(speedup(race), 3),
        "equality": equality_report(equality(judged)),
        "equality_by_method": {
            name: {**equality_report(equality(found)), "tokens_compared": found.num_compared, "whole": found.whole}
            for name, found in race.judgements.items()
        },
        "question": race.question,
        "book": race.book,
        "book_tokens": race.num_book,
        "begun": race.begun.isoformat(timespec="seconds"),
        "settings": {
            "max_new_tokens": None if race.seconds else config.max_new_tokens,
            "seconds": race.seconds,
            "temperature": config.sampling.temperature,
            "top_p": config.sampling.top_p,
            "seed": config.seed,
        },
        "hardware": asdict(setting.machine),
        "versions": dict(setting.versions),
    }


def speedup(race: Race) -> float | None:
    """The speedup of the first exact method other than plain decoding."""
    plain, contender = race.plain, race.contender
    return lead(contender, plain).speedup if plain and contender and contender.exact else None


def worst(found: Sequence[Judgement]) -> Judgement | None:
    """The judgement that decides the verdict."""
    return max(found, key=lambda judgement: WORST_LAST.index(judgement.verdict), default=None)


def equality(found: Judgement | None) -> Equality | None:
    """The judgement in the engine's own terms."""
    return None if found is None else Equality(found.verdict, found.index, found.logit_gap)


# -------------------- HTML


def report_html(race: Race, setting: Setting, styles: Sequence[Path]) -> str:
    """One self-contained file.

    Args:
        styles: the page's style sheets; they are copied into it.
    """
    sheets = "".join(file.read_text(encoding="utf-8") for file in styles)
    question, style = race.question, _plain_css(sheets) + LAYOUT
    race = replace(race, lanes=tuple(map(_shortened, race.lanes)))
    lanes = "".join(_part(race, lane) for lane in race.lanes)
    body = (
        f'<main class="html-container report"><h1>{render.escape(question)}</h1>'
        f'<p class="quiet">A race about “{render.escape(race.book)}”, {race.begun:%Y-%m-%d %H:%M}, TriForce Reader</p>'
        f"{_facts(race, setting)}<section class='race' aria-label='Race'>{board(race, running=False)}</section>"
        f"{lanes}</main>"
    )
    return render.file(f"Race: {question}", POLICY, style, body, "gradio-container")


def _shortened(lane: Trace) -> Trace:
    if lane.exact:
        return lane
    text = short_text(lane.text, MOST_LOSSY_CHARS)
    return replace(lane, records=lane.records[:MOST_LOSSY_TOKENS], thought="", answer=text)


def _plain_css(sheets: str) -> str:
    """The sheets with dark colours by the system's setting, not by a class. No comments, which may have URLs."""
    dark = re.search(r"\.dark \{(.*?)\}", sheets, re.DOTALL)
    media = f"@media (prefers-color-scheme: dark) {{ :root {{{dark.group(1)}}} }}" if dark else ""
    return re.sub(r"/\*.*?\*/", "", sheets, flags=re.DOTALL) + media


def _facts(race: Race, setting: Setting) -> str:
    return render.facts((name, value, "") for name, value in facts(race, setting))


def facts(race: Race, setting: Setting) -> list[tuple[str, str]]:
    """The race's settings, book and machine."""
    info, machine, config = setting.info, setting.machine, race.configs[0]
    engine = engine_report(info)
    first = next((lane.finished for lane in race.lanes if lane.finished), None)
    until = f"{race.seconds:g} s on every lane’s own clock" if race.seconds else f"{config.max_new_tokens:,} tokens"
    read = "not read to the end"
    if first is not None:
        fresh = first.prompt_tokens - first.reused_tokens
        read = f"{first.prompt_tokens:,} tokens, {fresh:,} of them read in {first.prefill_seconds:.2f} s for all lanes"
    law = "greedy" if race.greedy else f"temperature {config.sampling.temperature:g}, top-p {config.sampling.top_p:g}"
    return [
        ("Model", f"{info.model}: {info.description}"),
        ("Exact for", f"{engine['dtype']} weights on {engine['device']}, full cache {engine['placement']}"),
        ("Processor", f"{machine.cpu}, {formats.plural(machine.num_cores, 'core')}"),
        ("Memory", f"{formats.size(machine.ram_bytes)}, {formats.size(machine.free_ram_bytes)} free at the start"),
        *(("GPU", f"{gpu.name}, {formats.size(gpu.total_bytes)}") for gpu in machine.gpus),
        ("Versions", ", ".join(f"{name} {version}" for name, version in setting.versions.items())),
        ("Book", f"{race.num_book:,} tokens"),
        ("Prompt", read),
        ("Settings", f"{law}, up to {until}, seed {config.seed}"),
        ("Lanes", "in turns of a quarter of a second; a lane’s clock runs only while it computes"),
    ]


def _part(race: Race, lane: Trace) -> str:
    others = [one for one in race.lanes if one is not lane]
    name = render.escape(method_label(lane.method))
    exact = "" if lane.exact else " (not exact)"
    return (
        f'<section class="part"><h2>{name}{exact}</h2><p class="quiet">{render.escape(ending_line(lane))}</p>'
        f'{tiles(lane)}<div class="charts">{charts(lane, others)}</div>{provenance(lane, script=False)}</section>'
    )
