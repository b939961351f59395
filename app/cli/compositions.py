"""Who should guess for a target, as `doctor` tells it: for one machine, or (`doctor --table`) for several at once."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.cli.reading import print_json
from core.config import EngineConfig, RetrievalConfig
from core.decoding.registry import FASTEST, PLAIN
from core.errors import CoreError, InvalidSetting, UnknownModel
from core.models.hub.shapes import find_shape, shape_names
from core.models.param_count import size_of
from core.planning.choices import Choice
from core.planning.composition import Composed, Forecast, usual_acceptance, words
from core.planning.hardware import Machine
from core.planning.machine_spec import Bandwidths, make_rig
from core.planning.rig_plan import compose_rig
from core.planning.speed_model import PUBLISHED_BUDGET
from core.planning.tp_planning import share_of

GIB = 1 << 30
MODELS = ("llama-3.1-8b", "qwen3-8b-yarn", "qwen3-4b-2507", "qwen3-14b", "qwen3-30b-a3b-2507")
MACHINES = ("1x4090", "2x4090", "1xh100", "laptop")
CONTEXTS = (8192, 32768, 131072)
HOST_GIB, LAPTOP_GIB = 128.0, 32.0
LAPTOP = Bandwidths(Choice(40e9, "assumed of a laptop"), None)


def forecast_report(one: Forecast) -> dict[str, Any]:
    """One composition as JSON."""
    if one.refused:
        return {**asdict(one.composition), "ms_per_token": None, "because": one.refused}
    assert one.plan is not None, "a forecast without a plan"
    return {
        **asdict(one.composition),
        "ms_per_token": round(one.ms_per_token, 2),
        "gamma1": one.gamma1,
        "gamma2": one.gamma2,
        "resident_layers": one.plan.resident_layers,
    }


def composition_report(composed: Composed) -> dict[str, Any]:
    """The chosen composition and all that were compared, as JSON."""
    return {
        "composition": {"value": asdict(composed.loaded), "because": composed.because},
        "compositions": [forecast_report(one) for one in composed.forecasts],
    }


def composition_lines(composed: Composed) -> list[str]:
    """The same for people."""
    shown = ["Who guesses, by nominal bandwidths:"]
    for one in composed.forecasts:
        mark = "->" if one is composed.chosen else "  "
        figure = "not here" if one.refused else f"{one.ms_per_token:.1f} ms"
        note = one.refused or ("no guess pays" if not one.gamma2 and one.composition.method != "autoregressive" else "")
        shown.append(f"{mark}{figure:>11}  {words(one.composition)}{f': {note}' if note else ''}")
    return [*shown, f"  {composed.because}"]


# -------------------- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A model on a machine at a context: what was compared, or why it cannot be there."""

    model: str
    machine: str
    context: int
    composed: Composed | None = None
    refused: str = ""


def run_table(args: argparse.Namespace) -> int:
    """Print the table. Returns 0.

    Raises:
        InvalidSetting, UnknownModel: a machine or a model that is not known.
    """
    rows = list(table(args.models or MODELS, args.machines or MACHINES, args.contexts or CONTEXTS, args.host_memory))
    if args.json:
        print_json({"rows": [row_report(row) for row in rows]})
    else:
        print("\n".join(table_lines(rows)))
    return 0


def table(
    models: Sequence[str], machines: Sequence[str], contexts: Sequence[int], host_gib: float | None = None
) -> Iterator[Row]:
    """All models on all machines; contexts beyond a model's are left out.

    Args:
        host_gib: of machines with GPUs; None: HOST_GIB.
    Raises:
        InvalidSetting, UnknownModel: a machine or a model that is not known.
    """
    nowhere = Machine("", 8, 0, 0, ())
    for model in models:
        shape = find_shape(model)
        if shape is None:
            raise UnknownModel(f"There are no published sizes of {model!r}.", hint=f"Use: {', '.join(shape_names())}.")
        target = size_of(shape.config, shape.name)
        draft = size_of(shape.draft.config, shape.draft.name) if shape.draft else None
        acceptance = usual_acceptance(None, share_of(draft, 1).dims if draft else None)
        for machine in machines:
            laptop = machine == "laptop"
            memory = LAPTOP_GIB if laptop else host_gib or HOST_GIB
            rig = make_rig(nowhere, assume="cpu" if laptop else machine, host_gib=memory)
            for context in contexts:
                if not 64 <= context <= target.dims.max_context:
                    continue
                config = EngineConfig(context=context, retrieval=RetrievalConfig(budget=PUBLISHED_BUDGET))
                row = Row(model=model, machine=machine, context=context)
                try:
                    nominal = LAPTOP if laptop else None
                    found = compose_rig(target, draft, config, rig, acceptance, nominal=nominal)
                except InvalidSetting:
                    raise
                except CoreError as error:
                    yield Row(model=row.model, machine=row.machine, context=row.context, refused=error.problem)
                    if getattr(error, "largest_context", 1) is None:  # nor with a longer one
                        break
                    continue
                runs = found[0].runs
                yield Row(
                    model=row.model,
                    machine=row.machine,
                    context=row.context,
                    composed=found[1],
                    refused="" if runs.value else runs.because,
                )


def row_report(row: Row) -> dict[str, Any]:
    """One row as JSON."""
    told = {"model": row.model, "machine": row.machine, "context": row.context, "refused": row.refused}
    return told | (composition_report(row.composed) if row.composed else {})


def table_lines(rows: Sequence[Row]) -> list[str]:
    """The table as Markdown: milliseconds a token of each composition; the chosen one is marked."""
    heads = ("plain", "lookup", "draft", "TriForce", "lookup, 4-bit", "TriForce, 4-bit")
    by_bits = ((16, (PLAIN, "lookup", "draft", FASTEST)), (4, ("lookup", FASTEST)))
    order = tuple((name, bits) for bits, names in by_bits for name in names)
    shown = [f"| model | machine | context | {' | '.join(heads)} | why |", "|---" * (len(heads) + 4) + "|"]
    for row in rows:
        start = f"| {row.model} | {row.machine} | {row.context:,} |"
        if row.composed is None or row.refused:
            shown.append(f"{start}{' - |' * len(heads)} {row.refused} |")
            continue
        by = {(one.composition.method, one.composition.self_draft_bits): one for one in row.composed.forecasts}
        cells = " | ".join(_cell(by[key], row.composed) for key in order)
        shown.append(f"{start} {cells} | {row.composed.because} |")
    return shown


def _cell(one: Forecast, composed: Composed) -> str:
    if one.refused:
        return "-"
    figure = f"{one.ms_per_token:.1f}" if one.ms_per_token < 1000 else f"{one.ms_per_token:.0f}"
    return f"**{figure}**" if one is composed.chosen else figure
