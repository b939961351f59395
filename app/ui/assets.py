"""The page's style sheets and scripts."""

from core.models.hub import catalog

ASSETS = catalog.ROOT / "assets"
STATIC = ASSETS / "static"
STYLES = ["theme", "controls", "page", "chat", "reading", "library", "inside", "race", "presenter", "system", "access"]
CSS = tuple(STATIC / "css" / f"{name}.css" for name in STYLES)
VENDORED = tuple(STATIC / "vendor" / name for name in ("idiomorph.min.js", "markdown-it.min.js", "katex.min.js"))
SCRIPTS = tuple(sorted((STATIC / "js").glob("*.js")))  # modules: each names those that it needs
SERVED = {file.name: file for file in (*VENDORED, *SCRIPTS)}  # by the names under which the page asks for them
