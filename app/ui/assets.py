"""The page's style sheets and scripts."""

from core.models.hub import catalog

ASSETS = catalog.ROOT / "assets"


STYLES = (
    *("theme", "page", "race", "presenter", "inside", "library", "find", "system", "models", "chat", "reading"),
    *("checklist", "access"),
)


CSS = tuple(ASSETS / "static" / "css" / f"{name}.css" for name in STYLES)


SCRIPTS = tuple(
    ASSETS / "static" / "js" / f"{name}.js"
    for name in (
        *("page", "presenter", "clicks", "acts", "find", "chat"),
        *("folds", "folders", "drops", "checklist", "access"),
    )
)


FIRST_SCRIPT = ASSETS / "static" / "js" / "frames.js"
