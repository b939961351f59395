"""What runs, by version. Asks the installed packages, so that nothing has to be imported to know."""

import platform
from importlib import metadata

ALWAYS = ("torch", "transformers", "gradio")
WHERE_THERE = ("flash-attn", "bitsandbytes")  # faster attention, quantised weights: optional


def versions() -> dict[str, str]:
    """Python and the packages that matter; optional ones only where they are installed."""
    found = {"python": platform.python_version()}
    for name in (*ALWAYS, *WHERE_THERE):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name in ALWAYS:
                found[name] = "missing"
    return found
