"""`python launch.py doctor`: a machine's memory and devices, what fits on it and why, and the expected speed.

The machine is this one, or one that the options describe. The model has its files here, or is a config.json, or a name
whose sizes are published. Loads nothing.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app.cli.output import print_json
from app.documents.sandbox import left_open
from app.formats import duration
from app.runtime.options import engine_config
from app.runtime.versions import versions
from core.config import EngineConfig
from core.decoding.registry import METHODS
from core.engine_builder import PairFiles
from core.errors import CoreError, NotEnoughMemory
from core.models.hub.catalog import find, is_here
from core.models.hub.draft_selection import AUTO, NONE
from core.models.hub.shapes import find_shape
from core.models.hub.store import weight_files
from core.models.loader import ModelDims, read_config, read_dims
from core.models.param_count import STORED_BITS, ModelSize, size_in, size_of
from core.ops.compilers import INSTALL
from core.planning.composition import compose, tiers_of
from core.planning.devices import Rig, described_gpu, make_rig
from core.planning.fit import MOST_CONTEXT
from core.planning.forecast import (
    PUBLISHED_BUDGET,
    Acceptance,
    Prediction,
    bandwidths,
    predict,
    reading_seconds,
    usual_acceptance,
)
from core.planning.hardware import this_machine
from core.planning.plan import Plan
from core.planning.sizes import kv_bytes_per_token

GIB = float(1 << 30)
CHOSEN = ("device", "bits", "self_draft_bits", "placement", "cpu_attention", "context")  # of a plan, with reasons
TOLD_LENGTHS = (2_000, 8_000, 32_000)  # tokens of text for which speeds are shown beside the planned context
APPLE_GPU = "none with CUDA: Apple's shares the memory of the processor and is not used"
NO_COMPILER = (
    f"Kernels    none, as there is no C++ compiler: 4-bit files are widened to 32 bits and slow. Run: {INSTALL}"
)


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to plan for."""

    name: str
    description: str
    target: ModelSize
    draft: ModelDims | None = None
    measured: tuple[float, float] | None = None  # acceptance of both levels
    has_files: bool = False  # False: only sizes are known


def run(args: argparse.Namespace) -> int:
    """Inspect, plan and report. Returns 0.

    Raises:
        CoreError: the model or the machine is unknown, or it does not fit (with alternatives).
    """
    config = replace(engine_config(args), gpu_memory_gib=None)  # which is that of a described machine
    subject = find_subject(config.model, config.draft_model)
    given = Acceptance(args.acceptance[0], args.acceptance[1], "as given") if args.acceptance else None
    rig = make_rig(
        this_machine(),
        assume=args.assume,
        gpu_gib=args.gpu_memory,
        num_gpus=args.gpus,
        host_gib=args.host_memory,
        gpu=described_gpu(args.gpu) if args.gpu is not None else None,
    )
    count = max(1, len(rig.machine.gpus)) if rig.kind is not None else config.num_gpus
    config = replace(config, num_gpus=count)
    if args.budget is not None:
        config = replace(config, retrieval=replace(config.retrieval, budget=args.budget, grows=False))
    elif given is None and subject.measured is None and (rig.assumed or not subject.has_files):
        config = replace(config, retrieval=replace(config.retrieval, budget=PUBLISHED_BUDGET))
    try:
        plan = compose(subject.target, subject.draft, config, rig)
    except NotEnoughMemory as error:
        known = not rig.assumed or args.host_memory is not None
        if error.largest_context is None or not rig.machine.gpus or known:
            raise
        here = f"{error.hint.removesuffix('.')}, or tell that machine's --host-memory: it was taken to be as here."
        raise NotEnoughMemory(error.problem, hint=here, largest_context=error.largest_context) from None
    budget = plan.config.retrieval.budget
    expected = forecast(plan, given or usual_acceptance(subject.name, subject.measured, budget))
    told = report(subject, plan, expected) | {"proposal": "" if args.bits else narrower(subject, plan, config)}
    if args.json:
        print_json(told)
    else:
        print("\n".join(lines(told, subject, plan, expected)))
    return 0


def forecast(plan: Plan, acceptance: Acceptance) -> list[Prediction]:
    """How fast a plan answers, by length of text; that at the planned context comes last."""
    rates, planned = bandwidths(plan), plan.context.value
    lengths = (*(length for length in TOLD_LENGTHS if length < planned), planned)
    return [predict(plan, rates, acceptance, length) for length in lengths]


def narrower(subject: Subject, plan: Plan, config: EngineConfig) -> str:
    """A proposal of 8-bit or 4-bit weights where more of the context would then lie beside them."""
    resident, most = plan.placement.value == "resident", min(plan.model.max_context, MOST_CONTEXT)
    if plan.ranks > 1 or (resident and (config.context is not None or plan.context.value >= most)):
        return ""  # ranks share no quantised weights
    for bits in (8, 4):
        if bits >= plan.bits.value:
            return ""
        try:
            narrow = replace(config, context=plan.context.value, bits=bits)
            other = compose(subject.target, subject.draft, narrow, plan.rig)
        except CoreError:
            continue
        if other.placement.value == "resident" and not resident:
            return f"With --bits {bits} all {plan.context.value:,} tokens would lie beside the weights"
        if other.most_context > plan.most_context:
            return f"With --bits {bits} a context of {other.most_context:,} tokens would fit"
    return ""


# -------------------- the model


def find_subject(name: str, draft: str = AUTO) -> Subject:
    """The model by its name, its folder, or its config.json, with its draft; of files that are here as they are loaded.

    Raises:
        UnknownModel, DamagedAssets, UnsupportedModel.
    """
    file, shape = Path(os.path.expanduser(name)), find_shape(name)
    if file.is_file() and file.suffix == ".json":
        return Subject(file.name, "a configuration, without weights", size_of(read_config(file), file.name))
    if shape is not None and not (file / "config.json").is_file() and not is_here(name):
        own = shape.draft.size().dims if shape.draft else None
        return Subject(shape.name, shape.description, shape.size(), own if draft == AUTO else draft_dims(draft))
    entry = find(name)
    if not weight_files(entry.target):
        return Subject(entry.name, entry.description, size_in(entry.target))
    files = PairFiles.find(name, draft)
    return Subject(entry.name, entry.description, files.size(), files.draft, entry.acceptance, has_files=True)


def draft_dims(name: str) -> ModelDims | None:
    """A wanted draft's, which need not be here; None: none is wanted. Raises UnknownModel."""
    if name == NONE:
        return None
    shape = find_shape(name)
    return shape.size().dims if shape else read_dims(find(name).target)


# -------------------- for programs


def report(subject: Subject, plan: Plan, expected: Sequence[Prediction]) -> dict[str, Any]:
    """The JSON of doctor."""
    target, tiers, dims = subject.target, tiers_of(plan), subject.target.dims
    reading, flops = min(plan.model.max_context, MOST_CONTEXT), bandwidths(plan).products
    memory: dict[str, int] = {}
    for row in (row for tier in tiers for row in tier.rows):
        memory[row.name] = memory.get(row.name, 0) + row.size_bytes
    return {
        "model": subject.name,
        "machine": {**asdict(plan.rig.machine), "assumed": list(plan.rig.assumed)},
        "versions": versions(),
        "sizes": {
            "parameters": target.num_parameters,
            "weight_bytes": {str(bits): target.weight_bytes(bits) for bits in STORED_BITS},
            "kv_bytes_per_token": kv_bytes_per_token(dims, dims.disk_dtype),
            "kv_bytes_per_token_here": kv_bytes_per_token(replace(dims, kv_dtype=plan.kv.value), plan.dtype.value),
            "layers": dims.num_layers,
            "kv_heads": dims.num_kv_heads,
            "most_context": dims.max_context,
            "files_here": subject.has_files,
        },
        "plan": {
            **{name: asdict(getattr(plan, name)) for name in CHOSEN},
            "dtype": {"value": plan.precision, "because": plan.dtype.because},
            "resident_layers": plan.resident_layers,
            "budget": asdict(plan.budget) if plan.budget else None,
            "most_context": plan.most_context,
            "most_context_resident": plan.most_on_device,
            "memory": memory,
            "total_bytes": sum(memory.values()),
            "available_bytes": sum(tier.free_bytes for tier in tiers),
            "tiers": [
                {
                    "name": tier.name,
                    "total_bytes": tier.total_bytes,
                    "usable_bytes": tier.usable_bytes,
                    "used_bytes": tier.used_bytes,
                    "memory": {row.name: row.size_bytes for row in tier.rows},
                }
                for tier in tiers
            ],
        },
        "composition": asdict(plan.composition) if plan.composition else None,
        "prediction": {
            **forecast_report(expected[-1]),
            "by_length": [
                {
                    "tokens": one.context,
                    "plain_ms_per_token": one.plain_ms_per_token,
                    "triforce_ms_per_token": one.triforce_ms_per_token,
                }
                for one in expected
            ],
        },
        "reading_tokens": reading,  # of a text as long as the model reads, up to 128K
        "reading_seconds": reading_seconds(reading, plan.model, target.active_parameters, flops.value)
        if flops.value
        else None,
        "reading_because": flops.because,
    }


def forecast_report(expected: Prediction) -> dict[str, Any]:
    """A forecast, and what it rests on."""
    rates, reads, acceptance = expected.rates, expected.reads, expected.acceptance
    return {
        "context": expected.context,
        "bandwidth_bytes_per_second": rates.memory.value,
        "bandwidth_because": rates.memory.because,
        "link_bytes_per_second": rates.link.value if rates.link else None,
        "link_because": rates.link.because if rates.link else None,
        "link_bytes_per_full_pass": reads.full.link,
        "host_bytes_per_full_pass": reads.full.host,
        "host_bytes_per_second": rates.host.value if rates.host else None,
        "host_because": rates.host.because if rates.host else None,
        "plain_ms_per_token": expected.plain_ms_per_token,
        "triforce_ms_per_token": expected.triforce_ms_per_token,
        "plain_tokens_per_second": 1e3 / expected.plain_ms_per_token,
        "triforce_tokens_per_second": 1e3 / expected.triforce_ms_per_token,
        "acceptance1": acceptance.level1 if reads.draft else None,
        "acceptance2": acceptance.level2,
        "acceptance_because": acceptance.because,
        "gamma1": expected.gamma1,
        "gamma2": expected.gamma2,
    }


# -------------------- for people


def lines(told: dict[str, Any], subject: Subject, plan: Plan, expected: Sequence[Prediction]) -> list[str]:
    """The report for people."""
    seconds, shown = told["reading_seconds"], [*machine_lines(plan.rig), "", *plan_lines(told["sizes"], subject, plan)]
    for tier in told["plan"]["tiers"]:
        used, usable = tier["used_bytes"] / GIB, tier["usable_bytes"] / GIB
        shown += ["", f"{tier['name']}: {used:.2f} GiB of {usable:.1f} that can be used"]
        shown += [f"  {size / GIB:7.2f} GiB  {name}" for name, size in tier["memory"].items()]
    shown += ["", *speed_lines(expected)]
    took = "-" if seconds is None else f"about {duration(seconds)}"
    shown.append(f"  reading {told['reading_tokens']:,} tokens: {took}, {told['reading_because']}")
    if told["proposal"]:
        shown += ["", f"Note: {told['proposal']}; answers are then exact for the quantised model."]
    return shown


def machine_lines(rig: Rig) -> list[str]:
    """The machine, and of this one what it lacks."""
    machine = rig.machine
    gpus = [
        f"GPU        {gpu.name}, {gpu.free_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB free"
        for gpu in machine.gpus
    ]
    missing = APPLE_GPU if sys.platform == "darwin" and not rig.assumed else "none"
    if machine.unused_gpu is not None:
        missing = f"{machine.unused_gpu.because} {machine.unused_gpu.hint}"
    shown = [
        f"Processor  {', '.join((machine.cpu, f'{machine.num_cores} cores', *machine.abilities))}",
        f"Memory     {machine.free_ram_bytes / GIB:.1f} of {machine.ram_bytes / GIB:.1f} GiB free",
        *(gpus or [f"GPU        {missing}"]),
    ]
    if rig.assumed:
        return [f"Assumed    {', '.join(rig.assumed)}: this plan is not for this machine", *shown]
    return [*shown, *([] if machine.compiles else [NO_COMPILER]), parsers_line(left_open())]


def parsers_line(left: Sequence[str]) -> str:
    """What a hostile document could reach here if it took over its parser."""
    if not left:
        return "Parsers    read their own document and no other file of yours, and reach no network"
    return f"Parsers    are not kept from {' and '.join(left)}: this system cannot (Linux with Landlock can)"


def plan_lines(sizes: dict[str, Any], subject: Subject, plan: Plan) -> list[str]:
    """The model, and every choice of the plan with its reason."""
    target, chosen = subject.target, plan.composition
    kv, here = sizes["kv_bytes_per_token"], sizes["kv_bytes_per_token_here"]
    weights = " / ".join(f"{target.weight_bytes(bits) / GIB:.1f}" for bits in (16, 8, 4))
    width = "" if here == kv else f", {here / 1024:.0f} KiB as kept here"
    kept = "as stored: the compiled kernel multiplies with them as their file has them, sums have 32 bits"
    shown = [
        f"Model      {subject.name}: {subject.description}",
        f"Sizes      {target.num_parameters / 1e9:.3g} billion parameters, {weights} GiB at 16 / 8 / 4 bits; "
        f"{kv / 1024:.0f} KiB of keys and values a token{width}",
        f"Device     {plan.device.value}: {plan.device.because}",
        f"Precision  {plan.precision}: {plan.dtype.because}",
        f"Cache      {str(plan.kv.value or plan.dtype.value).removeprefix('torch.')}: {plan.kv.because}",
        f"Weights    {kept if plan.as_stored else f'{plan.bits.value} bits: {plan.bits.because}'}",
        f"Self-draft {plan.self_draft_bits.value} bits: {plan.self_draft_bits.because}",
    ]
    if chosen:
        shown.append(f"Decodes by {METHODS[chosen.value.method].label}: {chosen.because}")
    if plan.budget:
        shown.append(f"Budget     {plan.budget.value:,} tokens in the retrieval cache: {plan.budget.because}")
    shown.append(f"Placement  {plan.placement.value}: {plan.placement.because}")
    share = plan.cpu_attention
    if plan.layers_away and share.value is None:
        shown.append(f"Host       its share of the attention is {share.because}; predicted without")
    elif plan.layers_away:
        shown.append(f"Host       attends to {share.value:.0%} of what waits there: {share.because}")
    shown.append(f"Context    {plan.context.value:,} tokens: {plan.context.because}")
    without = f"; up to {plan.most_on_device:,} without any in host memory" if plan.on_gpu else ""
    return [*shown, f"           at most {plan.most_context:,}{without}"]


def speed_lines(expected: Sequence[Prediction]) -> list[str]:
    """The expected speed by length of text, and what the estimate rests on."""
    prediction = expected[-1]
    rates, acceptance, full = prediction.rates, prediction.acceptance, prediction.reads.full
    level1 = f"{acceptance.level1:.2f} / " if prediction.reads.draft else ""
    shown = ["Predicted, modelled and not measured:"]
    for text in expected:
        plain, fast = (
            f"{ms:.1f} ms/token, {1e3 / ms:.3g} tokens/s"
            for ms in (text.plain_ms_per_token, text.triforce_ms_per_token)
        )
        where = ", the planned context" if text is prediction else ""
        guessed = f"with guesses {fast}" if text.gamma2 else "no guess pays"
        shown.append(f"  {text.context:,} tokens{where}: plain decoding {plain}; {guessed}")
    shown.append(f"  memory {rates.memory.value / 1e9:.1f} GB/s, {rates.memory.because}")
    if rates.link is not None:
        crossing = f"{full.link / 1e9:.1f} GB cross it in a pass over the full cache"
        shown.append(f"  link {rates.link.value / 1e9:.1f} GB/s, {rates.link.because}; {crossing}")
    if rates.host is not None:
        attended = f"it attends to {full.host / 1e9:.1f} GB where they lie"
        shown.append(f"  host {rates.host.value / 1e9:.1f} GB/s, {rates.host.because}; {attended}")
    told = f"  guesses are accepted {level1}{acceptance.level2:.2f}, {acceptance.because}"
    return [*shown, f"{told}; not counted: what lookups find"]
