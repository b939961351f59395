"""Files that a page saves: conversations, proof cards, reports of a race."""

from collections.abc import Callable

from app.runtime.conversation_actions import Parcel, file_name
from app.runtime.sessions import Session
from app.ui.acts import UnknownAct
from app.ui.race.saving import race_file
from app.ui.reading.answer_card import answer_card
from app.ui.site import Site
from core.errors import InvalidSetting

KINDS: dict[str, Callable[[Site, Session, str], Parcel]] = {
    "markdown": lambda site, session, one: site.conversing.export(session.id, one, "markdown"),
    "json": lambda site, session, one: site.conversing.export(session.id, one, "json"),
    "card": lambda site, session, one: _card(site, session, one),
    "race": lambda site, session, kind: race_file(session, site.worker.state, kind),
}


def saved(site: Site, session: Session, what: str) -> Parcel:
    """The file that `KIND:DETAIL` names.

    Raises:
        CoreError: there is nothing to save.
    """
    kind, _, detail = what.partition(":")
    if kind not in KINDS:
        raise UnknownAct
    return KINDS[kind](site, session, detail)


def _card(site: Site, session: Session, node_id: str) -> Parcel:
    node = site.conversing.exchange(session.id, node_id)
    if node.exchange is None:
        raise InvalidSetting("This question has no answer yet.", hint="Press “Answer it”, then save its card.")
    return Parcel(f"triforce-proof-{file_name(node.question)}.html", "text/html", answer_card(session, node))
