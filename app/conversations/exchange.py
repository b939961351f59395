"""One question and its answer, as recorded, and its figures in words."""

import re
from dataclasses import dataclass

from app import formats
from core.config import SamplingParams
from core.decoding.registry import METHODS, method_label
from core.generation.events import Finished

ID = re.compile("[0-9a-f]{32}")  # 128 random bits, which nobody can guess


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer, complete or stopped; `finished` sums up all stretches it was written in."""

    question: str
    finished: Finished
    first_token_seconds: float | None = None  # from its turn to its first token
    num_reread: int = 0  # tokens of the book that had to be read again
    methods: tuple[str, ...] = ()  # in the order they were used, each once
    sampling: SamplingParams | None = None  # of the newest stretch
    seed: int | None = None  # of the newest stretch
    model: str = ""
    weights: str = ""  # the number format the model ran in
    thinking: str | None = None  # what its prompt asked for, see `GenerationConfig`
    digest: str = ""  # of the text it is about: the library may change during a conversation


TOKENS = "Written in this time, from the first token to the last; a token is a piece of a word."
PLAIN_FORMATS = ("float", "bfloat")  # number formats without quantisation


def exactness(exchange: Exchange) -> str:
    """exact, exact for the quantised model, or not exact; not seen for the answer of a server elsewhere."""
    if exchange.finished.method not in METHODS:
        return "exactness not seen"
    if not exchange.finished.exact:
        return "not exact"
    if exchange.weights and not exchange.weights.startswith(PLAIN_FORMATS):
        return "exact for the quantised model"
    return "exact"


def methods(exchange: Exchange) -> str:
    """The methods that wrote the answer."""
    names = exchange.methods or (exchange.finished.method,)
    return ", then ".join(method_label(name) for name in names)


def figures(exchange: Exchange) -> list[tuple[str, str, str]]:
    """Key, text and explanation of each figure of an answer."""
    stats = exchange.finished.stats
    found = list[tuple[str, str, str]]()
    if exchange.first_token_seconds is not None:
        first = f"first word after {seconds(exchange.first_token_seconds)}"
        found.append(("first", first, "From its turn to its first token: what was new in the prompt, and one round."))
    written = f"{formats.plural(stats.new_tokens, 'token')} in {seconds(stats.decode_seconds)}"
    found.append(("tokens", written, TOKENS))
    if stats.thought_tokens:
        told = f"{formats.count(stats.answer_tokens)} of the answer. Thinking took {seconds(stats.thought_seconds)}."
        found.append(("thought", f"{formats.count(stats.thought_tokens)} of thought", told))
    if stats.tokens_per_second is not None:
        found.append(("speed", f"{formats.figure(stats.tokens_per_second)} tokens/s", "Decoding alone."))
    if exchange.num_reread:
        reread = f"{formats.plural(exchange.num_reread, 'token')} read again"
        found.append(("reread", reread, "Of the book, for this answer: something else had used the model meanwhile."))
    found.append(("method", methods(exchange), drawn(exchange)))
    return found


def seconds(value: float) -> str:
    """A duration; short ones to the millisecond."""
    return f"{1000 * value:.0f} ms" if value < 0.1 else formats.duration(value)


def drawn(exchange: Exchange) -> str:
    """The sampling settings in words."""
    sampling = exchange.sampling
    if sampling is None:
        return ""
    if sampling.greedy:
        return "Temperature 0: always the likeliest token."
    limits = f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else ""
    limits += f", top-k {sampling.top_k}" if sampling.top_k else ""
    return f"Temperature {sampling.temperature:g}{limits}, seed {exchange.seed}."
