"""The ablation suite: TriForce as published and what was added to it, and variants with one part set differently.

Weights are loaded once. Every variant gets its own engine and the same books, which are read once and then loaded, and
is timed in turns with plain decoding on the same engine, so that a busy moment of the machine affects both. Each
differs in one part from TriForce as it ships, or, for additions, from TriForce as published.

Acceptance hardly depends on the machine's load, but rounds that adapt follow measured times. So `counted` measures
with fixed rounds what no load changes, and no times.
"""

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.choices import HINDSIGHT, ONCE
from assets.tools.bench.pair import SharedPair
from assets.tools.bench.speed import ADAPTIVE, Row, run_speed
from core.config import EngineConfig, SamplingParams, SpeculationConfig
from core.decoding.registry import METHODS, PLAIN
from core.engine import Engine
from core.engine_info import EngineInfo
from core.errors import BookFolderFull, InvalidSetting, NotEnoughMemory
from core.kv_store.engine_store import BookStore, refusal
from core.kv_store.folder import BookFolder

SHIPPED, PUBLISHED, PLUS = "as shipped", "as published", "published plus"
COLUMNS = (  # of a row, beside its variant; where it is not timed, times are None
    "method",
    "books",
    "new_tokens",
    "ms_per_token",
    "speedup_vs_autoregressive",
    "acceptance_level1",
    "acceptance_level2",
    "tokens_per_full_pass",
    "identical_to_autoregressive",
)
SELDOM = 1 << 20  # tokens after which chunks are chosen again: never within an answer


def fixed(gamma1: int, gamma2: int) -> SpeculationConfig:
    """Rounds of one shape."""
    return SpeculationConfig(gamma1=gamma1, gamma2=gamma2, adaptive=False)


COUNTED = fixed(2, 8)  # the rounds in which counts are compared


@dataclass(frozen=True, slots=True)
class Variant:
    """One changed part: fields of the retrieval and draft settings, the shape of rounds, and the temperature."""

    part: str
    name: str
    method: str = "triforce"
    retrieval: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] = field(default_factory=dict)
    speculation: SpeculationConfig = ADAPTIVE
    temperature: float = 0.0

    def __str__(self) -> str:
        return f"{self.part} {self.name}".strip()

    def applied(self, config: EngineConfig) -> EngineConfig | None:
        """The engine settings for it; None if they contradict the user's."""
        try:
            return replace(
                config, retrieval=replace(config.retrieval, **self.retrieval), draft=replace(config.draft, **self.draft)
            )
        except InvalidSetting:
            return None


def _of(part: str, name: str, **retrieval: Any) -> Variant:
    return Variant(part, name, retrieval=retrieval)


# The paper's composition: chunks chosen once, by the last query of the prompt, and rounds of gamma1 2 and gamma2 6
PAPER = Variant(
    PUBLISHED,
    "",
    retrieval={"policy": ONCE, "query_window": 1, "neighbor_bonus": 0.0, "reselect_interval": SELDOM},
    speculation=fixed(2, 6),
)


def _added(name: str, *left_out: str, **changes: Any) -> Variant:
    """The paper's composition with one addition; `left_out`: settings that are as shipped again."""
    kept = {key: value for key, value in PAPER.retrieval.items() if key not in left_out}
    return replace(PAPER, part=PLUS, name=name, retrieval=kept, **changes)


VARIANTS = (
    Variant(SHIPPED, ""),
    PAPER,
    _added("rounds that adapt", speculation=ADAPTIVE),
    _added("8 queries that vote", "query_window"),
    _added("the bonus for the next chunk", "neighbor_bonus"),
    _added("choices every 8 tokens", "policy", "reselect_interval"),
    _added("lookups", method="triforce-lookup"),
    Variant("levels", "no draft", "retrieval"),
    Variant("levels", "no retrieval", "draft"),
    Variant("proposals", "lookup for the draft", "lookup"),
    Variant("proposals", "lookup, else the draft", "triforce-lookup"),
    *(
        Variant("rounds", f"fixed, {g1} and {g2}", speculation=fixed(g1, g2))
        for g1, g2 in ((1, 4), (2, 8), (2, 16), (4, 16))
    ),
    *(_of("budget", str(tokens), budget=tokens) for tokens in (256, 512, 2048, 4096)),
    *(_of("chunk size", str(tokens), chunk_size=tokens) for tokens in (4, 16, 32, 64)),
    _of("local window", "32", local_window=32),
    _of("chosen by", "exact attention", policy="attention"),
    _of("chosen by", "the last query alone", query_window=1),
    _of("chosen by", "the attention to come", policy=HINDSIGHT),
    _of("bonus for the next chunk", "none", neighbor_bonus=0.0),
    _of("chosen again after", "64 tokens", reselect_interval=64),
    Variant("draft window", "128", draft={"window": 128}),
    Variant("draft window", "512", draft={"window": 512}),
    *(Variant("temperature", f"{heat:g}", temperature=heat) for heat in (0.3, 0.6, 0.9, 1.2)),
)


class Ablation:
    """One loaded pair, measured as it ships and with variants.

    Raises (when made):
        CoreError: no such model, or its weights do not fit.
    """

    def __init__(self, config: EngineConfig, most_tokens: int) -> None:
        """`most_tokens`: the most of a prompt and its answer."""
        self._pair = SharedPair(config, most_tokens)
        self.config = self._pair.config
        self._shipped: Engine | None = self._pair.engine(self.config)
        self.info: EngineInfo = self._shipped.info

    def rows(
        self,
        contexts: Sequence[int],
        *,
        books: int,
        repeats: int,
        max_new_tokens: int,
        seed: int,
        counted: bool = False,
        parts: Sequence[str] = (),
        checkpoint: Checkpoint | None = None,
        progress: Callable[[str], object] = lambda _: None,
    ) -> Iterator[Row]:
        """Measure. Rows come variant by variant, plain decoding first; `progress` gets what is left out, and why.

        Args:
            counted: with fixed rounds, and without times. parts: of the variants; all if empty.
            checkpoint: rows in it are not measured again.
        """
        shape = {"books": books, "repeats": repeats, "max_new_tokens": max_new_tokens, "seed": seed}
        kept = checkpoint or Checkpoint(None, {})
        for context in contexts:
            first = True
            # in the system's folder for temporary files: TMPDIR names another, where that one is too small
            with tempfile.TemporaryDirectory(prefix="triforce-ablation-", ignore_cleanup_errors=True) as folder:
                for variant in chosen(parts):
                    config = variant.applied(self.config)
                    why = self._obstacle(variant, config, counted=counted)
                    if config is None or why:
                        progress(f"Not measured: {variant}. {why}")
                        continue
                    found = kept.get(f"{context}/{variant}")
                    if found is None:
                        try:
                            found = self._measure(variant, config, context, shape, Path(folder), counted=counted)
                        except NotEnoughMemory as error:
                            progress(f"Not measured: {variant}. {error.problem}")
                            continue
                        kept.put(f"{context}/{variant}", found)
                    yield from found[0 if first else 1 :]
                    first = False

    def _measure(
        self,
        variant: Variant,
        config: EngineConfig,
        context: int,
        shape: dict[str, int],
        folder: Path,
        *,
        counted: bool,
    ) -> list[Row]:
        """Plain decoding and the variant, on the same engine."""
        oracle = variant.retrieval.get("policy") == HINDSIGHT  # its first run only takes notes; times mean nothing
        shipped, self._shipped = self._shipped, None
        if shipped is None or config != self.config:
            del shipped  # its memory is needed
            shipped = self._pair.engine(config)
        plain, row = run_speed(
            shipped,
            (context,),
            (variant.method,),
            **shape | ({"repeats": max(shape["repeats"], 2)} if oracle else {}),
            speculation=COUNTED if counted and variant.part != "rounds" else variant.speculation,
            sampling=SamplingParams(temperature=variant.temperature),
            read=lambda engine, prompt: self._read(engine, prompt, BookFolder(folder)),
        )
        del shipped
        gc.collect()  # the next engine needs its memory
        return [
            _row(plain, PLAIN, "", timed=not counted),
            _row(row, variant.part, variant.name, timed=not counted and not oracle),
        ]

    def _read(self, engine: Engine, prompt: Sequence[int], folder: BookFolder) -> None:
        """Read a prompt, or load what an engine with landmarks of the same chunks has read, bit for bit the same."""
        keeps = engine.config.retrieval.chunk_size == self.config.retrieval.chunk_size and refusal(engine) is None
        store = BookStore(engine, folder) if keeps else None
        for _ in store.fetch(prompt) if store else ():
            pass
        for _ in engine.read(prompt):
            pass
        if store and not store.is_saved(prompt[:-1]):
            with suppress(BookFolderFull):  # a full disk costs only time
                for _ in store.keep(store.read_book(prompt[:-1], (), 0.0)):
                    pass

    def _obstacle(self, variant: Variant, config: EngineConfig | None, *, counted: bool) -> str:
        """Why a variant cannot be measured; empty: it can."""
        if METHODS[variant.method].needs_draft and not self._pair.has_draft:
            return "There is no draft model."
        if config is None:
            return "It does not go with the other settings."
        if counted and variant.part == PLUS and variant.speculation == ADAPTIVE:
            return "Counts are compared in fixed rounds."
        same = config == self.config and (variant.retrieval or variant.draft)
        return "The settings say so already." if same else ""


def chosen(parts: Sequence[str]) -> tuple[Variant, ...]:
    """The variants of these parts, in their order; all if none is named.

    Raises:
        InvalidSetting: there is no such part.
    """
    known = tuple(dict.fromkeys(variant.part for variant in VARIANTS))
    for part in parts:
        if part not in known:
            raise InvalidSetting(f"There is no part {part!r}.", hint=f"Use some of: {'; '.join(known)}.")
    return tuple(variant for variant in VARIANTS if not parts or variant.part in parts)


def _row(row: Row, part: str, variant: str, *, timed: bool) -> Row:
    """What is told of a variant."""
    told = {"context": row["context"], "part": part, "variant": variant}
    told |= {name: row[name] for name in COLUMNS}
    return told if timed else told | {"ms_per_token": None, "speedup_vs_autoregressive": None}
