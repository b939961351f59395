"""The acts of the tab Read: questions and answers, conversations, and the pages that an answer cites."""

from collections.abc import Callable, Iterator

from app.runtime.conversation_actions import Conversing
from app.runtime.events import WorkerEvent
from app.runtime.sessions import Session, Writing
from app.runtime.trace import Trace
from app.ui.acts import Act, Values
from app.ui.library.page_viewer import Wanted, newest
from app.ui.reading.settings import SettingsForm
from app.ui.reading.where import opened_page
from app.ui.site import Site, follow
from core.errors import CoreError, InvalidSetting

# -------------------- answers


def ask(site: Site, session: Session, _detail: str, values: Values) -> None:
    """Answer a question; if there is no answer, it goes back into the box."""
    form, question, editing = _form(session, values), str(values["question"]), session.editing
    parent = site.conversing.parent_for(session, question)
    try:
        events = site.worker.answer(session.id, question, form.config(), parent=parent, own_seed=form.own_seed)
    except CoreError:
        session.editing = editing
        raise
    _write(session, Trace(question.strip(), form.config().method), parent, events, left=question, editing=editing)


def again(site: Site, session: Session, node_id: str, values: Values) -> None:
    """Answer a question again, beside its present answer."""
    form = _form(session, values)
    events = site.worker.regenerate(session.id, form.config(), node_id, own_seed=form.own_seed)
    node = site.conversing.exchange(session, node_id)
    _write(session, Trace(node.question, form.config().method), node.parent, events)


def go_on(site: Site, session: Session, _node_id: str, values: Values) -> None:
    """Continue the last answer."""
    form = _form(session, values)
    events = site.worker.go_on(session.id, form.config(), own_seed=form.own_seed)
    assert session.dialogue is not None, "an answer to nothing"
    node = session.dialogue.path[-1]
    _write(session, Trace(node.question, form.config().method, node.exchange), node.parent, events)


def _form(session: Session, values: Values) -> SettingsForm:
    """The settings of the answer that is asked for. Raises InvalidSetting."""
    form = SettingsForm(**values["settings"])
    form.config()
    if session.writing is not None:
        raise InvalidSetting("An answer is being written.", hint="Wait for its end, or stop it.")
    return form


def _write(
    session: Session,
    trace: Trace,
    parent: str | None,
    events: Iterator[WorkerEvent],
    *,
    left: str = "",
    editing: str | None = None,
) -> None:
    """Show an answer while it waits and is written, behind its parent; None: behind the newest exchange."""
    dialogue = session.dialogue
    tip = dialogue.tip if dialogue else ""
    writing = session.writing = Writing(trace=trace, parent=tip if parent is None else parent)
    if session.leaf_is_of_strip:  # the page shows what was loaded for the answer before
        session.close("read")

    def failed(error: CoreError) -> None:
        if session.writing is writing:
            session.problem = error

    def ended() -> None:
        if session.writing is not writing:
            if session.writing is None and not writing.trace.stats.new_tokens:  # another conversation is shown
                session.put(left)
            return
        session.writing = None
        now = session.dialogue
        before, path = (now.path_to(writing.parent), now.path) if now else ((), ())
        written = len(path) > len(before) and path[-1].question == writing.trace.question
        if not written:
            session.editing = editing
            if left:
                session.put(left)

    follow(session, events, writing.apply, failed, ended)


# -------------------- conversations


def _conversing(change: Callable[..., object], *, named: bool = True) -> Act:
    """An act on the shown conversation, or one that shows another; `named`: on what its detail names."""

    def act(site: Site, session: Session, detail: str, _values: Values) -> None:
        change(site.conversing, session, *([detail] if named else []))
        session.close("read")

    return act


def stop_editing(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """The next question is a new one."""
    session.editing = None
    session.put("")


# -------------------- pages of the book


def page(site: Site, session: Session, detail: str, _values: Values) -> None:
    """Show a page that was loaded for the answer, or that a chip names: `KEY:NUMBER[:START-END]`."""
    wanted = Wanted.parse(detail)
    session.leaf_is_of_strip = wanted.mark is None
    newest(session, "read", lambda: opened_page(session, wanted))


ACTS: dict[str, Act] = {
    "ask": ask,
    "again": again,
    "continue": go_on,
    "stop": lambda site, session, *_: site.worker.jobs.cancel(session.id, "answer"),
    "open-conversation": _conversing(Conversing.open),
    "delete-conversation": _conversing(Conversing.delete),
    "undelete": _conversing(Conversing.undelete, named=False),
    "new": _conversing(Conversing.new, named=False),
    "incognito": _conversing(Conversing.incognito, named=False),
    "switch": _conversing(Conversing.switch),
    "branch": _conversing(Conversing.branch),
    "delete": _conversing(Conversing.remove),
    "edit": lambda site, session, node_id, _: session.put(site.conversing.edit(session, node_id)),
    "stop-editing": stop_editing,
    "rename": lambda site, session, one, values: site.conversing.rename(session, one, str(values["value"])),
    "search": lambda _, session, text, __: setattr(session, "search", text),
    "page": page,
    "close": lambda _, session, *__: session.close("read"),
    "close-problem": lambda *_: None,  # the problem of the act before is gone with any other
}
