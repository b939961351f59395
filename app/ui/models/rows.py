"""The rows of the page's list of models: the catalogue, other models on this disk, and whether each fits this machine.

Never asks the network: sizes of absent models come from the catalogue. Reads files when asked; plans, loads nothing.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app import formats
from app.runtime.events import ModelState, Ready
from app.runtime.jobs import Load
from app.runtime.model_folders import ModelFolders
from app.ui.header import PAGE_TOKENS
from core.config import EngineConfig
from core.errors import ContextTooSmall, CoreError, NotEnoughMemory
from core.models.hub import catalog, store

if TYPE_CHECKING:  # importing these loads torch: the engine's thread does that while the page is already served
    from core.models.loader import ModelDims
    from core.models.param_count import ModelSize
    from core.planning.forecast import Acceptance
    from core.planning.hardware import Machine
    from core.planning.plan import Plan

PAGES = 100
USABLE_TOKENS_PER_SECOND = 5.0  # a little faster than people read aloud
USABLE_READING_SECONDS = 600.0  # of the pages in `Speeds`


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Modelled at the planned context; never results."""

    plain: float  # tokens per second
    triforce: float  # with guesses, if they are accepted as `because` says
    because: str  # what acceptance that rests on
    reading_seconds: float  # of `pages`
    pages: int  # PAGES, or as many as the context holds

    @property
    def is_usable(self) -> bool:
        """Quick enough to work with."""
        return self.triforce >= USABLE_TOKENS_PER_SECOND and self.reading_seconds <= USABLE_READING_SECONDS

    @property
    def in_words(self) -> str:
        """How long 100 pages take, and how fast an answer is written then."""
        read = f"{formats.plural(self.pages, 'page')} are read in {formats.duration(self.reading_seconds)}"
        least = formats.figure(self.plain)
        most = f" to {formats.figure(self.triforce)}" if self.triforce > self.plain else ""
        return f"{read}, then {least}{most} tokens a second are written"

    @property
    def reason(self) -> str:
        """What the figures are."""
        told = "Expected at the full context of this machine, not measured."
        return (
            f"{told} The higher speed: guesses are accepted as {self.because}." if self.triforce > self.plain else told
        )


def expected_speeds(plan: "Plan", acceptance: "Acceptance") -> Speeds:
    """The model of `doctor`: nominal rates of GPUs, rates of a processor that were measured here."""
    from core.planning.forecast import bandwidths, predict, reading_seconds

    rates = bandwidths(plan)
    found, pages = predict(plan, rates, acceptance), min(PAGES, plan.context.value // PAGE_TOKENS)
    flops = rates.products.value
    assert flops is not None, "known of this machine"
    return Speeds(
        plain=1e3 / found.plain_ms_per_token,
        triforce=1e3 / found.triforce_ms_per_token,
        because=acceptance.because,
        reading_seconds=reading_seconds(pages * PAGE_TOKENS, plan.model, plan.size.active_parameters, flops),
        pages=pages,
    )


def reading_time(ready: Ready, num_tokens: int) -> float | None:
    """Seconds that the loaded model takes to read a text of so many tokens; None: not known, as of a server elsewhere.

    By what it has read since it was loaded, else by the model of `expected_speeds`.
    """
    from core.planning.forecast import bandwidths, reading_seconds

    info = ready.info
    measured, target = info.pace.whole(num_tokens), info.target_dims
    if measured is not None or target is None:
        return measured
    parameters = target.weight_bytes // target.disk_dtype.itemsize
    parameters -= info.experts.parameters - info.experts.active if info.experts else 0
    flops = bandwidths(info.plan).products.value
    assert flops is not None, "known of this machine"
    return reading_seconds(num_tokens, target, parameters, flops)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """How this program loads models, with the options it was started with."""

    config: Callable[[str], EngineConfig]  # by model
    load: Callable[[EngineConfig], Load]
    unavailable: str = ""  # why no model can be chosen; empty: one can
    folders: ModelFolders | None = None  # models by path; None: readers of the page must not name any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a model fits this machine if no other is loaded."""

    context: int = 0  # tokens it can be loaded with; 0: not at all
    placement: str = "resident"
    weights_refused: str = ""  # why it fits with no context
    context_refused: str = ""  # why it does not fit with the requested context
    speeds: Speeds | None = None  # None: it does not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model of the list. Sizes in bytes."""

    name: str
    description: str
    context: int  # most tokens it can read
    licence: str = ""
    gated: bool = False
    is_here: bool  # all files of the target
    is_bundled: bool = False
    has_parts: bool = False  # a download was started
    size_bytes: int  # of the target's weights
    to_come_bytes: int = 0  # weights still to download, including the draft; approximate
    draft: str = ""
    draft_is_here: bool = False
    fit: Fit | None = None  # None: not checked
    in_use: bool = False
    title: str = ""  # for people, where the name is a path
    refused: str = ""  # why it cannot be used, and what to do about it
    is_brought: bool = False  # by its path
    needs_hub: bool = True  # False: pip's index has it
    is_suited: bool = False  # in the form that suits this machine: without a GPU, weights of a few bits

    @property
    def fits(self) -> bool:
        """It can be loaded with some context, as far as is known."""
        return not self.refused and (self.fit is None or self.fit.context > 0)

    @property
    def speeds(self) -> Speeds | None:
        """How fast it should be here; None: it does not fit, or that was not checked."""
        return self.fit.speeds if self.fit else None

    @property
    def use(self) -> tuple[float, ...]:
        """Its place in the list: in use, brought, on this disk, then the largest of the quick, then the quickest."""
        speeds = self.speeds
        usable = speeds is not None and speeds.is_usable
        last = -self.size_bytes if usable else speeds.reading_seconds / speeds.pages if speeds and speeds.pages else 0.0
        return (
            not self.in_use,
            not self.is_brought,
            not self.fits,
            not self.is_here,
            not usable,
            not self.is_suited,
            last,
        )


def model_rows(state: ModelState, source: ModelSource) -> list[ModelRow]:
    """All targets in the order of their use: the present one, the catalogue's, others on this disk.

    Cost: imports torch; reads configurations, and sizes of local files.
    """
    machine = machine_alone(state)
    others = list(_others(machine, source, state))  # first: a folder may have the name of one of the catalogue
    used = state.info.model if isinstance(state, Ready) and not any(row.in_use for row in others) else ""
    rows = [_catalogued(row, machine, source, used) for row in catalog.entries().values() if row.role == "target"]
    if isinstance(state, Ready) and not any(row.in_use for row in (*rows, *others)):
        rows.append(_running(state))
    return sorted((*others, *rows), key=lambda row: row.use)


def _catalogued(row: catalog.Known, machine: "Machine", source: ModelSource, used: str) -> ModelRow:
    dims, draft = counted(row.name).dims, catalog.entries()[row.draft] if row.draft else None
    here, draft_here = catalog.is_here(row.name), draft is not None and catalog.is_here(draft.name)
    missing = [one for one, is_here in ((row, here), (draft, draft_here)) if one is not None and not is_here]
    return ModelRow(
        name=row.name,
        description=row.description,
        context=dims.max_context,
        licence=row.license,
        gated=row.gated,
        is_here=here,
        is_bundled=row.folder is not None,
        has_parts=any(one.repo is not None and store.has_parts(one.repo) for one in missing),
        size_bytes=_disk_bytes(row),
        to_come_bytes=sum(map(_disk_bytes, missing)),
        draft=draft.name if draft else "",
        draft_is_here=draft_here,
        fit=fit_of(row.name, dims, counted(draft.name).dims if draft else None, machine, source),
        in_use=row.name == used,
        needs_hub=row.needs_hub,
        is_suited=row.gguf is not None and not machine.gpus,
    )


def _disk_bytes(row: catalog.Known) -> int:
    """Of the weights as they are stored."""
    return row.gguf.size_bytes if row.gguf else counted(row.name).dims.weight_bytes


def _others(machine: "Machine", source: ModelSource, state: ModelState) -> Iterator[ModelRow]:
    """Models that were brought, and those that other programs have downloaded; the usable ones first."""
    from core.models.hub.local import LocalModel, in_cache

    running = state.info.path if isinstance(state, Ready) else ""
    brought = list(source.folders.all()) if source.folders else []
    paths = {one.path for one in brought}
    others = (one for one in in_cache() if one.path not in paths)
    # A GGUF file is named by its path: whoever reads the page from elsewhere must not learn it
    known = [*brought, *(one for one in others if source.folders or one.name != str(one.path))]

    def row(found: LocalModel) -> ModelRow:
        dims, mine = found.dims, found in brought
        where = f"Brought from {found.path}" if mine else "On this disk, no model of the catalogue"
        return ModelRow(
            name=found.name,
            title=found.shown,
            description=where,
            context=dims.max_context if dims else 0,
            is_here=dims is not None,
            size_bytes=dims.weight_bytes if dims else 0,
            fit=fit_of(found.name, dims, None, machine, source) if dims else None,
            in_use=bool(dims and running) and str(catalog.place_of(found.path)) == running,
            refused=f"{found.problem} {found.hint}" if dims is None else "",
            is_brought=mine,
        )

    yield from sorted(map(row, known), key=lambda one: bool(one.refused))


def _running(ready: Ready) -> ModelRow:
    info = ready.info
    return ModelRow(
        name=info.model,
        description=info.description,
        context=info.most_context,
        is_here=True,
        size_bytes=info.target_weight_bytes,
        in_use=True,
    )


def fit_of(
    name: str,
    target: "ModelDims",
    draft: "ModelDims | None",
    machine: "Machine",
    source: ModelSource,
    context: int | None = None,
) -> Fit:
    """Plan a model as loading would; distinguishes weights that do not fit a machine from a context that does not.

    Args:
        context: in place of the requested one, which did not fit.
    """
    from core.planning.composition import compose
    from core.planning.forecast import usual_acceptance

    config = source.config(name) if context is None else replace(source.config(name), context=context)
    draft, known = None if config.draft_model == "none" else draft, catalog.entries().get(name)
    try:
        plan = compose(replace(counted(name), dims=target), draft, config, machine)
    except (ContextTooSmall, NotEnoughMemory) as error:
        shorter = error.possible if isinstance(error, ContextTooSmall) else error.largest_context
        if shorter is None:
            return Fit(weights_refused=error.problem)
        if shorter == config.context:
            return Fit(context=shorter, context_refused=error.problem)
        found = fit_of(name, target, draft, machine, source, shorter)
        return replace(found, context_refused=found.context_refused or error.problem)
    except CoreError as error:
        return Fit(weights_refused=str(error))
    except Exception as error:  # an odd configuration on this disk must not hide all other models
        return Fit(weights_refused=f"Its configuration makes no model ({type(error).__name__}).")
    measured = known.acceptance if known else None
    speeds = expected_speeds(plan, usual_acceptance(name, measured, plan.config.retrieval.budget))
    return Fit(context=plan.context.value, placement=plan.placement.value, speeds=speeds)


@functools.cache
def counted(name: str) -> "ModelSize":
    """Parameters by kind. Cost: a twentieth of a second."""
    from core.models.hub.shapes import find_shape
    from core.models.param_count import size_in

    shape = find_shape(name)
    if shape:
        return shape.size()
    entry = catalog.find(name)
    return size_in(entry.target, entry.overrides)


def machine_alone(state: ModelState) -> "Machine":
    """The machine as if the loaded model were not there."""
    from core.planning.hardware import resolve_device, this_machine, used_memory_bytes

    machine = this_machine()
    if not isinstance(state, Ready) or state.info.elsewhere:
        return machine
    device = resolve_device(state.info.plan.device.value)
    used, waiting = used_memory_bytes(device), state.info.plan.host_bytes
    if device.type != "cuda":
        return replace(machine, free_ram_bytes=min(machine.ram_bytes, machine.free_ram_bytes + used))
    first = machine.gpus[0]
    gpus = (replace(first, free_bytes=min(first.total_bytes, first.free_bytes + used)), *machine.gpus[1:])
    return replace(machine, gpus=gpus, free_ram_bytes=min(machine.ram_bytes, machine.free_ram_bytes + waiting))


def config_of(row: ModelRow, source: ModelSource) -> EngineConfig:
    """The settings to load a model: those of the start, with a shorter context if the requested one does not fit."""
    config = source.config(row.name)
    return replace(config, context=row.fit.context) if row.fit and row.fit.context_refused else config
