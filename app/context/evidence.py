"""What an answer has from the book, word for word, and what it has not: its sentences and its quotations.

A sentence is found where its words follow each other in the book. Case, white space, punctuation and emphasis may
differ, but no sentence may end in the book where none ends in the answer. Fewer than LEAST_WORDS words are neither
found nor missed. A quotation is found in the same way; where it leaves words out, its parts follow each other in the
book. Headings, tables, code and mathematics are left out.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from app.context.context_documents import Span
from app.context.folding import UNSPACED

LEAST_WORDS = 4  # fewer are more often names and emphasis
MOST_QUOTATIONS = 40
MOST_SENTENCES = 400  # of an answer; what follows is neither found nor missed
MARKS = ("`", "~~~", "$$", "\\(", "\\)", "\\[", "\\]")  # of code and mathematics: no sentences
MOST_SPACE = 40  # characters between two sentences
MOST_TRIES = 20  # places that have the words, but end a sentence among them
Kind = Literal["sentence", "quotation", "own"]
LONE = "".join(f"{chr(first)}-{chr(end - 1)}" for first, end in UNSPACED)  # every character counts as half a word
BETWEEN = r"""\s!"#'()*,./:;?\[\\\]_`{|}~\-"""  # no words
BETWEEN += "\xab\xb7\xbb\xa1\xbf\u3000-\u3003\u3008-\u3011\u2010-\u2027\u2039\u203a"
BETWEEN += "\xad\u200b-\u200f\ufeff\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f"
WORD = re.compile(rf"(?:(?<!\S)[-\u2212](?=\d))?(?:\d+(?:[.,]\d+)+|(?![{BETWEEN}])[{LONE}]|[^{BETWEEN}{LONE}]+)")
LONELY = re.compile(f"[{LONE}]")
PAIRS = (("“", "”"), ('"', '"'), ("«", "»"), ("„", "“"), ("„", "”"))
QUOTED = re.compile("|".join(f"{a}([^{a}{b}\n]+(?:\n[^{a}{b}\n]+)*){b}" for a, b in PAIRS))
ELISION = re.compile(r"\[\s*(?:…|\.\.\.)\s*\]|…|\.{3,}|\. \. \.")
STOP = re.compile("[.!?\u3002\uff01\uff1f]")
CLOSING = "\"'*_)\\]\u201d\u2019\xbb\u300d\u300f"
END = re.compile(rf"[.!?\u2026]+[{CLOSING}]*(?=\s|$)|[\u3002\uff01\uff1f]+[{CLOSING}]*")
ABBREVIATED = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Capt|No|Nr|vs|cf)\.$")
MARKER = re.compile(r" {0,3}(?:[-*+] +|[0-9]{1,3}[.)] +|> ?)+")
SKIPPED = re.compile(r" {4}|\t| {0,3}(?:#{1,6} |\||[-*_=]{3,}\s*$)")
FENCE = re.compile(r" {0,3}(?:```|~~~)")
LINE = re.compile(r"[^\n]*\n|[^\n]+")
NOTHING_SAID = re.compile(
    r"\b(?:not|cannot|no|\w+n['\u2019]t)\b.{0,40}\b(?:say|tell|mention|state|specif|contain|provide|describe|inform|"
    r"answer|found|find|know)",
    re.IGNORECASE,
)
MOST_REFUSAL_WORDS = 40


class Said(NamedTuple):
    """Words of an answer."""

    words: tuple[str, ...]
    stops: tuple[bool, ...]  # for each word: a stop is behind it
    wanted: str  # as they stand among the joined words of a book

    @property
    def length(self) -> float:
        """The number of words; characters of scripts without spaces count half."""
        return sum(0.5 if LONELY.fullmatch(word) else 1.0 for word in self.words)


@dataclass(frozen=True, slots=True)
class Passage:
    """Characters [start, end) of an answer, and where the book has their words."""

    start: int
    end: int
    kind: Kind  # own: neither a sentence of the book nor a quotation
    source: Span | None = None  # of the joined text; None: not in the book
    again: bool = False  # they stand at another place, too


class BookWords:
    """The words of a text, to find sequences of them. Made once for a book.

    Memory: the text once more, and eight bytes a word. A search is one pass over the text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = array("I")  # of words in the text
        self._places = array("I")  # of words in the joined words
        words, length = [""], 1
        for match in WORD.finditer(text):
            word = match[0].casefold()
            self._starts.append(match.start())
            self._places.append(length)
            words.append(word)
            length += len(word) + 1
        self._joined = " ".join([*words, ""])

    def find(self, said: "Said", start: int = 0) -> int | None:
        """The first word of the first place at or after word `start` that has these words; None: there is none."""
        place = self._places[start] - 1 if start < len(self._places) else len(self._joined)
        for _ in range(MOST_TRIES):
            place = self._joined.find(said.wanted, place)
            if place < 0:
                return None
            first = bisect_left(self._places, place + 1)
            if self._one_sentence(said, first):
                return first
            place += 1
        return None

    def has(self, said: "Said", first: int) -> bool:
        """These words stand at word `first`."""
        if not 0 <= first < len(self._places) or not self._joined.startswith(said.wanted, self._places[first] - 1):
            return False
        return self._one_sentence(said, first)

    def _one_sentence(self, said: "Said", first: int) -> bool:
        """No sentence ends in the book where none ends in the answer."""
        return all(said.stops[number] or not self._ends(first + number) for number in range(len(said.words) - 1))

    def _ends(self, word: int) -> bool:
        """A sentence ends behind a word."""
        behind = self._text[self._end(word) : self._starts[word + 1]]
        return STOP.search(behind) is not None

    def _end(self, word: int) -> int:
        match = WORD.match(self._text, self._starts[word])
        assert match is not None, "a word without characters"
        return match.end()

    def span(self, first: int, count: int) -> Span:
        """The characters of `count` words."""
        return Span(self._starts[first], self._end(first + count - 1))


def evidence_in(answer: str, words: BookWords, page_ends: Sequence[int]) -> tuple[Passage, ...]:
    """The passages of an answer in order: sentences and quotations with their places, and wording of its own.

    Sentences that follow each other in the answer and on a page of the book are one passage.

    Args:
        words: of the joined text.
        page_ends: the end of each page in it.
    """
    found, missed = _sentences(answer, words, page_ends)
    passages = list(found)
    quoted: list[Span] = []
    long = (match for match in QUOTED.finditer(answer) if len(match[0].split()) >= LEAST_WORDS)
    for match in islice(long, MOST_QUOTATIONS):
        quoted.append(Span(*match.span()))
        source = _quoted(answer, Span(*match.span(match.lastindex or 0)), words)
        if source is None or not any(one.start <= match.start() and match.end() <= one.end for one in found):
            passages.append(Passage(*match.span(), "quotation", source))
    for sentence in missed:
        passages += [Passage(*own, "own") for own in _without(answer, sentence, quoted)]
    return tuple(sorted(passages, key=lambda one: (one.end, one.start)))


def is_refusal(answer: str, passages: Sequence[Passage]) -> bool:
    """The answer only says that the book does not tell: it is short, and nothing of it stands in the book."""
    short = len(answer.split()) <= MOST_REFUSAL_WORDS
    return short and NOTHING_SAID.search(answer) is not None and not any(one.source for one in passages)


def _quoted(answer: str, quotation: Span, words: BookWords) -> Span | None:
    """Where the book has the words between quotation marks, part by part."""
    first, following, start = None, 0, quotation.start
    gaps = [match.span() for match in ELISION.finditer(answer, *quotation)]
    for end, next_start in [*gaps, (quotation.end, quotation.end)]:
        said, start = _said(answer, Span(start, end)), next_start
        if said.words:
            place = words.find(said, following)
            if place is None:
                return None
            first = place if first is None else first
            following = place + len(said.words)
    return None if first is None else words.span(first, following - first)


def _sentences(answer: str, words: BookWords, page_ends: Sequence[int]) -> tuple[list[Passage], list[Span]]:
    """The found sentences, and those that were not found."""
    found: list[Passage] = []
    missed: list[Span] = []
    following = -1  # the word of the book behind the last found sentence
    blocks = ((block, sentence) for block in _blocks(answer) for sentence in _split(answer, block))
    sentences = [(block, one) for block, one in blocks if not any(sign in answer[slice(*one)] for sign in MARKS)]
    for (block, sentence), before in zip(sentences[:MOST_SENTENCES], [None, *sentences], strict=False):
        said = _said(answer, sentence)
        joins = before is not None and before[0] is block and bool(found) and found[-1].end == before[1].end
        follows = words.has(said, following)
        place: int | None = following
        if said.length < LEAST_WORDS:
            place = following if joins and follows else None
        elif not follows:
            place = words.find(said)
            if place is None:
                missed.append(sentence)
        if place is None:
            continue
        again = said.length >= LEAST_WORDS and _elsewhere(words, said, place)
        one = Passage(*sentence, "sentence", words.span(place, len(said.words)), again)
        if joins and follows and _same_page(found[-1], one, page_ends):
            one = _joined(found.pop(), one)
        found.append(one)
        following = place + len(said.words)
    return found, missed


def _elsewhere(words: BookWords, said: Said, place: int) -> bool:
    """The words stand at another place than this one, too."""
    return words.find(said) != place or words.find(said, place + 1) is not None


def _joined(first: Passage, second: Passage) -> Passage:
    assert first.source is not None and second.source is not None, "found, but nowhere"
    source = Span(first.source.start, second.source.end)
    return Passage(first.start, second.end, "sentence", source, first.again and second.again)


def _same_page(first: Passage, second: Passage, page_ends: Sequence[int]) -> bool:
    if first.source is None or second.source is None:
        return False
    return bisect_right(page_ends, first.source.start) == bisect_right(page_ends, second.source.start)


def _blocks(answer: str) -> Iterator[Span]:
    """Paragraphs and items of lists."""
    start: int | None = None
    end, fenced = 0, False
    for line in LINE.finditer(answer):
        fence, marker = FENCE.match(line[0]), MARKER.match(line[0])
        skipped = fenced or fence or not line[0].strip() or SKIPPED.match(line[0])
        if start is not None and (skipped or marker):
            yield Span(start, end)
            start = None
        fenced ^= fence is not None
        if not skipped:
            if start is None:
                start = line.start() + (marker.end() if marker else 0)
            end = line.end()
    if start is not None:
        yield Span(start, end)


def _split(answer: str, block: Span) -> Iterator[Span]:
    """The sentences of a block, without white space around them."""
    start = block.start
    for match in END.finditer(answer, *block):
        behind = answer[match.end() : min(match.end() + MOST_SPACE, block.end)].lstrip()
        if behind[:1].islower() or ABBREVIATED.search(answer, max(start, match.end() - 12), match.end()):
            continue
        yield from _stripped(answer, start, match.end())
        start = match.end()
    yield from _stripped(answer, start, block.end)


def _stripped(text: str, start: int, end: int) -> Iterator[Span]:
    piece = text[start:end]
    if piece.strip():
        yield Span(start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip()))


def _said(answer: str, span: Span) -> Said:
    """The words of a part of an answer. The last word of an answer may have been cut."""
    matches = list(WORD.finditer(answer, *span))
    ends = [match.start() for match in matches[1:]] + [span.end] * bool(matches)
    stops = tuple(STOP.search(answer, one.end(), end) is not None for one, end in zip(matches, ends, strict=True))
    words = tuple(match[0].casefold() for match in matches)
    cut = span.end == len(answer) and answer[-1:].isalnum()
    return Said(words, stops, " " + " ".join(words) + ("" if cut else " "))


def _without(answer: str, sentence: Span, quoted: Sequence[Span]) -> Iterator[Span]:
    """The parts of a sentence outside of quotations that are long enough to say anything about them."""
    start = sentence.start
    for quote in sorted(quoted):
        if quote.start < sentence.end and quote.end > start:
            yield from _long(answer, start, quote.start)
            start = quote.end
    yield from _long(answer, start, sentence.end)


def _long(answer: str, start: int, end: int) -> Iterator[Span]:
    if start < end and _said(answer, Span(start, end)).length >= LEAST_WORDS:
        yield from _stripped(answer, start, end)
