"""The tab "Read": what it shows, and its places; and what stands around all tabs."""

import gradio as gr

from app.context.context_documents import Book, Chapters, Pages
from app.context.domain_check import FULL_MODELS, OWN_BOOKS
from app.context.samples import Sample, named, one_of_each
from app.runtime.events import Loading, Ready
from app.runtime.sessions import Session
from app.runtime.trace import Trace
from app.ui import render
from app.ui.header import KEYS_BUTTON, limits_note, masthead, notice
from app.ui.models import offer
from app.ui.models.rows import reading_time
from app.ui.pane import MOUNTED, build_drop, build_fold, pane, static, tab_heading
from app.ui.reading.book_view import book_card, is_paused
from app.ui.reading.chat_view import chat, exchanges, live, live_texts
from app.ui.reading.checklist_view import checklist, total
from app.ui.reading.conversation_view import book_notice, conversation_list, editing_notice
from app.ui.reading.live_strip import strip, time_left, waits
from app.ui.reading.settings import choices, fields
from app.ui.reading.where import where
from app.ui.site import Is, Part, Site, standing, standing_and
from core.generation.events import PrefillProgress

NAME = "TriForce Reader"
NUM_SUGGESTIONS = 3
LONG_SECONDS = 20.0
MOST_TITLE = 60  # characters of a chapter's title in a question


def live_figures(session: Session) -> str:
    """The figures of the answer in progress, else of the last one shown."""
    writing = session.writing
    if writing is not None:
        return strip(writing.trace, waits(writing, session))
    if not session.exchanges or session.book is None:
        return strip()
    last = session.exchanges[-1]
    past = Trace(last.question, last.finished.method, num_book=session.book.num_tokens).apply(last.finished)
    return strip(past, "", last.num_reread)


def reading_buttons(session: Session) -> str:
    """Stop, or Read on."""
    if session.is_reading:
        return render.button("Stop reading", "stop-reading")
    return render.button("Read on", "read-on") if is_paused(session) else ""


def samples(site: Site, session: Session) -> str:
    """A button per sample book, with the time that the model takes to read it; folded once a book is open."""
    shown = one_of_each(site.samples)
    if not shown:
        return ""
    buttons = ""
    for one in shown:
        title, _, more = one.label(_seconds(site, one)).partition("\n")
        buttons += render.button(f"<b>{render.escape(title)}</b> {render.escape(more)}", f"sample:{one.file.name}")
    state = "" if _has_book(session) else " open"
    return f'<details{state}><summary>Or try a sample book:</summary><div class="list">{buttons}</div></details>'


def _has_book(session: Session) -> bool:
    return bool(session.uploads.library.books or session.uploads.pending)


def _seconds(site: Site, sample: Sample) -> float | None:
    state = site.worker.state
    if not isinstance(state, Ready):
        return None
    num_tokens = int((OWN_BOOKS if state.info.limits else FULL_MODELS) * sample.num_words)
    return reading_time(state, num_tokens) if 0 < num_tokens <= state.context else None


def suggestions(site: Site, session: Session) -> str:
    """Questions that were not asked yet: a sample's own, and of another book, about its chapters."""
    if session.book is None or not session.fits:
        return ""
    asked, state = tuple(exchange.question for exchange in session.exchanges), site.worker.state
    samples = (named(site.samples, name) for name in session.book.names)
    found = [question for sample in samples for question in sample.questions if question not in asked]
    if not found and not asked and isinstance(state, Ready) and not state.info.limits:
        titles = [title for book in session.book.library.books for title in _read_chapters(book)]
        found = [f"What is “{title}” about?" for title in titles if len(title) <= MOST_TITLE]
    return "".join(render.button(render.escape(text), also="data-ask") for text in found[:NUM_SUGGESTIONS])


def note(site: Site) -> str:
    """The line under the question box: a note on the model, and the page's keys."""
    state = site.worker.state
    told = state.info.elsewhere or limits_note(state.info.limits) if isinstance(state, Ready) else site.note
    line = f'<p class="note">{render.escape(told)}</p>' if told else ""
    return f'<div class="below">{line}{KEYS_BUTTON}</div>'


def conversations(site: Site, session: Session) -> str:
    """The list of conversations, as the search filters it."""
    return conversation_list(site.worker.conversations.listing(session.search), session)


def problem(session: Session) -> str:
    """Why the last act was refused."""
    return render.problem(session.problem, closes="close-problem") if session.problem else ""


def flags(site: Site, session: Session) -> list[str]:
    """States of the whole page, for the style sheets."""
    found = {
        "answering": session.writing is not None,
        "incognito": session.incognito,
        "page-open": bool(session.leaves.get("read")),
        "choosing": session.uploads.too_long,
        "has-book": _has_book(session),
        "reading": session.is_reading or session.uploads.recognising,  # a hidden tab stays connected
        "loading": isinstance(site.worker.state, Loading) or bool(site.downloads.now and not site.downloads.now.ended),
        "racing": session.racing is not None and session.racing.running,
    }
    return [name for name, holds in found.items() if holds]


def _read_chapters(book: Book) -> list[str]:
    """The titles of the chapters of which anything is read."""
    chapters, choice = book.document.chapters, book.choice
    if isinstance(choice, Chapters):
        chapters = tuple(chapters[number - 1] for number in dict.fromkeys(path[0] for path in choice.paths))
    return [] if isinstance(choice, Pages) else [chapter.title for chapter in chapters]


def title(session: Session) -> str:
    """The title of the browser's tab: how far it is, while the reader waits for a reading."""
    writing, doing = session.writing, session.doing
    progress = writing.trace.reading if writing is not None and not writing.trace.stats.new_tokens else None
    progress = progress or (doing if isinstance(doing, PrefillProgress) and session.is_reading else None)
    return f"{time_left(progress)} · {NAME}" if progress is not None else NAME


def read_long(session: Session) -> str:
    """The title of the book once it is read, if that took so long that the end is worth a notice."""
    return session.book.title if session.book and session.is_read and session.read_seconds >= LONG_SECONDS else ""


OFFER = standing_and(lambda site, _: site.downloads.now)
TICKED = standing_and(lambda _, session: session.ticked)
WHERE = standing_and(lambda _, session: (Is(session.where), Is(session.baseline)))
QUESTION = """<form id="question" data-question>
<textarea rows="1" placeholder="Ask about the book" aria-label="Question" dir="auto"></textarea>
<button type="submit" class="send" aria-label="Send the question" title="Send (Enter)"><svg viewBox="0 0 24 24"
aria-hidden="true"><path d="M4 4l17 8-17 8 3-8z M7 12h14"/></svg></button>
<button type="button" class="stop" data-act="stop" aria-label="Stop the answer" title="Stop (Esc)"></button></form>
<p class="sending" role="status" hidden>Your question is sent as soon as the file is uploaded.</p>"""
LOG = 'role="log" aria-label="Conversation" aria-live="off" tabindex="0"'


PARTS = (
    Part("masthead", lambda site, _: masthead(site.worker.state)),
    Part("banner", lambda site, _: notice(site.worker.state)),
    Part("problem", lambda _, session: problem(session)),
    Part("flags", flags),
    Part("title", lambda _, session: title(session)),
    Part("read", lambda _, session: read_long(session)),
    Part("draft", lambda _, session: list(session.draft) if session.draft[0] else None),
    Part("setting:", lambda site, _: choices(site.worker.state)),
    Part("book", lambda _, session: book_card(session)),
    Part("reading", lambda _, session: reading_buttons(session)),
    Part("samples", samples, standing),
    Part("conversations", conversations, rest=0.5),
    Part("strip", lambda _, session: live_figures(session), rest=0.1),
    Part("where", lambda site, session: "" if site.elsewhere else where(session), WHERE, rest=0.5),
    Part("offer", offer.html, OFFER, rest=0.3, aside=True),
    Part("choosing", lambda _, session: checklist(session), standing),
    Part("ticked", lambda _, session: total(session), TICKED),
    Part("about", lambda _, session: book_notice(session)),
    Part("chat", lambda _, session: chat(session)),
    Part("exchange:", lambda _, session: exchanges(session), standing),
    Part("live", lambda _, session: live(session)),
    Part("live.", lambda _, session: live_texts(session)),
    Part("suggestions", suggestions, standing),
    Part("editing", lambda _, session: editing_notice(session)),
    Part("note", lambda site, _: note(site)),
    Part("leaf", lambda _, session: session.leaves.get("read", "")),
)


def build_tab() -> None:
    """The tab's places."""
    with gr.Tab("Read", id="read", elem_id="read-tab"), gr.Row(elem_id="shell"):
        tab_heading("Read")
        with gr.Column(elem_id="side", min_width=280, scale=0):
            pane("book", "book", book_card(Session("")))
            build_fold("side", "Books")
            pane("reading", "reading-buttons")
            build_drop("drop", "Open books", 104)
            pane("samples", "samples")
            pane("conversations", "conversations")
            pane("setting:method", "method")
            static(fields(), "settings", MOUNTED)
        with gr.Column(elem_id="main", scale=1, min_width=320):
            with gr.Column(elem_id="figures", min_width=0, scale=0):
                pane("strip", "strip", strip())
                pane("where", "where")
                build_fold("figures", "Figures")
            pane("offer", "model-offer")
            pane("choosing", "choosing")
            pane("about", "about-book")
            pane("chat", "chat", attributes=LOG)
            pane("suggestions", "suggestions")
            pane("editing", "editing")
            static(QUESTION, "ask")
            pane("note", "note")
        pane("leaf", "where-page")
