"""Worker: this program. Also writes the prompts that all get."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from assets.tools.bench.peers.workers.protocol import Clock, answers, serve
from assets.tools.bench.speed import bench_prompt
from core.config import EngineConfig, GenerationConfig
from core.decoding.registry import METHODS, PLAIN
from core.engine import Engine
from core.generation.events import RoundDone, TokenRecord
from core.generation.session import Conversation
from core.ops.threads import set_most_threads

KINDS = {  # of answers about a text
    "free": "What is this text about? Explain it in your own words, in detail.",
    "quote": "Repeat the beginning of the text word for word, without leaving anything out.",
}
LIKELIEST = 10  # tokens at each place that are told beside the one that was written


def prompt(request: dict[str, Any]) -> dict[str, Any]:
    """Questions about the beginning of a text, or one about a generated book: their token ids by kind, and the ids that
    end an answer."""
    engine = _load(request, request["context"] + 64, PLAIN)
    if request["text"]:
        ids = engine.text.encode(request["text"][: 16 * request["context"]])
        conversation, kinds = Conversation(tuple(ids[: request["context"]])), KINDS
    else:
        conversation, question = bench_prompt(engine.text, request["context"], request["seed"])
        kinds = {"recite": question.question}
    prompts = {kind: conversation.ask(asked).prompt_ids(engine.text) for kind, asked in kinds.items()}
    return {"prompts": prompts, "stop": sorted(engine.text.eos_ids)}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts; plain decoding also tells what was likely at each place, of answers that are not timed."""
    longest = max(map(len, request["prompts"].values()))
    engine = _load(request, longest + request["max_new_tokens"] + 256, request["options"].get("method"))
    config = GenerationConfig(method=request["options"].get("method") or engine.info.usual_method)
    found = answers(request, lambda ids, most: _answer(engine, ids, replace(config, max_new_tokens=most)))
    for kind, answer in found.items():
        answer["decoded_by"] = config.method
        if config.method == PLAIN:
            config = replace(config, max_new_tokens=request["max_new_tokens"], top_logprobs=LIKELIEST)
            answer["likely"] = _answer(engine, request["prompts"][kind], config)["likely"]
    return found


def _load(request: dict[str, Any], context: int, method: str | None) -> Engine:
    set_most_threads(request["threads"])
    draft = request["draft"] or "none"
    return Engine.load(
        EngineConfig(
            model=request["target"],
            draft_model=draft if method is None or METHODS[method].needs_draft else "none",
            device="cpu",
            context=-(-context // 64) * 64,
            kv_bits=request.get("options", {}).get("kv_bits"),
            methods=(method,) if method else (),
        )
    )


def _answer(engine: Engine, ids: Sequence[int], config: GenerationConfig) -> dict[str, Any]:
    clock, records = Clock(), list[TokenRecord]()
    for event in engine.generate(ids, config):
        if isinstance(event, RoundDone):
            clock.arrived(len(event.tokens))
            records += event.tokens
    return clock.answer([record.token_id for record in records]) | {"likely": [record.top for record in records]}


if __name__ == "__main__":
    serve({"prompt": prompt, "run": run})
