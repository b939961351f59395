"""Work that goes on beside a page, in a thread of its own, and shows what it changes."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from app.runtime.error_text import EngineFault
from app.runtime.events import Pause
from app.runtime.sessions import Session
from core.errors import CoreError

log = logging.getLogger(__name__)


def follow(
    session: Session,
    events: Iterable[Any],
    apply: Callable[[Any], object] = lambda _: None,
    failed: Callable[[CoreError], object] | None = None,
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Go through a stream of events in a thread of its own, and let the page show what they change.

    Args:
        failed: told of an error; without it the library shows it.
    """

    def run() -> None:
        try:
            for event in events:
                if not isinstance(event, Pause):
                    apply(event)
                    session.changed()
        except CoreError as error:
            told(error)
        except Exception as error:  # a thread that died in silence would look like work that goes on
            log.exception("a stream of events failed")
            told(EngineFault(error))
        finally:
            ended()
            session.changed()

    def told(error: CoreError) -> None:
        if failed is not None:
            failed(error)
        else:
            session.uploads.error = error

    threading.Thread(target=run, name="follow", daemon=True).start()
