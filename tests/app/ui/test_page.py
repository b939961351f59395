"""The page as a reader uses it: files, questions, and what can go wrong; on a scripted engine and on real ones."""

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

from app.runtime.worker import EngineWorker
from app.ui.page import ACTS, PARTS, build_page
from app.ui.site import Site
from core.config import EngineConfig
from core.decoding.registry import FASTEST, METHODS
from core.engine import Engine
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, opened, write_book
from tests.app.ui.pages import PageOf

pytestmark = GRADIO_WARNINGS


def test_every_place_of_a_part_is_on_the_page_and_every_part_has_a_place_or_a_drawer(worker: EngineWorker) -> None:
    blocks = build_page(Site(worker)).blocks.values()
    html = "".join(str(getattr(block, "value", "")) for block in blocks)
    places = set(re.findall('data-part="([^"]*)"', html))
    scripts = "".join(file.read_text(encoding="utf-8") for file in Path("assets/static/js").glob("*.js"))
    drawn = set(re.findall(r'"([\w-]+[:.]?)"', scripts)) - places
    names = {part.name for part in PARTS}
    assert places - names <= {"setting:method", "setting:variant", "setting:thinking"}
    assert names <= places | drawn | {"setting:"}, names - places - drawn
    assert len(names) == len(PARTS), "no two have one name"
    assert {part.tab for part in PARTS} == {"", "library", "race", "inside", "system"}


def test_every_button_of_a_view_has_an_act(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    page = PageOf(worker, opened(worker, write_book(tmp_path, "The book a. " * 40)))
    more = [write_book(tmp_path, text, name) for text, name in (("The book b. " * 40, "b.txt"), ("", "c.txt"))]
    list(worker.open_books(page.session.id, more))
    engine.enqueue("It says “The book a. The book a.” and more.")
    page.asks("What?", max_new_tokens=9)
    page.does(f"edit:{page.ids[0]}"), page.does(f"page:{page.key}:1")
    html = "".join(str(page.state(tab)) for tab in ("read", "library", "race", "inside", "system"))
    html += "".join(str(getattr(block, "value", "")) for block in build_page(page.site).blocks.values())
    verbs = {verb for table in ACTS for verb in table}
    used = {act.partition(":")[0] for act in re.findall(r'data-act(?:-change)?="([^"]+)"', html)}
    used |= set(re.findall(r'data-submit="([^"]+)"', html))
    assert len(used) >= 19 and used <= verbs, used - verbs


def test_a_real_engine_answers_on_the_page(start_worker: Callable[..., EngineWorker], tmp_path: Path) -> None:
    worker = start_worker(Engine.load(EngineConfig(context=2048)))
    page = PageOf(worker, opened(worker, write_book(tmp_path)))
    for method in ("autoregressive", FASTEST):
        page.asks("How was the night?", method=method, max_new_tokens=16)
        strip = page.state()["strip"]
        assert METHODS[method].label in strip and "exact" in strip and ">0<" in strip and page.texts[-1].strip()
    assert len(page.texts) == 4


def test_the_page_is_served_while_the_model_loads(serve: Callable[[EngineWorker], str]) -> None:
    worker = EngineWorker(lambda: (_ for _ in ()).throw(AssertionError("not started")))  # type: ignore[arg-type]
    with urllib.request.urlopen(serve(worker)) as response:
        html, headers = response.read().decode(), response.headers
    assert "Loading the model" in html and "--paper" in html and headers["Referrer-Policy"] == "no-referrer"
