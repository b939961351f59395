"""Small things to test with: random models of real families, a letter tokenizer, laws as tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig

from core.caches.base import KVShape
from core.caches.full_parts import Offload
from core.caches.tokens import Context
from core.config import (
    DraftConfig,
    EngineConfig,
    GenerationConfig,
    PlacementWish,
    RetrievalConfig,
    SpeculationConfig,
)
from core.engine import Engine
from core.generation.events import Event, Finished, LaneEvent
from core.generation.levels import LoadedModels
from core.generation.text import ChatText
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub import catalog
from core.models.loader import LoadedModel, ModelDims, dims_of, load_tokenizer
from core.models.param_count import ModelSize
from core.models.self_draft import self_draft_of
from core.models.weights import prepared
from core.ops.backend import STOCK, Backend
from core.ops.graphs import Graphs
from core.planning.choices import Choice
from core.planning.hardware import Machine
from core.planning.plan import make_plan

CPU = torch.device("cpu")
VOCAB = 64
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def tiny_config(
    family: str = "llama", *, layers: int = 2, heads: int = 4, kv_heads: int = 4, **changes: Any
) -> PreTrainedConfig:
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 16 * heads,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "initializer_range": 0.4,  # large enough that attention is sharp and laws differ from one another
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    window = {"sliding_window": None} if family == "mistral" else {}
    return CONFIG_MAPPING[family](**fields | window | changes)


_MADE: dict[tuple[object, ...], tuple[nn.Module, Tensor]] = {}  # models, and how torch's random numbers go on


def tiny_model(config: PreTrainedConfig, seed: int, attention: str = ATTENTION_NAME) -> nn.Module:
    """A random model of these sizes; transformers takes long to make one, so each is made once and copied."""
    asked = type(config), repr(config.to_dict()), seed, attention
    if asked not in _MADE:
        register()
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
        _MADE[asked] = cast(nn.Module, model).eval().requires_grad_(False), torch.get_rng_state()
    model, state = _MADE[asked]
    torch.set_rng_state(state)
    return deepcopy(model)


def loaded(config: PreTrainedConfig, seed: int, noise: float = 0.0) -> LoadedModel:
    """A tiny random model; `noise` moves it away from the one with the same seed, so that guesses are half right."""
    module = tiny_model(config, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in module.parameters():
        parameter.data += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    dims = dims_of(config, "toy", weight_bytes=sum(4 * p.numel() for p in module.parameters()))
    dims = replace(dims, disk_dtype=torch.float32)
    return LoadedModel(module, dims, dims.shape(torch.float32, CPU), frozenset())


def tiny_shape(layers: int = 1, heads: int = 2, kv_heads: int = 1, dim: int = 4) -> KVShape:
    return KVShape(layers, heads, kv_heads, dim, torch.float32, CPU)


MACHINE = Machine("test processor", 2, 16 << 30, 12 << 30, ())


class Letters(ChatText):
    """A tokenizer of 64 letters; token 1 ends a text only where a test says so."""

    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.,"

    def __init__(self, eos_ids: frozenset[int] = frozenset()) -> None:
        self.eos_ids = eos_ids

    @property
    def identity(self) -> str:
        return "letters"

    def decode(self, token_ids: Any) -> str:
        return "".join(self.alphabet[token] for token in token_ids)


def sized(dims: ModelDims) -> ModelSize:
    """The size of a model that nobody counted: as if all parameters were in its layers."""
    return ModelSize(dims=dims, layer_parameters=dims.weight_bytes // dims.disk_dtype.itemsize, other_parameters=0)


def tiny_engine(
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    noise: float = 0.15,
    budget: int = 256,
    local_window: int = 64,
    query_window: int = 8,
    draft_window: int = 128,
    eos_ids: frozenset[int] = frozenset(),
    offload: Offload | None = None,
    placement: PlacementWish = "auto",
    graphs: Graphs | None = None,
    self_draft: bool = False,
    backend: Backend = STOCK,
    **settings: Any,
) -> Engine:
    """Target with a draft that often agrees: the same weights, disturbed, one layer less sure.

    With `self_draft`, passes over the retrieval cache multiply by weights of 4 bits. `settings` are the engine's.
    """
    config = EngineConfig(
        placement=placement,
        gpu_memory_gib=None if placement in ("auto", "resident") else 1.0,
        retrieval=RetrievalConfig(budget=budget, chunk_size=8, local_window=local_window, query_window=query_window),
        draft=DraftConfig(window=draft_window),
        **{"context": 2048, "prefill_chunk": 256, **settings},
    )
    sizes, where = tiny_config(layers=layers, heads=heads, kv_heads=kv_heads), torch.device(device)
    target, draft = loaded(sizes, 3), loaded(sizes, 3, noise)
    plan = make_plan(sized(target.dims), draft.dims, config, MACHINE)
    plan = replace(plan, device=Choice(device, "test"), dtype=Choice(dtype, "test"))
    if backend.kernel is not None:  # its layers, too
        target, draft = (prepared(one.module, one.dims, dtype, where, backend) for one in (target, draft))
    target, draft = moved(target, where, dtype, plan.kv.value), moved(draft, where, dtype)
    twin = self_draft_of(target.module, where) if self_draft else None
    models = LoadedModels(target=target, draft=draft, backend=backend, self_draft=twin)
    return Engine(config, plan, Letters(eos_ids), models, offload=offload, graphs=graphs)


def engine_on(device: str, offload: Offload | None = None, *, graphs: bool = False, **settings: Any) -> Engine:
    """On a device, with caches so small that a prompt of 300 tokens leaves something to choose."""
    small: dict[str, Any] = {"context": 512, "prefill_chunk": 100, "budget": 96, "local_window": 32}
    small |= {"kv_heads": 2, "draft_window": 72, "cpu_attention_share": 0.0}
    recorder = Graphs(torch.device(device)) if graphs else None
    return tiny_engine(device=device, offload=offload, graphs=recorder, **{**small, **settings})


def moved(
    model: LoadedModel, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype | None = None
) -> LoadedModel:
    """The same model on a device, in another type; `kv_dtype`: of its keys and values."""
    dims = replace(model.dims, kv_dtype=kv_dtype)
    return replace(model, module=model.module.to(device, dtype), dims=dims, shape=dims.shape(dtype, device))


# Tiny models gain nothing from speculation: adapting would go plain and leave nothing to test.
FIXED = SpeculationConfig(gamma1=2, gamma2=4, adaptive=False)


def answer(
    engine: Engine,
    prompt: Sequence[int],
    method: str = "triforce",
    tokens: int = 12,
    *,
    written: Sequence[int] = (),
    boundary: int = 0,
    **settings: Any,
) -> Finished:
    """A whole answer, in rounds of a fixed shape unless `speculation` says otherwise."""
    config = GenerationConfig(method=method, max_new_tokens=tokens, **{"speculation": FIXED, **settings})
    return last_event(engine.generate(prompt, config, written=written, boundary=boundary))


def last_event(events: Iterable[Event]) -> Finished:
    """The last event of an answer."""
    *_, finished = events
    assert isinstance(finished, Finished)
    return finished


def ends(race: Iterable[LaneEvent]) -> list[Finished]:
    """The last event of each lane, in their order; every lane ends once."""
    last = [event for event in race if isinstance(event.event, Finished)]
    finished = {event.lane: event.event for event in last}
    assert len(finished) == len(last)
    return [finished[number] for number in range(len(finished))]


def random_prompt(num_tokens: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCAB, (num_tokens,), generator=generator).tolist()


class Shortage:
    """Work that runs out of device memory, a number of times from a certain call on."""

    def __init__(self, real: Callable[..., object], first: int, times: int) -> None:
        self._real, self._first, self._times = real, first, times
        self.calls = self.failed = 0

    def __call__(self, *args: object, **keywords: object) -> object:
        self.calls += 1
        if self.calls > self._first and self.failed < self._times:
            self.failed += 1
            raise torch.OutOfMemoryError("injected")
        return self._real(*args, **keywords)


def fail(monkeypatch: Any, owner: object, name: str, first: int, times: int) -> Shortage:
    shortage = Shortage(getattr(owner, name), first, times)
    monkeypatch.setattr(owner, name, shortage)
    return shortage


class TableModel:
    """A law that depends on the last token alone: table [V, V]."""

    def __init__(self, name: str, table: Tensor) -> None:
        self.name, self.table = name, table

    def probs(self, context: Context, keep: int) -> Tensor:
        return self.table[torch.tensor(context.span(len(context) - keep, len(context)))]

    def truncate(self, length: int) -> None:
        """Has no state."""


class EnumeratingSampler:
    """Visits every outcome with its probability, as a TokenSampler: run once per path until `paths` ends."""

    def __init__(self) -> None:
        self._choices: list[int] = []
        self._options: list[list[float]] = []
        self._at = 0
        self.probability = 1.0

    def _choose(self, options: list[float]) -> int:
        if self._at == len(self._choices):
            self._choices.append(next(i for i, weight in enumerate(options) if weight > 0))
            self._options.append(options)
        choice = self._choices[self._at]
        self.probability *= self._options[self._at][choice]
        self._at += 1
        return choice

    def draw(self, weights: Tensor) -> int:
        return self._choose((weights.double() / weights.double().sum()).tolist())

    def accept(self, p: Tensor, q: Tensor) -> int:
        keep = (p.double() / q.double()).clamp(max=1).tolist()
        options, reached = [], 1.0
        for probability in keep:
            options.append(reached * (1 - probability))
            reached *= probability
        return self._choose([*options, reached])

    def paths(self) -> Iterator[None]:
        """One iteration per path through all decisions."""
        while True:
            self._at, self.probability = 0, 1.0
            yield
            while self._choices:
                options, last = self._options[-1], self._choices[-1]
                following = [i for i in range(last + 1, len(options)) if options[i] > 0]
                if following:
                    self._choices[-1] = following[0]
                    break
                self._choices.pop()
                self._options.pop()
            if not self._choices:
                return


def with_words(engine: Engine) -> Engine:
    """A tiny random model that takes any text: token ids of the bundled tokenizer, folded into its 64."""

    class Folded(ChatText):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [token % 60 for token in super().encode(text, special=special)]

        def pieces(self, roles: Sequence[str], thinking: str | None = None) -> list[list[int]]:
            return [[token % 60 for token in piece] for piece in super().pieces(roles, thinking)]

    engine.text = Folded(load_tokenizer(catalog.find("harbour").target), frozenset())
    return engine
