"""The engine's verbs on a remote server: read, generate; and what such an engine cannot tell, said where it is asked.

Times are those of the stream here, the network and the server's queue in them. Tokens that are counted while an answer
is written are parts of the stream; at its end `usage` has the true number. A server of ours tells acceptance as well.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard, cast

import torch

from app.remote.client import Address, Client, Part, Patience
from app.remote.errors import BrokenOff, Garbage, NotRemotely, Refused
from app.remote.names import REMOTE, remotely, theirs
from app.remote.text import FIRST_WORDS, FRAME, SAMPLE, RemotePrompt, RemoteText, number_of, piece_of
from core.caches.tokens import common_prefix
from core.config import EngineConfig, GenerationConfig
from core.decoding.origin import Origin
from core.decoding.stats import DecodeStats, LevelStats
from core.engine_info import EngineInfo, Equality
from core.errors import ContextTooSmall, InvalidSetting, UnknownModel
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Event, Finished, LaneEvent, PrefillProgress, RoundDone, StopReason, TokenRecord
from core.planning.cache_sizes import CacheSizes
from core.planning.choices import Choice
from core.planning.memory_plan import Placement, Plan

# Servers that go on with the last message if they are told to; others would answer once more.
CONTINUING = ("vllm", "sglang", "triforce-reader")
READ = re.compile(r"read (\d+) of (\d+) tokens")  # a remark of our server's streams
ENDINGS: dict[str, StopReason] = {"stop": "end_of_text", "length": "max_new_tokens"}
MOST_SECONDS = 1e6
MOST_SENT = 8  # prompts that the server is supposed to remember


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteInfo(EngineInfo):
    """What is known of a remote model, for display."""

    methods: tuple[str, ...]  # that the server offers; empty: one of its own


def method_on(info: EngineInfo, method: str) -> str:
    """The name under which answers by a method are recorded: its own here, that of a way of the server's there."""
    if not isinstance(info, RemoteInfo):
        return method
    wanted = theirs(method)
    if not info.methods:
        return REMOTE
    return remotely(wanted if wanted in info.methods else info.methods[0])


class RemoteEngine:
    """One model on one server; the interface of `core.engine.Engine`, as far as it can be had."""

    def __init__(self, client: Client, card: Mapping[str, Any], context: int) -> None:
        self._client, self._name = client, str(card["id"])
        self._methods = _methods(card)
        self._continues = str(card.get("owned_by", "")).lower() in CONTINUING
        self._sent: deque[list[int]] = deque(maxlen=MOST_SENT)
        self.context = context
        self.config = EngineConfig(context=context)
        self.text = self._text()
        self.info = _info(client.address, card, context, self._methods, estimates=self.text.estimates)

    @classmethod
    def connect(
        cls, url: str, *, key: str | None, model: str | None, context: int | None, patience: Patience | None = None
    ) -> "RemoteEngine":
        """Find out what a server has.

        Raises:
            InvalidSetting, UnknownModel, ContextTooSmall, RemoteError.
        """
        client = Client(Address.of(url), key, patience)
        try:
            card = _card(client, model)
            return cls(client, card, _context(card, context))
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    # -------------------- what the app asks about the caches of an engine

    holds_all_chunks = False

    def knows(self, token_ids: Sequence[int]) -> bool:
        """Whether all of these stand for texts."""
        return all(token == FRAME or number_of(piece_of(token)) == token for token in token_ids)

    def cached_prefix(self, _prompt_ids: Sequence[int]) -> int:
        """Nothing is known of the server's cache, so nothing is counted on."""
        return 0

    def use_budget(self, _budget: int | None) -> None:
        """The server has a retrieval budget of its own, if any."""
        return

    def retrieves(self, _method: str) -> bool:
        """Whatever is loaded there cannot be seen."""
        return False

    def held_chunks(self) -> torch.Tensor:
        """None are known."""
        return torch.empty(0, 0, 0, dtype=torch.int64)

    def chunk_weights(self) -> torch.Tensor:
        """None are known."""
        return torch.empty(0)

    def weights_after(self, _prompt_ids: Sequence[int], _cancel: threading.Event | None = None) -> None:
        """Cannot be known."""
        return

    def race(
        self,
        _prompt_ids: Sequence[int],
        _configs: Sequence[GenerationConfig],
        _cancel: threading.Event | None = None,
        *,
        seconds: float | None = None,
    ) -> Iterator[LaneEvent]:
        """Fair turns need one engine under both lanes. Raises NotRemotely."""
        _not_here("A race needs both methods in one engine; on a remote server their turns cannot be kept fair.")

    def compare(self, _prompt_ids: Sequence[int], _plain: Sequence[int], _other: Sequence[int]) -> Equality:
        """Needs logits. Raises NotRemotely."""
        _not_here("A remote server's logits cannot be seen, so texts cannot be compared by them.")

    # -------------------- reading and writing

    def read(self, prompt_ids: Sequence[int], cancel: threading.Event | None = None) -> Iterator[PrefillProgress]:
        """Let the server read a prompt ahead of a question, so that its prefix cache has it.

        Raises:
            ContextTooSmall, RemoteError.
        """
        assert isinstance(prompt_ids, RemotePrompt), "a prompt that RemoteText did not make"
        self._check_length(len(prompt_ids))
        total, known = len(prompt_ids) - 1, self._known(prompt_ids)
        yield _progress(known, total, known, 0.0)
        if known >= total or (cancel and cancel.is_set()):
            return
        started = time.perf_counter()
        body = {"model": self._name, "messages": prompt_ids.messages, "max_tokens": 1, "temperature": 0, "stream": True}
        for part in self._client.stream(body, cancel):
            if found := READ.fullmatch(part.remark):
                share = min(1.0, int(found[1]) / max(1, int(found[2])))
                done = known + int(share * (total - known))
                yield _progress(min(done, total - 1), total, known, part.seconds - started)
        if cancel and cancel.is_set():
            return
        self._sent.append(list(prompt_ids))
        yield _progress(total, total, known, time.perf_counter() - started)

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        cancel: threading.Event | None = None,
        *,
        written: Sequence[int] = (),
        boundary: int = 0,
    ) -> Iterator[Event]:
        """Ask, and hand on what comes: PrefillProgress*, RoundDone*, Finished.

        Raises:
            ContextTooSmall, InvalidSetting, RemoteError.
        """
        assert isinstance(prompt_ids, RemotePrompt), "a prompt that RemoteText did not make"
        self._check_length(len(prompt_ids) + len(written))
        body = self._body(prompt_ids, config, self.text.decode(written))
        reused, total = self._known(prompt_ids), len(prompt_ids) + len(written) - 1
        yield _progress(reused, total, reused, 0.0)
        answer = _Stream(self.text, config.stop_strings)
        for part in self._lenient(answer, self._client.stream(body, cancel)):
            if part.event is None:
                if (found := READ.fullmatch(part.remark)) and answer.first is None:
                    done = min(total, max(reused, int(int(found[1]) / max(1, int(found[2])) * total)))
                    yield _progress(done, total, reused, part.seconds - answer.started)
                continue
            try:
                text = answer.apply(part.event, part.seconds)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise Garbage(self._client.address.short, "an event of another kind") from error
            if text:
                yield answer.round(text)
        cancelled = bool(cancel and cancel.is_set())
        if answer.reason is None and not cancelled:
            raise BrokenOff(self._client.address.short)
        if answer.first is not None:
            self._sent.append(list(prompt_ids))
        yield answer.finished(
            method_on(self.info, config.method),
            written,
            num_prompt=len(prompt_ids),
            num_reused=reused,
            cancelled=cancelled,
        )

    def _lenient(self, answer: "_Stream", parts: Iterator[Part]) -> Iterator[Part]:
        """A server may forget to say that the stream ends, once it has said that the answer has."""
        try:
            yield from parts
        except BrokenOff:
            if answer.reason is None:
                raise

    def _body(self, prompt: RemotePrompt, config: GenerationConfig, beginning: str) -> dict[str, Any]:
        sampling = config.sampling
        body: dict[str, Any] = {
            "model": self._name,
            "messages": prompt.messages,
            "max_tokens": min(config.max_new_tokens, self.context),
            "temperature": sampling.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not sampling.greedy:
            body |= {"top_p": sampling.top_p, "seed": config.seed}
            if sampling.top_k:  # not of OpenAI's interface, but of all servers that people run themselves
                body["top_k"] = sampling.top_k
        if config.stop_strings:
            body["stop"] = list(config.stop_strings)
        if self._methods and theirs(config.method) in self._methods:
            body["triforce"] = {"method": theirs(config.method)}
        if beginning:
            if not self._continues:
                raise NotRemotely(
                    "This server may not be able to go on with an answer.", hint="Regenerate it with more new tokens."
                )
            body["messages"] = [*prompt.messages, {"role": "assistant", "content": beginning}]
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def _check_length(self, num_tokens: int) -> None:
        needed = num_tokens + LONGEST_ROUND
        if needed > self.context:
            raise ContextTooSmall(needed, self.context, possible=self.context)

    def _known(self, prompt_ids: Sequence[int]) -> int:
        """Tokens that the server was sent before; whether it still has them cannot be seen."""
        most = len(prompt_ids) - 1
        return min(most, max((common_prefix(before, prompt_ids) for before in self._sent), default=0))

    def _text(self) -> RemoteText:
        url = f"{self._client.address.root}/tokenize"

        def count(text: str) -> int:
            found = self._client.post(url, {"model": self._name, "prompt": text, "add_special_tokens": False})
            if not isinstance(found, dict) or not _is_count(found.get("count")):
                raise Garbage(self._client.address.short, "a count of tokens that is none")
            return int(found["count"])

        try:
            count(SAMPLE)
        except (Refused, Garbage):
            return RemoteText(None, self._chars_per_token())
        return RemoteText(count)

    def _chars_per_token(self) -> float:
        """By `usage` of two short requests; 4, which is English, where it is not told."""
        counts = []
        for words in (FIRST_WORDS, f"{FIRST_WORDS} {SAMPLE}"):
            body = {"model": self._name, "messages": [{"role": "user", "content": words}], "max_tokens": 1}
            found = self._client.post(f"{self._client.address.base}/chat/completions", body)
            usage = found.get("usage") if isinstance(found, dict) else None
            counts.append(usage.get("prompt_tokens") if isinstance(usage, dict) else None)
        one, other = counts
        if not _is_count(one) or not _is_count(other) or other <= one:
            return 4.0
        return len(SAMPLE) / (other - one)


class _Stream:
    """One answer as its parts come."""

    def __init__(self, text: RemoteText, stops: Sequence[str]) -> None:
        self._text, self._stops = text, stops
        self.started = time.perf_counter()
        self.first: float | None = None
        self._last = self.started
        self._said: list[str] = []
        self.reason: StopReason | None = None
        self._usage: Mapping[str, Any] = {}
        self._ours: Mapping[str, Any] = {}

    def apply(self, event: Mapping[str, Any], seconds: float) -> str:
        """Take in one event; what it adds to the text."""
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        if isinstance(event.get("triforce"), dict):
            self._ours = event["triforce"]
        choices = event["choices"]
        if not choices:
            return ""
        if reason := choices[0].get("finish_reason"):
            self.reason = ENDINGS.get(str(reason), "end_of_text")
        text = (choices[0].get("delta") or {}).get("content") or ""
        if not isinstance(text, str):
            raise TypeError("content that is no text")
        if text:
            self.first, self._last = self.first or seconds, seconds
            self._said.append(text)
        return text

    def round(self, text: str) -> RoundDone:
        """What one part says."""
        number = len(self._said) - 1
        tokens = tuple(
            TokenRecord(token, text, Origin(REMOTE, "drawn"), number, 0.0, None) for token in self._text.split(text, 1)
        )
        return RoundDone(text=text, tokens=tokens, stats=self.stats(len(self._said)))

    def finished(
        self, method: str, written: Sequence[int], *, num_prompt: int, num_reused: int, cancelled: bool
    ) -> Finished:
        """The end."""
        said = "".join(self._said)
        new = self._usage.get("completion_tokens")
        num_new = int(new) if _is_count(new) else len(self._said)
        prompt_tokens = self._usage.get("prompt_tokens")
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Finished(
            text=self._text.decode(written) + said,
            token_ids=(*written, *self._text.split(said, num_new)),
            stop_reason="cancelled" if cancelled else self.reason or "end_of_text",
            stats=self.stats(num_new),
            prompt_tokens=int(prompt_tokens) if _is_count(prompt_tokens) else num_prompt,
            reused_tokens=int(cached) if _is_count(cached) else num_reused,
            prefill_seconds=(self.first or self._last) - self.started,
            method=method,
            exact=self._ours.get("exact") is True,
        )

    def stats(self, num_new: int) -> DecodeStats:
        """Speed from the times of the stream; acceptance where a server of ours tells it."""
        full = self._ours.get("full_passes")
        counts = self._ours.get("counts")
        levels = counts if isinstance(counts, dict) else {}
        return DecodeStats(
            new_tokens=num_new,
            decode_seconds=self._decode_seconds(),
            full_passes=int(full) if _is_count(full) else 0,
            level1=_level(levels.get("level1")),
            level2=_level(levels.get("level2")),
        )

    def _decode_seconds(self) -> float:
        """The first part came at the end of reading, so the time since then is that of the others.

        Where all came in one part, it is what a server of ours tells, else the whole time: no speed is overstated.
        """
        others = len(self._said) - 1
        if others > 0:
            return (self._last - (self.first or self._last)) * (others + 1) / others
        told = self._ours.get("decode_seconds")
        if isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < MOST_SECONDS:
            return float(told)
        return self._last - self.started


# -------------------- what a server says about itself


def _card(client: Client, model: str | None) -> Mapping[str, Any]:
    found = client.get(f"{client.address.base}/models")
    rows = found.get("data") if isinstance(found, dict) else None
    cards = [row for row in rows or () if isinstance(row, dict) and isinstance(row.get("id"), str) and row["id"]]
    where = client.address.short
    if not isinstance(rows, list) or len(cards) != len(rows):
        raise Garbage(where, "no list of models")
    names = ", ".join(str(card["id"])[:80] for card in cards[:8])
    if not cards:
        raise UnknownModel(f"The server at {where} has no model.", hint="Load one there, then try again.")
    if model is None and len(cards) > 1:
        raise UnknownModel(f"The server at {where} has several models.", hint=f"Choose with --model: {names}.")
    card = next((card for card in cards if model in (None, card["id"])), None)
    if card is None:
        raise UnknownModel(f"The server at {where} has no model {model!r}.", hint=f"Choose with --model: {names}.")
    return cast(Mapping[str, Any], card)


def _context(card: Mapping[str, Any], wanted: int | None) -> int:
    most = card.get("max_model_len")
    if not _is_count(most) or int(most) < 2 * LONGEST_ROUND:
        if wanted is None:
            raise InvalidSetting(
                "The server does not say how many tokens its model reads.", hint="Add --context with that number."
            )
        return wanted
    if wanted is not None and wanted > int(most):
        raise ContextTooSmall(wanted, int(most), possible=int(most))
    return wanted or int(most)


def _methods(card: Mapping[str, Any]) -> tuple[str, ...]:
    ours = card.get("triforce")
    methods = ours.get("methods") if isinstance(ours, dict) else None
    return tuple(one for one in methods if isinstance(one, str)) if isinstance(methods, list) else ()


def _info(
    address: Address, card: Mapping[str, Any], context: int, methods: tuple[str, ...], *, estimates: bool
) -> RemoteInfo:
    ours = card.get("triforce")
    told = ours if isinstance(ours, dict) else {}
    asked = "as the server says" if _is_count(card.get("max_model_len")) else "as --context says"
    dtype = str(told.get("dtype", "")) or "not told"
    counted = "Numbers of tokens are estimates: it does not count them." if estimates else ""
    plan = Plan(
        device=Choice(REMOTE, address.base),
        dtype=Choice(cast(torch.dtype, f"{REMOTE}, {dtype}"), "how the server computes cannot be seen from here"),
        placement=Choice(cast(Placement, REMOTE), "where its keys and values lie cannot be seen from here"),
        context=Choice(context, asked),
        most_context=context,
        rows=(),
        available_bytes=0,
        bits=Choice(0, "how wide its weights are cannot be seen from here"),
        prefill_chunk=Choice(0, "how it reads cannot be seen from here"),
        cache_sizes=CacheSizes(layers=0, row_bytes=0, side_bytes=0, chunk_size=1),
        resident_layers=0,
    )
    return RemoteInfo(
        methods=methods,
        model=f"{card['id']} @ {address.short}",
        description=" ".join(
            filter(None, [f"On the server {address.base}.", str(told.get("description", "")), counted])
        ),
        limits=str(told.get("limits", "")),
        has_draft=not methods or "triforce" in methods,
        plan=plan,
        attention=REMOTE,
        attention_because="the server's own",
        most_context=context,
        kv_bytes_per_token=0,
        target_weight_bytes=0,
        draft_weight_bytes=0,
        target_layers=0,
        draft_layers=0,
        draft_because="as the server chooses",
        weights=f"{REMOTE}, {dtype}",
        quantised=False,
        host_memory=None,
        link=None,
        num_ranks=0,
    )


def _level(value: object) -> LevelStats | None:
    if not isinstance(value, dict):
        return None
    counts = [count for name in ("rounds", "guessed", "tested", "accepted") if _is_count(count := value.get(name))]
    if len(counts) < 4:
        return None
    rounds, guessed, tested, accepted = counts
    return LevelStats(rounds=rounds, guessed=guessed, tested=tested, accepted=accepted)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _progress(done: int, total: int, reused: int, elapsed: float) -> PrefillProgress:
    return PrefillProgress(
        done_tokens=done, total_tokens=total, reused_tokens=reused, elapsed_seconds=elapsed, remaining_seconds=None
    )


def _not_here(problem: str) -> NoReturn:
    raise NotRemotely(problem, hint="Use a model of this machine for it: start without --remote.")
