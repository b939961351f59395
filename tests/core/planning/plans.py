"""Plans and forecasts of many models on many machines, as figures.

`python -m tests.core.planning.plans` writes `plans.json` anew, which `test_plan` holds the code to.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from core.config import EngineConfig, RetrievalConfig
from core.errors import CoreError
from core.models.hub.catalog import entries, find
from core.models.hub.shapes import find_shape
from core.models.loader import ModelDims
from core.models.param_count import ModelSize, size_in
from core.planning.composition import compose, tiers_of
from core.planning.devices import Rig, described_gpu, make_rig
from core.planning.forecast import predict, published_at, reading_seconds
from core.planning.hardware import Machine
from core.planning.plan import Plan

FILE = Path(__file__).with_name("plans.json")
GIB = 1 << 30
HOST = Machine("cpu", 16, 128 * GIB, 128 * GIB, ())
CARD = "RTX 4090,{},1008,25"
MACHINES: dict[str, dict[str, Any]] = {
    **{f"4090 with {gib}": {"gpu": CARD.format(gib), "host_gib": 128} for gib in (23.2, 22.5, 22.0)},
    "two 4090": {"gpu": CARD.format(23.2), "num_gpus": 2, "host_gib": 128},
    "card of 8": {"gpu": "card,7.4,272,12", "host_gib": 32},
    "A100": {"gpu": "A100,79,2039,25", "host_gib": 256},
    "H200": {"gpu": "H200,139,4800,50", "host_gib": 256},
    **{f"cpu with {gib}": {"assume": "cpu", "host_gib": gib} for gib in (8, 16, 24, 64)},
}
NAMES = ["harbour", *(name for name, row in entries().items() if row.config)]


@dataclass(frozen=True)
class Case:
    """A model on a described machine, as `doctor` plans it; or as an engine does, on a processor with the kernel."""

    model: str
    machine: str
    context: int | None
    bits: int | None = None
    loads: bool = False
    limit: float | None = None  # GiB, of an engine
    share: float | None = None  # of the blocks in host memory that the host attends to

    @property
    def name(self) -> str:
        """For people, and in the file."""
        more = [f"{self.bits} bits"] if self.bits else []
        more += ["loading"] if self.loads else []
        more += [f"of {self.limit} GiB"] if self.limit else []
        more += [f"host {self.share}"] if self.share else []
        return ", ".join((self.model, self.machine, str(self.context), *more))


@cache
def sizes_of(model: str) -> tuple[ModelSize, ModelSize | None]:
    """Of a target and of its draft."""
    shape = find_shape(model)
    if shape is not None:
        return shape.size(), shape.draft.size() if shape.draft else None
    entry = find(model)
    return size_in(entry.target), size_in(entry.draft) if entry.draft else None


def planned(case: Case) -> Plan:
    """The plan."""
    target, draft = sizes_of(case.model)
    retrieval = RetrievalConfig(budget=4096, grows=True)
    config = EngineConfig(context=case.context, retrieval=retrieval, bits=case.bits, cpu_attention_share=case.share)
    given = dict(MACHINES[case.machine])
    assumed = given.get("num_gpus", 1)
    gpu = described_gpu(given.pop("gpu")) if "gpu" in given else None
    rig = make_rig(HOST, gpu=gpu, **given)
    if not case.loads:
        config = replace(config, num_gpus=assumed)
        return compose(target, draft.dims if draft else None, config, rig)
    config = replace(config, gpu_memory_gib=case.limit)
    here = Rig(machine=replace(rig.machine, compiles=True, num_cores=2))
    return compose(replace(target, dims=stored(target)), stored(draft) if draft else None, config, here)


def stored(size: ModelSize) -> ModelDims:
    """As if its weights were there, in 16 bits."""
    return replace(size.dims, weight_bytes=2 * size.num_parameters)


def figures(case: Case) -> dict[str, Any]:
    """All figures of a case; of a refusal the largest context that would fit."""
    try:
        plan = planned(case)
    except CoreError as error:
        return {"refused": getattr(error, "largest_context", None)}
    target = sizes_of(case.model)[0]
    chosen = plan.composition
    assert chosen is not None and plan.budget is not None
    acceptance = published_at(plan.budget.value)
    ms = [predict(plan, plan.nominal, acceptance, length) for length in (2000, plan.context.value)]
    one = plan.prefill_chunk, plan.prefill_block.value
    found: dict[str, Any] = {
        "computes": [plan.device.value, plan.precision, plan.bits.value, plan.cpu_attention.value],
        "context": [
            plan.context.value,
            plan.most_context,
            0 if case.loads else plan.most_on_device,
            plan.most_resident,
        ],
        "layers": [plan.placement.value, plan.resident_layers, plan.num_layers],
        "reads": [*one, round(reading_seconds(plan.context.value, target.dims, target.active_parameters, 1e13), 3)],
        "guesses": [*asdict(chosen.value).values(), plan.budget.value, plan.most_guesses],
        "rows": {row.name: row.size_bytes for row in plan.rows},
        "host": {row.name: row.size_bytes for row in plan.host_rows},
        "ms": [[round(x, 4) for x in (one.plain_ms_per_token, one.triforce_ms_per_token)] for one in ms],
        "gamma": [ms[-1].gamma1, ms[-1].gamma2],
        "GB over the link": round(ms[-1].reads.full.link / 1e9, 4),
    }
    if not case.loads:
        found["memories"] = [[tier.usable_bytes, tier.used_bytes] for tier in tiers_of(plan)]
        found["self-draft bits"] = plan.self_draft_bits.value
    return found


def few_cases() -> list[Case]:
    """Those that `plans.json` has: each model somewhere, and the cases that the docs tell."""
    cards = ("4090 with 23.2", "4090 with 22.5", "4090 with 22.0", "two 4090", "A100", "H200")
    found = [Case("llama2-7b-128k", machine, 122_880) for machine in cards]
    found += [Case(name, "4090 with 23.2", 122_880, bits=4) for name in ("qwen3-14b-yarn", "qwen3-32b-yarn")]
    found += [Case("qwen3-14b-yarn", "4090 with 23.2", 8192, bits=8), Case("qwen3-30b-a3b-2507", "H200", 32_768)]
    found += [Case("llama2-7b-128k", machine, 122_880, share=0.5) for machine in ("4090 with 23.2", "two 4090")]
    found += [Case("llama-3.1-8b", "two 4090", 122_880, bits=4), Case("lwm-text-chat-128k", "two 4090", 122_880)]
    found += [Case(name, "4090 with 22.5", 32_768) for name in NAMES]
    found += [Case(name, "cpu with 16", 32_768, loads=True) for name in NAMES]
    found += [Case("harbour", f"cpu with {gib}", None, loads=True) for gib in (8, 16, 24, 64)]
    found += [Case("qwen3-4b-2507", f"cpu with {gib}", None, loads=True) for gib in (8, 16, 24, 64)]
    found += [Case("llama-3.1-8b", "cpu with 64", 32_768, loads=True, limit=gib) for gib in (0.5, 12, 20)]
    return [*found, Case("qwen3-8b", "card of 8", 32_768, bits=4, loads=True)]


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(case.name)}: {json.dumps(figures(case))}" for case in few_cases())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
