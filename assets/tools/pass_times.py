#!/usr/bin/env python3
"""What passes of a model take on this processor, without an answer around them: `python assets/tools/pass_times.py
MODEL... [--shapes NAMExLAYERS...] [--held 0,2048,8192,24576] [--rows 1,4,8] [--repeats 5]
[--kept int16,float16] [--guesses 8] [--json OUT]`.

Each row is the least of some passes over so many keys and values in 16 bits, in one call of the compiled kernel;
types that they are kept in (default: the usual one here) take turns. They are all one number, which is written: what
was never written is read from one page of zeros, out of a cache. A shape is a model of the catalogue with random
weights in 4-bit blocks (Q4_K), and with as many of its layers as its name ends in.
`--guesses` adds how many times faster than plain decoding a round of retrieval would be that had so many guesses, each
from a pass over BUDGET keys and accepted with a given probability: the median of turns of a plain pass, the guesses'
passes and the verifying pass; choosing chunks is left out.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.cli.command_options import name_list
from core.caches.base import FixedRows
from core.decoding.adaptive import expected_tokens
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.shapes import find_shape
from core.models.linear import stored_kinds
from core.models.loader import LoadedModel, dims_of, read_dims
from core.models.short_pass import ShortPass, short_pass_of
from core.models.weights import load_model, prepared
from core.ops.attention import rounded
from core.ops.backend import Backend, choose_backend
from core.ops.stored_blocks import random_blocks

BUDGET, ACCEPTED = 1024, (0.85, 0.9, 0.95)  # keys of a guess's pass; how likely a guess is accepted


def timed(short: ShortPass, held: int, rows: int, kept: torch.dtype) -> Callable[[], float]:
    """A pass of `rows` tokens behind `held`, kept in a type, that says how many seconds it took."""
    shape = short.shape._replace(narrow=kept)
    row = rounded(torch.full((shape.head_dim,), 0.01), kept)
    k, v = ([shape.allocate(held + rows).copy_(row) for _ in range(shape.num_layers)] for _ in "kv")
    fixed, positions = FixedRows(k, v, held, attend=short.kernel), torch.arange(held, held + rows)

    def run() -> float:
        began = time.perf_counter()
        short(torch.arange(5, 5 + rows), positions, None, rows, fixed)  # type: ignore[arg-type]  # no cache is asked
        return time.perf_counter() - began

    return run


def speedups(short: ShortPass, held: int, guesses: int, repeats: int, kept: torch.dtype) -> dict[float, float]:
    """How many times faster than plain passes behind `held` rounds with so many guesses are, by acceptance."""
    sizes = ((held, 1), (BUDGET, 1), (held, guesses + 1))
    plain, guess, verify = (timed(short, *size, kept) for size in sizes)
    turns = [(plain(), sum(guess() for _ in range(guesses)) + verify()) for _ in range(repeats)]
    ratio = statistics.median(alone / together for alone, together in turns)
    return {acceptance: round(ratio * expected_tokens(acceptance, guesses), 2) for acceptance in ACCEPTED}


def random_model(name: str, backend: Backend) -> LoadedModel:
    """A model of the catalogue, with fewer layers where the name ends in x and their number."""
    model, _, layers = name.rpartition("x")
    if not (model and layers.isdigit()):
        model, layers = name, ""
    if (shape := find_shape(model)) is None:
        raise SystemExit(f"There is no shape {model!r}.")
    config, generator = shape.config, torch.Generator().manual_seed(0)
    config.num_hidden_layers = int(layers or config.num_hidden_layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    config._attn_implementation = ATTENTION_NAME
    with torch.device("meta"):
        module = cast(Any, AutoModelForCausalLM).from_config(config, dtype=torch.float32, trust_remote_code=False)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            outs, inputs = part.weight.shape
            cast(Any, part.weight).stored_blocks = random_blocks("Q4_K", outs, inputs, generator)
        else:
            for own, weight in part.named_parameters(recurse=False):
                setattr(part, own, nn.Parameter(torch.full(weight.shape, 0.01)))
    module.model.rotary_emb = type(module.model.rotary_emb)(config)
    dims = dims_of(config, name, weight_bytes=1)
    return prepared(module, dims, torch.float32, torch.device("cpu"), backend)


def rows_of(model: Path | str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows of a file or folder, or of a shape."""
    cpu, name, began = torch.device("cpu"), Path(model).name, time.perf_counter()
    backend = choose_backend(cpu, torch.float32, "compiled")
    if isinstance(model, str):
        loaded = random_model(model, backend)
    else:
        loaded = load_model(model, read_dims(model), torch.float32, cpu, backend)
    seconds, short = time.perf_counter() - began, short_pass_of(loaded.module)
    if short is None:
        raise SystemExit(f"{name} has no short pass.")
    kinds = stored_kinds(loaded.module) or "16 or 32 bits"
    print(f"{name}: {kinds}, {loaded.weight_bytes / 1e9:.2f} GB, loaded in {seconds:.1f} s", flush=True)
    found = []
    for held in args.held:
        types = [getattr(torch, name) for name in args.kept] or [
            torch.int16 if short.kernel.scales(short.shape.head_dim) else torch.float16
        ]
        times: dict[torch.dtype, dict[int, float]] = {kept: {} for kept in types}
        for rows in args.rows:
            passes = {kept: timed(short, held, rows, kept) for kept in types}
            turns = [{kept: run() for kept, run in passes.items()} for _ in range(args.repeats)]
            for kept in types:
                times[kept][rows] = round(1000 * min(turn[kept] for turn in turns), 1)
        for kept, by_rows in times.items():
            told = str(kept).removeprefix("torch.")
            row = {"model": name.removesuffix(".gguf"), "weights": kinds, "held": held, "kept": told}
            found.append(row | {"ms_by_rows": by_rows})
            passed = ", ".join(f"{rows} rows {ms} ms" for rows, ms in by_rows.items())
            print(f"{held:>8,} keys in {told}: {passed}", flush=True)
            if args.guesses:
                faster = speedups(short, held, args.guesses, args.repeats, kept)
                found[-1]["times_plain_by_acceptance"] = faster
                print(f"{args.guesses:>8} guesses: {faster} times as fast as plain", flush=True)
    return found


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Print the rows, and write them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--shapes", nargs="*", default=[], metavar="NAMExLAYERS")
    parser.add_argument("--held", type=numbers, default=(0, 2048, 8192, 24576))
    parser.add_argument("--rows", type=numbers, default=(1, 4, 8))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kept", type=name_list, default=())
    parser.add_argument("--guesses", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    register()
    with torch.inference_mode():
        rows = [row for model in (*args.models, *args.shapes) for row in rows_of(model, args)]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
