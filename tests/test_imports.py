"""The architecture as a test: imports point down, core stands alone, and the file map is the tree."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# From the top down: what stands later knows nothing of what stands before it.
LAYERS = {
    "app": [
        "cli", "server", "ui", "runtime", "conversations", "remote", "context", "documents", "document_formats",
        "private_files", "formats", "markdown",
    ],
    "core": [
        "triforce", "kv_store", "engine_api", "engine", "engine_builder", "engine_info",
        "generation", "parallel", "planning", "decoding", "models", "caches", "ops", "config", "files", "errors",
    ],
}  # fmt: skip
MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for package in LAYERS
    for file in sorted((ROOT / package).rglob("*.py"))
}

BROUGHT = {"numpy", "jinja2", "packaging", "tokenizers", "filelock"}  # by every version of torch and transformers
OPTIONAL = {"llguidance", "bitsandbytes", "flash_attn"}


def imports_of(source: str) -> set[str]:
    """The modules of ours that a source imports: within functions and for types alone, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name in MODULES}


@cache
def graph() -> dict[str, set[str]]:
    """Which modules each module imports."""
    return {name: imports_of(file.read_text(encoding="utf-8")) - {name} for name, file in MODULES.items()}


def layer_of(name: str) -> tuple[str, str]:
    package, _, rest = name.partition(".")
    return package, rest.partition(".")[0]


def points_up(name: str, other: str) -> bool:
    """Whether `name` may not import `other`."""
    (package, layer), (its_package, its_layer) = layer_of(name), layer_of(other)
    if not layer or not its_layer:
        return False  # core/__init__.py names what the package offers, and imports it when it is asked for
    if package != its_package:
        return package == "core"
    return LAYERS[package].index(layer) > LAYERS[package].index(its_layer)


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other in a circle: the strongly connected parts of more than one."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        seen, ahead = set[str](), [start]
        while ahead:
            for other in arrows[ahead.pop()] - seen:
                seen.add(other)
                ahead.append(other)
        reached[start] = seen
    parts = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in arrows if a in reached[a]}
    return [list(part) for part in sorted(parts)]


def test_imports_point_down_and_no_circle_has_more_than_one_folder() -> None:
    for package, layer in map(layer_of, MODULES):
        assert not layer or layer in LAYERS[package], f"{package}/{layer} has no place among the layers: give it one"
    wrong = [f"{name} may not import {other}" for name in MODULES for other in graph()[name] if points_up(name, other)]
    assert not wrong, wrong
    assert [part for part in circles(graph()) if len({name.rpartition(".")[0] for name in part}) > 1] == []


def test_an_import_that_points_up_would_be_seen() -> None:
    within = "def late():\n    from app.server import serve_page\n"
    for_types = "if TYPE_CHECKING:\n    from app.runtime.worker import EngineWorker\n"
    assert imports_of(within) == {"app.server.serve_page"} and points_up("app.ui.page", "app.server.serve_page")
    assert imports_of(for_types) == {"app.runtime.worker"} and points_up("app.context.uploads", "app.runtime.worker")
    assert points_up("core.engine", "app.formats") and not points_up("app.ui.page", "core.engine")
    ring = {"app.a.x": {"app.b.y"}, "app.b.y": {"app.a.z"}, "app.a.z": {"app.a.x"}, "app.c.w": {"app.a.x"}}
    assert circles(ring) == [["app.a.x", "app.a.z", "app.b.y"]]


OUTSIDE = re.compile(r"^\s*(?:from|import) (?:assets|tests)\b.*|[\"'](?:assets|tests)\.\w+\.\w+", re.M)


def test_launch_alone_hands_over_to_instruments() -> None:
    for file in MODULES.values():
        assert not OUTSIDE.findall(file.read_text(encoding="utf-8")), file
    launch = (ROOT / "launch.py").read_text(encoding="utf-8")
    assert OUTSIDE.findall(launch) == ["from assets.tools.commands import TOOLS"]


def test_core_names_no_package_of_the_app() -> None:
    asked_for = (ROOT / "requirements.txt").read_text(encoding="utf-8").replace("-", "_")
    for file in (ROOT / "core").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        named = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        named |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        packages = {name.partition(".")[0] for name in named} - set(sys.stdlib_module_names) - {"core"}
        unasked = {name for name in packages if not re.search(rf"^{name}\b", asked_for, re.M)}
        assert not unasked - BROUGHT - OPTIONAL and not packages & {"app", "gradio", "pypdf"}, file


# Before Python 3.11.5 a group that is repeated possessively matches wrongly (CPython issue 106052): a part that gives
# nothing back must be one class of signs.
POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{\d*,?\d*\})\+")


def test_no_group_of_a_regular_expression_is_possessive() -> None:
    assert len(MODULES) > 200
    for file in MODULES.values():
        assert not POSSESSIVE_GROUP.search(file.read_text(encoding="utf-8")), file
    assert all(map(POSSESSIVE_GROUP.search, ("(?:a|b)++", "(a)*+c", "(?:x)?+", "(?:ab){2,3}+")))


# Modules of ours that `ask` has imported when it ends. Lower it where you need fewer.
MOST_OF_ASK = 130
NOT_FOR_CORE = {"gradio", "pypdf", "bitsandbytes", "flash_attn"}
NOT_FOR_ASK = {"fastapi", "pypdfium2", "httpx", "matplotlib", "gguf", "llguidance"}


def test_ask_imports_little_besides_the_engine_and_core_none_of_the_app_s_packages() -> None:
    """In one program, as each start of torch takes seconds: what it may not import is not there for it."""
    code = f"import atexit, runpy, sys; sys.modules.update(dict.fromkeys({sorted(NOT_FOR_CORE)}))\n"
    code += "@atexit.register\ndef end():\n    print(*(name for name, there in sys.modules.items() if there))\n"
    code += "    import core.triforce, core.planning.forecast\n    print('imported')\n"
    code += "sys.argv = sys.argv[1:]; runpy.run_path('launch.py', run_name='__main__')"
    book = str(ROOT / "assets" / "books" / "harbour-8k.pdf")
    options = ["--pages=1", "--max-new-tokens=4", "--context=2048", "--device=cpu", "--no-saved", "--no-venv"]
    command = [sys.executable, "-c", code, "launch.py", "ask", book, "-q", "Who?", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("\nimported\n"), done.stderr
    names = set(done.stdout.splitlines()[-2].split())
    ours = {name for name in names if name.partition(".")[0] in LAYERS}
    assert "core.engine" in ours and len(ours) <= MOST_OF_ASK, sorted(ours)
    assert not names & NOT_FOR_ASK


def test_the_file_map_names_what_is_there() -> None:
    architecture = (ROOT / "assets" / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = architecture.partition("## File map")[2].partition("\n## ")[0]
    for folder in (ROOT / "core", ROOT / "app"):
        for path in folder.iterdir():
            if path.name.startswith(("_", ".")):
                continue
            name = path.name if path.is_file() else f"{path.name}/"
            assert name in section, f"the file map lacks {path.relative_to(ROOT)}"
