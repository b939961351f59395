"""Questions about one text: each gets caches of its own, which continue what the engine's full cache has read."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from core.caches.branch import BranchCache
from core.caches.tokens import common_prefix
from core.config import EngineConfig
from core.decoding.methods import Decoder
from core.decoding.registry import is_exact
from core.generation.decode_loop import LONGEST_ROUND, Answer
from core.generation.events import PrefillProgress
from core.generation.levels import Levels
from core.generation.loaded import LoadedModels
from core.generation.together import Question
from core.models.joined import most_joined
from core.planning.choices import Choice
from core.planning.memory_plan import Plan
from core.planning.sizes import RETRIEVAL, STREAMING

MOST_TOGETHER = 8  # answers: each adds what it draws to the wait for the others' next words


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """Opens questions beside each other.

    Args:
        levels: of the engine, whose full cache reads.
        read: brings it to a prompt.
        rewind: forgets what it has read from a length on.
        answer: makes an answer of a decoder.
        shared: tokens that all prompts begin with.
    """

    config: EngineConfig
    models: LoadedModels
    levels: Levels
    plan_now: Callable[[], Plan]
    read: Callable[[Question], Generator[PrefillProgress]]
    rewind: Callable[[int], int]
    answer: Callable[[Decoder, Question], Answer]
    shared: int

    def opened(self, question: Question) -> Generator[PrefillProgress, None, Answer]:
        """See `core.generation.together.Reader`."""
        yield from self.read(question)
        if question.cancelled:
            answer = self.answer(self._decoder(self.levels, question), question)
            answer.decoder.reset_meters()
            answer.stop_reason = "cancelled"
            return answer
        most = own_tokens(question, self.shared)
        full = BranchCache(self.levels.full, self.shared, min(most, self.levels.full.capacity - self.shared))
        self.rewind(self.shared)
        own = Levels(self.config, self.plan_now(), self.models, self.plan_now, None, None, full=full)
        own.use_budget(question.config.budget)
        decoder = self._decoder(own, question)
        answer = self.answer(decoder, question)
        decoder.reset_meters()
        own.oom_fallback.retry(decoder.start, decoder.forget)
        return answer

    def _decoder(self, levels: Levels, question: Question) -> Decoder:
        config = question.config
        return Decoder(config.method, levels.parts, config.sampling, config.speculation)


def shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all prompts begin with; every prompt has at least one more."""
    first = list(prompts[0])
    return min(min(common_prefix(first, list(prompt)), len(prompt) - 1) for prompt in prompts)


def own_tokens(question: Question, shared: int) -> int:
    """Rows of a question and its answer behind the shared ones, at most."""
    return len(question.prompt_ids) - shared + question.config.max_new_tokens + LONGEST_ROUND


def number_together(levels: Levels, models: LoadedModels, plan: Plan, questions: Sequence[Question]) -> Choice[int]:
    """How many of the questions are answered at a time, and why not more. Where it is 1, nothing is shared."""
    if len(questions) < 2:
        return Choice(1, "there is one question")
    if models.ranks is not None:
        return Choice(1, "several processes share the model, which follow one conversation")
    if not all(is_exact(question.config.method) for question in questions):
        return Choice(1, "a lossy method has no cache that others could share")
    parts = [levels.parts.full, levels.parts.retrieval, *([levels.parts.draft] if levels.parts.draft else [])]
    shape = levels.full.shape
    if shape.reaches or shape.recurrent or not all(map(most_joined, parts)):
        device = "on a GPU passes are of one conversation" if shape.device.type == "cuda" else (
            "the layers of this model do not compute a token as if it were alone"
        )
        return Choice(1, device)
    shared = shared_tokens([question.prompt_ids for question in questions])
    own = max(own_tokens(question, shared) for question in questions)
    each = BranchCache.own_bytes(shape, own, levels.full.chunk_size) + plan.bytes_of(RETRIEVAL)
    each += plan.bytes_of(STREAMING)
    room = max(0, plan.usable_bytes - plan.total_bytes) // each
    number = min(len(questions), MOST_TOGETHER, room)
    if number < 2:
        return Choice(1, f"another answer takes {each >> 20:,} MiB, which are not free beside this context")
    return Choice(number, f"{room:,} fit" if number == room else "more would wait longer for their words")
