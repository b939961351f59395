"""What keys and values in 16 bits lose on real weights and a real text, against those in float32.

    python assets/tools/kv_loss.py MODEL TEXT [--behind 2000 6000] [--places 300]

MODEL is a folder or a GGUF file, TEXT a text file. Places: the text's own tokens behind each depth, as the model would
write them; the distributions of the next token are compared. Answers: greedy ones to questions about the text before
the deepest place.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import Tensor
from torch.nn import functional

from core.caches.full import FullCache
from core.caches.tokens import Context, common_prefix
from core.engine_builder import flush_denormals
from core.models.cached_model import CachedModel
from core.models.loader import LoadedModel, load_tokenizer, read_dims
from core.models.weights import load_model
from core.ops.backend import choose_backend

CPU = torch.device("cpu")
KINDS = (torch.float32, torch.int16, torch.float16, torch.bfloat16)  # the first is what the others are compared with
QUESTIONS = (
    "What is this text about? Answer in two sentences.",
    "Name three rules that the text states.",
    "Quote one sentence of the text word for word.",
    "What does the last part of the text say?",
)
PIECE, ANSWER = 256, 64  # tokens of a pass, and of an answer


def prompt(tokenizer: Any, text: str, question: str) -> list[int]:
    """Tokens of a question behind a text."""
    message = [{"role": "user", "content": f"{text}\n\n{question}"}]
    written = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return cast(list[int], tokenizer(written, add_special_tokens=False).input_ids)


def read(model: CachedModel, tokens: Sequence[int], stop: int) -> None:
    """Bring the cache to the first `stop` tokens."""
    for start in range(model.cache.length, stop, PIECE):
        model.feed(Context(tokens), range(start, min(start + PIECE, stop)), 1)


def laws(model: CachedModel, tokens: Sequence[int], start: int, count: int) -> Tensor:
    """Log-probabilities of the next token behind `count` tokens from `start` on, [count, V]."""
    read(model, tokens, start)
    parts = [range(at, min(at + PIECE, start + count)) for at in range(start, start + count, PIECE)]
    logits = torch.cat([model.feed(Context(tokens), part, len(part)) for part in parts])
    return functional.log_softmax(logits, -1)


def answer(model: CachedModel, tokens: Sequence[int], seen: Sequence[int], eos: frozenset[int]) -> list[int]:
    """A greedy answer to a prompt; the cache has `seen` before it."""
    model.cache.truncate(common_prefix(seen, tokens[:-1]))
    read(model, tokens, len(tokens) - 1)
    written: list[int] = []
    while len(written) < ANSWER and not eos & set(written):
        context = Context([*tokens, *written])
        written.append(int(model.logits(context, 1).argmax()))
    return written


def observed(loaded: LoadedModel, kind: torch.dtype, prompts: list[list[int]], args: argparse.Namespace) -> Any:
    """Distributions at every depth and answers, with keys and values of one type."""
    backend = choose_backend(CPU, torch.float32, "auto")
    shape = loaded.shape._replace(narrow=None if kind == torch.float32 else kind)
    cache = FullCache(shape, max(map(len, prompts)) + ANSWER + 8, 8, backend=backend)
    model = CachedModel("full", loaded.module, cache, CPU)
    found = [laws(model, prompts[0], depth, args.places) for depth in args.behind]
    seen, answers = prompts[0][: cache.length], []
    for tokens in prompts:
        answers.append(answer(model, tokens, seen, loaded.eos_ids))
        seen = tokens
    return found, answers


def compared(wide: Any, narrow: Any, behind: Sequence[int]) -> list[str]:
    """What the second has lost against the first, as cells of the table for each depth; then its answers, in a line."""
    lines = []
    for depth, a, b in zip(behind, wide[0], narrow[0], strict=True):
        loss, agree = (a.exp() * (a - b)).sum(-1), (a.argmax(-1) == b.argmax(-1)).float().mean()
        gap = (a.max(-1).values - a.gather(-1, b.argmax(-1, keepdim=True))[:, 0]).max()
        lines.append(f"{depth:,} | {agree:.1%} | {loss.mean():.1e} | {loss.max():.1e} | {gap:.2g}")
    pairs = list(zip(wide[1], narrow[1], strict=True))
    told = ", ".join(f"{common_prefix(a, b)} of {len(a)}" for a, b in pairs)
    equal = sum(a == b for a, b in pairs)
    return [*lines, f"answers equal {equal} of {len(pairs)}; tokens before the first difference: {told}"]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--behind", type=int, nargs="+", default=[2000, 6000])
    parser.add_argument("--places", type=int, default=300)
    args = parser.parse_args()
    flush_denormals()
    backend, tokenizer = choose_backend(CPU, torch.float32, "auto"), cast(Any, load_tokenizer(args.model))
    ids = tokenizer(args.text.read_text(encoding="utf-8"), add_special_tokens=False).input_ids
    text = tokenizer.decode(ids[: max(args.behind) + args.places])
    prompts = [prompt(tokenizer, text, question) for question in QUESTIONS]
    with torch.inference_mode():
        loaded = load_model(args.model, read_dims(args.model), torch.float32, CPU, backend)
        wide, *others = [observed(loaded, kind, prompts, args) for kind in KINDS]
    print("| model | keys and values | behind | same most likely token | mean KL | largest KL | largest gap |")
    for kind, narrow in zip(KINDS[1:], others, strict=True):
        name = str(kind).removeprefix("torch.")
        *depths, answers = compared(wide, narrow, args.behind)
        print(*(f"| {args.model.stem} | {name} | {depth} |" for depth in depths), f"{name}: {answers}", sep="\n")


if __name__ == "__main__":
    main()
