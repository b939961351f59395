"""The proof card of one answer: a small page that needs no other file, as that of a race (app/ui/race/card.py).

Question, answer and its clock, what it is exact for, the passages with their pages; a replay where it was recorded.
"""

import json

from app.conversations.exchange import Exchange
from app.conversations.figures import drawn, exactness, methods
from app.conversations.tree import Node
from app.runtime.sessions import Session
from app.runtime.trace import Trace
from app.ui import render
from app.ui.race.card import REPLAY, Passage, cited_html, sheet, side_html
from app.ui.race.view import trace_points
from app.ui.retrieval_map.view import page_of, page_words

EXACT = "✓ Exact: the words that plain decoding of this model would write."


def cited(session: Session, exchange: Exchange) -> list[Passage]:
    """What the open book has of an answer word for word, as the chips in the chat tell it."""
    book, text = session.book, exchange.finished.text
    if book is None or not session.fits:
        return []
    found = (one for one in book.evidence(text) if one.source is not None)
    return [
        Passage(text[one.start : one.end], page_words(book, page_of(book, one.source.start)))
        for one in found
        if one.source is not None
    ]


def answer_card(session: Session, node: Node) -> str:
    """One self-contained file about an answer of the session's conversation."""
    exchange = node.exchange
    assert exchange is not None, "a card of no answer"
    dialogue, finished, trace = session.dialogue, exchange.finished, recorded(session.trace, exchange)
    names = ", ".join(dialogue.book.names) if dialogue else ""
    points = trace_points(trace) if trace else [[0, 0, 0], [0, len(finished.text), finished.stats.new_tokens]]
    kept = '<p class="good">' + EXACT + "</p>" if exactness(exchange) == "exact" and is_greedy(exchange) else ""
    told = " · ".join(filter(None, (exchange.model, exchange.weights, exactness(exchange), drawn(exchange))))
    side = side_html("fast", json.dumps(points), methods(exchange), finished.stats, finished.text)
    return sheet(
        exchange.question,
        f"{names}, all of it in the context",
        f'{kept}<div class="lanes">{side}</div>{REPLAY if trace else ""}{cited_html(cited(session, exchange))}'
        f'<p class="soft">Answered by TriForce Reader: {render.escape(told)} Race the question to see both clocks.</p>',
    )


def recorded(trace: Trace | None, exchange: Exchange) -> Trace | None:
    """The trace if it is of this very answer, from its beginning."""
    if trace is None or trace.finished is None or trace.question != exchange.question:
        return None
    return trace if trace.finished.token_ids == exchange.finished.token_ids and not exchange.finished.thought else None


def is_greedy(exchange: Exchange) -> bool:
    """Nothing was drawn, so that plain decoding would write these very words."""
    return exchange.sampling is not None and exchange.sampling.greedy
