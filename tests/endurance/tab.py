"""A tab of a browser without the browser: the stream of its state, acts and uploads, over HTTP."""

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.app.ui.pages import applied

HANG_SECONDS = 300.0  # no act takes that long, whatever others do
State = dict[str, Any]


class Tab:
    """One page, which holds its stream open until it is closed; without a `session` a new one."""

    def __init__(self, address: str, session: str = "", auth: tuple[str, str] | None = None) -> None:
        self.session, self.state = session or secrets.token_hex(16), State()
        self._shows, self._num_told, self._broken = "read", 0, ""
        self._told = threading.Condition()
        self._http = httpx.Client(base_url=address, timeout=HANG_SECONDS)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        try:
            if auth:
                self._http.post("login", data=dict(zip(("username", "password"), auth, strict=True))).raise_for_status()
            self._listener.start()
            self.until(lambda state: bool(state))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Go away without a word."""
        self._shows = ""
        if self._listener.ident:
            self._listener.join()
        self._http.close()

    def show(self, tab: str) -> None:
        """Look at another of the page's tabs: its stream begins again."""
        self._shows = tab
        self.settle()

    def act(self, act: str, *, times: int = 1, **values: Any) -> bool:
        """Do an act, which is sent as often as a lost connection would have it; whether it was accepted."""
        request = {"session": self.session, "id": secrets.token_hex(12), "act": act, "values": values}
        body, headers = json.dumps(request), {"Content-Type": "application/json"}
        answers = [self._http.post("page/act", content=body, headers=headers) for _ in range(times)]
        return all(answer.is_success and answer.json() for answer in answers)

    def open(self, *files: Path) -> bool:
        answer = self._http.post(
            "gradio_api/upload", files=[("files", (file.name, file.read_bytes())) for file in files]
        )
        return answer.is_success and self.act("open", files=answer.json())

    def until(self, holds: Callable[[State], object], more: int = 0) -> State:
        """The first state for which something holds, after so many `more` were told."""
        with self._told:
            least = self._num_told + more
            came = self._told.wait_for(
                lambda: self._broken or (self._num_told >= least and holds(self.state)), HANG_SECONDS
            )
            if self._broken:
                raise ConnectionError(self._broken)
            if not came:
                raise TimeoutError
            return self.state

    def settle(self, holds: Callable[[State], object] = lambda _: True) -> State:
        """As `until`, of states that were drawn after this call: the next one may have been on its way."""
        return self.until(holds, more=2)

    def _listen(self) -> None:
        try:
            while tab := self._shows:
                params = {"session": self.session, "tab": tab}
                with self._http.stream("GET", "page/state", params=params) as stream:
                    stream.raise_for_status()
                    for line in stream.iter_lines():
                        if line.startswith("data: "):
                            self._take(json.loads(line.removeprefix("data: ")))
                        if self._shows != tab:
                            break
        except httpx.HTTPError as error:
            with self._told:
                self._broken = repr(error)
                self._told.notify_all()

    def _take(self, told: Mapping[str, Any]) -> None:
        with self._told:
            self.state = applied({} if told.get("whole") else self.state, told["parts"])
            self._num_told += 1
            self._told.notify_all()


def busy(state: State) -> bool:
    return "stop-reading" in state["reading"] or not {"answering", "racing"}.isdisjoint(state["flags"])


def exchanges(state: State) -> list[dict[str, Any]]:
    return [state[f"exchange:{name}"] for name in state["chat"]["order"]]


def is_over(state: State, question: str) -> bool:
    """A question was answered, or is back in its box."""
    back = question == state.get("draft", ["", ""])[1]
    asked = back or any(one["question"] == question for one in exchanges(state))
    return asked and "answering" not in state["flags"]


def is_answered(state: State, question: str) -> bool:
    return any(one["question"] == question and ("text" in one or "notice" in one) for one in exchanges(state))
