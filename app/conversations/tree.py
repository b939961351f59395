"""A conversation as it is kept: a tree of questions and answers, of which one branch is shown.

An edit, another answer or a branch never replaces anything: it is a further child of the same parent. Immutable; every
change is another value. Knows nothing of files, of engines or of the page.

Several pages and programs may change one conversation, each a state of its own, perhaps an old one. Any two states can
be joined, in any order, like replicas of a map in which the last writer wins and tombstones stay (M. Shapiro et al.,
"Conflict-free replicated data types", 2011): of an answer and of the title the one that was changed last stands; of a
removed node its id is kept, so that no older state brings it back.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.context.context_documents import Book as Shelved
from app.context.context_documents import Chapters, label, ranges
from app.context.open_book import Book
from app.conversations.exchange import Exchange

ROOT = ""  # parent of first questions
LONGEST_TITLE = 80  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class BookRef:
    """The book a conversation is about: enough to recognise it, nothing of its text."""

    names: tuple[str, ...]  # of the files
    title: str
    digest: str  # SHA-256 of the text, all documents joined, hexadecimal
    num_tokens: int
    parts: tuple[str, ...] = ()  # what was chosen of each file, in words; empty: all of every one

    @classmethod
    def of(cls, book: Book, digest: str) -> "BookRef":
        """The reference to an open book."""
        shelved = book.library.books
        parts = () if all(one.is_whole for one in shelved) else tuple(_part(one) for one in shelved)
        return cls(names=book.names, title=book.title, digest=digest, num_tokens=book.num_tokens, parts=parts)

    @property
    def files(self) -> tuple[str, ...]:
        """The files, with what was chosen of them."""
        if len(self.parts) != len(self.names):
            return self.names
        return tuple(f"{name}: {part}" for name, part in zip(self.names, self.parts, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One exchange in its place. Without an exchange the question is unanswered, or is being answered now."""

    id: str  # random: no text can name one
    parent: str
    asked: str  # when, UTC, ISO 8601
    question: str
    exchange: Exchange | None = None
    answered: int = 0  # when the exchange was changed last: microseconds since 1970, see `later_than`

    @property
    def age(self) -> tuple[int, bool, str]:
        """The greater of two states of one node is the newer one; without a time, the one that says more."""
        text = self.exchange.finished.text if self.exchange is not None else ""
        return self.answered, self.exchange is not None, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A conversation about one book. Parents come before their children in `nodes`."""

    id: str
    book: BookRef
    title: str
    created: str  # UTC, ISO 8601
    changed: str
    nodes: tuple[Node, ...] = ()
    head: str = ROOT  # the node at which the shown branch ends
    tab: str = ""  # a digest of the session that wrote it last, to find it again after a restart
    titled: int = 0  # when it was renamed last, as `Node.answered`
    removed: frozenset[str] = frozenset()  # ids of nodes that were taken away

    @classmethod
    def begin(cls, book: BookRef, question: str, tab: str = "") -> "Dialogue":
        """A conversation that is about to get its first question."""
        begun = now()
        return cls(id=secrets.token_hex(16), book=book, title=title_of(question), created=begun, changed=begun, tab=tab)

    # -------------------- looking

    def find(self, node_id: str | None) -> Node | None:
        """The node with an id, if there is one."""
        return next((node for node in self.nodes if node.id == node_id), None)

    def children(self, node_id: str) -> tuple[Node, ...]:
        """What was asked behind a node, oldest first."""
        return tuple(node for node in self.nodes if node.parent == node_id)

    def path_to(self, node_id: str) -> tuple[Node, ...]:
        """The branch that ends at a node, from the first question on."""
        by_id = {node.id: node for node in self.nodes}
        found: list[Node] = []
        while node_id in by_id:
            found.append(by_id[node_id])
            node_id = found[-1].parent
        return tuple(reversed(found))

    @property
    def path(self) -> tuple[Node, ...]:
        """The branch that is shown."""
        return self.path_to(self.head)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The answered part of the branch that is shown."""
        return tuple(node.exchange for node in self.path if node.exchange is not None)

    @property
    def tip(self) -> str:
        """The node a further question follows: the last answered one of the branch that is shown."""
        return next((node.id for node in reversed(self.path) if node.exchange is not None), ROOT)

    def newest_below(self, node_id: str) -> str:
        """The end of the newest branch through a node."""
        while children := self.children(node_id):
            node_id = children[-1].id
        return node_id

    # -------------------- changing

    def ask(self, parent: str, question: str) -> tuple["Dialogue", Node]:
        """A question behind an answered node, not answered yet; the branch that ends with it is shown."""
        node = Node(id=self._new_id(), parent=parent, asked=now(), question=sendable(question))
        return self._changed(nodes=(*self.nodes, node), head=node.id), node

    def answer(self, node_id: str, exchange: Exchange) -> "Dialogue":
        """The answer to a question, in place of the one it has."""
        return self._with(node_id, lambda node: replace(node, exchange=exchange, answered=later_than(node.answered)))

    def show(self, node_id: str) -> "Dialogue":
        """Show the branch that ends at a node."""
        return replace(self, head=node_id)

    def remove(self, node_id: str) -> "Dialogue":
        """Without a node and what follows it; what is shown is the newest branch that is left beside it."""
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
        """With another title; an empty one changes nothing."""
        cleaned = title_of(title)
        return replace(self, title=cleaned, titled=later_than(self.titled)) if cleaned else self

    def joined(self, other: "Dialogue") -> "Dialogue":
        """With what another state of the same conversation has; what is shown, and for which book, stays.

        An answer is never lost: a removed node stays as long as one that was not removed follows it, with the newest
        answer that these two states have.
        """
        theirs, have = {node.id: node for node in other.nodes}, {node.id for node in self.nodes}
        nodes = [max(node, theirs.get(node.id, node), key=lambda one: one.age) for node in self.nodes]
        nodes += [node for node in other.nodes if node.id not in have]
        removed = self.removed | other.removed
        left: list[Node] = []
        needed: set[str] = set()
        for node in reversed(nodes):
            if node.id not in removed or node.id in needed:
                left.append(node)
                needed.add(node.parent)
        titled, title = max((self.titled, self.title), (other.titled, other.title))
        joined = replace(
            self,
            title=title,
            titled=titled,
            changed=max(self.changed, other.changed),
            nodes=tuple(reversed(left)),
            removed=removed,
        )
        known = joined.head == ROOT or any(node.id == joined.head for node in left)
        return joined if known else replace(joined, head=joined.newest_below(ROOT))

    def _with(self, node_id: str, change: Callable[[Node], Node]) -> "Dialogue":
        return self._changed(nodes=tuple(change(node) if node.id == node_id else node for node in self.nodes))

    def _changed(self, *, nodes: tuple[Node, ...], head: str | None = None) -> "Dialogue":
        return replace(self, nodes=nodes, head=self.head if head is None else head, changed=now())

    def _new_id(self) -> str:
        return secrets.token_hex(6)


def _part(book: Shelved) -> str:
    """What is chosen of a document, in words of ours: a chapter's title would be text of the book."""
    match book.choice:
        case Chapters(numbers):
            return f"chapter{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
        case _:
            return label(book.document, book.choice)


def now() -> str:
    """The time, UTC, ISO 8601 to the microsecond: as text it sorts."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def later_than(moment: int) -> int:
    """Now, microseconds since 1970; where the clock was set back, just behind an earlier moment."""
    return max(time.time_ns() // 1000, moment + 1)


def title_of(text: str) -> str:
    """One line that begins like a text."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LONGEST_TITLE else line[: LONGEST_TITLE - 1].rstrip() + "…"


def sendable(text: str) -> str:
    """A text that can be sent to a page: halves of characters, which JSON may hold and UTF-8 may not, are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def digest_of(text: str) -> str:
    """What tells one book's text from another: SHA-256, hexadecimal. Cost: 1 ms for a megabyte."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def tab_of(session_id: str) -> str:
    """What is written of a page's session: it can be recognised by it, and not guessed from it."""
    return hashlib.sha256(f"tab {session_id}".encode()).hexdigest()[:16]
