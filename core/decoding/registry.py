"""The decoding methods: their names and what they promise. Imports no torch, so that any module may import it.

A new method of known parts is one entry here: engine, page, race, command line, server and plots follow. A method that
drops part of the book also names what it keeps in `core.caches.policies.LOSSY_POLICIES`.
"""

from dataclasses import dataclass

from core.errors import InvalidSetting

PLAIN = "autoregressive"
REMOTE = "remote"  # the method of an answer from a server; not in METHODS
COMPARED = (PLAIN, "triforce")  # the methods compared by default
# Lookups cost nothing, and the draft is used only while it pays (`Decoder`)
FASTEST = "triforce-lookup"


@dataclass(frozen=True, slots=True)
class Method:
    """One way to decode."""

    name: str  # for programs: settings, command line, JSON
    label: str  # for readers
    short_label: str  # where there is little room
    summary: str  # what proposes and what verifies, or what the text is drawn from
    models: tuple[str, ...]  # its models, cheapest first: each proposes to the next, the last one verifies last
    colour: str  # of its bars: a variable of the page's theme (assets/static/css/theme.css)
    lookup_at_least: int = 0  # tokens that must match earlier text before its continuation is proposed; 0: no lookup

    @property
    def exact(self) -> bool:
        """Whether the text follows the target's distribution."""
        return self.models[-1] == "full"

    @property
    def needs_draft(self) -> bool:
        """Whether a draft model has to be loaded."""
        return "draft" in self.models

    @property
    def speculative(self) -> bool:
        """Whether one pass of the final verifier may yield several tokens."""
        return len(self.models) > 1


METHODS = {
    method.name: method
    for method in (
        Method(
            PLAIN,
            "Plain decoding",
            "Plain",
            "target + full cache, one token a pass: the baseline",
            ("full",),
            "ink-faint",
        ),
        Method(
            "triforce",
            "TriForce",
            "TriForce",
            "draft proposes, target + retrieval cache verifies, target + full cache has the last word (2404.11912)",
            ("draft", "retrieval", "full"),
            "accent",
        ),
        Method(
            "triforce-lookup",
            "TriForce with lookup",
            "TriForce + lookup",
            "as lookup; where earlier text does not tell how it goes on, the draft is asked, if that pays",
            ("draft", "retrieval", "full"),
            "lookup",
            lookup_at_least=5,
        ),
        Method(
            "retrieval",
            "Retrieval speculation",
            "Retrieval",
            "target + retrieval cache proposes, target + full cache verifies: no draft model",
            ("retrieval", "full"),
            "level2",
        ),
        Method(
            "lookup",
            "Lookup speculation",
            "Lookup",
            "what followed the same words earlier in book or conversation proposes, target + full cache verifies; "
            "target + retrieval cache proposes, too, where that pays",
            ("retrieval", "full"),
            "good",
            lookup_at_least=1,
        ),
        Method(
            "draft",
            "Draft speculation",
            "Draft",
            "draft proposes, target + full cache verifies: no retrieval",
            ("draft", "full"),
            "level1",
        ),
        Method(
            "streamingllm",
            "StreamingLLM",
            "StreamingLLM",
            "target + sink and recent window alone: for comparison (2309.17453)",
            ("evicting",),
            "bad",
        ),
        Method(
            "h2o",
            "H2O",
            "H2O",
            "target + heavy hitters and recent window alone: for comparison (2306.14048)",
            ("evicting",),
            "warn",
        ),
    )
}
EXACT_METHODS = tuple(method.name for method in METHODS.values() if method.exact)
LOSSY_METHODS = tuple(method.name for method in METHODS.values() if not method.exact)


def check_method(name: str) -> Method:
    """The method of a name.

    Raises:
        InvalidSetting: there is none.
    """
    if name not in METHODS:
        raise InvalidSetting(f"There is no method {name!r}.", hint=f"Use one of: {', '.join(METHODS)}.")
    return METHODS[name]


def is_exact(name: str) -> bool:
    """Whether a method's text follows the target's distribution; False for a name that is not in METHODS."""
    return name in EXACT_METHODS


def method_label(name: str) -> str:
    """The label of a method; of a name that is not in METHODS (a server's), the name itself."""
    return METHODS[name].label if name in METHODS else name.capitalize()


def methods_for(*, has_draft: bool) -> tuple[str, ...]:
    """The usable methods, the default first."""
    usable = [method.name for method in METHODS.values() if has_draft or not method.needs_draft]
    return tuple(sorted(usable, key=lambda name: name != default_method(has_draft=has_draft)))


def default_method(*, has_draft: bool) -> str:
    """The method used where none was chosen: the fastest."""
    return FASTEST if has_draft else "lookup"
