"""What the page asks of the server beside Gradio's own: the stream of its state, acts, files to save, scripts."""

import asyncio
import json
import mimetypes
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.conversations.exchange import ID
from app.runtime.conversation_actions import Parcel
from app.runtime.events import Ready
from app.runtime.sessions import Session
from app.server.openai.errors import RequestError
from app.ui.acts import ActRequest, Acts
from app.ui.assets import SERVED
from app.ui.page import ACTS, PARTS
from app.ui.saving import saved
from app.ui.site import Drawer, Site, changes, follow
from core.errors import CoreError

LOOK_SECONDS = 0.05  # between two looks whether something has changed
SPARING_SECONDS = 0.25  # between two drawings, where the decoder's threads leave no core to the page
SIGN_OF_LIFE_SECONDS = 1.0  # the state is drawn and told at least so often: a page without one says that nobody answers
DRAWING_THREADS = 4  # each keeps memory of its own for what it has drawn
GONE_SECONDS = 30.0  # after which the work of a page that nobody looks at ends: a page that reloads is back by then


class PageRoutes:
    """The routes of one site."""

    def __init__(self, site: Site) -> None:
        self._site, self._acts = site, Acts(site, *ACTS)
        self._drawing = ThreadPoolExecutor(DRAWING_THREADS, thread_name_prefix="drawing")

    @property
    def routes(self) -> list[Route]:
        """To be served before Gradio's."""
        return [
            Route("/page/state", self.state),
            Route("/page/act", self.act, methods=["POST"]),
            Route("/page/file", self.file),
            Route("/page/static/{name}", self.static),
        ]

    async def act(self, request: Request) -> Response:
        """Do one act; the answer says only whether it was accepted."""
        try:
            wanted = ActRequest.model_validate_json(await request.body())
        except ValidationError:
            return RequestError("This is no act of the page.", 400).as_text()
        return JSONResponse(await run_in_threadpool(self._acts.do, wanted))

    async def state(self, request: Request) -> Response:
        """The state of a session for a page that shows one tab: all of it, then its changes."""
        session_id, tab = request.query_params.get("session", ""), request.query_params.get("tab", "read")
        if not ID.fullmatch(session_id):
            return RequestError("This is no session.", 400).as_text()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(session_id, tab), media_type="text/event-stream", headers=headers)

    async def _events(self, session_id: str, tab: str) -> AsyncIterator[str]:
        site = self._site
        session = site.worker.sessions.enter(session_id)
        await run_in_threadpool(site.conversing.arrive, session)
        drawer, sent = Drawer(site, session, tab, PARTS), dict[str, object]()
        session.num_streams += 1
        session.num_visits += 1
        try:
            yield "retry: 500\n\n"
            # A session that is looked at is kept; one that was forgotten all the same, until an act begins another.
            while (site.worker.sessions.find(session_id) or session) is session:
                version = session.version
                self._catch_up(session)
                state = await asyncio.get_running_loop().run_in_executor(self._drawing, drawer.state)
                change = changes(sent, state)
                whole = {} if sent else {"whole": True}
                sent = state
                yield f"data: {json.dumps({'parts': change, **whole}, separators=(',', ':'))}\n\n"
                await self._until_changed(session, version, is_late=drawer.is_late)
        finally:
            session.num_streams -= 1
            asyncio.get_running_loop().call_later(GONE_SECONDS, self._left, session, session.num_visits)

    def _catch_up(self, session: Session) -> None:
        """Read what another model has read before, and what was left when nobody looked."""
        worker = self._site.worker
        if session.abandoned and isinstance(worker.state, Ready) and not worker.is_busy(session):
            session.abandoned = False
            follow(session, worker.reading.catch_up(session))

    async def _until_changed(self, session: Session, version: int, *, is_late: bool) -> None:
        least, waited = LOOK_SECONDS, 0.0
        if session.writing is not None and self._is_crowded():
            least = SPARING_SECONDS
        while waited < SIGN_OF_LIFE_SECONDS and (waited < least or (session.version == version and not is_late)):
            await asyncio.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS

    def _is_crowded(self) -> bool:
        state = self._site.worker.state
        if not isinstance(state, Ready) or state.info.elsewhere or state.info.plan.device.value != "cpu":
            return False
        from core.ops.threads import most_threads  # imports torch, as the engine has

        return most_threads() >= state.machine.num_cores

    def _left(self, session: Session, num_visits: int) -> None:
        """Nobody has looked at the page since: end what it does."""
        if session.num_streams == 0 and session.num_visits == num_visits:
            self._site.worker.abandon(session.id)

    async def file(self, request: Request) -> Response:
        """A file for the browser to save: a conversation, a proof card, a report of a race."""
        session = self._site.worker.sessions.find(request.query_params.get("session", ""))
        if session is None:
            return RequestError("There is nothing here.", 404).as_text()
        try:
            parcel: Parcel = await run_in_threadpool(saved, self._site, session, request.query_params.get("what", ""))
        except CoreError as error:
            session.problem = error
            session.changed()
            return Response(status_code=204)
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(parcel.name)}"}
        return Response(parcel.text, media_type=parcel.type, headers=headers)

    async def static(self, request: Request) -> Response:
        """A script of the page."""
        file = SERVED.get(request.path_params["name"])
        if file is None:
            return RequestError("There is nothing here.", 404).as_text()
        kind = mimetypes.guess_type(file.name)[0] or "text/plain"
        return Response(file.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})
