"""Counts texts and puts them in the library, and makes a library that fits the session's book, on the engine's thread.

Nothing is cut: a library that is too long does not replace the open book.
"""

import threading
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from app.context.context_documents import Library, Span, digest_of
from app.context.domain_check import reach_note
from app.context.open_book import Book
from app.context.retrieval_map import chunk_pages
from app.context.token_costs import Costs, Meter
from app.context.uploads import Fit, Upload, Uploads
from app.conversations.tree import Dialogue
from app.runtime.events import BookOpened, Changed
from app.runtime.prompts import with_past
from app.runtime.saved_books import DiskState, disk_state
from app.runtime.sessions import Removed, Session
from core.caches.tokens import common_prefix
from core.engine_api import TextEngine
from core.errors import ContextTooSmall, CoreError, let_go

if TYPE_CHECKING:
    from core.generation.text import PromptText, Turn

    Ids = tuple[int, ...]

ROOM_FOR_A_QUESTION = 512  # tokens that a library must leave free for a question and an answer
SLACK = 16  # most tokens by which the sum of separately counted parts may differ from the whole
NEW_CONVERSATION = "A new conversation: the library has no book of the last one."
SAME_CONVERSATION = "The conversation goes on. Earlier answers are about the library as it was."
ITS_DOCUMENTS = "The conversation goes on. The library now holds only its documents."
IN_THE_LIST = " The last one stays in the list."
OTHER_MODEL = "Another model runs now: what is in the library is counted and read again. Conversations stay."


def open_library(session: Session, engine: TextEngine, cancel: threading.Event) -> Iterator[BookOpened | Changed]:
    """Put the extracted texts in the library, then open the library if it fits the context."""
    uploads = session.uploads
    uploads.error = None
    meter = uploads.meter = uploads.meter or Meter(lambda text: len(engine.text.encode(text)))
    _make_way(session)
    for upload in uploads.extracted:
        if cancel.is_set():
            return
        upload.stage = "counting"
        yield Changed()
        try:
            _put(upload, uploads, meter)
        except CoreError as error:
            upload.fail(error)
        except BaseException:  # memory, or a panic of the tokenizer: it must not stay on the way for ever
            upload.fail(CoreError(f"{upload.name} could not be counted.", hint="Drop it again."))
            raise
    library = uploads.library
    meter.forget(library)
    meter.warm(library)
    try:
        for event in _open(session, library, meter, engine):
            if cancel.is_set():
                return
            yield event
    finally:
        session.drop_files()


def forget_tokens(session: Session) -> None:
    """Discard counts and reading after a change of the model; nothing else of the session is lost."""
    uploads = session.uploads
    for error in (uploads.error, *(upload.error for upload in uploads.pending)):
        let_go(error)
    disk_state(session).decline()
    session.disk = DiskState()
    uploads.meter = uploads.fit = None
    if uploads.library.books:
        uploads.settled, uploads.note, session.abandoned = Library(), OTHER_MODEL, True
    session.conversation = session.baseline = session.budget = None
    session.num_read, session.read_seconds = 0, 0.0
    session.loads.clear()


def recount(session: Session, engine: TextEngine, cancel: threading.Event) -> Iterator[BookOpened | Changed]:
    """Count a book before a question about it: one that another model has read, or that nobody has opened yet.

    Raises:
        ContextTooSmall: the model cannot hold it; it stays in the library.
    """
    unopened = session.lacks_book and session.uploads.behind
    if not session.is_stale and not unopened:
        return
    yield from open_library(session, engine, cancel)
    fit = session.uploads.fit
    if session.book is None and fit is not None:
        raise ContextTooSmall(fit.needed, fit.context, possible=fit.possible)


def _make_way(session: Session) -> None:
    """Empty the library if the extracted texts are exactly those of the waiting conversation, e.g. after a restart.

    Together with other documents they would be another text, and the conversation could not continue.
    """
    uploads, dialogue = session.uploads, session.dialogue
    coming = [upload.document for upload in uploads.extracted if upload.document]
    if dialogue is None or session.fits or not coming:
        return
    if digest_of(Library.of(coming).text).hex() == dialogue.book.digest and uploads.library.books:
        session.removed = Removed(uploads.library, None, carried=False)  # Undo brings them back
        uploads.change(lambda _: Library())
        uploads.note = ITS_DOCUMENTS


def _put(upload: Upload, uploads: Uploads, meter: Meter) -> None:
    document = upload.document
    assert document is not None, f"{upload.name} is said to be extracted"
    meter.warm(uploads.library.add(document, upload.file, upload.replaces))
    uploads.add(document, upload.file, upload.replaces, upload.choice)
    uploads.leave(upload)


def _open(session: Session, library: Library, meter: Meter, engine: TextEngine) -> Iterator[BookOpened | Changed]:
    from core.generation.session import Conversation  # already imported with the engine

    uploads, book = session.uploads, session.book
    if not library.books:
        _close(session, library)
        yield Changed()
        return
    files = {one.file for one in library.books if one.file}  # a text that is read anew stays by its file
    before = book.library.books if book is not None else ()
    stays = any(library.index(one.key) is not None or one.file in files for one in before)
    if book is None and session.carried and session.dialogue is not None:
        stays = any(one.digest.hex() in session.dialogue.book.documents for one in library.books)
    turns = with_past(Conversation(), session.exchanges, engine).turns if stays else ()
    fit = Fit(
        books=meter.library(library),
        frame=len(engine.text.opening(())),
        talk=talk_tokens(engine.text, turns),
        reserve=ROOM_FOR_A_QUESTION,
        context=engine.context,
        possible=engine.info.most_context,
        talks=branch_tokens(session.dialogue, engine) if stays and session.dialogue else {},
    )
    opened = None
    if fit.needed <= fit.context + fit.books // 64:  # counts by page may be slightly too high
        opened = _book(library, meter, engine)
        fit = replace(fit, books=opened[0].num_tokens)
    if opened is None or not fit.fits:
        if session.is_stale:  # the open book is not counted for this model: no question could be asked
            session.carried = session.dialogue is not None and session.fits
            session.book, session.digest = None, ""
        uploads.fit, uploads.settled = fit, library
        yield Changed()
        return
    if book is None or session.is_stale or book.parts != opened[0].parts:
        yield _adopt(session, *opened, stays=stays, text=engine.text)
    uploads.fit, uploads.settled = fit, library


def room(fit: Fit) -> int:
    """Tokens that books may have together so that the rest still fits the context, counted part by part."""
    return fit.context - (fit.needed - fit.books) - SLACK


def _close(session: Session, library: Library) -> None:
    if session.fits:
        _leave(session)
    session.book = session.conversation = session.trace = session.race = session.baseline = None
    session.digest, session.num_read, session.read_seconds = "", 0, 0.0
    session.loads.clear()
    session.uploads.fit, session.uploads.settled = None, library


def talk_tokens(text: "PromptText", turns: "tuple[Turn, ...]") -> int:
    """Tokens of a prompt that questions and answers take."""
    from core.generation.session import Conversation  # already imported with the engine

    asked, alone = (Conversation((), kept).ask("?").prompt_ids(text) for kept in (turns, ()))
    return len(asked) - len(alone)


def branch_tokens(dialogue: Dialogue, engine: TextEngine) -> dict[str, int]:
    """Tokens of a prompt that every branch takes, by the exchange at its end. Cost: each turn is tokenized once."""
    from core.generation.session import Conversation  # already imported with the engine

    found: dict[str, int] = {}
    for node in dialogue.nodes:  # parents come before their children
        turns = with_past(Conversation(), (node.exchange,), engine).turns if node.exchange else ()
        found[node.id] = found.get(node.parent, 0) + talk_tokens(engine.text, turns)
    return found


def _book(library: Library, meter: Meter, engine: TextEngine) -> "tuple[Book, Ids]":
    """A library as a book, and its token ids. Each part is tokenized separately, so its ids do not depend on others."""
    ids: list[int] = []
    starts = array("I")
    length = 0
    for part in library.parts:
        ids += engine.text.encode(part.text)
        own = array("I", engine.text.offsets(part.text) if engine.text.knows_offsets else ())
        book = library.books[part.book]
        if own and part.source == Span(0, len(book.document.text)):
            meter.know(book, Costs.of_tokens(book.document, own))
        starts.extend(start + length for start in own)
        length += len(part.text)
    size, num_opening = engine.config.retrieval.chunk_size, len(engine.text.opening(ids))
    made = Book(
        library.books[0].document,
        len(ids),
        num_opening,
        library=library,
        starts=starts,
        chunk_size=size,
        chunk_pages=chunk_pages(library, starts, num_opening - len(ids), size),
        note=reach_note(engine.info.limits, library.text, len(ids)),
    )
    return made, tuple(ids)


def _adopt(session: Session, book: Book, ids: "Ids", *, stays: bool, text: "PromptText") -> BookOpened:
    """Make a book the session's book, in one step."""
    from core.generation.session import Conversation

    before, after = session.conversation or Conversation(), Conversation(book_ids=ids)
    shared = common_prefix(before.opening_ids(text), after.opening_ids(text)) if session.book else 0
    session.num_read = min(session.num_read, shared)
    if session.num_read == 0:
        session.read_seconds = 0.0
    if not stays:
        session.trace = session.race = None
    session.baseline = None
    session.loads.clear()
    stale, digest = session.is_stale, digest_of(book.library.text).hex()
    fate = _fate(session, book, digest, stays=stays)
    if fate == "left":
        _leave(session)
    elif fate == "carried" or (fate == "own" and session.dialogue is not None and session.fits):
        session.uploads.note = OTHER_MODEL if stale else SAME_CONVERSATION
    with session.lock:
        session.book, session.conversation = book, after
        session.digest, session.carried = digest, fate == "carried"
    return BookOpened(book)


def _fate(session: Session, book: Book, digest: str, *, stays: bool) -> Literal["own", "carried", "waits", "left"]:
    """What happens to the shown conversation when a book is opened.

    It continues if the text is the one it was about, or if one of its documents stays in the library. A conversation
    that waits for its books, as after a restart, waits on while some of them are there. Any other goes to the list.
    """
    dialogue = session.dialogue
    if dialogue is None or dialogue.book.digest == digest:
        return "own"
    if session.fits or session.carried:
        return "carried" if stays else "left"
    return "waits" if set(book.names) & set(dialogue.book.names) else "left"


def _leave(session: Session) -> None:
    """Begin a new conversation; the earlier one stays in the list unless it is incognito."""
    if session.dialogue is not None:
        session.uploads.note = NEW_CONVERSATION + ("" if session.incognito else IN_THE_LIST)
    with session.lock:
        session.dialogue = session.editing = None
        session.carried = False
