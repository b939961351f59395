"""launch.py bench: the document of each suite, its picture, an interrupt that keeps what was measured, refusals."""

import gc
import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import launch as launcher
from assets.tools.bench import ablation, kernels, plot, speed
from assets.tools.bench import command as bench
from assets.tools.bench.ablation import SHIPPED, VARIANTS, Ablation
from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.page import Stopwatch, measure, served
from assets.tools.bench.report import table_line
from assets.tools.books.generated import Book
from core.config import EngineConfig
from core.engine import Engine
from core.errors import InvalidSetting
from core.models.hub.catalog import ROOT
from core.ops.kernel_build import NoKernel
from tests.app.fakes import GRADIO_WARNINGS
from tests.core.toys import tiny_engine, with_words

pytestmark = GRADIO_WARNINGS
LEFT_BY_OTHERS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it collects that
BEGINNINGS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def recorded(name: str) -> Any:
    return json.loads((ROOT / f"assets/results/{name}-2core-cpu.json").read_text(encoding="utf-8"))


def has_all_fields(name: str, row: Any) -> bool:
    """Programs read what earlier documents had."""
    return bool(row.keys() >= recorded(name)["rows"][0].keys())


def document_of(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[Any, str]:
    """What a suite prints, and what it tells people, of texts of 6 tokens behind 768."""
    short = ["--contexts", "768", "--repeats", "1", "--max-new-tokens", "6", "--device", "cpu", "--json", "--no-venv"]
    assert launcher.main(["bench", *short, *options]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


# -------------------- what suites measure


def test_speed_reads_several_books_and_gives_their_median(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, write = list[int](), speed.write_book

    def written(seed: int, words: int) -> Book:
        seeds.append(seed)
        return write(seed, words)

    monkeypatch.setattr(speed, "write_book", written)
    document, told = document_of(capsys, "--methods", "retrieval", "--books", "3")
    for now, before in ((document, recorded("speed")), (document["config"], recorded("speed")["config"])):
        assert now.keys() == before.keys()
    plain, ours = document["rows"]
    assert (plain["method"], ours["method"], ours["books"]) == ("autoregressive", "retrieval", 3)
    assert plain["speedup_by_book"] == [1.0, 1.0, 1.0] and has_all_fields("speed", plain)
    assert ours["speedup_vs_autoregressive"] == statistics.median(ours["speedup_by_book"])
    by_book = zip(plain["ms_per_token_by_book"], ours["ms_per_token_by_book"], strict=True)
    assert ours["speedup_by_book"] == pytest.approx([slow / fast for slow, fast in by_book])
    assert len(set(seeds)) == 3, "three books"
    assert ours["new_tokens"] == plain["new_tokens"] and ours["identical_to_autoregressive"] is True
    assert f"{ours['speedup_by_book'][0]:.2f} {ours['speedup_by_book'][1]:.2f}" in told


@pytest.mark.slow
def test_a_batch_is_measured_with_a_book_for_each_and_with_one_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    rows = document_of(capsys, "--methods", "triforce", "--batch", "3")[0]["rows"]
    assert [(row["text"], row["method"]) for row in rows] == [
        (text, method) for text in ("own", "shared") for method in ("autoregressive", "triforce")
    ]
    for row in rows:
        assert row["new_tokens"] == 18 and row["identical_to_alone"] is True and has_all_fields("batch", row)
        assert row["ms_per_token_each"] == pytest.approx(3 * row["ms_per_token"])


@pytest.mark.slow
@LEFT_BY_OTHERS
def test_all_placements_write_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--suite", "offload", "--budget", "256", "--gpu-memory", "2", "--plot", str(tmp_path / "F.svg")]
    document, told = document_of(capsys, *options)
    rows = document["rows"]
    assert [(row["placement"], row["method"]) for row in rows] == [
        (placement, method)
        for placement in ("resident", "split", "offloaded")
        for method in ("autoregressive", "triforce")
    ]
    assert all(row["identical_to_first"] and row["new_tokens"] == 6 for row in rows)
    assert {row["placement"]: row["resident_layers"] for row in rows}["offloaded"] == 0
    assert {row["placement"] for row in rows if row["link_bytes"] > 0} == {"split", "offloaded"}
    assert "offloaded" in (tmp_path / "F.svg").read_text(encoding="utf-8") and "F.svg" in told


def test_kernels_are_measured_without_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise NoKernel("no C++ compiler (g++) on this machine")

    monkeypatch.setattr(kernels, "small_rows", missing)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    document, told = document_of(capsys, "--suite", "kernels", "--contexts", "16,32")
    assert {row["context"] for row in document["rows"]} == {16, 32} and document["config"]["kernel"] is False
    assert document["config"]["clock"] == "thread_time", "of one thread the processor's time"
    assert "no C++ compiler" in told and has_all_fields("kernels", document["rows"][0])


@pytest.mark.slow
@LEFT_BY_OTHERS
def test_variants_are_measured_one_by_one_and_not_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("fixed, 2 and 8", "256", "the attention to come")
    broken = ablation.Variant("local window", "2000", retrieval={"local_window": 2000})
    chosen = [variant for variant in VARIANTS if variant.part == SHIPPED or variant.name in names]
    monkeypatch.setattr(ablation, "VARIANTS", (*chosen, broken))
    said: list[str] = []
    measured = Ablation(EngineConfig(device="cpu"), 768 + 12)
    shape = {"books": 1, "repeats": 1, "max_new_tokens": 12, "seed": 900_000, "progress": said.append}
    rows = list(measured.rows((768,), **shape, checkpoint=Checkpoint(tmp_path / "kept", {})))
    plain, *others = rows
    told = [(row["part"], row["variant"], row["ms_per_token"] is None) for row in others]
    assert told == [
        ("as shipped", "", False),
        ("rounds", "fixed, 2 and 8", False),
        ("budget", "256", False),
        ("chosen by", "the attention to come", True),  # an oracle's times mean nothing
    ]
    assert all(row["identical_to_autoregressive"] and has_all_fields("ablation", row) for row in others)
    assert plain["part"] == "autoregressive" and plain["speedup_vs_autoregressive"] == 1.0
    assert others[1]["acceptance_level2"] is not None, "rounds of a fixed shape guess"
    assert said == ["Not measured: local window 2000. It does not go with the other settings."]
    monkeypatch.setattr(measured, "_measure", lambda *_, **__: pytest.fail("it was measured"))
    assert list(measured.rows((768,), **shape, checkpoint=Checkpoint(tmp_path / "kept", {}))) == rows
    monkeypatch.undo()
    counted = list(measured.rows((768,), **shape, counted=True, parts=["published plus"]))
    assert len(counted) == 5 and {row["ms_per_token"] for row in counted} == {None}
    assert [row["variant"] for row in counted if row["acceptance_level2"] is not None] and "fixed rounds" in said[-1]
    with pytest.raises(InvalidSetting, match="no part 'magic'"):
        list(measured.rows((768,), **shape, parts=["magic"]))


@pytest.mark.slow
@pytest.mark.browser
def test_the_same_answer_alone_and_through_the_page() -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    environment = dict(os.environ)
    watch = Stopwatch(with_words(tiny_engine(context=2048)), 24)
    with served(watch) as page:
        folder = page.folder
        page.open_book("It was a dark and stormy night. " * 8, "book.txt")
        row = measure(page, 512, "triforce", "How was the night?", 1)
    del page
    gc.collect()  # Gradio leaves event loops lying about; better collected here than in an innocent test
    assert row["same_tokens"] and row["new_tokens"] == 24 and has_all_fields("page", row)
    assert row["page_over_alone_range"][0] <= row["page_over_alone"] <= row["page_over_alone_range"][1]
    assert len(watch.runs) == 4 and len({run.prompt_ids for run in watch.runs}) == 1, "one prompt for all"
    assert dict(os.environ) == environment and not folder.exists(), "nothing stays"
    assert "page/alone" in table_line(row, header=True)


# -------------------- what was measured is kept


ROW = {"context": 8192, "method": "triforce", "exact_interval": None, "ms_per_token": 12.5}


def test_ctrl_c_and_a_full_disk_keep_what_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted() -> Iterator[dict[str, Any]]:
        yield ROW
        raise KeyboardInterrupt

    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench, "start_suite", lambda args, engine: ({}, interrupted()))
    for options, code, told in (([], 130, "Interrupted"), (["--plot", str(tmp_path / "F.svg")], 1, "No space left")):
        monkeypatch.setattr(Path, "write_bytes", full)
        assert launcher.main(["bench", "--suite", "recall", "--json", "--no-venv", *options]) == code
        captured = capsys.readouterr()
        document = json.loads(captured.out)
        assert document["complete"] is False and document["rows"] == [ROW]
        assert told in captured.err


def test_a_checkpoint_gives_back_what_was_written_to_its_end_and_refuses_other_files(tmp_path: Path) -> None:
    file, text, settings = tmp_path / "a.jsonl", tmp_path / "text", {"seed": 1, "lengths": (1, 2)}
    Checkpoint(file, settings).put("x", {"ms": 1.5})
    with file.open("a", encoding="utf-8") as half:
        half.write('{"key": "y", "res')
    again = Checkpoint(file, settings)
    assert again.get("x") == {"ms": 1.5} and again.get("y") is None
    again.put("z", 3)
    assert Checkpoint(file, settings).get("z") == 3
    text.write_text("words\n", encoding="utf-8")
    for wrong, told in (
        (file, "other settings"),
        (text, "cannot be used"),
        (tmp_path / "none" / "a", "cannot be used"),
    ):
        with pytest.raises(InvalidSetting, match=told):
            Checkpoint(wrong, {"seed": 2})
    assert text.read_text(encoding="utf-8") == "words\n"
    memory = Checkpoint(None, {})
    memory.put("x", 1)
    assert memory.get("x") == 1


# -------------------- pictures


@pytest.mark.parametrize(
    ("name", "ending", "words"),
    [
        ("peers", ".svg", "OpenVINO f16 KV, plain"),
        ("recall", ".pdf", "95% intervals"),
        ("ablation-counts-8k", ".PNG", "tokens per full pass"),
    ],
)
def test_a_document_becomes_a_picture_of_its_figures(
    name: str, ending: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, path = recorded(name), tmp_path / f"{name}{ending}"
    plot.keep(document, path)
    assert path.read_bytes().startswith(BEGINNINGS[ending.lower()])
    assert capsys.readouterr().err == f"The picture is in {path}.\n"
    figure = plot.draw(document)
    shown = [
        text.get_text() for axes in figure.axes for text in (*axes.texts, *axes.get_yticklabels(), axes.xaxis.label)
    ]
    assert any(words in text for text in [*shown, *plot.text_lines(document)])
    bars = [bar for panel in plot.panels_of(document, plot.figure_of(document)).values() for bar in panel]
    assert sum(len(axes.patches) for axes in figure.axes) == len(bars) > 0
    assert all(bar.spread[0] - 1e-9 <= bar.value <= bar.spread[1] + 1e-9 for bar in bars)


# -------------------- refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--questions 0", "one question"),
        ("--skills fact,magic", "no skill 'magic'"),
        ("--max-new-tokens 9", "Leave out --max-new-tokens"),
        ("--methods magic", "no method 'magic'"),
        ("--batch 6", "--batch"),
        ("--suite kernels --plot F.png", "not drawn"),
        ("--suite ablation --methods lookup", "Leave out --methods"),
        ("--suite peers --model widened:llama2-7b", "--suite speed"),
        ("--suite offload --placements moon", "no placement 'moon'"),
        ("--plot F.jpg", "End it in .png, .svg, .pdf."),
        ("--plot nowhere/F.png", "There is no folder"),
        ("--contexts 1024 --context 1024", "at 1,024 tokens"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_a_model_is_loaded(
    options: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if "context" not in options:  # how long one may be is the model's
        monkeypatch.setattr(Engine, "load", lambda *_: pytest.fail("it went on"))
    code = launcher.main(["bench", "--suite", "recall", *options.split(), "--no-venv"])
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert captured.err.startswith("error:") and words in captured.err and captured.err.count("\n") == 1
