"""`ask`: the very tokens of transformers, many questions with one reading, books kept on disk, pipes, Ctrl+C."""

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from app.cli import opening, reading
from app.cli.answering import stoppable
from app.cli.arguments import parse_arguments
from app.cli.command_options import question
from app.cli.output import ProgressLine
from app.cli.reading import STDIN, readable
from app.context.context_documents import digest_of
from app.documents.errors import DocumentTooLarge
from core.engine import Engine
from core.generation.events import PrefillProgress
from core.kv_store.engine_store import BookStore, Kept, Moving, ReadBook
from core.models.hub import catalog
from tests.app.cli.conftest import ROOT, Run
from tests.app.fakes import write_book
from tests.core.toys import tiny_engine, with_words

PDF = ROOT / "assets" / "books" / "harbour-8k.pdf"


# -------------------- what is written


def test_ask_and_race_write_what_transformers_writes(book: Path, run: Run) -> None:
    stock = AutoModelForCausalLM.from_pretrained(catalog.find(catalog.BUNDLED).target)
    common = (book, "-q", "Who kept the light?", "--context", 2048, "--no-saved", "--max-new-tokens", 12, "--json")
    answer = run("ask", *common, "--token-ids", "--method", "retrieval").answer
    ids = torch.tensor([answer["prompt_token_ids"]])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    wanted = cast(Any, stock).generate(ids, **options)[0, ids.shape[1] :].tolist()
    assert answer["token_ids"] == wanted
    race = run("race", *common, "--methods", "autoregressive,retrieval,lookup").json
    assert race["equality"] == {"verdict": "identical", "first_divergence": None}
    assert [lane["token_ids"] for lane in race["methods"].values()] == [wanted] * 3
    assert "prompt_token_ids" not in race and "prompt_token_ids" not in race["methods"]["lookup"]


# -------------------- many questions


def test_many_questions_are_answered_with_one_reading_as_each_is_alone(book: Path, tmp_path: Path, run: Run) -> None:
    sampling = ("--temperature", 0.8, "--method", "autoregressive")
    asked = ["Who kept the light?", "Where?", "What did Captain Reed say to the old keeper of the light, and when?"]
    questions, options = tmp_path / "q.json", ("--max-new-tokens", 12, *sampling, "--json")
    other = {"question": "Not of this book?", "book": "other.pdf"}
    questions.write_text(
        json.dumps([asked[0], {"question": asked[1]}, other, {"question": asked[2], "book": book.name}])
    )
    answers = run("ask", book, "--questions", questions, *options).json["answers"]
    assert [row["question"] for row in answers] == asked
    assert answers[0]["reused_tokens"] == 0 and {"text", "full_passes", "decode_seconds"} <= set(answers[0])
    assert answers[1]["prompt_tokens"] - answers[1]["reused_tokens"] < 20, "the book is not read again"
    for seed, row in enumerate(answers):
        alone = run("ask", book, "-q", row["question"], *options, "--seed", seed).answer
        assert row["token_ids"] == alone["token_ids"]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (None, "cannot be read"),
        *((text, "is no JSON list") for text in ("{", '{"question": "Who?"}', '[{"answer": "Martha"}]', "[" * 100_000)),
        ('[{"question": "Who?", "book": "other.pdf"}]', "has no question about these files"),
    ],
)
def test_a_file_without_questions_is_refused(written: str | None, problem: str, tmp_path: Path, run: Run) -> None:
    questions = tmp_path / "q.json"
    if written is not None:
        questions.write_text(written)
    assert f"error: q.json {problem}" in run("ask", PDF, "--questions", questions, code=2).error


def test_a_question_may_come_from_a_file_or_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "q.txt"
    file.write_bytes("\ufeffWho keeps\nthe light?\n".encode())
    assert question(f"@{file}") == "Who keeps\nthe light?" and question("@@home?") == "@home?"
    assert question("me@home?") == "me@home?"
    pipes_in(monkeypatch, "Où?\n".encode())
    assert parse_arguments(["ask", "a.pdf", "-q", "@-"]).question == "Où?"
    long = tmp_path / "long.txt"
    long.write_bytes(b"w" * (1 << 20) + b"?")
    file.write_bytes(b"Who \xff?")
    for name, told in (
        (file, "is not UTF-8 text (byte 4)"),
        (long, "longer than a question may be"),
        ("nowhere", "cannot be read"),
        ("a\0", "cannot be read"),
    ):
        with pytest.raises(SystemExit):
            parse_arguments(["ask", "a.pdf", "-q", f"@{name}"])
        assert told in capsys.readouterr().err


# -------------------- pipes


def pipes_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False))


def test_what_is_piped_in_is_a_document_of_any_format(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pipes_in(monkeypatch, PDF.read_bytes())
    (told,) = run("text", "-", "--pages", 2, "--json").json["files"]
    assert (told["name"], told["format"], told["pages"][0]["label"]) == ("stdin", "pdf", "2")
    pipes_in(monkeypatch, b"")
    assert "stdin is empty" in run("text", "-", code=1).error


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_a_named_pipe_is_read_once_and_a_file_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "letters"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"abc" * 10,))
    writer.start()
    with readable(pipe) as copy:
        assert copy != pipe and copy.name == "letters" and copy.read_bytes() == b"abc" * 10
    writer.join()
    assert not copy.exists()
    with readable(PDF) as same:
        assert same == PDF
    monkeypatch.setattr(reading, "MOST_BYTES", 8)
    pipes_in(monkeypatch, b"123456789")
    with pytest.raises(DocumentTooLarge), readable(STDIN):
        pass


# -------------------- where books are kept


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "load", lambda _: with_words(tiny_engine(context=2048, prefill_chunk=128)))


def test_after_a_restart_the_bundled_model_reads_no_token_of_the_book(run: Run, book: Path) -> None:
    asked = ("ask", book, "-q", "How was the night?", "--max-new-tokens", 12, "--context", 2048, "--json")
    first, second = run(*asked, "--saved"), run(*asked)  # each loads the model anew
    assert first.answer["token_ids"] == second.answer["token_ids"]
    before, after = first.json, second.json
    assert before["book_tokens_read"] == before["book_tokens"] > 200 and before["saved"]["kept"]
    assert after["book_tokens_read"] == 0 and after["saved"]["fetched_tokens"] == after["book_tokens"]
    assert after["prompt_tokens"] - after["reused_tokens"] < 30 and after["saved"]["kept"] is None
    (kept,) = run("saved", "--json").json["books"]
    assert kept["names"] == ["book.txt"] and kept["id"] == before["saved"]["kept"]
    assert {"weights", "config", "text", "dtype", "format"} <= set(kept["identity"])


@pytest.mark.usefixtures("toy")
def test_saved_lists_removes_and_makes_room(run: Run, tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt", "three.txt"):
        run(
            "ask", write_book(tmp_path, digest_of(name).hex() * 5, name), "-q", "Who?", "--max-new-tokens", 4, "--saved"
        )

    def names(*words: object, of: str = "removed") -> list[str]:
        return ["".join(book["names"]) for book in run("saved", *words, "--json").json[of]]

    assert names("list", of="books") == ["three.txt", "two.txt", "one.txt"]
    listed = run("saved", "--json").json
    assert listed["size_bytes"] == sum(book["size_bytes"] for book in listed["books"])
    assert names("remove", "two.txt") == ["two.txt"]
    assert names("cap", listed["books"][0]["size_bytes"] / 2**30 * 1.5) == ["one.txt"]
    assert "three.txt" in run("saved").out
    assert names("clear") == ["three.txt"] and names(of="books") == []


def test_a_data_folder_that_cannot_be_used_is_told_before_anything_is_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.opening.read_documents", lambda _: pytest.fail("too late"))
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "in" / "it"):
        error = run("ask", "a", "-q", "x", code=1, data_dir=folder).error
        assert "cannot be made and closed to others (" in error and "Choose another with --data-dir." in error
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written to" in run("chat", "a", code=1).error


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("home", ["file", None])
def test_without_a_usable_home_an_answer_comes_and_nothing_is_kept(
    home: str | None, run: Run, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")

    def nowhere() -> Path:
        if home is None:
            raise RuntimeError("Could not determine home directory.")
        return tmp_path / home

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr("core.kv_store.engine_store.WORTH_SECONDS", 0.0)
    asked = ("ask", book, "-q", "Who?", "--max-new-tokens", 4)
    ran = run(*asked, data_dir=None)
    assert ran.err.count("note: nothing is kept. ") == 1 and ran.out.endswith("\n")
    monkeypatch.setattr(reading, "extract_documents", lambda *given, **how: pytest.fail("too late"))
    run(*asked, "--saved", code=1, data_dir=None)


# -------------------- Ctrl+C


@pytest.mark.usefixtures("listens")
def test_the_first_ctrl_c_is_an_event_and_the_second_an_interruption() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stoppable() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("toy", "listens")
def test_a_reading_that_is_stopped_tells_what_it_has_read(
    book: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(ProgressLine):
        def show(self, step: PrefillProgress) -> None:
            if step.done_tokens == 128:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(opening, "ProgressLine", Interrupting)
    asked = ("ask", book, "-q", "Who?", "--no-saved")
    told = run(*asked, "--json", code=130)
    assert told.json["book_tokens_read"] == 128 < told.json["book_tokens"] and told.answer["new_tokens"] == 0
    ran = run(*asked, code=130)
    assert ran.err.endswith("\nStopped.\n") and "read" not in ran.err


@pytest.mark.usefixtures("toy", "listens")
def test_saving_is_stopped_too(book: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BookStore.keep

    def keep(store: BookStore, read: ReadBook) -> Generator[Moving | Kept]:
        signal.raise_signal(signal.SIGINT)
        yield from whole(store, read)

    monkeypatch.setattr(BookStore, "keep", keep)
    run("ask", book, "-q", "Who?", "--saved", code=130)
    assert not list(tmp_path.rglob("*.book.*"))


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_that_is_stopped_has_its_figures(as_json: bool, book: Path, tmp_path: Path, run: Run) -> None:
    (questions := tmp_path / "q.json").write_text('["Who kept the light at Gull Point?", "Where?"]')
    options = ("--max-new-tokens", 200, "--context", 2048, "--method", "autoregressive", "--no-saved")
    ran = run("ask", book, "--questions", questions, *options, *(["--json"] if as_json else []), code=130)
    if as_json:
        answers = ran.json["answers"]
        assert {told["stop_reason"] for told in answers} == {"cancelled"}
        assert all(1 <= told["new_tokens"] <= 2 for told in answers), "those that had begun"
    else:
        assert "Stopped.\n" in ran.err and " tokens/s" in ran.err and ran.out.endswith("\n")
