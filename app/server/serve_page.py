"""Starts the app: address, stored data, access. The page is served before the model is loaded."""

import argparse
import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from starlette.middleware import Middleware

from app.context import upload_files
from app.context.kept_documents import FOLDER as KEPT
from app.context.kept_documents import KeptDocuments
from app.conversations.store import Conversations
from app.document_formats import DROPPED
from app.documents.bundle import sweep_unpacked
from app.documents.recognised import FOLDER, RecognisedPages
from app.remote.server import is_loopback
from app.runtime.data_folder import SHELF, data_dir, data_place
from app.runtime.downloads import Downloads
from app.runtime.model_folders import NAME, ModelFolders
from app.runtime.options import engine_config, engine_type
from app.runtime.saved_books import SavedBooks
from app.runtime.worker import EngineWorker
from app.server.bodies import PageLimits
from app.server.ending import Ending, leave
from app.server.privacy import PagePolicy
from app.server.request_guard import Hosts, Logins, RequestGuard, guarded
from app.ui.assets import ASSETS, CSS, SCRIPTS, VENDORED
from app.ui.header import limits_note
from app.ui.models.rows import ModelSource
from app.ui.reading.settings import script
from app.ui.site import Site
from core.config import EngineConfig
from core.errors import InvalidSetting, NotPossibleHere
from core.models.hub import catalog

if TYPE_CHECKING:
    import gradio as gr

    from core.engine_api import TextEngine
    from core.planning.hardware import Machine

MOST_UPLOAD = "300mb"
AUTH_VARIABLE = "TRIFORCE_AUTH"
INTERRUPTED = 130  # exit code that shells give a command ended by Ctrl+C
PLAIN_WARNING = (
    "Warning: this is plain http. Others in the network can read everything, the password too. "
    "For private use leave --host out and use an ssh tunnel."
)
SHORTEST_PASSWORD = 8  # characters, if other machines can reach the page


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl+C. Returns 0; INTERRUPTED if Ctrl+C came during the start.

    Raises:
        InvalidSetting: an address, a port, a password or a context that cannot be used. UnknownModel.
    """
    from_environment = os.environ.pop(AUTH_VARIABLE, None)  # so that no document parser inherits it
    auth = credentials(args.auth or from_environment)
    check_exposure(args.host, share=args.share, auth=auth)
    load_it, limits = chosen_engine(args)
    for host in (args.host, "127.0.0.1"):  # Gradio tries this one, too
        check_port(host, args.port)
    folder = data_dir(args.data_dir)
    prepare_process(folder, args.host)
    sweep_unpacked()
    code = INTERRUPTED
    with Ending() as ending, upload_files.in_use(folder):
        worker = EngineWorker(
            load_it,
            seed=args.seed,
            conversations=Conversations(folder / "conversations"),
            saved_books=SavedBooks(None if args.remote else folder / SHELF),
            recognised=RecognisedPages(folder / FOLDER),
            kept=KeptDocuments(folder / KEPT),
        )
        downloads, page = Downloads(), None
        try:
            page = serve(args, worker, auth, note=limits_note(limits), downloads=downloads)
            worker.start()
            code = 0
            ending.wait()
        except KeyboardInterrupt:
            pass
        finally:
            if code == 0:
                print("Ending.", file=sys.stderr)
            downloads.close()
            worker.close()
            if page is not None:
                page.close(verbose=False)
    if worker.is_running:
        leave(code)
    return code


def chosen_engine(args: argparse.Namespace) -> "tuple[Callable[[], tuple[TextEngine, Machine]], str]":
    """The function that loads the engine, and the limits of its model as far as they are known before loading.

    Raises:
        InvalidSetting, UnknownModel.
    """
    if args.remote:
        from app.remote.server import connector

        return connector(args), ""
    config = engine_config(args)
    return lambda: load(config), catalog.find(config.model).limits


def model_source(args: argparse.Namespace) -> ModelSource:
    """How the page loads another model: with this start's options, except for the draft."""

    def config(name: str) -> EngineConfig:
        draft = "none" if args.draft == "none" else "auto"
        other = {} if name == started else {"model": name, "draft": draft}
        return engine_config(argparse.Namespace(**(vars(args) | other)))

    unavailable = ""
    if args.remote:
        unavailable = "The model runs on the server that --remote names, and is chosen there."
    elif (args.gpus or 1) > 1:
        unavailable = "Several processes share this model (--gpus). Another one needs a new start with --model NAME."
    started = args.model or EngineConfig().model
    # Whoever reads the page from elsewhere must not learn what lies where on this machine.
    alone = is_loopback(args.host) and not args.share and not args.allow_host and not unavailable
    folders = ModelFolders(data_place(args.data_dir) / NAME) if alone else None
    return ModelSource(
        config=config, load=lambda config: partial(load, config), unavailable=unavailable, folders=folders
    )


def load(config: EngineConfig) -> "tuple[TextEngine, Machine]":
    """Load the engine on the thread that will own it. Imports torch only here, because that takes seconds."""
    engine = engine_type()
    from core.planning.hardware import this_machine  # already imported with the engine

    return engine.load(config), this_machine()


@contextmanager
def without_broken_settings() -> Iterator[None]:
    """Leave out proxies and certificates with which no client can be made: Gradio makes some, and asks only itself."""
    left_out = dict[str, str]()
    try:
        httpx.Client().close()
    except (ImportError, ValueError, OSError, httpx.InvalidURL):  # SOCKS needs another package
        names = [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("SSL_CERT_")]
        left_out = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(left_out)


@without_broken_settings()
def serve(
    args: argparse.Namespace,
    worker: EngineWorker,
    auth: tuple[str, str] | None,
    *,
    note: str = "",
    source: ModelSource | None = None,
    downloads: Downloads | None = None,
) -> "gr.Blocks":
    """Build the page and serve it from threads of its own; the worker may still load, or not have started."""
    import gradio as gr  # after prepare_process, whose variables gradio reads
    from gradio.utils import get_upload_folder

    from app.context.samples import load_samples
    from app.server.heads import time_heads
    from app.server.page_routes import PageRoutes
    from app.ui.page import build_page

    hide_folders()
    time_heads()
    site = Site(
        worker,
        load_samples(),
        source=source or model_source(args),
        downloads=downloads or Downloads(),
        elsewhere=bool(args.remote),
        note=note,
    )
    page, hosts = build_page(site), Hosts(args.host, args.port, args.allow_host or ())
    page.launch(
        server_name=f"[{args.host}]" if ":" in args.host else args.host,
        server_port=args.port,
        _frontend=False,  # no request to itself, which on a busy machine may take longer than the 3 s that Gradio waits
        inbrowser=args.browser,
        share=args.share,
        auth=auth,
        prevent_thread_lock=True,
        quiet=True,
        show_error=False,
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        max_file_size=MOST_UPLOAD,
        favicon_path=ASSETS / "static" / "css" / "mark.svg",
        theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        head=styles(),
        app_kwargs={
            "lifespan": guarded(hosts),
            "routes": PageRoutes(site).routes,
            "middleware": [
                Middleware(Logins),
                Middleware(PageLimits, uploads=Path(get_upload_folder())),
                Middleware(PagePolicy, first=scripts()),
            ],
        },
    )
    if not isinstance(page.app.middleware_stack, RequestGuard):
        page.close(verbose=False)
        raise RuntimeError("the server has started without its request guard")
    announce(page, args.host, hosts)
    return page


@cache
def hide_folders() -> None:
    """From now on, answers to uploads name files by their place in the uploads folder: Gradio would name that, too."""
    from gradio import routes, utils

    upload = routes.upload_fn  # type: ignore[attr-defined]

    async def store(*args: Any, **options: Any) -> tuple[list[str], list[str], list[str]]:
        files, *unmoved = await upload(*args, **options)
        return [os.path.relpath(file, utils.get_upload_folder()) for file in files], *unmoved

    routes.upload_fn = store  # type: ignore[attr-defined]


def announce(page: "gr.Blocks", host: str, hosts: Hosts) -> None:
    """Print the page's address; admit the address of a public link."""
    print(f"TriForce Reader runs at {page.local_url} (Ctrl+C ends it)", file=sys.stderr, flush=True)
    if not is_loopback(host):
        print(PLAIN_WARNING, file=sys.stderr, flush=True)
    if page.share_url:
        hosts.allow(page.share_url)
        print(f"Public link: {page.share_url}", file=sys.stderr, flush=True)


def styles() -> str:
    """Style sheets unchanged: Gradio rewrites what it gets as `css`, and breaks media queries."""
    sheets = "".join(f"<style>\n{file.read_text(encoding='utf-8')}</style>" for file in CSS)
    return sheets + f'<style>:root {{ --formats: "{DROPPED}" }}</style>'  # told beside the place to drop books


def scripts() -> str:
    """The tags of the page's scripts, which run before Gradio's own."""
    tags = "".join(f'<script defer src="page/static/{file.name}"></script>' for file in VENDORED)
    tags += "".join(f'<script type="module" src="page/static/{file.name}"></script>' for file in SCRIPTS)
    return f'<script type="application/json" id="settings-first">{script()}</script>{tags}'


# -------------------- who can reach the page


def credentials(auth: str | None) -> tuple[str, str] | None:
    """USER:PASSWORD as a pair.

    Raises:
        InvalidSetting: one of them is missing.
    """
    if auth is None:
        return None
    user, _, password = auth.partition(":")
    if not user or not password:
        raise InvalidSetting("--auth needs a name and a password.", hint="Write --auth NAME:PASSWORD.")
    return user, password


def check_exposure(host: str, *, share: bool, auth: tuple[str, str] | None) -> None:
    """Require a password if other machines can reach the page, because whoever reaches it can read its books.

    Raises:
        InvalidSetting: other machines could reach it without a password, or with a short one.
    """
    if not share and is_loopback(host):
        return
    way = f"{'--share' if share else f'--host {host}'} lets other machines"
    if auth is None:
        raise InvalidSetting(f"{way} reach your books.", hint="Add --auth NAME:PASSWORD, or leave it out.")
    if len(auth[1]) < SHORTEST_PASSWORD:
        hint = f"Take one of {SHORTEST_PASSWORD} characters or more."
        raise InvalidSetting(f"{way} try passwords, and this one is short.", hint=hint)


def check_port(host: str, port: int) -> None:
    """Check that this machine can listen there. Raises: as `open_port`."""
    open_port(host, port).close()


def open_port(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        NotPossibleHere: the address is not one of this machine, or the port is in use or reserved.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        problem, hint = f"{host} is not an address of this machine.", "Use --host 127.0.0.1, or leave it out."
        if error.errno in (errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", errno.EADDRINUSE)):
            problem = f"Port {port} on {host} is in use by another program."
            hint = f"End that program or choose another port, for example --port {port + 1}."
        elif error.errno == errno.EACCES:
            problem, hint = f"Port {port} is reserved by the system.", "Use one from 1024 up, such as --port 7860."
        raise NotPossibleHere(problem, hint=hint) from error


# -------------------- what is stored on disk


def prepare_process(folder: Path, host: str) -> None:
    """Set the variables Gradio reads at import: no analytics, uploads in our folder, no proxy for its own address."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(folder / upload_files.FOLDER)
    known = [one for one in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")).split(",") if one]
    for name in ("NO_PROXY", "no_proxy"):  # Gradio requests its own address to see whether it is up
        os.environ[name] = ",".join(dict.fromkeys([*known, "127.0.0.1", "localhost", host]))
