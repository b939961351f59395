"""Files that a page saves: conversations, proof cards, the figures of a race."""

import json

from app.conversations.exchange import Exchange, drawn, exactness
from app.runtime.conversation_actions import Parcel, file_name
from app.runtime.race_job import race_report
from app.runtime.sessions import Session
from app.runtime.trace import Race, Trace
from app.ui.acts import UnknownAct
from app.ui.race.card import card_html
from app.ui.site import Site
from core.errors import InvalidSetting


def saved(site: Site, session: Session, what: str) -> Parcel:
    """The file that `KIND:DETAIL` names.

    Raises:
        CoreError: there is nothing to save.
    """
    match what.partition(":"):
        case ("markdown" | "json" as kind, _, dialogue_id):
            return site.conversing.export(session, dialogue_id, kind)
        case ("card", _, node_id):
            return _card(site, session, node_id)
        case ("race", _, kind):
            return _race_file(session, kind)
        case _:
            raise UnknownAct


def _card(site: Site, session: Session, node_id: str) -> Parcel:
    """One self-contained file about an answer of the session's conversation."""
    node = site.conversing.exchange(session, node_id)
    exchange, dialogue, book = node.exchange, session.dialogue, session.book if session.fits else None
    if exchange is None or dialogue is None:
        raise InvalidSetting("This question has no answer yet.", hint="Press “Answer it”, then save its card.")
    trace = recorded(session.trace, exchange) or Trace(node.question, exchange.finished.method).apply(exchange.finished)
    names, tokens = ", ".join(dialogue.book.names), book.num_tokens if book else exchange.finished.prompt_tokens
    race = Race(
        question=node.question, lanes=(trace,), configs=(), seconds=None, book=names, num_book=tokens, ended=True
    )
    greedy = exchange.sampling is not None and exchange.sampling.greedy  # plain decoding would write these very words
    exact = f'<p class="good">{EXACT}</p>' if exactness(exchange) == "exact" and greedy else ""
    told = " · ".join(filter(None, (exchange.model, exchange.weights, exactness(exchange), drawn(exchange))))
    told = f"Answered by TriForce Reader: {told} Race the question to see both clocks."
    html = card_html(race, book, told=told, result_of=exact)
    return Parcel(f"triforce-proof-{file_name(node.question)}.html", "text/html", html)


def _race_file(session: Session, kind: str) -> Parcel:
    """The newest race of a session; `kind` is "card" or "json".

    Raises:
        InvalidSetting: no race has ended.
    """
    race, book = session.race, session.book
    if race is None or not race.ended:
        raise InvalidSetting("There is no finished race.", hint="Start one, then save its card.")
    when = f"{race.begun:%Y-%m-%d-%H%M%S}"
    if kind == "json":
        document = json.dumps(race_report(race), ensure_ascii=False, indent=1)
        return Parcel(f"triforce-race-{when}.json", "application/json", document)
    about = book if book is not None and (book.title, book.num_tokens) == (race.book, race.num_book) else None
    return Parcel(f"triforce-proof-{when}.html", "text/html", card_html(race, about))


EXACT = "✓ Exact: the words that plain decoding of this model would write."


def recorded(trace: Trace | None, exchange: Exchange) -> Trace | None:
    """The trace if it is of this very answer, from its beginning."""
    if trace is None or trace.finished is None or trace.before or trace.question != exchange.question:
        return None
    return trace if trace.finished.token_ids == exchange.finished.token_ids and not exchange.finished.thought else None
