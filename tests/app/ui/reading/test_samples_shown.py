"""Sample books on the page, with the time that the model takes to read them."""

import re
from dataclasses import replace

import pytest

from app.context.samples import load_samples, one_of_each
from app.runtime.events import Ready
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.reading.parts import samples
from app.ui.site import Site
from core.generation.reading_pace import work_of
from core.planning.choices import Choice
from core.planning.devices import NOMINAL_PROCESSOR
from core.planning.measured import Processor
from tests.app.fakes import FakeEngine
from tests.core.toys import tiny_engine

SAMPLES = one_of_each(load_samples())


def as_if(monkeypatch: pytest.MonkeyPatch, flops: float) -> None:
    """Compute so fast."""
    rates = replace(NOMINAL_PROCESSOR, products=Choice(flops, "as if"))
    monkeypatch.setattr(Processor, "rates", lambda self: rates)


def labels(worker: EngineWorker, context: int) -> list[str]:
    """What the buttons of the samples say under a model."""
    *_, ready = worker.states()
    assert isinstance(ready, Ready)
    worker.jobs.state = replace(ready, context=context)
    return re.findall(r"</b> ([^<]*)</button>", samples(Site(worker, SAMPLES), Session("x")))


def test_samples_tell_the_time_by_what_was_read_here_else_by_the_model_of_the_machine_else_none(
    worker: EngineWorker, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert labels(worker, 131_072) == ["PDF, 25 pages", "EPUB, 89 pages", "TXT, 313 pages"], "nothing is known"
    engine.info.target_dims, engine.info.limits = tiny_engine().info.target_dims, "Samples only"
    assert engine.info.target_dims is not None
    as_if(monkeypatch, 1e8)
    slow = labels(worker, 131_072)
    as_if(monkeypatch, 1e12)
    fast = labels(worker, 131_072)
    assert all(", read in " in one for one in slow + fast) and slow[2] != fast[2], "it is this machine's time"
    engine.info.pace.remaining(work_of(0), work_of(8192), work_of(8192), 20.0)
    measured = labels(worker, 131_072)
    assert measured[0] == "PDF, 25 pages, read in about 20 s" and measured[2] != fast[2]
    assert labels(worker, 16_384)[2] == "TXT, 313 pages", "no time of a book that does not fit"
