"""Keys, origins, and which addresses may be listened at without them."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.commands.serve import check_door
from app.worker import EngineWorker
from core.errors import InvalidSetting
from tests.app.serving.servers import ServedEngine, served


@pytest.fixture
def worker(start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    return start_worker(ServedEngine())


def get(url: str, **headers: str) -> Any:
    return httpx.get(f"{url}/v1/models", headers=headers, trust_env=False, verify=False)


def test_without_the_key_nothing_is_told(worker: EngineWorker) -> None:
    with served(worker, key="secret") as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            reply = get(url, **headers)
            assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
            assert "secret" not in reply.text
        assert get(url, Authorization="Bearer secret").status_code == 200
        assert httpx.get(f"{url}/health", trust_env=False, verify=False).status_code == 200


def test_web_pages_of_other_origins_are_kept_out(worker: EngineWorker) -> None:
    with served(worker) as url:
        reply = get(url, Origin="https://evil.example")
        assert reply.status_code == 403 and "access-control-allow-origin" not in reply.headers
        assert (
            httpx.options(f"{url}/v1/models", headers={"Origin": "null"}, trust_env=False, verify=False).status_code
            == 403
        )


def test_a_named_origin_is_let_in(worker: EngineWorker) -> None:
    page = "http://localhost:3000"
    with served(worker, key="secret", origins=[f"{page}/"]) as url:
        asked = httpx.options(f"{url}/v1/chat/completions", headers={"Origin": page}, trust_env=False, verify=False)
        assert asked.status_code == 204 and "POST" in asked.headers["access-control-allow-methods"]
        reply = get(url, Origin=page, Authorization="Bearer secret")
        assert reply.headers["access-control-allow-origin"] == page
        assert get(url, Origin="http://localhost:3001", Authorization="Bearer secret").status_code == 403


def test_other_machines_need_a_key() -> None:
    check_door("127.0.0.1", None)
    check_door("0.0.0.0", "secret")
    with pytest.raises(InvalidSetting, match="--api-key"):
        check_door("0.0.0.0", None)
    for key in ("", " ", "ä", "a\nb"):
        with pytest.raises(InvalidSetting, match="header"):
            check_door("127.0.0.1", key)
