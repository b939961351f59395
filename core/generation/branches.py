"""Questions about one text: each gets caches that continue the engine's full cache."""

import threading
from collections.abc import Generator, Sequence

from core.caches.branch import BranchCache
from core.caches.tokens import Context, common_prefix
from core.decoding.methods import Decoder
from core.decoding.registry import is_exact
from core.generation.decode_loop import LONGEST_ROUND, Answer
from core.generation.events import PrefillProgress
from core.generation.levels import Levels
from core.generation.loaded import LoadedModels
from core.generation.together import Question
from core.generation.trunk import Trunk
from core.models.joined import most_joined
from core.planning.choices import Choice
from core.planning.plan import Plan
from core.planning.sizes import RETRIEVAL, STREAMING

MOST_TOGETHER = 8  # answers: each makes the others wait for its draws


class Branches:
    """Opens several questions at once.

    Args:
        levels: of the engine, whose full cache reads.
        room: most tokens of each prompt and its answer together.
    """

    def __init__(
        self, trunk: Trunk, levels: Levels, models: LoadedModels, questions: Sequence[Question], room: int
    ) -> None:
        self._trunk, self._levels, self._models, self._room = trunk, levels, models, room
        self._shared = shared_tokens([question.prompt_ids for question in questions])

    def opened(self, question: Question) -> Generator[PrefillProgress, None, Answer]:
        """See `core.generation.together.Reader`."""
        prompt_ids, config, cancel, boundary = question
        trunk, read_by = self._trunk, self._levels.full
        decoder = self._levels.decoder(config, trunk.text, prompt_ids)  # refuses settings before anything is read
        yield from trunk.read(prompt_ids, cancel, boundary=boundary, room=self._room)
        if question.cancelled:
            trunk.rewind(min(self._shared, read_by.length))  # other answers continue there
            return started(decoder, trunk.answer(decoder, prompt_ids, config), cancel)
        most = min(own_tokens(question, self._shared), read_by.capacity - self._shared)
        full = BranchCache(read_by, self._shared, most)
        trunk.rewind(self._shared)
        levels = Levels(trunk.config, trunk.plan, self._models, lambda: trunk.plan, None, None, full=full)
        levels.use_budget(config.budget)
        decoder = levels.decoder(config, trunk.text, prompt_ids)
        return started(decoder, trunk.answer(decoder, prompt_ids, config), cancel)


def started(decoder: Decoder, answer: Answer, cancel: threading.Event | None) -> Answer:
    """An answer behind a prompt that was read, or whose reading was cancelled, before its first round."""
    decoder.reset_meters()
    if not (cancel and cancel.is_set()):
        answer.oom_fallback.retry(lambda: decoder.start(Context(answer.tokens), cancel), decoder.forget)
    if cancel and cancel.is_set():
        answer.stop_reason = "cancelled"
    return answer


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
        device = (
            "on a GPU passes are of one conversation"
            if shape.device.type == "cuda"
            else ("the layers of this model do not compute a token as if it were alone")
        )
        return Choice(1, device)
    shared = shared_tokens([question.prompt_ids for question in questions])
    most = max(own_tokens(question, shared) for question in questions)
    each = BranchCache.own_bytes(shape, most, levels.full.chunk_size) + plan.bytes_of(RETRIEVAL)
    each += plan.bytes_of(STREAMING)
    room = max(0, plan.usable_bytes - plan.total_bytes) // each
    number = min(len(questions), MOST_TOGETHER, room)
    if number < 2:
        return Choice(1, f"another answer takes {each >> 20:,} MiB, which are not free beside this context")
    if number == len(questions):
        return Choice(number, "all of them")
    return Choice(number, f"{room:,} fit" if number == room else "more would wait longer for their words")
