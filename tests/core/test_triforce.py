"""The public API: what a program imports, and that its texts are those of transformers."""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import core
from core import Finished, PrefillProgress, RetrievalConfig, RoundDone, SpeculationConfig, TriForce, triforce
from core.decoding.registry import FASTEST
from core.errors import InvalidSetting, UnsupportedModel
from core.models.hub.catalog import find
from core.models.loader import ModelDims, load_tokenizer
from core.models.param_count import ModelSize
from core.planning.hardware import Machine
from core.planning.plan import Plan
from tests.core.toys import last_event, tiny_config

ROOT = Path(__file__).parents[2]
TEXT = "The harbour lies in the north. A lantern hangs over the door, and nobody knows who lit it. " * 12
SMALL: dict[str, Any] = {"context": 768, "retrieval": RetrievalConfig(budget=192)}
FIXED: dict[str, Any] = {"speculation": SpeculationConfig(gamma1=2, gamma2=4, adaptive=False), "max_new_tokens": 24}
TOKENIZER = load_tokenizer(find("harbour").target)


def model(seed: int, **sizes: Any) -> PreTrainedModel:
    """A random Llama as transformers makes it, with its own attention."""
    config = cast(Any, tiny_config(**sizes))
    config.vocab_size = len(TOKENIZER)
    torch.manual_seed(seed)
    return cast(PreTrainedModel, AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())


def test_the_package_alone_loads_nothing_heavy_and_has_all_its_names() -> None:
    code = (
        "import sys, core, core.decoding.registry; core.EngineConfig\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    assert all(getattr(core, name) for name in core.__all__)
    with pytest.raises(AttributeError, match="eagle"):
        getattr(core, "eagle")  # noqa: B009


@pytest.mark.parametrize(
    ("with_draft", "dtype"), [(True, torch.float32), (False, torch.float32), (True, torch.bfloat16)]
)
def test_modules_of_transformers_write_what_transformers_writes(with_draft: bool, dtype: torch.dtype) -> None:
    target = model(1, attention_bias=True).to(dtype)
    stock = copy.deepcopy(target).float()
    tf = TriForce.from_modules(target, TOKENIZER, draft=model(1, layers=1) if with_draft else None, **SMALL)
    assert tf.engine.info.has_draft == with_draft
    assert tf.engine.info.target_weight_bytes <= dtype.itemsize * target.num_parameters() * 1.1, "as they came"
    events = list(tf.generate(TEXT, "Who?", **FIXED))
    finished = events[-1]
    assert isinstance(finished, Finished) and finished.method == (FASTEST if with_draft else "lookup")
    assert isinstance(events[0], PrefillProgress) and any(isinstance(event, RoundDone) for event in events)
    prompt = core.Conversation(tuple(tf.engine.text.encode(TEXT))).ask("Who?").prompt_ids(tf.engine.text)
    written = stock.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0)  # type: ignore[operator]
    assert list(finished.token_ids) == written[0, len(prompt) :].tolist()
    unnamed = last_event(tf.engine.generate(prompt, core.GenerationConfig(max_new_tokens=3)))
    assert unnamed.method == finished.method, "one that the models can do"


def test_the_memory_that_a_module_takes_is_there_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, planned = list[Machine](), triforce.make_plan

    def plan(size: ModelSize, draft: ModelDims | None, config: core.EngineConfig, machine: Machine) -> Plan:
        seen.append(machine)
        return planned(size, draft, config, machine)

    machine = triforce.this_machine()
    monkeypatch.setattr(triforce, "make_plan", plan)
    monkeypatch.setattr(triforce, "this_machine", lambda: machine)
    target = model(1)
    size_bytes = 4 * target.num_parameters()
    TriForce.from_modules(target, TOKENIZER, **SMALL)
    assert seen[0].free_ram_bytes - machine.free_ram_bytes == size_bytes


def test_a_second_question_reads_no_more_than_itself_and_knows_the_first() -> None:
    tf = TriForce.from_modules(model(1), TOKENIZER, draft=model(1, layers=1), **SMALL)
    first = tf.answer(TEXT, "Who?", **FIXED)
    alone, after = tf.answer(TEXT, "When?", **FIXED), tf.answer(TEXT, "When?", history=[("Who?", first)], **FIXED)
    assert alone.reused_tokens > 0.9 * alone.prompt_tokens - 40 and after.prompt_tokens > alone.prompt_tokens + 20
    drawn = [tf.answer(TEXT, "Who?", temperature=1.0, seed=seed, **FIXED).token_ids for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2], "settings of sampling reach the sampler"


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(InvalidSetting, match="bits"):
        TriForce.from_modules(model(1), TOKENIZER, bits=4)
    wide = cast(Any, model(2))
    wide.config.vocab_size += 1
    with pytest.raises(UnsupportedModel, match="more tokens"):
        TriForce.from_modules(model(1), TOKENIZER, draft=wide)


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(example.splitlines()) <= 12
    exec(compile(example, "README.md", "exec"), {"__name__": "example"})
    assert "tokens per full pass" in capsys.readouterr().out
