"""What keys and values in 16 bits lose on real weights and a real text, against those in float32.

    python assets/tools/kv_loss.py MODEL TEXT [--behind 2000 6000] [--places 300] [--json]

MODEL is a folder or a GGUF file, TEXT a text file. Places: the text's own tokens behind each depth, as the model would
write them; the distributions of the next token are compared. Answers: greedy ones to questions about the text before
the deepest place.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from core.caches.full import FullCache  # noqa: E402
from core.caches.tokens import Context, common_prefix  # noqa: E402
from core.engine_builder import flush_denormals  # noqa: E402
from core.models.cached_model import CachedModel  # noqa: E402
from core.models.loader import LoadedModel, load_tokenizer, read_dims  # noqa: E402
from core.models.weights import load_model  # noqa: E402
from core.ops.backend import choose_backend  # noqa: E402

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


def compared(wide: Any, narrow: Any, behind: Sequence[int]) -> dict[str, Any]:
    """What the second has lost against the first."""
    depths = []
    for depth, a, b in zip(behind, wide[0], narrow[0], strict=True):
        loss = (a.exp() * (a - b)).sum(-1)
        agree = a.argmax(-1) == b.argmax(-1)
        best = a.max(-1).values
        gap = (best - a.gather(-1, b.argmax(-1, keepdim=True))[:, 0]).max()
        measured = {
            "agreement": float(agree.float().mean()),
            "mean_kl": float(loss.mean()),
            "max_kl": float(loss.max()),
        }
        depths.append({"behind": depth, **measured, "largest_gap": float(gap)})
    pairs = list(zip(wide[1], narrow[1], strict=True))
    equal = [common_prefix(a, b) for a, b in pairs]
    answers = {
        "equal": sum(a == b for a, b in pairs),
        "of": len(pairs),
        "equal_tokens": equal,
        "tokens": [*map(len, wide[1])],
    }
    return {"depths": depths, "answers": answers}


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--behind", type=int, nargs="+", default=[2000, 6000])
    parser.add_argument("--places", type=int, default=300)
    parser.add_argument("--question", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    flush_denormals()
    backend, tokenizer = choose_backend(CPU, torch.float32, "auto"), cast(Any, load_tokenizer(args.model))
    ids = tokenizer(args.text.read_text(encoding="utf-8"), add_special_tokens=False).input_ids
    text = tokenizer.decode(ids[: max(args.behind) + args.places])
    prompts = [prompt(tokenizer, text, question) for question in args.question or QUESTIONS]
    with torch.inference_mode():
        loaded = load_model(args.model, read_dims(args.model), torch.float32, CPU, backend)
        wide, *others = [observed(loaded, kind, prompts, args) for kind in KINDS]
    names = [str(kind).removeprefix("torch.") for kind in KINDS[1:]]
    rows = {name: compared(wide, other, args.behind) for name, other in zip(names, others, strict=True)}
    if args.json:
        texts = {"float32": wide[1]} | dict(zip(names, (other[1] for other in others), strict=True))
        written = {name: [tokenizer.decode(ids) for ids in answers] for name, answers in texts.items()}
        print(json.dumps({"model": args.model.name, "places": args.places, **rows, "texts": written}, indent=1))
        return
    for name, row in rows.items():
        for depth in row["depths"]:
            numbers = f"{depth['agreement']:.1%} | {depth['mean_kl']:.1e} | {depth['max_kl']:.1e}"
            print(f"| {args.model.stem} | {name} | {depth['behind']:,} | {numbers} | {depth['largest_gap']:.2g} |")
        answers = row["answers"]
        told = ", ".join(
            f"{same} of {size}" for same, size in zip(answers["equal_tokens"], answers["tokens"], strict=True)
        )
        print(
            f"{name}: answers equal {answers['equal']} of {answers['of']}; tokens before the first difference: {told}"
        )


if __name__ == "__main__":
    main()
