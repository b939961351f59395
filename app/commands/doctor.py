"""`python launch.py doctor`: what this machine has, what fits on it, and why."""

import argparse
import platform
from dataclasses import asdict
from typing import Any

import torch
import transformers

from app.commands.reading import engine_config, print_json
from core.hardware import Machine, this_machine
from core.models.catalog import find
from core.models.loader import read_dims
from core.planner import Plan, make_plan
from core.roofline import Prediction, measure_bandwidth, predict


def run(args: argparse.Namespace) -> int:
    """Look, plan, tell. Returns 0.

    Raises:
        CoreError: the model is unknown, or does not fit (with what would).
    """
    config = engine_config(args)
    entry = find(config.model)
    target = read_dims(entry.target)
    draft = read_dims(entry.draft) if entry.draft else None
    machine = this_machine()
    plan = make_plan(target, draft, config, machine)
    prediction = predict(target, draft, config, plan, measure_bandwidth(torch.device(plan.device.value)))
    if args.json:
        print_json(report(entry.name, machine, plan, prediction))
    else:
        print("\n".join(lines(entry.name, machine, plan, prediction)))
    return 0


def report(model: str, machine: Machine, plan: Plan, prediction: Prediction) -> dict[str, Any]:
    """The JSON of doctor."""
    return {
        "model": model,
        "machine": asdict(machine),
        "versions": versions(),
        "plan": {
            "device": {"value": plan.device.value, "because": plan.device.because},
            "dtype": {"value": str(plan.dtype.value).removeprefix("torch."), "because": plan.dtype.because},
            "placement": {"value": plan.placement.value, "because": plan.placement.because},
            "context": {"value": plan.context.value, "because": plan.context.because},
            "most_context": plan.most_context,
            "memory": {row.name: row.size_bytes for row in plan.rows},
            "total_bytes": plan.total_bytes,
            "available_bytes": plan.available_bytes,
        },
        "prediction": asdict(prediction),
    }


def versions() -> dict[str, str]:
    """What runs."""
    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}


def lines(model: str, machine: Machine, plan: Plan, prediction: Prediction) -> list[str]:
    """doctor for people."""
    gib = float(1 << 30)
    gpus = [
        f"GPU        {gpu.name}, {gpu.free_bytes / gib:.1f} of {gpu.total_bytes / gib:.1f} GiB free"
        for gpu in machine.gpus
    ]
    return [
        f"Processor  {machine.cpu}, {machine.num_cores} cores",
        f"Memory     {machine.free_ram_bytes / gib:.1f} of {machine.ram_bytes / gib:.1f} GiB free",
        *(gpus or ["GPU        none"]),
        "",
        f"Model      {model}",
        f"Device     {plan.device.value}: {plan.device.because}",
        f"Precision  {str(plan.dtype.value).removeprefix('torch.')}: {plan.dtype.because}",
        f"Placement  {plan.placement.value}: {plan.placement.because}",
        f"Context    {plan.context.value:,} tokens: {plan.context.because}",
        *(f"  {row.size_bytes / gib:7.2f} GiB  {row.name}" for row in plan.rows),
        f"  {plan.total_bytes / gib:7.2f} GiB  in all, {plan.available_bytes / gib:.1f} GiB available",
        "",
        f"Predicted at {prediction.context:,} tokens, {prediction.bandwidth_bytes_per_second / 1e9:.1f} GB/s measured:",
        f"  plain decoding {prediction.plain_ms_per_token:.1f} ms/token, "
        f"TriForce {prediction.triforce_ms_per_token:.1f} ms/token at acceptance "
        f"{prediction.acceptance1:.2f} / {prediction.acceptance2:.2f}",
    ]
