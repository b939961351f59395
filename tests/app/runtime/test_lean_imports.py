"""transformers without torch's compiler, which is there all the same for whoever asks."""

import subprocess
import sys
from pathlib import Path

CODE = """
import inspect, sys
from app.runtime.options import engine_type
engine_type()
inspect.getmodule(len), [hasattr(module, "__file__") for module in list(sys.modules.values())]
heavy = {"sympy", "torch._dynamo.convert_frame", "torch.distributed.tensor"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import torch, torch.distributed
assert torch.distributed.is_available()
from transformers.masking_utils import TransformGetItemToIndex
with TransformGetItemToIndex() as mode:
    pass
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex as Theirs
assert isinstance(TransformGetItemToIndex(), Theirs)
doubled = torch.compile(lambda x: 2 * x, backend="eager")(torch.ones(1))
assert doubled == 2 and "torch._dynamo.convert_frame" in sys.modules
"""


def test_the_compiler_is_imported_only_for_those_who_ask_for_it() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
