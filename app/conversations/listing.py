"""The list of conversations, with the text that is searched. Frozen values."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.conversations.tree import Dialogue

BEFORE, AFTER = 24, 60  # characters around a hit


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the list, with the text that is searched."""

    id: str
    title: str
    book: str
    changed: str  # UTC, ISO 8601
    text: str  # title, names of files, all questions and answers
    tab: str

    @classmethod
    def of(cls, dialogue: Dialogue) -> "Summary":
        """The summary of a conversation."""
        texts = [dialogue.title, *dialogue.book.names]
        for node in dialogue.nodes:
            texts += [node.question, node.exchange.finished.text if node.exchange else ""]
        return cls(
            id=dialogue.id,
            title=dialogue.title,
            book=dialogue.book.names[0] if len(dialogue.book.names) == 1 else dialogue.book.title,
            changed=dialogue.changed,
            text="\n".join(texts),
            tab=dialogue.tab,
        )

    def has(self, words: Sequence[str]) -> bool:
        """Every one of these folded words is in its text."""
        folded = self.text.casefold()
        return all(word in folded for word in words)

    def excerpt(self, search: str) -> tuple[str, str, str] | None:
        """What stands before, at and after the first hit of a search outside of the title; None: there is none."""
        folded = self.text.casefold()
        text = self.text if len(self.text) == len(folded) else folded  # else places differ between the two
        body = len(self.title) + 1
        hits = [(folded.find(word, body), len(word)) for word in search.casefold().split()]
        hits = [hit for hit in hits if hit[0] >= 0]
        if not hits:
            return None
        at, length = min(hits)
        start, end = max(body, at - BEFORE), min(len(text), at + length + AFTER)
        shown = ("…" if start > body else "") + text[start:at], text[at : at + length], text[at + length : end]
        before, hit, after = (" ".join(f"|{part}|".split())[1:-1] for part in shown)
        return before, hit, after + ("…" if end < len(text) else "")


@dataclass(frozen=True, slots=True)
class Listing:
    """The list, newest first, and notices about what is not in it or not on disk."""

    summaries: tuple[Summary, ...]
    notices: tuple[str, ...]
