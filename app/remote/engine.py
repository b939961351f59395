"""The engine's actions on a remote server: read and generate; other actions raise NotRemotely or report nothing.

Times are measured on the stream here, so they include the network and the server's queue. While an answer is written,
tokens are counted by parts of the stream; at its end `usage` gives the true number. A server of this program also
reports acceptance.
"""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from app.remote.answer import AnswerStream
from app.remote.card import context_of, find_card, info_of, is_count, known_server, methods_of
from app.remote.client import Address, Client, Part, Patience
from app.remote.errors import BrokenOff, Garbage, NotRemotely, Refused
from app.remote.names import SWITCHED, method_on, theirs
from app.remote.text import FIRST_WORDS, FRAME, SAMPLE, RemotePrompt, RemoteText, number_of, piece_of
from core.caches.tokens import common_prefix
from core.config import EngineConfig, GenerationConfig
from core.engine_info import Equality
from core.errors import ContextTooSmall
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Event, LaneEvent, PrefillProgress
from core.generation.together import Question, one_by_one
from core.planning.choices import Choice

READ = re.compile(r"read (\d+) of (\d+) tokens")  # a comment in streams of this program's server
MOST_SENT = 8  # prompts that the server probably has in its cache


class RemoteEngine:
    """One model on one server; a `TextEngine` within its capabilities."""

    def __init__(self, client: Client, card: Mapping[str, Any], context: int) -> None:
        self._client, self._name = client, str(card["id"])
        self._methods = methods_of(card)
        self._continues = known_server(card)
        self._sent: deque[list[int]] = deque(maxlen=MOST_SENT)
        self.told: Mapping[str, Any] = {}  # what a server of this program says of its newest answer
        self.context = context
        self.config = EngineConfig(context=context)
        self.text = self._text()
        self.info = info_of(client.address, card, context, self._methods, estimates=self.text.estimates)

    @classmethod
    def connect(
        cls, url: str, *, key: str | None, model: str | None, context: int | None, patience: Patience | None = None
    ) -> "RemoteEngine":
        """Query a server about its model. Raises InvalidSetting, UnknownModel, ContextTooSmall, RemoteError."""
        client = Client(Address.of(url), key, patience)
        try:
            card = find_card(client, model)
            return cls(client, card, context_of(card, context))
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        self._client.close()

    # -------------------- caches of the engine

    holds_all_chunks = False

    def knows(self, token_ids: Sequence[int]) -> bool:
        """Whether all of these tokens encode text."""
        return all(token == FRAME or number_of(piece_of(token)) == token for token in token_ids)

    def cached_prefix(self, _prompt_ids: Sequence[int]) -> int:
        """0, because the server's cache is not visible."""
        return 0

    def use_budget(self, _budget: int | None) -> int:
        """0: the server may have a retrieval budget, but it is not visible."""
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
        """Raises NotRemotely: fair turns need one engine for both lanes."""
        _not_here("A race needs both methods in one engine; on a remote server their turns cannot be kept fair.")

    def together(self, _questions: Sequence[Question]) -> Choice[int]:
        """One: a server has its own order."""
        return Choice(1, "a server has its own order")

    def answer_together(self, questions: Sequence[Question]) -> Generator[LaneEvent]:
        """One answer after the other."""
        yield from one_by_one(self.generate, questions)

    def compare(self, _prompt_ids: Sequence[int], _plain: Sequence[int], _other: Sequence[int]) -> Equality:
        """Raises NotRemotely: the comparison needs logits."""
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
    ) -> Generator[Event]:
        """Send a prompt and yield the answer: PrefillProgress*, RoundDone*, Finished.

        Raises:
            ContextTooSmall, InvalidSetting, RemoteError.
        """
        assert isinstance(prompt_ids, RemotePrompt), "a prompt that RemoteText did not make"
        self._check_length(len(prompt_ids) + len(written))
        body = self._body(prompt_ids, config, self.text.decode(written))
        reused, total = self._known(prompt_ids), len(prompt_ids) + len(written) - 1
        yield _progress(reused, total, reused, 0.0)
        answer = AnswerStream(self.text, config.stop_strings)
        for part in self._lenient(answer, self._client.stream(body, cancel)):
            if part.event is None:
                if (found := READ.fullmatch(part.remark)) and answer.first is None:
                    done = min(total, max(reused, int(int(found[1]) / max(1, int(found[2])) * total)))
                    yield _progress(done, total, reused, part.seconds - answer.started)
                continue
            try:
                thought, text = answer.apply(part.event, part.seconds)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise Garbage(self._client.address.short, "an event of another kind") from error
            if text or thought:
                yield answer.round(thought, text)
        self.told = answer.told
        cancelled = bool(cancel and cancel.is_set())
        if answer.reason is None and not cancelled:
            raise BrokenOff(self._client.address.short)
        if answer.first is not None:
            self._sent.append(list(prompt_ids))
        yield answer.finished(
            method_on(self.info.capabilities, config.method),
            written,
            num_prompt=len(prompt_ids),
            num_reused=reused,
            cancelled=cancelled,
        )

    def _lenient(self, answer: AnswerStream, parts: Iterator[Part]) -> Iterator[Part]:
        """Accept a stream without its end marker, if the server has already sent the answer's end."""
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
            if sampling.top_k:  # not in OpenAI's interface, but in all servers that people run themselves
                body["top_k"] = sampling.top_k
        if config.thinking in SWITCHED:
            body["chat_template_kwargs"] = {"enable_thinking": config.thinking == "on"}
        elif config.thinking:
            body["reasoning_effort"] = config.thinking
        if config.json_schema is not None:
            named = {"name": "answer", "schema": json.loads(config.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
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
        """Tokens sent to the server before; whether its cache still has them is not visible."""
        most = len(prompt_ids) - 1
        return min(most, max((common_prefix(before, prompt_ids) for before in self._sent), default=0))

    def _text(self) -> RemoteText:
        url = f"{self._client.address.root}/tokenize"

        def count(text: str) -> int:
            found = self._client.post(url, {"model": self._name, "prompt": text, "add_special_tokens": False})
            if not isinstance(found, dict) or not is_count(found.get("count")):
                raise Garbage(self._client.address.short, "a count of tokens that is none")
            return int(found["count"])

        try:
            count(SAMPLE)
        except (Refused, Garbage):
            return RemoteText(None, self._chars_per_token())
        return RemoteText(count)

    def _chars_per_token(self) -> float:
        """From `usage` of two short requests; 4, as in English, if the server does not report it."""
        counts = []
        for words in (FIRST_WORDS, f"{FIRST_WORDS} {SAMPLE}"):
            body = {"model": self._name, "messages": [{"role": "user", "content": words}], "max_tokens": 1}
            found = self._client.post(f"{self._client.address.base}/chat/completions", body)
            usage = found.get("usage") if isinstance(found, dict) else None
            counts.append(usage.get("prompt_tokens") if isinstance(usage, dict) else None)
        one, other = counts
        if not is_count(one) or not is_count(other) or other <= one:
            return 4.0
        return len(SAMPLE) / (other - one)


def _progress(done: int, total: int, reused: int, elapsed: float) -> PrefillProgress:
    return PrefillProgress(
        done_tokens=done, total_tokens=total, reused_tokens=reused, elapsed_seconds=elapsed, remaining_seconds=None
    )


def _not_here(problem: str) -> NoReturn:
    raise NotRemotely(problem, hint="Use a model of this machine for it: start without --remote.")
