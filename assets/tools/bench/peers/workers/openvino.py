"""Worker: OpenVINO GenAI. It reads a GGUF file itself; a folder is converted by optimum-intel, with float16 weights."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from assets.tools.bench.peers.workers.protocol import Clock, answers, converted, serve, until_stop

GUESSES, NGRAM = 5, 3  # of prompt lookup, as in its documentation


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Convert the target, once, where it is a folder."""
    _model(request)
    return {"version": genai.__version__}


def _model(request: dict[str, Any]) -> Path:
    given = Path(request["target"])
    tool = Path(sys.executable).with_name("optimum-cli")
    command = [str(tool), "export", "openvino", "--model", request["target"], "--task", "text-generation-with-past"]
    command += ["--weight-format", "fp16"]
    return given if given.suffix == ".gguf" else converted(request, lambda out: [*command, str(out)], "optimum-intel")


class _Arrivals(genai.StreamerBase):  # type: ignore[misc]
    """Tells the clock when tokens come."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()

    def write(self, token: "int | list[int]") -> Any:
        self.clock.arrived(len(token) if isinstance(token, list) else 1)
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Required by the interface."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts."""
    options = request["options"]
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": request["threads"]}
    if "kv" in options:
        settings |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": options["kv"]}
    if options.get("guess") == "lookup":
        settings["prompt_lookup"] = True
    pipe = genai.LLMPipeline(str(_model(request)), "CPU", **settings)
    config = genai.GenerationConfig()
    config.do_sample, config.stop_token_ids = False, set(request["stop"])
    config.eos_token_id = request["stop"][0] if request["stop"] else -1
    if options.get("guess") == "lookup":
        config.num_assistant_tokens, config.max_ngram_size = GUESSES, NGRAM
    return answers(request, lambda prompt, most: _answer(pipe, prompt, config, most, request["stop"]))


def _answer(pipe: Any, prompt: list[int], config: Any, most: int, stop: list[int]) -> dict[str, Any]:
    config.max_new_tokens = most
    ids = np.array([prompt], dtype=np.int64)
    given, streamer = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids))), _Arrivals()
    found = pipe.generate(given, config, streamer)
    return streamer.clock.answer(until_stop(found.tokens[0], stop))


if __name__ == "__main__":
    serve({"prepare": prepare, "run": run})
