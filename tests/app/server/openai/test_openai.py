"""The `openai` client and others against a real server on the bundled pair; a short text, temperature 0."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from app.runtime.saved_books import SavedBooks
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from core.decoding.registry import FASTEST
from core.engine import Engine
from core.generation.session import Conversation
from core.models.hub import catalog
from core.models.loader import load_tokenizer
from tests.app.fakes import free_port, wait_for
from tests.app.server.openai.servers import served
from tests.core.toys import tiny_engine, with_words

TOKENIZER = load_tokenizer(catalog.find("harbour").target)
ROOT = Path(__file__).parents[4]
BOOK = "Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. Arthur Nash mended nets there. " * 12
QUESTION = "Who kept the light?"
PLAIN: dict[str, Any] = {"extra_body": {"triforce": {"method": "autoregressive"}}}


@pytest.fixture(scope="module")
def client(bundled_worker: EngineWorker) -> Iterator[openai.OpenAI]:
    with served(bundled_worker, key="a key") as url, client_of(url) as one:
        yield one


def client_of(url: str) -> openai.OpenAI:
    http = httpx2.Client(verify=False, trust_env=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="a key", http_client=http, max_retries=0)


def asked(question: str = QUESTION, book: str = BOOK) -> list[Any]:
    return [{"role": "user", "content": f"{book}\n\n{question}"}]


def ask(client: openai.OpenAI, messages: list[Any] | None = None, **fields: Any) -> Any:
    fields = {"model": client.models.list().data[0].id, "max_tokens": 24, "temperature": 0, **fields}
    return client.chat.completions.create(messages=messages or asked(), **fields)


def text_of(reply: Any) -> str:
    """What a reply says, streamed or whole."""
    if hasattr(reply, "choices"):
        return str(reply.choices[0].message.content)
    return "".join(part.choices[0].delta.content or "" for part in reply if part.choices)


def read_of(reply: Any) -> int:
    """How many tokens of the prompt were read for it."""
    read: int = reply.usage.prompt_tokens - reply.usage.prompt_tokens_details.cached_tokens
    return read


def ours(part: Any) -> dict[str, Any]:
    return dict(part.model_extra["triforce"])


def written(worker: EngineWorker, prompt: Callable[[Any], list[int]], num_tokens: int) -> tuple[Any, list[int]]:
    """What the engine writes by itself behind a prompt, and the prompt."""
    found: list[Any] = []

    def work(engine: Engine, _cancel: Any) -> Iterator[Any]:
        ids = prompt(engine.text)
        found.append(ids)
        yield from engine.generate(ids, GenerationConfig(max_new_tokens=num_tokens))

    *_, finished = worker.borrow(worker.sessions.enter("").id, work)
    return finished, found[0]


def test_the_text_is_what_the_engine_writes_by_itself(client: openai.OpenAI, bundled_worker: EngineWorker) -> None:
    def prompt(text: Any) -> list[int]:
        return Conversation(tuple(text.encode(BOOK))).ask(QUESTION).prompt_ids(text)

    finished, _ = written(bundled_worker, prompt, 24)
    fast, plain = ask(client), ask(client, **PLAIN)
    assert text_of(fast) == text_of(plain) == finished.text
    assert fast.usage.prompt_tokens == finished.prompt_tokens
    assert fast.usage.completion_tokens == finished.stats.new_tokens
    assert ours(plain)["method"] == "autoregressive" and ours(plain)["tokens_per_full_pass"] == 1
    assert ours(fast)["method"] == FASTEST and set(ours(fast)["acceptance"]) == {"level1", "level2"}
    assert ours(fast)["exact"] and ours(fast)["time_to_first_token_seconds"] > 0


def test_the_book_is_read_once_over_several_requests(client: openai.OpenAI) -> None:
    books = [BOOK.replace("Gull", name) for name in ("Fern", "Heron")]
    seen: list[list[int]] = [[], []]
    for question in (QUESTION, "Where did Arthur Nash mend nets, and what for?", "Who mended nets?"):
        for number, book in enumerate(books):
            reply = ask(client, asked(question, book))
            ask(client, asked("Hello?", "A short text."))
            seen[number].append(read_of(reply))
            assert text_of(ask(client, asked(question, book), **PLAIN)) == text_of(reply)
    for first, *others in seen:
        assert first > 200 and max(others) < 30, "read once, whatever was asked between the questions"


def test_a_conversation_goes_on_from_the_very_tokens_of_its_answer(client: openai.OpenAI) -> None:
    first = ask(client)
    answer = {"role": "assistant", "content": text_of(first)}
    second = ask(client, [*asked(), answer, {"role": "user", "content": "Where?"}])
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens and read_of(second) < 16


def test_a_stream_says_the_same_as_a_whole_answer_or_as_several(client: openai.OpenAI) -> None:
    whole = ask(client)
    parts = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert parts[0].choices[0].delta.role == "assistant" and text_of(parts) == text_of(whole)
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert ours(parts[-2])["acceptance"].keys() == ours(whole)["acceptance"].keys()  # rounds go by measured costs
    assert all(part.choices and part.usage is None for part in ask(client, stream=True))
    fields: Any = {"n": 2, "temperature": 1.2, "seed": 3, **PLAIN}
    whole, parts = ask(client, **fields), list(ask(client, stream=True, **fields))
    for index in range(2):
        told = [choice.delta for part in parts for choice in part.choices if choice.index == index]
        assert [one.role for one in told] == ["assistant"] + [None] * (len(told) - 1)
        assert "".join(one.content or "" for one in told) == whole.choices[index].message.content


def test_a_seed_repeats_an_answer_and_none_does_not(client: openai.OpenAI) -> None:
    plain = {**PLAIN, "temperature": 1.5, "max_tokens": 16}
    one, two, other = (ask(client, seed=seed, **plain) for seed in (7, 7, 8))
    assert text_of(one) == text_of(two) != text_of(other)
    drawn = ask(client, **plain)
    assert text_of(ask(client, seed=ours(drawn)["seed"], **plain)) == text_of(drawn), "the seed is told"


def test_an_answer_ends_at_its_limits_and_can_be_continued(client: openai.OpenAI) -> None:
    whole = text_of(ask(client))
    word = whole.split()[2]
    stopped = ask(client, stop=[word])
    assert text_of(stopped) == whole[: whole.index(word)] and stopped.choices[0].finish_reason == "stop"
    short = ask(client, max_completion_tokens=3, max_tokens=openai.omit)
    assert short.usage.completion_tokens == 3 and short.choices[0].finish_reason == "length"
    messages = [*asked(), {"role": "assistant", "content": text_of(short)}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    for stream in (False, True):
        stop = ["no such words", word]  # the beginning holds it, which was no reason to stop
        rest = text_of(ask(client, messages, extra_body=extra, stream=stream, stop=stop))
        assert text_of(short) + rest == whole


def test_log_probabilities_are_told_for_every_token(client: openai.OpenAI) -> None:
    for fields in ({}, {"temperature": 1.2, "seed": 3, **PLAIN}):
        reply = ask(client, logprobs=True, top_logprobs=2, **fields)
        content = reply.choices[0].logprobs.content
        assert "".join(one.token for one in content) == text_of(reply)
        assert all(bytes(one.bytes or []) == one.token.encode() for one in content)
        assert all(len(one.top_logprobs) == 2 and one.top_logprobs[0].logprob >= one.logprob for one in content)
    slow = ask(client, logprobs=True, **PLAIN).choices[0].logprobs.content
    fast = ask(client, logprobs=True).choices[0].logprobs.content
    assert [one.logprob for one in fast] == pytest.approx([one.logprob for one in slow], abs=1e-3)
    assert all(one.top_logprobs == [] for one in fast)
    parts = [part.choices[0] for part in ask(client, logprobs=True, stream=True)]
    assert [one.token for part in parts if part.logprobs for one in part.logprobs.content] == [
        one.token for one in fast
    ]


def test_a_text_goes_on_without_a_chat_template_and_is_counted(
    client: openai.OpenAI, bundled_worker: EngineWorker
) -> None:
    finished, ids = written(bundled_worker, lambda text: [*text.beginning, *text.encode(BOOK)], 9)
    fields: Any = {"model": "harbour", "max_tokens": 9, "temperature": 0}
    reply = client.completions.create(prompt=BOOK, logprobs=2, **fields)
    choice = reply.choices[0]
    assert choice.text == finished.text and reply.usage and reply.usage.prompt_tokens == len(ids)
    assert choice.logprobs and choice.logprobs.tokens and "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.text_offset and choice.logprobs.text_offset[1] == len(choice.logprobs.tokens[0])
    assert client.completions.create(prompt=ids, **fields).choices[0].text == choice.text
    by_hand = TOKENIZER.apply_chat_template(asked(), tokenize=False, add_generation_prompt=True)
    assert client.completions.create(prompt=by_hand, **fields).choices[0].text == text_of(ask(client, max_tokens=9))
    parts = client.completions.create(prompt=BOOK, stream=True, **fields)
    assert "".join(part.choices[0].text for part in parts) == choice.text
    with pytest.raises(openai.BadRequestError, match="token that the model does not have"):
        client.completions.create(prompt=[1 << 20], **fields)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt=BOOK * 20, **fields)
    assert caught.value.param == "prompt" and caught.value.code == "context_length_exceeded"
    address = {"url": f"{client.base_url}".replace("/v1/", "/tokenize"), "headers": {"Authorization": "Bearer a key"}}
    told = httpx2.post(**address, json={"prompt": BOOK}, trust_env=False).json()
    assert told == {"count": len(ids), "max_model_len": 2048, "tokens": ids}
    for wrong in (5, [1, 1_000_000]):
        refused = httpx2.post(**address, json={"prompt": wrong}, trust_env=False)
        assert refused.status_code == 400 and refused.json()["error"]["message"].startswith("prompt")


def test_responses_say_what_chat_says(client: openai.OpenAI) -> None:
    fields: Any = {"model": "harbour", "temperature": 0, "max_output_tokens": 24}
    text = f"{BOOK}\n\n{QUESTION}"
    whole, expected = client.responses.create(input=text, **fields), ask(client)
    assert whole.output_text == text_of(expected) and whole.status == whole.output[0].status == "completed"
    assert whole.usage and whole.usage.total_tokens == expected.usage.total_tokens
    message: Any = {"role": "user", "content": [{"type": "input_text", "text": text}]}
    with client.responses.stream(input=[message], **fields) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == stream.get_final_response().output_text == whole.output_text
    with client.responses.with_streaming_response.create(input="Hello", stream=True, **fields) as raw:
        assert next(raw.iter_lines()) == "event: response.created"
    silent: Any = {"input": text, **fields, "extra_body": {"stop": [whole.output_text[:1]]}}
    with client.responses.stream(**silent) as stream:
        kinds = [event.type for event in stream]
        (empty,) = stream.get_final_response().output
    assert "response.output_item.done" in kinds and empty.content[0].text == ""  # type: ignore[union-attr]
    assert client.responses.create(input=[empty.model_dump(), message], **fields).output_text, "it can be sent back"
    told = client.responses.create(input=text, instructions="Be brief.", **fields)
    assert told.output_text == text_of(ask(client, [{"role": "system", "content": "Be brief."}, *asked()]))
    cut = client.responses.create(input="Hello", **{**fields, "max_output_tokens": 2})
    assert cut.status == cut.output[0].status == "incomplete" and cut.incomplete_details and cut.output_text


def test_counts_and_the_log_have_figures_and_no_text(
    bundled_worker: EngineWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "app.server.openai.request_log")
    keyed = {"Authorization": "Bearer a key"}
    with served(bundled_worker, key="a key") as url, client_of(url) as client:
        ask(client, stream=True).close()
        reply = ask(client)
        text = httpx2.get(f"{url}/metrics", headers=keyed, trust_env=False).text
        httpx2.get(f"{url}/{QUESTION}%0Aline", headers=keyed, trust_env=False)
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(figures['triforce_requests_total{path="/v1/chat/completions",status="200"}']) == 2
    assert float(figures["triforce_cached_tokens_total"]) > 200 and figures["triforce_requests_here"] == "0.0"
    assert float(figures["triforce_generated_tokens_total"]) >= reply.usage.completion_tokens
    assert float(figures["triforce_first_token_seconds_count"]) >= 1
    wait_for(lambda: any(" 404, " in one for one in caplog.messages))
    lines, usage = caplog.messages, reply.usage
    told = f"{usage.prompt_tokens:,} tokens of prompt, "
    assert any("POST /v1/chat/completions 200" in line and told in line for line in lines)
    assert any(f" {usage.completion_tokens} written by {FASTEST}" in line for line in lines)
    assert not any("Voss" in line or "\n" in line for line in lines)


def test_models_are_listed_with_what_they_hold(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "harbour" and model.model_extra and model.model_extra["max_model_len"] == 2048
    assert client.models.retrieve("harbour").id == "harbour"
    for wrong in (lambda: client.models.retrieve("gpt-4"), lambda: ask(client, model="gpt-4")):
        with pytest.raises(openai.NotFoundError, match="harbour"):
            wrong()


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted() -> None:
    port = free_port()
    command = [sys.executable, "launch.py", "serve", "--no-venv", "--port", str(port), "--context", "2048", "--json"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert f":{port}/v1" in server.stdout.readline()
    with client_of(f"http://127.0.0.1:{port}") as client:
        assert text_of(ask(client)), "it listens before it says so"
    server.send_signal(2)
    _output, log = server.communicate(timeout=30)
    assert server.returncode == 0 and "Traceback" not in log and "Ending." in log


# -------------------- answers that follow a JSON schema

FIELDS = {"keeper": {"type": "string", "maxLength": 24}, "sure": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "keeper", "schema": SCHEMA, "strict": True}}


@pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is not installed (requirements-grammar.txt)")
def test_every_method_answers_in_the_schema_and_alike(client: openai.OpenAI) -> None:
    def checked(text: str) -> str:
        found = json.loads(text)
        assert found.keys() == FIELDS.keys() and isinstance(found["sure"], bool)
        return text

    options: Any = {"response_format": FORMAT, "max_tokens": 120}
    texts = set()
    for method in ("autoregressive", "triforce", "triforce-lookup"):
        answer = ask(client, **options, extra_body={"triforce": {"method": method}})
        texts.add(checked(text_of(answer)))
        assert answer.choices[0].finish_reason == "stop"
    assert len(texts) == 1 and text_of(ask(client)) not in texts
    whole = ask(client, n=2, logprobs=True, **options, temperature=1.2, seed=5)
    assert len({checked(one.message.content) for one in whole.choices}) == 2
    assert all(token.logprob <= 0 for token in whole.choices[0].logprobs.content)
    assert text_of(ask(client, stream=True, **options, temperature=1.2, seed=5)) == text_of(whole)
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}}
    with pytest.raises(openai.BadRequestError, match="cannot be followed") as told:
        ask(client, response_format=wrong)
    assert told.value.param == "response_format"


def test_without_its_package_a_schema_is_refused_by_name(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(openai.BadRequestError, match="requirements-grammar") as told:
        ask(client, response_format={"type": "json_object"})
    assert told.value.param == "response_format"
    assert text_of(ask(client, response_format={"type": "text"}))


# -------------------- texts that clients sent: kept in memory, and on disk where that is on


def test_a_text_goes_to_disk_and_the_next_server_opens_it(
    start_worker: Callable[..., EngineWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.kv_store.engine_store.WORTH_SECONDS", 0.0)
    monkeypatch.setattr("app.server.openai.prompts.LEAST_BOOK", 100)
    night = "It was a dark and stormy night. " * 40

    def begun(books: SavedBooks) -> EngineWorker:
        """A server of its own, with a fresh engine."""
        return start_worker(with_words(tiny_engine(context=2048, prefill_chunk=128)), saved_books=books)

    first = begun(SavedBooks(tmp_path, "always"))
    books = first.saved_books.folder.books
    with served(first) as url, client_of(url) as client:
        reply = ask(client, asked("Who?", night), max_tokens=8)
        ask(client, asked("Where?", "Then came the day. " * 60), max_tokens=8)  # pushed out before it was written
        wait_for(lambda: len(books()) >= 1)
        assert read_of(reply) > 200 and {book.name for book in books()} == {"sent by a program"}
        assert read_of(ask(client, asked("When?", night), max_tokens=8)) < 30, "it was saved from memory"
    for saved, most in ((SavedBooks(tmp_path), 30), (SavedBooks(), 2000)):  # from disk; and as a fresh engine writes it
        with served(begun(saved)) as url, client_of(url) as client:
            again = ask(client, asked("Who?", night), max_tokens=8)
            assert text_of(again) == text_of(reply) and read_of(again) < most
