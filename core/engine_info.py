"""Facts about an engine and its texts, for display. Frozen values."""

from dataclasses import dataclass, field
from typing import Literal, cast

import torch

from core.decoding.registry import REMOTE, default_method
from core.generation.levels import LoadedModels
from core.generation.prefill import ReadingPace
from core.generation.text import ChatText
from core.models.experts import Experts
from core.models.hub.catalog import ModelEntry
from core.models.linear import reads_in_brain, stored_kinds
from core.models.loader import LoadedModel, ModelDims
from core.models.quantised import FORMATS
from core.models.self_draft import is_int4, self_draft_bytes
from core.ops.graphs import MOST_ROWS, Graphs
from core.planning.choices import Choice
from core.planning.plan import Plan

EqualityVerdict = Literal["identical", "near_tie", "mismatch"]

# How far below the best logit rounding can explain a token: some ulps of logits around 20, over many layers.
NEAR_TIE_GAP = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
NO_GRAPHS = Choice(False, "a processor has no launches to save, or they are switched off (--no-graphs)")

NO_PLAN = cast(Plan, None)  # of a model elsewhere

GRAPHS_ON = f"passes of up to {MOST_ROWS} new tokens are recorded once and then replayed in one launch"
DRAFT_GRAPHS = f"{GRAPHS_ON}, the draft's alone: the sums of the GPUs that share the target cannot be recorded here"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What the engine runs, for display. Where `elsewhere` is set only the fields without a default say anything."""

    model: str
    description: str
    most_context: int  # the most the model supports
    thinking: tuple[str, ...]  # the wishes that the chat template can be told; empty: none
    elsewhere: str = ""  # where its text is sent and what it lacks there, in a line; "": it runs on this machine
    thinks: str = ""  # which of `thinking` it does unless told; "": not known
    limits: str = ""  # what the model cannot do, for display; empty for full models
    plan: Plan = NO_PLAN  # where several ranks share the target, one's plan, and all sizes here are one rank's
    has_draft: bool = False
    draft_because: str = ""  # why this draft, or why none; empty: not known
    weights: str = ""  # type of the target's weights: one computed with, or a quantised format (int8, nf4, int4)
    quantised: bool = False
    attention: str = ""  # the code that computes attention
    attention_because: str = ""
    kv_bytes_per_token: int = 0
    target_weight_bytes: int = 0
    draft_weight_bytes: int = 0
    host_memory: Choice[str] | None = None  # "pinned" or "pageable"; None: the whole full cache is resident
    link: Choice[float] | None = None  # bytes per second of a plain copy from host memory; of several GPUs the slowest
    self_draft_weight_bytes: int = 0  # the target's second linear weights, in 4 bits, for its retrieval passes; 0: none
    experts: Experts | None = None  # of a target that is a mixture
    num_ranks: int = 1  # processes of this machine that share the target
    graphs: Choice[bool] = NO_GRAPHS  # whether passes are recorded and replayed
    path: str = ""  # where the target's files are; not for readers of the page
    target_dims: ModelDims | None = None  # None: not known
    pace: ReadingPace = field(default_factory=ReadingPace, compare=False)  # the engine adds what readings cost

    @property
    def usual_method(self) -> str:
        """The method of answers that name none."""
        return REMOTE if self.elsewhere else default_method(has_draft=self.has_draft)

    @property
    def exact_for(self) -> str:
        """The model whose distribution exact methods reproduce."""
        kv = self.plan.kv.value
        cache = "" if kv is None else f", {str(kv).removeprefix('torch.')} cache"
        return f"the {'quantised ' if self.quantised else ''}model ({self.weights} weights{cache})"


@dataclass(frozen=True, slots=True)
class Equality:
    """How a text compares with plain decoding's text."""

    verdict: EqualityVerdict
    index: int | None  # of the first token that differs or is missing in one text
    logit_gap: float | None  # from the target's best token to the worse of the two written there; None: one is missing

    @classmethod
    def of_ends(cls, shared: int, *lengths: int) -> "Equality":
        """Of two texts whose first tokens are the same, as many as one of them has."""
        return cls("identical", None, None) if {shared} == {*lengths} else cls("mismatch", shared, None)


def _format(plan: Plan, target: LoadedModel) -> str:
    if stored := stored_kinds(target.module):
        return stored
    kept = FORMATS.get(plan.bits.value, str(plan.dtype.value).removeprefix("torch."))
    kept += " (reading in bfloat16)" if reads_in_brain(target.module) else ""
    return "int4" if plan.bits.value in FORMATS and is_int4(target.module) else kept


def engine_info(plan: Plan, models: LoadedModels, about: ModelEntry | None, text: ChatText) -> EngineInfo:
    """Facts about an engine before it has read anything; host memory is measured later."""
    target, draft, self_draft = models.target, models.draft, models.self_draft
    return EngineInfo(
        model=about.name if about else "model",
        description=about.description if about else "",
        limits=about.limits if about else "",
        has_draft=draft is not None,
        draft_because=about.draft_because if about else "",
        plan=plan,
        weights=_format(plan, target),
        quantised=plan.bits.value in FORMATS or bool(stored_kinds(target.module)),
        attention=models.backend.name,
        attention_because=models.backend.because,
        most_context=target.dims.max_context,
        kv_bytes_per_token=target.shape.bytes_per_token,
        target_weight_bytes=target.weight_bytes,
        draft_weight_bytes=draft.weight_bytes if draft else 0,
        experts=target.experts,
        self_draft_weight_bytes=0 if self_draft is None else self_draft_bytes(self_draft, target.module),
        num_ranks=models.ranks.num_ranks if models.ranks else 1,
        thinking=tuple(text.switches),
        thinks=text.thinks,
        path=str(about.target) if about else "",
        target_dims=target.dims,
    )


def graphs_choice(graphs: Graphs, *, without_sums: bool) -> Choice[bool]:
    """Whether passes are recorded, and if not, why; `without_sums`: those of a shared target are not."""
    return Choice(not graphs.failure, graphs.failure or (DRAFT_GRAPHS if without_sums else GRAPHS_ON))
