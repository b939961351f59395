"""Worker: OpenVINO GenAI. The model is converted by optimum-intel, with float16 weights as in its files."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from core.bench.peers.workers.protocol import Clock, Refused, serve, until_stop

GUESSES, NGRAM = 5, 3  # of prompt lookup, as in its documentation


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Convert the target, once."""
    done = Path(request["work"]) / "target"
    if not done.exists():
        part = done.with_name("target.part")
        shutil.rmtree(part, ignore_errors=True)
        tool = Path(sys.executable).with_name("optimum-cli")
        command = [str(tool), "export", "openvino", "--model", request["target"]]
        command += ["--task", "text-generation-with-past", "--weight-format", "fp16", str(part)]
        if subprocess.run(command, stdout=sys.stderr).returncode:
            raise Refused("optimum-intel could not convert the model")
        part.rename(done)
    return {"version": genai.__version__}


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
    """Answer the prompt, after a short one."""
    options = request["options"]
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": options["kv"],
        "INFERENCE_NUM_THREADS": request["threads"],
    }
    if options["guess"] == "lookup":
        settings["prompt_lookup"] = True
    pipe = genai.LLMPipeline(str(Path(request["work"]) / "target"), "CPU", **settings)
    config = genai.GenerationConfig()
    config.do_sample, config.stop_token_ids = False, set(request["stop"])
    config.eos_token_id = request["stop"][0] if request["stop"] else -1
    if options["guess"] == "lookup":
        config.num_assistant_tokens, config.max_ngram_size = GUESSES, NGRAM
    _answer(pipe, request["prompt"][:64], config, 16, request["stop"])
    return _answer(pipe, request["prompt"], config, request["max_new_tokens"], request["stop"])


def _answer(pipe: Any, prompt: list[int], config: Any, most: int, stop: list[int]) -> dict[str, Any]:
    config.max_new_tokens = most
    ids = np.array([prompt], dtype=np.int64)
    given, streamer = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids))), _Arrivals()
    found = pipe.generate(given, config, streamer)
    return streamer.clock.answer(until_stop(found.tokens[0], stop))


if __name__ == "__main__":
    serve({"prepare": prepare, "run": run})
