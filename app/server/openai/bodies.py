"""Request bodies with limits of size, time and number, so that slow senders fill neither memory nor the queue."""

import asyncio

from starlette.requests import Request

from app.server.openai.errors import BadRequest, Overloaded, TooLarge

LEAST_BYTES, MOST_BYTES = 1 << 20, 64 << 20
# English takes 4 or 5 bytes a token, 30 if every letter is escaped: a prompt too long for the context still gets read.
BYTES_PER_TOKEN = 128
STALLED_SECONDS = 60.0  # without a byte received from or taken by a client
LONGEST_SECONDS = 300.0  # for a whole body: 64 MiB at 2 Mbit/s
RETRY_SECONDS = 5


class Bodies:
    """Reads request bodies.

    Args:
        most_bytes: of one body.
        most_at_once: bodies that may arrive at the same time.
    """

    def __init__(self, most_bytes: int, most_at_once: int) -> None:
        self.most_bytes = most_bytes
        self._most, self._num_coming = most_at_once, 0  # only the event loop uses these

    async def read(self, request: Request) -> bytes:
        """The whole body.

        Raises:
            TooLarge: before more than `most_bytes` are held. Overloaded: too many bodies arrive now. BadRequest: no
                byte for STALLED_SECONDS, or an incomplete body after LONGEST_SECONDS.
        """
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self.most_bytes:
            raise self._too_large()
        if self._num_coming >= self._most:
            raise Overloaded(self._num_coming, RETRY_SECONDS)
        self._num_coming += 1
        try:
            return await self._joined(request)
        except TimeoutError as error:
            raise BadRequest("The rest of the request took too long to come.") from error
        finally:
            self._num_coming -= 1

    async def _joined(self, request: Request) -> bytes:
        parts, size = [], 0
        clock = asyncio.get_running_loop().time
        end = clock() + LONGEST_SECONDS
        async with asyncio.timeout_at(min(end, clock() + STALLED_SECONDS)) as patience:
            async for part in request.stream():
                patience.reschedule(min(end, clock() + STALLED_SECONDS))
                size += len(part)
                if size > self.most_bytes:
                    raise self._too_large()
                parts.append(part)
        return b"".join(parts)

    def _too_large(self) -> TooLarge:
        most = f"{self.most_bytes / (1 << 20):.3g} MiB"
        return TooLarge(f"The request has more than {most}, the most that is read.", code="request_too_large")


def prompt_bytes(context: int) -> int:
    """The most bytes of a request whose prompt can fit a context of so many tokens."""
    return min(MOST_BYTES, max(LEAST_BYTES, BYTES_PER_TOKEN * context))
