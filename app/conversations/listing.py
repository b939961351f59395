"""The list of conversations, with the text that is searched. Frozen values."""

from dataclasses import dataclass

from app.conversations.tree import Dialogue


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the list, with the text that is searched."""

    id: str
    title: str
    book: str
    changed: str  # UTC, ISO 8601
    num_exchanges: int
    words: str  # all questions and answers, folded for search
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
            num_exchanges=len(dialogue.nodes),
            words="\n".join(texts).casefold(),
            tab=dialogue.tab,
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """The list, newest first, and notices about files that are not in it."""

    summaries: tuple[Summary, ...]
    notices: tuple[str, ...]
