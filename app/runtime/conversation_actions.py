"""What a page can do with conversations: open, leave or change one. Plain functions of sessions and the store.

An answer in progress is stopped and recorded first, so that no conversation changes while it is being written.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NamedTuple

from app.conversations.export import as_json, as_markdown
from app.conversations.store import ConversationGone
from app.conversations.tree import Dialogue, Node, tab_of
from app.runtime.recording import ExchangeGone
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from core.errors import EmptyQuestion

Kind = Literal["markdown", "json"]
TYPES: dict[Kind, tuple[str, str]] = {"markdown": ("md", "text/markdown"), "json": ("json", "application/json")}


Change = Callable[[Dialogue, Node], Dialogue]


class Parcel(NamedTuple):
    """A file for the browser to save."""

    name: str
    type: str
    text: str


class Conversing:
    """The actions, each for one session."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker, self._store = worker, worker.conversations
        self._anyone_came = False  # whether a page has loaded since the program started

    # -------------------- opening and leaving

    def arrive(self, session: Session) -> None:
        """The page has come: restore what it had before a restart of the program.

        A page that is new to this program shows its own newest conversation. The first page to load shows the newest
        of all if it has none of its own.
        """
        if session.entered:
            return
        session.entered, first = True, not self._anyone_came
        self._anyone_came = True
        if session.dialogue is not None or session.book is not None:
            return
        summaries = self._store.listing().summaries
        mine = [one.id for one in summaries if one.tab == tab_of(session.id)] or [one.id for one in summaries if first]
        if mine:
            try:
                session.dialogue = self._store.open(mine[0])
            except ConversationGone:
                return

    def open(self, session_id: str, dialogue_id: str) -> None:
        """Show a conversation. It can continue if its book is open. Raises SessionGone, ConversationGone."""
        session = self._leave(session_id)
        dialogue = self._store.open(dialogue_id)
        with session.lock:
            session.dialogue, session.incognito = dialogue, False

    def new(self, session_id: str) -> None:
        """Begin a new conversation; an incognito page stays one."""
        self._leave(session_id)

    def incognito(self, session_id: str) -> None:
        """Begin a new conversation that is not written to disk, or leave such a conversation for good."""
        session = self._leave(session_id)
        session.incognito = not session.incognito

    def _leave(self, session_id: str) -> Session:
        self._worker.clear(session_id)  # first, so that whoever follows the answer does not change the page afterwards
        self._worker.end_answer(session_id)
        return self._worker.sessions.get(session_id)

    # -------------------- the whole conversation

    def rename(self, session_id: str, dialogue_id: str, title: str) -> None:
        """Give a conversation another title; an empty one changes nothing. Raises SessionGone, ConversationGone."""
        session = self._worker.sessions.get(session_id)
        renamed = None
        with session.lock:
            if session.dialogue is not None and session.dialogue.id == dialogue_id:
                renamed = session.dialogue = session.dialogue.rename(title)
        if renamed is None:
            self._store.save(self._store.open(dialogue_id).rename(title))
        elif not session.incognito:
            self._store.save(renamed)

    def delete(self, session_id: str, dialogue_id: str) -> None:
        """Delete a conversation, from the disk too; only the page remembers it, until it deletes another or closes.

        Raises SessionGone.
        """
        session = self._worker.sessions.get(session_id)
        with suppress(ConversationGone):
            session.deleted = self._store.open(dialogue_id)
        if session.dialogue is not None and session.dialogue.id == dialogue_id:
            self._leave(session_id)
        self._store.delete(dialogue_id)

    def undelete(self, session_id: str) -> None:
        """Bring the conversation back that the page deleted last, and show it. Raises SessionGone."""
        session = self._leave(session_id)
        if session.deleted is None:
            return
        # Its old name stays deleted: an answer that was being written to it must not bring it back.
        restored, session.deleted = replace(session.deleted, id=secrets.token_hex(16)), None
        self._store.save(restored)
        with session.lock:
            session.dialogue, session.incognito = restored, False

    def export(self, session_id: str, dialogue_id: str, kind: Kind) -> Parcel:
        """A conversation as a file to save. Raises SessionGone, ConversationGone."""
        session = self._worker.sessions.get(session_id)
        dialogue = session.dialogue
        if dialogue is None or dialogue.id != dialogue_id:
            dialogue = self._store.open(dialogue_id)
        ending, type_ = TYPES[kind]
        text = as_json(dialogue) if kind == "json" else as_markdown(dialogue)
        return Parcel(f"{file_name(dialogue.title)}.{ending}", type_, text)

    # -------------------- one exchange

    def switch(self, session_id: str, node_id: str) -> None:
        """Show the newest branch through an exchange. Raises SessionGone, ExchangeGone."""
        self._change(session_id, node_id, lambda dialogue, node: dialogue.show(dialogue.newest_below(node.id)))

    def branch(self, session_id: str, node_id: str) -> None:
        """Continue from an answer: the next question follows it, and what follows it now stays. Raises as `switch`."""
        self._change(session_id, node_id, lambda dialogue, node: dialogue.show(node.id))

    def remove(self, session_id: str, node_id: str) -> None:
        """Delete an exchange and what follows it. Raises as `switch`."""
        session, _, _ = self._settled(session_id, node_id)
        with session.lock:
            assert session.dialogue is not None
            left = session.dialogue.remove(node_id)
            session.dialogue = left if left.nodes else None
        if not session.incognito:
            self._store.save(left)

    def edit(self, session_id: str, node_id: str) -> str:
        """Begin to change a question and return it; the next question asked replaces it. Raises as `switch`."""
        session, _, node = self._settled(session_id, node_id)
        session.editing = node.id
        return node.question

    def parent_for(self, session: Session, question: str) -> str | None:
        """Where a question belongs: in place of the one being edited, or (None) after the last answer.

        Raises:
            EmptyQuestion: before anything has changed.
        """
        if not question.strip():
            raise EmptyQuestion
        node = session.dialogue.find(session.editing) if session.dialogue and session.editing else None
        session.editing = None
        return node.parent if node else None

    def exchange(self, session_id: str, node_id: str) -> Node:
        """An exchange of the shown conversation. Raises SessionGone, ExchangeGone."""
        return self._find(session_id, node_id)[1]

    def _change(self, session_id: str, node_id: str, change: Change) -> None:
        session, _, _ = self._settled(session_id, node_id)
        with session.lock:
            assert session.dialogue is not None
            node = session.dialogue.find(node_id)
            assert node is not None
            session.dialogue = change(session.dialogue, node)
            session.editing = None
            changed = session.dialogue
        if not session.incognito:
            self._store.save(changed)

    def _settled(self, session_id: str, node_id: str) -> tuple[Session, Dialogue, Node]:
        self._find(session_id, node_id)
        self._worker.end_answer(session_id)
        session = self._worker.sessions.get(session_id)
        return session, *self._find(session_id, node_id)

    def _find(self, session_id: str, node_id: str) -> tuple[Dialogue, Node]:
        dialogue = self._worker.sessions.get(session_id).dialogue
        node = dialogue.find(node_id) if dialogue else None
        if dialogue is None or node is None:
            raise ExchangeGone
        return dialogue, node


def file_name(title: str) -> str:
    """A file name that every operating system accepts."""
    kept = "".join(char if char.isalnum() else "-" for char in title)
    return "-".join(part for part in kept.split("-") if part)[:60] or "conversation"
