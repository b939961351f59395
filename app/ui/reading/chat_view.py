"""The conversation as parts of the page: past exchanges, and the answer in progress. Pure functions of the session."""

from typing import Any

from app import formats
from app.conversations.figures import seconds
from app.conversations.tree import Node
from app.document_formats import EACH
from app.markdown import with_places
from app.runtime.sessions import Session
from app.ui import render
from app.ui.reading.answer_footer import answer_footer, question_footer
from app.ui.reading.evidence_chips import chips, own_key
from app.ui.reading.live_strip import waits
from core.decoding.stats import DecodeStats
from core.generation.events import Finished, StopReason

PENDING = "…"
BACK = '<p class="quiet">Stop puts the question back into its box, to be changed.</p>'
EMPTY_ANSWER = "(The model ended its answer at once.)"
BLANK_ANSWER = "(The answer is white space alone.)"
IN_THOUGHT: dict[StopReason, str] = {
    "max_new_tokens": "(Still thinking at the limit of new tokens. Continue goes on; Settings have the limit.)",
    "context_full": "(Still thinking when the context was full.)",
    "repeating": "(Ended: its thought went on repeating itself.)",
    "cancelled": "(Stopped while it was thinking.)",
}
NO_CONTINUE = "(Still thinking at the limit of new tokens. Regenerate it with more new tokens; Settings have them.)"
ENDED_THINKING = "(The model ended its answer inside its thought.)"


def chat(session: Session) -> dict[str, Any]:
    """Which exchanges are shown, in order, and what an empty chat says."""
    order = [node.id for node in _shown(session)]
    empty = not order and session.writing is None
    return {"order": order, **({"welcome": welcome(session)} if empty else {})}


def exchanges(session: Session) -> dict[str, Any]:
    """The shown exchanges by their ids, with figures and buttons."""
    dialogue, found = session.dialogue, dict[str, Any]()
    nodes = _shown(session)
    for node in nodes:
        assert dialogue is not None, "exchanges of no conversation"
        last = node is nodes[-1] and node.id == dialogue.head
        found[node.id] = {
            "question": node.question,
            "asked": question_footer(dialogue, node),
            **(_answer(session, node, node.exchange.finished) if node.exchange else {}),
            "foot": answer_footer(dialogue, node, last=last, key=own_key(session, node)),
        }
    return found


def live(session: Session) -> dict[str, Any] | None:
    """The answer in progress, without its texts, which grow by themselves."""
    writing = session.writing
    if writing is None:
        return None
    trace = writing.trace
    empty = not trace.answer.strip()
    thinks = empty and bool(trace.thought)
    why = f'<div class="waits">{render.escape(waits(writing, session) or PENDING)}</div>'
    told = {"wait": why + (BACK if writing.waiting else "")} if empty and not thinks else {}
    title = {"thought": thought_title(trace.all_stats, thinks=thinks)} if trace.thought else {}
    return {"question": writing.trace.question, **title, **told}


def live_texts(session: Session) -> dict[str, str]:
    """The texts of the answer in progress."""
    writing = session.writing
    return {} if writing is None else {"text": writing.trace.answer, "thought": writing.trace.thought}


def thought_title(stats: DecodeStats, *, thinks: bool) -> str:
    """The line of a folded thought; `thinks`: it is still being written."""
    tokens = formats.plural(stats.thought_tokens, "token")
    return f"Thinking · {tokens}" if thinks else f"Thought for {tokens}, {seconds(stats.thought_seconds)}"


def _shown(session: Session) -> tuple[Node, ...]:
    dialogue, writing = session.dialogue, session.writing
    if dialogue is None:
        return ()
    if writing is None:
        return dialogue.path
    nodes = (dialogue.find(one) for one in writing.past_in(session))
    return tuple(node for node in nodes if node is not None)


def _answer(session: Session, node: Node, finished: Finished) -> dict[str, Any]:
    """Thought and text of an answer; a notice where it has none."""
    thought = {"thought": [thought_title(finished.stats, thinks=False), finished.thought]} if finished.thought else {}
    if not finished.text.strip():
        return {**thought, "notice": _notice(finished)}
    found = chips(session, node)
    places = sorted(found)
    return {**thought, "text": with_places(finished.text, places), "inserted": [found[place] for place in places]}


def _notice(finished: Finished) -> str:
    if finished.in_thought:
        at_limit = finished.stop_reason == "max_new_tokens"
        return (
            NO_CONTINUE if at_limit and not finished.token_ids else IN_THOUGHT.get(finished.stop_reason, ENDED_THINKING)
        )
    return BLANK_ANSWER if finished.text else EMPTY_ANSWER


WELCOME = f"""<div class="welcome"><h2>Ask a whole book</h2>
<ol><li><b>Open a book, or several.</b> <span>Drop files ({EACH}), or choose a sample.</span></li>
<li><b>They are read once.</b> <span>All of it stays in the model’s context: no summaries, no snippets.</span></li>
<li><b>Ask.</b> <span>Every sentence that stands in the book carries its page; a click shows it.</span></li>
</ol></div>"""


def welcome(session: Session) -> str:
    """The words in the middle of an empty chat."""
    uploads, book = session.uploads, session.book
    if uploads.too_long:
        meanwhile = f" Until then questions go to {render.escape(book.title)}." if book else ""
        return _told("Too long to read at once", f"Tick above what is read.{meanwhile}")
    if book is None:
        opening = _told("The book is being opened", "You can ask now: the answer begins when it is open and read.")
        return opening if session.is_reading or uploads.coming else WELCOME
    if session.is_read and not uploads.coming:
        return _told("The book is open", "Ask anything about it.")
    if session.is_reading or uploads.coming:
        return _told("The book is being read", "You can ask now: the answer begins when the reading ends.")
    return _told("The book is read in part", "Ask, and the rest is read first. Or press Read on.")


def _told(title: str, text: str) -> str:
    return f'<div class="welcome"><h2>{title}</h2><p>{text}</p></div>'
