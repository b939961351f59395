"""Answers as the JSON of the command line. Pure functions."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from core.decoding.registry import REMOTE
from core.decoding.stats import DecodeStats, LevelStats
from core.generation.events import Finished

if TYPE_CHECKING:
    from app.runtime.trace import Judgement
    from core.engine_info import EngineInfo, Equality


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


def acceptance(level: LevelStats | None) -> float | None:
    """Accepted / tested, for JSON."""
    return rounded(level.acceptance, 4) if level else None


def rounded(value: float | None, digits: int) -> float | None:
    """A float for JSON; None stays None."""
    return None if value is None else round(value, digits)
