"""The expected decoding speed of the loaded model at a full context, from measurements on this page.

The memory bandwidth comes from plain decoding, if there was any on this page, else it is nominal. The acceptance comes
from this page's answers, else it is the pair's measured one, else the published one. The figures name their sources.
Importing this module loads torch, which a loaded model has already done.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.runtime.events import Ready
from core.decoding.registry import PLAIN
from core.decoding.stats import DecodeStats
from core.engine_info import EngineInfo
from core.models.hub.catalog import entries
from core.planning.choices import Choice
from core.planning.cost_model import PassReads
from core.planning.machine_spec import Bandwidths
from core.planning.speed_model import PUBLISHED, Acceptance, Prediction, Reads, bandwidth_of, predict_reads


def expect(
    ready: Ready, answers: Sequence[tuple[str, DecodeStats]], seen: tuple[float | None, float | None]
) -> Prediction:
    """Predict the speed of the loaded pair.

    Args:
        answers: method and figures of this page's answers.
        seen: acceptance of both levels in them, None if nothing was tested.
    """
    info = ready.info
    device = info.plan.device.value
    reads = reads_of(info, ready.context)
    host = info.plan.nominal.host if reads.full.host else None
    rates = Bandwidths(_memory(info, answers), info.link, host)
    return predict_reads(device, ready.context, reads, rates, _acceptance(info, seen))


def reads_of(info: EngineInfo, context: int) -> Reads:
    """The bytes read by each kind of pass, from the plan."""
    planned = {row.name: row.size_bytes for row in info.plan.rows}
    weights, kv = info.target_weight_bytes, context * info.kv_bytes_per_token
    resident = None if info.host_memory is None else info.plan.resident_layers
    # Linear layers and output layer in 4 bits are all that such a pass reads except norms; a CPU gains nothing by them
    self_draft = info.self_draft_weight_bytes if info.plan.device.value == "cuda" else 0
    layers, held = info.target_layers, planned.get("retrieval cache", 0)
    share = info.plan.cpu_attention.value or 0.0
    windowed = 0 if resident is None else len(info.plan.cache_sizes.window_rows)
    kept = info.experts.parameters * info.plan.dtype.value.itemsize if info.experts else 0
    used = info.experts.used if info.experts else 1.0
    guessing = self_draft + kept if self_draft else weights  # a self-draft shares the experts
    reads = Reads(
        full=PassReads.of(layers, weights, kv, resident, share, windowed=windowed, experts=kept, used=used),
        retrieval=PassReads.of(layers, guessing, held, experts=kept, used=used),
    )
    if not info.draft_layers:
        return reads
    window = planned.get("streaming cache", 0)
    return replace(reads, draft=PassReads.of(info.draft_layers, info.draft_weight_bytes, window))


def _memory(info: EngineInfo, answers: Sequence[tuple[str, DecodeStats]]) -> Choice[float]:
    device, plain = info.plan.device.value, [stats for method, stats in answers if method == PLAIN]
    passes = sum(stats.full_passes for stats in plain)
    seconds = sum(stats.decode_seconds for stats in plain)
    read = passes * (info.target_weight_bytes - info.idle_expert_bytes) + sum(stats.kv_bytes_read for stats in plain)
    found = bandwidth_of(device, info.target_layers, passes, read, seconds)
    if found is None:
        nominal = info.plan.nominal.memory
        why = "plain decoding took less here than the fixed cost assumed of its passes"
        if not passes:
            why = "plain decoding was not done here yet"
        return Choice(nominal.value, f"{nominal.because}: {why}")
    return Choice(found, f"as plain decoding read here, over {passes:,} passes")


def _acceptance(info: EngineInfo, seen: tuple[float | None, float | None]) -> Acceptance:
    known = entries().get(info.model)
    before = PUBLISHED
    if known is not None and known.acceptance is not None:
        before = Acceptance(*known.acceptance, "measured with this pair on generated books")
    level1, level2 = seen
    if level2 is None:
        return before
    return Acceptance(before.level1 if level1 is None else level1, level2, "seen in this page’s answers")
