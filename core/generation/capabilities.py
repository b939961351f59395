"""What an engine can do and show beside reading and writing: views ask this, and never which kind of engine it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """Everything, unless said otherwise."""

    can_race: bool = True  # several methods in fair turns
    can_compare: bool = True  # texts, by the target's logits
    shows_retrieval: bool = True  # what its retrieval cache holds
    counts_reread: bool = True  # it knows what is read again
    computes_here: bool = True  # in this process: device, memory, arithmetic and the origin of tokens can be seen
    methods: tuple[str, ...] | None = None  # the only ones, as their answers are recorded; None: those of the registry


ALL = EngineCapabilities()
