"""Whether this program writes what transformers writes: real models behind real documents, token by token.

    python assets/tools/parity.py MODEL... --texts FILE... [--lengths 2000,8000,24000] [--new 256] [--json OUT]

Each model (a folder or a GGUF file) answers one question about the first tokens of each document, greedily and by plain
decoding, through the product's own prompt; ends of text do not end it. Then transformers reads the same prompt and the
answer with the same weights in float32, its own attention and its own cache, one token at a time. Up to the first token
that it would have chosen otherwise, this is its own greedy text; from there on both follow our text. At each place
the log-probabilities of our 20 most likely tokens are compared. For the blocks of a GGUF file our rows are
rounded to 8 bits, as in llama.cpp, and theirs are not: texts then differ where two tokens are near each other.

Each side runs in a process of its own, one after the other. Comparisons that the file of --json has are not repeated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]  # started as a script

QUESTION = "Explain in detail what this text says, section by section, and quote its most important sentences."
CHUNK = 512  # tokens that transformers reads at a time, which bounds its memory
IDENTICAL, NEAR_TIE, DIFFERENT = "identical", "near tie", "different"


class CannotCompare(Exception):
    """One side cannot be had, told in a line."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a side took."""

    load_seconds: float
    read_seconds: float
    ms_per_token: float
    peak_gib: float  # of its process until then


@dataclass(frozen=True, slots=True)
class Written:
    """Our answer behind a document."""

    document: str
    prompt: list[int]
    tokens: list[int]
    top: list[dict[int, float]]  # log-probabilities at each place
    exact_for: str
    near_tie: float  # difference of logits that rounding explains
    took: Measured


@dataclass(frozen=True, slots=True)
class Place:
    """What transformers has at a place of our answer."""

    best: int
    gap: float  # of its two best logits
    rank: int  # of our token, from 1
    below: float  # by how much our token's logit lies below the best
    apart: float  # most by which log-probabilities of our most likely tokens differ


def peak_gib() -> float:
    """The most memory that this process has had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def took_of(one: Measured) -> str:
    """What a side took, for people."""
    return (
        f"loaded in {one.load_seconds:.0f} s, read in {one.read_seconds:.0f} s, {one.ms_per_token:.0f} ms a token, "
        f"at most {one.peak_gib:.1f} GiB"
    )


def ours(model: Path, texts: Sequence[Path], length: int, new: int, kv_bits: int | None) -> list[Written]:
    """Answers of this program behind that many tokens of each document, or as many as the model's context leaves.

    Raises:
        CannotCompare: a document is too short.
        CoreError: a document or the model cannot be read.
    """
    from app.context.context_documents import Library
    from app.documents.bundle import read_documents
    from core.config import MOST_LOGPROBS, EngineConfig, GenerationConfig
    from core.decoding.registry import PLAIN
    from core.engine import Engine
    from core.engine_info import NEAR_TIE_GAP
    from core.generation.decode_loop import LONGEST_ROUND
    from core.generation.events import Finished, RoundDone, TokenRecord
    from core.generation.session import Conversation
    from core.models.loader import read_dims

    texts_read, answers = [Library.of(read_documents(file)).text for file in texts], []
    room = new + LONGEST_ROUND + 512  # template and question, too
    started = time.perf_counter()
    engine = Engine.load(
        EngineConfig(
            model=str(model),
            draft_model="none",
            device="cpu",
            kv_bits=kv_bits,
            context=min(length + room, read_dims(model).max_context),
            methods=(PLAIN,),
        )
    )
    load_seconds = time.perf_counter() - started
    engine.text.eos_ids, engine.text.marks = frozenset(), None  # all tokens are text, up to the last one
    config = GenerationConfig(max_new_tokens=new, method=PLAIN, top_logprobs=MOST_LOGPROBS)
    for file, text in zip(texts, texts_read, strict=True):
        book = engine.text.encode(text)[:length]
        if len(book) < length:
            raise CannotCompare(f"{file.name} has {len(book):,} tokens, fewer than {length:,}. Name a longer document.")
        over = len(asked(engine.text, Conversation(tuple(book)))) + new + LONGEST_ROUND - engine.context
        prompt = asked(engine.text, Conversation(tuple(book[: length - max(over, 0)])))
        records: list[TokenRecord] = []
        for event in engine.generate(prompt, config):
            if isinstance(event, RoundDone):
                records += event.tokens
        assert isinstance(event, Finished)
        answers.append(
            Written(
                file.name,
                prompt,
                [record.token_id for record in records],
                [{one.token_id: one.logprob for one in record.top} for record in records],
                engine.info.exact_for,
                NEAR_TIE_GAP[engine.plan.kv.value or engine.plan.dtype.value],
                Measured(load_seconds, event.prefill_seconds, event.stats.ms_per_token or 0.0, peak_gib()),
            )
        )
        tell(f"  ours, {file.name}: {took_of(answers[-1].took)}")
    return answers


def asked(text: Any, conversation: Any) -> list[int]:
    """The prompt of the question about a book."""
    prompt: list[int] = conversation.ask(QUESTION).prompt_ids(text)
    return prompt


def theirs(model: Path, written: Sequence[Written], attention: str = "sdpa") -> list[tuple[list[Place], Measured]]:
    """What transformers has at each place of these answers, reading them in float32."""
    import torch
    from transformers import DynamicCache

    from core.models.hf_attention import cache_argument

    started = time.perf_counter()
    stock = stock_model(model, attention)
    load_seconds, found = time.perf_counter() - started, []
    for one in written:
        cache, places = {cache_argument(stock): DynamicCache(config=stock.config)}, list[Place]()
        started = time.perf_counter()
        with torch.inference_mode():
            for piece in torch.tensor([one.prompt]).split(CHUNK, dim=1):  # type: ignore[no-untyped-call]
                logits = stock(piece, **cache, logits_to_keep=1).logits[0, -1]
            read_seconds, started = time.perf_counter() - started, time.perf_counter()
            for number, (token, top) in enumerate(zip(one.tokens, one.top, strict=True), 1):
                places.append(place_of(logits, token, top))
                if number < len(one.tokens):
                    logits = stock(torch.tensor([[token]]), **cache).logits[0, -1]
        ms = 1e3 * (time.perf_counter() - started) / len(places)
        found.append((places, Measured(load_seconds, read_seconds, ms, peak_gib())))
        tell(f"  transformers, {one.document}: {took_of(found[-1][1])}")
    return found


def place_of(logits: Any, token: int, top: dict[int, float]) -> Place:
    """Logits [V] beside our token and our log-probabilities."""
    import torch

    best, logs = logits.topk(2), logits.float().log_softmax(-1)
    theirs_of_top = logs[torch.tensor(list(top))]
    return Place(
        best=int(best.indices[0]),
        gap=float(best.values[0] - best.values[1]),
        rank=1 + int((logits > logits[token]).sum()),
        below=float(best.values[0] - logits[token]),
        apart=float((theirs_of_top - torch.tensor(list(top.values()))).abs().max()),
    )


def stock_model(model: Path, attention: str) -> Any:
    """The model as transformers computes it, in float32 on the processor."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()  # type: ignore[no-untyped-call]
    set_verbosity_error()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": attention, "local_files_only": True}
    if model.is_dir():
        found: Any = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False, **options)
    else:  # with gguf_file transformers asks for accelerate
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
            **options,
        )
        if lacks["missing_keys"] or lacks["mismatched_keys"]:
            raise CannotCompare(f"transformers finds not all weights in {model.name}. Name the model's folder.")
    return found.eval()


def row_of(one: Written, places: Sequence[Place], took: Measured) -> dict[str, Any]:
    """The comparison of one answer, for people and for JSON."""
    others = [
        number for number, (place, token) in enumerate(zip(places, one.tokens, strict=True)) if place.best != token
    ]
    row: dict[str, Any] = {"prompt_tokens": len(one.prompt), "new_tokens": len(one.tokens), "verdict": IDENTICAL}
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
    apart = [place.apart for place in places]
    row |= {
        "least_gap": min(place.gap for place in places),
        "most_apart": max(apart),
        "most_apart_at": apart.index(max(apart)),
        "mean_apart": sum(apart) / len(apart),
        "exact_for": one.exact_for,
    }
    for side, measured in (("ours", one.took), ("theirs", took)):
        row[side] = {name: round(getattr(measured, name), 3) for name in Measured.__slots__}
    return row


# -------------------- the command


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own, whose memory is free afterwards.

    Raises:
        CannotCompare: it has failed, told in a line.
    """
    os.environ["TQDM_DISABLE"] = "1"  # its process shows no bars
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            result, problem = pool.submit(guarded, function, *args).result()
        except BrokenProcessPool as error:
            raise CannotCompare(f"the process of '{function.__name__}' was ended: is there enough memory?") from error
    if problem:
        raise CannotCompare(problem)
    return result


def guarded(function: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """A result, or the problem in a line; errors of ours cannot be sent to another process."""
    from core.errors import CoreError

    try:
        return function(*args), ""
    except (CannotCompare, CoreError, OSError, ValueError, KeyError, RuntimeError) as error:
        return None, " ".join(str(error).split()) or type(error).__name__


def compared(
    model: Path, texts: Sequence[Path], length: int, new: int, kv_bits: int | None, attention: str
) -> list[dict[str, Any]]:
    """A row for each document. Raises CannotCompare."""
    written = alone(ours, model, texts, length, new, kv_bits)
    tell(f"{model.name}, {length:,} tokens: ours done, now transformers")
    found = alone(theirs, model, written, attention)
    head: dict[str, Any] = {
        "model": model.name,
        "length": length,
        "new": new,
        "kv_bits": kv_bits,
        "attention": attention,
    }
    head |= {"date": time.strftime("%Y-%m-%d"), "threads": os.environ.get("OMP_NUM_THREADS") or os.cpu_count()}
    head |= {name: version(name) for name in ("torch", "transformers")}
    return [
        {**head, "document": one.document, **row_of(one, *measured)}
        for one, measured in zip(written, found, strict=True)
    ]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a comparison is of."""
    return tuple(row[name] for name in ("model", "document", "length", "new", "kv_bits", "attention"))


def line_of(row: dict[str, Any]) -> str:
    """A row for people."""
    verdict = row["verdict"]
    if verdict != IDENTICAL:
        verdict += (
            f" at {row['first_difference']}: rank {row['rank']}, {row['below']:.2g} below (their gap {row['gap']:.2g})"
        )
    times = " ".join(
        f"{row[side]['read_seconds']:8.1f} {row[side]['ms_per_token']:8.1f} {row[side]['peak_gib']:6.1f}"
        for side in ("ours", "theirs")
    )
    return (
        f"{row['model']:<26} {row['document']:<24} {row['prompt_tokens']:>7,} {row['new_tokens']:>5} "
        f"{row['most_apart']:>9.1e} {times}  {verdict}"
    )


HEAD = (
    f"{'':<26} {'':<24} {'prompt':>7} {'new':>5} {'log-probs':>9} {'ours':>8} {'':>8} {'':>6} {'transformers':>24}\n"
    f"{'model':<26} {'document':<24} {'tokens':>7} {'':>5} {'apart':>9}"
    + 2 * f" {'read s':>8} {'ms/token':>8} {'GiB':>6}"
    + "  greedy text"
)


def tell(line: str) -> None:
    """A line on how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def numbers(text: str) -> tuple[int, ...]:
    """2000,8000"""
    return tuple(int(part) for part in text.split(","))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparisons. Returns 0, 1 where a text differs without a near tie, 2 where one could not be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="a folder or a GGUF file")
    parser.add_argument("--texts", nargs="+", type=Path, required=True, metavar="FILE", help="of any format")
    parser.add_argument("--lengths", type=numbers, default=(2000, 8000, 24000), metavar="N,M", help="tokens of them")
    parser.add_argument("--new", type=int, default=256, metavar="N", help="tokens to write (default: 256)")
    kv = "bits of our keys and values (default: 32); auto: the product's choice"
    parser.add_argument("--kv-bits", default="32", choices=("auto", "16", "32"), help=kv)
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"), help="of transformers")
    parser.add_argument("--json", type=Path, metavar="OUT", help="keep the rows; those that it has are not repeated")
    args = parser.parse_args(argv)
    kv_bits = None if args.kv_bits == "auto" else int(args.kv_bits)
    kept: list[dict[str, Any]] = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    known, rows, failed = {key_of(row): row for row in kept}, [], False
    for model in (path.resolve() for path in args.models):
        for length in args.lengths:
            keys = [(model.name, file.name, length, args.new, kv_bits, args.attention) for file in args.texts]
            todo = [file for file, key in zip(args.texts, keys, strict=True) if key not in known]
            tell(f"{model.name}, {length:,} tokens: {len(todo)} of {len(keys)} documents to compare")
            try:
                fresh = compared(model, todo, length, args.new, kv_bits, args.attention) if todo else []
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
            for row in fresh:
                tell(line_of(row))
    print("\n".join([HEAD, *map(line_of, rows)]))
    return 2 if failed else int(any(row["verdict"] == DIFFERENT for row in rows))


if __name__ == "__main__":
    sys.exit(main())
