"""Connections that do not say soon what they want are closed: uvicorn waits for a request's head without end."""

import asyncio

import h11
from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0  # for the first line and the headers of a request


class TimedHeads(H11Protocol):
    """uvicorn's connection, closed if the head of a request takes HEAD_SECONDS; bodies and answers take their time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._time()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        self._stop()

    def _time(self) -> None:
        if self.conn.their_state is not h11.IDLE:  # the head is there
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def time_heads() -> None:
    """From now on every server of uvicorn's that does not choose otherwise is one of `TimedHeads`: Gradio's, too."""
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{TimedHeads.__name__}"
