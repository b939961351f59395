"""Every example of assets/docs/python.md runs, with the bundled model for those that are not here."""

import re
from pathlib import Path

import pytest

from core.caches import policies
from core.models.hub.catalog import find

PAGE = (Path(__file__).parents[2] / "assets" / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([^\n]+)$.*?```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL))
PRINTED = {
    "A model of the hub": "max_new_tokens|end_of_text",
    "A local folder": "lookup|retrieval|autoregressive",
    "A model in memory": r"\w",
    "A selection policy of your own": r"0\.\d|1\.0|None",
    "Reading events": r"read \d+ of \d+[\s\S]*tokens per full pass",
    "Keeping a text that was read": r"(\d{3,}) tokens from disk\n\d{3,} not read again",
    "Sampling with seeds": r"\[.*\]",
}


def test_every_wish_has_its_example() -> None:
    assert list(EXAMPLES) == list(PRINTED) and PAGE.count("```python") == len(PRINTED)
    assert max(len(line) for line in PAGE.splitlines() if not line.startswith("#")) <= 135


@pytest.mark.parametrize("title", PRINTED)
def test_an_example_runs(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(policies, "SELECTION_POLICIES", dict(policies.SELECTION_POLICIES))
    code = EXAMPLES[title].replace("Qwen/Qwen3-8B", "harbour").replace("/models/my-llama", str(find("harbour").target))
    exec(compile(code, title, "exec"), {"__name__": "example"})
    assert re.search(PRINTED[title], capsys.readouterr().out), title
