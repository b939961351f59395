"""Published sizes of the catalogue's models, for planning before they are downloaded."""

from dataclasses import dataclass, replace
from typing import Any, cast

from transformers import AutoConfig, PreTrainedConfig

from core.models.hub.catalog import entries
from core.models.param_count import ModelSize, size_of


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as its config.json would describe it."""

    name: str
    config: PreTrainedConfig
    draft: "Shape | None"
    description: str

    def size(self) -> ModelSize:
        """Its counted parameters. Cost: a twentieth of a second."""
        size = size_of(self.config, self.name)
        return replace(size, dims=replace(size.dims, packed_bytes=entries()[self.name].packed_bytes))


def find_shape(name: str) -> Shape | None:
    """The shape with a name, and its draft's."""
    row = entries().get(name)
    if row is None or row.config is None:
        return None
    fields = {**row.config, **row.overrides}
    config = cast(Any, AutoConfig).for_model(fields.pop("model_type"), **fields)
    return Shape(name, config, find_shape(row.draft) if row.draft else None, row.description)
