"""Books that were kept: the engine goes on exactly as if it had read them, and whatever is damaged is read again."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from core.caches.full_parts import Offload
from core.config import SamplingParams
from core.engine import Engine
from core.errors import BookFolderFull
from core.generation.events import Finished
from core.kv_store import identity
from core.kv_store.bookfile import SUFFIX
from core.kv_store.engine_store import BookStore, Fetched, Kept, Moving, ReadBook
from core.kv_store.folder import BookFolder, BookFolderSettings
from core.kv_store.slots import Slots
from tests.core import toys
from tests.core.toys import random_prompt, tiny_engine

BOOK, QUESTION = random_prompt(900), random_prompt(14, 1)
ASKED = [*BOOK, *QUESTION]


def read(engine: Engine, prompt: list[int]) -> int:
    """Tokens that were really read."""
    *_, last = engine.read(prompt)
    return last.total_tokens - last.reused_tokens


def read_book(engine: Engine, folder: BookFolder, book: list[int] = BOOK) -> ReadBook:
    read(engine, [*book, 0])
    return BookStore(engine, folder).read_book(book, ["harbour.txt"], 7.0)


def keep(engine: Engine, folder: BookFolder, book: list[int] = BOOK) -> Kept:
    *_, kept = BookStore(engine, folder).keep(read_book(engine, folder, book))
    assert isinstance(kept, Kept)
    return kept


def fetch(engine: Engine, folder: BookFolder, prompt: list[int]) -> int:
    """Tokens that came from the saved books."""
    events = list(BookStore(engine, folder).fetch(prompt))
    return events[-1].num_tokens if events and isinstance(events[-1], Fetched) else 0


def answer(engine: Engine, method: str = "triforce", temperature: float = 0.0, book: list[int] = BOOK) -> Finished:
    sampling = SamplingParams(temperature=temperature)
    return toys.answer(engine, [*book, *QUESTION], method, 6, sampling=sampling, seed=5)


def hold_the_same(one: Engine, other: Engine, length: int) -> bool:
    """To the last bit: rows, what lies beside them, landmarks and queries."""
    held: list[list[torch.Tensor]] = []
    for cache in (one.full_cache, other.full_cache):
        assert cache.length == length
        held.append([])
        for layer in range(cache.shape.num_layers):
            held[-1] += [*cache.rows(layer, 0, length), *cache.beside(layer, length)]
            held[-1] += [cache.landmarks(layer, length // cache.chunk_size), cache.recent_queries(layer, 60)]
    return all(map(torch.equal, *held))


@pytest.fixture
def folder(tmp_path: Path) -> BookFolder:
    return BookFolder(tmp_path / "shelf")


@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"kv_heads": 2}, {"kv_bits": 16}, {"offload": Offload(num_resident=1, block_rows=64)}]
)
def test_a_text_that_comes_back_is_as_if_nothing_else_had_been_read(
    on_disk: bool, options: dict[str, Any], folder: BookFolder
) -> None:
    """From the saved books, or from the slot to which it went to make room for another one."""
    engine, alone, other = tiny_engine(**options), tiny_engine(**options), random_prompt(400, 9)
    slots = Slots(engine, lambda: 1 << 40)
    if on_disk:
        keep(engine, folder)
    else:
        read(engine, [*BOOK, 0])
        list(slots.bring(other))
    read(engine, other)
    list(BookStore(engine, folder).fetch(ASKED) if on_disk else slots.bring(ASKED))
    read(alone, [*BOOK, 0])
    assert engine.held_tokens == BOOK
    assert "offload" in options or hold_the_same(engine, alone, len(BOOK))
    lossy = [] if "offload" in options else [("h2o", 0.0)]
    for method, temperature in (("autoregressive", 0.0), ("triforce", 0.0), ("triforce", 1.0), *lossy):
        back, expected = (answer(one, method, temperature) for one in (engine, alone))
        assert back.token_ids == expected.token_ids
        assert back.stats.level2 == expected.stats.level2, "guesses depend on landmarks and queries: they came back too"
        assert back.prompt_tokens - back.reused_tokens <= len(QUESTION), "no token of the book was read again"


def test_rows_of_layers_in_host_memory_serve_resident_ones(folder: BookFolder) -> None:
    keep(tiny_engine(offload=Offload(num_resident=1, block_rows=64)), folder)
    engine = tiny_engine()
    assert fetch(engine, folder, ASKED) == len(BOOK)
    assert answer(engine).token_ids == answer(tiny_engine()).token_ids


def test_what_was_asked_meanwhile_does_not_change_what_is_kept(folder: BookFolder) -> None:
    first, second, reread = tiny_engine(), tiny_engine(), tiny_engine()
    store, book = BookStore(first, folder), read_book(first, folder)
    fresh = answer(first)
    assert store.holds(book)
    list(store.keep(book))
    fetch(second, folder, ASKED)
    read(reread, [*BOOK, 0])
    assert torch.equal(second.full_cache.recent_queries(1, 100), reread.full_cache.recent_queries(1, 100))
    assert answer(second).token_ids == fresh.token_ids
    read(first, random_prompt(50, 9))
    assert not store.holds(book), "another book was read: this one cannot be written any more"


@pytest.mark.parametrize(("changed_at", "end"), [(899, 900), (300, 900), (780, 781)])
def test_a_changed_tail_costs_only_the_tail_and_answers_are_those_of_a_fresh_reading(
    changed_at: int, end: int, folder: BookFolder
) -> None:
    changed = [*BOOK[:changed_at], BOOK[changed_at] ^ 1, *BOOK[changed_at + 1 : end], 7, 8, 9]
    keep(tiny_engine(), folder)
    opened, fresh = tiny_engine(), tiny_engine()
    reused = fetch(opened, folder, [*changed, 0])
    assert reused == min(changed_at, len(changed) - 128) // 256 * 256, "whole passes, and enough to see 128 queries"
    assert read(opened, [*changed, 0]) == len(changed) - reused
    read(fresh, [*changed, 0])
    assert torch.equal(opened.full_cache.recent_queries(1, 128), fresh.full_cache.recent_queries(1, 128))
    assert answer(opened, book=changed).token_ids == answer(fresh, book=changed).token_ids


def test_a_longer_text_goes_on_behind_the_kept_one_and_takes_its_place(folder: BookFolder) -> None:
    longer, engine = [*BOOK, *random_prompt(400, 3)], tiny_engine()
    keep(tiny_engine(), folder)
    assert fetch(engine, folder, [*longer, 0]) == len(BOOK)
    keep(engine, folder, longer)
    (book,) = folder.books()
    assert book.label.num_tokens == len(longer)
    store = BookStore(engine, folder)
    assert store.is_saved(longer) and store.is_saved(longer[:-1]) and not store.is_saved(longer[:-200])


def other_weight(engine: Engine) -> None:
    next(iter(engine._models.target.module.parameters())).data[0, 0] += 1e-3


def other_rope(engine: Engine) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    cast(Any, engine._models.target.module).config.rope_parameters = rope


def other_tokenizer(engine: Engine) -> None:
    engine.text.__class__ = type("Others", (type(engine.text),), {"identity": "other letters"})


@pytest.mark.parametrize("change", [other_weight, other_rope, other_tokenizer])
def test_books_of_other_weights_configurations_and_tokenizers_are_not_taken(
    change: Callable[[Engine], None], folder: BookFolder
) -> None:
    keep(tiny_engine(), folder)
    other = tiny_engine()
    change(other)
    assert fetch(other, folder, ASKED) == 0 and fetch(tiny_engine(), folder, ASKED) == len(BOOK)


def test_nothing_is_fetched_where_it_would_not_help(folder: BookFolder) -> None:
    keep(tiny_engine(), folder)
    engine = tiny_engine()
    assert fetch(engine, folder, random_prompt(900, 8)) == 0
    assert fetch(engine, folder, BOOK[:40]) == 0, "read sooner than opened"
    read(engine, [*BOOK, 0])
    assert fetch(engine, folder, ASKED) == 0, "it is there"
    assert fetch(tiny_engine(prefill_chunk=128), folder, ASKED) == 0, "read in other portions"
    assert fetch(tiny_engine(kv_bits=16), folder, ASKED) == 0, "rows of other bits"
    assert fetch(tiny_engine(context=512), folder, ASKED) == 0, "no room: reading says so"
    assert fetch(tiny_engine(context=512), folder, [*BOOK[:400], *QUESTION]) == 256, "a shorter text has room"


@pytest.mark.parametrize(("share", "whole"), [(0.03, 0), (0.97, 512)])
def test_a_flipped_bit_is_noticed_and_the_rest_is_read_again(share: float, whole: int, folder: BookFolder) -> None:
    """Of a book whose last pass is shorter than the queries that an answer looks back to."""
    book = BOOK[:850]
    kept = keep(tiny_engine(), folder, book)
    path = folder.path / f"{kept.id}{SUFFIX}"
    content = bytearray(path.read_bytes())
    content[int(kept.size_bytes * share)] ^= 4
    path.write_bytes(content)
    engine, fresh = tiny_engine(), tiny_engine()
    assert fetch(engine, folder, [*book, *QUESTION]) == whole
    assert not path.exists() and "damaged" in folder.notices[0]
    read(fresh, [*book, 0])
    assert read(engine, [*book, 0]) == len(book) - whole
    assert answer(engine, book=book).token_ids == answer(fresh, book=book).token_ids


def test_opening_stops_when_it_is_cancelled_and_what_came_counts(folder: BookFolder) -> None:
    keep(tiny_engine(), folder)
    engine, cancel, seen = tiny_engine(), threading.Event(), list[Moving | Fetched]()
    for event in BookStore(engine, folder).fetch(ASKED, cancel):
        seen.append(event)
        if isinstance(event, Moving) and event.done_tokens >= 512:
            cancel.set()
    assert isinstance(seen[-1], Fetched) and seen[-1].num_tokens == 512
    assert answer(engine).token_ids == answer(tiny_engine()).token_ids


def test_a_writing_that_is_given_up_or_is_beyond_the_cap_leaves_nothing_and_the_other_books_stay(
    folder: BookFolder,
) -> None:
    engine = tiny_engine()
    writing = BookStore(engine, folder).keep(read_book(engine, folder))
    next(writing)
    assert len(list(folder.path.glob("*.part"))) == 1 and folder.books() == []
    writing.close()
    assert list(folder.path.glob("*.part")) == [] and folder.books() == []
    keep(engine, folder)
    folder.choose(BookFolderSettings(cap_bytes=folder.books()[0].size_bytes + 1000))
    for length, left in ((1200, 900), (800, 800)):
        try:
            keep(engine, folder, random_prompt(length, 6))
        except BookFolderFull as error:
            assert length == 1200 and "all may take" in error.problem
        assert [book.label.num_tokens for book in folder.books()] == [left]


def test_weights_are_read_aside_and_nothing_waits_for_them_but_writing(
    folder: BookFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_files(name: str) -> Engine:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"the same weights")
        engine = tiny_engine()
        cast(Any, engine._models.target.module).name_or_path = str(tmp_path / name)
        return engine

    gate = threading.Event()
    monkeypatch.setattr(identity, "file_digest", lambda file: str(gate.wait(60) and file.read_bytes()))
    engine = from_files("here")
    book, store = read_book(engine, folder), BookStore(engine, folder)
    assert not store.is_saved(BOOK)
    writing = store.keep(book)
    assert next(writing) == Moving(0, len(BOOK)) and not store.knows_family()
    gate.set()
    assert isinstance(list(writing)[-1], Kept) and store.is_saved(BOOK)
    assert fetch(from_files("copied"), folder, ASKED) == len(BOOK)
    gate.clear()
    moved = from_files("moved")
    other = BookStore(moved, folder)
    assert list(other.fetch(ASKED, waits=False)) == [] and not other.is_saved(BOOK)
    gate.set()
    assert fetch(moved, folder, ASKED) == len(BOOK)
    monkeypatch.setattr(identity, "file_digest", lambda _: pytest.fail("it is known from the folder"))
    assert list(BookStore(engine, folder).fetch(ASKED, waits=False)) == [], "the engine holds it"
    assert BookStore(engine, folder).knows_family()
