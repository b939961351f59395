"""The places in the book that the retrieval cache loaded for drafting; no proof that an answer used them.

Pure values: weights of chunks, pages, characters. The engine's thread reads the weights; views ask for the rest.

A chunk's weight is the share of attention by which it was chosen, averaged over layers and KV heads; 0 where no head
holds it. Much of that has nothing to do with the question: chunk 0 is the sink and always held, the newest tokens are
held beside the chunks, and some places (headings, beginnings, names) are chosen for any question. So three questions
that fit every text are asked once (`BASELINE_QUESTIONS`) and their weights averaged to a baseline; only a chunk's
excess over the baseline counts. Some heads attend to a fixed distance behind the newest token, whatever is there: on
the bundled pair these weights are the largest of all. So twice the baseline is subtracted, at the chunk where it was
measured and as many chunks further on as the newest token has moved.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, NamedTuple

from app.context.context_documents import Library, Placed

if TYPE_CHECKING:
    from app.context.open_book import Book

BASELINE_QUESTIONS = ("What is this text about?", "What happens in it, in short?", "Who and what is named in it?")
STRONG, SOME = 0.5, 0.25  # shares of the strongest chunk's excess: from here on a passage is marked
MOST_LOADS = 16  # for 128K tokens 128 KB each
SPREAD = 2.0  # such weights vary between questions: seen up to 1.6 times the average
FAINT = 0.001  # an excess of the strongest chunk below this is noise


def mean(total: Sequence[float], weight: int, more: Sequence[float]) -> "array[float]":
    """The mean after one more observation, where `total` is the mean of the first `weight` ones."""
    pairs = zip_longest(total, more, fillvalue=0.0)
    return array("d", ((weight * old + new) / (weight + 1) for old, new in pairs))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the retrieval cache held during an answer: the mean of samples taken about twice a second."""

    retrieves: bool  # False: the method has no retrieval cache
    weights: "array[float]" = field(default_factory=lambda: array("d"))  # by chunk number
    shortest: int = 0  # the number of chunks at the first sample
    num_seen: int = 0
    all_held: bool = False  # the cache holds the whole book, so nothing was chosen
    budget: int = 0  # of the cache, tokens
    kept: bool = True  # False: the weights are no longer known

    def seen(self, weights: Sequence[float], *, all_held: bool = False) -> "Loaded":
        """A copy with one more sample."""
        if not self.retrieves or not weights:
            return self
        now, shortest = mean(self.weights, self.num_seen, weights), self.shortest or len(weights)
        return replace(self, weights=now, shortest=shortest, num_seen=self.num_seen + 1, all_held=all_held)


class Loads(dict[str, Loaded]):
    """What was loaded for the newest answers about one book, by exchange, so that older branches can be shown."""

    def put(self, exchange_id: str, loaded: Loaded) -> None:
        """Store what was loaded for an exchange; beyond MOST_LOADS the oldest is forgotten."""
        self[exchange_id] = loaded
        if len(self) > MOST_LOADS:
            del self[next(iter(self))]


# -------------------- chunks, pages, characters


def chunk_pages(library: Library, starts: Sequence[int], first_token: int, size: int) -> "array[int]":
    """For each chunk of the prompt with tokens of the book: the index in `library.pages` of its middle token's page.

    Args:
        starts: the character of the joined text at which each token of the book begins.
        first_token: tokens of the prompt before the book; size: tokens of a chunk.
    """
    if not starts:
        return array("I")
    num_chunks = -(-(first_token + len(starts)) // size)
    middles = (min(max(chunk * size + size // 2 - first_token, 0), len(starts) - 1) for chunk in range(num_chunks))
    ends = [page.end for page in library.pages]
    return array("I", (min(bisect_right(ends, starts[token]), len(ends) - 1) for token in middles))


class Passage(NamedTuple):
    """Loaded characters [start, end) of the joined text, and their strength as a share of the strongest."""

    start: int
    end: int
    strength: float


class Weights:
    """The excess weights of one answer by chunk, page and passage of a book."""

    def __init__(self, book: "Book", loaded: Loaded, baseline: Sequence[float] | None) -> None:
        num_chunks = len(book.chunk_pages)
        weights = array("d", loaded.weights[:num_chunks])
        weights.extend([0.0] * (num_chunks - len(weights)))
        self._book, self._all_held = book, loaded.all_held
        longer = range(loaded.shortest - len(baseline or ()), len(loaded.weights) - len(baseline or ()) + 1)
        self.excess = _excess(weights, baseline, longer)
        self.strongest = max(self.excess, default=0.0)

    @property
    def tells(self) -> bool:
        """Some chunk exceeds the baseline."""
        return not self._all_held and self.strongest > FAINT

    def pages(self) -> "array[float]":
        """For each page of the library the summed excess of its chunks, as a share of the largest sum."""
        sums = array("d", bytes(8 * len(self._book.library.pages)))
        if self.tells:
            for page, excess in zip(self._book.chunk_pages, self.excess, strict=True):
                sums[page] += excess
        most = max(sums, default=0.0) or 1.0
        return array("d", (one / most for one in sums))

    def passages(self, page: Placed) -> list[Passage]:
        """The passages of a page above the baseline; adjoining chunks are merged, and words are whole."""
        book, found = self._book, list[Passage]()
        if not self.tells:
            return found
        first = bisect_left(book.starts, page.start) + book.first_token
        last = bisect_left(book.starts, page.end) + book.first_token
        for chunk in range(max(0, first // book.chunk_size), min(len(self.excess), -(-last // book.chunk_size))):
            strength = self.excess[chunk] / self.strongest
            if strength < SOME:
                continue
            start, end = _whole_words(book.library.text, self._char(chunk), self._char(chunk + 1), page)
            if found and found[-1].end >= start:
                before = found.pop()
                start, strength = before.start, max(strength, before.strength)
            if start < end:
                found.append(Passage(start, end, strength))
        return found

    def _char(self, chunk: int) -> int:
        """The first character of a chunk."""
        book = self._book
        token = max(0, chunk * book.chunk_size - book.first_token)
        return book.starts[token] if token < len(book.starts) else len(book.library.text)


def _whole_words(text: str, start: int, end: int, page: Placed) -> tuple[int, int]:
    """Extend a passage to whole words at both ends, within its page."""
    start, end = max(page.start, start), min(page.end, end)
    while page.start < start < end and text[start - 1].isalnum() and text[start].isalnum():
        start -= 1
    while start < end < page.end and text[end - 1].isalnum() and text[end].isalnum():
        end += 1
    return start, end


def _excess(weights: Sequence[float], baseline: Sequence[float] | None, moved: range) -> "array[float]":
    """Each chunk's excess over the baseline; without a baseline, over the mean of all chunks."""
    if not baseline:
        flat = sum(weights[1:]) / max(1, len(weights) - 1)
        before = array("d", [flat]) * len(weights)
    else:
        before = _expected(baseline, len(weights), moved)
    excess = array("d", (max(0.0, weight - expected) for weight, expected in zip(weights, before, strict=True)))
    if excess:
        excess[0] = 0.0  # the sink
    return excess


def _expected(baseline: Sequence[float], num_chunks: int, moved: range) -> "array[float]":
    """The weights that the baseline predicts, at its own chunks and as far on as the text has moved: see the module.

    Args:
        moved: by how many chunks the prompt exceeded the baseline's prompts during the answer.
    """
    expected = array("d", bytes(8 * num_chunks))
    for chunk, weight in enumerate(baseline):
        if weight > FAINT / 2:
            there = chain(range(chunk - 1, chunk + 2), range(chunk + moved.start - 1, chunk + moved.stop + 1))
            for at in there:
                if 0 <= at < num_chunks:
                    expected[at] = max(expected[at], SPREAD * weight)
    for chunk in range(len(baseline), num_chunks):
        expected[chunk] = 1.0  # was among the newest tokens in the baseline, so nothing is known
    return expected
