"""The `openai` client against a real server on the bundled pair; a short text, temperature 0."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from core.decoding.registry import FASTEST
from core.engine import Engine
from core.generation.session import Conversation
from tests.app.fakes import free_port, wait_for
from tests.app.server.openai.servers import served

ROOT = Path(__file__).parents[4]
BOOK = "Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. Arthur Nash mended nets there. " * 12
QUESTION = "Who kept the light?"


@pytest.fixture
def worker(bundled_worker: EngineWorker) -> EngineWorker:
    return bundled_worker


@pytest.fixture(scope="module")
def client(bundled_worker: EngineWorker) -> Iterator[openai.OpenAI]:
    with served(bundled_worker, key="a key") as url, client_of(url) as one:
        yield one


def client_of(url: str, **options: Any) -> openai.OpenAI:
    http = httpx2.Client(verify=False, trust_env=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="a key", http_client=http, max_retries=0, **options)


def asked(question: str = QUESTION, book: str = BOOK) -> list[Any]:
    return [{"role": "user", "content": f"{book}\n\n{question}"}]


def ask(client: openai.OpenAI, messages: list[Any] | None = None, **fields: Any) -> Any:
    fields = {"model": "harbour", "max_tokens": 24, "temperature": 0, **fields}
    return client.chat.completions.create(messages=messages or asked(), **fields)


def text_of(reply: Any) -> str:
    return str(reply.choices[0].message.content)


def ours(part: Any) -> dict[str, Any]:
    return dict(part.model_extra["triforce"])


def test_the_text_is_what_the_engine_writes_by_itself(client: openai.OpenAI, worker: EngineWorker) -> None:
    def work(engine: Engine, _cancel: Any) -> Iterator[Any]:
        prompt = Conversation(tuple(engine.text.encode(BOOK))).ask(QUESTION).prompt_ids(engine.text)
        yield from engine.generate(prompt, GenerationConfig(max_new_tokens=24))

    *_, finished = of_engine(worker, work)
    reply = ask(client)
    assert text_of(reply) == finished.text
    assert reply.usage.prompt_tokens == finished.prompt_tokens
    assert reply.usage.completion_tokens == finished.stats.new_tokens


def test_the_book_is_read_once_over_several_requests(client: openai.OpenAI) -> None:
    books = [BOOK.replace("Gull", name) for name in ("Fern", "Heron")]
    seen: list[list[int]] = [[], []]
    for question in (QUESTION, "Where did Arthur Nash mend nets, and what for?", "Who mended nets?"):
        for number, book in enumerate(books):
            reply = ask(client, asked(question, book))
            ask(client, asked("Hello?", "A short text."))
            seen[number].append(reply.usage.prompt_tokens - reply.usage.prompt_tokens_details.cached_tokens)
            plain = ask(client, asked(question, book), extra_body={"triforce": {"method": "autoregressive"}})
            assert text_of(plain) == text_of(reply)
    for first, *others in seen:
        assert first > 200 and max(others) < 30, "read once, whatever was asked between the questions"


def test_a_conversation_goes_on_from_the_very_tokens_of_its_answer(client: openai.OpenAI) -> None:
    first = ask(client)
    messages = [*asked(), {"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "Where?"}]
    second = ask(client, messages)
    read = second.usage.prompt_tokens - second.usage.prompt_tokens_details.cached_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens and read < 16


def test_a_stream_says_the_same_as_a_whole_answer(client: openai.OpenAI) -> None:
    whole = ask(client)
    parts = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == text_of(whole)
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert ours(parts[-2])["acceptance"].keys() == ours(whole)["acceptance"].keys()  # rounds go by measured costs
    without = list(ask(client, stream=True))
    assert all(part.choices and part.usage is None for part in without)


def test_methods_can_be_chosen_and_say_what_they_did(client: openai.OpenAI) -> None:
    plain = ask(client, extra_body={"triforce": {"method": "autoregressive"}})
    fast = ask(client)
    assert text_of(plain) == text_of(fast), "exact"
    assert ours(plain)["method"] == "autoregressive" and ours(plain)["tokens_per_full_pass"] == 1
    figures = ours(fast)
    assert figures["method"] == FASTEST and figures["exact"] and set(figures["acceptance"]) == {"level1", "level2"}
    assert figures["time_to_first_token_seconds"] > 0


def test_a_seed_repeats_an_answer_and_none_does_not(client: openai.OpenAI) -> None:
    plain = {"extra_body": {"triforce": {"method": "autoregressive"}}, "temperature": 1.5, "max_tokens": 16}
    one, two, other = (ask(client, seed=seed, **plain) for seed in (7, 7, 8))
    assert text_of(one) == text_of(two) != text_of(other)
    drawn = ask(client, **plain)
    assert text_of(ask(client, seed=ours(drawn)["seed"], **plain)) == text_of(drawn), "the seed is told"


def test_an_answer_ends_at_its_limits(client: openai.OpenAI) -> None:
    whole = text_of(ask(client))
    word = whole.split()[2]
    stopped = ask(client, stop=[word])
    assert text_of(stopped) == whole[: whole.index(word)] and stopped.choices[0].finish_reason == "stop"
    short = ask(client, max_completion_tokens=2, max_tokens=openai.omit)
    assert short.usage.completion_tokens == 2 and short.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_can_be_continued(client: openai.OpenAI, stream: bool) -> None:
    whole = text_of(ask(client))
    beginning = text_of(ask(client, max_tokens=3))
    messages = [*asked(), {"role": "assistant", "content": beginning}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    reply = ask(client, messages, extra_body=extra, stream=stream, stop=["no such words"])
    rest = "".join(p.choices[0].delta.content or "" for p in reply) if stream else text_of(reply)
    assert beginning + rest == whole


def of_engine(worker: EngineWorker, work: Any) -> list[Any]:
    """The events of work on the engine's thread."""
    return list(worker.borrow(worker.sessions.enter("").id, work))


def test_log_probabilities_are_told_for_every_token(client: openai.OpenAI) -> None:
    plain = {"extra_body": {"triforce": {"method": "autoregressive"}}}
    for fields in ({}, {"temperature": 1.2, "seed": 3, **plain}):
        reply = ask(client, logprobs=True, top_logprobs=2, **fields)
        content = reply.choices[0].logprobs.content
        assert "".join(one.token for one in content) == text_of(reply)
        assert all(bytes(one.bytes or []) == one.token.encode() for one in content)
        assert all(len(one.top_logprobs) == 2 and one.top_logprobs[0].logprob >= one.logprob for one in content)
    slow = ask(client, logprobs=True, **plain).choices[0].logprobs.content
    fast = ask(client, logprobs=True).choices[0].logprobs.content
    assert [one.logprob for one in fast] == pytest.approx([one.logprob for one in slow], abs=1e-3)
    assert all(one.top_logprobs == [] for one in fast)
    parts = [part.choices[0] for part in ask(client, logprobs=True, stream=True)]
    streamed = [one for part in parts if part.logprobs for one in part.logprobs.content]
    assert [one.token for one in streamed] == [one.token for one in fast]


def test_a_text_goes_on_without_a_chat_template(client: openai.OpenAI, worker: EngineWorker) -> None:
    found: list[Any] = []

    def work(engine: Engine, _cancel: Any) -> Iterator[Any]:
        ids = [*engine.text.beginning, *engine.text.encode(BOOK)]
        found.append(ids)
        yield from engine.generate(ids, GenerationConfig(max_new_tokens=9))

    *_, finished = of_engine(worker, work)
    (ids,) = found
    fields: Any = {"model": "harbour", "max_tokens": 9, "temperature": 0}
    reply = client.completions.create(prompt=BOOK, logprobs=2, **fields)
    choice = reply.choices[0]
    assert choice.text == finished.text and reply.usage and reply.usage.prompt_tokens == len(ids)
    assert choice.logprobs and choice.logprobs.tokens and "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.text_offset and choice.logprobs.text_offset[1] == len(choice.logprobs.tokens[0])
    assert client.completions.create(prompt=ids, **fields).choices[0].text == choice.text
    parts = client.completions.create(prompt=BOOK, stream=True, **fields)
    assert "".join(part.choices[0].text for part in parts) == choice.text
    with pytest.raises(openai.BadRequestError, match="token that the model does not have"):
        client.completions.create(prompt=[1 << 20], **fields)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt=BOOK * 20, **fields)
    assert caught.value.param == "prompt" and caught.value.code == "context_length_exceeded"


def test_responses_say_what_chat_says(client: openai.OpenAI) -> None:
    fields: Any = {"model": "harbour", "temperature": 0, "max_output_tokens": 24}
    whole = client.responses.create(input=f"{BOOK}\n\n{QUESTION}", **fields)
    expected = ask(client)
    assert whole.output_text == text_of(expected) and whole.status == "completed"
    assert whole.usage and whole.usage.total_tokens == expected.usage.total_tokens
    message: Any = {"role": "user", "content": [{"type": "input_text", "text": f"{BOOK}\n\n{QUESTION}"}]}
    with client.responses.stream(input=[message], **fields) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == stream.get_final_response().output_text == whole.output_text
    told = client.responses.create(input=f"{BOOK}\n\n{QUESTION}", instructions="Be brief.", **fields)
    assert told.output_text == text_of(ask(client, [{"role": "system", "content": "Be brief."}, *asked()]))
    cut = client.responses.create(input="Hello", **{**fields, "max_output_tokens": 2})
    assert cut.status == "incomplete" and cut.incomplete_details and cut.output_text
    assert cut.output[0].status == "incomplete" and whole.output[0].status == "completed"


def test_counts_and_the_log_have_figures_and_no_text(worker: EngineWorker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "app.server.openai.request_log")
    with served(worker, key="a key") as url, client_of(url) as client:
        ask(client, stream=True).close()
        reply = ask(client)
        assert httpx2.get(f"{url}/metrics", trust_env=False).status_code == 401, "who has the key sees them"
        keyed = {"Authorization": "Bearer a key"}
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
        wait_for(lambda: answers(client))
        assert text_of(ask(client))
    server.send_signal(2)
    _output, log = server.communicate(timeout=30)
    assert server.returncode == 0 and "Traceback" not in log and "Ending." in log


def answers(client: openai.OpenAI) -> bool:
    try:
        return bool(client.models.list().data)
    except openai.APIConnectionError:
        return False


def test_a_text_is_counted(client: openai.OpenAI, worker: EngineWorker) -> None:
    address, keyed = str(client.base_url).removesuffix("/v1/"), {"Authorization": "Bearer a key"}
    told = httpx2.post(f"{address}/tokenize", json={"prompt": BOOK}, headers=keyed, trust_env=False).json()
    plain = client.completions.create(model="harbour", prompt=told["tokens"], max_tokens=1)
    assert told["count"] == len(told["tokens"]) > 200 and told["max_model_len"] == 2048
    assert plain.usage and plain.usage.prompt_tokens == told["count"]
    refused = httpx2.post(f"{address}/tokenize", json={"prompt": 5}, headers=keyed, trust_env=False)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt"
