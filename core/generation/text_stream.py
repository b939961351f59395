"""The text of an answer as its tokens come: whole characters, and an end where a stop string begins."""

from collections.abc import Sequence

from core.generation.text import PromptText

REPLACEMENT = "\ufffd"
# Most bytes of a UTF-8 character, so most byte tokens that a detokenizer waits for.
LONGEST_CHARACTER = 4


class StreamDecoder:
    """Turns tokens into text one by one, never emitting half a character.

    A token's text depends at most on the token before it (leading spaces), so only the end of the answer is decoded.
    """

    def __init__(self, text: PromptText) -> None:
        self._text = text
        self._ids: list[int] = []
        self._context = self._whole = 0  # ids from `_context` on are decoded again; before `_whole` no character is cut
        self._shown = 0  # characters of what is decoded again
        self._begun = 0  # ids before the one in which the waiting character begins

    def push(self, token_id: int) -> str:
        """The text that the token completes; "" inside a character."""
        self._ids.append(token_id)
        after = self._text.decode(self._ids[self._context :])
        waits = after.endswith(REPLACEMENT) and len(self._ids) - self._begun < LONGEST_CHARACTER
        new = (after.rstrip(REPLACEMENT) if waits else after)[self._shown :]
        self._shown += len(new)
        if new or not waits:
            self._begun = len(self._ids) - waits
        if not waits:
            if new:  # behind a special token, which has no text, the token before it is still needed
                self._context = self._whole
            self._whole = len(self._ids)
            self._shown = len(self._text.decode(self._ids[self._context :]))
        return new

    def flush(self) -> str:
        """The remaining text at the end of the answer."""
        rest = self._text.decode(self._ids[self._context :])[self._shown :]
        self._shown += len(rest)
        return rest


class StopWatcher:
    """Finds the first stop string in a stream, holding back text that may become one."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stops = tuple(stop_strings)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Text that is safe to show. After a stop string `stopped` is set and nothing more is shown."""
        if self.stopped:
            return ""
        self._held += text
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            shown, self._held = self._held[: min(places)], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """The remaining text when the stream ends."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop`."""
        return next((n for n in range(min(len(stop) - 1, len(self._held)), 0, -1) if self._held.endswith(stop[:n])), 0)
