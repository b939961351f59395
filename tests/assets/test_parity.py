"""The comparison with transformers: it finds what is equal equal, and sees a wrong text and a wrong engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assets.tools import parity
from core.models import weights
from core.models.hub.catalog import ROOT

MODEL = ROOT / "assets" / "models" / "harbour-draft"
TEXTS = [ROOT / "assets" / "books" / name for name in ("harbour-32k.txt", "harbour-8k.pdf")]
LENGTH, NEW = 200, 16


@pytest.fixture(scope="module")
def written() -> list[parity.Written]:
    return parity.ours(MODEL, TEXTS, LENGTH, NEW, 32)


def rows(written: list[parity.Written]) -> list[dict[str, Any]]:
    return [parity.row_of(*found) for found in zip(written, parity.theirs(MODEL, written), strict=True)]


def test_the_same_weights_write_the_same_text(written: list[parity.Written]) -> None:
    assert [one.document for one in written] == [file.name for file in TEXTS]
    for one, row in zip(written, rows(written), strict=True):
        assert len(one.prompt) > LENGTH and len(one.tokens) == row["new_tokens"] == NEW
        assert [max(top, key=top.__getitem__) for top in one.top] == one.tokens and {*map(len, one.top)} == {20}
        assert row["verdict"] == parity.IDENTICAL and 0 < row["most_apart"] < 2e-3


def test_a_wrong_token_is_named_with_its_place_and_rank(written: list[parity.Written]) -> None:
    one = written[0]
    second = sorted(one.top[5], key=one.top[5].__getitem__)[-2]
    wrong = replace(one, tokens=[*one.tokens[:5], second, *one.tokens[6:]])
    (row,) = rows([wrong])
    assert (row["verdict"], row["first_difference"], row["rank"]) == (parity.DIFFERENT, 5, 2)
    assert (row["token"], row["their_token"]) == (second, one.tokens[5]) and row["places_that_differ"] >= 1
    apart = one.top[5][one.tokens[5]] - one.top[5][second]
    assert row["below"] == pytest.approx(row["gap"]) == pytest.approx(apart, abs=2e-3)
    assert f"different at 5: rank 2, {row['below']:.2g} below" in parity.line_of(row | {"model": "m"})
    (tie,) = rows([replace(wrong, near_tie=row["gap"] * 1.01)])
    assert tie["verdict"] == parity.NEAR_TIE


def test_an_engine_that_is_a_little_wrong_is_seen(
    written: list[parity.Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = weights.load_module

    def scaled(*args: Any, **options: Any) -> Any:
        model = load(*args, **options)
        model.model.layers[0].self_attn.q_proj.weight.data *= 1.02
        return model

    monkeypatch.setattr(weights, "load_module", scaled)
    (row,) = rows(parity.ours(MODEL, TEXTS[:1], LENGTH, NEW, 32))
    assert row["most_apart"] > 20 * rows(written)[0]["most_apart"]


@pytest.mark.parametrize(
    ("model", "length", "told"),
    [
        (MODEL, "90000", "harbour-8k.pdf has 7,835 tokens, fewer than 90,000"),
        (Path("nowhere.gguf"), "100", "nowhere.gguf"),
    ],
)
def test_what_cannot_be_compared_is_told_in_a_line(
    model: Path, length: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity.main([str(model), "--texts", str(TEXTS[1]), "--lengths", length]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error:") and told in line


@pytest.mark.slow
def test_a_gguf_file_is_compared_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    from tests.ggufs import write_pair

    file, _ = write_pair(tmp_path, "llama", "F16")  # rows are rounded for blocks, and texts may differ
    kept = tmp_path / "kept.json"
    command = [str(file), "--texts", str(TEXTS[0]), "--lengths", "600", "--new", "40", "--json", str(kept)]
    for _ in range(2):
        assert parity.main(command) == 0 and capsys.readouterr().out.count("identical") == 1
        file.unlink(missing_ok=True)  # the second run asks the file of --json alone
