"""A device that computes later than the program says: streams are queues, done in any order that events allow.

The program runs on the processor under a dispatch mode. Operations on tensors of the device are put into the queue of
the computing stream, with outputs that hold poison until a schedule lets them happen; copies go into the queue of their
stream. A host read of a device tensor empties the computing stream first, exactly as CUDA would wait, and counts.
Host memory is read and written at once, so what has not arrived there is poison. An operation with tensors of both
sides is an error, as it is on CUDA.

Tensors of the device are told from others by where they come from: made with `device=DEVICE`, or made outside. New
memory may be what the computing stream still writes to for its last owner, so it does. Memory that the program forgets
goes to the next owner at once, so a side stream that still has to use it is a fault, unless it shares the memory.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from core.ops import host_attention, streams

DEVICE = torch.device("cpu", 0)  # a processor to torch; the index tells it from the host in an operation's arguments
ATEN = torch.ops.aten
READS = {ATEN._local_scalar_dense.default, ATEN.nonzero.default, ATEN.equal.default, ATEN.bincount.default}
FACTORIES = {ATEN.empty.memory_format, ATEN.zeros.default, ATEN.ones.default, ATEN.full.default}
FACTORIES |= {ATEN.arange.default, ATEN.arange.start, ATEN.arange.start_step, ATEN.scalar_tensor.default}

_HOLE = object()  # stands where a tensor was
ROOMS = {ATEN.new_empty.default, ATEN.empty_like.default}  # what makes room without writing to it
REAL_DEVICE = torch._C.TensorBase.device  # the attribute, before it is simulated
REAL_TOLIST = torch.Tensor.tolist
_ROOMS: dict[Any, Any] = {}  # what operations give, by what they are given: shapes and types


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def poison(tensor: Tensor) -> None:
    """NaN, or numbers that no index may have."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max // 2 - 12345)


@dataclass(eq=False)
class Work:
    """One thing that a stream was given."""

    name: str
    do: Callable[[], object] = lambda: None
    needs: "Work | None" = None  # of another stream
    uses: tuple[int, ...] = ()  # storages
    stream: "SimulatedStream | None" = None
    number: int = 0  # in its stream
    done: bool = False


class SimulatedEvent:
    """Marks a piece of work."""

    def __init__(self, device: "SimulatedDevice") -> None:
        self._device = device
        self.marked: Work | None = None

    def record(self, stream: "SimulatedStream") -> None:
        with self._device.lock:
            self.marked = self._device.give(stream, Work("record"))

    def synchronize(self) -> None:
        with self._device.lock:
            if self.marked is not None and not self.marked.done:
                self._device.finish(self.marked)


@dataclass(eq=False)
class SimulatedStream:
    """A queue."""

    device: "SimulatedDevice"
    name: str
    queue: deque[Work] = field(default_factory=deque)
    given: int = 0  # pieces of work so far
    awaited: int = 0  # of those, how many the computing stream waits for before it goes on

    def wait_event(self, event: SimulatedEvent) -> None:
        with self.device.lock:
            marked = event.marked
            if marked is None or marked.done:
                return
            if self is self.device.computing and marked.stream is not None:
                marked.stream.awaited = max(marked.stream.awaited, marked.number)
            self.device.give(self, Work("wait", needs=marked))


class SimulatedDevice(TorchDispatchMode):
    """Streams, memory and a dispatch mode; implements `core.ops.streams.Streams`.

    Args:
        schedule: at each new piece of work the next number n, in a circle, tells what may happen: stream n % 4 (of
            those there are; else the host's thread) does up to n // 4 pieces. Empty: nothing happens before it must.
        eager: streams by name that do what they can at once; the computing one also makes others do what it waits for.
        refused: why host memory is not pinned; "" to pin it.
        measured: whether `peak_bytes` is kept up to date, which takes time.
    """

    asynchronous = True

    def __init__(
        self, schedule: Sequence[int] = (), *, eager: Iterable[str] = (), refused: str = "", measured: bool = False
    ) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self._schedule, self._step, self._refused, self._eager = schedule, 0, refused, set(eager)
        self.computing = SimulatedStream(self, "computing")
        self.streams = [self.computing]
        self.waits: Counter[str] = Counter()  # of the host for the computing stream, by reason
        self.faults: list[str] = []
        self._of_host: dict[int, StorageWeakRef] = {}  # memory of the host, by storage
        self._pinned: set[int] = set()
        self._cached: set[int] = set()  # pinned memory of torch's own, which it keeps until copies have used it
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}  # memory of the device, and its bytes
        self._held: Counter[int] = Counter()  # references that work to do has, by storage
        self._beside: dict[Work, None] = {}  # what side streams have to do with memory, in order
        self._host_reads: dict[Work, tuple[int, int]] = {}  # host memory that work to do reads: its addresses
        self._shared: set[int] = set()
        self._deferred: deque[Callable[[], None]] = deque()  # what the host's thread was asked for
        self._measured, self.peak_bytes = measured, 0
        self._busy = self._in_passing = False

    # -------------------- streams

    def current(self) -> SimulatedStream:
        return self.computing

    def stream(self) -> SimulatedStream:
        self.streams.append(SimulatedStream(self, f"side {len(self.streams)}"))
        return self.streams[-1]

    def event(self) -> SimulatedEvent:
        return SimulatedEvent(self)

    def copy(self, into: Tensor, source: Tensor, stream: SimulatedStream) -> None:
        with self.lock, _disable_current_modes():
            to_host, from_host = self.is_host(into), self.is_host(source)
            there = (into if to_host else source).untyped_storage()._cdata
            if (to_host or from_host) and there not in self._pinned | self._cached:
                self._copy_pageable(into, source, stream, to_host=to_host)
                return
            if to_host and not any(_overlap(_span(into), read) for read in self._host_reads.values()):
                poison(into)  # copies from there that were given before would see it
            work = self._enqueue(stream, "copy", (into, source), lambda a, b: a.copy_(b))
            if from_host and not work.done:
                self._host_reads[work] = _span(source)

    def _copy_pageable(self, into: Tensor, source: Tensor, stream: SimulatedStream, *, to_host: bool) -> None:
        if stream.queue:
            self.finish(stream.queue[-1])
        if to_host:
            into.copy_(source)
        else:  # through the driver's own buffer: the source may change at once, the device gets it later
            taken = source.clone()
            self._enqueue(stream, "copy", (into,), lambda a: a.copy_(taken))

    def share(self, memory: Tensor, stream: SimulatedStream) -> None:
        self._shared.add(memory.untyped_storage()._cdata)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        with _disable_current_modes():
            rows = torch.empty(size, dtype=dtype)
        self.pin(rows)
        self._pinned.discard(rows.untyped_storage()._cdata)
        self._cached.add(rows.untyped_storage()._cdata)
        return rows

    def pin(self, rows: Tensor) -> str:
        with _disable_current_modes():
            self._mark_host(rows)
            poison(rows)
        if not self._refused:
            self._pinned.add(rows.untyped_storage()._cdata)
        return self._refused

    def unpin(self, rows: Tensor) -> None:
        self.synchronize()
        self._pinned.discard(rows.untyped_storage()._cdata)

    def synchronize(self) -> None:
        """Everything happens."""
        with self.lock:
            for stream in self.streams:
                if stream.queue:
                    self.finish(stream.queue[-1])

    # -------------------- work

    def give(self, stream: SimulatedStream, work: Work) -> Work:
        """Put work into a stream's queue, and let happen what the schedule wants."""
        stream.given += 1
        work.stream, work.number = stream, stream.given
        stream.queue.append(work)
        if work.uses and stream is not self.computing:
            self._beside[work] = None
        if not self._busy:
            self._busy = True
            try:
                self._let_happen()
            finally:
                self._busy = False
        return work

    def _let_happen(self) -> None:
        if self._schedule:
            number = self._schedule[self._step % len(self._schedule)]
            self._step += 1
            if number % 4 < len(self.streams):
                self._do(self.streams[number % 4], number // 4)
            elif self._deferred:
                self._deferred.popleft()()
        for stream in self.streams:
            if stream.name in self._eager:
                self._do(stream, len(stream.queue), forced=stream is self.computing)

    def _do(self, stream: SimulatedStream, most: int, *, forced: bool = False) -> None:
        for _ in range(most):
            if not stream.queue:
                return
            needs = stream.queue[0].needs
            if needs is not None and not needs.done:
                if not forced:
                    return
                self.finish(needs)
            self._do_first(stream)

    def _do_first(self, stream: SimulatedStream) -> None:
        work = stream.queue.popleft()
        with _disable_current_modes():
            work.do()
        work.do = lambda: None  # what it refers to is free
        for storage in work.uses:
            self._held[storage] -= 1
        self._beside.pop(work, None)
        self._host_reads.pop(work, None)
        work.done = True
        if not self._in_passing:
            self._in_passing = True
            for side in self.streams[1:]:
                if side.name in self._eager:
                    self._do(side, len(side.queue))
            self._in_passing = False

    def finish(self, work: Work) -> None:
        """Everything up to this piece happens."""
        while not work.done:
            assert work.stream is not None
            needs = work.stream.queue[0].needs
            if needs is not None and not needs.done:
                self.finish(needs)
            else:
                self._do_first(work.stream)

    def _enqueue(self, stream: SimulatedStream, name: str, tensors: Sequence[Tensor], do: Callable[..., Any]) -> Work:
        aliases = [tensor.detach() for tensor in tensors]
        uses = tuple(alias.untyped_storage()._cdata for alias in aliases)
        for alias, storage in zip(aliases, uses, strict=True):
            self._track(alias)
            self._held[storage] += 1
        self._look_for_freed()
        return self.give(stream, Work(name, lambda: do(*aliases), uses=uses))

    # -------------------- memory

    def _track(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known and not self.is_host(tensor):
            self._known[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    def _forgotten(self, storage: int) -> bool:
        """Whether only work to do refers to it, and the Python object that stands for it since `_track` asked."""
        return bool(torch._C._storage_Use_Count(storage) <= self._held[storage] + 1)

    def _look_for_freed(self) -> None:
        for work in self._beside:
            assert work.stream is not None
            if work.number <= work.stream.awaited:
                continue  # the next owner computes behind it
            for storage in work.uses:
                if storage in self._known and storage not in self._shared and self._forgotten(storage):
                    size_bytes = self._known[storage][1]
                    self.faults.append(f"{size_bytes} bytes were given back before {work.stream.name} had used them")
        for storage in self._pinned:
            if self._of_host[storage].expired():
                self.faults.append("pinned memory was given back and never unpinned")
            elif self._held[storage] > 0 and self._forgotten(storage):
                self.faults.append("pinned memory was given back before copies had used it")
        if self._measured:
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    @property
    def live_bytes(self) -> int:
        """Device memory that the program has, or that a stream which shares it still needs."""
        live, beside = 0, {storage for work in self._beside for storage in work.uses}
        for storage, (ref, size_bytes) in list(self._known.items()):
            if ref.expired():
                del self._known[storage]
                self._shared.discard(storage)
            elif not self._forgotten(storage) or (storage in beside and storage in self._shared):
                live += size_bytes
        return live

    def is_host(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._of_host

    def _mark_host(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._of_host.setdefault(storage._cdata, StorageWeakRef(storage))  # the reference keeps the number from reuse
        return tensor

    def to_host(self, tensor: Tensor, why: str) -> Tensor:
        """A copy of a device tensor in host memory."""
        with self.lock, _disable_current_modes():
            if self.is_host(tensor):
                return tensor
            self._wait(why)
            return self._mark_host(tensor.clone())

    def _wait(self, why: str) -> None:
        """The host waits for all that was given to the computing stream."""
        self.waits[why] += 1
        if self.computing.queue:
            self.finish(self.computing.queue[-1])

    # -------------------- the host's thread

    def submit(self, call: Callable[..., Any], *args: Any) -> "Deferred":
        """Stands in for the executor of host attention: the call happens when the schedule, or who waits, wants it."""
        future = Deferred(call, args)
        self._deferred.append(future.happen)
        return future

    # -------------------- operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self.lock:
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is ATEN.lift_fresh.default:  # a literal of the program
            return self._on_host(func, args, kwargs)
        if func in FACTORIES:
            return self._made(func, args, kwargs)
        if func is ATEN._to_copy.default:
            return self._moved(args[0], kwargs)
        tensors = _tensors((args, kwargs))
        hosts = [tensor for tensor in tensors if self.is_host(tensor)]
        if func is ATEN.copy_.default and len(hosts) == 1 and args[1].dim():  # between both sides, blocking
            self._wait("copy_")
            return func(*args, **kwargs)
        if len(hosts) == len(tensors):
            return self._on_host(func, args, kwargs)
        assert not any(tensor.dim() for tensor in hosts), f"{func} of tensors on the host and on the device"
        if func.is_view:
            return func(*args, **kwargs)
        if self._reads(func, args):
            self._wait(func.__name__)
            if func._schema.is_mutable:
                return func(*args, **kwargs)
            result = func(*args, **kwargs)
            for tensor in _tensors(result):
                self._track(tensor)
            return result
        return self._later(func, args, kwargs)

    @staticmethod
    def _reads(func: Any, args: Any) -> bool:
        if func in (ATEN.index.Tensor, ATEN.index_put_.default, ATEN._index_put_impl_.default):
            return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        return func in READS

    def _on_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            self._mark_host(tensor)
        return result

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("device") != DEVICE:
            return self._on_host(func, args, kwargs)
        made = self._room(func(*args, **{**kwargs, "device": torch.device("meta")}))
        if func is not ATEN.empty.memory_format:
            self._enqueue(self.computing, func.__name__, [made], lambda a: a.copy_(func(*args, **kwargs)))
        return made

    def _moved(self, source: Tensor, kwargs: dict[str, Any]) -> Tensor:
        device, from_host = kwargs.get("device"), self.is_host(source)
        plain = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking")}
        if from_host if device is None else device != DEVICE:
            if not from_host:
                self._wait("to host")
            return self._mark_host(ATEN._to_copy.default(source, **plain))
        if from_host:  # from pageable memory: what was given before is done first
            self._wait("to device")
            made: Tensor = ATEN._to_copy.default(source, **plain)
            self._track(made)
            return made
        return self._later(ATEN._to_copy.default, (source,), plain)

    def _later(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Put an operation into the computing stream's queue; what it gives holds poison until it has happened."""
        inputs = _tensors((args, kwargs))
        nest = tree_map(lambda leaf: _HOLE if isinstance(leaf, Tensor) else leaf, (args, kwargs))

        def call(aliases: Sequence[Tensor]) -> list[Tensor]:
            remaining = iter(aliases)
            own, named = tree_map(lambda leaf: next(remaining) if leaf is _HOLE else leaf, nest)
            return _tensors(func(*own, **named))

        if func._schema.is_mutable:
            self._enqueue(self.computing, func.__name__, inputs, lambda *aliases: call(aliases))
            return kwargs["out"] if "out" in kwargs else args[0]
        key = func, repr(nest), tuple((x.shape, x.stride(), x.dtype) for x in inputs)
        if key not in _ROOMS:
            own, named = tree_map(_meta, (args, kwargs))
            _ROOMS[key] = func(*own, **named)
        outputs = tree_map(self._room, _ROOMS[key])
        made, count = _tensors(outputs), len(inputs)

        def fill(*aliases: Tensor) -> None:
            for room, found in zip(aliases[count:], call(aliases[:count]), strict=True):
                room.copy_(found)

        if func not in ROOMS:
            self._enqueue(self.computing, func.__name__, [*inputs, *made], fill)
        return outputs

    def _room(self, like: Any) -> Any:
        """New memory: poison now, and once more when the computing stream ends what it did there for somebody else."""
        if not isinstance(like, Tensor):
            return like
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        poison(made)
        self._enqueue(self.computing, "last owner", [made], poison)
        return made


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def _span(tensor: Tensor) -> tuple[int, int]:
    """Addresses of a contiguous tensor: from, to."""
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


class Deferred:
    """A result that is worked out when somebody asks for it, or the schedule wants it."""

    def __init__(self, call: Callable[..., Any], args: Sequence[Any]) -> None:
        self._call, self._args, self._future = call, args, Future[Any]()

    def happen(self) -> None:
        if self._future.done():
            return
        with _disable_current_modes():
            try:
                self._future.set_result(self._call(*self._args))
            except Exception as error:
                self._future.set_exception(error)

    def result(self) -> Any:
        self.happen()
        return self._future.result()


def _all_done(futures: Sequence[Deferred]) -> None:
    for future in futures:
        future.happen()


@contextmanager
def simulated(device: SimulatedDevice) -> Iterator[SimulatedDevice]:
    """Inside, core works with this device; at the end all its work is done, and there must have been no fault."""

    def place(tensor: Tensor) -> torch.device:
        found: torch.device = REAL_DEVICE.__get__(tensor)
        return DEVICE if found.type == "cpu" and not device.is_host(tensor) else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "of", lambda _: device)
        patch.setattr(host_attention, "ThreadPoolExecutor", lambda *_, **__: device)
        patch.setattr(host_attention, "wait", _all_done)
        patch.setattr(torch.Tensor, "device", property(place), raising=False)
        patch.setattr(torch.Tensor, "cpu", lambda tensor: device.to_host(tensor, "cpu"))
        patch.setattr(torch.Tensor, "tolist", lambda tensor: REAL_TOLIST(device.to_host(tensor, "tolist")))
        with device:
            yield device
        device.synchronize()
    assert not device.faults, device.faults[0]
