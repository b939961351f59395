"""Answers that follow a grammar: the logits of all other tokens become -inf before `to_probs`, at every level.

So each level draws and verifies under the grammar, and the text is distributed as the target alone would have written
it under the same grammar.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.caches.tokens import Context, common_prefix
from core.ops.streams import to_device

MASKS_KEPT = 128  # positions: more than a round has guesses; older masks are computed again


class Matcher(Protocol):
    """Follows one text token by token."""

    def accept(self, token_id: int) -> bool:
        """Take the next token; False, and nothing changes, if the grammar does not allow it. Never the end of text."""

    def rollback(self, num_tokens: int) -> None:
        """Forget the newest tokens."""

    def allowed(self) -> Tensor:
        """Which tokens may come next, [V] bool on the processor; the end of text where the grammar is satisfied.

        Raises:
            BadGrammar: none may.
        """


@dataclass(frozen=True, slots=True)
class Thought:
    """A thought before the text that follows the grammar; its tokens are free."""

    opening: int
    closing: int
    inside: bool  # whether the prompt has opened it


class Grammar:
    """The grammar of one answer. It caches the masks of the newest tokens, which every level asks for.

    Args:
        start: tokens of the prompt.
        eos_ids: the tokens that end a text.
        thought: what may come first; None: nothing.
    """

    def __init__(
        self, matcher: Matcher, start: int, eos_ids: frozenset[int], *, thought: Thought | None = None
    ) -> None:
        self._matcher, self._start, self._eos_ids, self._thought = matcher, start, eos_ids, thought
        self._taken: list[int] = []  # tokens that the matcher has accepted
        self._masks: dict[int, Tensor] = {}  # the forbidden tokens, after so many of `_taken`

    def masked(self, logits: Tensor, context: Context, keep: int) -> Tensor:
        """Logits without the tokens that may not come.

        Behind a token that the grammar does not allow, and behind the end of the text, all tokens stay: what is drawn
        there is never committed.

        Args:
            logits: [keep, V], after each of the last `keep` tokens of `context`.
        Raises:
            BadGrammar: no token may come.
        """
        ids = context.span(self._start, len(context))
        rows = [self._mask(ids[: len(ids) - keep + 1 + row]) for row in range(keep)]
        known = next((row for row in rows if row is not None), None)
        if known is None:
            return logits
        none = torch.zeros_like(known)
        forbidden = torch.stack([none if row is None else row for row in rows])
        return logits.masked_fill(to_device(forbidden, logits.device), float("-inf"))

    def follows(self, token_ids: Sequence[int]) -> bool:
        """Whether an answer may begin with these tokens."""
        return self._begin(token_ids) is None or self._mask(list(token_ids)) is not None

    def _mask(self, ids: list[int]) -> Tensor | None:
        """The tokens that may not follow the answer so far, [V] bool; None: all may."""
        begin = self._begin(ids)
        if begin is None:
            return None
        text = ids[begin:]
        shared = common_prefix(self._taken, text)
        if shared < len(text) or len(text) not in self._masks:
            self._back_to(shared)
            for token in text[shared:]:
                if token in self._eos_ids or not self._matcher.accept(token):
                    return None
                self._taken.append(token)
            self._masks[len(text)] = ~self._matcher.allowed()
        mask = self._masks[len(text)]
        if not ids and self._thought:
            mask = mask.clone()
            mask[self._thought.opening] = False
        return mask

    def _back_to(self, length: int) -> None:
        if length < len(self._taken):
            self._matcher.rollback(len(self._taken) - length)
            del self._taken[length:]
        self._masks = {at: mask for at, mask in self._masks.items() if length - MASKS_KEPT <= at <= length}

    def _begin(self, ids: Sequence[int]) -> int | None:
        """Where the grammar's text begins in an answer; None: inside a thought."""
        thought = self._thought
        if thought is None or not (thought.inside or (ids and ids[0] == thought.opening)):
            return 0
        return ids.index(thought.closing) + 1 if thought.closing in ids else None
