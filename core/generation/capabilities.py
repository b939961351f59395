"""What an engine can do and show besides reading and writing. Views check this, never the kind of engine."""

from dataclasses import dataclass

WISHES = ("on", "off", "low", "medium", "high")  # what a chat template may be told about thoughts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """The defaults: all capabilities."""

    can_race: bool = True  # several methods in fair turns
    can_compare: bool = True  # compares texts by the target's logits
    shows_retrieval: bool = True  # shows what its retrieval cache holds
    counts_reread: bool = True  # knows how many tokens are read again
    computes_here: bool = True  # computes in this process: can show device, memory, arithmetic and tokens' origins
    methods: tuple[str, ...] | None = None  # the only methods, as named in answers; None: those of the registry
    thinking: tuple[str, ...] = ()  # what the chat template can be told about thoughts; empty: nothing
    thinks: str = ""  # which of these it does unless told; "": not known


ALL = EngineCapabilities()
