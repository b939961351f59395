"""Worker: ONNX Runtime GenAI. The model is converted by its own builder, in float32."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime_genai as genai

from assets.tools.bench.peers.workers.protocol import Clock, Refused, answers, serve


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Convert the target, once."""
    done = Path(request["work"]) / "target"
    if not done.exists():
        part = done.with_name("target.part")
        shutil.rmtree(part, ignore_errors=True)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", request["target"], "-o", str(part)]
        command += ["-p", "fp32", "-e", "cpu", "-c", str(Path(request["work"]) / "cache")]
        if subprocess.run(command, stdout=sys.stderr).returncode:
            raise Refused("its builder could not convert the model")
        part.rename(done)
    return {"version": genai.__version__}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts."""
    folder = Path(request["work"]) / "target"
    config = genai.Config(str(folder))
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
