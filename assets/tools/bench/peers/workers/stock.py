"""Worker: `generate` of transformers, in this program's own environment."""

from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from assets.tools.bench.peers.workers.protocol import Clock, answers, serve

CHUNK = 1024  # tokens read at a time; without chunks attention over the prompt takes much more memory


class _Arrivals(BaseStreamer):
    """Tells the clock when tokens come; the prompt comes first and does not count."""

    def __init__(self) -> None:
        self.clock, self._begun = Clock(), False

    def put(self, value: torch.Tensor) -> None:
        if self._begun:
            self.clock.arrived(value.numel())
        self._begun = True

    def end(self) -> None:
        """Required by the interface."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts."""
    torch.set_num_threads(request["threads"])
    torch.set_flush_denormal(True)
    model, options = _load(request["target"]), request["options"]
    more: dict[str, Any] = {"cache_implementation": options.get("cache", "dynamic"), "disable_compile": True}
    if options.get("guess") == "draft":
        more = {"assistant_model": _load(request["draft"])}
    elif options.get("guess") == "lookup":
        more = {"prompt_lookup_num_tokens": 10}
    else:
        more["prefill_chunk_size"] = CHUNK
    return answers(request, lambda prompt, most: _answer(model, prompt, request["stop"], most, more))


def _load(folder: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
    )
    return cast(Any, model).eval()


def _answer(model: Any, prompt: list[int], stop: list[int], most: int, more: dict[str, Any]) -> dict[str, Any]:
    ids, streamer = torch.tensor([prompt]), _Arrivals()
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        streamer=streamer,
        max_new_tokens=most,
        do_sample=False,
        eos_token_id=stop,
        **more,
    )
    return streamer.clock.answer(output[0, len(prompt) :].tolist())


if __name__ == "__main__":
    serve({"run": run})
