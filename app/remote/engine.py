"""A model on a server as a `TextEngine`: it reads a book and answers. `local` refuses what only a model here can do.

Prompts are lists of numbers elsewhere in the app, so a number stands for a few bytes of text here; nothing keeps them.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from app.remote.server import RemoteError, Server, count_of
from core.caches.tokens import common_prefix
from core.config import EngineConfig, GenerationConfig
from core.decoding.registry import REMOTE
from core.decoding.stats import DecodeStats
from core.engine_info import EngineInfo
from core.errors import ContextBeyondModel, ContextTooSmall, InvalidSetting, UnknownModel
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Event, Finished, PrefillProgress, RoundDone
from core.generation.text import Turn

ROLES = {2: "user", 3: "assistant"}  # numbers that begin a message; those of texts are larger
USER, ASSISTANT = ROLES
BYTES_PER_TOKEN = 4.0  # of text that the server does not count
LEAST_COUNTED = 8192  # bytes of the first text that it is asked to count


class RemoteText:
    """Texts as groups of bytes, about as many as the server has tokens.

    Args:
        count: counts the tokens of the first long text, if the server can; all others are estimated from that.
    """

    eos_ids: frozenset[int] = frozenset()
    knows_offsets = False

    def __init__(self, count: Callable[[str], int | None]) -> None:
        self._count, self._bytes_per_token = count, 0.0  # 0: nothing was counted

    def offsets(self, text: str) -> list[int]:
        """Nothing: groups of bytes begin within characters."""
        return []

    def encode(self, text: str) -> list[int]:
        """A number for each group: its bytes behind a 1."""
        whole = text.encode("utf-8", "surrogatepass")
        if not self._bytes_per_token and len(whole) >= LEAST_COUNTED:
            self._bytes_per_token = len(whole) / (self._count(text) or len(whole) / BYTES_PER_TOKEN)
        number = min(-int(-len(whole) // (self._bytes_per_token or BYTES_PER_TOKEN)), len(whole))
        ends = [len(whole) * at // number for at in range(number + 1)] if whole else []
        return [int.from_bytes(b"\x01" + whole[start:end], "big") for start, end in pairwise(ends)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of numbers."""
        groups = (number.to_bytes((number.bit_length() + 7) // 8, "big")[1:] for number in token_ids)
        return b"".join(groups).decode("utf-8", "surrogatepass")

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


class RemoteEngine:
    """One model on one server: that of a name, or its only one, with the context asked for, or the server's."""

    def __init__(self, server: Server, model: str | None, context: int | None) -> None:
        """Raises UnknownModel, InvalidSetting, ContextBeyondModel, RemoteError."""
        models = server.models()
        name = next(iter(models), "") if model is None and len(models) < 2 else model
        if name not in models:
            problem = f"no model {model!r}" if model else "several models" if models else "no model"
            hint = f"Choose with --model: {', '.join(models)[:400]}." if models else "Load one there, then try again."
            raise UnknownModel(f"The server at {server.name} has {problem}.", hint=hint)
        most = models[name]
        if context is not None and most is not None and context > most:
            raise ContextBeyondModel(context, most)
        if not (context := context or most):
            raise InvalidSetting(
                "The server does not say how many tokens its model reads.",
                hint="Add --context with that number; of Ollama its OLLAMA_CONTEXT_LENGTH, where it cuts silently.",
            )
        self._server, self._model, self.context = server, name, context
        self._sent: Sequence[int] = ()  # the newest prompt, which the server has in its prefix cache
        self.config, self.text = EngineConfig(context=context), RemoteText(partial(server.count, name))
        self.info = EngineInfo(
            model=f"{name} @ {server.name}",
            description=f"On the server {server.base}. Numbers of tokens are estimates before it has answered.",
            most_context=context,
            thinking=("on", "off"),
            elsewhere=f"Books, questions and answers are sent to {server.base}. Race, Inside, where in the book, saved "
            "books, Continue and figures of acceptance belong to models of this machine; how exact a server's answers "
            "are cannot be seen.",
        )

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
        yield (begun := self._begun(prompt_ids))
        if begun.done_tokens < begun.total_tokens:
            for _ in self._server.answer(self._body([*prompt_ids, *self.text.encode("\n\n?")], 1), cancel):
                pass
            if not (cancel and cancel.is_set()):
                self._sent = list(prompt_ids)
                seconds = time.perf_counter() - started
                yield replace(begun, done_tokens=begun.total_tokens, elapsed_seconds=seconds)

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

        Times are measured here: network and the server's queue are in them. Tokens are the server's count, and pieces
        of its stream before it has told it.

        Raises:
            ContextTooSmall, RemoteError.
        """
        if written:
            raise RemoteError("A server does not go on with an answer.", hint="Regenerate it with more new tokens.")
        yield (begun := self._begun(prompt_ids))
        sampling, most = config.sampling, min(config.max_new_tokens, self.context - len(prompt_ids))
        body = self._body(prompt_ids, most) | {"stream_options": {"include_usage": True}}
        if not sampling.greedy:
            body |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": config.seed}
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        if config.thinking:
            body["chat_template_kwargs"] = {"enable_thinking": config.thinking == "on"}
        text, thought, reason, usage, stats = "", "", None, dict[str, Any](), DecodeStats()
        started = time.perf_counter()
        first = 0.0  # when the first word came
        for piece in self._server.answer(body, cancel):
            reason, usage = piece.reason or reason, usage | piece.usage
            if not (piece.text or piece.thought):
                continue
            now, text, thought = time.perf_counter(), text + piece.text, thought + piece.thought
            stats = DecodeStats(
                new_tokens=stats.new_tokens + 1,
                decode_seconds=now - (first or started),
                thought_tokens=stats.thought_tokens + bool(piece.thought),
            )
            first = first or now
            yield RoundDone(text=piece.text, tokens=(), stats=stats, thought=piece.thought)
        if first:
            self._sent = list(prompt_ids)
        new = count_of(usage, "completion_tokens") or stats.new_tokens
        read, reused = count_of(usage, "prompt_tokens"), count_of(usage.get("prompt_tokens_details"), "cached_tokens")
        cancelled = bool(cancel and cancel.is_set())
        yield Finished(
            text=text,
            token_ids=(),
            stop_reason="cancelled" if cancelled else "max_new_tokens" if reason == "length" else "end_of_text",
            stats=replace(stats, new_tokens=new, thought_tokens=min(new, stats.thought_tokens)),
            prompt_tokens=len(prompt_ids) if read is None else read,
            reused_tokens=begun.reused_tokens if reused is None else reused,
            prefill_seconds=(first or time.perf_counter()) - started,
            method=REMOTE,
            exact=False,
            thought=thought.strip(),
            in_thought=bool(thought and not text),
        )

    def _begun(self, prompt_ids: Sequence[int]) -> PrefillProgress:
        needed, total = len(prompt_ids) + LONGEST_ROUND, len(prompt_ids) - 1
        if needed > self.context:
            raise ContextTooSmall(needed, self.context, possible=self.context)
        sent = min(total, self.cached_prefix(prompt_ids))
        return PrefillProgress(
            done_tokens=sent, total_tokens=total, reused_tokens=sent, elapsed_seconds=0.0, remaining_seconds=None
        )

    def _body(self, prompt_ids: Sequence[int], most: int) -> dict[str, Any]:
        messages = self.text.messages(prompt_ids)
        return {"model": self._model, "messages": messages, "max_tokens": most, "temperature": 0.0, "stream": True}
