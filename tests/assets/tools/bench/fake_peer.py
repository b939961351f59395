"""A worker that computes nothing: its options say what it answers, or how it fails."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from assets.tools.bench.peers.workers.protocol import Refused, answers, serve


def prompt(request: dict[str, Any]) -> dict[str, Any]:
    kinds = {"free": [5], "quote": [6]} if request["text"] else {"recite": []}
    return {"prompts": {kind: [*range(request["context"]), *last] for kind, last in kinds.items()}, "stop": [2]}


def run(request: dict[str, Any]) -> dict[str, Any]:
    options = request["options"]
    print("a library that writes to stdout")
    os.write(1, b'{"tokens": "from C"}\n')
    match options.get("fails"):
        case "refuses":
            raise Refused("it takes no such cache")
        case "raises":
            raise ValueError("a tensor has no shape\nand a second line")
        case "crashes":
            os.kill(os.getpid(), 9)
        case "ends":
            print("out of ideas", file=sys.stderr, flush=True)
            os._exit(3)
        case "hangs":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            Path(options["file"]).write_text(str(child.pid), encoding="utf-8")
            time.sleep(60)

    def answer(prompt: list[int], count: int) -> dict[str, Any]:
        wrong = options.get("wrong_from", count)
        return {
            "tokens": [7 if place < wrong else 8 for place in range(count)],
            "likely": [[[7, " a", -0.5], [8, " the", -0.75]] for _ in range(count)],
            "first_token_seconds": len(prompt) / 1000,
            "ms_per_token": options["ms"],
            "peak_memory_bytes": request["threads"] * 2**30,
        }

    return answers(request, answer)


if __name__ == "__main__":
    serve({"prompt": prompt, "run": run})
