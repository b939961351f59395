"""Logins: guesses are slow, a right password waits seconds at most, and no other site's page uses the cookie."""

import argparse
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.runtime.worker import EngineWorker
from app.server.logins import LONGEST_WAIT_SECONDS, MOST_ADDRESSES, WINDOW_SECONDS, Guesses, Logins, lax
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, finish

pytestmark = GRADIO_WARNINGS
ServeOn = Callable[[EngineWorker], str]
RIGHT, WRONG = {"username": "reader", "password": "long enough"}, {"username": "reader", "password": "wrong"}


def login(client: httpx.Client, address: str, form: dict[str, str], path: str = "login") -> httpx.Response:
    return client.post(f"{address}{path}", data=form)


def test_sixty_guesses_at_once_are_five(
    serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Logins.__init__, "__defaults__", (lambda: 0.0,))  # all of them in one moment
    arguments.auth = "reader:long enough"
    address = serve(worker)
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        answers = [login(client, address, WRONG, "login/" if number % 2 else "login") for number in range(60)]
    statuses = [answer.status_code for answer in answers]
    assert statuses[:5] == [400] * 5 and statuses.count(400) == 5 and set(statuses) == {400, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) == 1 and "Wait a moment" in refused.json()["detail"]


def test_cookies_are_for_our_own_pages(serve: ServeOn, worker: EngineWorker, arguments: argparse.Namespace) -> None:
    arguments.auth = "reader:long enough"
    address = serve(worker)
    with httpx.Client(trust_env=False, timeout=SECONDS) as client:
        cookies = login(client, address, RIGHT).headers.get_list("set-cookie")
        assert len(cookies) == 2 and all("SameSite=Lax" in one and "HttpOnly" in one for one in cookies)
        assert not any("none" in one.lower() for one in cookies)
        assert client.get(f"{address}config").status_code == 200
        over_tls = login(client, address, RIGHT | {"x": "1"}).status_code
        forwarded = client.post(f"{address}login", data=RIGHT, headers={"X-Forwarded-Proto": "https"})
        assert over_tls == 200 and all("Secure" in one for one in forwarded.headers.get_list("set-cookie"))


@pytest.mark.parametrize(
    ("cookie", "is_safe", "closed"),
    [
        ("a=1; HttpOnly; Path=/; SameSite=none; Secure", False, "a=1; HttpOnly; Path=/; Secure; SameSite=Lax"),
        ("a=1; Path=/", False, "a=1; Path=/; SameSite=Lax"),
        ("a=1; samesite=Strict", True, "a=1; Secure; SameSite=Lax"),
    ],
)
def test_a_cookie(cookie: str, is_safe: bool, closed: str) -> None:
    assert lax(cookie, is_safe=is_safe) == closed


# -------------------- waits, on a clock of the test's own


class Server:
    """Logins before an app with one password."""

    def __init__(self) -> None:
        self.now = 0.0
        self.logins = Logins(self._app, lambda: self.now)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        status = 200 if scope["query_string"] == b"right" else 400
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def guess(self, *, right: bool = False, address: str = "10.0.0.1") -> int:
        found: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                found.append(message["status"])

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/login",
            "scheme": "http",
            "query_string": b"right" if right else b"",
            "client": (address, 1),
            "headers": [],
        }
        finish(self.logins(scope, None, send))  # type: ignore[arg-type]
        return found[0]


def test_waits_grow_and_end() -> None:
    guesses, now = Guesses(free=5), 0.0
    waits = []
    for _ in range(12):
        guesses.count(now)
        waits.append(guesses.wait(now))
        now += waits[-1]
    assert waits[:9] == [0, 0, 0, 0, 1, 2, 4, 8, 16] and max(waits) == LONGEST_WAIT_SECONDS
    assert now > 60, "a dozen a minute at most"
    guesses.count(now + WINDOW_SECONDS + 1)
    assert guesses.wait(now + WINDOW_SECONDS + 1) == 0, "forgotten after a minute"


def test_the_right_password_comes_through_after_a_short_wait() -> None:
    server = Server()
    assert [server.guess() for _ in range(7)] == [400] * 5 + [429] * 2
    assert server.guess(right=True) == 429, "nobody learns from a refusal whether it was right"
    assert server.guess(right=True, address="10.0.0.2") == 200, "others need not wait"
    server.now += LONGEST_WAIT_SECONDS
    assert server.guess(right=True) == 200 and server.guess(right=True) == 200, "nor does who has it"


def test_many_addresses_are_slowed_together() -> None:
    server = Server()
    statuses = [server.guess(address=f"10.0.{number // 250}.{number % 250}") for number in range(2000)]
    assert statuses.count(400) == 30 and len(server.logins._of_address) == MOST_ADDRESSES
