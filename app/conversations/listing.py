"""The list of conversations, with the text that is searched. Frozen values."""

from dataclasses import dataclass

from app.conversations import files
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


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a file when it was read; it is read again only after a change."""

    stamp: files.Stamp
    summary: Summary | None  # None: written by a newer version


@dataclass(frozen=True, slots=True)
class Known:
    """A file that this program wrote or opened."""

    stamp: files.Stamp | None  # None: memory does not have its content any more
    time: int  # of that, nanoseconds since 1970
    ids: frozenset[str]  # nodes on disk at that time or before
