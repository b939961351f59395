"""A worker's side of the protocol, for any Python from 3.11 up: one request in, one answer out. Standard library."""

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

WARM_UP = 64  # tokens of the prompt that is answered before
Handler = Callable[[dict[str, Any]], dict[str, Any]]


class Refused(Exception):
    """The program does not do what is asked; the text is the reason."""


class Clock:
    """Times of one answer. Make it when the prompt is handed over."""

    def __init__(self) -> None:
        self._started, self._arrivals = perf_counter(), list[tuple[float, int]]()

    def arrived(self, count: int = 1) -> None:
        """So many tokens are there now."""
        self._arrivals.append((perf_counter(), count))

    def answer(self, tokens: Sequence[int]) -> dict[str, Any]:
        """The answer to a request: the tokens, and what they took. ms a token excludes those that came first."""
        (first, at_once), (last, _) = self._arrivals[0], self._arrivals[-1]
        later = sum(count for _, count in self._arrivals) - at_once
        return {
            "tokens": [int(token) for token in tokens],
            "first_token_seconds": first - self._started,
            "ms_per_token": 1e3 * (last - first) / later if later > 0 else None,
            "peak_memory_bytes": peak_memory_bytes(),
        }


def answers(request: Mapping[str, Any], answer: Callable[[list[int], int], dict[str, Any]]) -> dict[str, Any]:
    """The answers to all prompts, by kind, in their order: each gets so many tokens at most.

    A short prompt is answered before. None begins as it does, so that nothing of them is read yet.
    """
    prompts: dict[str, list[int]] = request["prompts"]
    answer(max(prompts.values(), key=len)[1 : 1 + WARM_UP], 16)
    return {kind: answer(prompt, request["max_new_tokens"]) for kind, prompt in prompts.items()}


def converted(request: Mapping[str, Any], command: Callable[[Path], Sequence[str]], tool: str) -> Path:
    """The target as a tool writes it into a folder, made once.

    Raises:
        Refused: it could not.
    """
    done = Path(request["work"]) / "target"
    if not done.exists():
        part = done.with_name("target.part")
        shutil.rmtree(part, ignore_errors=True)
        if subprocess.run(command(part), stdout=sys.stderr).returncode:
            raise Refused(f"{tool} could not convert the model")
        part.rename(done)
    return done


def peak_memory_bytes(process: int | str = "self") -> int:
    """Most memory that a process has held; 0 if unknown. Not getrusage: that counts the parent's, too."""
    status = Path(f"/proc/{process}/status")
    if not status.is_file():
        return 0
    lines = status.read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def until_stop(tokens: Sequence[int], stop: Sequence[int]) -> list[int]:
    """The tokens up to the first stop token, which belongs to them."""
    end = next((place for place, token in enumerate(tokens) if token in stop), len(tokens))
    return list(tokens[: end + 1])


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer the request on stdin by the handler of its `do`. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    try:
        answer = handlers[request["do"]](request)
    except Refused as reason:
        answer = {"refused": str(reason)}
    except Exception as error:  # any failure of a peer is a line in the report
        traceback.print_exc()
        answer = {"refused": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # some libraries crash while they are unloaded
