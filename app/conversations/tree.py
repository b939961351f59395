"""A conversation: a tree of questions and answers, of which one branch is shown.

An edit, another answer or a branch never replaces anything: it is a further child of the same parent. Immutable; every
change is another value. Knows nothing of the database, of engines or of the page.

Several pages and programs may hold states of one conversation. Times of answers and titles say which is newer; ids of
removed nodes stay, so that no older state brings them back. `database.write` merges by them.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.context.context_documents import Book as LibraryBook
from app.context.context_documents import Chapters, in_words, label, path_ranges
from app.context.open_book import Book
from app.context.page_ranges import written
from app.conversations.exchange import Exchange

ROOT = ""  # parent of first questions
LONGEST_TITLE = 80  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class BookRef:
    """Identifies the book of a conversation, without any of its text."""

    names: tuple[str, ...]  # file names
    title: str
    digest: str  # SHA-256 of the text, all documents joined, hexadecimal
    num_tokens: int
    parts: tuple[str, ...] = ()  # the choice of each file, in words; empty: all files whole
    documents: tuple[str, ...] = ()  # SHA-256 of each document's own text, hexadecimal, to find it again
    choices: tuple[str, ...] = ()  # the choice of each, as `page_ranges` reads it

    @classmethod
    def of(cls, book: Book, digest: str) -> "BookRef":
        """The reference to an open book."""
        books = book.library.books
        parts = () if all(one.is_whole for one in books) else tuple(_part(one) for one in books)
        return cls(
            names=book.names,
            title=book.title,
            digest=digest,
            num_tokens=book.num_tokens,
            parts=parts,
            documents=tuple(one.digest.hex() for one in books),
            choices=tuple(written(one.choice) for one in books),
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The file names, with the chosen parts."""
        if len(self.parts) != len(self.names):
            return self.names
        return tuple(f"{name}: {part}" for name, part in zip(self.names, self.parts, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One exchange in the tree. Without an exchange the question is unanswered, or is being answered."""

    id: str  # random, so no text of a book can name one
    parent: str
    asked: str  # time, UTC, ISO 8601
    question: str
    exchange: Exchange | None = None
    answered: int = 0  # last change of the exchange: microseconds since 1970, see `later_than`


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A conversation about one book. Parents come before their children in `nodes`."""

    id: str
    book: BookRef
    title: str
    created: str  # UTC, ISO 8601
    changed: str
    nodes: tuple[Node, ...] = ()
    head: str = ROOT  # last node of the shown branch
    tab: str = ""  # digest of the session that wrote it last, to find it again after a restart
    titled: int = 0  # last renaming, as `Node.answered`
    removed: frozenset[str] = frozenset()  # ids of removed nodes

    @classmethod
    def begin(cls, book: BookRef, question: str, tab: str = "") -> "Dialogue":
        """A conversation before its first question."""
        begun = now()
        return cls(id=secrets.token_hex(16), book=book, title=title_of(question), created=begun, changed=begun, tab=tab)

    # -------------------- reading

    def find(self, node_id: str | None) -> Node | None:
        """The node with an id, if there is one."""
        return next((node for node in self.nodes if node.id == node_id), None)

    def children(self, node_id: str) -> tuple[Node, ...]:
        """The children of a node, oldest first."""
        return tuple(node for node in self.nodes if node.parent == node_id)

    def path_to(self, node_id: str) -> tuple[Node, ...]:
        """The branch from the first question to a node."""
        by_id = {node.id: node for node in self.nodes}
        found: list[Node] = []
        while node_id in by_id:
            found.append(by_id[node_id])
            node_id = found[-1].parent
        return tuple(reversed(found))

    @property
    def path(self) -> tuple[Node, ...]:
        """The shown branch."""
        return self.path_to(self.head)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The answered part of the shown branch."""
        return tuple(node.exchange for node in self.path if node.exchange is not None)

    @property
    def tip(self) -> str:
        """The node that a new question follows: the last answered one of the shown branch."""
        return next((node.id for node in reversed(self.path) if node.exchange is not None), ROOT)

    def newest_below(self, node_id: str) -> str:
        """The end of the newest branch through a node."""
        while children := self.children(node_id):
            node_id = children[-1].id
        return node_id

    # -------------------- changing

    def ask(self, parent: str, question: str) -> tuple["Dialogue", Node]:
        """Add an unanswered question after an answered node, and show the branch that ends with it."""
        node = Node(id=secrets.token_hex(6), parent=parent, asked=now(), question=sendable(question))
        return self._changed(nodes=(*self.nodes, node), head=node.id), node

    def answer(self, node_id: str, exchange: Exchange) -> "Dialogue":
        """Set the answer of a question, replacing any earlier one."""
        return self._with(node_id, lambda node: replace(node, exchange=exchange, answered=later_than(node.answered)))

    def show(self, node_id: str) -> "Dialogue":
        """Show the branch that ends at a node."""
        return replace(self, head=node_id)

    def remove(self, node_id: str) -> "Dialogue":
        """Remove a node and what follows it; then the newest branch beside it is shown."""
        removed = self.find(node_id)
        if removed is None:
            return self
        gone = {node_id}
        for node in self.nodes:
            if node.parent in gone:
                gone.add(node.id)
        left = self._changed(nodes=tuple(node for node in self.nodes if node.id not in gone))
        left = replace(left, removed=self.removed | gone)
        if self.head not in gone:
            return left
        return replace(left, head=left.newest_below(removed.parent))

    def rename(self, title: str) -> "Dialogue":
        """Change the title; an empty one changes nothing."""
        cleaned = title_of(title)
        return replace(self, title=cleaned, titled=later_than(self.titled)) if cleaned else self

    def _with(self, node_id: str, change: Callable[[Node], Node]) -> "Dialogue":
        return self._changed(nodes=tuple(change(node) if node.id == node_id else node for node in self.nodes))

    def _changed(self, *, nodes: tuple[Node, ...], head: str | None = None) -> "Dialogue":
        return replace(self, nodes=nodes, head=self.head if head is None else head, changed=now())


def _part(book: LibraryBook) -> str:
    """The chosen parts of a document in our own words, because a chapter's title would be text of the book."""
    if isinstance(book.choice, Chapters):
        return f"chapter{'s' if len(book.choice.paths) > 1 else ''} {path_ranges(book.choice.paths, in_words)}"
    return label(book.document, book.choice)


def now() -> str:
    """The time, UTC, ISO 8601 to the microsecond; its text sorts by time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def later_than(moment: int) -> int:
    """Now, in microseconds since 1970; if the clock was set back, the moment after `moment`."""
    return max(time.time_ns() // 1000, moment + 1)


def title_of(text: str) -> str:
    """One line with the beginning of a text."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LONGEST_TITLE else line[: LONGEST_TITLE - 1].rstrip() + "…"


def sendable(text: str) -> str:
    """A text that can be sent to a page: lone surrogates, which JSON allows but UTF-8 does not, are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def tab_of(session_id: str) -> str:
    """A digest of a page's session id: it identifies the session, but does not reveal the id."""
    return hashlib.sha256(f"tab {session_id}".encode()).hexdigest()[:16]
