"""`python launch.py serve`: the engine behind an OpenAI-compatible interface."""

import argparse
import os
import sys
from typing import Any

from app.cli.output import ProgressLine, print_json
from app.remote.server import is_loopback
from app.runtime.data_folder import SHELF, data_dir, data_place
from app.runtime.events import LoadFailed, Loading, Ready
from app.runtime.options import engine_config
from app.runtime.saved_books import SavedBooks
from app.runtime.worker import EngineWorker
from app.server.ending import Ending, leave
from app.server.openai.api import Api
from app.server.openai.request_log import log_requests
from app.server.request_guard import Hosts
from app.server.serve_page import check_port, load, open_port
from core.errors import InvalidSetting

KEY_VARIABLE = "TRIFORCE_API_KEY"
SHORTEST_KEY = 16  # characters, if other machines can try keys: there is no wait between two
TELL_SECONDS = 1.0  # between two words on how far loading is
LONGEST_END_SECONDS = 3  # for clients to finish when the server ends
HOW: dict[str, Any] = {  # uvicorn serves it
    "access_log": False,
    "server_header": False,
    "lifespan": "off",
    "http": "app.server.heads:TimedHeads",
}


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl+C. Returns 0.

    Raises:
        InvalidSetting: an unusable address, port or key. Errors of loading the model.
    """
    import uvicorn

    from core.generation.text import check_thinking  # takes seconds, like the model

    key = args.api_key if args.api_key is not None else os.environ.get(KEY_VARIABLE) or None
    check_door(args.host, key)
    check_port(args.host, args.port)
    wanted = engine_config(args)
    worker = EngineWorker(lambda: load(wanted), saved_books=saved_books(args))
    with Ending():
        try:
            worker.start()
            ready = loaded(worker)
            check_thinking(args.thinking, ready.info.thinking)
            api = Api(
                worker,
                ready,
                hosts=Hosts(args.host, args.port, args.allow_host or ()),
                key=key,
                origins=args.allow_origin or (),
                most_waiting=args.queue,
                thinking=args.thinking,
            )
            log_requests()
            config = uvicorn.Config(api.app, log_level="warning", timeout_graceful_shutdown=LONGEST_END_SECONDS, **HOW)
            with open_port(args.host, args.port) as port:
                announce(args, ready)
                uvicorn.Server(config).run(sockets=[port])
        except KeyboardInterrupt:  # uvicorn has shut down and raises it again
            pass
        finally:
            worker.close()
        print("Ending.", file=sys.stderr)
    if worker.is_running:
        leave(0)
    return 0


def saved_books(args: argparse.Namespace) -> SavedBooks:
    """The books on disk: opened where there are any, saved with --saved or where the page's setting says always."""
    place = data_place(args.data_dir) / SHELF
    if args.saved is False or not (args.saved or place.is_dir()):
        return SavedBooks()
    return SavedBooks(data_dir(args.data_dir) / SHELF, "always") if args.saved else SavedBooks(place)


def loaded(worker: EngineWorker) -> Ready:
    """Wait for the model.

    Raises:
        CoreError: it cannot be loaded.
    """
    line = ProgressLine()
    while not worker.jobs.has_loaded(TELL_SECONDS):
        if isinstance(now := worker.state, Loading):
            line.show_loading(now.progress)
    line.close()
    state = worker.state
    if isinstance(state, LoadFailed):
        raise state.error
    assert isinstance(state, Ready), "closed while loading"
    return state


def check_door(host: str, key: str | None) -> None:
    """Require a key if other machines can reach the server, because whoever reaches it can use it.

    Raises:
        InvalidSetting: others could use it without a key or with a short one, or it cannot be sent in a header.
    """
    if key is not None and (not key or not key.isascii() or not key.isprintable() or key != key.strip()):
        raise InvalidSetting("The API key cannot be sent in a header.", hint="Use plain letters, digits and signs.")
    if is_loopback(host):
        return
    way = f"--host {host} lets other machines"
    if key is None:
        hint = f"Add --api-key KEY (or set {KEY_VARIABLE}), or leave it out."
        raise InvalidSetting(f"{way} use the model and its memory of your texts.", hint=hint)
    if len(key) < SHORTEST_KEY:
        hint = f"Take one of {SHORTEST_KEY} characters or more, made by chance."
        raise InvalidSetting(f"{way} try keys, and this one is short.", hint=hint)


def announce(args: argparse.Namespace, ready: Ready) -> None:
    """Print its address, for people or for programs."""
    host = f"[{args.host}]" if ":" in args.host else args.host
    url = f"http://{host}:{args.port}/v1"
    if args.json:
        print_json({"url": url, "model": ready.info.model, "context": ready.context})
    print(
        f"{ready.info.model} is served at {url}, {ready.context:,} tokens of context (Ctrl+C ends it)",
        file=sys.stderr,
        flush=True,
    )
