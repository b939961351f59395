"""As in tests/core: threads cost tiny models much where other work waits for the same cores."""

from tests.core.conftest import one_thread as one_thread
