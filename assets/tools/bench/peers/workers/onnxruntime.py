"""Worker: ONNX Runtime GenAI. The model is converted by its own builder, in float32."""

import json
import sys
from pathlib import Path
from typing import Any

import onnxruntime_genai as genai

from assets.tools.bench.peers.workers.protocol import Clock, answers, converted, serve


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Convert the target, once."""
    _model(request)
    return {"version": genai.__version__}


def _model(request: dict[str, Any]) -> Path:
    def command(out: Path) -> list[str]:
        words = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", request["target"], "-o", str(out)]
        return [*words, "-p", "fp32", "-e", "cpu", "-c", str(out.with_name("cache"))]

    return converted(request, command, "its builder")


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts."""
    config = genai.Config(str(_model(request)))
    threads = {"intra_op_num_threads": request["threads"]}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    model = genai.Model(config)
    return answers(request, lambda prompt, most: _answer(model, prompt, request["stop"], most))


def _answer(model: Any, prompt: list[int], stop: list[int], most: int) -> dict[str, Any]:
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=len(prompt) + most, batch_size=1)
    clock, tokens = Clock(), list[int]()
    generator = genai.Generator(model, parameters)
    generator.append_tokens(prompt)
    while len(tokens) < most and not (tokens and tokens[-1] in stop):
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
        clock.arrived()
    return clock.answer(tokens)


if __name__ == "__main__":
    serve({"prepare": prepare, "run": run})
