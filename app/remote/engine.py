"""A model on a server as the app's engine: it reads and answers; what it lacks, `lacking` says in one place.

Prompts are lists of numbers elsewhere in the app, so a piece of text stands for a token here. Nothing keeps these
numbers: what is recorded is the text, and the server's own counts.
"""

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NoReturn, cast

import torch

from app.remote.server import Piece, RemoteError, Server, is_count
from core.caches.tokens import common_prefix
from core.config import EngineConfig, GenerationConfig
from core.decoding.registry import REMOTE
from core.decoding.stats import DecodeStats
from core.engine_info import EngineInfo, Equality
from core.errors import ContextBeyondModel, ContextTooSmall, InvalidSetting, UnknownModel
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Event, Finished, LaneEvent, PrefillProgress, RoundDone, StopReason
from core.generation.text import Turn
from core.generation.together import Question, one_by_one
from core.planning.choices import Choice
from core.planning.plan import Placement, Plan
from core.planning.sizes import CacheSizes

USER, ASSISTANT = 2, 3  # begin a message; pieces of text have other numbers
ROLES = {USER: "user", ASSISTANT: "assistant"}
BYTES_PER_TOKEN = 4.0  # of text that the server does not count
LEAST_COUNTED = 8192  # characters; shorter texts are estimated from the last longer one
FIRST_WORDS = "?"  # a question in its place when a book is read before any question
MOST_SENT = 32  # prompts that the server may have in its cache
ENDINGS: dict[str | None, StopReason] = {"length": "max_new_tokens"}
SWITCHED = ("on", "off")
UNSEEN = "the server's own, which cannot be seen from here"


def lacking(base: str) -> str:
    """What people must know of a model there."""
    return (
        f"Books, questions and answers are sent to {base}. Race, Inside, where in the book, saved books, Continue and "
        "figures of acceptance belong to models of this machine; how exact a server's answers are cannot be seen."
    )


class RemoteText:
    """Texts as pieces that stand for tokens, as many as the server counts or about as many as it would.

    Args:
        count: tokens of a text, counted by the server; None: it does not count.
    """

    eos_ids: frozenset[int] = frozenset()
    beginning: Sequence[int] = ()
    knows_offsets = True

    def __init__(self, count: Any = None) -> None:
        self._count = lru_cache(maxsize=64)(count or (lambda _: None))
        self._bytes_per_token = BYTES_PER_TOKEN

    def offsets(self, text: str) -> list[int]:
        """Index of the first character of each piece of `encode(text)`."""
        size = len(text.encode("utf-8", "surrogatepass"))
        number = self._count(text) if len(text) >= LEAST_COUNTED else None
        if number:
            self._bytes_per_token = size / number
        number = min(number or -int(-size // self._bytes_per_token), len(text))
        return [len(text) * at // number for at in range(number)]

    def encode(self, text: str) -> list[int]:
        """The pieces of a text."""
        return [number_of(text[start:end]) for start, end in pairwise([*self.offsets(text), len(text)])]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of pieces."""
        return "".join(map(piece_of, token_ids))

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

    def thought_over(self, prompt_ids: list[int], _written: Sequence[int]) -> list[int]:
        """The same prompt."""
        return prompt_ids

    def pieces(self, _roles: Sequence[str], _thinking: str | None = None) -> list[list[int]]:
        """Raises RemoteError: the server applies its template itself."""
        _not_here("A server's chat format cannot be seen from here.")


class RemoteEngine:
    """One model on one server; a `TextEngine` as far as `lacking` says."""

    holds_all_chunks = False

    def __init__(self, server: Server, model: str, context: int) -> None:
        self._server, self._model, self.context = server, model, context
        self._sent: deque[list[int]] = deque(maxlen=MOST_SENT)
        self.config = EngineConfig(context=context)
        counts = server.count(model, FIRST_WORDS) is not None
        self.text = RemoteText((lambda text: server.count(model, text)) if counts else None)
        self.info = _info(server, model, context, estimates=not counts)

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

    def knows(self, _token_ids: Sequence[int]) -> bool:
        """No: earlier answers are encoded anew from their texts."""
        return False

    def cached_prefix(self, prompt_ids: Sequence[int]) -> int:
        """What was sent before; whether the server still has it in its cache is not visible."""
        return max((common_prefix(sent, prompt_ids) for sent in self._sent), default=0)

    def read(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> Iterator[PrefillProgress]:
        """Let the server read a prompt ahead of a question, so that its prefix cache has it.

        Raises:
            ContextTooSmall, RemoteError.
        """
        started, total = time.perf_counter(), len(prompt_ids) - 1
        yield (first := self._begin(prompt_ids))
        if first.done_tokens == total:
            return
        messages = self.text.messages([*prompt_ids, *self.text.encode(f"\n\n{FIRST_WORDS}")])
        for _ in self._server.answer(self._body(messages, 1), cancel):
            pass
        if not (cancel and cancel.is_set()):
            self._sent.append(list(prompt_ids))
            yield _progress(total, total, first.reused_tokens, time.perf_counter() - started)

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

        Raises:
            ContextTooSmall, RemoteError.
        """
        if written:
            _not_here("A server does not go on with an answer.", "Regenerate it with more new tokens.")
        yield (progress := self._begin(prompt_ids))
        sampling, most = config.sampling, min(config.max_new_tokens, self.context - len(prompt_ids))
        body = self._body(self.text.messages(prompt_ids), most) | {"temperature": sampling.temperature}
        body["stream_options"] = {"include_usage": True}
        if not sampling.greedy:
            body |= {"top_p": sampling.top_p, "seed": config.seed}
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        if config.thinking:
            body["chat_template_kwargs"] = {"enable_thinking": config.thinking == "on"}
        answer = _Answer()
        for piece in self._server.answer(body, cancel):
            answer.add(piece)
            if piece.text or piece.thought:
                yield RoundDone(text=piece.text, tokens=(), stats=answer.stats, thought=piece.thought)
        cancelled = bool(cancel and cancel.is_set())
        if answer.reason is None and not cancelled:
            raise self._server.broken_off()
        if answer.first is not None:
            self._sent.append(list(prompt_ids))
        yield answer.finished(len(prompt_ids), progress.reused_tokens, cancelled=cancelled)

    def answer_together(self, questions: Sequence[Question]) -> Generator[LaneEvent]:
        """One answer after the other."""
        yield from one_by_one(self.generate, questions)

    def together(self, _questions: Sequence[Question]) -> Choice[int]:
        """One: a server has its own order."""
        return Choice(1, "a server has its own order")

    def _begin(self, prompt_ids: Sequence[int]) -> PrefillProgress:
        needed, total = len(prompt_ids) + LONGEST_ROUND, len(prompt_ids) - 1
        if needed > self.context:
            raise ContextTooSmall(needed, self.context, possible=self.context)
        known = min(total, self.cached_prefix(prompt_ids))
        return _progress(known, total, known)

    def _body(self, messages: list[dict[str, str]], most: int) -> dict[str, Any]:
        return {"model": self._model, "messages": messages, "max_tokens": most, "temperature": 0.0, "stream": True}

    # -------------------- what only an engine of this process has

    def use_budget(self, _budget: int | None) -> int:
        return 0

    def retrieves(self, _method: str) -> bool:
        return False

    def chunk_weights(self) -> torch.Tensor:
        return torch.empty(0)

    def weights_after(self, _prompt_ids: Sequence[int], _cancel: threading.Event | None = None) -> None:
        return

    def race(
        self,
        _prompt_ids: Sequence[int],
        _configs: Sequence[GenerationConfig],
        _cancel: threading.Event | None = None,
        *,
        seconds: float | None = None,
        boundary: int = 0,
    ) -> Generator[LaneEvent]:
        _not_here("A race needs its methods in one engine.")

    def compare(self, _prompt_ids: Sequence[int], _plain: Sequence[int], _other: Sequence[int]) -> Equality:
        _not_here("A server's logits cannot be seen from here.")


class _Answer:
    """One answer as its pieces arrive. Times are measured here: network and the server's queue are in them."""

    def __init__(self) -> None:
        self.started = self._last = time.perf_counter()
        self.first: float | None = None
        self.reason: str | None = None
        self._said: list[str] = []
        self._thought: list[str] = []
        self._usage: dict[str, Any] = {}

    def add(self, piece: Piece) -> None:
        self.reason = piece.reason or self.reason
        self._usage |= piece.usage
        self._said += [piece.text] if piece.text else []
        self._thought += [piece.thought] if piece.thought else []
        if piece.text or piece.thought:
            self._last = time.perf_counter()
            self.first = self.first or self._last

    @property
    def stats(self) -> DecodeStats:
        """Tokens by the server's count, until it tells by pieces.

        The first piece comes when reading ends, so the time since then is scaled up from the others to all; one piece
        alone has the whole time, so that no speed is overstated.
        """
        parts, thoughts = len(self._said) + len(self._thought), len(self._thought)
        new = self._used("completion_tokens", parts)
        since = self._last - (self.first or self._last)
        return DecodeStats(
            new_tokens=new,
            decode_seconds=since * parts / (parts - 1) if parts > 1 else self._last - self.started,
            thought_tokens=min(new, self._used("completion_tokens_details", thoughts, "reasoning_tokens")),
        )

    def finished(self, num_prompt: int, num_reused: int, *, cancelled: bool) -> Finished:
        """The end, with the server's counts; those of the prompt are estimates where it tells none."""
        said = "".join(self._said)
        return Finished(
            text=said,
            token_ids=(),
            stop_reason="cancelled" if cancelled else ENDINGS.get(self.reason, "end_of_text"),
            stats=self.stats,
            prompt_tokens=self._used("prompt_tokens", num_prompt),
            reused_tokens=self._used("prompt_tokens_details", num_reused, "cached_tokens"),
            prefill_seconds=(self.first or self._last) - self.started,
            method=REMOTE,
            exact=False,
            thought="".join(self._thought).strip(),
            in_thought=bool(self._thought and not said),
        )

    def _used(self, name: str, otherwise: int, detail: str = "") -> int:
        found = self._usage.get(name)
        found = found.get(detail) if detail and isinstance(found, dict) else found
        return found if is_count(found) else otherwise


def number_of(piece: str) -> int:
    """A piece of text as a number."""
    return int.from_bytes(b"\x01" + piece.encode("utf-8", "surrogatepass"), "big")


def piece_of(number: int) -> str:
    """The text of a number that `number_of` made."""
    return number.to_bytes((number.bit_length() + 7) // 8, "big")[1:].decode("utf-8", "surrogatepass")


def _progress(done: int, total: int, reused: int, elapsed: float = 0.0) -> PrefillProgress:
    return PrefillProgress(
        done_tokens=done, total_tokens=total, reused_tokens=reused, elapsed_seconds=elapsed, remaining_seconds=None
    )


def _not_here(problem: str, hint: str = "Use a model of this machine for it: start without --remote.") -> NoReturn:
    raise RemoteError(problem, hint=hint)


def _info(server: Server, model: str, context: int, *, estimates: bool) -> EngineInfo:
    """For display: the plan's fields say that they cannot be seen."""
    counted = " Numbers of tokens are estimates: it does not count them." if estimates else ""
    plan = Plan(
        device=Choice(REMOTE, server.base),
        dtype=Choice(cast(torch.dtype, REMOTE), UNSEEN),
        placement=Choice(cast(Placement, REMOTE), UNSEEN),
        context=Choice(context, "as --context or the server says"),
        most_context=context,
        available_bytes=0,
        bits=Choice(0, UNSEEN),
        prefill_chunk=Choice(0, UNSEEN),
        cache_sizes=CacheSizes(layers=0, row_bytes=0, side_bytes=0, chunk_size=1),
        resident_layers=0,
    )
    return EngineInfo(
        model=f"{model} @ {server.name}",
        description=f"On the server {server.base}.{counted}",
        limits="",
        has_draft=True,
        draft_because=UNSEEN,
        plan=plan,
        weights=REMOTE,
        quantised=False,
        attention=REMOTE,
        attention_because=UNSEEN,
        most_context=context,
        kv_bytes_per_token=0,
        target_weight_bytes=0,
        draft_weight_bytes=0,
        pass_bytes=(0, 0),
        target_layers=0,
        draft_layers=0,
        host_memory=None,
        link=None,
        num_ranks=0,
        thinking=SWITCHED,
        elsewhere=lacking(server.base),
    )
