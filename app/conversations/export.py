"""A conversation as a file to keep or to pass on: Markdown to read, JSON with everything that is known."""

import json

from app.conversations.figures import exactness, figures
from app.conversations.schema import document
from app.conversations.tree import Dialogue


def as_json(dialogue: Dialogue) -> str:
    """All branches, token ids and figures: the very schema of the file on disk."""
    return json.dumps(document(dialogue), ensure_ascii=False, indent=1)


def as_markdown(dialogue: Dialogue) -> str:
    """The branch that is shown; answers are Markdown already, titles and questions are quoted as they are."""
    book = dialogue.book
    lines = [f"# {_line(dialogue.title)}", ""]
    names = ", ".join(_line(name) for name in book.files)
    lines += [f"About: {_line(book.title)} ({names}), {book.num_tokens:,} tokens", f"Begun: {dialogue.created}", ""]
    for node in dialogue.path:
        lines += ["## Question", "", *(f"> {line}" for line in node.question.splitlines()), ""]
        exchange = node.exchange
        if exchange is None:
            lines += ["*Not answered.*", ""]
            continue
        facts = " · ".join([text for _, text, _ in figures(exchange)] + [exactness(exchange)])
        lines += ["## Answer", "", exchange.finished.text.strip(), "", f"*{facts}*", ""]
    return "\n".join(lines)


def _line(text: str) -> str:
    """One line in which nothing is Markdown or HTML."""
    flat = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|!&" else char for char in flat)
