"""Text from outside the generator: English that comes with Python itself, and sentences of made-up words.

A book of a reader is not written by `assets/tools/books/generated.py`. So that quoting leans on no particular words,
part of the training documents are technical English (the language reference in `pydoc_data` and the doc strings of the
standard library) and babble (random sentences over random words). Measurements ask for sentences of the other topics.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

PSEUDO_SHARE = 0.5  # of the words of a babble that are made up
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_WORD = re.compile(r"[a-z]{2,12}")


def prose_paragraphs(text: str) -> list[str]:
    """Paragraphs of prose on one line each; code, lists and headings are left out."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.split("\n")
        indented = any(line.startswith((" ", "\t", "-", "*", ">", ".", "+", "|")) for line in lines)
        line = " ".join(part.strip() for part in lines)
        if not indented and len(line.split()) >= 12 and line.rstrip()[-1:] in ".!?":
            found.append(re.sub(r"\s+", " ", line))
    return found


def parsed(source: str) -> ast.Module:
    """Its syntax tree. Where another thread parses at the same time, Python 3.11 may lose count of the depth."""
    try:
        return ast.parse(source)
    except SystemError:
        return ast.parse(source)


@cache
def passages() -> tuple[str, ...]:
    """Training paragraphs: every second topic of the language reference, and doc strings of the standard library."""
    found: list[str] = []
    for index, name in enumerate(sorted(topics)):
        if index % 2 == 0:
            found += prose_paragraphs(topics[name])
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = parsed(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                found += prose_paragraphs(ast.get_docstring(node) or "")
    return tuple(dict.fromkeys(found))


def prose(rng: random.Random, num_words: int) -> str:
    """Paragraphs of real English in random order, without repetition, about `num_words` words."""
    count, chosen = 0, []
    for paragraph in rng.sample(passages(), len(passages())):
        chosen.append(paragraph)
        count += len(paragraph.split())
        if count >= num_words:
            break
    return "\n\n".join(chosen)


@cache
def _words() -> tuple[str, ...]:
    return tuple(sorted({word for passage in passages() for word in _WORD.findall(passage.lower())}))


def _pseudo_word(rng: random.Random) -> str:
    return "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 3))) + rng.choice(
        "nrst "
    )


def babble(rng: random.Random, num_words: int) -> str:
    """Random sentences over a random vocabulary, frequent and rare words as in language (Zipf), in paragraphs."""
    size = rng.randint(80, 600)
    vocabulary = [
        _pseudo_word(rng).strip() if rng.random() < PSEUDO_SHARE else rng.choice(_words()) for _ in range(size)
    ]
    weights = [1 / (rank + 2) for rank in range(size)]
    paragraphs: list[str] = []
    count = 0
    while count < num_words:
        sentences = []
        for _ in range(rng.randint(2, 6)):
            words = rng.choices(vocabulary, weights, k=rng.randint(5, 24))
            count += len(words)
            if len(words) > 9 and rng.random() < 0.5:
                words[rng.randrange(3, len(words) - 3)] += ","
            sentences.append(" ".join(words).capitalize() + rng.choice((".", ".", ".", "!", "?")))
        paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)
