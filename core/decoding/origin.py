"""The origin of a token."""

from dataclasses import dataclass
from typing import Literal

OriginKind = Literal["proposed", "corrected", "bonus", "drawn"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a committed token comes from.

    `level` names the model that wrote it ("draft", "retrieval", "full", ...). `kind` says how: "proposed" by a proposer
    and accepted by every verifier above, "corrected" from the residual after a rejection, "bonus" after a full accept,
    "drawn" by a model that decodes alone.
    """

    level: str
    kind: OriginKind
