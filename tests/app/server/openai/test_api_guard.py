"""Keys, origins, and which addresses may be listened at without them."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.cli.serve import SHORTEST_KEY, check_door
from app.runtime.worker import EngineWorker
from app.server.request_guard import Hosts
from core.errors import InvalidSetting
from tests.app.fakes import FOREIGN, SECONDS, free_port
from tests.app.server.openai.servers import ServedEngine, served


@pytest.fixture
def worker(start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    return start_worker(ServedEngine())


def get(url: str, path: str = "/v1/models", method: str = "GET", **headers: str) -> Any:
    body = {} if method == "POST" else None
    quick: Any = {"verify": False, "trust_env": False, "timeout": SECONDS}  # no certificates are read
    return httpx.request(method, url + path, headers=headers, json=body, **quick)


PAGE, KEY = "http://localhost:3000", {"Authorization": "Bearer secret"}
ADDRESSES = [("GET", "/v1/models"), ("GET", "/v1/models/fake"), ("POST", "/tokenize")]
ADDRESSES += [("POST", f"/v1/{name}") for name in ("chat/completions", "completions", "responses")]


def test_every_address_asks_for_the_key_and_refuses_foreign_pages(worker: EngineWorker) -> None:
    with served(worker, key="secret") as url:
        for method, path in ADDRESSES:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                reply = get(url, path, method, **headers)
                assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key"), path
                assert "secret" not in reply.text
            assert get(url, path, method, **KEY).status_code in (200, 400), path
            for headers in FOREIGN:
                reply = get(url, path, method, **KEY, **headers)
                refusal = (421, "host_not_allowed") if "Host" in headers else (403, "origin_not_allowed")
                assert (reply.status_code, reply.json()["error"]["code"]) == refusal and "example" not in reply.text
                assert "access-control-allow-origin" not in reply.headers


def test_health_needs_no_key_and_foreign_pages_do_not_see_it(worker: EngineWorker) -> None:
    with served(worker, key="secret") as url:
        assert get(url, "/health").status_code == 200
        assert {get(url, "/health", **headers).status_code for headers in FOREIGN} <= {403, 421}
        assert get(url, method="OPTIONS", Origin="null").status_code == 403


def test_a_named_host_and_the_pages_of_a_named_origin_are_let_in(worker: EngineWorker) -> None:
    hosts = Hosts("127.0.0.1", free_port(), ["models.lan"])
    with served(worker, key="secret", hosts=hosts, origins=[f"{PAGE}/"]) as url:
        assert get(url, Host="models.lan", **KEY).status_code == 200
        assert get(url, Host="other.lan", **KEY).status_code == 421
        far = KEY | {"Host": "models.lan", "Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
        reply = get(url, **far)
        assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == PAGE
        assert get(url, **far | {"Host": "rebound.example"}).status_code == 421
        assert get(url, **far | {"Origin": "http://localhost:3001"}).status_code == 403
        asked = get(url, "/v1/chat/completions", "OPTIONS", Host="models.lan", Origin=PAGE)
        assert asked.status_code == 204 and "POST" in asked.headers["access-control-allow-methods"]


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
