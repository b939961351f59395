"""Who may touch memory when: a search for races between streams and the host, for programs on a pretended GPU.

Every stream, the host and a thread of it is an agent with a vector clock (Lamport; Mattern, 1988): what it knows of the
newest work of each other one. Launching, events and waits hand that knowledge on. Every number in memory of the device,
and in pinned memory of the host, remembers when each agent last read and last wrote it. An access that conflicts with
one that its agent does not know of is a fault: some order of work that the events allow would give another result. So
one run speaks for all orders.
"""

import weakref
from concurrent.futures import Future
from typing import Any

import numpy as np
from torch import Tensor, UntypedStorage

AGENTS = 10
READ, WROTE = 0, 1
HOST, BESIDE = "the host", "the host's thread"


class Order:
    """Clocks, and what is known of memory."""

    def __init__(self) -> None:
        self._names: list[object] = []
        self._clocks = np.zeros((AGENTS, AGENTS), np.int32)  # what each knows of each
        self._seen: dict[int, Any] = {}  # by storage: when each agent read and wrote each byte, [2, AGENTS, bytes]
        self._owners: dict[int, object] = {}  # of memory on the device: the streams that it was made in
        self._shared: set[tuple[int, int]] = set()  # storages that wait for a stream before another owner has them
        self.host = HOST  # the agent that Python's code is now
        self.faults: list[str] = []

    def number(self, agent: object) -> int:
        """Of an agent, the same whenever it is asked for."""
        if agent not in self._names:
            self._names.append(agent)
        return self._names.index(agent)

    # -------------------- who knows what

    def now(self, agent: object) -> Any:
        """What an agent knows, to be handed on."""
        return self._clocks[self.number(agent)].copy()

    def learn(self, agent: object, known: Any) -> None:
        """An agent has waited for whoever knew this."""
        np.maximum(self._clocks[self.number(agent)], known, out=self._clocks[self.number(agent)])

    def launched(self, agent: object) -> Any:
        """What an agent knows when the host gives it work."""
        if agent != self.host:
            self.learn(agent, self.now(self.host))
        return self.now(agent)

    def wait_for_all(self) -> None:
        """The host waits for all others."""
        self.learn(self.host, self._clocks.max(0))

    # -------------------- memory

    def touch(self, agent: object, tensor: Tensor, *, writes: bool) -> None:
        """An agent reads a tensor, or writes it, after all that it knows of."""
        number = self.number(agent)
        self.launched(agent)
        self._clocks[number, number] += 1
        seen, known = self._numbers(tensor), self._clocks[number].reshape(AGENTS, *[1] * tensor.dim())
        for before in (READ, WROTE) if writes else (WROTE,):
            for other in np.argwhere((seen[before] > known).any(axis=tuple(range(1, seen.ndim - 1)))).flatten():
                done, does = ("reads", "writes")[before], ("reads", "writes")[writes]
                self.faults.append(f"{agent} {does} what {self._names[other]} {done}, and does not wait for it")
        seen[WROTE if writes else READ, number] = self._clocks[number, number]

    def made(self, owner: object, tensor: Tensor) -> None:
        """New memory, which the last owner in the same stream may still write to."""
        self._owners[tensor.untyped_storage()._cdata] = owner
        self.touch(owner, tensor, writes=True)

    def share(self, tensor: Tensor, agent: object) -> None:
        """Memory is given to another owner only after what an agent does with it."""
        self._shared.add((tensor.untyped_storage()._cdata, self.number(agent)))

    def freed(self, key: int) -> None:
        """Memory goes to the next owner, in the stream of the last one."""
        owner = self._owners.pop(key, self.host)
        seen, known = self._seen.pop(key, None), np.maximum(self.now(owner), self.now(self.host))
        for other in range(len(self._names) if seen is not None else 0):
            if seen[:, other].max(initial=0) > known[other] and (key, other) not in self._shared:
                self.faults.append(f"memory was given back before {self._names[other]} had used it")
        self._shared -= {(key, other) for other in range(AGENTS)}

    def forget(self, key: int) -> None:
        """Memory goes to somebody who waits for all that was done with it."""
        self._seen.pop(key, None)

    def _numbers(self, tensor: Tensor) -> Any:
        storage, size = tensor.untyped_storage(), tensor.element_size()
        if storage._cdata not in self._seen:
            self._seen[storage._cdata] = np.zeros((2, AGENTS, storage.nbytes()), np.int32)
        found = self._seen[storage._cdata][..., tensor.storage_offset() * size :]
        strides = [found.itemsize * size * stride for stride in tensor.stride()]
        shape = (2, AGENTS, *tensor.shape) if found.size else (2, AGENTS, *[0] * tensor.dim())
        return np.lib.stride_tricks.as_strided(found, shape, (*found.strides[:2], *strides))

    def follow(self, storage: UntypedStorage, gone: Any) -> None:
        """Call `gone` with a storage's key when it goes; once."""
        if storage._cdata not in self._seen:
            weakref.finalize(storage, gone, storage._cdata).atexit = False


class Thread:
    """Stands in for an executor of one thread: work is done at once, by an agent that knows what its caller knew."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def submit(self, call: Any, *args: Any) -> "Answered":
        order, future = self._order, Answered()
        order.learn(BESIDE, order.now(HOST))
        order.host = BESIDE
        try:
            future.set_result(call(*args))
        except Exception as error:
            future.set_exception(error)
        finally:
            order.host = HOST
        future.order = order
        return future


class Answered(Future[Any]):
    """Whoever asks for the result has waited for the thread."""

    order: Order

    def result(self, timeout: float | None = None) -> Any:
        self.order.learn(HOST, self.order.now(BESIDE))
        return super().result(timeout)
