"""`--thinking` of `ask`, `race` and `serve`, and bad models, on checkpoints that think: one line, one action."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import launch as launcher
from app.cli.serve import loaded
from app.runtime.worker import EngineWorker
from app.server.openai.prompts import Prompts
from app.server.openai.request import ChatBody, parse
from app.server.serve_page import load as load_engine
from core.config import EngineConfig
from core.generation.text import ChatText
from core.generation.thinking import Tags
from tests.app.fakes import write_book
from tests.app.server.openai.servers import served
from tests.thinkers import ALWAYS, ANSWER, PLAIN, THOUGHT, save_thinker, tokenizer

openai = pytest.importorskip("openai")
THINKING, SAID = "".join(THOUGHT).strip(), "".join(ANSWER)
MESSAGES: Any = [{"role": "user", "content": "The book.\n\nWho keeps it?"}]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_thinker(tmp_path_factory.mktemp("models") / "thinker")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write_book(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def command(*words: object) -> tuple[int, str, str]:
        code = launcher.main([*map(str, words), "--no-venv"])
        return code, *capsys.readouterr()

    return command


def test_ask_prints_the_thought_beside_the_answer(thinker: Path, book: Path, run: Callable[..., Any]) -> None:
    asked = ("ask", book, "-q", "Who keeps it?", "--model", thinker, "--no-saved")
    code, out, err = run(*asked)
    assert (code, out.strip()) == (0, SAID)
    assert f"(Thought) {THINKING}" in err and "12 tokens, 7 of them thought" in err
    _, out, _ = run(*asked, "--json")
    report = next(iter(json.loads(out.splitlines()[-1])["methods"].values()))
    assert (report["text"], report["thought"]) == (SAID, THINKING)
    assert (report["thought_tokens"], report["answer_tokens"], report["new_tokens"]) == (7, 5, 12)
    _, out, err = run(*asked, "--thinking", "off")
    assert out.strip() == SAID and "Thought" not in err


@pytest.mark.parametrize("command", ["ask", "race"])
def test_a_template_without_the_switch_is_refused_in_one_line(
    tmp_path: Path, book: Path, run: Callable[..., Any], command: str
) -> None:
    plain = save_thinker(tmp_path / "plain", PLAIN)
    code, out, err = run(command, book, "-q", "Who?", "--model", plain, "--thinking", "on")
    assert (code, out) == (2, "")
    assert "no switch for thinking" in err and "Leave out --thinking" in err and "Traceback" not in err


# -------------------- the server, and a program that uses it


@pytest.fixture(scope="module")
def served_worker(thinker: Path) -> Iterator[EngineWorker]:
    worker = EngineWorker(lambda: load_engine(EngineConfig(model=str(thinker), device="cpu", context=1024)))
    worker.start()
    loaded(worker)
    yield worker
    worker.close()


@pytest.fixture
def client(served_worker: EngineWorker) -> Iterator[Any]:
    with served(served_worker) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_the_server_gives_the_thought_beside_the_answer(client: Any) -> None:
    whole = client.chat.completions.create(model="thinker", messages=MESSAGES, temperature=0)
    message = whole.choices[0].message
    assert (message.content, message.reasoning_content) == (SAID, THINKING)
    assert whole.usage.completion_tokens_details.reasoning_tokens == 7
    parts = list(client.chat.completions.create(model="thinker", messages=MESSAGES, temperature=0, stream=True))
    deltas = [part.choices[0].delta for part in parts if part.choices]
    assert "".join(delta.content or "" for delta in deltas) == SAID
    assert "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas) == THINKING


def test_the_next_request_has_the_tokens_of_the_answer_alone(client: Any) -> None:
    first = client.chat.completions.create(model="thinker", messages=MESSAGES, temperature=0)
    said = {"role": "assistant", "content": first.choices[0].message.content}
    more = [*MESSAGES, said, {"role": "user", "content": "And?"}]
    second = client.chat.completions.create(model="thinker", messages=more, temperature=0)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 2


@pytest.mark.parametrize(
    "wish",
    [
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"reasoning_effort": "none"},
        {"reasoning_effort": "minimal"},
    ],
)
def test_requests_can_turn_thinking_off(client: Any, wish: dict[str, Any]) -> None:
    told = client.chat.completions.create(model="thinker", messages=MESSAGES, temperature=0, **wish)
    assert told.usage.completion_tokens_details.reasoning_tokens == 0
    assert told.choices[0].message.content.strip() == SAID


def test_a_continued_message_is_an_answer_where_the_template_opens_a_thought() -> None:
    text = ChatText(tokenizer(ALWAYS), frozenset())
    assert isinstance(text.marks, Tags)
    asked = parse(ChatBody, {"model": "m", "messages": MESSAGES})
    begun = {"messages": [*MESSAGES, {"role": "assistant", "content": "The light"}], "continue_final_message": True}
    goes_on = parse(ChatBody, {"model": "m", "add_generation_prompt": False, **begun})
    prompt, continued = Prompts().of(asked, text), Prompts().of(goes_on, text)
    assert continued.ids == [*prompt.ids, text.marks.closing] and text.decode(continued.written) == "The light"


# -------------------- bad input


def test_bad_models_are_one_line_and_one_action(
    thinker: Path, book: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    def changed(name: str, **fields: Any) -> Path:
        folder = Path(shutil.copytree(thinker, tmp_path / name))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))
        return folder

    half = changed("half")
    (half / "model.safetensors").unlink()
    unknown = changed("unknown", model_type="mammothmoth")
    windowed = changed("windowed", sliding_window=128)
    latent = changed("latent", kv_lora_rank=16)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    for model, options, told in (
        (half, (), "incomplete: it lacks model.safetensors"),
        (unknown, (), "'mammothmoth', which transformers does not know"),
        (windowed, (), "a window of 128 tokens"),
        (latent, (), "latent attention"),
        (other, (), "damaged"),
        (tmp_path / "none.gguf", (), "There is no file"),
        (thinker, ("--context", "100000"), "8,192"),
    ):
        code, out, err = run("ask", book, "-q", "Who?", "--model", model, *options)
        assert (code, out) == (2 if options or "no file" in told else 1, ""), model
        assert told in err and "Traceback" not in err and len(err.strip().splitlines()) <= 2, err


def test_a_tokenizer_without_template_asks_plainly(thinker: Path, book: Path, tmp_path: Path, run: Any) -> None:
    folder = Path(shutil.copytree(thinker, tmp_path / "base"))
    (folder / "chat_template.jinja").unlink()
    code, _, err = run("ask", book, "-q", "Who?", "--model", folder, "--no-saved", "--max-new-tokens", "2")
    assert code == 0 and "Traceback" not in err
    code, _, err = run("ask", book, "-q", "Who?", "--model", folder, "--thinking", "off")
    assert code == 2 and "no switch for thinking" in err
