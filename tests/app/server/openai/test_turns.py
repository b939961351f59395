"""One request at a time, a queue with an end, clients that go away; on a scripted engine that waits where told."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from app.runtime.worker import EngineWorker
from app.server.bodies import BodyLimit
from app.server.openai.api import prompt_bytes, sending
from app.server.openai.errors import RequestError
from tests.app.fakes import HOLD, SECONDS, wait_for
from tests.app.server.openai.servers import ServedEngine, served

ASKED = {"model": "fake", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 50}


@pytest.fixture(autouse=True)
def connections() -> Iterator[None]:
    yield
    while Client.open:
        Client.open.pop().leave()


@pytest.fixture
def engine() -> ServedEngine:
    return ServedEngine()


@pytest.fixture
def url(engine: ServedEngine, start_worker: Callable[..., EngineWorker]) -> Iterator[str]:
    with served(start_worker(engine), most_waiting=2) as address:
        yield address
        engine.writing.set()
        engine.reading.set()


class Client:
    """One connection, one request."""

    open: ClassVar[list["Client"]] = []

    def __init__(self, url: str, path: str = "/v1/chat/completions", **fields: Any) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
        self.connection.request("POST", path, json.dumps({**ASKED, **fields}))
        self.open.append(self)

    def answer(self) -> tuple[int, dict[str, Any]]:
        reply = self.connection.getresponse()
        body = json.loads(reply.read())
        self.connection.close()
        return reply.status, body

    def leave(self) -> None:
        self.connection.close()


def get(url: str, path: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_requests_take_turns_and_the_queue_has_an_end(url: str, engine: ServedEngine) -> None:
    engine.writing.clear()
    for word in ("one", "two", "three"):
        engine.enqueue(word)
    clients = []
    for number in range(3):
        clients.append(Client(url))
        wait_for(lambda: len(engine.configs) == 1)  # the first has its turn, the others wait
        assert get(url, "/health") == 200, f"the loop is free with {number} waiting"
    reply = None

    def refused() -> bool:
        nonlocal reply
        reply = Client(url).answer()
        return reply[0] == 503

    wait_for(refused)  # a third one that waits is too much, once the two others have arrived
    assert reply is not None and reply[1]["error"]["code"] == "overloaded"
    engine.writing.set()
    texts = [client.answer()[1]["choices"][0]["message"]["content"].strip() for client in clients]
    assert texts[0] == "one" and "two" in texts


def test_a_client_that_goes_away_amid_a_stream_cancels_it(url: str, engine: ServedEngine) -> None:
    engine.enqueue("one two " + HOLD + " three")
    gone = Client(url, stream=True)
    reply = gone.connection.getresponse()
    assert b'"role"' in reply.readline()
    wait_for(lambda: not engine.writing.is_set())
    reply.close()
    gone.leave()
    after = Client(url)
    wait_for(lambda: len(engine.configs) == 2)  # only a cancel lets the engine go on: the gate stays shut
    engine.writing.set()
    assert after.answer()[0] == 200


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(url: str, engine: ServedEngine) -> None:
    engine.writing.clear()
    engine.enqueue("first")
    first = Client(url)
    wait_for(lambda: len(engine.configs) == 1)
    waiting = [Client(url), Client(url)]
    wait_for(lambda: Client(url).answer()[0] == 503)
    for client in waiting:
        client.leave()
    engine.enqueue("last")

    def fits() -> bool:
        nonlocal last
        last = Client(url, max_tokens=7)
        last.connection.sock.settimeout(0.3)
        try:
            return last.answer()[0] != 503
        except TimeoutError:  # it waits for its turn
            return True

    last: Client | None = None
    wait_for(fits)
    engine.writing.set()
    assert first.answer()[1]["choices"][0]["message"]["content"] == "first "


def test_an_error_of_the_engine_is_an_error_in_json(url: str, engine: ServedEngine) -> None:
    engine.enqueue(RuntimeError("boom"))
    status, body = Client(url).answer()
    message = body["error"]["message"]
    assert status == 500 and "RuntimeError" in message and "boom" not in message, "raw texts stay in the terminal"
    engine.enqueue(RuntimeError("boom"))
    with Client(url, stream=True).connection.getresponse() as reply:
        assert reply.status == 200, "it had begun"
        assert b'"error"' in reply.read()
    engine.enqueue("well again")
    assert Client(url).answer()[0] == 200


def test_a_prompt_that_is_too_long_is_told_what_would_fit(url: str, engine: ServedEngine) -> None:
    status, body = Client(url, messages=[{"role": "user", "content": "x" * 9000}], stream=True).answer()
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    assert f"{engine.context - 64:,} fit" in body["error"]["message"]


def test_more_bytes_than_any_prompt_has_are_refused_before_they_are_sent(url: str) -> None:
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), SECONDS) as line:
        head = ["POST /v1/chat/completions HTTP/1.1", f"Host: {urlsplit(url).netloc}", "Content-Length: 67108864"]
        line.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
        assert b" 413 " in line.recv(1000)


class Limited:
    """An app behind a limit of a context's size, and what came of requests."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.limit = BodyLimit(self._app, prompt_bytes(16_384), 2, RequestError.as_json)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])

    async def status(self, receive: Any) -> int:
        """200 where the app has seen it."""
        found = [200]

        async def send(message: Any) -> None:
            found.append(message.get("status", found[-1]))

        await self.limit({"type": "http", "method": "POST", "headers": []}, receive, send)
        return found[-1]


def test_bodies_are_bounded_by_the_context_however_they_come() -> None:
    limited = Limited()

    def coming(*parts: bytes) -> int:
        left = list(parts)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        return asyncio.run(limited.status(receive))

    assert prompt_bytes(16_384) == 2 << 20 and coming(b"a", b"b") == 200
    assert coming(*[bytes(1 << 20)] * 3) == 413 and limited.bodies == [b"ab"]


def test_slow_senders_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.server.bodies.STALLED_SECONDS", 0.2)
    limited = Limited()

    async def silent() -> Any:
        await asyncio.Event().wait()

    async def three() -> list[int]:
        return list(await asyncio.gather(*(limited.status(silent) for _ in range(3))))

    for _ in range(2):  # places are given back
        assert asyncio.run(three()) == [400, 400, 503]


def test_a_sender_of_a_byte_now_and_then_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.server.bodies.LONGEST_SECONDS", 0.5)

    async def trickling() -> Any:
        await asyncio.sleep(0.01)  # never silent for long
        return {"type": "http.request", "body": b"a", "more_body": True}

    assert asyncio.run(asyncio.wait_for(Limited().status(trickling), 30)) == 400


def test_a_client_that_takes_nothing_gives_its_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.server.openai.api.STALLED_SECONDS", 0.2)
    closed: list[bool] = []

    async def parts() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"data: x\n\n"
        finally:
            closed.append(True)

    async def silent() -> Any:
        await asyncio.Event().wait()

    async def full(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def answer() -> None:
        scope: dict[str, Any] = {"type": "http", "headers": []}
        await asyncio.wait_for(sending(parts())(scope, silent, full), SECONDS)

    asyncio.run(answer())
    assert closed == [True]


def test_the_time_in_the_queue_is_told(url: str, engine: ServedEngine) -> None:
    engine.writing.clear()
    for word in ("one", "two"):
        engine.enqueue(word)
    first = Client(url)
    wait_for(lambda: len(engine.configs) == 1)
    second, begun = Client(url), time.monotonic()
    time.sleep(0.5)
    engine.writing.set()
    (quick, slow), took = (client.answer()[1]["triforce"] for client in (first, second)), time.monotonic() - begun
    assert quick["queue_seconds"] < slow["queue_seconds"] > 0.4
    assert slow["queue_seconds"] <= slow["time_to_first_token_seconds"] < took + 1
