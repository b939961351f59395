"""`--thinking` of `ask`, `race` and `serve`, and bad models, on checkpoints that think: one line, one action."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.runtime.worker import EngineWorker
from app.server.openai.prompts import Prompts
from app.server.openai.request import ChatBody, parse
from app.server.serve_page import load as load_engine
from core.config import EngineConfig
from core.generation.text import ChatText
from core.generation.thinking import Tags
from tests.app.cli.conftest import Run
from tests.app.server.openai.servers import served
from tests.thinkers import ALWAYS, ANSWER, PLAIN, THOUGHT, save_thinker, tokenizer

openai = pytest.importorskip("openai")
THINKING, SAID = "".join(THOUGHT).strip(), "".join(ANSWER)
MESSAGES: Any = [{"role": "user", "content": "The book.\n\nWho keeps it?"}]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_thinker(tmp_path_factory.mktemp("models") / "thinker")


def test_ask_prints_the_thought_beside_the_answer(thinker: Path, book: Path, run: Run) -> None:
    asked = ("ask", book, "-q", "Who keeps it?", "--model", thinker, "--no-saved")
    ran = run(*asked)
    assert ran.out.strip() == SAID
    assert f"(Thought) {THINKING}" in ran.err and "12 tokens, 7 of them thought" in ran.err
    report = run(*asked, "--json").answer
    assert (report["text"], report["thought"]) == (SAID, THINKING)
    assert (report["thought_tokens"], report["answer_tokens"], report["new_tokens"]) == (7, 5, 12)
    ran = run(*asked, "--thinking", "off")
    assert ran.out.strip() == SAID and "Thought" not in ran.err


# -------------------- the server, and a program that uses it


def test_a_program_gets_the_thought_beside_the_answer_or_turns_it_off(
    thinker: Path, begin_worker: Callable[..., EngineWorker]
) -> None:
    def ask(messages: Any = MESSAGES, **wish: Any) -> Any:
        return client.chat.completions.create(model="thinker", messages=messages, temperature=0, **wish)

    config = EngineConfig(model=str(thinker), device="cpu", context=1024)
    with served(begin_worker(lambda: load_engine(config))) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        whole = ask()
        message = whole.choices[0].message
        assert (message.content, message.reasoning_content) == (SAID, THINKING)
        assert whole.usage.completion_tokens_details.reasoning_tokens == 7
        deltas = [part.choices[0].delta for part in ask(stream=True) if part.choices]
        assert "".join(delta.content or "" for delta in deltas) == SAID
        assert "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas) == THINKING
        more = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": "And?"}]
        cached = ask(more).usage.prompt_tokens_details.cached_tokens
        assert cached >= whole.usage.prompt_tokens - 2, "the next request has the tokens of the answer alone"
        off = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
        for wish in (off, {"reasoning_effort": "none"}, {"reasoning_effort": "minimal"}):
            told = ask(**wish)
            assert told.usage.completion_tokens_details.reasoning_tokens == 0, wish
            assert told.choices[0].message.content.strip() == SAID


def test_a_continued_message_is_an_answer_where_the_template_opens_a_thought() -> None:
    text = ChatText(tokenizer(ALWAYS), frozenset())
    assert isinstance(text.marks, Tags)
    asked = parse(ChatBody, {"model": "m", "messages": MESSAGES})
    begun = {"messages": [*MESSAGES, {"role": "assistant", "content": "The light"}], "continue_final_message": True}
    goes_on = parse(ChatBody, {"model": "m", "add_generation_prompt": False, **begun})
    prompt, continued = Prompts().of(asked, text), Prompts().of(goes_on, text)
    assert continued.ids == [*prompt.ids, text.marks.closing] and text.decode(continued.written) == "The light"


# -------------------- bad models


def test_bad_models_are_one_line_and_one_action(thinker: Path, book: Path, tmp_path: Path, run: Run) -> None:
    def without(file: str) -> Path:
        folder = Path(shutil.copytree(thinker, tmp_path / f"without {file}"))
        (folder / file).unlink()
        return folder

    base, plain = without("chat_template.jinja"), save_thinker(tmp_path / "plain", PLAIN)
    ask = ("ask", book, "-q", "Who?", "--no-saved", "--max-new-tokens", 2, "--model")
    for model, options, told in (
        (without("model.safetensors"), (), "incomplete: it lacks model.safetensors"),
        (tmp_path / "none.gguf", (), "There is no file"),
        (base, ("--thinking", "off"), "no switch for thinking"),
        (plain, ("--thinking", "on"), "no switch for thinking"),
    ):
        ran = run(*ask, model, *options, code=2 if options or "no file" in told else 1)
        assert told in ran.error and len(ran.err.strip().splitlines()) <= 2, ran.err
    race = run("race", book, "-q", "Who?", "--model", plain, "--thinking", "on", code=2)
    assert "Leave out --thinking" in race.error
    assert "Traceback" not in run(*ask, base).err, "a tokenizer without template asks plainly"
