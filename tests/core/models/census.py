"""Which families of the installed transformers are served, and whether they compute what transformers computes.

    python -m tests.core.models.census [FAMILY...]

Each family is a tiny random model (`tiny_families`). It is served ("same": logits and greedy text equal transformers'
own attention through prefill in pieces, decoding, every cache and rollback), or refused with a reason. "WRONG" must
never stand in the table.
"""

import datetime
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedConfig

from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.policies import TopChunks
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.caches.tokens import Context
from core.config import DraftConfig, RetrievalConfig
from core.errors import UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.families import refusal
from core.models.hf_attention import ATTENTION_NAME
from core.models.loader import ModelDims, dims_of
from core.models.rotary import KeyShift
from core.models.text_part import WHOLES
from tests.core.models.tiny_families import families, text_part, tiny_family, transformers_text, twin_models
from tests.core.toys import CPU, random_prompt

LENGTH, WRITTEN, CHUNK = 150, 4, 8
PIECES = ((0, 90), (90, 120), (120, 136))  # of a prompt; the rest is fed token by token
Verdict = Literal["same", "refused", "WRONG"]


@dataclass(frozen=True, slots=True)
class Found:
    """What the census found about a family."""

    family: str
    verdict: Verdict
    about: str


class Different(Exception):
    """A path gave other numbers than transformers; the message says which."""


def judged(
    family: str,
    config: PreTrainedConfig | None = None,
    other: PreTrainedConfig | None = None,
    change: Callable[[nn.Module], None] = lambda _: None,
) -> Found:
    """The verdict on a family.

    Args:
        config: replaces the family's tiny configuration.
        other: of the stock model, and `change`: what is done to it; for negative controls.
    """
    try:
        own = CONFIG_MAPPING[family]()
        whole = text_part(own) is not own  # a tiny one is made of the text's part alone
        if whole and family not in WHOLES:
            dims_of(own, family, weight_bytes=0)
        config = config or tiny_family(family)
        dims = dims_of(config, family, weight_bytes=0)
    except UnsupportedModel as error:
        return Found(family, "refused", error.problem.removeprefix(f"{family} ").removesuffix("."))
    except Exception as error:  # a family's own rules
        reason = refusal(SimpleNamespace(model_type=family))  # whatever its fields
        if reason is not None:
            return Found(family, "refused", reason.problem)
        return Found(family, "WRONG", f"accepted, but no tiny configuration can be made: {_line(error)}")
    try:
        stock, ours = twin_models(config, ATTENTION_NAME)
        if other is not None:
            stock, _ = twin_models(other, ATTENTION_NAME)
            stock.load_state_dict(ours.state_dict(), strict=False)
        change(stock)
    except Exception as error:
        return Found(family, "WRONG", f"accepted, but no tiny model can be made: {_line(error)}")
    try:
        drafts = compare(stock, ours, dims)
    except UnsupportedModel as error:
        return Found(family, "refused", f"in its first pass: {error.problem}")
    except Exception as error:
        return Found(family, "WRONG", _line(error))
    if drafts != dims.drafts:
        return Found(family, "WRONG", f"pairing believes drafts={dims.drafts} of its keys")
    part = f" (its text part, {config.model_type})" if whole else ""
    return Found(family, "same", ("target and draft" if drafts else "target") + part)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


@torch.inference_mode()
def compare(stock: nn.Module, ours: nn.Module, dims: ModelDims) -> bool:
    """Compare every path; whether the model can be a draft too.

    Raises:
        Different: a path gives other logits or another text.
        UnsupportedModel: it is refused in a pass.
    """
    tokens, shape = random_prompt(LENGTH), dims.shape(torch.float32, CPU)
    expected = logits_of(stock, tokens)
    offload = Offload(num_resident=0, block_rows=16, num_slots=3)
    full, offloaded = FullCache(shape, 256, CHUNK), FullCache(shape, 256, CHUNK, offload=offload, landmarks=True)
    for name, cache in (("full", full), ("offloaded", offloaded)):
        _read_and_decode(name, ours, cache, tokens, expected)
        _roll_back(name, ours, cache, tokens, expected)
    _write(ours, full, tokens, transformers_text(stock, tokens, WRITTEN))
    return _draft(ours, shape, tokens, expected)


def _read_and_decode(name: str, ours: nn.Module, full: FullCache, tokens: list[int], expected: Tensor) -> None:
    judge, context = CachedModel(name, ours, full, CPU), Context(tokens)
    for start, stop in PIECES:
        _check(f"{name}, prefill to {stop}", judge.feed(context, range(start, stop), 1), expected[stop - 1 : stop])
    for at in range(PIECES[-1][1], 140):
        _check(f"{name}, decoding {at}", judge.feed(context, range(at, at + 1), 1), expected[at : at + 1])


def _roll_back(name: str, ours: nn.Module, full: FullCache, tokens: list[int], expected: Tensor) -> None:
    """Six guesses behind 140 tokens, all or the last three rejected, in the retrieval cache and in the full one."""
    retrieval = RetrievalCache(full, TopChunks(full, RetrievalConfig(budget=256, chunk_size=CHUNK, local_window=64)))
    retrieval.select()
    for part, cache in ((f"retrieval of {name}", retrieval), (name, full)):
        one = CachedModel(part, ours, cache, CPU)
        for accepted in (0, 3):
            one.logits(Context(tokens[: 140 + accepted] + random_prompt(6 - accepted, seed=1)), 6)
            cache.truncate(140 + accepted)
            kept = 10 - accepted
            _check(f"{part}, {accepted} of 6 accepted", one.logits(Context(tokens), kept), expected[-kept:])
            cache.truncate(140)


def _write(ours: nn.Module, full: FullCache, tokens: list[int], expected: tuple[int, ...]) -> None:
    full.truncate(LENGTH - 1)
    judge, text = CachedModel("full", ours, full, CPU), list(tokens)
    for _ in range(WRITTEN):
        text.append(int(judge.logits(Context(text), 1).argmax()))
    if tuple(text[LENGTH:]) != expected:
        raise Different("another greedy text")


def _draft(ours: nn.Module, shape: KVShape, tokens: list[int], expected: Tensor) -> bool:
    try:
        shift = KeyShift.of(ours, shape)
    except UnsupportedModel:
        return False
    streaming = StreamingCache(shape, DraftConfig(num_sink=4, window=200), shift)
    one = CachedModel("draft", ours, streaming, CPU)
    one.logits(Context(tokens[:140] + random_prompt(6, seed=1)), 6)
    streaming.truncate(140)
    _check("streaming, after a rejection", one.logits(Context(tokens), 10), expected[-10:])
    return True


def logits_of(model: nn.Module, tokens: list[int]) -> Tensor:
    """Logits of every token in one stock pass, [T, V]."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def _check(what: str, ours: Tensor, stock: Tensor) -> None:
    if not (bool(stock.isfinite().all()) and torch.allclose(ours, stock, atol=5e-4, rtol=2e-4)):
        raise Different(f"{what}: logits off by {float((ours - stock).abs().max()):.2g}")


def table(found: Sequence[Found]) -> Iterator[str]:
    """The lines of the table in Markdown, with a summary."""
    counts = Counter(one.verdict for one in found)
    summary = f"{len(found)} families: {counts['same']} same, {counts['refused']} refused, {counts['WRONG']} wrong."
    about = f"transformers {transformers.__version__}, torch {torch.__version__}, {datetime.date.today()}"
    groups = defaultdict[tuple[str, str], list[str]](list)
    for one in found:
        groups[one.verdict, one.about.replace(one.family, "...").replace("|", "\\|")].append(one.family)
    yield f"{summary} ({about})\n"
    yield "| verdict | served as, or why not | families |\n|---|---|---|"
    yield from (f"| {verdict} | {why} | {', '.join(names)} |" for (verdict, why), names in groups.items())


def main(asked: Sequence[str]) -> int:
    """Print the table of these families, or of all; 1 if one is wrong."""
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    found = []
    for family in asked or families():
        found.append(judged(family))
        print(f"{family}: {found[-1].verdict}", file=sys.stderr, flush=True)
    print("\n".join(table(found)))
    return int(any(one.verdict == "WRONG" for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
