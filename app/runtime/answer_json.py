"""Answers as the JSON of the command line. Pure functions."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from app.runtime.trace import Judgement, Race, lead
from app.runtime.versions import versions
from core.decoding.registry import REMOTE
from core.decoding.stats import DecodeStats, LevelStats
from core.generation.events import Finished

if TYPE_CHECKING:
    from core.engine_info import EngineInfo, Equality
    from core.planning.hardware import Machine

WORST_LAST = ("identical", "near_tie", "mismatch")


def answer_report(finished: Finished) -> dict[str, Any]:
    """One method's answer: text, ids, times and speculation figures; a server's answer has no ids."""
    stats = finished.stats
    report: dict[str, Any] = {
        "text": finished.text,
        "token_ids": list(finished.token_ids),
        "new_tokens": stats.new_tokens,
        **(thought_report(finished) if finished.thought or stats.thought_tokens else {}),
        "decode_seconds": round(stats.decode_seconds, 4),
        "recording_seconds": round(stats.recording_seconds, 4),
        "ms_per_token": rounded(stats.ms_per_token, 3),
        "tokens_per_second": rounded(stats.tokens_per_second, 2),
        "stop_reason": finished.stop_reason,
        "exact": finished.exact,
        "full_passes": stats.full_passes,
        "tokens_per_full_pass": rounded(stats.tokens_per_full_pass, 3),
    }
    if stats.level2 is not None:
        report["acceptance"] = {"level1": acceptance(stats.level1), "level2": acceptance(stats.level2)}
        report["gamma1_mean"] = rounded(stats.level1.gamma_mean, 2) if stats.level1 else None
        report["gamma2_mean"] = rounded(stats.level2.gamma_mean, 2)
        report["reselections"] = stats.reselections
    if stats.link_bytes:
        report["link"] = link_report(stats)
    report["seconds_by_part"] = {part: round(seconds, 4) for part, seconds in stats.seconds_by_part.items()}
    return report


def thought_report(finished: Finished) -> dict[str, Any]:
    """The thought before the answer, and how many of the new tokens belong to which."""
    return {
        "thought": finished.thought,
        "thought_tokens": finished.stats.thought_tokens,
        "answer_tokens": finished.stats.answer_tokens,
        "thought_seconds": round(finished.stats.thought_seconds, 4),
        "in_thought": finished.in_thought,
    }


def link_report(stats: DecodeStats) -> dict[str, Any]:
    """What crossed the link during verification, and how fast."""
    rate = stats.link_bytes_per_second
    return {
        "bytes": stats.link_bytes,
        "gb_per_second": rounded(rate / 1e9 if rate is not None else None, 3),
        "share_of_calibration": rounded(stats.link_share, 3),
    }


def engine_report(info: "EngineInfo") -> dict[str, Any]:
    """The model, device and settings of the run; of a model on a server they cannot be seen."""
    if info.elsewhere:
        return {"model": info.model, "device": REMOTE, "dtype": None, "placement": None, "context": info.most_context}
    return {
        "model": info.model,
        "device": info.plan.device.value,
        "dtype": info.plan.precision,
        "processes": info.num_ranks,
        "weights": info.weights,
        "exact_for": info.exact_for,
        "placement": info.plan.placement.value,
        "context": info.plan.context.value,
        **({} if info.plan.composition is None else {"composition": asdict(info.plan.composition)}),
        **({} if info.host_memory is None else offload_report(info)),
    }


def offload_report(info: "EngineInfo") -> dict[str, Any]:
    """What lies in host memory, and the link it crosses."""
    host, link = info.host_memory, info.link
    assert host is not None, "the whole full cache is resident"
    return {
        "placement_because": info.plan.placement.because,
        "resident_layers": info.plan.resident_layers,
        "prefill_block": {"value": info.plan.prefill_block.value, "because": info.plan.prefill_block.because},
        "cpu_attention": {"value": info.plan.cpu_attention.value, "because": info.plan.cpu_attention.because},
        "host_memory": {"value": host.value, "because": host.because},
        "link_calibration": {"gb_per_second": rounded(link.value / 1e9, 3), "because": link.because} if link else None,
    }


def prefill_report(first: Finished) -> dict[str, Any]:
    """The single reading of the prompt."""
    return {
        "prompt_tokens": first.prompt_tokens,
        "reused_tokens": first.reused_tokens,
        "prefill_seconds": round(first.prefill_seconds, 4),
    }


def equality_report(equality: "Equality | Judgement | None") -> dict[str, Any]:
    """None for texts that need not be equal (sampled ones)."""
    if equality is None:
        return {"verdict": "not_comparable", "first_divergence": None}
    divergence = None
    if equality.index is not None:
        divergence = {"index": equality.index, "logit_gap": rounded(equality.logit_gap, 6)}
    return {"verdict": equality.verdict, "first_divergence": divergence}


def race_report(race: Race, info: "EngineInfo", machine: "Machine") -> dict[str, Any]:
    """The document of `race --json`, with question, book, settings, machine and versions."""
    finished = {lane.method: lane.finished for lane in race.lanes if lane.finished is not None}
    config, plain, contender = race.configs[0], race.plain, race.contender
    speedup = lead(contender, plain).speedup if plain and contender and contender.exact else None
    return {
        **engine_report(info),
        **(prefill_report(next(iter(finished.values()))) if finished else {}),
        "methods": {name: answer_report(answer) for name, answer in finished.items()},
        "speedup": rounded(speedup, 3),
        "equality": equality_report(worst(tuple(race.judgements.values()))),
        "equality_by_method": {
            name: {**equality_report(found), "tokens_compared": found.num_compared, "whole": found.whole}
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
        "hardware": asdict(machine),
        "versions": versions(),
    }


def worst(found: Sequence[Judgement]) -> Judgement | None:
    """The judgement that decides the verdict."""
    return max(found, key=lambda judgement: WORST_LAST.index(judgement.verdict), default=None)


def acceptance(level: LevelStats | None) -> float | None:
    """Accepted / tested, for JSON."""
    return rounded(level.acceptance, 4) if level else None


def rounded(value: float | None, digits: int) -> float | None:
    """A float for JSON; None stays None."""
    return None if value is None else round(value, digits)
