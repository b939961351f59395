"""Published sizes of models that people plan for, by name. Sizes only: their files are not here (`shapes.json`)."""

import json
from dataclasses import dataclass
from typing import Any, cast

from transformers import AutoConfig, PreTrainedConfig

from core.models.catalog import SHAPES_FILE


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as its config.json would describe it."""

    name: str
    config: PreTrainedConfig
    draft: "Shape | None"
    description: str


def shape_names() -> tuple[str, ...]:
    """All names."""
    return tuple(_rows())


def find_shape(name: str) -> Shape | None:
    """The shape with a name, and its draft's."""
    row = _rows().get(name)
    if row is None:
        return None
    fields = dict(row["config"])
    config = cast(Any, AutoConfig).for_model(fields.pop("model_type"), **fields)
    return Shape(name, config, find_shape(row["draft"]) if row["draft"] else None, row["description"])


def _rows() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(SHAPES_FILE.read_text(encoding="utf-8")))
