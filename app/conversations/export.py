"""A conversation as a file: Markdown for reading, JSON with all recorded data."""

import json

from app.conversations.exchange import exactness, figures
from app.conversations.schema import document
from app.conversations.tree import Dialogue
from app.markdown import standalone


def as_json(dialogue: Dialogue) -> str:
    """All branches, token ids and figures, in the schema of the file on disk."""
    return json.dumps(document(dialogue), ensure_ascii=False, indent=1)


def as_markdown(dialogue: Dialogue) -> str:
    """The shown branch. Answers already are Markdown; of them and of questions nothing is loaded from elsewhere."""
    book = dialogue.book
    lines = [f"# {_line(dialogue.title)}", ""]
    names = ", ".join(_line(name) for name in book.files)
    lines += [f"About: {_line(book.title)} ({names}), {book.num_tokens:,} tokens", f"Begun: {dialogue.created}", ""]
    for node in dialogue.path:
        lines += ["## Question", "", *(f"> {line}" for line in standalone(node.question).split("\n")), ""]
        exchange = node.exchange
        if exchange is None:
            lines += ["*Not answered.*", ""]
            continue
        facts = " · ".join([text for _, text, _ in figures(exchange)] + [exactness(exchange)])
        lines += ["## Answer", "", standalone(exchange.finished.text.strip()), "", f"*{facts}*", ""]
    return "\n".join(lines)


def _line(text: str) -> str:
    """One line without Markdown or HTML markup."""
    flat = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|!&" else char for char in flat)
