"""A trial when a model is loaded: a few tokens through a cache, against transformers' own attention.

The census (tests/core/models/census.py) compares families; this compares these weights with this transformers.
Three passes over at most SHORT tokens. Models with recurrent layers are not tried: their modules keep what they saw.
Nor are shares of a model, whose passes need all processes (`core.parallel`).
"""

import logging
from typing import Any, cast

import torch
from torch import Tensor, nn

from core.caches.full import FullCache
from core.errors import UnsupportedModel
from core.models.hf_attention import ATTENTION_NAME, forward
from core.models.loader import LoadedModel
from core.ops.backend import STOCK, Backend

log = logging.getLogger(__name__)

FIRST, SHORT = 6, 8  # tokens of the first pass, of both
CAPACITY, CHUNK = 64, 8
# Cosine of both logits. 16 bits round otherwise in other attention, which may send a token to other experts.
LEAST_ALIKE = {torch.float32: 0.999, torch.float16: 0.9, torch.bfloat16: 0.9}
OTHER = "Choose a model of another family, such as Llama, Mistral or Qwen."


def try_out(loaded: LoadedModel, name: str, dtype: torch.dtype, backend: Backend = STOCK) -> bool:
    """Whether the model was tried; it then computes what transformers computes.

    Raises:
        UnsupportedModel: it computes something else, or nothing.
    """
    module, device = loaded.module, loaded.shape.device
    if loaded.shape.recurrent or not hasattr(module, "set_attn_implementation"):
        return False
    tokens = torch.arange(1, SHORT + 1, device=device) * (loaded.dims.vocab_size // (SHORT + 1))
    try:
        expected = _stock(module, tokens)
    except Exception as error:  # theirs: nothing to compare with
        log.info("%s was not tried: %s", name, type(error).__name__)
        return False
    if not torch.isfinite(expected).all():
        return False
    try:
        found = _cached(loaded, tokens, backend)
    except torch.OutOfMemoryError:
        return False
    except Exception as error:
        log.debug("the trial of %s", name, exc_info=True)
        raise UnsupportedModel(
            f"{name} does not run through the caches here ({type(error).__name__}).", hint=OTHER
        ) from error
    if torch.allclose(found.float(), expected.float(), rtol=1e-3, atol=1e-4):  # logits that are all alike have no angle
        return True
    alike = nn.functional.cosine_similarity(_centred(found), _centred(expected), dim=-1).min()
    if not alike >= LEAST_ALIKE.get(dtype, 0.9):
        raise UnsupportedModel(
            f"{name} computes something else here than in transformers: a trial of {SHORT} tokens agrees by "
            f"{float(alike):.3f}.",
            hint=OTHER,
        )
    return True


def _centred(logits: Tensor) -> Tensor:
    return logits.float() - logits.float().mean(-1, keepdim=True)


@torch.inference_mode()
def _stock(module: nn.Module, tokens: Tensor) -> Tensor:
    """Logits of the last tokens by transformers' own attention, without a cache, [SHORT - FIRST, V]."""
    model = cast(Any, module)
    model.set_attn_implementation("eager")
    try:
        logits = model(input_ids=tokens[None], use_cache=False, logits_to_keep=SHORT - FIRST).logits[0]
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return cast(Tensor, logits)


@torch.inference_mode()
def _cached(loaded: LoadedModel, tokens: Tensor, backend: Backend) -> Tensor:
    """The same through a cache, in two passes."""
    cache = FullCache(loaded.shape, CAPACITY, CHUNK, backend=backend)
    for start, stop in ((0, FIRST), (FIRST, SHORT)):
        positions = cache.begin(start, stop - start)
        logits = forward(loaded.module, tokens[start:stop], positions, cache, SHORT - FIRST)
        cache.commit(stop - start)
    return logits
