"""Published figures of TriForce (arXiv 2404.11912) beside what the plan predicts: `python assets/tools/published.py`.

Prints a table for `assets/docs/gpu.md`, from the plans and forecasts that `doctor` shows for the same machines.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from core.config import EngineConfig, RetrievalConfig
from core.models.hub.shapes import find_shape
from core.models.param_count import size_of
from core.planning.composition import compose
from core.planning.devices import described_gpu, make_rig
from core.planning.forecast import predict, published_at
from core.planning.hardware import Machine

CARD, HOST_GIB = "RTX 4090,23.2,1008,25", 256
CHIP = "A100 80 GB,79,2039,25"


@dataclass(frozen=True)
class Row:
    """One published figure: milliseconds a token, or the speedup alone."""

    model: str
    gpu: str
    count: int
    published: str
    context: int = 122_880
    bits: int | None = None
    share: float | None = None  # of what waits in host memory that the processor attends to; None: the link brings all


ROWS = (
    Row("llama2-7b-128k", CARD, 1, "1516 / 312 (4.86x)"),
    Row("llama2-7b-128k", CARD, 1, "1516 / 312 (4.86x)", share=0.3),
    Row("llama2-7b-128k", CARD, 2, "840 / 108 (7.78x)"),
    Row("lwm-text-chat-128k", CARD, 2, "840 / 114 (7.37x)"),
    Row("llama2-13b-128k", CARD, 2, "1794 / 226 (7.94x)"),
    Row("llama2-7b-128k", CHIP, 1, "2.31x"),
    Row("qwen3-14b-yarn", CARD, 1, "none", 131_072, 4),
    Row("qwen3-32b-yarn", CARD, 1, "none", 131_072, 4),
    Row("qwen3-32b-yarn", CARD, 1, "none", 131_072, 4, share=0.3),
)


def line(row: Row) -> str:
    """The row of the table."""
    shape = find_shape(row.model)
    assert shape is not None
    target, draft = size_of(shape.config, row.model), size_of(shape.draft.config, "draft") if shape.draft else None
    here = Machine("cpu", 16, HOST_GIB << 30, HOST_GIB << 30, ())
    rig = make_rig(here, gpu=described_gpu(row.gpu), num_gpus=row.count, host_gib=HOST_GIB)
    config = EngineConfig(
        context=row.context,
        retrieval=RetrievalConfig(budget=4096, grows=True),
        cpu_attention_share=row.share,
        bits=row.bits,
        num_gpus=row.count,
    )
    plan = compose(target, draft.dims if draft else None, config, rig)
    machine = f"{row.count} x {row.gpu.partition(',')[0]}"
    name = row.model + (f", {row.bits} bits" if row.bits else "") + (f", share {row.share}" if row.share else "")
    budget = plan.config.retrieval.budget
    acceptance = published_at(budget)
    found = predict(plan, plan.nominal, acceptance)
    plain, fast = found.plain_ms_per_token, found.triforce_ms_per_token
    inputs = f"{plan.resident_layers} of {plan.num_layers} layers, budget {budget:,}, "
    inputs += f"{'the draft' if plan.draft else 'no draft'}, accepted {acceptance.level2:.3f}, {found.gamma2} guesses"
    link = f"{found.reads.full.link / 1e9:.1f}"
    told_ms = f"{plain:.0f} / {fast:.0f} ({plain / fast:.2f}x)"
    return f"| {name} | {machine} | {row.published} | {told_ms} | {inputs} | {link} | |"


def main() -> None:
    """Print the table."""
    head = (
        "| model | GPUs | published ms, plain / TriForce | predicted | inputs | GB a pass over each link | measured |"
    )
    print(head, "|---" * 7 + "|", *map(line, ROWS), sep="\n")


if __name__ == "__main__":
    main()
