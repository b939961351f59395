"""Steps about whole answers of the bundled pair: against the processor, in 16 bit, with fewer bits.

`python -m tests.gpu.texts [--tokens N] [--new N] [--dtype float16|bfloat16]` compares 16-bit texts on a processor.
"""

import argparse
import gc
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch

from core.bench.speed import bench_prompt
from core.config import EngineConfig, GenerationConfig, SamplingParams
from core.engine import NEAR_TIE_GAP, Engine
from core.engine_builder import LoadedPair, PairFiles
from core.engine_info import Equality
from core.generation.events import Finished
from core.planning.choices import Choice
from core.planning.hardware import cap_memory, resolve_device, return_memory, this_machine
from core.planning.planner import make_plan
from tests.gpu.checklist import Here
from tests.gpu.machine import device_of

SEED = 7
HALVES = (torch.float16, torch.bfloat16)
ROOM = 192  # tokens for the question, the answer and a round that is longer than it needs


def prompt_of(engine: Engine, num_tokens: int) -> list[int]:
    """A generated book of about so many tokens, and a question whose answer is long."""
    conversation, question = bench_prompt(engine.text, num_tokens, SEED)
    return conversation.ask(question.question).prompt_ids(engine.text)


def answer(engine: Engine, prompt: Sequence[int], config: GenerationConfig) -> Finished:
    """One answer."""
    *_, finished = engine.generate(prompt, config)
    assert isinstance(finished, Finished)
    return finished


def figures(finished: Finished) -> dict[str, Any]:
    """What is worth keeping of an answer."""
    stats = finished.stats
    return {
        "prompt tokens": finished.prompt_tokens,
        "prefill seconds": finished.prefill_seconds,
        "new tokens": stats.new_tokens,
        "ms per token": stats.ms_per_token,
        "tokens per full pass": stats.tokens_per_full_pass,
        "acceptance": [level.acceptance if level else None for level in (stats.level1, stats.level2)],
        "gammas": [level.gamma_mean if level else None for level in (stats.level1, stats.level2)],
        "seconds by part": dict(stats.seconds_by_part),
        "reselections": stats.reselections,
        "link share": stats.link_share,
        "link, bytes a second": stats.link_bytes_per_second,
        "stop reason": finished.stop_reason,
    }


def verdict(reference: Engine, prompt: Sequence[int], plain: Finished, other: Finished, dtype: Any) -> dict[str, Any]:
    """How a text compares with the reference's: ties are as near as the other's type makes them."""
    found: Equality = reference.compare(prompt, plain.token_ids, other.token_ids)
    near = found.logit_gap is not None and found.logit_gap <= NEAR_TIE_GAP[dtype]
    word = found.verdict if found.verdict == "identical" else "near_tie" if near else "mismatch"
    return {"verdict": word, "first divergence": found.index, "gap": found.logit_gap}


@contextmanager
def engine_of(config: EngineConfig, dtype: torch.dtype | None = None) -> Iterator[Engine]:
    """An engine that computes in `dtype`; its memory is free again behind it."""
    files = PairFiles.find(config.model, config.draft_model)
    plan = make_plan(files.target, files.draft, config, this_machine(), files.counted(config))
    if dtype is not None:
        plan = replace(plan, dtype=Choice(dtype, "asked for by the checklist"))
    device = device_of(plan.device.value)
    cap_memory(device, config.gpu_memory_gib)
    engine = Engine.of(LoadedPair.load(files, config, plan, resolve_device(plan.device.value)), config, plan)
    try:
        yield engine
    finally:
        engine.close()
        del engine
        gc.collect()
        return_memory()


# -------------------- steps


def load(here: Here) -> None:
    """The bundled pair loads on the device, and its greedy text is the processor's in float32, but for near ties."""
    tokens, new = here.sized((2048, 64), (1024, 24))
    config = EngineConfig(methods=("triforce",), context=tokens + ROOM, device="cpu")
    greedy = GenerationConfig(max_new_tokens=new, method="autoregressive")
    with engine_of(config, torch.float32) as reference:
        prompt = prompt_of(reference, tokens)
        plain = answer(reference, prompt, greedy)
        here.report.add("processor", figures(plain) | {"text": plain.text})
        engine = Engine.load(replace(config, device=here.device))
        info, dtype = engine.info, engine.plan.dtype.value
        here.report.add("plan", {row.name: row.size_bytes for row in engine.plan.rows})
        here.report.add("chosen", {"dtype": str(dtype), "attention": info.attention, "graphs": info.graphs})
        wrong = []
        for method in ("autoregressive", "triforce", "retrieval", "triforce-lookup"):
            found = answer(engine, prompt, replace(greedy, method=method))
            told = verdict(reference, prompt, plain, found, dtype)
            here.report.add(method, figures(found) | told | {"text": found.text})
            wrong += [method] if told["verdict"] == "mismatch" else []
    sampled = replace(greedy, method="triforce", sampling=SamplingParams(temperature=0.8, top_p=0.95), seed=1)
    twice = [answer(engine, prompt, sampled) for _ in range(2)]
    here.report.add("sampled", figures(twice[1]) | {"text": twice[1].text, "repeats": twice[0].text == twice[1].text})
    here.report.add("graphs afterwards", engine.info.graphs)
    assert not wrong, f"texts differ from the processor's by more than rounding: {', '.join(wrong)}"


def halves(here: Here) -> None:
    """16-bit texts against float32 ones on the same device, at long contexts."""
    for tokens in here.sized((32768, 122880), (1024,)):
        compare_halves(tokens, here.sized(96, 12), here.device, HALVES, here.report.add)


def compare_halves(
    tokens: int,
    new: int,
    device: Literal["cpu", "cuda"],
    dtypes: Sequence[torch.dtype],
    add: Callable[[str, object], None],
) -> None:
    """Greedy texts of the bundled pair in 16 bit beside the one in float32."""
    config = EngineConfig(methods=("triforce",), context=-(-(tokens + ROOM) // 64) * 64, device=device)
    greedy = GenerationConfig(max_new_tokens=new, method="autoregressive")
    with engine_of(config, torch.float32) as reference:
        prompt = prompt_of(reference, tokens)
        plain = answer(reference, prompt, greedy)
        add(f"{tokens} float32", figures(plain) | {"text": plain.text})
        for dtype in dtypes:
            with engine_of(config, dtype) as engine:
                for method in ("autoregressive", "triforce"):
                    found = answer(engine, prompt, replace(greedy, method=method))
                    told = verdict(reference, prompt, plain, found, dtype)
                    add(f"{tokens} {dtype} {method}", figures(found) | told | {"text": found.text})


def bits(here: Here) -> None:
    """Quantised weights, and 4-bit ones for drafting: TriForce writes what plain decoding writes."""
    tokens, new = here.sized((8192, 64), (1024, 12))
    config = EngineConfig(methods=("triforce",), context=tokens + ROOM, device=here.device)
    greedy = GenerationConfig(max_new_tokens=new, method="autoregressive")
    changed = {"16": config, "drafting 4": replace(config, self_draft_bits=4)}
    if importlib.util.find_spec("bitsandbytes"):
        changed |= {"8": replace(config, bits=8), "4": replace(config, bits=4)}
    else:
        here.report.add("bitsandbytes", "not installed")
    wrong = []
    for name, own in changed.items():
        engine = Engine.load(own)
        prompt = prompt_of(engine, tokens)
        plain, fast = (answer(engine, prompt, replace(greedy, method=m)) for m in ("autoregressive", "triforce"))
        told = engine.compare(prompt, plain.token_ids, fast.token_ids)
        here.report.add(
            name,
            {
                "weights": engine.info.target_weight_bytes,
                "self-draft weights": engine.info.self_draft_weight_bytes,
                "graphs": engine.info.graphs,
                "plain": figures(plain),
                "triforce": figures(fast),
                "equality": told,
                "text": plain.text,
            },
        )
        wrong += [name] if told.verdict == "mismatch" else []
        del engine
        gc.collect()
        return_memory()
    assert not wrong, f"TriForce differs from plain decoding by more than rounding: {', '.join(wrong)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="16-bit texts against float32 ones, on a processor")
    parser.add_argument("--tokens", type=int, default=4096, help="of the book")
    parser.add_argument("--new", type=int, default=48, help="tokens of the answer")
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], help="one of both alone")
    given = parser.parse_args()
    chosen = [getattr(torch, given.dtype)] if given.dtype else HALVES
    compare_halves(given.tokens, given.new, "cpu", chosen, lambda name, value: print(name, value, flush=True))
