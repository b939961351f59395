"""What a page can do: one entry for all acts. An act changes the state and returns at once; the stream shows it.

Every act has an id and is done once, so that a page may send it again after a lost connection.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, Field

from app.conversations.exchange import ID
from app.runtime.error_text import EngineFault
from app.runtime.sessions import Session
from app.ui.site import Site
from core.errors import CoreError, InvalidSetting

log = logging.getLogger(__name__)

MOST_REMEMBERED = 256  # acts of one page, by their ids
MOST_DETAIL = 1 << 20  # characters

Values = dict[str, Any]
Act = Callable[[Site, Session, str, Values], None]  # the site, the page's session, what follows the verb, the rest


class ActRequest(BaseModel):
    """One act of a page."""

    session: str = Field(pattern=f"^{ID.pattern}$")
    id: str = Field(min_length=8, max_length=64)
    act: str = Field(max_length=MOST_DETAIL)  # VERB or VERB:DETAIL
    values: Values = {}


class UnknownAct(InvalidSetting):
    """An act that this program does not know: the page is of another version, or no page at all."""

    def __init__(self) -> None:
        super().__init__("The page sent something unknown.", hint="Reload the page.")


class Acts:
    """The acts of all tabs, by their verbs."""

    def __init__(self, site: Site, *tables: Mapping[str, Act]) -> None:
        self._site = site
        self._table = {verb: act for table in tables for verb, act in table.items()}
        assert len(self._table) == sum(map(len, tables)), "two acts of one name"

    def do(self, request: ActRequest) -> bool:
        """Do an act, if it was not done before. False: it was refused, and the page says why."""
        session = self._site.worker.sessions.enter(request.session)
        with session.lock:
            if request.id in session.acts:
                return session.acts[request.id]
            session.acts[request.id] = True
            if len(session.acts) > MOST_REMEMBERED:
                session.acts.popitem(last=False)
        verb, _, detail = request.act.partition(":")
        act = self._table.get(verb)
        try:
            if act is None:
                raise UnknownAct
            session.problem = None
            act(self._site, session, detail, request.values)
        except CoreError as error:
            session.problem, session.acts[request.id] = error, False
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            log.warning("an act was refused: %s (%s)", verb[:40], type(error).__name__)
            session.problem, session.acts[request.id] = UnknownAct(), False
        except Exception as error:  # a page would send it again and again, and its reader would see nothing
            log.exception("an act failed: %s", verb[:40])
            session.problem, session.acts[request.id] = EngineFault(error), False
        finally:
            session.changed()
        return session.acts[request.id]
