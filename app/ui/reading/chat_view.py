"""The conversation as parts of the page: past exchanges, and the answer in progress. Pure functions of the session."""

import re
from collections.abc import Sequence
from typing import Any

from app import formats
from app.context.evidence import Passage, is_refusal
from app.context.open_book import Book
from app.conversations.exchange import exactness, figures, seconds
from app.conversations.tree import Dialogue, Node
from app.document_formats import EACH
from app.markdown import with_places
from app.runtime.recording import CUT
from app.runtime.sessions import Session
from app.ui import render
from app.ui.reading.book_view import is_paused
from app.ui.reading.live_strip import waits
from app.ui.reading.where import page_act, page_of, page_words
from core.decoding.registry import METHODS, REMOTE
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
    dialogue, found, nodes = session.dialogue, dict[str, Any](), _shown(session)
    for node in nodes:
        assert dialogue is not None, "exchanges of no conversation"
        last = node is nodes[-1] and node.id == dialogue.head
        book, passages = session.book, _passages(session, node)
        found[node.id] = {
            "question": node.question,
            "asked": question_footer(dialogue, node),
            **(_answer(book, node.exchange.finished, passages) if node.exchange else {}),
            "foot": answer_footer(dialogue, node, last=last, key=own_key(book, passages)),
        }
    return found


def live(session: Session) -> dict[str, Any] | None:
    """The answer in progress, without its texts, which grow by themselves."""
    writing = session.writing
    if writing is None:
        return None
    trace = writing.trace
    shown, empty = {"question": trace.question}, not trace.answer.strip()
    if trace.thought:
        shown["thought"] = thought_title(trace.all_stats, thinks=empty)
    elif empty:
        why = f'<div class="waits">{render.escape(waits(writing, session) or PENDING)}</div>'
        shown["wait"] = why + (BACK if writing.waiting else "")
    return shown


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
    return dialogue.path if writing is None else dialogue.path_to(writing.parent)


def _answer(book: Book | None, finished: Finished, passages: Sequence[Passage]) -> dict[str, Any]:
    """Thought and text of an answer; a notice where it has none."""
    thought = {"thought": [thought_title(finished.stats, thinks=False), finished.thought]} if finished.thought else {}
    if not finished.text.strip():
        return {**thought, "notice": _notice(finished)}
    found = chips(book, finished.text, passages) if book else {}
    places = sorted(found)
    return {**thought, "text": with_places(finished.text, places), "inserted": [found[place] for place in places]}


def _notice(finished: Finished) -> str:
    if not finished.in_thought:
        return BLANK_ANSWER if finished.text else EMPTY_ANSWER
    if finished.stop_reason == "max_new_tokens" and not finished.token_ids:
        return NO_CONTINUE
    return IN_THOUGHT.get(finished.stop_reason, ENDED_THINKING)


WELCOME = f"""<div class="welcome"><h2>Ask a whole book</h2>
<ol><li><b>Open a book, or several.</b> <span>Drop files ({EACH}), or choose a sample.</span></li>
<li><b>They are read once.</b> <span>All of it stays in the model’s context: no summaries, no snippets.</span></li>
<li><b>Ask.</b> <span>Every sentence that stands in the book carries its page; a click shows it.</span></li>
</ol></div>"""


def welcome(session: Session) -> str:
    """The words in the middle of an empty chat."""
    uploads, book = session.uploads, session.book
    if not (book or session.is_reading or uploads.coming or uploads.too_long):
        return WELCOME
    if uploads.too_long:
        meanwhile = f" Until then questions go to {render.escape(book.title)}." if book else ""
        title, text = "Too long to read at once", f"Tick the parts above that the model is to read.{meanwhile}"
    elif session.is_read and not session.is_reading:
        title, text = "The book is open", "Ask anything about it."
    elif is_paused(session):
        title, text = "The book is not read to its end", "Ask, and the rest is read first. Or press Read on."
    elif book is None:
        title, text = "The book is being opened", "You can ask now: the answer begins when it is open and read."
    else:
        title, text = "The book is being read", "You can ask now: the answer begins when the reading ends."
    return f'<div class="welcome"><h2>{title}</h2><p>{text}</p></div>'


# -------------------- figures and buttons under a question and an answer


WHY_CUT = {
    "max_new_tokens": "It ended at the limit of new tokens.",
    "cancelled": "It was stopped.",
    "repeating": "It went on repeating itself.",
    "time_up": "Its time was up.",
}


def answer_footer(dialogue: Dialogue, node: Node, *, last: bool, key: str = "") -> str:
    """Figures and buttons under an answer.

    Args:
        last: it ends the shown branch.
        key: HTML of what the lines in the answer mean.
    """
    exchange = node.exchange
    if exchange is None:
        acts = [_button("again", node.id, "Answer it", "Write the answer to this question")]
        acts.append(_button("delete", node.id, "Delete"))
        return f'<div class="foot waits"><span>Not answered.</span><span class="acts">{"".join(acts)}</span></div>'
    tone = "exact" if exchange.finished.exact else "lossy"
    tone = tone if exchange.finished.method in METHODS else REMOTE
    facts = "".join(
        f'<span class="{key}" title="{render.escape(note)}">{render.escape(text)}</span>'
        for key, text, note in figures(exchange)
    )
    facts += f'<span class="{tone}" title="{EXACTNESS[tone]}">{exactness(exchange)}</span>'
    acts = []
    reason = exchange.finished.stop_reason
    if last and reason in CUT and exchange.finished.token_ids:
        acts.append(_button("continue", node.id, "Continue", f"{WHY_CUT[reason]} Go on from its last token", "strong"))
    acts += [
        _button("again", node.id, "Regenerate", "Answer this question once more; this answer stays beside it"),
        "" if last else _button("branch", node.id, "Branch", "Go on from this answer; what follows it stays, too"),
        _button("copy", node.id, "Copy", "Copy the answer as Markdown"),
        _button("card", node.id, "Proof", "Save this answer with its pages and its clock as one small page"),
        _button("delete", node.id, "Delete", "Delete this question, its answer and what follows"),
    ]
    if last and (children := dialogue.children(node.id)):
        more = formats.plural(len(children), "branch goes", "branches go")
        acts.append(_button("switch", children[-1].id, f"{more} on from here &rsaquo;", "Show it", "strong"))
    kind = "foot last" if last else "foot"
    return f'<div class="{kind}">{key}{facts}<span class="acts">{"".join(acts)}</span></div>'


EXACTNESS = {
    "exact": "The text follows the model’s own distribution, as plain decoding does.",
    REMOTE: "A server elsewhere wrote this: how it computes cannot be seen from here.",
    "lossy": "A method that looks at a part of the book only: the text may differ from the model’s own.",
}


def question_footer(dialogue: Dialogue, node: Node) -> str:
    """The number of the shown version, and the button to edit the question."""
    beside, turns = ["", *(one.id for one in dialogue.children(node.parent)), ""], ""  # "": there is none
    at, count = beside.index(node.id), len(beside) - 2
    if count > 1:
        before = _turn(beside[at - 1], "&lsaquo;", "Earlier version")
        after = _turn(beside[at + 1], "&rsaquo;", "Later version")
        turns = f'<span class="versions">{before}<span>{at}/{count}</span>{after}</span>'
    edit = _button("edit", node.id, "Edit", "Change this question; the conversation so far stays as a branch")
    return f'<div class="asked"><span class="acts">{edit}</span>{turns}</div>'


def _turn(node_id: str, label: str, title: str) -> str:
    label += f'<span class="unseen">{title}</span>'
    if not node_id:
        return render.button(label, tone="act", title=title, also="disabled")
    return _button("switch", node_id, label, title)


def _button(verb: str, node_id: str, label: str, title: str = "", tone: str = "") -> str:
    does = {"card": f'data-save="card:{node_id}"', "copy": f'data-copy="{node_id}"', "delete": "data-armed"}
    act = "" if verb in ("card", "copy") else f"{verb}:{node_id}"
    return render.button(label, act, tone=f"act {tone}".strip(), title=title, also=does.get(verb, ""))


# -------------------- what an answer has from the book


OWN = '<span class="own" title="These words do not stand in the {book}: the model’s own wording">'
KEY = "<u>Underlined</u>: not in the {book} word for word, the model’s own wording"
KEY_OF_MOST = "Most of this answer is not in the {book} word for word: the model’s own wording"
KEY_TITLE = "It may be true or not: it says only that these words do not stand there"
FOUND = '<span class="stands">'
FEW_OWN = 3  # passages of a model's own wording that are underlined even where they are most of an answer
STAYS = '<span class="stays">'  # a last word and the chip behind it, which no line ends between
LAST_WORD = re.compile(r"(?<=\s)[^\W_]+[.,;:!?]?[\"'”’»]?\Z")  # without signs of Markdown


def chips(book: Book, text: str, passages: Sequence[Passage]) -> dict[int, str]:
    """HTML by the index of the character of an answer that it precedes."""
    inserted, underlined = dict[int, str](), not _mostly_own(passages)
    for passage in passages:
        if passage.kind == "own" and not underlined:
            continue
        before, behind = _around(book, passage)
        word = LAST_WORD.search(text[passage.start : passage.end]) if passage.kind != "own" else None
        stays, behind = (STAYS, f"{behind}</span>") if word else ("", behind)
        last = passage.start + (word.start() if word else 0)
        for place, html in ((passage.start, before), (last, stays), (passage.end, behind)):
            if html:
                inserted[place] = inserted.get(place, "") + html
    return inserted


def own_key(book: Book | None, passages: Sequence[Passage]) -> str:
    """What the faint line means, or that most is the model's own wording, as HTML above the figures; "": neither."""
    if book is None or not any(passage.kind == "own" for passage in passages):
        return ""
    key = KEY_OF_MOST if _mostly_own(passages) else KEY
    return f'<span class="own-key" title="{KEY_TITLE}">{key.format(book=_books(book))}</span>'


def _passages(session: Session, node: Node) -> list[Passage]:
    """The passages of a node's answer about which anything can be told: none unless it is about the open book.

    For an answer about another library only what is found is told: the rest may have been in that library. An answer
    that says that the book does not tell claims nothing.
    """
    book, exchange = session.book, node.exchange
    if book is None or exchange is None or not session.fits:
        return []
    passages = book.evidence(exchange.finished.text)
    if is_refusal(exchange.finished.text, passages):
        return []
    same = exchange.digest == session.digest
    return [one for one in passages if same or one.source is not None]


def _mostly_own(passages: Sequence[Passage]) -> bool:
    """Whether a model's own wording is most of an answer, in more than a few passages: said once, not underlined."""
    own = [one.end - one.start for one in passages if one.kind == "own"]
    return len(own) > FEW_OWN and 2 * sum(own) > sum(one.end - one.start for one in passages)


def _books(book: Book) -> str:
    return "books" if len(book.library.books) > 1 else "book"


def _around(book: Book, passage: Passage) -> tuple[str, str]:
    """The HTML before and behind a passage."""
    books = _books(book)
    if passage.kind == "own":
        return OWN.format(book=books), "</span>"
    chip = _chip(book, passage, books)
    return ("", chip) if passage.kind == "quotation" else (FOUND, f"{chip}</span>")


def _chip(book: Book, passage: Passage, books: str) -> str:
    """The button that opens the page."""
    source = passage.source
    if source is None:
        title = f"No page of the open {books} has these words in this order"
        return f'<span class="chip quote not-found" title="{title}">not in the {books}</span>'
    index = page_of(book, source.start)
    page = page_words(book, index)
    more = " and elsewhere" if passage.again else ""
    title = f"Word for word on {page}{more}: show it"
    act = page_act(book, index, (source.start, source.end))
    return render.button(render.escape(page), act, tone="chip quote found", title=title)
