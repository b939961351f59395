"""Writes one answer, with any decoder."""

import hashlib
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Generator

from core.caches.oom_fallback import OomFallback
from core.caches.tokens import Context
from core.config import GenerationConfig
from core.decoding.methods import Decoder
from core.decoding.sampling import TokenSampler
from core.decoding.speculative import Passes
from core.decoding.stats import DecodeStats
from core.decoding.verify import Verdict
from core.generation.events import Finished, Likely, PrefillProgress, RoundDone, StopReason, TokenRecord
from core.generation.text import ChatText
from core.generation.text_stream import StopWatcher, StreamDecoder
from core.generation.thinking import Part

# Most rows that a round needs beyond the committed tokens: every guess and its bonus. Kept free at the context's end.
LONGEST_ROUND = 64
# A greedy text is in a loop if it ends in a piece of up to so many tokens, so many times, of so many tokens in all
LONGEST_LOOP, LOOP_TIMES, LOOP_TOKENS = 128, 5, 80


def sampler_behind(rng: Generator, seed: int, num_written: int, *, speculative: bool) -> TokenSampler:
    """The sampler of an answer with this seed that has `num_written` tokens already.

    Used random numbers must not be used again. Plain decoding draws once a token, so it skips as many draws.
    Speculation draws an unknown number, so every pair of seed and length has other random numbers.
    """
    if not speculative:
        sampler = TokenSampler(rng.manual_seed(seed))
        sampler.skip(num_written)
        return sampler
    digest = hashlib.blake2b(f"{seed} {num_written}".encode(), digest_size=8).digest()
    return TokenSampler(rng.manual_seed(int.from_bytes(digest, "little") >> 1))


def loops(tokens: Sequence[int]) -> bool:
    """Whether a text ends in LOOP_TIMES times the same piece of up to LONGEST_LOOP tokens, LOOP_TOKENS in all."""
    newest = list(tokens[-LOOP_TIMES * LONGEST_LOOP :])
    for size in range(1, LONGEST_LOOP + 1):
        again = max((LOOP_TIMES - 1) * size, LOOP_TOKENS - size)
        if len(newest) < again + size:
            return False
        if newest[-1] == newest[-1 - size] and newest[-again:] == newest[-again - size : -size]:
            return True
    return False


class Question(NamedTuple):
    """A prompt, how it is answered, and what ends its answer early."""

    prompt_ids: Sequence[int]
    config: GenerationConfig
    cancel: threading.Event | None = None
    boundary: int = 0  # tokens of the book, see `core.engine.Engine.read`

    @property
    def cancelled(self) -> bool:
        """Whether the question was cancelled."""
        return self.cancel is not None and self.cancel.is_set()

    @property
    def room(self) -> int:
        """Most tokens of prompt and answer together."""
        return len(self.prompt_ids) + self.config.max_new_tokens


class Answer:
    """Commits verdicts, watches for the answer's end, counts.

    Args:
        written: the answer's tokens so far, if it continues an earlier one; all counts are of the new part.
        read: the end of reading its prompt.
        context: most tokens of prompt and answer together.
        oom_fallback: repeats rounds that ran out of device memory.
        link_calibration: bytes per second of a plain copy from host memory, where keys and values come from there.
        kv_bytes_per_token: of the target, to compute what plain decoding would have read.
    """

    def __init__(
        self,
        text: ChatText,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        *,
        written: Sequence[int] = (),
        read: PrefillProgress,
        context: int,
        kv_bytes_per_token: int,
        oom_fallback: OomFallback,
        link_calibration: float | None = None,
    ) -> None:
        self.decoder, self.oom_fallback, self._link_calibration = decoder, oom_fallback, link_calibration
        self._reused_tokens, self._prefill_seconds = read.reused_tokens, read.elapsed_seconds
        self._text, self._config, self._context, self._kv_bytes = text, config, context, kv_bytes_per_token
        self._num_prompt = len(prompt_ids)
        self._num_before = len(prompt_ids) + len(written)  # tokens that existed at the start
        self.tokens = [*prompt_ids, *written]  # committed
        self._stream, self._watcher = StreamDecoder(text), StopWatcher(config.stop_strings)
        self._reader, self._inner = text.thoughts(prompt_ids), StreamDecoder(text)
        self._thought: list[str] = []
        self._ends_loops = config.end_loops and config.sampling.greedy and config.json_schema is None
        self._sampler = TokenSampler(Generator())  # greedy tokens are certain: nothing is drawn
        if not config.sampling.greedy:
            rng = Generator(device=decoder.verifier.device)
            self._sampler = sampler_behind(rng, config.seed, len(written), speculative=bool(decoder.levels))
        if config.top_logprobs is not None:
            decoder.note_logits()
        self._shown = [self._read(token)[1] for token in written]  # stop strings are sought in what is new
        self._round = self._num_thought = 0
        self.seconds = self._thought_seconds = 0.0  # of decoding this answer, without recording passes
        self._recording_seconds = 0.0
        self._plain_bytes = 0
        self.stop_reason: StopReason | None = None

    @property
    def token_ids(self) -> list[int]:
        """The answer so far, including `written`."""
        return self.tokens[self._num_prompt :]

    def begin(self, cancel: threading.Event | None) -> Self:
        """Fill the smaller caches behind the prompt that was read, before the first round; if cancelled, end."""
        began = time.perf_counter()
        self.decoder.reset_meters()
        if not (cancel and cancel.is_set()):
            self.oom_fallback.retry(lambda: self.decoder.start(Context(self.tokens), cancel), self.decoder.forget)
        if cancel and cancel.is_set():
            self.stop_reason = "cancelled"
        self._prefill_seconds += time.perf_counter() - began
        return self

    def round(self) -> RoundDone:
        """One round, cut where the answer ends."""
        began = self._now()
        verdict = self.oom_fallback.retry(
            lambda: self.decoder.step(Context(self.tokens), self._sampler),
            (lambda: self.decoder.recover(Context(self.tokens))) if self.decoder.exact else None,
        )
        return self._after(verdict, *began)

    def passes(self) -> Passes[RoundDone]:
        """As `round`; the caller computes the passes. Time includes waiting for others. Never repeated."""
        began = self._now()
        verdict = yield from self.decoder.passes(Context(self.tokens), self._sampler)
        return self._after(verdict, *began)

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), self.decoder.recording_seconds

    def _after(self, verdict: Verdict, started: float, recording: float) -> RoundDone:
        """Commit the verdict of a round that began then."""
        seconds, num_thought, said = self.seconds, self._num_thought, len(self._thought)
        shown, records = self._commit(verdict)
        self._round += 1
        recorded = self.decoder.recording_seconds - recording
        self.seconds += time.perf_counter() - started - recorded
        self._recording_seconds += recorded
        self._shown.append(shown)
        share = (self._num_thought - num_thought) / len(records)
        self._thought_seconds += share * (self.seconds - seconds)
        thought = "".join(self._thought[said:])
        return RoundDone(text=shown, tokens=tuple(records), stats=self.stats(), thought=thought)

    def _read(self, token: int) -> tuple[Part, str]:
        """Whether a token belongs to thought or answer, and the text that it adds there."""
        part: Part = "answer" if self._reader is None or token in self._text.eos_ids else self._reader.push(token)
        if part == "answer":
            return part, self._stream.push(token)
        said = self._inner.push(token) if part == "thought" else self._inner.flush()
        self._thought.append(said if any(self._thought) else said.lstrip())  # templates and models begin with a newline
        return part, ""

    def _commit(self, verdict: Verdict) -> tuple[str, list[TokenRecord]]:
        shown, records = "", []
        likely = self._likely(verdict)
        for place, (token, origin, p, q) in enumerate(
            zip(verdict.tokens, verdict.origins, *verdict.p_and_q(), strict=True)
        ):
            self.tokens.append(token)
            self._plain_bytes += len(self.tokens) * self._kv_bytes
            ended = token in self._text.eos_ids
            part, text = ("answer", "") if ended else self._read(token)
            shown += self._watcher.push(text)
            self._num_thought += part != "answer"
            said = text if part == "answer" else self._thought[-1]
            in_answer = bool(likely) and part == "answer" and not ended
            logprob, top = likely[place] if in_answer else (None, ())
            records.append(TokenRecord(token, said, origin, self._round, p, q, logprob, top))
            self.stop_reason = self._reason(ended)
            if self.stop_reason is not None:
                break
        return shown, records

    def _likely(self, verdict: Verdict) -> list[tuple[float, tuple[Likely, ...]]]:
        """Log-probabilities of each token and of the most likely ones there, if asked for: of the raw logits."""
        count = self._config.top_logprobs
        if count is None:
            return []
        num = len(verdict.tokens)
        logs = self.decoder.logits[:num].float().log_softmax(-1)
        chosen = logs[torch.arange(num), torch.tensor(verdict.tokens)].tolist()
        best = logs.topk(count, -1)
        return [
            (
                logprob,
                tuple(Likely(token, self._text.decode([token]), value) for token, value in zip(*place, strict=True)),
            )
            for logprob, *place in zip(chosen, best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _reason(self, ended: bool) -> StopReason | None:
        if ended:
            return "end_of_text"
        if self._watcher.stopped:
            return "stop_string"
        if len(self.tokens) - self._num_before >= self._config.max_new_tokens:
            return "max_new_tokens"
        if len(self.tokens) + LONGEST_ROUND > self._context:
            return "context_full"
        if self._ends_loops and loops(self.tokens[self._num_before :]):
            return "repeating"
        return None

    def finished(self) -> Finished:
        """The last event of an answer that has ended, with the whole text, including any that was held back."""
        assert self.stop_reason is not None, "the answer goes on"
        self._thought.append(self._inner.flush())
        if not self._watcher.stopped:
            self._shown.append(self._watcher.push(self._stream.flush()) + self._watcher.flush())
        return Finished(
            text="".join(self._shown),
            token_ids=tuple(self.token_ids),
            stop_reason=self.stop_reason,
            stats=self.stats(),
            prompt_tokens=self._num_prompt,
            reused_tokens=self._reused_tokens,
            prefill_seconds=self._prefill_seconds,
            method=self.decoder.name,
            exact=self.decoder.exact,
            thought="".join(self._thought).rstrip(),
            in_thought=self._reader is not None and self._reader.thinking,
        )

    def stats(self) -> DecodeStats:
        """Counts and times so far."""
        level1, level2 = self.decoder.level_stats
        meters = {model.name: model.meter for model in self.decoder.models}
        parts = {name: meter.seconds for name, meter in meters.items()}
        full = self.decoder.verifier.meter
        parts["other"] = max(0.0, self.seconds - sum(parts.values()))
        return DecodeStats(
            new_tokens=len(self.tokens) - self._num_before,
            decode_seconds=self.seconds,
            full_passes=self.decoder.verifier.meter.passes,
            level1=level1,
            level2=level2,
            seconds_by_part=parts,
            kv_bytes_read=sum(meter.kv_bytes for meter in meters.values()),
            kv_bytes_read_plain=self._plain_bytes,
            reselections=self.decoder.reselections,
            link_bytes=full.link_bytes,
            link_seconds=full.seconds if full.link_bytes else 0.0,
            link_calibration=self._link_calibration if full.link_bytes else None,
            thought_tokens=self._num_thought,
            thought_seconds=self._thought_seconds,
            recording_seconds=self._recording_seconds,
        )
