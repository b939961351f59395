"""What an engine tells of itself and of its texts, for display. Frozen values."""

from dataclasses import dataclass
from typing import Literal

from core.planning.choices import Choice
from core.planning.memory_plan import Plan

EqualityVerdict = Literal["identical", "near_tie", "mismatch"]


NO_GRAPHS = Choice(False, "a processor has no launches to save, or they are switched off (--no-graphs)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What the engine runs, for display."""

    model: str
    description: str
    limits: str  # what the model cannot do, for the reader; empty for full models
    has_draft: bool
    draft_because: str  # why there is this one, or none; empty: not known
    plan: Plan  # where several ranks share the target, of one of them, as are all sizes here
    weights: str  # how the target's are kept: a type that is computed with, or a quantised format (int8, nf4)
    quantised: bool
    attention: str  # the code that computes it
    attention_because: str
    most_context: int  # of the model
    kv_bytes_per_token: int
    target_weight_bytes: int
    draft_weight_bytes: int
    target_layers: int
    draft_layers: int  # 0: there is no draft
    host_memory: Choice[str] | None  # "pinned" or "pageable"; None where the whole full cache is resident
    link: Choice[float] | None  # bytes per second of a plain copy from there; of several GPUs' links the slowest
    drafting_weight_bytes: int = (
        0  # the target's linear weights once more, in 4 bits, for its retrieval passes; 0: none
    )
    num_ranks: int = 1  # processes of this machine that share the target
    graphs: Choice[bool] = NO_GRAPHS  # whether passes are recorded and replayed

    @property
    def exact_for(self) -> str:
        """The model whose distribution exact methods reproduce."""
        return f"the {'quantised ' if self.quantised else ''}model ({self.weights} weights)"


@dataclass(frozen=True, slots=True)
class Equality:
    """How a text compares with plain decoding's."""

    verdict: EqualityVerdict
    index: int | None  # of the first token that differs, or that one text lacks
    logit_gap: float | None  # from the target's best token to the worse of the two written there; None: one is missing
