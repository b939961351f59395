"""The acts of the tab Read: questions and answers, conversations, and the pages that an answer cites."""

from collections.abc import Callable, Iterator

from app.conversations.exchange import Exchange
from app.runtime.events import WorkerEvent
from app.runtime.sessions import Session
from app.ui.acts import Act, Values, follow
from app.ui.library.page_viewer import Wanted, newest
from app.ui.reading import evidence_chips
from app.ui.reading.settings import SettingsForm
from app.ui.reading.writing import Writing
from app.ui.retrieval_map.view import opened_page
from app.ui.shown import shown_of
from app.ui.site import Site
from core.errors import CoreError, InvalidSetting


class AnswerRuns(InvalidSetting):
    """This page's answer is not finished."""

    def __init__(self) -> None:
        super().__init__("An answer is being written.", hint="Wait for its end, or stop it.")


# -------------------- answers


def ask(site: Site, session: Session, _detail: str, values: Values) -> None:
    """Answer a question; if there is no answer, it goes back into the box."""
    form, question, editing = SettingsForm(**values["settings"]), str(values["question"]), session.editing
    config = form.config()
    _check_idle(session)
    parent = site.conversing.parent_for(session, question)
    try:
        events = site.worker.answer(session.id, question, config, parent=parent, own_seed=form.own_seed)
    except CoreError:
        session.editing = editing
        raise
    past, method = _past(session, parent), config.method
    writing = Writing(session, method, question.strip(), past, left=question, editing=editing)
    _write(site, session, writing, events)


def again(site: Site, session: Session, node_id: str, values: Values) -> None:
    """Answer a question again, beside its present answer."""
    form = SettingsForm(**values["settings"])
    config = form.config()
    _check_idle(session)
    node = session.dialogue.find(node_id) if session.dialogue else None
    events = site.worker.regenerate(session.id, config, node_id, own_seed=form.own_seed)
    assert node is not None, "an answer to nothing"
    _write(site, session, Writing(session, config.method, node.question, _past(session, node.parent)), events)


def go_on(site: Site, session: Session, _node_id: str, values: Values) -> None:
    """Continue the last answer."""
    form = SettingsForm(**values["settings"])
    config = form.config()
    _check_idle(session)
    events = site.worker.go_on(session.id, config, own_seed=form.own_seed)
    assert session.dialogue is not None, "an answer to nothing"
    node = session.dialogue.path[-1]
    before: Exchange | None = node.exchange
    past = _past(session, node.parent)
    _write(site, session, Writing(session, config.method, node.question, past, before=before), events)


def stop(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """End the answer after its round, or before its turn."""
    site.worker.stop_answer(session.id)


def _check_idle(session: Session) -> None:
    writing = shown_of(session).writing
    if writing is not None and writing.is_shown(session):
        raise AnswerRuns


def _past(session: Session, parent: str | None) -> list[str]:
    dialogue = session.dialogue
    if dialogue is None:
        return []
    return [node.id for node in dialogue.path_to(dialogue.tip if parent is None else parent)]


def _write(site: Site, session: Session, writing: Writing, events: Iterator[WorkerEvent]) -> None:
    shown = shown_of(session)
    shown.writing = writing
    if shown.leaf_is_of_strip:  # the page shows what was loaded for the answer before
        shown.close("read")

    def failed(error: CoreError) -> None:
        if writing.is_shown(session):
            shown.problem = error

    def ended() -> None:
        if shown.writing is not writing:
            return
        shown.writing = None
        if writing.is_shown(session) and not writing.answered and not _has(session, writing):
            session.editing = writing.editing
            if writing.left:
                shown.put(writing.left)

    follow(session, events, writing.apply, failed, ended)


def _has(session: Session, writing: Writing) -> bool:
    """The conversation shows the question, with an answer that broke off."""
    path = session.dialogue.path if session.dialogue else ()
    return len(path) > len(writing.past_in(session)) and path[-1].question == writing.question


# -------------------- conversations


def _conversing(change: Callable[[Site, str, str], object]) -> Act:
    """An act on the shown conversation, or one that shows another."""

    def act(site: Site, session: Session, detail: str, _values: Values) -> None:
        change(site, session.id, detail)
        shown_of(session).close("read")

    return act


def edit(site: Site, session: Session, node_id: str, _values: Values) -> None:
    """Begin to change a question: it stands in the box."""
    shown_of(session).put(site.conversing.edit(session.id, node_id))


def stop_editing(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """The next question is a new one."""
    site.conversing.stop_editing(session.id)
    shown_of(session).put("")


def rename(site: Site, session: Session, dialogue_id: str, values: Values) -> None:
    """Give a conversation another title."""
    site.conversing.rename(session.id, dialogue_id, str(values["text"]))


def search(_site: Site, session: Session, text: str, _values: Values) -> None:
    """Filter the list of conversations."""
    session.search = text


# -------------------- pages of the book


def page(site: Site, session: Session, detail: str, _values: Values) -> None:
    """Show a page that was loaded for the answer: `INDEX[:START-END[:WIDTH]]`."""
    wanted, shown = Wanted.parse(detail), shown_of(session)
    shown.leaf_is_of_strip = wanted.mark is None
    newest(session, "read", lambda: opened_page(session, wanted))


def quote(site: Site, session: Session, detail: str, _values: Values) -> None:
    """Show the page with the words that a chip stands for: `NODE.NUMBER[:WIDTH]`."""
    name, _, width = detail.partition(":")
    shown_of(session).leaf_is_of_strip = False
    newest(session, "read", lambda: evidence_chips.opened(session, name, width))


def close(_site: Site, session: Session, _detail: str, _values: Values) -> None:
    """Close the page beside the conversation."""
    shown_of(session).close("read")


def close_problem(_site: Site, session: Session, _detail: str, _values: Values) -> None:
    """The reader has seen why an act was refused."""


ACTS: dict[str, Act] = {
    "ask": ask,
    "again": again,
    "continue": go_on,
    "stop": stop,
    "open-conversation": _conversing(lambda site, session_id, one: site.conversing.open(session_id, one)),
    "delete-conversation": _conversing(lambda site, session_id, one: site.conversing.delete(session_id, one)),
    "undelete": _conversing(lambda site, session_id, _: site.conversing.undelete(session_id)),
    "new": _conversing(lambda site, session_id, _: site.conversing.new(session_id)),
    "incognito": _conversing(lambda site, session_id, _: site.conversing.incognito(session_id)),
    "switch": _conversing(lambda site, session_id, one: site.conversing.switch(session_id, one)),
    "branch": _conversing(lambda site, session_id, one: site.conversing.branch(session_id, one)),
    "delete": _conversing(lambda site, session_id, one: site.conversing.remove(session_id, one)),
    "edit": edit,
    "stop-editing": stop_editing,
    "rename": rename,
    "search": search,
    "page": page,
    "quote": quote,
    "close": close,
    "close-problem": close_problem,
}
