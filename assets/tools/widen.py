"""Models `widened:SIZES`: the bundled target at the sizes of real models, computing exactly the same function.

A full-size model is made on the fly, with nothing downloaded, so that full-size costs can be measured on real text with
real acceptance. The added parts do not affect the logits, but are read, multiplied and cached like the rest:

- Hidden units: the first are the small model's, the others stay zero in the residual stream; weights that read them
  are random. RMSNorm divides by a mean over more units, so its weights take sqrt(small / wide), its eps small / wide.
- Heads: a double width keeps the rotary base, so pair i of the small head turns as pair 2i of the wide one. The scores'
  factor is 1 / sqrt(width), so queries take sqrt(wide / small). Other dimensions of keys and values are random, with
  zeros in the query or behind the value. Surplus KV heads are entirely random, so their traffic is real.
- Groups: if a KV head serves more queries than in the small model, these are copies, each with its share of the
  output, so that a group votes for the same chunks as the small head.
- MLP and layers: surplus units and layers compute with random weights; the zeros are in down_proj and o_proj.
- Vocabulary: embeddings and output layer have all rows of the real model, and every logit is computed. Rows beyond the
  tokenizer's are tokens that no text has, so they are cut off before sampling: distributions stay the small model's,
  and the bundled draft guesses for it. So sampling from a large vocabulary is not measured.

After scaling, weights are rounded to the wanted dtype: the function is the same up to that dtype's precision. Rounded
to float16, sums in float32, on 1,500 tokens of a book: every most likely token the same, total variation 0.0004 on
average and 0.006 at most.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from core.config import EngineConfig
from core.engine_builder import PairFiles
from core.errors import InvalidSetting, UnknownModel, UnsupportedModel
from core.models.hf_attention import ATTENTION_NAME, register
from core.models.hub.catalog import BUNDLED
from core.models.hub.shapes import find_shape
from core.models.linear import OutputLinear
from core.models.loader import LoadedModel, ModelDims, read_config
from core.models.param_count import ModelSize, size_of
from core.models.quantised import FORMATS
from core.models.self_draft import quantised_linear
from core.models.weights import load_module, prepared
from core.ops.backend import Backend
from core.planning.plan import Plan

WIDENED = "widened:"  # prefix of the sizes in a model's name
HEAD_DIM = 128  # of every model that people plan for
CONTEXT_SUFFIX = "-128k"  # optional in a name
SEED = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a widened model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int  # at least; never less than the tokenizer's


# -------------------- names


def parse_sizes(name: str) -> Sizes:
    """Sizes by name: a published shape ("llama2-7b") or a hidden size ("1024"), with another layer count ("1024x6").

    Raises:
        UnknownModel: no such name; the hint lists valid ones.
    """
    sizes, _, layers = name.rpartition("x")
    if not (sizes and layers.isdecimal()):
        sizes, layers = name, ""
    hidden = int(sizes) if sizes.isdecimal() else 0
    shape = find_shape(sizes) or find_shape(sizes + CONTEXT_SUFFIX)
    if shape is not None:
        found = cast(Any, shape.config)
        wanted = Sizes(
            num_layers=found.num_hidden_layers,
            hidden_size=found.hidden_size,
            num_heads=found.num_attention_heads,
            num_kv_heads=found.num_key_value_heads,
            head_dim=getattr(found, "head_dim", None) or found.hidden_size // found.num_attention_heads,
            intermediate_size=found.intermediate_size,
            vocab_size=found.vocab_size,
        )
    elif hidden and hidden % HEAD_DIM == 0 and layers:
        heads = hidden // HEAD_DIM
        # Llama's proportion: two thirds of four times the hidden size, arXiv 2302.13971
        wanted = Sizes(int(layers), hidden, heads, heads, HEAD_DIM, hidden * 8 // 3, 0)
    else:
        raise UnknownModel(
            f"There are no sizes {name!r} to widen to.",
            hint=f"Use for example {WIDENED}llama2-7b, {WIDENED}llama-3.1-8b or, by units and layers, {WIDENED}1024x6.",
        )
    return replace(wanted, num_layers=int(layers)) if layers else wanted


def wide_config(small: PreTrainedConfig, sizes: Sizes) -> PreTrainedConfig:
    """The configuration of `small` at other sizes; everything else stays, including positions and special tokens.

    Raises:
        UnsupportedModel: the sizes cannot hold the small model.
    """
    base = cast(Any, small)
    assert base.model_type == "llama" and not base.attention_bias and not base.mlp_bias, "only plain Llama is widened"
    assert base.rope_parameters["rope_type"] == "default", base.rope_parameters
    dim, groups = base.head_dim, base.num_attention_heads // base.num_key_value_heads
    for what, least, given in (
        ("layers", base.num_hidden_layers, sizes.num_layers),
        ("hidden units", base.hidden_size, sizes.hidden_size),
        ("heads of keys and values", base.num_key_value_heads, sizes.num_kv_heads),
        ("queries a head", groups, sizes.num_heads // sizes.num_kv_heads),
        ("dimensions a head", dim, sizes.head_dim),
        ("MLP units", base.intermediate_size, sizes.intermediate_size),
    ):
        if given < least:
            raise UnsupportedModel(
                f"The bundled target has {least} {what}, so it cannot become a model of {given}.",
                hint="Choose larger sizes.",
            )
    assert sizes.head_dim % dim == 0 and sizes.num_heads % sizes.num_kv_heads == 0, sizes
    fields = base.to_dict() | {
        "num_hidden_layers": sizes.num_layers,
        "hidden_size": sizes.hidden_size,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.intermediate_size,
        "vocab_size": max(base.vocab_size, sizes.vocab_size),
        "rms_norm_eps": base.rms_norm_eps * base.hidden_size / sizes.hidden_size,
        "tie_word_embeddings": False,
    }
    return type(small).from_dict(fields)


# -------------------- what an engine asks for


def pair_files(config: EngineConfig) -> PairFiles:
    """The files of the model that the settings name; of `widened:SIZES`, those of the bundled pair.

    Raises:
        UnknownModel, UnsupportedModel, InvalidSetting, and others as `PairFiles.find`.
    """
    if not config.model.startswith(WIDENED):
        return PairFiles.find(config.model, config.draft_model)
    if config.num_gpus > 1:
        raise InvalidSetting("Widened models are not shared between GPUs.", hint="Leave out --gpus.")
    sizes, small = parse_sizes(config.model.removeprefix(WIDENED)), PairFiles.find(BUNDLED, config.draft_model)
    entry = replace(small.entry, name=config.model, description="the bundled target at the sizes of another model")
    size = size_of(wide_config(read_config(entry.target), sizes), entry.name)
    weight_bytes = size.num_parameters * size.dims.disk_dtype.itemsize
    packed = size.num_parameters * torch.float32.itemsize  # made in the type of computation
    vocab = small.target.vocab_size  # that of its distributions
    target = replace(size.dims, vocab_size=vocab, weight_bytes=weight_bytes, packed_bytes=packed)
    return WidenedFiles(entry, target, small.draft, sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedFiles(PairFiles):
    """The bundled pair, whose target is made at these sizes."""

    sizes: Sizes

    def size(self) -> ModelSize:
        """The wide target's parameters."""
        size = size_of(wide_config(read_config(self.entry.target), self.sizes), self.entry.name)
        return replace(size, dims=self.target)

    def load_target(
        self, dims: ModelDims, plan: Plan, device: torch.device, backend: Backend, bits: int | None
    ) -> LoadedModel:
        """Make the wide target."""
        dtype = plan.dtype.value
        small = load_module(self.entry.target, torch.float32)
        rounded = quantised_linear(bits, device) if bits in FORMATS and backend.kernel is None else None
        wide = widen(small, wide_config(cast(Any, small).config, self.sizes), dtype, device, rounded=rounded)
        cast(Any, wide).generation_config = cast(Any, small).generation_config
        host = plan.embeds_from_host
        return prepared(wide, dims, dtype, device, backend, bits=bits, embeds_from_host=host)


# -------------------- the widening


def widen(
    small: nn.Module,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    attention: str | None = None,
    rounded: Callable[[nn.Linear], nn.Module] | None = None,
) -> nn.Module:
    """A model of `config` that computes the same function as `small`, a plain Llama on the CPU.

    Weights are made one by one in their dtype on their device, so that none exists twice.

    Args:
        config: from `wide_config`.
        attention: of transformers; default: ours.
        rounded: what each linear layer but the last becomes at once, so that one of them is there in its dtype.
    """
    register()
    with torch.device("meta"):
        wide = cast(Any, AutoModelForCausalLM).from_config(
            config, dtype=dtype, attn_implementation=attention or ATTENTION_NAME, trust_remote_code=False
        )
    plan = _Widening(cast(Any, small).config, config)
    weights = {name: parameter.detach().double() for name, parameter in small.named_parameters()}
    weights.setdefault("lm_head.weight", cast(Any, small).get_output_embeddings().weight.detach().double())
    generator = torch.Generator(device).manual_seed(SEED)
    for name, parameter in list(wide.named_parameters()):
        made = torch.empty(parameter.shape, dtype=dtype, device=device)
        plan.fill(name, made, weights.get(name), generator)
        place, _, kind = name.rpartition(".")
        owner = wide.get_submodule(place)
        owner.register_parameter(kind, nn.Parameter(made, requires_grad=False))
        if rounded is not None and type(owner) is nn.Linear and owner is not wide.lm_head:
            wide.set_submodule(place, rounded(owner))
    wide.model.rotary_emb = type(wide.model.rotary_emb)(config=config).to(device)  # its table is not a parameter
    wide.lm_head = _cut(wide.lm_head, cast(Any, small).config.vocab_size)
    return cast(nn.Module, wide.eval())


class CutLinear(OutputLinear):
    """An output layer that computes all its outputs and returns the first ones."""

    kept = 0

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] to [..., kept]."""
        return super().forward(x)[..., : self.kept]


def _cut(linear: nn.Linear, kept: int) -> nn.Linear:
    if kept == linear.out_features:
        return linear
    cut = CutLinear(linear.in_features, linear.out_features, bias=False, device="meta")
    cut.weight, cut.kept = linear.weight, kept
    return cut.requires_grad_(False)


class _Widening:
    """Where the parts of a small model lie in a wide one."""

    def __init__(self, small: PreTrainedConfig, wide: PreTrainedConfig) -> None:
        self._small, self._wide = cast(Any, small), cast(Any, wide)
        self._units, self._layers = self._small.hidden_size, self._small.num_hidden_layers
        self.norm_factor = math.sqrt(self._units / self._wide.hidden_size)
        self.query_factor = math.sqrt(self._wide.head_dim / self._small.head_dim)

    def fill(self, name: str, made: Tensor, small: Tensor | None, generator: torch.Generator) -> None:
        """Fill a parameter: the small model's part, zeros where others would change the function, else random ones.

        Args:
            small: the small model's parameter of that name; None in surplus layers.
        """
        kind, units = name.split(".")[-2], self._units
        if made.dim() == 1:  # a norm
            made.fill_(self.norm_factor)
            if small is not None:
                made[:units] = _as(made, small * self.norm_factor)
        elif kind in ("o_proj", "down_proj"):
            made.zero_()
            if small is not None and kind == "o_proj":
                self._write_output(made, small)
            elif small is not None:
                made[:units, : small.shape[1]] = _as(made, small)
        else:
            # Normed units are about 1; these weights keep sums over all nonzero units about 1, too
            made.normal_(0, units**-0.5, generator=generator)
            if small is None:
                return
            if kind in ("q_proj", "k_proj", "v_proj"):
                self._write_heads(kind, made, small)
            else:  # embeddings and output layer, gate and up
                made[: len(small), :units] = _as(made, small)
            if kind == "embed_tokens":
                made[: len(small), units:] = 0

    # Heads: wide query head n * G + r of KV head n is small query head n * g + r % g, for r < G; g, G: queries a head

    def _queries(self) -> Iterator[tuple[int, int, int]]:
        """Wide query head, the small one it computes, and how many share the small one's output."""
        kv_heads = self._small.num_key_value_heads
        small = self._small.num_attention_heads // kv_heads
        wide = self._wide.num_attention_heads // self._wide.num_key_value_heads
        for head in range(kv_heads):
            for place in range(wide):
                copies = len(range(place % small, wide, small))
                yield head * wide + place, head * small + place % small, copies

    def _pairs(self) -> Tensor:
        """Dimensions of a wide head that turn like those of a small one, in the small one's order, [d] int64.

        Rotary pairs are (i, i + half a head); their angles are base ** (-i / half).
        """
        half, step = self._small.head_dim // 2, self._wide.head_dim // self._small.head_dim
        turning = torch.arange(half) * step
        return torch.cat((turning, turning + half * step))

    def _write_heads(self, kind: str, made: Tensor, small: Tensor) -> None:
        units = self._units
        wide_heads = made.view(-1, self._wide.head_dim, made.shape[1])  # [heads, D, hidden units]
        small_heads = small.view(-1, self._small.head_dim, units)
        if kind == "q_proj":
            for wide, head, _ in self._queries():
                wide_heads[wide, :, :units] = 0
                wide_heads[wide, self._pairs(), :units] = _as(made, small_heads[head] * self.query_factor)
        else:
            at = self._pairs() if kind == "k_proj" else torch.arange(self._small.head_dim)
            for head, rows in enumerate(small_heads):
                wide_heads[head, at, :units] = _as(made, rows)

    def _write_output(self, made: Tensor, small: Tensor) -> None:
        dim, wide_dim = self._small.head_dim, self._wide.head_dim
        for wide, head, copies in self._queries():
            share = small[:, head * dim : (head + 1) * dim] / copies
            made[: self._units, wide * wide_dim : wide * wide_dim + dim] = _as(made, share)


def _as(like: Tensor, values: Tensor) -> Tensor:
    """Values in the dtype and on the device of another tensor."""
    return values.to(like.device, like.dtype)
