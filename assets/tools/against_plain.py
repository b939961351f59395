#!/usr/bin/env python3
"""The default method against plain decoding, on real models and real texts: `python assets/tools/against_plain.py
MODEL... --text FILE [--lengths 2000,8000,24000] [--new 128] [--repeats 3] [--json OUT]`.

For each model, length of text, kind of answer (free text, quoting, counting) and temperature (0 and 0.7) both methods
write an answer of the same length from one reading, in turns, forwards and backwards; a row has the medians of both and
of the turns' own ratios.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.cli.opening import open_conversation
from app.context.context_documents import Library
from app.documents.bundle import read_documents
from app.runtime.versions import versions
from assets.tools.bench.speed import answered, median_ms
from core.config import EngineConfig, GenerationConfig, SamplingParams
from core.decoding.registry import PLAIN
from core.engine import Engine
from core.generation.events import Finished
from core.planning.hardware import this_machine

KINDS = {
    "free": "What is this text about? Explain it in your own words, in detail.",
    "quote": "Repeat the beginning of the text word for word, without leaving anything out.",
    "count": "Count from 1 up to 300, one number after the other, separated by commas.",
}
TOP_P = 0.9
ROOM = 600  # tokens of context beside the text: the question and the answer


def rows_of(model: str, text: str, length: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows of one model and length."""
    context, copy = length + args.new + ROOM, args.self_draft_bits
    config = EngineConfig(model=model, draft_model=args.draft, context=context, self_draft_bits=copy)
    with closing(Engine.load(config)) as engine:
        conversation = open_conversation(engine, cut(engine, text, length))
        for kind, question in KINDS.items():
            prompt = conversation.ask(question).prompt_ids(engine.text, None)
            for temperature in (0.0, 0.7):
                sampling = SamplingParams(temperature=temperature, top_p=TOP_P if temperature else 1.0)
                asked = GenerationConfig(max_new_tokens=args.new, sampling=sampling, seed=1)
                row = {"model": engine.info.model, "tokens": len(prompt), "kind": kind, "temperature": temperature}
                yield {**row, **compared(engine, prompt, asked, args.repeats)}


def cut(engine: Engine, text: str, length: int) -> str:
    """The beginning of a text that has about so many tokens."""
    held = text[: 8 * length]
    while (tokens := len(open_conversation(engine, held).book_ids)) > length:
        held = held[: int(0.99 * len(held) * length / tokens)]
    return held


def compared(engine: Engine, prompt: list[int], config: GenerationConfig, repeats: int) -> dict[str, Any]:
    """Medians of both methods in turns, after one answer that reads the text and is not counted."""
    usual = engine.info.usual_method
    answered(engine.generate(prompt, replace(config, method=usual, max_new_tokens=8)))
    runs: dict[str, list[Finished]] = {PLAIN: [], usual: []}
    for turn in range(repeats):
        for method in list(runs)[:: -1 if turn % 2 else 1]:
            runs[method].append(answered(engine.generate(prompt, replace(config, method=method))))
    pairs = zip(runs[PLAIN], runs[usual], strict=True)
    ratios = [(slow.stats.ms_per_token or 0.0) / (quick.stats.ms_per_token or 1.0) for slow, quick in pairs]
    plain, fast = runs[PLAIN][0], runs[usual][0]
    return {
        "method": usual,
        "new_tokens": plain.stats.new_tokens,
        "plain_ms": round(median_ms(runs[PLAIN]), 2),
        "ms": round(median_ms(runs[usual]), 2),
        "speedup": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "tokens_per_full_pass": round(fast.stats.tokens_per_full_pass or 0.0, 2),
        "same_text": plain.token_ids == fast.token_ids if config.sampling.greedy else None,
        "reproduced": len({one.token_ids for one in runs[usual]}) == 1,
    }


def main() -> int:
    """Print a row for each comparison. Returns 1 if the default was under 0.97 of plain decoding anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a name, a folder or a GGUF file")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--lengths", default="2000,8000,24000")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--draft", default="none")
    parser.add_argument("--self-draft-bits", type=int, choices=(16, 4), help="default: as the product chooses")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    text = Library.of(read_documents(args.text)).text
    rows: list[dict[str, Any]] = []
    print("| model | tokens | answer | T | method | plain ms | ms | speedup | tokens a full pass | same text |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in args.models:
        for length in map(int, args.lengths.split(",")):
            for row in rows_of(model, text, length, args):
                rows.append(row)
                same = {None: "-", True: "yes", False: "NO"}[row["same_text"]]
                cells = (*list(row.values())[:5], row["plain_ms"], row["ms"], row["speedup"])
                print("|", " | ".join(map(str, (*cells, row["tokens_per_full_pass"], same))), "|", flush=True)
    if args.json:
        about = {"command": " ".join(sys.argv), "hardware": this_machine().cpu, "versions": versions()}
        args.json.write_text(json.dumps({**about, "rows": rows}, indent=1, default=str) + "\n", encoding="utf-8")
    return int(min(row["speedup"] for row in rows) < 0.97)


if __name__ == "__main__":
    sys.exit(main())
