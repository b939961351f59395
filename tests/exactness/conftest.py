"""One thread: several lose much where other work waits for the same cores."""

from tests.core.conftest import one_thread

__all__ = ["one_thread"]
