"""The page's style sheets and scripts."""

from core.models.hub import catalog

ASSETS = catalog.ROOT / "assets"


STYLES = ("theme", "page", "race", "presenter", "inside", "library", "find", "system", "models", "chat")


CSS = tuple(ASSETS / "static" / "css" / f"{name}.css" for name in STYLES)


SCRIPTS = tuple(
    ASSETS / "static" / "js" / name
    for name in ("page.js", "presenter.js", "acts.js", "find.js", "chat.js", "folders.js")
)


FIRST_SCRIPT = ASSETS / "static" / "js" / "frames.js"
