"""The commands on saved checkpoints: windows, sinks, experts, recurrent layers. The texts are transformers' own."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer

import launch as launcher
from core.models.hf_attention import ATTENTION_NAME
from tests.app.fakes import write_book
from tests.core.models.tiny_families import tiny_family, twin_models

BUNDLED = Path("assets/models/harbour-target")  # its tokenizer
WRITTEN = 12


def checkpoint(family: str, folder: Path) -> nn.Module:
    """Save a tiny random model with a tokenizer; transformers' own model of it."""
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    ends = tokenizer.eos_token_id
    stock, _ = twin_models(tiny_family(family, vocab_size=len(tokenizer), eos_token_id=ends), ATTENTION_NAME)
    cast(Any, stock).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    cast(Any, stock).generation_config.eos_token_id = ends
    return stock


def text_of(stock: nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": WRITTEN, "do_sample": False}
    return cast("list[int]", cast(Any, stock).generate(ids, **options)[0].tolist()[len(prompt) :])


@pytest.mark.parametrize(
    "family",
    ["gemma3_text", "gpt_oss", "qwen3_next"]
    + [pytest.param(family, marks=pytest.mark.slow) for family in ("phi3", "qwen3_moe", "falcon_h1")],
)
def test_ask_and_race_write_what_transformers_writes(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stock, book = checkpoint(family, tmp_path / "model"), write_book(tmp_path)
    common = ["--model", str(tmp_path / "model"), "--draft", "none", "--context", "2048", "--no-saved", "--offline"]
    common += ["-q", "How was the night?", "--max-new-tokens", str(WRITTEN), "--json", "--no-venv"]

    def run(*options: str) -> dict[str, Any]:
        assert launcher.main([*options[:1], str(book), *common, *options[1:]]) == 0
        return cast("dict[str, Any]", json.loads(capsys.readouterr().out))

    asked = run("ask", "--token-ids", "--method", "retrieval")
    answer = asked["methods"]["retrieval"]
    wanted = text_of(stock, answer["prompt_token_ids"])
    assert answer["token_ids"] == wanted
    race = run("race", "--methods", "autoregressive,retrieval,lookup")
    assert race["equality"] == {"verdict": "identical", "first_divergence": None}
    assert [lane["token_ids"] for lane in race["methods"].values()] == [wanted] * 3
