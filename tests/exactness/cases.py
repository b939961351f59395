"""Cases of the exactness suite: an engine and a program of what a user may do with it, drawn from one number.

Equal numbers give equal cases, so whatever one of them finds can be played again alone.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from assets.tools.books.generated import write_book
from core.config import DraftConfig, GenerationConfig, PlacementWish, RetrievalConfig, SamplingParams, SpeculationConfig
from core.decoding.registry import EXACT_METHODS
from tests.core.toys import FAMILIES, VOCAB, Letters

World = Literal["tiny", "bundled", "windowed"]
# All answers greedy, all sampled and long, or one sampled answer that is continued again and again
Flavour = Literal["mixed", "greedy", "sampled", "continued"]
WINDOWED = ("gemma2", "gemma4_text", "gpt_oss", "ministral", "qwen2")
CONTINUED_EVERY = 10  # mixed cases of which one is "continued": statistics of seams need many of them
Interruption = Literal["cancel", "close", "cancel reading", "close reading"]

METHOD_WEIGHTS = {
    "triforce": 34,
    "retrieval": 15,
    "draft": 12,
    "lookup": 12,
    "triforce-lookup": 15,
    "autoregressive": 6,
    "streamingllm": 3,
    "h2o": 3,
}
KIND_WEIGHTS = {
    "ask": 20,  # a further question
    "edit": 17,  # another question in place of an earlier one; what followed it goes
    "regenerate": 12,  # the last question once more
    "go_on": 28,  # with the last answer
    "race": 8,  # several methods answer a question in turns; the first lane's answer stays
    "open": 8,  # another book, or this one changed
    "reopen": 6,  # the book goes to disk; a new engine gets it from there
    "compare": 3,  # the last answer with itself, and with one that differs
    "look": 3,  # where in the book an answer to the last prompt would look
    "forget": 1,  # the engine is closed and used again
}
MOST_NEW_TOKENS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A tiny random target and its draft: the same weights, disturbed by `noise`, or others altogether."""

    family: str
    layers: int
    heads: int
    kv_heads: int
    seed: int
    noise: float | None  # None: a draft of other weights, which agrees by chance only
    windowed: bool = False  # with the windows that its family has; the draft, if its keys do not move, is a Qwen2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    pair: Pair | None  # None: the bundled one
    context: int
    prefill_chunk: int
    retrieval: RetrievalConfig
    draft: DraftConfig
    placement: PlacementWish = "resident"
    block_rows: int | None = None  # that cross from host memory at a time; None: as planned
    cpu_attention_share: float | None = None
    graphs: bool = False  # passes as they would be recorded, called instead
    self_draft: bool = False  # passes over the retrieval cache multiply by weights of 4 bits
    eos_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One answer, and whether it is broken off."""

    config: GenerationConfig
    interruption: Interruption | None = None
    after: int = 0  # rounds, or portions of the prompt, before that
    boundary: bool = False  # whether reading stops at the end of the book
    stop_at: float | None = None  # where in a greedy answer, as a share, there is a stop string


def drawing_of(number: int, world: World = "tiny", flavour: Flavour = "mixed") -> "Drawing":
    """What draws the case of a number."""
    rng = random.Random(f"{world} {flavour} {number}")
    if flavour == "mixed" and number % CONTINUED_EVERY == CONTINUED_EVERY - 1:
        flavour = "continued"
    drawing = {"tiny": Drawing, "bundled": _Bundled, "windowed": _Windowed}[world](rng, flavour)
    drawing.number, drawing.world = number, world
    return drawing


class LetterChat(Letters):
    """Letters with a chat format: a turn is a separator, the question, a separator."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [max(self.alphabet.find(letter), 0) for letter in text]

    def pieces(self, roles: Sequence[str], thinking: str | None = None) -> list[list[int]]:
        return [[0, 2], *([3 + number % 2, 0] for number in range(len(roles)))]


class Drawing:
    """Draws a case of tiny models: the engine, then what a user does, as it is played."""

    number: int
    world: World
    most_actions = 8
    letters = Letters.alphabet[2:]

    def __init__(self, rng: random.Random, flavour: Flavour) -> None:
        self.rng, self.flavour = rng, flavour
        self.retrieval = self.draw_retrieval()

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return {"tiny": "", "bundled": "b", "windowed": "w"}[self.world] + str(self.number)

    def draw_retrieval(self) -> RetrievalConfig:
        rng = self.rng
        chunk, window = rng.choice((4, 8, 8, 16)), rng.choice((16, 32, 64))
        least = -(-(window + 2 * chunk) // chunk)
        return RetrievalConfig(
            budget=chunk * (least + int(rng.expovariate(1 / rng.choice((2, 8, 40))))),
            chunk_size=chunk,
            local_window=window,
            query_window=rng.choice((1, 4, 8, 24)),
            neighbor_bonus=rng.choice((0.0, 0.5, 1.0)),
            reselect_interval=rng.choice((1, 4, 8, 32)),
            policy=rng.choice(("verification", "landmark", "attention")),
        )

    def setup(self) -> Setup:
        rng = self.rng
        heads, kv_heads = rng.choice(((2, 1), (4, 4), (4, 2), (4, 1), (6, 2)))
        num_sink = rng.choice((1, 4, 4))
        placement: PlacementWish = rng.choice(("resident",) * 7 + ("split", "offloaded", "offloaded"))
        eos = frozenset(rng.sample(range(2, VOCAB), rng.choice((0, 1, 1, 2))))
        return Setup(
            pair=Pair(
                family=rng.choice(FAMILIES),
                layers=rng.choice((1, 2, 2, 3)),
                heads=heads,
                kv_heads=kv_heads,
                seed=rng.randrange(12),
                noise=0.15 if self.flavour == "sampled" else rng.choice((0.0, 0.02, 0.05, 0.15, 0.15, 0.4, None)),
            ),
            context=rng.choice((384, 512, 768, 1024)),
            prefill_chunk=rng.choice((32, 64, 96, 256)),
            retrieval=self.retrieval,
            draft=DraftConfig(num_sink=num_sink, window=num_sink + rng.choice((64, 64, 96, 160))),
            placement=placement,
            block_rows=rng.choice((None, 32, 64)) if placement != "resident" else None,
            cpu_attention_share=rng.choice((None, 0.5)) if placement != "resident" else None,
            graphs=placement == "resident" and rng.random() < 0.15,
            self_draft=rng.random() < 0.1,
            eos_ids=frozenset() if self.flavour == "continued" else eos,
        )

    # -------------------- texts

    def some(self, most: int) -> str:
        return "".join(self.rng.choices(self.letters, k=self.rng.randint(1, most)))

    def text(self, num_tokens: int) -> str:
        """Letters of which a share comes again and again, as phrases do, so that lookups and chunks find something."""
        rng = self.rng
        phrases = [self.some(24) for _ in range(6)]
        share, parts = rng.choice((0.0, 0.3, 0.7)), ""
        while len(parts) < num_tokens:
            parts += rng.choice(phrases) if rng.random() < share else self.some(16)
        return parts[:num_tokens]

    def first_book(self) -> str:
        return self.text(int(self.rng.triangular(20, 480, 240)))

    def other_book(self, book: str) -> str:
        rng = self.rng
        if rng.random() < 0.4:
            return self.first_book()
        kept = book[: int(len(book) * rng.random())]
        return kept + self.text(rng.randint(10, 200))

    def question(self) -> str:
        return self.some(30)

    def stop_string(self) -> str:
        return self.some(2)

    def kinds(self) -> Iterator[str]:
        """What the user does, one after the other, of KIND_WEIGHTS."""
        number, kind = 1, "ask"
        yield kind
        while number < self.rng.randint(3, self.most_actions):
            kind = "go_on"
            if self.flavour != "continued":
                kind = self.rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))[0]
            yield kind
            number += 1

    # -------------------- answers

    def budget(self) -> int | None:
        if self.rng.random() < 0.75:
            return None
        one = self.retrieval
        least = -(-(one.local_window + 2 * one.chunk_size) // one.chunk_size) * one.chunk_size
        return least + one.chunk_size * self.rng.randint(0, 12)

    def wanted(self, most: int = MOST_NEW_TOKENS) -> Wanted:
        rng = self.rng
        length = rng.randint(30, 80) if self.flavour == "sampled" else 1 + int(rng.expovariate(1 / 18))
        config = GenerationConfig(
            max_new_tokens=min(most, length),
            sampling=self.sampling(),
            speculation=self.speculation(),
            method=self.method(),
            seed=rng.getrandbits(31),
            stop_strings=tuple(self.stop_string() for _ in range(rng.randint(1, 2))) if self.rarely(0.12) else (),
            budget=self.budget(),
        )
        kind: Interruption | None = None
        if self.rarely(0.2) and self.flavour != "sampled":
            kind = rng.choices(("cancel", "close", "cancel reading", "close reading"), (5, 5, 2, 2))[0]
        return Wanted(
            config=config,
            interruption=kind,
            after=min(12, int(rng.expovariate(0.3))),
            boundary=rng.random() < 0.2,
            stop_at=rng.random() if rng.random() < 0.12 else None,
        )

    def rarely(self, share: float) -> bool:
        """Whether something happens that may end an answer early; never to one that is to be continued."""
        return self.rng.random() < share and self.flavour != "continued"

    def method(self) -> str:
        if self.flavour == "continued":  # plain decoding, and whatever speculates
            return self.rng.choice(("autoregressive", "autoregressive", *EXACT_METHODS))
        return self.rng.choices(list(METHOD_WEIGHTS), list(METHOD_WEIGHTS.values()))[0]

    def speculation(self) -> SpeculationConfig:
        rng = self.rng
        gamma1, gamma2 = rng.choice((1, 1, 2, 2, 3, 5)), rng.choice((1, 2, 4, 6, 6, 9, 16))
        return SpeculationConfig(gamma1=gamma1, gamma2=gamma2, adaptive=rng.random() < 0.2)

    def sampling(self) -> SamplingParams:
        rng = self.rng
        if self.flavour == "greedy" or (self.flavour == "mixed" and rng.random() < 0.55):
            return SamplingParams()
        if self.flavour in ("sampled", "continued"):
            return SamplingParams(temperature=rng.uniform(0.7, 1.1))
        return SamplingParams(
            temperature=rng.choice((1e-6, 0.05)) if rng.random() < 0.04 else rng.uniform(0.3, 1.4),
            top_p=rng.choice((1.0, 1.0, 0.95, 0.8)),
            top_k=rng.choice((0, 0, 0, 4, 12)),
        )


class _Windowed(Drawing):
    """Models with windows of 16 tokens, soft caps, sinks, or layers that read the keys of others."""

    def setup(self) -> Setup:
        drawn = super().setup()
        assert drawn.pair is not None
        pair = replace(drawn.pair, family=self.rng.choice(WINDOWED), layers=2, heads=4, kv_heads=4, windowed=True)
        return replace(drawn, pair=pair, graphs=False)


class _Bundled(Drawing):
    """The bundled pair, with books and questions in words."""

    most_actions = 6

    def draw_retrieval(self) -> RetrievalConfig:
        rng = self.rng
        chunk, window = rng.choice((8, 16)), rng.choice((32, 64, 128))
        budget = 16 * (-(-(window + 2 * chunk) // 16) + int(rng.expovariate(0.1)))
        return RetrievalConfig(budget=budget, chunk_size=chunk, local_window=window)

    def setup(self) -> Setup:
        rng = self.rng
        placement: PlacementWish = rng.choice(("resident",) * 4 + ("split", "offloaded"))
        return Setup(
            pair=None,
            context=8192,
            prefill_chunk=rng.choice((256, 1024)),
            retrieval=self.retrieval,
            draft=DraftConfig(window=rng.choice((80, 128, 256))),
            placement=placement,
            cpu_attention_share=rng.choice((None, 0.5)) if placement != "resident" else None,
            graphs=placement == "resident" and rng.random() < 0.1,
            self_draft=rng.random() < 0.1,
        )

    def first_book(self) -> str:
        book = write_book(self.rng.getrandbits(31), int(self.rng.triangular(800, 4500, 1500)))
        self.questions = book.questions
        return book.text

    def other_book(self, book: str) -> str:
        rng = self.rng
        if rng.random() < 0.3:
            return self.first_book()
        paragraphs = book.split("\n\n")
        at = rng.randrange(len(paragraphs))
        new = write_book(rng.getrandbits(31), 100).text.split("\n\n")[1]
        return "\n\n".join([*paragraphs[:at], new, *paragraphs[at + 1 :]])

    def question(self) -> str:
        wanted = self.rng.choice(("fact", "list", "quote", "recite", "recite", "absent"))
        possible = [row.question for row in self.questions if row.kind == wanted]
        return self.rng.choice(possible or [row.question for row in self.questions])

    def stop_string(self) -> str:
        return self.rng.choice((".", "the", "\n\n", ", and", "x", "ing "))
