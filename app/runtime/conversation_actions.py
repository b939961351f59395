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


Change = Callable[[Dialogue], Dialogue]


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

    def open(self, session: Session, dialogue_id: str) -> None:
        """Show a conversation. It can continue if its book is open. Raises ConversationGone."""
        self.new(session)
        self._show(session, self._store.open(dialogue_id))

    def new(self, session: Session) -> None:
        """Begin a new conversation; an incognito page stays one."""
        self._worker.clear(session.id)  # first, so that whoever follows the answer does not change the page afterwards
        self._worker.end_answer(session.id)

    def incognito(self, session: Session) -> None:
        """Begin a new conversation that is not written to disk, or leave such a conversation for good."""
        self.new(session)
        session.incognito = not session.incognito

    def _show(self, session: Session, dialogue: Dialogue) -> None:
        with session.lock:
            session.dialogue, session.incognito = dialogue, False

    # -------------------- the whole conversation

    def rename(self, session: Session, dialogue_id: str, title: str) -> None:
        """Give a conversation another title; an empty one changes nothing. Raises ConversationGone."""
        if session.dialogue is not None and session.dialogue.id == dialogue_id:
            self._change(session, lambda dialogue: dialogue.rename(title))
        else:
            self._store.save(self._store.open(dialogue_id).rename(title))

    def delete(self, session: Session, dialogue_id: str) -> None:
        """Delete a conversation, from the disk too; only the page remembers it, until it deletes another or closes."""
        if session.dialogue is not None and session.dialogue.id == dialogue_id:
            self.new(session)
        with suppress(ConversationGone):
            session.deleted = self._store.open(dialogue_id)
        self._store.delete(dialogue_id)

    def undelete(self, session: Session) -> None:
        """Bring the conversation back that the page deleted last, and show it."""
        if session.deleted is None:
            return
        self.new(session)
        # Its old name stays deleted: an answer that was being written to it must not bring it back.
        restored, session.deleted = replace(session.deleted, id=secrets.token_hex(16)), None
        self._store.save(restored)
        self._show(session, restored)

    def as_left(self, session: Session, dialogue: Dialogue | None) -> Dialogue | None:
        """A conversation that the page showed, with what was written since; None: it was deleted, or left for good."""
        if dialogue is None:
            return None
        try:
            stored = self._store.open(dialogue.id)
        except ConversationGone:
            return dialogue if session.incognito else None
        return None if session.incognito else stored

    def export(self, session: Session, dialogue_id: str, kind: Kind) -> Parcel:
        """A conversation as a file to save. Raises ConversationGone."""
        dialogue = session.dialogue
        if dialogue is None or dialogue.id != dialogue_id:
            dialogue = self._store.open(dialogue_id)
        ending, type_ = TYPES[kind]
        text = as_json(dialogue) if kind == "json" else as_markdown(dialogue)
        return Parcel(f"{file_name(dialogue.title)}.{ending}", type_, text)

    # -------------------- one exchange

    def switch(self, session: Session, node_id: str) -> None:
        """Show the newest branch through an exchange. Raises ExchangeGone."""
        self._change_at(session, node_id, lambda dialogue: dialogue.show(dialogue.newest_below(node_id)))

    def branch(self, session: Session, node_id: str) -> None:
        """Continue from an answer: the next question follows it, and what follows it now stays. Raises ExchangeGone."""
        self._change_at(session, node_id, lambda dialogue: dialogue.show(node_id))

    def remove(self, session: Session, node_id: str) -> None:
        """Delete an exchange and what follows it. Raises ExchangeGone."""
        self._change_at(session, node_id, lambda dialogue: dialogue.remove(node_id))

    def edit(self, session: Session, node_id: str) -> str:
        """Begin to change a question and return it; the next question asked replaces it. Raises ExchangeGone."""
        node = self._settled(session, node_id)
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

    def exchange(self, session: Session, node_id: str) -> Node:
        """An exchange of the shown conversation. Raises ExchangeGone."""
        node = session.dialogue.find(node_id) if session.dialogue else None
        if node is None:
            raise ExchangeGone
        return node

    def _settled(self, session: Session, node_id: str) -> Node:
        """The same once no answer is written any more, which may have been this one."""
        self.exchange(session, node_id)
        self._worker.end_answer(session.id)
        return self.exchange(session, node_id)

    def _change_at(self, session: Session, node_id: str, change: Change) -> None:
        self._settled(session, node_id)
        session.editing = None
        self._change(session, change)

    def _change(self, session: Session, change: Change) -> None:
        with session.lock:
            assert session.dialogue is not None, "nothing is shown"
            changed = change(session.dialogue)
            session.dialogue = changed if changed.nodes else None
        if not session.incognito:
            self._store.save(changed)


def file_name(title: str) -> str:
    """A file name that every operating system accepts."""
    kept = "".join(char if char.isalnum() else "-" for char in title)
    return "-".join(part for part in kept.split("-") if part)[:60] or "conversation"
