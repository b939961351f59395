"""What an empty chat says: how to begin, or what the book is at. A function of the session."""

from app.document_formats import EACH
from app.runtime.sessions import Session
from app.ui import render

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
