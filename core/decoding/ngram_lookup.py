"""Lookups: propose the tokens that followed the longest earlier match of the newest tokens, in book or conversation.

As prompt lookup (Saxena 2023) and SuffixDecoding (arXiv 2411.04975) do. Every guess is verified.
"""

from collections.abc import Callable, Sequence

import torch

from core.caches.tokens import Context, common_prefix
from core.decoding.adaptive import RecentAcceptance
from core.decoding.stats import Origin
from core.decoding.verify import Guess
from core.ops.streams import to_device

# Indexed lengths, longest first; a match must have at least the shortest. The longest finds a passage whose pairs stand
# in more places than are compared.
GRAMS = (8, 2, 1)
MOST_TRIED = 256  # earlier places with the same n-gram that are compared, newest first
LONGEST_MATCH = 32  # tokens compared
# Acceptance of a continuation by the length of its match, before any was seen
PRIORS = {1: 0.25, 2: 0.4, 3: 0.55, 5: 0.7, 8: 0.8, 16: 0.93}


class TokenIndex:
    """Where each n-gram of a token sequence ends. Linear in memory, constant time per token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._last: list[dict[tuple[int, ...], int]] = [{} for _ in GRAMS]  # n-gram -> its newest end
        self._before: list[list[int]] = [[] for _ in GRAMS]  # by end: the previous end of the same n-gram, 0 for none

    def sync(self, tokens: Sequence[int]) -> None:
        """Hold exactly these tokens; the cost grows with the tokens behind the common prefix."""
        self.truncate(common_prefix(self.tokens, tokens))
        self.extend(tokens[len(self.tokens) :])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        length = len(self.tokens)
        self.tokens.extend(tokens)
        for size, last, before in zip(GRAMS, self._last, self._before, strict=True):
            first = max(0, length - size + 1)
            shifted = (self.tokens[first + by :] for by in range(size))
            for end, gram in enumerate(zip(*shifted, strict=False), first + size):
                before.append(last.get(gram, 0))
                last[gram] = end

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; the cost grows with what is forgotten."""
        for size, last, before in zip(GRAMS, self._last, self._before, strict=True):
            for end in range(len(self.tokens), max(length, size - 1), -1):
                gram, earlier = tuple(self.tokens[end - size : end]), before.pop()
                if earlier:
                    last[gram] = earlier
                else:
                    del last[gram]
        del self.tokens[length:]

    def find(self, suffix: Sequence[int]) -> tuple[int, int]:
        """The longest earlier match of the end of `suffix`; the newest of several.

        Returns:
            Where it ends in `tokens` (its continuation starts there) and its length; (0, 0) for none. A match at the
            very end of `tokens` has no continuation and does not count.
        """
        for size, last, before in zip(GRAMS, self._last, self._before, strict=True):
            ends: list[int] = []
            end = last.get(tuple(suffix[-size:]), 0)
            while end and len(ends) < MOST_TRIED:
                if end < len(self.tokens):
                    ends.append(end)
                end = before[end - size]
            if ends:
                return self._longest(suffix, ends, size)
        return 0, 0

    def _longest(self, suffix: Sequence[int], ends: list[int], length: int) -> tuple[int, int]:
        """The first of the places with the longest match, among those where `length` tokens agree."""
        while length < min(len(suffix), LONGEST_MATCH):
            longer = [end for end in ends if end > length and self.tokens[end - 1 - length] == suffix[-1 - length]]
            if not longer:
                break
            ends, length = longer, length + 1
        return ends[0], length


class Lookup:
    """Proposes continuations found in the index. Its distribution gives each proposed token probability 1.

    Its acceptance is estimated by the length of the match, from earlier continuations, also those found and not
    proposed.

    Args:
        worth: how many tokens to propose, given their acceptance; 0: none. Without it as many as the match has.
        certain: whether all distributions are (temperature 0), see `core.decoding.verify.certain`.
    """

    def __init__(
        self,
        index: TokenIndex,
        vocab: int,
        device: torch.device,
        *,
        at_least: int,
        at_most: int,
        worth: Callable[[float], int] | None = None,
        certain: bool = False,
    ) -> None:
        self._index, self._vocab, self._device = index, vocab, device
        self._at_least, self._at_most, self._worth, self._certain = at_least, at_most, worth, certain
        self._trust = [RecentAcceptance(prior) for prior in PRIORS.values()]
        self._found: tuple[int, ...] = ()  # the continuation found last
        self._by: RecentAcceptance = self._trust[0]

    def guess(self, context: Context) -> Guess | None:
        """Up to `at_most` tokens behind a match of at least `at_least`; None without a match that is worth it."""
        end, length = self._index.find(context.span(max(0, len(context) - LONGEST_MATCH), len(context)))
        continuation = self._index.tokens[end : end + self._at_most] if length >= self._at_least else []
        self._found = tuple(continuation)
        if not continuation:
            return None
        self._by = self._trust[sum(length >= shortest for shortest in PRIORS) - 1]
        wanted = length if self._worth is None else self._worth(self._by.value)
        tokens = self._found[:wanted]
        if not tokens:
            return None
        probs = torch.tensor(tokens)
        if not self._certain:
            at = to_device(probs, self._device)[:, None]
            probs = torch.zeros(len(tokens), self._vocab, device=self._device).scatter_(1, at, 1.0)
        return Guess(tokens, probs, (Origin("lookup", "proposed"),) * len(tokens))

    def learn(self, tokens: Sequence[int]) -> None:
        """Compare the last continuation found with the tokens that were written."""
        if self._found:
            accepted = common_prefix(self._found, tokens)
            self._by.add(min(accepted + 1, len(tokens), len(self._found)), accepted)
            self._found = ()
