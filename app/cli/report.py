"""Answers as lines for people. Pure functions."""

from collections.abc import Mapping

from core.decoding.registry import LOSSY_METHODS
from core.decoding.stats import LevelStats
from core.errors import NotPossibleHere
from core.generation.events import Finished


class NotWritten(NotPossibleHere):
    """A file beside the results cannot be written; stdout has the results, and with --json no second document."""

    has_results = True


def summary_line(finished: Finished) -> str:
    """One answer's figures for people."""
    stats = finished.stats
    thought = f", {stats.thought_tokens} of them thought" if stats.thought_tokens else ""
    parts = [f"{stats.new_tokens} tokens{thought}", f"{stats.tokens_per_second or 0:.1f} tokens/s"]
    if stats.level2 is not None:
        level1 = f"{percent(stats.level1)} / " if stats.level1 else ""
        parts.append(f"acceptance {level1}{percent(stats.level2)}")
        parts.append(f"{stats.tokens_per_full_pass or 0:.1f} tokens per full pass")
    if stats.link_bytes_per_second is not None:
        share = f" ({100 * stats.link_share:.0f}% of a plain copy)" if stats.link_share is not None else ""
        parts.append(f"link {stats.link_bytes_per_second / 1e9:.2f} GB/s{share}")
    parts.append(f"read {finished.prompt_tokens - finished.reused_tokens:,} tokens in {finished.prefill_seconds:.1f} s")
    parts.append(f"{finished.method}, not exact" if finished.method in LOSSY_METHODS else finished.method)
    return " · ".join(parts)


def race_lines(methods: Mapping[str, Finished], speedup: float | None, verdict: str) -> list[str]:
    """A race for people: one line a method, then the result."""
    lines = [
        f"{name:<16}{f.stats.ms_per_token or 0:8.1f} ms/token {f.stats.tokens_per_second or 0:8.1f} tokens/s"
        + (f"   acceptance {percent(f.stats.level1)} / {percent(f.stats.level2)}" if f.stats.level2 else "")
        + ("" if f.exact else "   not exact")
        for name, f in methods.items()
    ]
    if speedup is not None:
        lines.append(f"Speedup {speedup:.2f}x, texts: {verdict.replace('_', ' ')}")
    return lines


def percent(level: LevelStats | None) -> str:
    """Accepted / tested as a percentage, for people."""
    return f"{100 * level.acceptance:.0f}%" if level and level.acceptance is not None else "-"
