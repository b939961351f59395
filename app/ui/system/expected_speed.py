"""The expected decoding speed of the loaded model at a full context, from measurements on this page.

The rate of memory comes from plain decoding, if there was any on this page, else it was measured on this processor, or
is nominal of a GPU. The acceptance comes
from this page's answers, else it is the pair's measured one, else the published one. The figures name their sources.
Importing this module loads torch, which a loaded model has already done.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from app.runtime.events import Ready
from core.decoding.registry import PLAIN
from core.decoding.stats import DecodeStats
from core.engine_info import EngineInfo
from core.models.hub.catalog import entries
from core.planning.choices import Choice
from core.planning.devices import Bandwidths
from core.planning.forecast import (
    META,
    Acceptance,
    PassReads,
    Prediction,
    Reads,
    bandwidth_of,
    heads_of,
    of_another,
    predict_reads,
    usual_acceptance,
)
from core.planning.measured import PROCESSOR


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
    usual = PROCESSOR.rates() if device == "cpu" else info.plan.nominal
    host = info.plan.nominal.host if reads.full.host else None
    rates = replace(usual, memory=_memory(info, answers, usual), link=info.link, host=host)
    return predict_reads(device, ready.context, reads, rates, _acceptance(info, seen))


def reads_of(info: EngineInfo, context: int) -> Reads:
    """The bytes read by each kind of pass, from the plan."""
    planned = {row.name: row.size_bytes for row in info.plan.rows}
    weights, kv = info.pass_bytes[0], context * info.kv_bytes_per_token
    resident = None if info.host_memory is None else info.plan.resident_layers
    # Linear and output layers in 4 bits are all that such a pass reads except norms. On a processor no gain is counted
    self_draft = info.self_draft_weight_bytes if info.plan.device.value == "cuda" else 0
    layers, held = info.target_layers, planned.get("retrieval cache", 0)
    share = info.plan.cpu_attention.value or 0.0
    windowed = 0 if resident is None else len(info.plan.cache_sizes.window_rows)
    kept = info.experts.parameters * info.plan.dtype.value.itemsize if info.experts else 0
    used = info.experts.used if info.experts else 1.0
    guessing = self_draft + kept if self_draft else weights  # a self-draft shares the experts
    dims, dtype = info.target_dims, info.plan.dtype.value
    heads = heads_of(dims.shape(dtype, META)) if dims else (4, 1)
    make = partial(PassReads.of, layers, experts=kept, used=used, heads=heads)
    reads = Reads(full=make(weights, kv, resident, share, windowed=windowed), retrieval=make(guessing, held))
    if not info.draft_layers:
        return reads
    window = planned.get("streaming cache", 0)
    return replace(reads, draft=PassReads.of(info.draft_layers, info.pass_bytes[1], window, heads=heads))


def _memory(info: EngineInfo, answers: Sequence[tuple[str, DecodeStats]], usual: Bandwidths) -> Choice[float]:
    device, plain = info.plan.device.value, [stats for method, stats in answers if method == PLAIN]
    passes = sum(stats.full_passes for stats in plain)
    seconds = sum(stats.decode_seconds for stats in plain)
    read = passes * (info.pass_bytes[0] - info.idle_expert_bytes) + sum(stats.kv_bytes_read for stats in plain)
    found = bandwidth_of(device, reads_of(info, 0).full, usual.rows, passes, read, seconds)
    if found is None:
        why = "plain decoding took less here than the fixed cost assumed of its passes"
        if not passes:
            why = "plain decoding was not done here yet"
        return Choice(usual.memory.value, f"{usual.memory.because}: {why}")
    return Choice(found, f"as plain decoding read here, over {passes:,} passes")


def _acceptance(info: EngineInfo, seen: tuple[float | None, float | None]) -> Acceptance:
    known = entries().get(info.model)
    before = of_another(usual_acceptance(known.acceptance if known is not None else None), info.model)
    level1, level2 = seen
    if level2 is None:
        return before
    return Acceptance(before.level1 if level1 is None else level1, level2, "seen in this page’s answers")
