"""A model on a server as a `TextEngine`: it reads a book and answers. What it lacks, `lacking` says.

Prompts are lists of numbers elsewhere in the app, so a number stands for a few characters here; nothing keeps them.
"""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any

from app.remote.server import RemoteError, Server, is_count
from core.caches.tokens import common_prefix
from core.config import EngineConfig, GenerationConfig
from core.decoding.registry import REMOTE
from core.decoding.stats import DecodeStats
from core.engine_info import EngineInfo
from core.errors import ContextBeyondModel, ContextTooSmall, InvalidSetting, UnknownModel
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Event, Finished, PrefillProgress, RoundDone
from core.generation.text import Turn

USER, ASSISTANT = 2, 3  # begin a message; characters have larger numbers
ROLES = {USER: "user", ASSISTANT: "assistant"}
BYTES_PER_TOKEN = 4.0  # of text that the server does not count
LEAST_COUNTED = 8192  # bytes of the first text that the server is asked to count
FIRST_WORDS = "?"  # a question in its place when a book is read before any question


def lacking(base: str) -> str:
    """What people must know of a model there."""
    return (
        f"Books, questions and answers are sent to {base}. Race, Inside, where in the book, saved books, Continue and "
        "figures of acceptance belong to models of this machine; how exact a server's answers are cannot be seen."
    )


class RemoteText:
    """Texts as groups of characters, about as many as the server has tokens.

    Args:
        server: counts the first long text, if it can; all others are estimated from that.
    """

    eos_ids: frozenset[int] = frozenset()
    beginning: Sequence[int] = ()
    knows_offsets = True

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._model = server, model
        self._bytes_per_token = 0.0  # 0: nothing was counted

    def offsets(self, text: str) -> list[int]:
        """Index of the first character of each group of `encode(text)`."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if not self._bytes_per_token and size >= LEAST_COUNTED:
            count = self._server.count(self._model, text)
            self._bytes_per_token = size / count if count else BYTES_PER_TOKEN
        number = min(-int(-size // (self._bytes_per_token or BYTES_PER_TOKEN)), len(text))
        return [len(text) * at // number for at in range(number)]

    def encode(self, text: str) -> list[int]:
        """A number for each group."""
        return [number_of(text[start:end]) for start, end in pairwise([*self.offsets(text), len(text)])]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of numbers."""
        return "".join(map(characters_of, token_ids))

    def opening(self, book_ids: Sequence[int], thinking: str | None = None) -> list[int]:
        """Everything before the first question."""
        return [USER, *book_ids]

    def prompt(self, book_ids: Sequence[int], turns: Sequence[Turn], thinking: str | None = None) -> list[int]:
        """The conversation so far; the first message has the book, an empty line, and the first question."""
        ids = self.opening(book_ids)
        for number, turn in enumerate(turns):
            ids += [USER] if number else []
            ids += self.encode(f"\n\n{turn.question}" if number == 0 and book_ids else turn.question)
            ids += [] if turn.answer_ids is None else [ASSISTANT, *turn.answer_ids]
        return ids

    def messages(self, prompt_ids: Sequence[int]) -> list[dict[str, str]]:
        """The messages of a prompt; the last is a question."""
        starts = [at for at, number in enumerate(prompt_ids) if number in ROLES]
        return [
            {"role": ROLES[prompt_ids[start]], "content": self.decode(prompt_ids[start + 1 : end])}
            for start, end in pairwise([*starts, len(prompt_ids)])
        ]

    def without_thought(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """All: a server sends its thought beside the answer."""
        return tuple(token_ids)

    def thought_over(self, prompt_ids: list[int], written: Sequence[int]) -> list[int]:
        """The same prompt."""
        return prompt_ids

    def pieces(self, roles: Sequence[str], thinking: str | None = None) -> list[list[int]]:
        """Raises RemoteError: the server applies its template itself."""
        raise RemoteError("A server's chat format cannot be seen from here.", hint="Start without --remote.")


class RemoteEngine:
    """One model on one server."""

    def __init__(self, server: Server, model: str, context: int) -> None:
        self._server, self._model, self.context = server, model, context
        self._sent: Sequence[int] = ()  # the newest prompt, which the server has in its prefix cache
        self.config, self.text = EngineConfig(context=context), RemoteText(server, model)
        self.info = EngineInfo(
            model=f"{model} @ {server.name}",
            description=f"On the server {server.base}. Numbers of tokens are estimates before it has answered.",
            most_context=context,
            thinking=("on", "off"),
            elsewhere=lacking(server.base),
        )

    @classmethod
    def connect(cls, server: Server, model: str | None, context: int | None) -> "RemoteEngine":
        """The server's model of that name, or its only one, with the context that was asked for, or the server's.

        Raises:
            UnknownModel, InvalidSetting, ContextBeyondModel, RemoteError.
        """
        models = server.models()
        name = next(iter(models), "") if model is None and len(models) < 2 else model
        if name not in models:
            problem = f"no model {model!r}" if model else "several models" if models else "no model"
            hint = f"Choose with --model: {', '.join(models)[:400]}." if models else "Load one there, then try again."
            raise UnknownModel(f"The server at {server.name} has {problem}.", hint=hint)
        most = models[name]
        if context is not None and most is not None and context > most:
            raise ContextBeyondModel(context, most)
        if (context or most) is None:
            raise InvalidSetting(
                "The server does not say how many tokens its model reads.", hint="Add --context with that number."
            )
        return cls(server, name, context or most or 0)

    def close(self) -> None:
        """Nothing is open between two answers."""

    def knows(self, token_ids: Sequence[int]) -> bool:
        """No: earlier answers are encoded anew from their texts."""
        return False

    def cached_prefix(self, prompt_ids: Sequence[int]) -> int:
        """What was sent before; whether the server still has it in its cache is not visible."""
        return common_prefix(self._sent, prompt_ids)

    def read(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> Iterator[PrefillProgress]:
        """Let the server read a prompt ahead of a question, so that its prefix cache has it.

        Raises:
            ContextTooSmall, RemoteError.
        """
        started = time.perf_counter()
        yield (first := self._begin(prompt_ids))
        if first.done_tokens == first.total_tokens:
            return
        messages = self.text.messages([*prompt_ids, *self.text.encode(f"\n\n{FIRST_WORDS}")])
        for _ in self._server.answer(self._body(messages, 1), cancel):
            pass
        if not (cancel and cancel.is_set()):
            self._sent = list(prompt_ids)
            yield _progress(first.total_tokens, first.total_tokens, first.reused_tokens, time.perf_counter() - started)

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        cancel: threading.Event | None = None,
        *,
        written: Sequence[int] = (),
        boundary: int = 0,
    ) -> Generator[Event]:
        """Send a prompt and yield the answer: PrefillProgress, RoundDone*, Finished.

        Times are measured here: network and the server's queue are in them. Tokens are the server's count, and events
        before it has told it.

        Raises:
            ContextTooSmall, RemoteError.
        """
        if written:
            raise RemoteError("A server does not go on with an answer.", hint="Regenerate it with more new tokens.")
        yield (progress := self._begin(prompt_ids))
        sampling, most = config.sampling, min(config.max_new_tokens, self.context - len(prompt_ids))
        body = self._body(self.text.messages(prompt_ids), most) | {"temperature": sampling.temperature}
        body["stream_options"] = {"include_usage": True}
        if not sampling.greedy:
            body |= {"top_p": sampling.top_p, "seed": config.seed}
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        if config.thinking:
            body["chat_template_kwargs"] = {"enable_thinking": config.thinking == "on"}
        text, thought, reason, usage = "", "", None, dict[str, Any]()
        started = last = time.perf_counter()
        first, stats = 0.0, DecodeStats()
        for piece in self._server.answer(body, cancel):
            text, thought, reason = text + piece.text, thought + piece.thought, piece.reason or reason
            usage |= piece.usage
            if piece.text or piece.thought:
                last = time.perf_counter()
                first = first or last
                stats = DecodeStats(
                    new_tokens=stats.new_tokens + 1,
                    decode_seconds=last - (first if stats.new_tokens else started),
                    thought_tokens=stats.thought_tokens + bool(piece.thought),
                )
                yield RoundDone(text=piece.text, tokens=(), stats=stats, thought=piece.thought)
        if first:
            self._sent = list(prompt_ids)
        new = _counted(usage, "completion_tokens", stats.new_tokens)
        cancelled = bool(cancel and cancel.is_set())
        yield Finished(
            text=text,
            token_ids=(),
            stop_reason="cancelled" if cancelled else "max_new_tokens" if reason == "length" else "end_of_text",
            stats=DecodeStats(
                new_tokens=new,
                decode_seconds=stats.decode_seconds,
                thought_tokens=min(new, stats.thought_tokens),
            ),
            prompt_tokens=_counted(usage, "prompt_tokens", len(prompt_ids)),
            reused_tokens=_counted(usage.get("prompt_tokens_details"), "cached_tokens", progress.reused_tokens),
            prefill_seconds=(first or last) - started,
            method=REMOTE,
            exact=False,
            thought=thought.strip(),
            in_thought=bool(thought and not text),
        )

    def _begin(self, prompt_ids: Sequence[int]) -> PrefillProgress:
        needed, total = len(prompt_ids) + LONGEST_ROUND, len(prompt_ids) - 1
        if needed > self.context:
            raise ContextTooSmall(needed, self.context, possible=self.context)
        known = min(total, self.cached_prefix(prompt_ids))
        return _progress(known, total, known)

    def _body(self, messages: list[dict[str, str]], most: int) -> dict[str, Any]:
        return {"model": self._model, "messages": messages, "max_tokens": most, "temperature": 0.0, "stream": True}


def number_of(characters: str) -> int:
    """A few characters as a number."""
    return int.from_bytes(b"\x01" + characters.encode("utf-8", "surrogatepass"), "big")


def characters_of(number: int) -> str:
    """The text of a number that `number_of` made."""
    return number.to_bytes((number.bit_length() + 7) // 8, "big")[1:].decode("utf-8", "surrogatepass")


def _progress(done: int, total: int, reused: int, elapsed: float = 0.0) -> PrefillProgress:
    return PrefillProgress(
        done_tokens=done, total_tokens=total, reused_tokens=reused, elapsed_seconds=elapsed, remaining_seconds=None
    )


def _counted(usage: Any, name: str, otherwise: int) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if is_count(count) else otherwise
