"""Keys, origins, and which addresses may be listened at without them."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.cli.serve import SHORTEST_KEY, check_door
from app.runtime.worker import EngineWorker
from app.server.request_guard import Hosts
from core.errors import InvalidSetting
from tests.app.fakes import FOREIGN, SECONDS
from tests.app.server.openai.servers import ServedEngine, free_port, served


@pytest.fixture
def worker(start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    return start_worker(ServedEngine())


def get(url: str, **headers: str) -> Any:
    return httpx.get(f"{url}/v1/models", headers=headers, trust_env=False, verify=False, timeout=SECONDS)


def test_without_the_key_nothing_is_told(worker: EngineWorker) -> None:
    with served(worker, key="secret") as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            reply = get(url, **headers)
            assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
            assert "secret" not in reply.text
        assert get(url, Authorization="Bearer secret").status_code == 200
        assert httpx.get(f"{url}/health", trust_env=False, verify=False, timeout=SECONDS).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/responses"),
        ("GET", "/v1/models/fake"),
        ("POST", "/tokenize"),
        ("GET", "/metrics"),
    ],
)
def test_every_address_asks_for_the_key_and_refuses_foreign_pages(worker: EngineWorker, method: str, path: str) -> None:
    def status(url: str, headers: dict[str, str]) -> int:
        return httpx.request(
            method, url + path, headers=headers, json={}, trust_env=False, verify=False, timeout=SECONDS
        ).status_code

    with served(worker, key="secret") as url:
        assert status(url, {}) == 401 and status(url, {"Authorization": "Bearer secret"}) in (200, 400)
        for headers in FOREIGN:
            assert status(url, {"Authorization": "Bearer secret", **headers}) in (403, 421)


def test_web_pages_of_other_origins_are_kept_out(worker: EngineWorker) -> None:
    with served(worker) as url:
        reply = get(url, Origin="https://evil.example")
        assert reply.status_code == 403 and "access-control-allow-origin" not in reply.headers
        assert (
            httpx.options(
                f"{url}/v1/models", headers={"Origin": "null"}, trust_env=False, verify=False, timeout=SECONDS
            ).status_code
            == 403
        )


def test_five_foreign_requests_are_refused(worker: EngineWorker) -> None:
    with served(worker) as url:
        assert get(url).status_code == 200
        for headers in FOREIGN:
            reply = get(url, **headers)
            assert reply.status_code == (421 if "Host" in headers else 403) and "example" not in reply.text
            assert reply.json()["error"]["code"] == ("host_not_allowed" if "Host" in headers else "origin_not_allowed")
            assert httpx.get(
                f"{url}/health", headers=headers, trust_env=False, verify=False, timeout=SECONDS
            ).status_code in (403, 421)


def test_a_named_host_and_the_pages_of_a_named_origin(worker: EngineWorker) -> None:
    page, port = "http://localhost:3000", free_port()
    with served(worker, hosts=Hosts("127.0.0.1", port, ["models.lan"]), origins=[page]) as url:
        assert get(url, Host="models.lan").status_code == 200 and get(url, Host="other.lan").status_code == 421
        far = {"Host": "models.lan", "Origin": page, "Sec-Fetch-Site": "cross-site"}
        assert get(url, **far).status_code == 200, "a browser says so of every page that was named"
        assert get(url, **far | {"Host": "rebound.example"}).status_code == 421


def test_a_named_origin_is_let_in(worker: EngineWorker) -> None:
    page = "http://localhost:3000"
    with served(worker, key="secret", origins=[f"{page}/"]) as url:
        asked = httpx.options(
            f"{url}/v1/chat/completions", headers={"Origin": page}, trust_env=False, verify=False, timeout=SECONDS
        )
        assert asked.status_code == 204 and "POST" in asked.headers["access-control-allow-methods"]
        reply = get(url, Origin=page, Authorization="Bearer secret")
        assert reply.headers["access-control-allow-origin"] == page
        assert get(url, Origin="http://localhost:3001", Authorization="Bearer secret").status_code == 403


def test_other_machines_need_a_key() -> None:
    check_door("127.0.0.1", None)
    check_door("127.0.0.1", "secret")
    check_door("0.0.0.0", "s" * SHORTEST_KEY)
    with pytest.raises(InvalidSetting, match="short"):
        check_door("0.0.0.0", "s" * (SHORTEST_KEY - 1))
    with pytest.raises(InvalidSetting, match="--api-key"):
        check_door("0.0.0.0", None)
    for key in ("", " ", "ä", "a\nb"):
        with pytest.raises(InvalidSetting, match="header"):
            check_door("127.0.0.1", key)
