"""The stream of a page: all of it and then its changes, at whatever moment a page comes, goes, or comes back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from starlette.responses import Response

from app.conversations.store import Conversations
from app.runtime.sessions import MOST_SESSIONS
from app.runtime.worker import EngineWorker
from app.server import page_routes
from app.server.page_routes import PageRoutes
from app.ui.acts import MOST_DETAIL
from app.ui.assets import SERVED
from app.ui.site import GROWN
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine, finish, opened, wait_for, write_book
from tests.app.ui.pages import MARK, PageOf, act_id, applied
from tests.app.ui.race.conftest import PAIR, raced

pytestmark = GRADIO_WARNINGS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_routes, "LOOK_SECONDS", 0.005)


def request(path: str, body: bytes = b"", name: str = "", **query: str) -> Request:
    """A request that came through the server."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST" if body else "GET", "path": path, "headers": []}
    return Request(scope | {"query_string": urlencode(query).encode(), "path_params": {"name": name}}, receive)


class Visitor:
    """A browser with the page of one session."""

    def __init__(self, routes: PageRoutes, session_id: str, tab: str = "read") -> None:
        self._routes, self._session_id, self._tab = routes, session_id, tab
        self.shown: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []  # since it connected

    async def comes(self) -> "Visitor":
        """Connect: what is shown is drawn anew."""
        response: Any = await self._routes.state(request("/page/state", session=self._session_id, tab=self._tab))
        assert response.media_type == "text/event-stream" and response.headers["cache-control"] == "no-store"
        self._stream: AsyncIterator[str] = response.body_iterator
        self.shown, self.messages = {}, []
        assert await anext(self._stream) == "retry: 500\n\n"
        assert (await self.takes())["whole"] is True
        return self

    async def takes(self) -> dict[str, Any]:
        """The next message."""
        line = await asyncio.wait_for(anext(self._stream), SECONDS)
        assert line.startswith("data: ") and line.endswith("\n\n") and line.count("\n") == 2
        message: dict[str, Any] = json.loads(line.removeprefix("data: "))
        assert ("whole" in message) == (not self.messages)
        self.messages.append(message)
        self.shown = applied({} if message.get("whole") else self.shown, message["parts"])
        return message

    async def sees(self, holds: Callable[[dict[str, Any]], object]) -> None:
        """Take messages until something is shown."""
        for _ in range(3000):
            if holds(self.shown):
                return
            await self.takes()
        raise AssertionError(f"it does not come: {self.shown}")

    async def goes(self) -> None:
        """Close the connection."""
        await self._stream.aclose()  # type: ignore[attr-defined]


@pytest.fixture
def page(engine: FakeEngine, tmp_path: Path, start_worker: Callable[..., EngineWorker]) -> PageOf:
    """A page with a small book."""
    worker = start_worker(engine, conversations=Conversations(tmp_path / "conversations"))
    return PageOf(worker, opened(worker, write_book(tmp_path)))


@pytest.fixture
def routes(page: PageOf) -> PageRoutes:
    return PageRoutes(page.site)


# -------------------- the whole and its changes


@pytest.mark.parametrize("cuts", [(), (0, 1, 2, 3, 4, 5)])
def test_an_answer_arrives_by_additions_and_is_the_recorded_one_wherever_the_stream_is_cut(
    page: PageOf, routes: PageRoutes, engine: FakeEngine, cuts: tuple[int, ...]
) -> None:
    words = "One | two | three | four | five."
    engine.enqueue(words)

    async def visit() -> None:
        visitor = await Visitor(routes, page.session.id).comes()
        page.begins("Count!")
        for number, word in enumerate(("One", "two", "three", "four", "five")):
            await visitor.sees(lambda shown, word=word: word in shown.get("live.text", "") or "five" in str(shown))
            if number in cuts:
                await visitor.goes()
                await visitor.comes()
            engine.writing.set()
        await visitor.sees(lambda shown: shown["chat"]["order"] and "answering" not in shown["flags"])
        if 5 in cuts:
            await visitor.goes()
            await visitor.comes()
        (node_id,) = visitor.shown["chat"]["order"]
        shown = visitor.shown[f"exchange:{node_id}"]
        (exchange,) = page.session.exchanges
        assert MARK.sub("", shown["text"]) == exchange.finished.text == f"{words} "
        assert shown["question"] == "Count!" and not any(name.startswith("live") for name in visitor.shown)
        if not cuts:
            told = [one for one in (message["parts"].get("live.text") for message in visitor.messages) if one]
            grown = "".join(one[GROWN] if isinstance(one, dict) else one for one in told)
            assert f"{words} ".startswith(grown) and "four" in grown and len(told) > 3, "each word was sent once"
        await visitor.goes()

    finish(visit())


def test_a_page_that_somebody_sees_is_not_forgotten(page: PageOf, routes: PageRoutes) -> None:
    async def visit() -> None:
        visitor = await Visitor(routes, page.session.id).comes()
        for _ in range(2):
            for _ in range(MOST_SESSIONS - 1):
                page.worker.sessions.enter("")
            await visitor.takes()
        assert page.worker.sessions.find(page.session.id) is page.session
        await visitor.goes()

    finish(visit())


def test_two_pages_of_one_session_show_the_same_and_a_stranger_nothing_of_it(
    page: PageOf, routes: PageRoutes, engine: FakeEngine
) -> None:
    async def visit() -> None:
        stranger = PageOf(page.worker, "5" * 32, site=page.site)
        visitors = [await Visitor(routes, one).comes() for one in (page.session.id, page.session.id, "5" * 32)]
        engine.enqueue("One Zanzibar | two.")
        page.begins("Where is Xanadu?")
        page.session.leaves["read"] = "the page of Zanzibar"
        for visitor in visitors[:2]:
            await visitor.sees(lambda shown: "Zanzibar" in shown.get("live.text", "") and "Zanzibar" in shown["leaf"])
        for _ in range(2):
            await visitors[2].takes()
        told = {name: value for name, value in visitors[2].shown.items() if name != "conversations"}  # all are listed
        assert not any(word in str(told) for word in ("Zanzibar", "Xanadu", "book.txt"))
        engine.writing.set()
        await asyncio.to_thread(page.rests)
        for what in (f"card:{page.ids[0]}", "race:card"):
            response = await routes.file(request("/page/file", session=stranger.session.id, what=what))
            assert response.status_code == 204
        assert stranger.problem
        for visitor in visitors:
            await visitor.goes()

    finish(visit())


# -------------------- acts, files and scripts


def test_what_is_no_session_or_no_act_is_refused(page: PageOf, routes: PageRoutes) -> None:
    async def act(body: object) -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await routes.act(request("/page/act", data))
        return response.status_code, bytes(response.body)

    async def visit() -> None:
        num_before = len(page.worker.sessions.all())
        no_sessions = ("", "0" * 31, "0" * 33, "z" + "0" * 32, "G" * 32, "../" * 11, "0" * 32 + "\n", "٣" * 32)
        for wrong in no_sessions:
            assert (await routes.state(request("/page/state", session=wrong))).status_code == 400
            assert (await routes.file(request("/page/file", session=wrong, what="race:card"))).status_code == 404
        assert len(page.worker.sessions.all()) == num_before
        one = {"session": page.session.id, "id": act_id(), "act": "search:words", "values": {}}
        assert await act(one) == await act(one) == (200, b"true") and page.session.search == "words"
        assert await act(one | {"id": act_id(), "act": "explode"}) == (200, b"false")
        wrong_fields = [{"session": wrong} for wrong in no_sessions]
        wrong_fields += [{"id": wrong} for wrong in ("", "short", "x" * 65, 3)]
        wrong_fields += [{"act": "x" * (MOST_DETAIL + 1)}, {"act": None}, {"values": []}]
        wrong_bodies = [one | {"id": act_id()} | wrong for wrong in wrong_fields]
        for wrong_body in (b"", b"\xff", b'{"act": "\\ud800"}', b"[" * 100_000, *wrong_bodies):
            assert await act(wrong_body) == (400, b"This is no act of the page."), wrong_body

    finish(visit())


def test_files_of_every_kind_are_saved_and_what_is_not_there_is_told(
    page: PageOf, routes: PageRoutes, engine: FakeEngine
) -> None:
    engine.enqueue("It was a dark night.")
    page.asks("Wie wár “es”; ../x?")
    for _ in PAIR:
        engine.enqueue("It was dark.")
    raced(page.worker, page.session.id, PAIR)
    dialogue, (node_id,) = page.session.dialogue_id, page.ids

    async def saved(what: str) -> Response:
        page.session.problem = None
        return await routes.file(request("/page/file", session=page.session.id, what=what))

    async def visit() -> None:
        for what, type_, ending, holds in (
            (f"markdown:{dialogue}", "text/markdown", ".md", "dark night"),
            (f"json:{dialogue}", "application/json", ".json", '"question"'),
            (f"card:{node_id}", "text/html", ".html", "<!doctype html>"),
            ("race:card", "text/html", ".html", "<!doctype html>"),
            ("race:json", "application/json", ".json", '"methods"'),
        ):
            response = await saved(what)
            assert response.status_code == 200 and response.headers["content-type"].startswith(type_), what
            name = response.headers["content-disposition"].removeprefix("attachment; filename*=UTF-8''")
            assert name.endswith(ending) and name.isascii() and not {*'/"; '} & {*name}, name
            assert holds in bytes(response.body).decode() and page.problem == "", what
        for what in ("", "markdown", "markdown:nobody", "json:../../x", "card:nobody", "card", f"pdf:{dialogue}", "__"):
            response = await saved(what)
            assert (response.status_code, bytes(response.body)) == (204, b"") and page.problem, what
        assert page.session.race is not None
        for race in (replace(page.session.race, ended=False), None):
            page.session.race = race
            for what in ("race:card", "race:nonsense"):
                assert (await saved(what)).status_code == 204 and "no finished race" in page.problem

    finish(visit())


def test_only_the_scripts_of_the_page_are_served(routes: PageRoutes) -> None:
    async def visit() -> None:
        for name, file in SERVED.items():
            response = await routes.static(request("/page/static", name=name))
            assert response.status_code == 200 and bytes(response.body) == file.read_bytes()
            assert "javascript" in response.headers["content-type"]
        for wrong in ("", "theme.css", "../app.py", "..", "stream.js/", "STREAM.JS", "\0", "LICENSES.txt"):
            assert (await routes.static(request("/page/static", name=wrong))).status_code == 404

    finish(visit())


def test_the_answer_of_a_page_that_has_gone_stops_and_is_kept(
    page: PageOf, routes: PageRoutes, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_routes, "GONE_SECONDS", 0.3)
    engine.enqueue("One two | three.")

    def writes() -> object:
        return page.worker.jobs.of(page.session.id, "answer")

    async def visit() -> None:
        first, second = [await Visitor(routes, page.session.id).comes() for _ in range(2)]
        page.begins("Count!")
        await first.sees(lambda shown: "two" in shown.get("live.text", ""))
        await first.goes()
        await asyncio.sleep(0.6)
        assert writes(), "another page still shows it"
        await second.goes()
        third = await Visitor(routes, page.session.id).comes()  # a reload
        await asyncio.sleep(0.6)
        assert writes() and third.shown["live.text"] == "One two "
        await third.goes()
        await asyncio.to_thread(wait_for, lambda: not writes())  # while the loop goes on
        assert page.session.exchanges[0].finished.text == "One two " and not page.session.abandoned
        await third.comes()
        assert "live" not in third.shown and len(third.shown["chat"]["order"]) == 1
        await third.goes()

    finish(visit())
