"""Several processes may share these tests: each takes its part."""

import os

import pytest

PART = "GPU_SUITE_PART"  # "1/4": the second of four


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep this process's part of the tests, every fourth for example."""
    part, parts = map(int, os.environ.get(PART, "0/1").split("/"))
    items[:] = items[part::parts]
