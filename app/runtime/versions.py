"""Versions of Python and packages, from the installed metadata: nothing has to be imported."""

import platform
from importlib import metadata

ALWAYS = ("torch", "transformers", "gradio")
WHERE_THERE = ("flash-attn", "bitsandbytes")  # optional: faster attention, quantised weights


def versions() -> dict[str, str]:
    """Python and the important packages; optional ones only where they are installed."""
    found = {"python": platform.python_version()}
    for name in (*ALWAYS, *WHERE_THERE):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name in ALWAYS:
                found[name] = "missing"
    return found
