"""The acts on models: on the list of the tab System, and on the card that offers one. All raise CoreError."""

from app.runtime.sessions import Session
from app.ui.acts import Act, UnknownAct, Values
from app.ui.models import offer
from app.ui.models.rows import ModelSource
from app.ui.site import Site


def _source(site: Site) -> ModelSource:
    if site.source is None or site.source.unavailable:
        raise UnknownAct
    return site.source


def get(site: Site, session: Session, name: str, _values: Values) -> None:
    """Download a model."""
    _source(site)
    session.brought = ""
    site.downloads.start(name)


def use(site: Site, session: Session, name: str, _values: Values) -> None:
    """Load a model in place of the present one."""
    _source(site)
    session.brought = ""
    offer.use(site, name)
    site.downloads.dismiss()


def bring(site: Site, session: Session, typed: str, _values: Values) -> None:
    """Add a model by its path, if it can be used."""
    folders = _source(site).folders
    if folders is None:
        raise UnknownAct
    session.brought = folders.bring(typed).shown


def forget(site: Site, session: Session, name: str, _values: Values) -> None:
    """Take a brought model off the list."""
    folders = _source(site).folders
    if folders is not None:
        folders.forget(name)


def dismiss(site: Site, session: Session, _detail: str, _values: Values) -> None:
    """The reader has seen how the last act ended."""
    session.brought = ""
    site.downloads.dismiss()
    site.worker.jobs.forget_refusal()


ACTS: dict[str, Act] = {
    "model-get": get,
    "model-use": use,
    "model-forget": forget,
    "model-stop": lambda site, *_: site.downloads.stop(),
    "model-halt": lambda site, *_: site.worker.jobs.stop_loading.set(),
    "model-dismiss": dismiss,
    "bring": bring,
    "offer-get": lambda site, session, name, _: offer.get(site, session, name),
}
