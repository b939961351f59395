"""A tiny target over two processes, and the same in one."""

from pathlib import Path
from typing import Any, cast

from core.caches.full_parts import Offload
from core.config import DraftConfig, EngineConfig, RetrievalConfig
from core.engine import Engine
from core.generation.loaded import LoadedModels
from core.models.loader import read_dims
from core.models.param_count import size_in
from core.ops.backend import STOCK
from core.parallel.rank_pool import RankPool, load_shared
from core.planning.plan import make_plan
from tests.core.toys import MACHINE, Letters, loaded, tiny_config

NOISE = 0.05
CONFIG = EngineConfig(
    context=1024,
    device="cpu",
    prefill_chunk=256,
    num_gpus=2,
    retrieval=RetrievalConfig(budget=128, chunk_size=8, local_window=64),
    draft=DraftConfig(window=128),
)


def shared_engine(folder: Path, kv_heads: int, offload: Offload | None = None) -> tuple[Engine, RankPool]:
    """The twin of `tests.core.toys.tiny_engine` with the same sizes; the target is read from `folder`, where it is put.

    Costs seconds: a process is started.
    """
    config = tiny_config(kv_heads=kv_heads)
    cast(Any, loaded(config, 3).module).save_pretrained(folder)
    draft = loaded(config, 3, NOISE)
    plan = make_plan(read_dims(folder), draft.dims, CONFIG, MACHINE, size_in(folder))
    ranks, target = load_shared(folder, CONFIG, plan, STOCK, offload)
    return Engine(
        CONFIG, plan, Letters(), LoadedModels(target=target, draft=draft, ranks=ranks), offload=offload
    ), ranks
