"""Moving keys to other positions: RoPE rotations compose (RoFormer, arXiv 2104.09864), so one more rotation turns a key
for position p into the key for p + delta. The convention (half-rotated pairs) is checked on the model itself.
"""

import torch
from torch import Tensor, nn

from core.caches.base import KVShape
from core.errors import UnsupportedModel
from core.models.hf_attention import forward
from core.ops.reach import Asked


class KeyShift:
    """Rotates keys [..., D] by a number of positions, with the frequencies of one model."""

    def __init__(self, inv_freq: Tensor) -> None:
        self._inv_freq = inv_freq.float()  # [R / 2] with R <= D rotated dimensions

    @classmethod
    def of(cls, model: nn.Module, shape: KVShape) -> "KeyShift":
        """The shift of `model`, tried on all its layers.

        Raises:
            UnsupportedModel: its keys do not move this way (no RoPE, interleaved pairs, layers without positions).
        """
        found = () if shape.recurrent else model.modules()  # a running state does not move
        inv_freq = next((m.inv_freq for m in found if isinstance(getattr(m, "inv_freq", None), Tensor)), None)
        if isinstance(inv_freq, Tensor):
            shift, near, far = cls(inv_freq), _LoneKeys(), _LoneKeys()
            for probe, position in ((near, 0), (far, 37)):
                at = torch.tensor([position], device=shape.device)
                forward(model, torch.ones_like(at), at, probe, 1)
            tolerance = 1e-4 if shape.dtype == torch.float32 else 3e-2
            if all(
                torch.allclose(shift(key, 37), moved, rtol=tolerance, atol=tolerance * float(moved.abs().max()))
                for key, moved in zip(near.keys, far.keys, strict=True)
            ):
                return shift
        raise UnsupportedModel(
            "This draft model does not use rotary positions that can be moved.", hint="Choose another draft model."
        )

    def __call__(self, keys: Tensor, delta: int) -> Tensor:
        """Keys [..., D] for position p become keys for p + delta; a new tensor."""
        angle = delta * self._inv_freq
        cos, sin = angle.cos(), angle.sin()
        half = len(angle)
        a, b = keys[..., :half].float(), keys[..., half : 2 * half].float()
        rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(keys.dtype)
        return torch.cat((rotated, keys[..., 2 * half :]), -1)


class _LoneKeys:
    """Keeps every layer's key of a one-token pass; the token attends only to its own value.

    So a key depends only on the token and its position, in later layers too.
    """

    length = 0

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self._values: dict[int, Tensor] = {}  # by layer

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.keys.append(k)
        self._values[layer] = v

    def attend(self, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        value = self._values[layer]
        return value.repeat_interleave(q.shape[1] // value.shape[1], 1)
