"""The files of a race: the proof card, the long report, its JSON."""

import json

from app.runtime.conversation_actions import Parcel
from app.runtime.events import ModelState, Ready
from app.runtime.sessions import Session
from app.runtime.versions import versions
from app.ui.assets import CSS
from app.ui.race.card import card_html
from core.errors import InvalidSetting


def race_file(session: Session, state: ModelState, kind: str) -> Parcel:
    """The newest race of a session; `kind` is "card", "html" or "json".

    Raises:
        InvalidSetting: no race has ended.
    """
    race, book = session.race, session.book
    if race is None or not race.ended or not isinstance(state, Ready):
        raise InvalidSetting("There is no finished race.", hint="Start one, then save its report.")
    when = f"{race.begun:%Y-%m-%d-%H%M%S}"
    if kind == "card":
        about = book if book is not None and (book.title, book.num_tokens) == (race.book, race.num_book) else None
        return Parcel(f"triforce-proof-{when}.html", "text/html", card_html(race, about))
    from app.ui.race.report import Setting, report_html, report_json  # imports torch, which is loaded by now

    setting = Setting(state.info, state.machine, versions())
    if kind == "json":
        document = json.dumps(report_json(race, setting), ensure_ascii=False, indent=1)
        return Parcel(f"triforce-race-{when}.json", "application/json", document)
    return Parcel(f"triforce-race-{when}.html", "text/html", report_html(race, setting, CSS))
