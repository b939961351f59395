"""A seeded writer of harbour-town books whose facts are recorded.

Has the words (words.json), the sentence patterns and the questions; knows nothing of tokenizers, models or files. The
same seed gives the same book on every machine. Every askable fact is stated once, about a subject with its full name,
and the expected answer repeats the book's own wording, so a reader that finds the place can answer. Distractors come
from the size of the world: many people share a first or a family name, and each of them has several facts of the same
kinds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Kind = Literal["fact", "absent", "list", "recite", "quote", "quote_any"]  # quote_any: from text of another origin

ABSENT_ANSWER = "The book does not say."
ABSENT_SHARE = 0.35  # questions that the book does not answer, relative to the number of facts


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement of the book. `statement` is its wording without the full stop, `value` its end, the answer."""

    subject: str
    relation: str
    statement: str
    value: str
    question: str
    chapter: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its only correct answer; for a list `values` are its statements."""

    kind: Kind
    question: str
    answer: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter as printed in the book: `text` starts with its heading line and contains no other chapter."""

    number: int
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Book:
    """A book and everything that can be asked about it. `text` holds the title and all chapters."""

    title: str
    text: str
    chapters: tuple[Chapter, ...]
    facts: tuple[Fact, ...]
    questions: tuple[Question, ...]


WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class _Relation:
    """How facts of one kind are stated and asked. {s} is the subject, {o} another person, {v} at the end the value."""

    name: str
    statement: str
    question: str
    value: str  # a pattern; its slots are in `_World.fill`


_PERSON_RELATIONS = (
    _Relation("birthplace", "{s} was born in {v}", "Where was {s} born?", "{place}"),
    _Relation(
        "year", "{s} came into the world in the year {v}", "In which year did {s} come into the world?", "{1790-1879}"
    ),
    _Relation("trade", "{s} earned a living as a {v}", "How did {s} earn a living?", "{trade}"),
    _Relation("home", "{s} lived in a house on {v}", "Where did {s} live?", "{street}"),
    _Relation("pet", "{s} kept a {v}", "What animal did {s} keep?", "{animal} named {pet}"),
    _Relation("fear", "{s} was afraid of {v}", "What was {s} afraid of?", "{fear}"),
    _Relation("dish", "{s} liked nothing better than {v}", "What did {s} like best?", "{dish}"),
    _Relation("trust", "{s} trusted nobody but {v}", "Whom did {s} trust?", "{another}"),
    _Relation("dream", "{s} dreamed of {v}", "What did {s} dream of?", "{dream}"),
    _Relation("skill", "{s} knew how to {v}", "What did {s} know how to do?", "{skill}"),
)
_DATE = "the {4-20}th of {month} {1800-1889}"
_OBJECT_RELATIONS = (
    _Relation("price", "the {s} cost {v}", "How much did the {s} cost?", "{11-99} {coin}"),
    _Relation("hiding", "the {s} was hidden {v}", "Where was the {s} hidden?", "{spot}"),
    _Relation("owner", "the {s} belonged to {v}", "To whom did the {s} belong?", "{person}"),
    _Relation("origin", "the {s} was made in {v}", "Where was the {s} made?", "{place} in {1700-1879}"),
    _Relation("mark", "the {s} bore the mark of a {v}", "Which mark did the {s} bear?", "{animal}"),
    _Relation("loss", "the {s} was lost on {v}", "When was the {s} lost?", _DATE),
)
_SHIP_RELATIONS = (
    _Relation("cargo", "the ship {s} carried {v}", "What did the ship {s} carry?", "{cargo} to {place}"),
    _Relation("wreck", "the ship {s} sank near {v}", "Where did the ship {s} sink?", "{place} in {1790-1889}"),
    _Relation("captain", "the ship {s} was commanded by {v}", "Who commanded the ship {s}?", "{person}"),
)
_PAIR_RELATIONS = (
    _Relation("letter", "{s} wrote a letter to {o} on {v}", "When did {s} write a letter to {o}?", _DATE),
    _Relation("meeting", "{s} first met {o} in {v}", "Where did {s} first meet {o}?", "{place} in {month}"),
    _Relation("debt", "{s} owed {o} a sum of {v}", "How much did {s} owe {o}?", "{11-99} {coin}"),
)
_PASSWORD = _Relation(
    "password", "the password of the {s} inn is {v}", "What is the password of the {s} inn?", "{codeword} {codeword}"
)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


class _World:
    """The people, things and ships of one book, and the random choices made about them."""

    def __init__(self, rng: random.Random, num_words: int) -> None:
        self.rng = rng
        num_people = min(len(WORDS["first"]) * len(WORDS["last"]) // 2, max(4, num_words // 140))
        num_objects = min(len(WORDS["adjectives"]) * len(WORDS["nouns"]) // 2, max(3, num_words // 140))
        # Few first and family names, many combinations: similar names are a reader's most frequent error.
        first = rng.sample(WORDS["first"], min(len(WORDS["first"]), 2 + int(num_people * 0.6)))
        last = rng.sample(WORDS["last"], min(len(WORDS["last"]), 2 + int(num_people * 0.6)))
        self.people = rng.sample([f"{a} {b}" for a in first for b in last], num_people)
        adjectives = rng.sample(WORDS["adjectives"], min(len(WORDS["adjectives"]), 2 + int(num_objects * 0.6)))
        nouns = rng.sample(WORDS["nouns"], min(len(WORDS["nouns"]), 2 + int(num_objects * 0.6)))
        self.objects = rng.sample([f"{a} {n}" for a in adjectives for n in nouns], num_objects)
        self.ships = rng.sample(WORDS["ships"], min(len(WORDS["ships"]), num_words // 600))
        self.inns = rng.sample(WORDS["inns"], min(len(WORDS["inns"]), num_words // 800))

    def _another(self, person: str) -> str:
        return self.rng.choice([other for other in self.people if other != person])

    def fill(self, pattern: str, subject: str = "") -> str:
        """Fill every slot of `pattern` with a new random word: of the people and things of this book, another person
        than the subject, a number of a range, or a word of a list of words.json."""
        parts = pattern.split("{")
        filled = [parts[0]]
        for part in parts[1:]:
            slot, rest = part.split("}", 1)
            filled += [self._word(slot, subject), rest]
        return "".join(filled)

    def _word(self, slot: str, subject: str) -> str:
        if slot == "another":
            return self._another(subject)
        if slot[0].isdecimal():
            least, most = map(int, slot.split("-"))
            return str(self.rng.randrange(least, most + 1))
        own = {"person": self.people, "thing": self.objects}
        return self.rng.choice(
            own.get(slot) or next(WORDS[key] for key in (f"{slot}s", f"{slot}es", slot) if key in WORDS)
        )

    def fact(self, relation: _Relation, subject: str, other: str = "") -> Fact:
        """State `relation` of `subject` with a value of its own; the chapter is set when it is written."""
        value = self.fill(relation.value, subject)
        return Fact(
            subject=subject,
            relation=relation.name,
            statement=relation.statement.format(s=subject, o=other, v=value),
            value=value,
            question=relation.question.format(s=subject, o=other),
            chapter=0,
        )

    def draw_facts(self, count: int) -> list[Fact]:
        """About `count` facts in random order: complete sets for some people, parts for others and for things."""
        rng = self.rng
        num_principals = int(count * 0.45) // len(_PERSON_RELATIONS) or int(rng.random() < 0.3)
        principals = self.people[: min(num_principals, len(self.people) // 3)]
        facts = [self.fact(relation, person) for person in principals for relation in _PERSON_RELATIONS]
        others: list[Fact] = []
        for person in self.people[len(principals) :]:
            others += [self.fact(r, person) for r in rng.sample(_PERSON_RELATIONS, rng.randint(2, 6))]
        for thing in self.objects:
            others += [self.fact(r, thing) for r in rng.sample(_OBJECT_RELATIONS, rng.randint(1, 4))]
        for ship in self.ships:
            others += [self.fact(r, ship) for r in rng.sample(_SHIP_RELATIONS, rng.randint(1, 3))]
        others += [self.fact(_PASSWORD, inn) for inn in self.inns]
        for relation in _PAIR_RELATIONS:
            pairs = {(a, self._another(a)) for a in rng.sample(self.people, max(1, len(self.people) // 3))}
            others += [self.fact(relation, a, b) for a, b in sorted(pairs)]
        rng.shuffle(others)
        facts += others[: max(0, count - len(facts))]
        rng.shuffle(facts)
        return facts


class _Writer:
    """Turns facts into chapters of paragraphs until the wanted number of words is reached."""

    def __init__(self, world: _World) -> None:
        self.world, self.rng = world, world.rng
        self.written: list[Fact] = []

    def _fact_sentence(self, fact: Fact, chapter: int) -> str:
        self.written.append(replace(fact, chapter=chapter))
        if fact.relation == "password":
            return f'"{_capital(fact.statement)}," said {self.rng.choice(self.world.people)}.'
        lead = self._beside(fact, WORDS["leads"]) if self.rng.random() < 0.4 else ""
        tail = self._beside(fact, WORDS["tails"]) if self.rng.random() < 0.3 else ""
        return _capital(f"{lead}{fact.statement}{tail}.")

    def _beside(self, fact: Fact, patterns: Sequence[str]) -> str:
        """A filled pattern that does not name the fact's own subject; empty if the random one names it."""
        phrase = self.world.fill(self.rng.choice(patterns))
        return "" if fact.subject in phrase else phrase

    def _letter(self) -> str:
        person = self.rng.choice(self.world.people)
        body = " ".join(self.world.fill(self.rng.choice(WORDS["letter_body"])) for _ in range(self.rng.randint(1, 3)))
        return f'"Dear {person}, {_capital(body)} Yours, {self.rng.choice(self.world.people)}."'

    def paragraph(self, facts: list[Fact], chapter: int, max_words: int) -> str:
        """One paragraph; takes up to four facts off the end of `facts` and stays below about `max_words`."""
        if self.rng.random() < 0.06 and max_words > 60:
            return self._letter()
        sentences: list[str] = []
        num_facts = self.rng.choice((1, 1, 2, 2, 3, 4))
        while sum(len(s.split()) for s in sentences) < min(max_words, 25 * num_facts):
            if facts and self.rng.random() < 0.55:
                sentences.append(self._fact_sentence(facts.pop(), chapter))
            else:
                sentences.append(self.world.fill(self.rng.choice(WORDS["fillers"])))
        return " ".join(sentences)

    def chapter(self, number: int, title: str, facts: list[Fact], num_words: int) -> Chapter:
        """Write one chapter of about `num_words` words."""
        paragraphs = [f"Chapter {number}: {title}"]
        count = 3
        while count < num_words:
            paragraphs.append(self.paragraph(facts, number, num_words - count))
            count += len(paragraphs[-1].split())
        return Chapter(number, title, "\n\n".join(paragraphs))


def _titles(rng: random.Random, count: int) -> list[str]:
    simple = [f"The {noun}" for noun in WORDS["titles"]]
    longer = [
        f"The {noun} {link} {place}" for noun in WORDS["titles"] for link in ("of", "at") for place in WORDS["places"]
    ]
    chosen = rng.sample(simple, min(len(simple), (count + 1) // 2))
    chosen += rng.sample(longer, count - len(chosen))
    rng.shuffle(chosen)
    return chosen


def _absent(world: _World, facts: list[Fact]) -> list[Question]:
    """Plausible questions without an answer in the book, on people and things with other facts or on unknown people."""
    told = {(fact.subject, fact.relation) for fact in facts}
    subjects = {fact.subject for fact in facts}
    kinds = ((world.people, _PERSON_RELATIONS), (world.objects, _OBJECT_RELATIONS), (world.ships, _SHIP_RELATIONS))
    known: list[str] = []
    for names, relations in kinds:
        open_ones = ((name, relation) for name in names if name in subjects for relation in relations)
        known += [r.question.format(s=name) for name, r in open_ones if (name, r.name) not in told]
    people = set(world.people)
    named = [
        f"{world.rng.choice(WORDS['first'])} {world.rng.choice(WORDS['last'])}" for _ in range(2 + len(facts) // 20)
    ]
    strangers = dict.fromkeys(name for name in named if name not in people)
    unknown = [world.rng.choice(_PERSON_RELATIONS).question.format(s=name) for name in strangers]
    most = max(2, int(ABSENT_SHARE * len(facts)))
    chosen = world.rng.sample(known, min(most, len(known))) + unknown
    return [Question("absent", question, ABSENT_ANSWER, (ABSENT_ANSWER,)) for question in chosen]


def _questions(world: _World, facts: list[Fact], chapters: list[Chapter]) -> list[Question]:
    asked = [Question("fact", f.question, _capital(f.statement) + ".", (f.value,)) for f in facts]
    by_person: dict[str, dict[str, Fact]] = {}
    person_relations = [relation.name for relation in _PERSON_RELATIONS]
    for fact in facts:
        if fact.relation in person_relations:
            by_person.setdefault(fact.subject, {})[fact.relation] = fact
    for person, known in by_person.items():
        if len(known) == len(person_relations):
            ordered = [known[name] for name in person_relations]
            answer = " ".join(_capital(f.statement) + "." for f in ordered)
            values = tuple(_capital(f.statement) for f in ordered)
            asked.append(Question("list", f"Tell everything the book says about {person}.", answer, values))
    for chapter in chapters:
        question = f"Recite chapter {chapter.number} from its beginning."
        asked.append(Question("recite", question, chapter.text, (chapter.text,)))
    return asked + _absent(world, facts)


def write_book(seed: int, num_words: int) -> Book:
    """Write the book of `seed`.

    Args:
        seed: any int; equal arguments give equal books on every machine.
        num_words: wanted length in words; at least 60. The book ends with the paragraph that reaches it.
    Returns:
        The book with its facts in the order of the text, and all questions that it answers.
    Raises:
        ValueError: `num_words` is below 60.
    """
    if num_words < 60:
        raise ValueError(f"a book needs at least 60 words, not {num_words}")
    rng = random.Random(seed)
    world = _World(rng, num_words)
    chapter_words = min(600, max(40, num_words // rng.randint(3, 6)))
    num_chapters = min(99, max(2, round(num_words / chapter_words)))
    # A sentence has about 11 words and a good half of them state a fact; 15% fewer, so that few facts are left over.
    facts = world.draw_facts(max(4, int(num_words / 11 * 0.55 * 0.85)))
    writer = _Writer(world)
    chapters: list[Chapter] = []
    num_written = 0
    for number, title in enumerate(_titles(rng, num_chapters), start=1):
        share = (num_words - num_written) // (num_chapters - number + 1)
        chapters.append(writer.chapter(number, title, facts, max(12, share)))
        num_written += len(chapters[-1].text.split())
    title = f"The {rng.choice(WORDS['titles'])} of {rng.choice(WORDS['places'])}"
    text = "\n\n".join([title, *(chapter.text for chapter in chapters)])
    return Book(title, text, tuple(chapters), tuple(writer.written), tuple(_questions(world, writer.written, chapters)))
