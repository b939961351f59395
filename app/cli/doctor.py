"""`python launch.py doctor`: a machine's memory and devices, what fits on it and why, and the expected speed.

The machine is this one, or one that the options describe. The model has its files here, or is a config.json, or a name
whose sizes are published. Loads nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app.cli.further import further, further_lines
from app.cli.reading import print_json
from app.documents.sandbox import left_open
from app.runtime.options import engine_config
from app.runtime.versions import versions
from core.config import EngineConfig
from core.decoding.registry import METHODS
from core.errors import InvalidSetting, NotEnoughMemory
from core.models.hub.catalog import find, is_here
from core.models.hub.draft_selection import AUTO, NONE, pair
from core.models.hub.shapes import find_shape
from core.models.hub.store import weight_files
from core.models.loader import read_config
from core.models.param_count import STORED_BITS, ModelSize, size_in, size_of
from core.ops.compilers import INSTALL
from core.planning.composition import RigPlan, compose_rig
from core.planning.devices import Rig, described_gpu, make_rig
from core.planning.forecast import (
    PUBLISHED,
    PUBLISHED_BUDGET,
    Acceptance,
    Prediction,
    bandwidths,
    lengths_below,
    of_another,
    predict,
    published_at,
    usual_acceptance,
)
from core.planning.hardware import this_machine
from core.planning.plan import Plan
from core.planning.sizes import kv_bytes_per_token

GIB = float(1 << 30)
APPLE_GPU = "none with CUDA: Apple's shares the memory of the processor and is not used"
NO_COMPILER = (
    f"Kernels    none, as there is no C++ compiler: 4-bit files are widened to 32 bits and slow. Run: {INSTALL}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model to plan for."""

    name: str
    description: str
    target: ModelSize
    draft: ModelSize | None
    acceptance: Acceptance
    has_files: bool  # False: only sizes are known


def run(args: argparse.Namespace) -> int:
    """Inspect, plan and report. Returns 0.

    Raises:
        CoreError: the model or the machine is unknown, or it does not fit (with alternatives).
    """
    config = engine_config(args)
    subject = find_subject(config.model, args.acceptance, config.draft_model)
    rig = make_rig(
        this_machine(),
        assume=args.assume,
        gpu_gib=args.gpu_memory,
        num_gpus=args.gpus,
        host_gib=args.host_memory,
        gpu=described_gpu(args.gpu) if args.gpu is not None else None,
    )
    config, target = with_budget(config, args.budget, subject, rig), subject.target
    try:
        told = compose_rig(target, subject.draft, config, rig, args.bits)
    except NotEnoughMemory as error:
        known = not rig.assumed or args.host_memory is not None
        if error.largest_context is None or not rig.machine.gpus or known:
            raise
        here = f"{error.hint.removesuffix('.')}, or tell that machine's --host-memory: it was taken to be as here."
        raise NotEnoughMemory(error.problem, hint=here, largest_context=error.largest_context) from None
    chosen = told.plan.composition
    acceptance, draft = subject.acceptance, subject.draft if chosen and chosen.value.has_draft else None
    settled = told.plan.settled(config)
    if PUBLISHED.because in acceptance.because:
        acceptance = published_at(settled.retrieval.budget)
    acceptance = of_another(acceptance, subject.name)
    rates, planned = bandwidths(told.plan, rig), told.plan.context.value
    expected = [
        predict(target, draft, settled, told.plan, rates, acceptance, length)
        for length in (*lengths_below(planned), planned)
    ]
    more = further(subject, rig, told, config, args.bits)
    if args.json:
        print_json({**report(subject, rig, told, expected), **asdict(more)})
    else:
        print("\n".join([*lines(subject, rig, told, expected), *further_lines(more)]))
    return 0


def find_subject(name: str, acceptance: Sequence[float] | None = None, draft: str = "auto") -> Subject:
    """The model by its name, its folder, or its config.json, with its draft.

    Raises:
        UnknownModel, DamagedAssets, UnsupportedModel; InvalidSetting: an invalid acceptance.
    """
    given = None
    if acceptance is not None:
        if len(acceptance) != 2 or not all(0 <= value < 1 for value in acceptance):
            raise InvalidSetting(
                "--acceptance is not usable.", hint="Give both levels between 0 and 1, for example 0.3,0.92."
            )
        given = Acceptance(acceptance[0], acceptance[1], "as given")
    file, shape = Path(name).expanduser(), find_shape(name)
    if file.is_file() and file.suffix == ".json":
        size = size_of(read_config(file), file.name)
        return Subject(
            name=file.name,
            description="a configuration, without weights",
            target=size,
            draft=None,
            acceptance=given or PUBLISHED,
            has_files=False,
        )
    if shape is not None and not (file / "config.json").is_file() and not is_here(name):
        small = find_shape(draft) if draft not in (AUTO, NONE) else shape.draft if draft == AUTO else None
        drafting = small.size() if small else None
        return Subject(
            name=shape.name,
            description=shape.description,
            target=shape.size(),
            draft=drafting,
            acceptance=given or PUBLISHED,
            has_files=False,
        )
    entry = find(name)
    has_files = bool(weight_files(entry.target))
    entry = pair(name, draft) if has_files else entry
    return Subject(
        name=entry.name,
        description=entry.description,
        target=size_in(entry.target, entry.overrides),
        draft=size_in(entry.draft) if entry.draft else None,
        acceptance=given or usual_acceptance(entry.acceptance),
        has_files=has_files,
    )


def with_budget(config: EngineConfig, budget: int | None, subject: Subject, rig: Rig) -> EngineConfig:
    """Set the requested retrieval budget; with published acceptance and nothing to run here, the published budget.

    Raises:
        InvalidSetting: an invalid budget.
    """
    imagined = bool(rig.assumed) or not subject.has_files
    if budget is not None:
        return replace(config, retrieval=replace(config.retrieval, budget=budget, grows=False))
    if imagined and PUBLISHED.because in subject.acceptance.because:
        return replace(config, retrieval=replace(config.retrieval, budget=PUBLISHED_BUDGET))
    return config


def report(subject: Subject, rig: Rig, told: RigPlan, expected: Sequence[Prediction]) -> dict[str, Any]:
    """The JSON of doctor.

    Args:
        expected: by length of text, that at the planned context last.
    """
    plan = told.plan
    memory: dict[str, int] = {}
    for tier in told.tiers:
        for row in tier.rows:
            memory[row.name] = memory.get(row.name, 0) + row.size_bytes
    dims = subject.target.dims
    return {
        "model": subject.name,
        "machine": {**asdict(rig.machine), "assumed": list(rig.assumed)},
        "versions": versions(),
        "sizes": {
            "parameters": subject.target.num_parameters,
            "weight_bytes": {str(bits): subject.target.weight_bytes(bits) for bits in STORED_BITS},
            "kv_bytes_per_token": kv_bytes_per_token(dims, dims.disk_dtype),
            "kv_bytes_per_token_here": kv_bytes_per_token(replace(dims, kv_dtype=plan.kv.value), plan.dtype.value),
            "layers": dims.num_layers,
            "kv_heads": dims.num_kv_heads,
            "most_context": dims.max_context,
            "files_here": subject.has_files,
        },
        "plan": {
            "device": asdict(plan.device),
            "dtype": {"value": dtype_name(plan), "because": plan.dtype.because},
            "bits": asdict(plan.bits),
            "self_draft_bits": asdict(told.self_draft_bits),
            "placement": asdict(plan.placement),
            "resident_layers": plan.resident_layers,
            "cpu_attention": asdict(plan.cpu_attention),
            "budget": asdict(plan.budget) if plan.budget else None,
            "context": asdict(plan.context),
            "most_context": plan.most_context,
            "most_context_resident": plan.most_on_device,
            "memory": memory,
            "total_bytes": sum(memory.values()),
            "available_bytes": sum(tier.free_bytes for tier in told.tiers),
            "tiers": [
                {
                    "name": tier.name,
                    "total_bytes": tier.total_bytes,
                    "usable_bytes": tier.usable_bytes,
                    "used_bytes": tier.used_bytes,
                    "memory": {row.name: row.size_bytes for row in tier.rows},
                }
                for tier in told.tiers
            ],
            "runs_in_this_version": asdict(told.runs),
        },
        "composition": asdict(plan.composition) if plan.composition else None,
        "prediction": asdict(expected[-1])
        | {
            "by_length": [
                {
                    "tokens": one.context,
                    "plain_ms_per_token": one.plain_ms_per_token,
                    "triforce_ms_per_token": one.triforce_ms_per_token,
                }
                for one in expected
            ]
        },
    }


def dtype_name(plan: Plan) -> str:
    """float16, for example."""
    return plan.precision


def lines(subject: Subject, rig: Rig, told: RigPlan, expected: Sequence[Prediction]) -> list[str]:
    """The lines of doctor for people."""
    machine, target, plan, chosen = rig.machine, subject.target, told.plan, told.plan.composition
    gpus = [
        f"GPU        {gpu.name}, {gpu.free_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB free"
        for gpu in machine.gpus
    ]
    missing = APPLE_GPU if sys.platform == "darwin" and not rig.assumed else "none"
    if machine.unused_gpu is not None:
        missing = f"{machine.unused_gpu.because} {machine.unused_gpu.hint}"
    described = [f"Assumed    {', '.join(rig.assumed)}: this plan is not for this machine"]
    weights = " / ".join(f"{target.weight_bytes(bits) / GIB:.1f}" for bits in (16, 8, 4))
    kv = kv_bytes_per_token(target.dims, target.dims.disk_dtype)
    here = kv_bytes_per_token(replace(target.dims, kv_dtype=plan.kv.value), plan.dtype.value)
    width = "" if here == kv else f", {here / 1024:.0f} KiB as kept here"
    stored = plan.device.value == "cpu" and plan.bits.value == 32 and machine.compiles
    kept = "as stored: the compiled kernel multiplies with them as their file has them, sums have 32 bits"
    shown = [
        *(described if rig.assumed else []),
        f"Processor  {', '.join((machine.cpu, f'{machine.num_cores} cores', *machine.abilities))}",
        f"Memory     {machine.free_ram_bytes / GIB:.1f} of {machine.ram_bytes / GIB:.1f} GiB free",
        *(gpus or [f"GPU        {missing}"]),
        *([] if rig.assumed or machine.compiles else [NO_COMPILER]),
        *([] if rig.assumed else [parsers_line(left_open())]),
        "",
        f"Model      {subject.name}: {subject.description}",
        f"Sizes      {target.num_parameters / 1e9:.3g} billion parameters, {weights} GiB at 16 / 8 / 4 bits; "
        f"{kv / 1024:.0f} KiB of keys and values a token{width}",
        f"Device     {plan.device.value}: {plan.device.because}",
        f"Precision  {dtype_name(plan)}: {plan.dtype.because}",
        f"Cache      {str(plan.kv.value or plan.dtype.value).removeprefix('torch.')}: {plan.kv.because}",
        f"Weights    {kept if stored else f'{plan.bits.value} bits: {plan.bits.because}'}",
        f"Self-draft {told.self_draft_bits.value} bits: {told.self_draft_bits.because}",
        *([f"Decodes by {METHODS[chosen.value.method].label}: {chosen.because}"] if chosen else []),
        *(
            [f"Budget     {plan.budget.value:,} tokens in the retrieval cache: {plan.budget.because}"]
            if plan.budget
            else []
        ),
        f"Placement  {plan.placement.value}: {plan.placement.because}",
        *host_lines(told),
        f"Context    {plan.context.value:,} tokens: {plan.context.because}",
        f"           at most {plan.most_context:,}; up to {plan.most_on_device:,} without any in host memory"
        if told.num_gpus
        else f"           at most {plan.most_context:,}",
    ]
    for tier in told.tiers:
        shown += [
            "",
            f"{tier.name}: {tier.used_bytes / GIB:.2f} GiB of {tier.usable_bytes / GIB:.1f} that can be used",
            *(f"  {row.size_bytes / GIB:7.2f} GiB  {row.name}" for row in tier.rows),
        ]
    return [*shown, "", *speed_lines(expected), *([] if told.runs.value else ["", f"Note: {told.runs.because}."])]


def parsers_line(left: Sequence[str]) -> str:
    """What a hostile document could reach here if it took over its parser."""
    if not left:
        return "Parsers    read their own document and no other file of yours, and reach no network"
    return f"Parsers    are not kept from {' and '.join(left)}: this system cannot (Linux with Landlock can)"


def host_lines(told: RigPlan) -> list[str]:
    """The host's share of attention over rows in host memory; none if no rows are there."""
    if not told.plan.layers_away:
        return []
    share, because = told.plan.cpu_attention.value, told.plan.cpu_attention.because
    if share is None:
        return [f"Host       its share of the attention is {because}; predicted without"]
    return [f"Host       attends to {share:.0%} of what waits there: {because}"]


def speed_lines(expected: Sequence[Prediction]) -> list[str]:
    """The expected speed by length of text, and what the estimate rests on."""
    prediction = expected[-1]
    level1 = "" if prediction.acceptance1 is None else f"{prediction.acceptance1:.2f} / "
    shown = ["Predicted, modelled and not measured:"]
    for one in expected:
        plain, fast = (
            f"{ms:.1f} ms/token, {1e3 / ms:.3g} tokens/s" for ms in (one.plain_ms_per_token, one.triforce_ms_per_token)
        )
        where = ", the planned context" if one is prediction else ""
        guessed = f"with guesses {fast}" if one.gamma2 else "no guess pays"
        shown.append(f"  {one.context:,} tokens{where}: plain decoding {plain}; {guessed}")
    shown.append(f"  memory {prediction.bandwidth_bytes_per_second / 1e9:.1f} GB/s, {prediction.bandwidth_because}")
    if prediction.link_bytes_per_second is not None:
        shown.append(
            f"  link {prediction.link_bytes_per_second / 1e9:.1f} GB/s, {prediction.link_because}; "
            f"{prediction.link_bytes_per_full_pass / 1e9:.1f} GB cross it in a pass over the full cache"
        )
    if prediction.host_bytes_per_second is not None:
        shown.append(
            f"  host {prediction.host_bytes_per_second / 1e9:.1f} GB/s, {prediction.host_because}; it attends to "
            f"{prediction.host_bytes_per_full_pass / 1e9:.1f} GB where they lie"
        )
    told = f"  guesses are accepted {level1}{prediction.acceptance2:.2f}, {prediction.acceptance_because}"
    return [*shown, f"{told}; not counted: what lookups find"]
