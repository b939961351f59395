"""Worker: this program. Also writes the prompts that all get."""

from collections.abc import Sequence
from typing import Any

from core.bench.peers.workers.protocol import Clock, serve
from core.bench.speed import bench_prompt
from core.config import EngineConfig, GenerationConfig
from core.decoding.registry import METHODS
from core.engine import Engine
from core.generation.events import RoundDone
from core.ops.threads import set_most_threads

WARM_UP = 64  # tokens of a prompt that is answered before


def prompt(request: dict[str, Any]) -> dict[str, Any]:
    """A question about a book: token ids, and the ids that end an answer."""
    engine = _load(request, request["context"] + 64, "autoregressive")
    conversation, question = bench_prompt(engine.text, request["context"], request["seed"])
    ids = conversation.ask(question.question).prompt_ids(engine.text)
    return {"prompt": ids, "stop": sorted(engine.text.eos_ids)}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompt, after a short one."""
    ids: list[int] = request["prompt"]
    engine = _load(request, len(ids) + request["max_new_tokens"] + 256, request["options"].get("method"))
    method = request["options"].get("method") or engine.info.usual_method
    _answer(engine, ids[:WARM_UP], GenerationConfig(method=method, max_new_tokens=16))
    engine.close()  # nothing of the prompt is read yet
    return _answer(engine, ids, GenerationConfig(method=method, max_new_tokens=request["max_new_tokens"])) | {
        "decoded_by": method
    }


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
    clock, tokens = Clock(), list[int]()
    for event in engine.generate(ids, config):
        if isinstance(event, RoundDone):
            clock.arrived(len(event.tokens))
            tokens += [record.token_id for record in event.tokens]
    return clock.answer(tokens)


if __name__ == "__main__":
    serve({"prompt": prompt, "run": run})
