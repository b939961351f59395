"""The architecture as a test: imports point down, core stands alone, and the file map is the tree."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core"
LAYERS = [
    "errors", "files", "nvidia", "events", "config", "stats", "tokens", "ops", "caches", "models", "hardware", "rigs",
    "planner", "parallel", "tiers", "decoding", "roofline", "forecast", "text", "session", "shelf", "answering", "race",
    "loading", "prefill", "engine", "keeping", "triforce", "bench",
]  # fmt: skip


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return names | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


@pytest.mark.parametrize("file", sorted(CORE.rglob("*.py")), ids=lambda file: str(file.relative_to(CORE)))
def test_imports_point_down(file: Path) -> None:
    layer = file.relative_to(CORE).parts[0].removesuffix(".py")
    if layer == "__init__":
        assert all(name.startswith("core.") or name in ("importlib", "typing") for name in imported(file))
        return  # it names what the package offers, and imports it when it is asked for (tests/core/test_triforce.py)
    assert layer in LAYERS, f"core/{layer} has no place among the layers: give it one"
    above = LAYERS[LAYERS.index(layer) + 1 :]
    # events carry statistics: both are plain values without further imports
    allowed = {"events": {"stats"}}.get(layer, set())
    forbidden = ("app", "gradio", "pypdf", *(f"core.{name}" for name in above if name not in allowed))
    wrong = [name for name in imported(file) if any(name == f or name.startswith(f + ".") for f in forbidden)]
    assert not wrong, f"core/{file.relative_to(CORE)} may not import {wrong}"


def test_core_imports_without_the_app_s_packages() -> None:
    block = "import sys; [sys.modules.__setitem__(n, None) for n in ('gradio', 'pypdf', 'bitsandbytes', 'flash_attn')]"
    modules = "core.engine, core.bench.speed, core.bench.peers, core.planning.speed_model"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}; import {modules}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_file_map_names_what_is_there() -> None:
    architecture = (ROOT / "assets" / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = architecture.partition("## File map")[2].partition("\n## ")[0]
    for folder in (ROOT / "core", ROOT / "app"):
        for path in folder.iterdir():
            if path.name.startswith(("_", ".")):
                continue
            name = path.name if path.is_file() else f"{path.name}/"
            assert name in section, f"the file map lacks {path.relative_to(ROOT)}"
