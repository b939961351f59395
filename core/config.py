"""Frozen settings, grouped by owner. Every class checks its values when it is made, so an existing value is valid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from core.errors import InvalidSetting

Device = Literal["auto", "cpu", "cuda"]
PlacementWish = Literal["auto", "resident", "split", "offloaded"]
AttentionWish = Literal["auto", "torch", "compiled", "flash-attn"]
ATTENTIONS: tuple[AttentionWish, ...] = get_args(AttentionWish)
CHOICES: dict[str, tuple[object, ...]] = {  # of settings of an engine
    "bits": (None, 16, 8, 4),
    "kv-bits": (None, 16, 32),
    "prefill-bits": (None, 16, 32),
    "self-draft-bits": (None, 16, 4),
    "device": get_args(Device),
    "placement": get_args(PlacementWish),
    "attention": ATTENTIONS,
}
MOST_GIB = 1 << 20  # the largest device memory that a setting may state
MOST_GPUS = 8
MOST_LOGPROBS = 20  # of other tokens at each place
MOST_QUERIES = 64  # queries that vote for chunks: the full cache logs twice as many, because a round may be rolled back
LEAST_TEMPERATURE = 1e-5  # below it logits / temperature overflow float32; all mass is on one token long before
# Default number of guesses a round that the full cache verifies. 24 guesses make passes of 25 rows: passes of up to 32
# are recorded, and on a processor each row comes out as if computed alone. Where layers come over the link, nothing is
# recorded and rows are next to free; query log, newest rows on the device and the context's end allow 64 a round.
MOST_GUESSES, MOST_GUESSES_OVER_LINK = 24, 48
MOST_WHOLE = 2**63 - 1  # of a seed, as torch takes it, and of what is kept on disk
MOST_CPU_SHARE = 0.9  # of the blocks in host memory; the link carries the rest


def _require(condition: bool, problem: str, hint: str) -> None:
    if not condition:
        raise InvalidSetting(problem, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a token is drawn from logits, the same at every level. Temperature 0 is exact greedy decoding."""

    temperature: float = 0.0
    top_p: float = 1.0  # keep the smallest set of tokens with at least this mass; 1 keeps all
    top_k: int = 0  # keep the k most likely tokens; 0 keeps all

    def __post_init__(self) -> None:
        _require(0 <= self.temperature <= 100, f"Temperature {self.temperature:g} is not usable.", "Use 0 to 2.")
        _require(0 < self.top_p <= 1, f"top-p {self.top_p:g} is not usable.", "Use a value above 0, up to 1.")
        _require(0 <= self.top_k <= MOST_WHOLE, f"top-k {self.top_k} is not usable.", "Use 0 (off) to the vocabulary.")

    @property
    def greedy(self) -> bool:
        """Whether all mass is on the most likely token: at temperatures from 0 to LEAST_TEMPERATURE."""
        return self.temperature < LEAST_TEMPERATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """What the retrieval cache keeps of the full cache, per layer and KV head. Sizes in tokens."""

    budget: int = 1024  # sink + selected chunks + local window
    chunk_size: int = 8  # tokens selected or dropped together (TriForce, arXiv 2404.11912, uses 8)
    local_window: int = 128  # newest tokens that are always kept
    query_window: int = 8  # newest queries that vote for chunks (SnapKV pools 32, arXiv 2404.14469)
    neighbor_bonus: float = 0.5  # a chunk's score is at least this share of the score of the chunk before it
    reselect_interval: int = 8  # committed tokens after which chunks are chosen again during an answer
    grows: bool = False  # whether a plan may choose another budget where layers wait in host memory
    policy: str = "verification"  # how chunks are chosen: a name of `core.caches.policies.SELECTION_POLICIES`

    def __post_init__(self) -> None:
        hint = "Use a budget that is a multiple of the chunk size and holds the local window."
        _require(self.chunk_size > 0, f"chunk size {self.chunk_size} is not usable.", hint)
        _require(
            self.budget >= self.local_window + 2 * self.chunk_size and self.budget % self.chunk_size == 0,
            f"A retrieval budget of {self.budget} with chunks of {self.chunk_size} "
            f"and a local window of {self.local_window} is not usable.",
            hint,
        )
        _require(
            self.local_window > 0, f"A local window of {self.local_window} is not usable.", "Use 1 or more, as 128."
        )
        _require(
            0 <= self.neighbor_bonus <= 1, f"A bonus of {self.neighbor_bonus:g} is not usable.", "Use 0 (off) to 1."
        )
        _require(self.reselect_interval > 0, "The interval between selections must be positive.", "Use for example 8.")
        _require(
            0 < self.query_window <= MOST_QUERIES,
            f"A window of {self.query_window} queries is not usable.",
            f"Use 1 to {MOST_QUERIES}.",
        )

    @property
    def num_chunks(self) -> int:
        """Chunks selected beside the local window, including the sink chunk."""
        return (self.budget - self.local_window) // self.chunk_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """The draft's streaming window, in tokens."""

    num_sink: int = 4  # arXiv 2309.17453: four initial tokens recover most of the sink effect
    window: int = 256  # sink included; larger where the draft's weights allow, see `planning.sizes.grown_window`

    def __post_init__(self) -> None:
        _require(
            self.num_sink > 0 and self.window >= self.num_sink + 64,
            f"A draft window of {self.window} with {self.num_sink} sink tokens is not usable.",
            "Use at least one sink token, and a window of 64 tokens more than the sink or larger.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Shape of a round. With `adaptive`, the controller starts at gamma1 and gamma2; the maxima limit it."""

    gamma1: int = 2
    gamma2: int = 8
    adaptive: bool = True
    max_gamma1: int = 6
    max_gamma2: int | None = None  # None: depends on where the full cache lies, see `Plan.most_guesses`

    def __post_init__(self) -> None:
        most = MOST_GUESSES if self.max_gamma2 is None else self.max_gamma2
        _require(
            1 <= self.gamma1 <= self.max_gamma1 <= 16 and 1 <= self.gamma2 <= most <= MOST_GUESSES_OVER_LINK,
            f"gamma1 {self.gamma1} and gamma2 {self.gamma2} are not usable.",
            f"Use 1 to {self.max_gamma1} and 1 to {most}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs to know before it loads anything."""

    model: str = "harbour"  # a name of the catalogue, a local folder or the hub id of a downloaded model
    draft_model: str = "auto"  # the same, "auto" (the draft that suits the target, if it is downloaded) or "none"
    bits: int | None = None  # of the target's weights: 8 or 4 are quantised; None: the type that is computed with
    kv_bits: int | None = None  # of the target's keys and values: 16, 32; None: on a processor 16 where they fit
    # Of what a bfloat16 target's weights are multiplied with while it reads, on a processor: 16, 32; None: 32
    prefill_bits: int | None = None
    # Of the target's weights in passes over the retrieval cache: 4; 16: no separate weights; None: 4 where that pays
    self_draft_bits: int | None = None
    device: Device = "auto"
    context: int | None = None  # tokens; None: as many as the model and the memory allow, up to 128K
    prefill_chunk: int = 1024  # tokens read per pass
    gpu_memory_gib: float | None = None  # the most the device may hold; on a processor the rest counts as host memory
    placement: PlacementWish = "auto"  # of the full cache; "auto": as much of it on the device as fits
    num_gpus: int = 1  # GPUs that share the target by heads, one process each; on a processor only the processes
    retrieval: RetrievalConfig = RetrievalConfig()
    draft: DraftConfig = DraftConfig()
    layerwise: bool = True  # read long prompts layer by layer where layers lie in host memory
    methods: Sequence[str] = ()  # that have to be usable; (): the usual one of the models that fit
    attention: AttentionWish = "auto"  # the code that computes attention; "auto": the fastest that needs no compiling
    graphs: bool = True  # record passes as CUDA graphs where there is CUDA
    cpu_attention_share: float | None = None  # of the blocks in host memory; None: from a calibration

    def __post_init__(self) -> None:
        _require(
            self.context is None or self.context >= 64,
            f"A context of {self.context} tokens is not usable.",
            "Use at least 64, for example --context 32768.",
        )
        _require(1 <= self.num_gpus <= MOST_GPUS, f"--gpus {self.num_gpus} is not usable.", f"Use 1 to {MOST_GPUS}.")
        for name, choices in CHOICES.items():
            value, named = getattr(self, name.replace("-", "_")), [str(choice) for choice in choices if choice]
            _require(value in choices, f"--{name} {value} is unknown.", f"Use {', '.join(named[:-1])} or {named[-1]}.")
        _require(
            self.kv_bits is None or self.num_gpus == 1,
            "The type of keys and values is not chosen where several processes share the model.",
            "Leave out --kv-bits or --gpus.",
        )
        if self.self_draft_bits == 4:
            _require(
                self.bits != 4,
                "Weights of 4 bits are drafted with already: --self-draft-bits 4 would only add to them.",
                "Leave out --self-draft-bits or --bits.",
            )
            _require(
                self.num_gpus == 1,
                "Self-draft weights of 4 bits are not shared between GPUs.",
                "Leave out --self-draft-bits or --gpus.",
            )
        _require(self.prefill_chunk > 0, "The prefill chunk must be positive.", "Use for example 1024.")
        gib = self.gpu_memory_gib
        _require(
            gib is None or 0 < gib < MOST_GIB,
            f"--gpu-memory {gib:g} is not usable." if gib is not None else "",
            "Give it in GiB, for example 24.",
        )
        share = self.cpu_attention_share
        _require(
            share is None or 0 <= share <= MOST_CPU_SHARE,
            f"--cpu-attention-share {share:g} is not usable." if share is not None else "",
            f"Use 0 (off) to {MOST_CPU_SHARE:g}, or leave it out: then it is measured.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """One answer: its length, its sampling and where it ends."""

    max_new_tokens: int = 256
    sampling: SamplingParams = SamplingParams()
    speculation: SpeculationConfig = SpeculationConfig()
    method: str = ""  # a name of `core.decoding.registry.METHODS`; "": the usual one of the loaded models
    seed: int = 0
    stop_strings: Sequence[str] = ()
    budget: int | None = None  # of the retrieval cache, tokens; None: as loaded
    thinking: str | None = (
        None  # what the prompt asks for, see `core.generation.thinking`; None: as the model is set up
    )
    end_loops: bool = False  # end a greedy text that repeats itself, see `core.generation.decode_loop.loops`
    json_schema: str | None = None  # JSON: a schema that the text of the answer follows; needs requirements-grammar.txt
    top_logprobs: int | None = None  # log-probabilities of each token and of so many others; None: of none

    def __post_init__(self) -> None:
        _require(self.max_new_tokens >= 1, "At least one new token is needed.", "Allow 1 or more.")
        _require(all(self.stop_strings), "A stop string is empty.", "Remove it.")
        _require(abs(self.seed) <= MOST_WHOLE, f"The seed {self.seed} is not usable.", "Use one of up to 18 digits.")
        _require(
            0 <= (self.top_logprobs or 0) <= MOST_LOGPROBS,
            f"{self.top_logprobs} log-probabilities a token are not usable.",
            f"Use 0 to {MOST_LOGPROBS}.",
        )


def seed_at(seed: int, number: int) -> int:
    """The seed of the answer with this number; behind the largest one the least follows."""
    return (seed + number + MOST_WHOLE) % (2 * MOST_WHOLE + 1) - MOST_WHOLE
