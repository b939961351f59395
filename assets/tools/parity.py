"""Whether this program writes what transformers writes: real models behind real documents, token by token.

    python assets/tools/parity.py MODEL... --texts FILE... [--lengths 2000,8000,24000] [--new 256] [--json OUT]

Each model (a folder or a GGUF file) answers one question about the first tokens of each document, greedily and by plain
decoding, through the product's own prompt; ends of text do not end it. Then transformers reads the same prompt and the
answer with the same weights in float32, its own attention and its own cache, one token at a time. Up to the first token
that it would have chosen otherwise, this is its own greedy text; from there on both follow our text. At each place
the log-probabilities of our 20 most likely tokens are compared. For the blocks of a GGUF file our rows are
rounded to 8 bits, as in llama.cpp, and theirs are not: texts then differ where two tokens are near each other.

Comparisons that the file of --json has are not repeated.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from app.context.context_documents import Library
from app.documents.bundle import read_documents
from core.config import MOST_LOGPROBS, EngineConfig, GenerationConfig
from core.decoding.registry import PLAIN
from core.engine import Engine
from core.engine_info import NEAR_TIE_GAP
from core.errors import CoreError
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import RoundDone, TokenRecord
from core.generation.session import Conversation
from core.models.hf_attention import cache_argument
from core.models.loader import read_dims

QUESTION = "Explain in detail what this text says, section by section, and quote its most important sentences."
CHUNK = 512  # tokens that transformers reads at a time, which bounds its memory
IDENTICAL, NEAR_TIE, DIFFERENT = "identical", "near tie", "different"


class CannotCompare(Exception):
    """One side cannot be had, told in a line."""


@dataclass(frozen=True, slots=True)
class Written:
    """Our answer behind a document."""

    document: str
    prompt: list[int]
    tokens: list[int]
    top: list[dict[int, float]]  # log-probabilities at each place
    exact_for: str
    near_tie: float  # difference of logits that rounding explains


@dataclass(frozen=True, slots=True)
class Place:
    """What transformers has at a place of our answer."""

    best: int
    gap: float  # of its two best logits
    rank: int  # of our token, from 1
    below: float  # by how much our token's logit lies below the best
    apart: float  # most by which log-probabilities of our most likely tokens differ


def ours(model: Path, texts: Sequence[Path], length: int, new: int, kv_bits: int | None) -> list[Written]:
    """Answers of this program behind that many tokens of each document, or as many as the model's context leaves.

    Raises:
        CannotCompare: a document is too short.
        CoreError: a document or the model cannot be read.
    """
    texts_read, answers = [Library.of(read_documents(file)).text for file in texts], []
    room = new + LONGEST_ROUND + 512  # template and question, too
    wanted = EngineConfig(
        model=str(model),
        draft_model="none",
        device="cpu",
        kv_bits=kv_bits,
        context=min(length + room, read_dims(model).max_context),
        methods=(PLAIN,),
    )
    config = GenerationConfig(max_new_tokens=new, method=PLAIN, top_logprobs=MOST_LOGPROBS)
    with closing(Engine.load(wanted)) as engine:
        engine.text.eos_ids, engine.text.marks = frozenset(), None  # all tokens are text, up to the last one
        for file, text in zip(texts, texts_read, strict=True):
            book = tuple(engine.text.encode(text)[:length])
            if len(book) < length:
                problem = f"{file.name} has {len(book):,} tokens, fewer than {length:,}."
                raise CannotCompare(f"{problem} Name a longer document.")
            over = len(Conversation(book).ask(QUESTION).prompt_ids(engine.text)) + new + LONGEST_ROUND - engine.context
            prompt = Conversation(book[: length - max(over, 0)]).ask(QUESTION).prompt_ids(engine.text)
            records: list[TokenRecord] = []
            for event in engine.generate(prompt, config):
                if isinstance(event, RoundDone):
                    records += event.tokens
            top = [{one.token_id: one.logprob for one in record.top} for record in records]
            near = NEAR_TIE_GAP[engine.plan.kv.value or engine.plan.dtype.value]
            tokens = [record.token_id for record in records]
            answers.append(Written(file.name, prompt, tokens, top, engine.info.exact_for, near))
    return answers


def theirs(model: Path, written: Sequence[Written]) -> list[list[Place]]:
    """What transformers has at each place of these answers, reading them in float32."""
    stock, found = stock_model(model), []
    for one in written:
        cache, places = {cache_argument(stock): DynamicCache(config=stock.config)}, list[Place]()
        with torch.inference_mode():
            for piece in torch.tensor([one.prompt]).split(CHUNK, dim=1):  # type: ignore[no-untyped-call]
                logits = stock(piece, **cache, logits_to_keep=1).logits[0, -1]
            for token, top in zip(one.tokens, one.top, strict=True):
                places.append(place_of(logits, token, top))
                if len(places) < len(one.tokens):
                    logits = stock(torch.tensor([[token]]), **cache).logits[0, -1]
        found.append(places)
    return found


def place_of(logits: torch.Tensor, token: int, top: dict[int, float]) -> Place:
    """Logits [V] beside our token and our log-probabilities."""
    best, logs = logits.topk(2), logits.float().log_softmax(-1)
    return Place(
        best=int(best.indices[0]),
        gap=float(best.values[0] - best.values[1]),
        rank=1 + int((logits > logits[token]).sum()),
        below=float(best.values[0] - logits[token]),
        apart=float((logs[torch.tensor(list(top))] - torch.tensor(list(top.values()))).abs().max()),
    )


def stock_model(model: Path) -> Any:
    """The model as transformers computes it, in float32 on the processor."""
    weights: dict[str, Any] = {"local_files_only": True, "dtype": torch.float32, "attn_implementation": "sdpa"}
    if model.is_dir():
        found: Any = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False, **weights)
        return found.eval()
    # with gguf_file transformers asks for accelerate
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(
        model.parent, gguf_file=model.name, local_files_only=True, trust_remote_code=False
    )
    with torch.device("meta"):
        named = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    unpacked = load_gguf_checkpoint(  # type: ignore[no-untyped-call]
        str(model), return_tensors=True, model_to_load=named, torch_dtype=torch.float32
    )
    found, lacks = type(named).from_pretrained(
        None,
        config=config,
        state_dict=unpacked["tensors"],
        output_loading_info=True,
        trust_remote_code=False,
        **weights,
    )
    if lacks["missing_keys"] or lacks["mismatched_keys"]:
        raise CannotCompare(f"transformers finds not all weights in {model.name}. Name the model's folder.")
    return found.eval()


def row_of(one: Written, places: Sequence[Place]) -> dict[str, Any]:
    """The comparison of one answer, for people and for JSON."""
    apart = [place.apart for place in places]
    row: dict[str, Any] = {
        "document": one.document,
        "prompt_tokens": len(one.prompt),
        "new_tokens": len(one.tokens),
        "verdict": IDENTICAL,
        "least_gap": min(place.gap for place in places),
        "most_apart": max(apart),
        "most_apart_at": apart.index(max(apart)),
        "mean_apart": sum(apart) / len(apart),
        "exact_for": one.exact_for,
    }
    others = [at for at, (place, token) in enumerate(zip(places, one.tokens, strict=True)) if place.best != token]
    if others:
        first = places[others[0]]
        row |= {
            "verdict": NEAR_TIE if first.below <= one.near_tie else DIFFERENT,
            "first_difference": others[0],
            "token": one.tokens[others[0]],
            "their_token": first.best,
            "gap": first.gap,
            "rank": first.rank,
            "below": first.below,
            "places_that_differ": len(others),
        }
    return row


# -------------------- the command


def compared(model: Path, texts: Sequence[Path], length: int, new: int, kv_bits: int | None) -> list[dict[str, Any]]:
    """A row for each document.

    Raises:
        CannotCompare: told in a line.
    """
    try:
        written = ours(model, texts, length, new, kv_bits)
        gc.collect()  # their weights need the memory of ours
        found = theirs(model, written)
    except (CoreError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise CannotCompare(" ".join(str(error).split()) or type(error).__name__) from error
    head = {"model": model.name, "length": length, "new": new, "kv_bits": kv_bits}
    head |= {"date": time.strftime("%Y-%m-%d"), "threads": os.environ.get("OMP_NUM_THREADS") or os.cpu_count()}
    head |= {name: version(name) for name in ("torch", "transformers")}
    return [head | row_of(*measured) for measured in zip(written, found, strict=True)]


def line_of(row: dict[str, Any]) -> str:
    """A row for people."""
    verdict = row["verdict"]
    if verdict != IDENTICAL:
        place = f"rank {row['rank']}, {row['below']:.2g} below (their gap {row['gap']:.2g})"
        verdict += f" at {row['first_difference']}: {place}"
    sizes = f"{row['prompt_tokens']:>7,} {row['new_tokens']:>5} {row['most_apart']:>9.1e}"
    return f"{row['model']:<26} {row['document']:<24} {sizes}  {verdict}"


HEAD = f"{'model':<26} {'document':<24} {'prompt':>7} {'new':>5} {'log-probs':>9}  greedy text"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparisons. Returns 0, 1 where a text differs without a near tie, 2 where one could not be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="a folder or a GGUF file")
    parser.add_argument("--texts", nargs="+", type=Path, required=True, metavar="FILE", help="of any format")
    parser.add_argument("--lengths", default="2000,8000,24000", metavar="N,M", help="tokens of them")
    parser.add_argument("--new", type=int, default=256, metavar="N", help="tokens to write (default: 256)")
    kv = "bits of our keys and values (default: 32); auto: the product's choice"
    parser.add_argument("--kv-bits", default="32", choices=("auto", "16", "32"), help=kv)
    parser.add_argument("--json", type=Path, metavar="OUT", help="keep the rows; those that it has are not repeated")
    args = parser.parse_args(argv)
    kv_bits = None if args.kv_bits == "auto" else int(args.kv_bits)
    kept: list[dict[str, Any]] = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    known, rows, failed = {key_of(row): row for row in kept}, [], False
    print(HEAD)
    for model in (path.resolve() for path in args.models):
        for length in map(int, args.lengths.split(",")):
            keys = [(model.name, file.name, length, args.new, kv_bits) for file in args.texts]
            todo = [file for file, key in zip(args.texts, keys, strict=True) if key not in known]
            try:
                fresh = compared(model, todo, length, args.new, kv_bits) if todo else []
            except CannotCompare as error:
                print(f"error: {model.name}, {length:,} tokens: {error}", file=sys.stderr, flush=True)
                failed = True
                continue
            known |= {key_of(row): row for row in fresh}
            rows += [known[key] for key in keys]
            if args.json and fresh:
                whole = args.json.with_suffix(".new")
                whole.write_text(json.dumps(list(known.values()), indent=1) + "\n", encoding="utf-8")
                os.replace(whole, args.json)
            print(*(line_of(known[key]) for key in keys), sep="\n", flush=True)
    return 2 if failed else int(any(row["verdict"] == DIFFERENT for row in rows))


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a comparison is of."""
    return tuple(row[name] for name in ("model", "document", "length", "new", "kv_bits"))


if __name__ == "__main__":
    sys.exit(main())
