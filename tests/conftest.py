"""Shared by all tests: what a missing device or program makes impossible is skipped by name, never passed."""

import shutil

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests without a CUDA device and `browser` tests without Chromium."""
    missing = {
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
        "browser": None if shutil.which("chromium") else "no chromium on PATH",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
