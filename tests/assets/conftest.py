"""Tiny models on shared cores: threads cost them much, and how fast a link is matters to no text."""

from tests.core.conftest import one_thread as one_thread
from tests.core.conftest import short_calibration as short_calibration
