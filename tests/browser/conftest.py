"""The served pages that the tests of the app use."""

from tests.app.conftest import arguments as arguments
from tests.app.conftest import engine as engine
from tests.app.conftest import serve as serve
from tests.app.conftest import start_worker as start_worker
from tests.app.conftest import worker as worker
