"""What one of several ranks holds of a model, and what it may use of a machine. Pure arithmetic and refusals."""

import sys
from dataclasses import replace
from pathlib import Path

from core.config import EngineConfig
from core.errors import InvalidSetting, NotPossibleHere
from core.models.head_layout import division_of
from core.models.loader import ModelDims, read_config
from core.models.param_count import ModelSize, size_in
from core.planning.choices import Choice, choose_device
from core.planning.hardware import Machine, gpus_in_words
from core.planning.memory_plan import Plan

ON_WINDOWS = sys.platform == "win32"
WITHOUT_NCCL = "GPUs cannot share a model under Windows, where torch comes without NCCL."
USE_WSL = "Start it in WSL2, or leave out --gpus."


def check_heads(num_kv_heads: int, num_ranks: int) -> None:
    """Check that every rank gets equally many whole KV heads, with the query heads of their groups.

    Raises:
        InvalidSetting: that is not possible.
    """
    if num_kv_heads % num_ranks:
        raise InvalidSetting(
            f"{num_kv_heads} heads of keys and values cannot be shared by {num_ranks} GPUs.",
            hint="Use a number of GPUs that divides them.",
        )


def share_of(size: ModelSize, num_ranks: int) -> ModelSize:
    """What each rank holds: its heads, its part of the layers' linear weights, and all other weights.

    `weight_bytes` is computed from the counted parameters.
    """
    dims, layers = size.dims, -(-size.layer_parameters // num_ranks)
    share = replace(
        dims,
        num_heads=dims.num_heads // num_ranks,
        num_kv_heads=dims.num_kv_heads // num_ranks,
        weight_bytes=dims.disk_dtype.itemsize * (layers + size.other_parameters),
    )
    return replace(size, dims=share, layer_parameters=layers)


def machine_share(machine: Machine, num_ranks: int, *, on_gpus: bool) -> Machine:
    """What each rank may use: the fullest of the first GPUs, and an equal part of memory."""
    gpus = (min(machine.gpus[:num_ranks], key=lambda gpu: gpu.free_bytes),) if on_gpus else machine.gpus
    ram, free = machine.ram_bytes // num_ranks, machine.free_ram_bytes // num_ranks
    return replace(machine, gpus=gpus, ram_bytes=ram, free_ram_bytes=free)


def one_share(folder: Path, dims: ModelDims, config: EngineConfig, machine: Machine) -> tuple[ModelDims, Machine]:
    """The model and the machine for each of `config.num_gpus` ranks; plans made from them are per rank.

    Linear weights of the layers are divided; each rank has embeddings, norms and output layer. A share of the machine
    is its fullest GPU and an equal part of host memory; on the processor, an equal part of memory.

    Raises:
        InvalidSetting: too few GPUs, heads that cannot be divided evenly, or GPUs under Windows.
        UnsupportedModel: a family whose layers are not divided by heads.
        NotEnoughMemory: the user wants CUDA, which is not available.
    """
    ranks = config.num_gpus
    gpus = machine.gpus
    if config.device != "cpu" and not gpus and machine.unused_gpu is not None:
        raise NotPossibleHere(machine.unused_gpu.because, hint=machine.unused_gpu.hint)
    if config.device != "cpu" and len(gpus) < ranks:
        raise NotPossibleHere(
            f"--gpus {ranks} asks for {ranks} GPUs, this machine has {gpus_in_words(len(gpus))}.",
            hint="Leave out --gpus.",
        )
    on_gpus = choose_device(config, machine).value == "cuda"
    if on_gpus and ON_WINDOWS:
        raise NotPossibleHere(WITHOUT_NCCL, hint=USE_WSL)
    division_of(read_config(folder))
    check_heads(dims.num_kv_heads, ranks)
    size = replace(size_in(folder), dims=dims)
    return share_of(size, ranks).dims, machine_share(machine, ranks, on_gpus=on_gpus)


def for_one_rank(plan: Plan, num_ranks: int) -> Plan:
    """The plan of one rank, worded as a part of the whole."""
    if num_ranks == 1:
        return plan
    which = "GPUs" if plan.device.value == "cuda" else "processes"
    shared = f"{plan.placement.because}; {num_ranks} {which} share the model by heads, sizes are those of one"
    return replace(plan, placement=Choice(plan.placement.value, shared))
