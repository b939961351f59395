"""Size of the full cache on the device and in host memory, by context and number of resident layers."""

from dataclasses import dataclass

import torch

from core.caches.full import MOST_WINDOW_MARKS
from core.caches.full_parts import Offload
from core.caches.layer_storage import KEPT_ROWS, tail_rows
from core.caches.policies import needs_landmarks
from core.caches.window_layer import FORGETTABLE, window_rows
from core.config import EngineConfig
from core.models.loader import ModelDims
from core.planning.choices import choose_prefill_chunk
from core.planning.sizes import (
    PlanRow,
    beside_bytes,
    landmark_bytes_per_token,
    sample_bytes_per_token,
    side_bytes_per_token,
    vote_bytes_per_token,
)

RING_SLOTS = 3  # groups of blocks on their way, in use, or being freed
# A block is small, because the device holds the newest one of every offloaded layer; a group is large enough that
# launching a copy and attending cost little beside the copy (64 MiB: 2.6 ms at 25 GB/s).
PIECE_BYTES, GROUP = 4 << 20, 16
FEWEST_BLOCKS = 64  # of a full context: short contexts have smaller blocks
LEAST_BLOCK = 64  # rows
REMEMBERED = "windows remembered at the ends of prompts"
PREFILL_BLOCK = "prefill, layer by layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """Sizes of a model's full cache, or of one rank's share of it."""

    layers: int  # that attend to all tokens
    row_bytes: int  # keys and values of one token in one layer
    side_bytes: int  # scores of one token in all layers
    chunk_size: int
    landmark_bytes: int = 0  # of one token in one layer on the device
    sample_bytes: int = 0  # queries of one token in all layers; kept if all are on the device
    away_bytes: int = 0  # of one token in one layer in host memory: votes, or a landmark if the policy needs them
    fixed_bytes: int = 0  # needed besides at every context: the newest queries, in all layers
    window_rows: tuple[int, ...] = ()  # rows of each windowed layer, which always lie on the device
    window_row_bytes: int = 0  # keys and values of one token in one windowed layer
    reaches: tuple[int, ...] = ()  # rows of each windowed layer that the end of a prompt remembers in host memory
    on_host: bool = False  # whether this is the device's own memory
    hidden_bytes: int = 0  # hidden states of one token; 0: the layers cannot be called one by one
    # Rows of a long pass through one layer, kept until they have been read on their way to the host, while the next
    # layer computes; 0: on a processor, which stores at once.
    sending_rows: int = 0

    @classmethod
    def of(cls, dims: ModelDims, config: EngineConfig, dtype: torch.dtype, device: str = "cpu") -> "CacheSizes":
        """The sizes for a model."""
        shape, landmark = dims.shape(dtype, torch.device("meta")), landmark_bytes_per_token(dims, config, dtype)
        return cls(
            layers=len(shape.full_layers),
            row_bytes=shape.layer_bytes,
            side_bytes=side_bytes_per_token(dims, config, dtype),
            chunk_size=config.retrieval.chunk_size,
            landmark_bytes=landmark,
            sample_bytes=sample_bytes_per_token(dims, dtype),
            away_bytes=landmark if needs_landmarks(config.retrieval) else vote_bytes_per_token(dims, config, dtype),
            fixed_bytes=beside_bytes(dims, dtype),
            window_rows=tuple(window_rows(reach, FORGETTABLE) for reach in shape.reaches if reach is not None),
            window_row_bytes=shape.window_layer_bytes,
            reaches=tuple(reach.size for reach in shape.reaches if reach is not None),
            on_host=device != "cuda",
            hidden_bytes=dims.hidden_size * dtype.itemsize if dims.layerwise and config.layerwise else 0,
            sending_rows=choose_prefill_chunk(dims, config, device, offloaded=True).value if device == "cuda" else 0,
        )

    def layer_bytes(self, context: int) -> int:
        """Keys and values of one resident layer, an odd number of rows (`KVShape.allocate`)."""
        return self.row_bytes * (context | 1)

    def beside_bytes(self, context: int, resident: int) -> int:
        """What chooses chunks, which always lies on the device: landmarks, votes, scores and query log."""
        layers = resident * self.landmark_bytes + (self.layers - resident) * self.away_bytes
        samples = self.sample_bytes if resident == self.layers else 0
        return (self.side_bytes + layers + samples) * context + self.fixed_bytes

    def window_bytes(self, context: int) -> int:
        """Keys and values of all windowed layers."""
        return sum(min(rows, context) | 1 for rows in self.window_rows) * self.window_row_bytes

    def remembered_bytes(self, context: int) -> int:
        """Host memory for the windows at the ends of the book and of the newest prompts."""
        return MOST_WINDOW_MARKS * sum(min(rows, context) for rows in self.reaches) * self.window_row_bytes

    def block_rows(self, context: int) -> int:
        """Rows of one layer that cross the link in one block; a multiple of the chunk size."""
        rows = max(LEAST_BLOCK, min(PIECE_BYTES // self.row_bytes, context // FEWEST_BLOCKS))
        return -(-rows // self.chunk_size) * self.chunk_size

    def ring_bytes(self, context: int) -> int:
        """Device buffers for blocks on their way: the ring's, and one to the host with the rows that it takes."""
        storing = self.block_rows(context) + self.sending_rows if self.sending_rows else 0
        return (RING_SLOTS * GROUP * self.block_rows(context) + storing) * self.row_bytes

    def tail_bytes(self, context: int) -> int:
        """Newest rows of one offloaded layer that stay on the device, and those that a long pass keeps beside them."""
        block = self.block_rows(context)
        return ((tail_rows(block) | 1) + KEPT_ROWS + block - 1) * self.row_bytes

    def device_bytes(self, context: int, resident: int) -> int:
        """Device memory of the full cache with this many resident layers."""
        away = self.layers - resident
        rows = resident * self.layer_bytes(context) + self.beside_bytes(context, resident) + self.window_bytes(context)
        rows += self.remembered_bytes(context) if self.on_host else 0
        return rows + (self.ring_bytes(context) + away * self.tail_bytes(context) if away else 0)

    def host_bytes(self, context: int, resident: int) -> int:
        """Host memory of the full cache: whole blocks."""
        block = self.block_rows(context)
        return (self.layers - resident) * self.row_bytes * (-(-context // block) * block)

    def block_bytes(self, context: int, block: int, lent: int) -> int:
        """Device memory for reading blocks of so many tokens layer by layer: one layer's rows, and hidden states.

        Args:
            lent: bytes of the retrieval cache, which are free meanwhile.
        """
        return max(0, self.layer_bytes(context) + block * self.hidden_bytes - lent) if block else 0

    def reading_rows(self, context: int, block: int, lent: int) -> tuple[PlanRow, ...]:
        """The parts of `block_bytes`."""
        size = self.block_bytes(context, block, lent)
        return (PlanRow(PREFILL_BLOCK, size),) if size else ()

    def device_rows(self, context: int, resident: int) -> tuple[PlanRow, ...]:
        """The parts of `device_bytes`."""
        kept, side = resident * self.layer_bytes(context), self.beside_bytes(context, resident)
        count, size = len(self.window_rows), self.window_bytes(context)
        windows: tuple[PlanRow, ...] = (PlanRow(f"windows of {count} layers", size),) if count else ()
        windows += self.remembered_rows(context) if self.on_host else ()
        if resident == self.layers:
            return (PlanRow("full cache, landmarks, query log", kept + side), *windows)
        kept_rows = [PlanRow(f"full cache, {resident} of {self.layers} layers", kept)] if resident else []
        tails = (self.layers - resident) * self.tail_bytes(context)
        return (
            *kept_rows,
            *windows,
            PlanRow("votes, query log", side),
            PlanRow("newest rows of offloaded layers", tails),
            PlanRow("ring of copies", self.ring_bytes(context)),
        )

    def host_rows(self, context: int, resident: int) -> tuple[PlanRow, ...]:
        """What lies in the memory of a GPU's host: the parts of `host_bytes`, and remembered windows."""
        away = self.layers - resident
        which = f", {away} of {self.layers} layers" if resident else ""
        rows = (PlanRow(f"full cache{which}, host", self.host_bytes(context, resident)),) if away else ()
        return rows if self.on_host else (*rows, *self.remembered_rows(context))

    def remembered_rows(self, context: int) -> tuple[PlanRow, ...]:
        """The row of `remembered_bytes`."""
        size = self.remembered_bytes(context)
        return (PlanRow(REMEMBERED, size),) if size else ()

    def offload(self, context: int, resident: int) -> Offload | None:
        """The settings for the cache's offloaded layers."""
        if resident == self.layers:
            return None
        return Offload(num_resident=resident, block_rows=self.block_rows(context), group=GROUP, num_slots=RING_SLOTS)
