"""The peers suite: our plain decoding beside transformers' own `generate`, same weights, same prompt, same machine."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from core.bench.speed import bench_prompt
from core.config import GenerationConfig
from core.decoding.registry import PLAIN
from core.engine import Engine
from core.generation.events import Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    """One decoder at one context length."""

    context: int
    method: str
    prompt_tokens: int
    new_tokens: int
    ms_per_token: float  # median over repeats
    ratio_to_ours: float  # above 1: slower than our plain decoding
    same_tokens: bool
    prefill_seconds: float


class _Clock(BaseStreamer):
    """Records when each token arrives; the first arrival ends the prefill."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Required by the interface."""


def run_peers(
    engine: Engine, folder: Path, contexts: Sequence[int], *, repeats: int, max_new_tokens: int, seed: int
) -> Iterator[PeerRow]:
    """Ours against StaticCache and DynamicCache, in turns. A peer reads the prompt again, in chunks of 1024 tokens."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=engine.info.plan.dtype.value, attn_implementation="sdpa", local_files_only=True
    )
    stock = cast(Any, model).eval().to(engine.info.plan.device.value)
    for context in contexts:
        conversation, question = bench_prompt(engine.text, context, seed)
        prompt = conversation.ask(question.question).prompt_ids(engine.text)
        times: dict[str, list[float]] = {}
        texts: dict[str, tuple[int, ...]] = {}
        reading: dict[str, float] = {}
        for _ in range(repeats):
            *_, ours = engine.generate(prompt, GenerationConfig(method=PLAIN, max_new_tokens=max_new_tokens, seed=seed))
            assert isinstance(ours, Finished)
            times.setdefault("ours, plain", []).append(ours.stats.ms_per_token or 0.0)
            reading["ours, plain"] = max(reading.get("ours, plain", 0.0), ours.prefill_seconds)
            texts["ours, plain"] = ours.token_ids
            for cache in ("static", "dynamic"):
                name = f"transformers, {cache} cache"
                clock, tokens, started = _generate(stock, prompt, cache, max_new_tokens)
                gaps = [b - a for a, b in zip(clock.times[1:], clock.times[2:], strict=False)]  # [0] is the prompt
                times.setdefault(name, []).append(1e3 * sum(gaps) / max(1, len(gaps)))
                reading[name] = clock.times[1] - started
                texts[name] = tokens
        own = median(times["ours, plain"])
        for name, values in times.items():
            yield PeerRow(
                context=context,
                method=name,
                prompt_tokens=len(prompt),
                new_tokens=len(texts[name]),
                ms_per_token=median(values),
                ratio_to_ours=median(values) / own,
                same_tokens=texts[name] == texts["ours, plain"],
                prefill_seconds=reading[name],
            )


def _generate(model: Any, prompt: list[int], cache: str, max_new_tokens: int) -> tuple[_Clock, tuple[int, ...], float]:
    clock = _Clock()
    ids = torch.tensor([prompt], device=model.device)
    started = time.perf_counter()
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        streamer=clock,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        cache_implementation=cache,
        prefill_chunk_size=1024,
        disable_compile=True,
    )
    return clock, tuple(output[0, len(prompt) :].tolist()), started
