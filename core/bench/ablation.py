"""The ablation suite: TriForce as it ships, and variants with one part left out, replaced or set differently.

Weights are loaded once. Every variant gets its own engine, reads the same books, and is timed in turns with plain
decoding on the same engine, so that a busy moment of the machine affects both. Each differs from the first in one part.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.bench.speed import ADAPTIVE, SpeedRow, run_speed
from core.config import EngineConfig, SpeculationConfig
from core.decoding.registry import METHODS, PLAIN
from core.engine import Engine
from core.engine_builder import LoadedPair, PairFiles
from core.engine_info import EngineInfo
from core.errors import InvalidSetting, NotEnoughMemory
from core.planning.hardware import cap_memory, resolve_device, this_machine
from core.planning.memory_plan import Plan
from core.planning.planner import make_plan

SHIPPED = "as shipped"
ROOM = 256  # tokens beyond the answer: rounds may be longer than needed


@dataclass(frozen=True, slots=True)
class Variant:
    """One changed part: fields of the retrieval and draft settings, and of the shape of rounds."""

    part: str
    name: str
    method: str = "triforce"
    retrieval: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] = field(default_factory=dict)
    speculation: SpeculationConfig = ADAPTIVE

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


VARIANTS = (
    Variant(SHIPPED, ""),
    Variant("levels", "no draft", "retrieval"),
    Variant("levels", "no retrieval", "draft"),
    Variant("proposals", "lookup for the draft", "lookup"),
    Variant("proposals", "lookup, else the draft", "triforce-lookup"),
    Variant("rounds", "fixed, 2 and 8", speculation=SpeculationConfig(gamma1=2, gamma2=8, adaptive=False)),
    _of("budget", "256", budget=256),
    _of("budget", "512", budget=512),
    _of("budget", "2048", budget=2048),
    _of("chunk size", "4", chunk_size=4),
    _of("chunk size", "16", chunk_size=16),
    _of("local window", "32", local_window=32),
    _of("chosen by", "exact attention", policy="attention"),
    _of("chosen by", "the last query alone", query_window=1),
    _of("bonus for the next chunk", "none", neighbor_bonus=0.0),
    _of("chosen again after", "64 tokens", reselect_interval=64),
    Variant("draft window", "128", draft={"window": 128}),
    Variant("draft window", "512", draft={"window": 512}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationRow:
    """One variant at one context length."""

    context: int  # wanted prompt tokens
    part: str
    variant: str
    method: str
    books: int
    new_tokens: int  # total of all books
    ms_per_token: float  # median of the books, each the median of its repeats
    speedup_vs_autoregressive: float  # on the same engine, in turns; median of the books
    acceptance_level1: float | None
    acceptance_level2: float | None
    tokens_per_full_pass: float | None
    identical_to_autoregressive: bool | None


class Ablation:
    """One loaded pair, measured as it ships and with variants.

    Raises (when made):
        CoreError: no such model, or its weights do not fit.
    """

    def __init__(self, config: EngineConfig, most_tokens: int) -> None:
        """`most_tokens`: the most of a prompt and its answer."""
        if config.num_gpus > 1:
            raise InvalidSetting("Variants are measured on one GPU.", hint="Leave out --gpus.")
        self._files, self._machine = PairFiles.find(config.model, config.draft_model), this_machine()
        if config.context is None:
            context = min(self._files.target.max_context, -(-(most_tokens + ROOM) // 64) * 64)
            config = replace(config, context=context)
        self.config = config
        plan = self._plan(config)
        device = resolve_device(plan.device.value)
        cap_memory(device, config.gpu_memory_gib)
        self._pair = LoadedPair.load(self._files, config, plan, device)
        self._shipped: Engine | None = Engine.of(self._pair, config, plan)
        self.info: EngineInfo = self._shipped.info

    def _plan(self, config: EngineConfig) -> Plan:
        counted = self._files.counted(config)
        return make_plan(self._files.target, self._files.draft, config, self._machine, counted)

    def rows(
        self,
        contexts: Sequence[int],
        *,
        books: int,
        repeats: int,
        max_new_tokens: int,
        seed: int,
        progress: Callable[[str], object] = lambda _: None,
    ) -> Iterator[AblationRow]:
        """Measure. Rows come variant by variant, plain decoding first; `progress` gets what is left out, and why."""
        for context in contexts:
            first = True
            for variant in VARIANTS:
                config = variant.applied(self.config)
                why = self._obstacle(variant, config)
                if config is None or why:
                    progress(f"Not measured: {variant}. {why}")
                    continue
                try:
                    engine = self._engine(config)
                    plain, row = run_speed(
                        engine,
                        (context,),
                        (variant.method,),
                        books=books,
                        repeats=repeats,
                        max_new_tokens=max_new_tokens,
                        seed=seed,
                        speculation=variant.speculation,
                    )
                except NotEnoughMemory as error:
                    progress(f"Not measured: {variant}. {error.problem}")
                    continue
                del engine
                gc.collect()  # the next engine needs its memory
                if first:
                    yield _row(plain, PLAIN, "")
                first = False
                yield _row(row, variant.part, variant.name)

    def _engine(self, config: EngineConfig) -> Engine:
        """The existing engine, once, if it has these settings."""
        shipped, self._shipped = self._shipped, None
        if shipped is not None and config == self.config:
            return shipped
        del shipped
        return Engine.of(self._pair, config, self._plan(config))

    def _obstacle(self, variant: Variant, config: EngineConfig | None) -> str:
        """Why a variant cannot be measured; empty: it can."""
        if METHODS[variant.method].needs_draft and self._pair.draft is None:
            return "There is no draft model."
        if config is None:
            return "It does not go with the other settings."
        same = config == self.config and (variant.retrieval or variant.draft)
        return "The settings say so already." if same else ""


def _row(row: SpeedRow, part: str, variant: str) -> AblationRow:
    return AblationRow(
        context=row.context,
        part=part,
        variant=variant,
        method=row.method,
        books=row.books,
        new_tokens=row.new_tokens,
        ms_per_token=row.ms_per_token,
        speedup_vs_autoregressive=row.speedup_vs_autoregressive,
        acceptance_level1=row.acceptance_level1,
        acceptance_level2=row.acceptance_level2,
        tokens_per_full_pass=row.tokens_per_full_pass,
        identical_to_autoregressive=row.identical_to_autoregressive,
    )
