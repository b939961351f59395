"""transformers, imported without torch's compiler and torch's tensors of many machines, which no command uses.

transformers marks a few functions for the compiler and asks whether torch is distributed: either would import 800
modules, for 1.5 s of a processor. Who asks for anything else of the compiler gets all of it.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

COMPILER, MASKS = "torch._dynamo", "torch._dynamo._trace_wrapped_higher_order_op"


class Later(ModuleType):
    """Stands for a module until something of it is wanted that was not given; that imports the module itself."""

    def __init__(self, name: str, **given: Any) -> None:
        super().__init__(name)
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and (name, self.__name__) != ("__path__", COMPILER):  # all modules are looked through
            raise AttributeError(name)
        for one in (COMPILER, MASKS):
            if isinstance(sys.modules.get(one), Later):
                del sys.modules[one]
        return getattr(importlib.import_module(self.__name__), name)


def unmarked(function: Any = None, *_: Any, **__: Any) -> Any:
    """In place of a mark for the compiler: the function as it is."""
    return unmarked if function is None else function


def indexing() -> Any:
    """torch's `TransformGetItemToIndex`, which builds masks that the engine does not use."""
    module: Any = importlib.import_module(COMPILER)
    return module._trace_wrapped_higher_order_op.TransformGetItemToIndex()


def import_transformers() -> None:
    """Import it, once. Cost: seconds."""
    if "transformers" in sys.modules or COMPILER in sys.modules:
        return
    marks = dict.fromkeys(("allow_in_graph", "assume_constant_result", "disable"), unmarked)
    sys.modules[COMPILER] = Later(COMPILER, **marks)
    sys.modules[MASKS] = Later(MASKS, TransformGetItemToIndex=indexing)
    import torch.distributed
    from transformers.utils.import_utils import is_torch_distributed_available

    available = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        is_torch_distributed_available()  # which remembers the answer
    finally:
        torch.distributed.is_available = available
