"""An engine and the saved books: writes what was read to disk, and loads it back so that it is not read twice.

Rows come back exactly as they were computed. A saved book that is the beginning of a text is loaded whole; if only the
end of a text has changed, rows are loaded up to where a prefill pass began, so that the rest is read in the usual
chunks. Knows neither command line nor page; runs on one thread, the engine's.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import cast

import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.query_log import QUERY_LOG, QUERY_SAMPLE_STRIDE
from core.engine import Engine
from core.engine_api import TextEngine
from core.errors import InvalidSetting
from core.generation.decode_loop import LONGEST_ROUND
from core.kv_store.bookfile import TOKENS, BookReader, BookWriter, Label, Part
from core.kv_store.folder import DIGESTS, BookFolder, Found, SavedBook, book_id
from core.kv_store.identity import Family, family_of
from core.ops.graphs import MOST_ROWS

LEAST_TOKENS = 64  # fewer are read as fast as a file is opened
LOOK_SECONDS = 0.1  # between two looks whether the weights have been read
WORTH_SECONDS = 5.0  # a shorter reading is not worth a file, nor a question whether to save it


@dataclass(frozen=True, slots=True)
class Moving:
    """Rows are being copied from or to the disk."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The number of leading tokens of a text that came from the saved books."""

    book: SavedBook
    num_tokens: int
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class Kept:
    """The book is on disk."""

    id: str
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ReadBook:
    """What was read and can be saved as long as the engine holds it, whatever was asked since."""

    token_ids: tuple[int, ...]
    names: tuple[str, ...]
    read_seconds: float
    queries: list[Tensor]  # per layer, the newest queries at the end of reading: [H, QUERY_LOG, D] on the host
    size_bytes: int  # on disk

    @property
    def tokens(self) -> Tensor:
        """The token ids, [n] int32."""
        return torch.tensor(self.token_ids, dtype=torch.int32)


def refusal(engine: TextEngine) -> InvalidSetting | None:
    """Why the texts of an engine cannot be kept; None: the rows of all tokens in all layers are in this process."""
    if engine.info.num_ranks != 1 or not isinstance(engine, Engine):
        return InvalidSetting(
            "Books are kept only where one process of this machine holds the whole model.",
            hint="Leave out --saved, or --gpus.",
        )
    shape = engine.full_cache.shape
    if shape.reaches or shape.recurrent:
        return InvalidSetting(
            "Books of models with windowed or recurrent layers are not kept: their rows are not all there.",
            hint="Leave out --saved.",
        )
    return None


class BookStore:
    """Saves and loads the books of one engine in one folder."""

    def __init__(self, engine: TextEngine, folder: BookFolder) -> None:
        """Raises InvalidSetting: see `refusal`."""
        if (error := refusal(engine)) is not None:
            raise error
        self.engine = cast(Engine, engine)
        self.folder = folder

    @cached_property
    def family(self) -> Family:
        """The engine's family; the first call lets the weights of a model that is new to the folder be read aside."""
        return family_of(self.engine, self.folder.path / DIGESTS)

    def knows_family(self) -> bool:
        """Whether the weights have been read."""
        return self.family.weights.done()

    # -------------------- from the saved books

    def fetch(
        self, prompt_ids: Sequence[int], cancel: threading.Event | None = None, *, waits: bool = True, room: int = 0
    ) -> Iterator[Moving | Fetched]:
        """Load the saved part of a prompt into the engine, if it is more than the engine holds; `read` then continues.

        Yields Moving*, Fetched; nothing if there is no such book. A damaged book is removed; its intact beginning
        counts.

        Args:
            waits: for the weights of a model that is new to the folder to be read; else nothing is loaded until then.
            room: see `Engine.refilled`.
        """
        engine, total = self.engine, len(prompt_ids) - 1
        held = engine.cached_prefix(prompt_ids)
        if total - held < LEAST_TOKENS or len(prompt_ids) + LONGEST_ROUND > engine.context:
            return
        if not self.folder.books() or not (self.knows_family() or waits):
            return
        started = perf_counter()
        found = self.folder.find(self.family.digest, list(prompt_ids[:total]))
        usable = self._usable(found, total) if found else 0
        if found is None or usable - held < LEAST_TOKENS:
            return
        with suppress(OSError), self.folder.opened(found.book.path) as reader:
            yield from self._fill(reader, prompt_ids[:usable], total, cancel, room)
        num_tokens = engine.cached_prefix(prompt_ids)
        if num_tokens:
            self.folder.touch(found.book)
            yield Fetched(found.book, num_tokens, perf_counter() - started)

    def _usable(self, found: Found, total: int) -> int:
        kept, shared = found.book.label.num_tokens, found.shared
        # the ring of queries covers only the end of the book, so it serves only for the book's last tokens
        if shared == kept or (shared == total and kept - total <= QUERY_LOG // 2):
            return shared
        return self._settled(shared, total)

    def _settled(self, length: int, total: int) -> int:
        """Rows to keep of `length` so that reading the rest also fills the ring of queries."""
        chunk = self.engine.plan.prefill_chunk
        return max(0, min(length, total - QUERY_LOG)) // chunk * chunk

    def _fill(
        self, reader: BookReader, token_ids: Sequence[int], total: int, cancel: threading.Event | None, room: int
    ) -> Iterator[Moving]:
        label, usable = reader.label, len(token_ids)
        layers, spans = range(self.engine.full_cache.shape.num_layers), spans_of(label.block_rows, label.num_tokens)
        spans = [span for span in spans if span.start < usable]
        names = [name for layer in layers for name in beside_names(layer)]
        names += [rows_name(span, layer) for span in spans for layer in layers]
        with (
            closing(cast("Generator[Tensor]", reader.read(names))) as contents,
            self.engine.refilled(token_ids, logged=label.num_tokens, room=room) as cache,
        ):
            try:
                for moving in fill(cache, usable, spans, contents):
                    yield moving
                    if cancel and cancel.is_set():
                        break
            finally:
                if cache.length < usable:
                    cache.truncate(self._settled(cache.length, total))

    # -------------------- to the saved books

    def has_queries(self, token_ids: Sequence[int]) -> bool:
        """Whether the newest queries of this text, which the engine holds, are there: a saved book has them.

        The last pass may have announced more rows than it had, up to `MOST_ROWS`; no choice looks back so far.
        """
        return self.engine.full_cache.queries_start() <= max(0, len(token_ids) - QUERY_LOG + MOST_ROWS)

    def read_book(self, token_ids: Sequence[int], names: Sequence[str], read_seconds: float) -> ReadBook:
        """What can be saved of the engine's present contents: exactly these tokens, just read."""
        cache = self.engine.full_cache
        assert cache.length == len(token_ids), f"{cache.length} tokens are held, {len(token_ids)} are to be kept"
        queries = [cache.beside(layer, 0)[0].to("cpu", copy=True) for layer in range(cache.shape.num_layers)]
        return ReadBook(tuple(token_ids), tuple(names), read_seconds, queries, self.size_bytes(len(token_ids)))

    def size_bytes(self, num_tokens: int) -> int:
        """Size on disk of so many tokens, without the header."""
        return sum(part.size for part in self._parts(num_tokens).values())

    def _parts(self, num_tokens: int) -> dict[str, Part]:
        """The tensors of a book of so many tokens, in the order of the file."""
        shape = self.engine.full_cache.shape
        parts = {TOKENS: Part(torch.int32, (num_tokens,))}
        beside = (
            Part(shape.dtype, (shape.num_heads, QUERY_LOG, shape.head_dim)),
            Part(shape.dtype, (shape.num_heads, -(-num_tokens // QUERY_SAMPLE_STRIDE), shape.head_dim)),
        )
        for layer in range(shape.num_layers):
            parts |= zip(beside_names(layer), beside, strict=True)
        for span in spans_of(self._block_rows, num_tokens):
            rows = Part(shape.kv_dtype, (2, shape.num_kv_heads, len(span), shape.width))
            parts |= {rows_name(span, layer): rows for layer in range(shape.num_layers)}
        return parts

    @property
    def _block_rows(self) -> int:
        return self.engine.plan.prefill_chunk

    def is_saved(self, token_ids: Sequence[int]) -> bool:
        """Whether this text is among the saved books, or one that begins with it and ends a few tokens later."""
        known = bool(self.folder.books()) and self.knows_family()  # a model that is new to the folder has none
        found = self.folder.find(self.family.digest, list(token_ids)) if known else None
        if found is None:
            return False
        return found.shared == len(token_ids) and self._usable(found, len(token_ids)) == len(token_ids)

    def holds(self, book: ReadBook) -> bool:
        """Whether the engine still holds the rows to be saved."""
        return self.engine.cached_prefix(book.token_ids) == len(book.token_ids)

    def keep(self, book: ReadBook) -> Generator[Moving | Kept]:
        """Write a book; closing the generator early leaves no file. Yields Moving*, Kept.

        The engine may do other things between two events, as long as it `holds` the book.

        Raises:
            BookFolderFull: there is no room, or the disk fails.
        """
        cache, tokens = self.engine.full_cache, book.tokens
        self.folder.room_for(book.size_bytes)
        shape, total = cache.shape, len(tokens)
        while wait([self.family.weights], LOOK_SECONDS).not_done:
            yield Moving(0, total)
        label = Label(
            family=self.family.digest,
            identity=self.family.parts,
            names=book.names,
            model=self.engine.info.model,
            num_tokens=total,
            block_rows=self._block_rows,
            read_seconds=book.read_seconds,
        )
        with self.folder.writing(label.family, tokens) as file:
            writer = BookWriter(file, label, self._parts(total))
            writer.add(tokens)
            for layer in range(shape.num_layers):
                writer.add(book.queries[layer])
                writer.add(cache.samples_to_save(layer, total))
            for span in spans_of(label.block_rows, total):
                for layer in range(shape.num_layers):
                    writer.add(*cache.rows(layer, span.start, span.stop))
                yield Moving(span.stop, total)
            writer.finish()
        self._drop_beginnings(tokens)
        yield Kept(book_id(label.family, tokens), book.size_bytes)

    def _drop_beginnings(self, tokens: Tensor) -> None:
        """Remove saved books that are only the beginning of this one."""
        for book in self.folder.books():
            if book.label.family == self.family.digest and book.label.num_tokens < len(tokens):
                with suppress(OSError), self.folder.opened(book.path) as reader:
                    own = reader.tokens()
                    if torch.equal(own, tokens[: len(own)]):
                        self.folder.remove(book)


def fill(cache: FullCache, length: int, spans: Sequence[range], contents: Iterator[Tensor]) -> Generator[Moving]:
    """Fill an emptied cache with the first `length` tokens of a text, span by span.

    Args:
        contents: what lies beside each layer's rows, see `FullCache.beside`; then of each span the keys and values of
            each layer, [2, H_kv, n, D].
    """
    layers = range(cache.shape.num_layers)
    for layer in layers:
        for part in cache.beside(layer, length):
            part.copy_(next(contents)[:, : part.shape[1]])
    for span in spans:
        if (size := min(span.stop, length) - span.start) <= 0:
            return
        for layer in layers:
            k, v = next(contents)[:, None, :, :size].to(cache.shape.device)
            cache.stage(layer, k, v)
        cache.commit(size)
        yield Moving(cache.length, length)


def beside_names(layer: int) -> tuple[str, str]:
    """The tensors beside a layer's keys and values: newest and sampled queries, [H, N, D]."""
    return f"queries.{layer}", f"samples.{layer}"


def rows_name(span: range, layer: int) -> str:
    """The keys and values of a layer and a range of rows, [2, H_kv, rows, D]."""
    return f"rows.{span.start}.{layer}"


def spans_of(step: int, num_tokens: int) -> list[range]:
    """The ranges of rows that are a tensor of each layer."""
    return [range(start, min(start + step, num_tokens)) for start in range(0, num_tokens, step)]
