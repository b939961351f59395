"""The state of the system in facts, for the tab "System": what runs, how exact, on which machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app import formats
from app.conversations.exchange import Exchange
from app.runtime.data_folder import data_place
from app.runtime.events import ModelState, Ready
from app.runtime.trace import Race
from app.ui.race.result import verdict
from app.ui.reading.live_strip import ENDINGS
from core.decoding.registry import METHODS, method_label
from core.decoding.stats import DecodeStats

if TYPE_CHECKING:  # importing these loads torch: the engine's thread does that while the page is already served
    from core.engine_info import EngineInfo
    from core.planning.hardware import Machine
    from core.planning.plan import Plan
    from core.planning.sizes import PlanRow


class Part(NamedTuple):
    """How a row of the plan is drawn, and its purpose."""

    tone: str
    purpose: str


PARTS = {
    "target weights": Part("weights", "the target model’s parameters"),
    "full cache, landmarks, query log": Part("full", "keys and values of every token of book and chat"),
    "votes, query log": Part("full", "what chooses chunks of the layers in host memory"),
    "newest rows of offloaded layers": Part("full", "what has not gone to host memory yet"),
    "ring of copies": Part("buffers", "pieces of the full cache on their way from host memory"),
    "self-draft weights, 4 bit": Part("weights", "the target once more, for passes over the retrieval cache"),
    "retrieval cache": Part("retrieval", "the chunks that level 1 verifies with"),
    "draft weights": Part("draft", "the draft model’s parameters"),
    "streaming cache": Part("draft", "the draft’s own window"),
    "CUDA graphs": Part("buffers", "recorded passes; an estimate"),
    "prefill buffers": Part("buffers", "a piece of the book while it is read"),
    "prefill, layer by layer": Part("buffers", "one layer of the full cache, on the device while a book is read"),
    "runtime": Part("other", "Python, torch and transformers themselves"),
}
ATTENTION = {
    "torch": "torch’s own operations",
    "compiled": "our kernel for few rows, torch’s operations for many",
}
UNKNOWN_PART = Part("buffers", "")
NEEDS_LINUX = "sharing a model needs NCCL, which torch has under Linux only: start it in WSL2 with --gpus N"
MAY_SHARE = "start with --gpus N to share the model between N of them"
SELF_DRAFT = "4 bits, while it guesses from the retrieval cache; what it says is exact for the weights above"


class Fact(NamedTuple):
    """One row of a card; `note` is its reason or explanation."""

    name: str
    value: str
    note: str = ""


def part_of(name: str) -> Part:
    """How a row of the plan is drawn."""
    kept_layers = name.startswith("full cache")  # "full cache, 3 of 32 layers"
    return PARTS.get(name, PARTS["full cache, landmarks, query log"] if kept_layers else UNKNOWN_PART)


def ordered(plan: "Plan") -> "list[PlanRow]":
    """The plan's rows, grouped by kind."""
    order = list(PARTS)
    return sorted(plan.rows, key=lambda row: order.index(row.name) if row.name in PARTS else len(order))


def model_facts(ready: Ready) -> list[Fact]:
    """The model's settings, and their reasons."""
    info, plan = ready.info, ready.info.plan
    if info.elsewhere:
        return [
            Fact("Model", info.model, info.description),
            Fact("Runs", "on a server", info.elsewhere),
            Fact("Context", f"{ready.context:,} tokens", "as --context or the server says"),
        ]
    draft = formats.amount(info.draft_weight_bytes) + " of weights" if info.has_draft else "none"
    self_draft = info.self_draft_weight_bytes
    return [
        Fact("Model", info.model, info.description),
        Fact("Draft", draft, info.draft_because),
        *weight_facts(info),
        Fact("Decodes by", METHODS[info.usual_method].label, plan.composition.because if plan.composition else ""),
        *([Fact("Self-draft weights", formats.amount(self_draft), SELF_DRAFT)] if self_draft else []),
        Fact("Device", plan.device.value, plan.device.because),
        Fact("Precision", _name(plan.dtype.value), plan.dtype.because),
        Fact("Keys and values", _name(plan.kv.value or plan.dtype.value), plan.kv.because),
        Fact("Full cache", plan.placement.value, plan.placement.because),
        Fact("Reading", "by layers" if plan.prefill_block.value else "by chunks", plan.prefill_block.because),
        *host_facts(info),
        Fact("Context", f"{ready.context:,} tokens", plan.context.because),
        Fact(
            "Largest",
            f"{plan.most_context:,} tokens",
            "that the model reads and the memory found at the start could hold",
        ),
        Fact("A token takes", formats.amount(info.kv_bytes_per_token), "keys and values in all layers"),
    ]


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def weight_facts(info: "EngineInfo") -> list[Fact]:
    """The bits of the target's weights, or the blocks of its file that they stay in."""
    bits = info.plan.bits
    if info.quantised and bits.value > 8:  # not asked for
        return [
            Fact("Weights", info.weights, "the file's own blocks, multiplied as they are; rows are rounded to 8 bits")
        ]
    return [Fact("Weights", f"{bits.value} bits", bits.because)]


def host_facts(info: "EngineInfo") -> list[Fact]:
    """What lies in host memory; empty if the whole full cache is resident."""
    if info.host_memory is None:
        return []
    size = formats.amount(info.plan.host_bytes)
    link = [Fact("Link", f"{info.link.value / 1e9:.1f} GB/s", info.link.because)] if info.link else []
    share = info.plan.cpu_attention
    return [
        Fact("Host memory", f"{size}, {info.host_memory.value}", info.host_memory.because),
        *link,
        Fact("Host attends", f"to {share.value:.0%} of it" if share.value else "no", share.because),
    ]


def exactness(state: ModelState, race: Race | None) -> list[Fact]:
    """For which model the output is exact, and the verdict of the last race."""
    verdicts = [Fact("Last race", "none yet", "the tab Race compares texts token by token")]
    if race is not None:
        others = [lane for lane in race.lanes if lane is not race.plain]
        found = [verdict(race, lane) for lane in others]
        verdicts = [Fact("Last race", title, text) for _, title, text in found] or verdicts
    if not isinstance(state, Ready):
        return [Fact("Exact for", formats.NONE_YET, "known when the model is loaded"), *verdicts]
    info = state.info
    if info.elsewhere:
        return [Fact("Exact for", "not seen", "how a server computes cannot be seen from here")]
    greedy = Fact(
        "Greedy text",
        "equal to plain decoding’s, token for token",
        "32-bit arithmetic on the processor: what rounding could decide would be named as a near tie",
    )
    if not info.plan.precision.startswith("float32"):
        greedy = Fact(
            "Greedy text",
            "equal to plain decoding’s, up to near ties",
            "in 16 bit several rows round differently from one; a race names every near tie and its gap",
        )
    precision = "not quantised: neither weights nor cache"
    if info.quantised:
        precision = "the quantised model, not its 16-bit original; the cache is not quantised"
    if (kept := info.plan.kv.value) is not None:
        precision += f"; keys and values are kept in {_name(kept)}: exact for keys and values so kept"
    return [
        Fact("Exact for", f"{info.model}, {info.weights} weights", precision),
        Fact(
            "Distribution",
            "the target model’s own",
            "for all methods but StreamingLLM and H2O, which are marked “not exact”",
        ),
        greedy,
        *verdicts,
    ]


def measured_facts(exchanges: Sequence[Exchange], race: Race | None) -> list[Fact]:
    """How fast the newest answer and the last race were."""
    found = []
    if exchanges:
        done = exchanges[-1].finished
        read = f"{done.prompt_tokens - done.reused_tokens:,} of {done.prompt_tokens:,} tokens of the prompt read"
        ending = f"{method_label(done.method)}. {ENDINGS[done.stop_reason]}"
        note = f"{ending}; {read} in {done.prefill_seconds:.2f} s"
        found.append(Fact("Last answer", _speed(done.stats), note))
    lanes = race.lanes if race else ()
    return [*found, *(Fact("Last race", _speed(lane.stats), method_label(lane.method)) for lane in lanes)]


def _speed(stats: DecodeStats) -> str:
    parts = [formats.plural(stats.new_tokens, "token"), f"{formats.figure(stats.ms_per_token)} ms per token"]
    levels = enumerate((stats.level1, stats.level2), 1)
    parts += [f"level {number} accepted {formats.percent(level.acceptance)}" for number, level in levels if level]
    return ", ".join(parts)


def machine_facts(state: ModelState, machine: "Machine | None", system: str) -> list[Fact]:
    """Devices and memory, and the attention kernels."""
    rows = [Fact("System", system)]
    if machine is None:
        return [*rows, Fact("Processor", formats.NONE_YET, "looked up while the model is loaded")]
    rows += [
        Fact("Processor", machine.cpu, ", ".join((formats.plural(machine.num_cores, "core"), *machine.abilities))),
        Fact("Memory", formats.size(machine.ram_bytes), f"{formats.size(machine.free_ram_bytes)} free at the start"),
        *(
            Fact(f"GPU {number}", gpu.name, f"{formats.size(gpu.free_bytes)} of {formats.size(gpu.total_bytes)} free")
            for number, gpu in enumerate(machine.gpus)
        ),
    ]
    if (unused := machine.unused_gpu) is not None:
        rows.append(Fact("GPU", f"{unused.gpu}, not used", f"{unused.problem} {unused.hint}"))
    elif not machine.gpus:
        rows.append(Fact("GPU", "none", "no CUDA device found"))
    elif len(machine.gpus) > 1:
        windows = system.startswith("Windows")
        rows.append(Fact("Several GPUs", "one computes", NEEDS_LINUX if windows else MAY_SHARE))
    if isinstance(state, Ready) and not state.info.elsewhere:
        info = state.info
        rows.append(Fact("Attention", ATTENTION.get(info.attention, info.attention), info.attention_because))
        if machine.gpus:
            rows.append(Fact("CUDA graphs", "on" if info.graphs.value else "off", info.graphs.because))
    return rows


def data_facts(state: ModelState, folder: Path) -> list[Fact]:
    """The data on disk, and its location."""
    default = data_place(None)
    chosen = "the default; --data-dir chooses another" if folder == default else "chosen with --data-dir"
    compiled = isinstance(state, Ready) and state.info.attention == "compiled"
    kernel = "; the compiled kernel lies in the user’s cache folder" if compiled else ""
    elsewhere = Fact("Elsewhere", "no book, no question, no answer", f"only who opens this page gets any{kernel}")
    if isinstance(state, Ready) and state.info.elsewhere:
        elsewhere = Fact("Elsewhere", "books, questions and answers", state.info.elsewhere)
    return [Fact("Data folder", str(folder), chosen), elsewhere]
