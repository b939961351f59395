"""From the command line to a remote engine. The key comes from an option or the environment and is not stored."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.remote.client import Address
from core.errors import InvalidSetting

if TYPE_CHECKING:
    from core.engine_api import TextEngine
    from core.planning.hardware import Machine

KEY_VARIABLE = "TRIFORCE_REMOTE_KEY"


def connector(args: argparse.Namespace) -> "Callable[[], tuple[TextEngine, Machine]]":
    """A function that connects to --remote, to be called on the thread that will own the engine.

    Raises:
        InvalidSetting: immediately, for an invalid address or an option that the server decides.
    """
    address = Address.of(args.remote)
    if args.device != "auto":
        raise InvalidSetting("--device is for models of this machine.", hint="Leave it out with --remote.")
    if args.self_draft_bits is not None:
        raise InvalidSetting("--self-draft-bits is for models of this machine.", hint="Leave it out with --remote.")
    from_environment = os.environ.pop(KEY_VARIABLE, None)  # so that no document parser inherits it
    key = args.remote_key if args.remote_key is not None else from_environment
    if address.is_open:
        print(
            f"Books, questions{' and the key' if key else ''} go to {address.short} unencrypted: whoever listens on "
            "the way can read them. Use https or a tunnel.",
            file=sys.stderr,
        )

    def connect() -> "tuple[TextEngine, Machine]":
        from app.remote.engine import RemoteEngine
        from core.planning.hardware import this_machine

        engine = RemoteEngine.connect(address.base, key=key or None, model=args.model, context=args.context)
        return engine, this_machine()

    return connect
