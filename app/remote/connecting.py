"""From the command line to a remote engine. The key comes from an option or the environment and is not stored."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.remote.server import KEY_VARIABLE, Server
from core.errors import InvalidSetting

if TYPE_CHECKING:
    from core.engine_api import TextEngine
    from core.planning.hardware import Machine

# Options of models of this machine.
LOCAL = ("method", "bits", "kv_bits", "prefill_bits", "self_draft_bits", "gpus", "gpu_memory", "token_ids", "saved")


def connector(args: argparse.Namespace) -> "Callable[[], tuple[TextEngine, Machine]]":
    """A function that connects to --remote, to be called on the thread that will own the engine.

    Raises:
        InvalidSetting: immediately, for an invalid address or an option that the server decides.
    """
    for name in (*LOCAL, "device"):
        if getattr(args, name, None) not in (None, False, "auto"):
            option = f"--{name.replace('_', '-')}"
            raise InvalidSetting(f"{option} is for models of this machine.", hint="Leave it out with --remote.")
    from_environment = os.environ.pop(KEY_VARIABLE, None)  # so that no document parser inherits it
    key = args.remote_key if args.remote_key is not None else from_environment
    server = Server(args.remote, key)
    if server.is_open:
        print(
            f"Books, questions{' and the key' if key else ''} go to {server.name} unencrypted: whoever listens on "
            "the way can read them. Use https or a tunnel.",
            file=sys.stderr,
        )

    def connect() -> "tuple[TextEngine, Machine]":
        from app.remote.engine import RemoteEngine
        from core.planning.hardware import this_machine

        return RemoteEngine(server, args.model, args.context), this_machine()

    return connect
