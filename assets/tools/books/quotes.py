"""Quotation tasks on any English text: given a few words of a sentence, the answer is the whole sentence.

Defines what a sentence is and which phrases identify exactly one; knows nothing of tokenizers or models.
"""

from __future__ import annotations

import random
import re

from assets.tools.books.generated import Question

QUESTION = 'Quote the sentence that contains "{phrase}".'
PHRASE_WORDS = (3, 6)
SENTENCE_WORDS = (6, 40)
# A sentence ends with its mark and closing quotes, before white space and the start of the next sentence.
_SENTENCE_END = re.compile(r"""(?<=[.!?])["')]*\s+(?=["'(]*[A-Z0-9])|\n{2,}""")
_SPOILED = re.compile(r'["\n]| {2}')


def sentences(text: str) -> list[str]:
    """The sentences of a text in order, unchanged, within their paragraphs."""
    found: list[str] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        # closing quotes and brackets belong to the sentence, the white space behind them does not
        found.append(text[start : match.end()].rstrip())
        start = match.end()
    found.append(text[start:].rstrip())
    return [sentence for sentence in found if sentence.strip()]


def quote_questions(text: str, count: int, rng: random.Random) -> list[Question]:
    """Up to `count` questions, each identifying one sentence on one line by a phrase that `text` has once."""
    fewest, most = SENTENCE_WORDS
    candidates = [
        sentence
        for sentence in sentences(text)
        if fewest <= len(sentence.split()) <= most and not _SPOILED.search(sentence)
    ]
    rng.shuffle(candidates)
    asked: list[Question] = []
    for sentence in candidates:
        if len(asked) == count:
            break
        words = sentence.rstrip(".!?)'").split(" ")
        size = rng.randint(*PHRASE_WORDS)
        at = rng.randrange(max(1, len(words) - size + 1))
        phrase = " ".join(words[at : at + size])
        if text.count(phrase) == 1 and text.count(sentence) == 1:
            asked.append(Question("quote", QUESTION.format(phrase=phrase), sentence, (sentence,)))
    return asked
