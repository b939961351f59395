"""Who may come, one request at a time, a queue with an end, clients that go away; on a scripted engine."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.cli.serve import SHORTEST_KEY, check_door
from app.runtime.worker import EngineWorker
from app.server.bodies import BodyLimit
from app.server.openai.api import prompt_bytes, sending
from app.server.openai.errors import RequestError
from app.server.request_guard import Hosts
from core.errors import InvalidSetting
from tests.app.fakes import FOREIGN, HOLD, SECONDS, free_port, wait_for
from tests.app.server.asgi import ask, client, raw
from tests.app.server.openai.servers import ServedEngine, served

Answer = tuple[int, dict[str, Any]]
Begin = Callable[..., http.client.HTTPConnection]


@pytest.fixture
def engine() -> ServedEngine:
    return ServedEngine()


@pytest.fixture
def url(engine: ServedEngine, worker: EngineWorker) -> Iterator[str]:
    with served(worker, most_waiting=2) as address:
        yield address
        engine.writing.set()


@pytest.fixture
def begin(url: str) -> Iterator[Begin]:
    """Send a request, on a connection of its own."""
    connections: list[http.client.HTTPConnection] = []

    def start(**fields: Any) -> http.client.HTTPConnection:
        body = {"model": "fake", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 50, **fields}
        connections.append(http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS))
        connections[-1].request("POST", "/v1/chat/completions", json.dumps(body))
        return connections[-1]

    yield start
    for connection in connections:
        connection.close()


def end(connection: http.client.HTTPConnection) -> Answer:
    reply = connection.getresponse()
    body = json.loads(reply.read())
    connection.close()
    return reply.status, body


def text_of(answer: Answer) -> str:
    return str(answer[1]["choices"][0]["message"]["content"]).strip()


def test_requests_take_turns_and_the_queue_has_an_end(url: str, engine: ServedEngine, begin: Begin) -> None:
    engine.writing.clear()
    for word in ("one", "two", "three"):
        engine.enqueue(word)
    first = begin()
    wait_for(lambda: len(engine.configs) == 1)  # the first has its turn, the others wait
    others, begun, refused = [begin(), begin()], time.monotonic(), list[Answer]()

    def is_full() -> bool:
        refused.append(end(begin()))
        return refused[-1][0] == 503

    wait_for(is_full)  # a third one that waits is too much, once the two others have arrived
    assert refused[-1][1]["error"]["code"] == "overloaded"
    with client() as programs:
        assert programs.get(f"{url}/health").status_code == 200, "the loop is free"
    time.sleep(max(0.0, begun + 0.5 - time.monotonic()))
    engine.writing.set()
    quick, *slow = (end(one) for one in (first, *others))
    assert text_of(quick) == "one" and "two" in [text_of(one) for one in slow]  # both of which had a place
    told = slow[0][1]["triforce"]
    assert quick[1]["triforce"]["queue_seconds"] < told["queue_seconds"] > 0.4
    assert told["queue_seconds"] <= told["time_to_first_token_seconds"] < time.monotonic() - begun + 1


def test_a_client_that_goes_away_amid_a_stream_cancels_it(engine: ServedEngine, begin: Begin) -> None:
    engine.enqueue("one two " + HOLD + " three")
    gone = begin(stream=True)
    reply = gone.getresponse()
    assert b'"role"' in reply.readline()
    wait_for(lambda: not engine.writing.is_set())
    reply.close()
    gone.close()
    after = begin()
    wait_for(lambda: len(engine.configs) == 2)  # only a cancel lets the engine go on: the gate stays shut
    engine.writing.set()
    assert end(after)[0] == 200


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(engine: ServedEngine, begin: Begin) -> None:
    engine.writing.clear()
    engine.enqueue("first")
    first = begin()
    wait_for(lambda: len(engine.configs) == 1)
    waiting = [begin(), begin()]
    wait_for(lambda: end(begin())[0] == 503)
    for one in waiting:
        one.close()

    def fits() -> bool:
        last = begin(max_tokens=7)
        last.sock.settimeout(0.3)
        try:
            return end(last)[0] != 503
        except TimeoutError:  # it waits for its turn
            return True

    wait_for(fits)
    engine.writing.set()
    assert text_of(end(first)) == "first"


def test_a_stream_is_never_silent_for_long(
    url: str, engine: ServedEngine, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.server.openai.api.ALIVE_SECONDS", 0.2)
    engine.writing.clear()
    engine.enqueue("one")
    engine.enqueue("two")
    first = begin()
    wait_for(lambda: len(engine.configs) == 1)
    with begin(stream=True).getresponse() as waiting:
        assert waiting.status == 200 and waiting.readline() == b": waiting\n", "while the first has its turn"
        engine.writing.set()
        assert text_of(end(first)) == "one" and b'"two ' in waiting.read()
    monkeypatch.setattr("app.server.openai.api.ALIVE_SECONDS", 0.0)
    engine.enqueue(f"<think> {'what? ' * 200}</think> That.")
    with client() as programs:
        told = programs.post(f"{url}/v1/responses", json={"input": "Why?", "stream": True}).text
    assert told.count(": working\n") >= 200, "thoughts are not told, and every step of theirs is"


def test_a_connection_that_asks_nothing_soon_is_closed_and_no_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.server.heads.HEAD_SECONDS", 0.3)
    body = json.dumps({"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2}).encode()
    place = urlsplit(url).netloc.split(":")
    with (
        socket.create_connection((place[0], int(place[1])), SECONDS) as silent,
        raw(url, "GET /health") as kept,
        raw(url, "POST /v1/chat/completions", body[:9], Content_Length=str(len(body))) as slow,
    ):
        silent.sendall(b"GET /health HTTP/1.1\r\nHost:")
        assert silent.recv(1) == b""
        if kept.recv(1000):
            kept.sendall(b"GET /hea")
        time.sleep(1)
        slow.sendall(body[9:])
        assert b" 200 " in slow.recv(1000), "a body takes its time"
        while kept.recv(1000):  # the rest of its answer
            pass


def test_an_error_of_the_engine_is_an_error_in_json(engine: ServedEngine, begin: Begin) -> None:
    engine.enqueue(RuntimeError("boom"))
    status, body = end(begin())
    message = body["error"]["message"]
    assert status == 500 and "RuntimeError" in message and "boom" not in message, "raw texts stay in the terminal"
    engine.enqueue(RuntimeError("boom"))
    with begin(stream=True).getresponse() as reply:
        assert reply.status == 200, "it had begun"
        assert b'"error"' in reply.read()
    engine.enqueue("well again")
    assert text_of(end(begin())) == "well again"
    status, body = end(begin(messages=[{"role": "user", "content": "x" * 9000}], stream=True))
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    assert f"{engine.context - 64:,} fit" in body["error"]["message"]


def test_a_text_is_counted_as_it_would_be_read(url: str, engine: ServedEngine) -> None:
    engine.text.beginning = [ord("^")]
    with client() as programs:

        def tokens(prompt: str, **more: bool) -> list[int]:
            told = programs.post(f"{url}/tokenize", json={"prompt": prompt, **more}).json()
            assert told["count"] == len(told["tokens"])
            return list(told["tokens"])

        assert tokens("Hi") == tokens("^Hi") == [*map(ord, "^Hi")] == tokens("^Hi", add_special_tokens=False)
        assert tokens("Hi", add_special_tokens=False) == [*map(ord, "Hi")]
        programs.post(f"{url}/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
    assert engine.prompts == [[*map(ord, "^Hi")]]


# -------------------- bodies


@pytest.fixture
def limit() -> Any:
    """An app behind a limit of a context's size: it answers with what it was sent."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": (await receive())["body"]})

    return BodyLimit(app, prompt_bytes(16_384), 2, RequestError.as_json)


def test_bodies_are_bounded_by_the_context_however_they_come(url: str, limit: Any) -> None:
    with raw(url, "POST /v1/chat/completions", Content_Length="67108864") as line:
        assert b" 413 " in line.recv(1000), "before they are sent"

    def coming(*parts: bytes) -> tuple[int, bytes]:
        left = list(parts)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        answer = ask(limit, method="POST", receive=receive)
        return answer.status, answer.body

    assert prompt_bytes(16_384) == 2 << 20 and coming(b"a", b"b") == (200, b"ab")
    assert coming(*[bytes(1 << 20)] * 2)[0] == 200 and coming(*[bytes(1 << 20)] * 2, b"a")[0] == 413


async def silence() -> Any:
    await asyncio.Event().wait()


def test_a_sender_of_a_byte_now_and_then_ends_too(limit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.server.bodies.LONGEST_SECONDS", 0.5)

    async def trickling() -> Any:
        await asyncio.sleep(0.01)  # never silent for long
        return {"type": "http.request", "body": b"a", "more_body": True}

    assert ask(limit, method="POST", receive=trickling).status == 400


def test_a_client_that_takes_nothing_gives_its_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.server.openai.api.STALLED_SECONDS", 0.2)
    closed: list[bool] = []

    async def parts() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"data: x\n\n"
        finally:
            closed.append(True)

    async def full(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def answer() -> None:
        scope: dict[str, Any] = {"type": "http", "headers": []}
        await asyncio.wait_for(sending(parts())(scope, silence, full), SECONDS)

    asyncio.run(answer())
    assert closed == [True]


# -------------------- keys, origins, and which addresses may be listened at without them


PAGE, KEY = "http://localhost:3000", {"Authorization": "Bearer secret"}
ADDRESSES = [("GET", "/v1/models"), ("GET", "/v1/models/fake"), ("GET", "/metrics"), ("POST", "/tokenize")]
ADDRESSES += [("POST", f"/v1/{name}") for name in ("chat/completions", "completions", "responses")]


def test_every_address_asks_for_the_key_and_refuses_foreign_pages(worker: EngineWorker) -> None:
    with served(worker, key="secret") as url, client(base_url=url) as programs:

        def told(headers: Any) -> tuple[int, str | None]:
            body = {} if method == "POST" else None
            reply = programs.request(method, path, headers=headers, json=body)
            assert "example" not in reply.text and "secret" not in reply.text
            assert "access-control-allow-origin" not in reply.headers
            return reply.status_code, reply.json()["error"]["code"] if reply.is_error else None

        for method, path in ADDRESSES:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                assert told(headers) == (401, "invalid_api_key"), path
            for headers in FOREIGN:
                refusal = (421, "host_not_allowed") if "Host" in headers else (403, "origin_not_allowed")
                assert told(KEY | headers) == refusal, path
            assert programs.request(method, path, headers=KEY, json={}).status_code in (200, 400), path
        assert programs.get("/health").status_code == 200, "which needs no key"
        assert {programs.get("/health", headers=headers).status_code for headers in FOREIGN} <= {403, 421}
        assert programs.options("/v1/models", headers={"Origin": "null"}).status_code == 403


def test_a_named_host_and_the_pages_of_a_named_origin_are_let_in(worker: EngineWorker) -> None:
    hosts = Hosts("127.0.0.1", free_port(), ["models.lan"])
    with (
        served(worker, key="secret", hosts=hosts, origins=[f"{PAGE}/"]) as url,
        client(base_url=f"{url}/v1/", headers=KEY | {"Host": "models.lan"}) as programs,
    ):
        assert programs.get("models").status_code == 200
        assert programs.get("models", headers={"Host": "other.lan"}).status_code == 421
        far = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
        reply = programs.get("models", headers=far)
        assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == PAGE
        assert programs.get("models", headers=far | {"Host": "rebound.example"}).status_code == 421
        assert programs.get("models", headers=far | {"Origin": "http://localhost:3001"}).status_code == 403
        asked = programs.options("chat/completions", headers={"Origin": PAGE, "Authorization": ""})
        assert asked.status_code == 204 and "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "*, Authorization"


def test_other_machines_need_a_key() -> None:
    check_door("127.0.0.1", None)
    check_door("127.0.0.1", "secret")
    check_door("0.0.0.0", "s" * SHORTEST_KEY)
    for host, key, problem in (
        ("0.0.0.0", "s" * (SHORTEST_KEY - 1), "short"),
        ("0.0.0.0", None, "--api-key"),
        *(("127.0.0.1", key, "header") for key in ("", " ", "ä", "a\nb")),
    ):
        with pytest.raises(InvalidSetting, match=problem):
            check_door(host, key)
