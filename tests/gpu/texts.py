"""Steps about whole answers: against the processor, with fewer bits, of real weights, on two devices."""

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from assets.tools.bench.speed import answered, prompt_ids
from core.caches.retrieval import RetrievalCache
from core.config import EngineConfig, GenerationConfig, SamplingParams
from core.engine import NEAR_TIE_GAP, Engine
from core.engine_builder import PairFiles
from core.engine_info import Equality
from core.errors import NotEnoughMemory
from core.generation.events import Finished
from core.generation.session import Conversation
from core.planning.hardware import return_memory
from tests.gpu.checklist import Here

SEED = 7
CARD_GIB = 22.0  # free on a card of 24 GB that also shows a desktop
ROOM = 192  # tokens for the question, the answer and a round that is longer than it needs


def prompt_of(engine: Engine, num_tokens: int) -> list[int]:
    """A generated book of about so many tokens, and a question whose answer is long."""
    return prompt_ids(engine.text, num_tokens, SEED)


def answer(engine: Engine, prompt: Sequence[int], config: GenerationConfig) -> Finished:
    return answered(engine.generate(prompt, config))


def figures(finished: Finished) -> dict[str, Any]:
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


def measured(engine: Engine, prompt: Sequence[int], config: GenerationConfig) -> tuple[Finished, dict[str, Any]]:
    """One answer and its figures, with recordings and everything on the clock, and the host's time in selections."""
    selections: list[float] = []
    real = RetrievalCache.select

    def select(self: RetrievalCache) -> None:
        began = time.perf_counter()
        real(self)
        selections.append(time.perf_counter() - began)

    started = time.perf_counter()
    with mock.patch.object(RetrievalCache, "select", select):
        finished = answer(engine, prompt, config)
    seconds = time.perf_counter() - started
    later = selections[len(selections) - finished.stats.reselections :]
    wall = 1e3 * (seconds - finished.prefill_seconds) / max(1, finished.stats.new_tokens)
    return finished, figures(finished) | {
        "seconds, all of it": seconds,
        "ms per token, recordings too": wall,
        "seconds a selection": {"first": selections[:1], "in the answer": sum(later) / len(later) if later else None},
    }


class Answers:
    """Answers to one prompt, each told at once; greedy texts must be one, of several engines too."""

    def __init__(self, here: Here, engine: Engine, prompt: list[int], about: str = "") -> None:
        self.here, self.engine, self.prompt, self.about = here, engine, prompt, about
        self.texts: dict[str, tuple[int, ...]] = {}
        self.plain_ms = 0.0  # a token, of the first answer

    def add(self, name: str, method: str, new: int, **more: Any) -> Finished | None:
        """One more answer; None where there is no room for it."""
        config = GenerationConfig(method=method, max_new_tokens=new, **more)
        try:
            finished, row = measured(self.engine, self.prompt, config)
        except NotEnoughMemory as error:
            self.here.report.add(self.about + name, {"refused": str(error)})
            return None
        ms = finished.stats.ms_per_token or 0.0
        self.plain_ms = self.plain_ms or ms
        self.here.report.add(
            self.about + name, row | {"times plain": self.plain_ms / ms if ms else None, "text": finished.text}
        )
        if config.sampling.greedy:
            self.texts[name] = finished.token_ids
        return finished

    def check(self) -> None:
        """Each text against the first and the longest, as far as both go: none differs by more than rounding."""
        found, wrong = {}, []
        for reference in (next(iter(self.texts.values())), max(self.texts.values(), key=len)):
            for name, text in self.texts.items():
                length = min(len(reference), len(text))
                told = self.engine.compare(self.prompt, reference[:length], text[:length])
                found[f"{name}, {length} of {len(reference)} tokens"] = told
                wrong += [name] if told.verdict == "mismatch" else []
        self.here.report.add(f"{self.about}equality", found)
        assert not wrong, f"texts differ by more than rounding: {', '.join(wrong)}"


def verdict(reference: Engine, prompt: Sequence[int], plain: Finished, other: Finished, dtype: Any) -> dict[str, Any]:
    """How a text compares with the reference's: ties are as near as the other's type makes them."""
    found: Equality = reference.compare(prompt, plain.token_ids, other.token_ids)
    near = found.logit_gap is not None and found.logit_gap <= NEAR_TIE_GAP[dtype]
    word = found.verdict if found.verdict == "identical" else "near_tie" if near else "mismatch"
    return {"verdict": word, "first divergence": found.index, "gap": found.logit_gap}


# -------------------- steps


def load(here: Here) -> None:
    """The bundled pair loads on the device, and its greedy text is the processor's in float32, but for near ties."""
    tokens, new = here.sized((2048, 64), (1024, 24))
    config = EngineConfig(methods=("triforce",), context=tokens + ROOM, device="cpu")
    greedy = GenerationConfig(max_new_tokens=new, method="autoregressive")
    reference, engine = Engine.load(config), Engine.load(replace(config, device=here.device))
    prompt = prompt_of(reference, tokens)
    plain, row = measured(reference, prompt, greedy)
    here.report.add("processor", row | {"text": plain.text})
    info, dtype, wrong = engine.info, engine.plan.dtype.value, []
    here.report.add("plan", {row.name: row.size_bytes for row in engine.plan.rows})
    here.report.add("chosen", {"dtype": str(dtype), "attention": info.attention, "graphs": info.graphs})
    for method in ("autoregressive", "triforce", "retrieval", "triforce-lookup"):
        found, row = measured(engine, prompt, replace(greedy, method=method))
        told = verdict(reference, prompt, plain, found, dtype)
        here.report.add(method, row | told | {"text": found.text})
        wrong += [method] if told["verdict"] == "mismatch" else []
    sampled = replace(greedy, method="triforce", sampling=SamplingParams(temperature=0.8, top_p=0.95), seed=1)
    twice = [answer(engine, prompt, sampled) for _ in range(2)]
    here.report.add("sampled", figures(twice[1]) | {"text": twice[1].text, "repeats": twice[0].text == twice[1].text})
    here.report.add("graphs afterwards", engine.info.graphs)
    assert not wrong, f"texts differ from the processor's by more than rounding: {', '.join(wrong)}"


def bits(here: Here) -> None:
    """Quantised weights, and 4-bit ones for drafting: TriForce writes what plain decoding writes."""
    tokens, new = here.sized((8192, 64), (1024, 12))
    config = EngineConfig(methods=("triforce",), context=tokens + ROOM, device=here.device)
    changed = {"16": config, "drafting 4": replace(config, self_draft_bits=4)}
    if importlib.util.find_spec("bitsandbytes"):
        changed |= {"8": replace(config, bits=8), "4": replace(config, bits=4)}
    else:
        here.report.add("bitsandbytes", "not installed")
    for name, own in changed.items():
        engine = Engine.load(own)
        info = engine.info
        here.report.add(f"{name}: weights", (info.target_weight_bytes, info.self_draft_weight_bytes, info.graphs))
        answers = Answers(here, engine, prompt_of(engine, tokens), f"{name}: ")
        for method in ("autoregressive", "triforce"):
            answers.add(method, method, new)
        answers.check()
        del engine, answers
        return_memory()


# -------------------- real weights, two devices


def pair_in(place: str) -> tuple[str, str]:
    """The model that lies there, or the largest and the smallest of several, as target and draft."""
    folder = Path(place)
    if folder.is_file() or (folder / "config.json").is_file():
        return place, "auto"
    inside = [path for path in folder.iterdir() if path.suffix == ".gguf" or (path / "config.json").is_file()]
    if not inside:
        raise FileNotFoundError(f"There is no model in {place}: give a folder with config.json, or a .gguf file.")
    inside.sort(key=lambda path: sum(file.stat().st_size for file in (path, *path.glob("*"))))
    return str(inside[-1]), str(inside[0]) if len(inside) > 1 else "auto"


def real(here: Here) -> None:
    """Real weights (`--real`) and a real text (`--text`) as on a card of 24 GB: plain against TriForce, T 0 and 0.6."""
    if not here.options.real:
        here.report.add("skipped", "no --real")
        return
    target, draft = pair_in(here.options.real)
    limit = here.sized(122880, 1024)
    config = EngineConfig(model=target, draft_model=draft, device=here.device, gpu_memory_gib=CARD_GIB)
    most = min(limit + ROOM, PairFiles.find(target, draft).target.max_context)
    try:
        engine = Engine.load(replace(config, context=most // 64 * 64))
    except NotEnoughMemory as error:
        here.report.add("refused", str(error))
        if error.largest_context is None:
            raise
        engine = Engine.load(replace(config, context=error.largest_context // 64 * 64))
    about = engine.info
    here.report.add("model", {"target": about.model, "draft": about.has_draft, "why": about.draft_because})
    here.report.add("plan", {"placement": engine.plan.placement, "dtype": engine.plan.dtype, "graphs": about.graphs})
    if here.options.text:
        text = Path(here.options.text).read_text(encoding="utf-8", errors="replace")
        ids = engine.text.encode(text[: 8 * limit])[: engine.context - ROOM]
        prompt = Conversation(tuple(ids)).ask("What is this text about? Explain it in detail.").prompt_ids(engine.text)
    else:
        prompt = prompt_of(engine, engine.context - ROOM)
    exact = ("triforce", "triforce-lookup") if about.has_draft else ("retrieval", "lookup")
    answers = Answers(here, engine, prompt)
    for temperature in (0.0, 0.6):
        sampling = SamplingParams(temperature=temperature)
        for method in ("autoregressive", *exact):
            answers.add(f"T {temperature}, {method}", method, here.sized(64, 12), sampling=sampling, seed=1)
    answers.check()


def two(here: Here) -> None:
    """Two devices that share a model write what one writes: the bundled pair, or the real one that is given."""
    if here.cuda and torch.cuda.device_count() < 2:
        here.report.add("skipped", "one device")
        return
    tokens, new = here.sized((32768, 64), (1024, 12))
    model, draft = pair_in(here.options.real) if here.options.real else ("harbour", "auto")
    config = EngineConfig(methods=("triforce",), model=model, draft_model=draft, device=here.device)
    config = replace(config, context=-(-(tokens + ROOM) // 64) * 64)
    answers: Answers | None = None
    for number in (1, 2):
        bits = 32 if number == 1 and not here.cuda else None  # as processes of a processor keep them
        engine = Engine.load(replace(config, num_gpus=number, kv_bits=bits))
        answers = answers or Answers(here, engine, prompt_of(engine, tokens))
        answers.engine = engine
        here.report.add(f"{number} of 2: plan", {"placement": engine.plan.placement, "graphs": engine.info.graphs})
        for method in ("autoregressive", "triforce"):
            answers.add(f"{number} of 2: {method}", method, new)
    if answers:
        answers.check()
    if engine._models.ranks:
        engine._models.ranks.close()
