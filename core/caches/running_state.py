"""The running states of a model's recurrent layers (linear attention, state spaces, short convolutions).

A state cannot go back, so the states before and after the newest pass are kept with its inputs, from which
`core.models.recurrent` replays the first n tokens. States are never changed in place. Going further needs a mark.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Marks(dict[int, T]):
    """What is kept, by length, oldest first: of the newest lengths, and of the shortest (a book's end)."""

    def keep(self, length: int, kept: T, most: int) -> None:
        """Keep something of this length, and of at most so many lengths."""
        self.pop(length, None)
        self[length] = kept
        if len(self) > most:
            del self[next(mark for mark in self if mark != min(self))]

    def truncate(self, length: int) -> None:
        """Forget what was kept of longer texts."""
        for mark in [mark for mark in self if mark > length]:
            del self[mark]  # it belongs to forgotten tokens

    def before(self, length: int) -> int:
        """The longest of the lengths up to this one; 0: there is none."""
        return max((mark for mark in self if mark <= length), default=0)


MOST_INPUTS = 64  # tokens of a pass whose inputs are kept; a longer pass can only be forgotten whole
MOST_STATE_MARKS = 4  # lengths whose states are kept in host memory: the book's end and the newest prompts'
LIKELY_QUESTION = 512  # tokens at a prompt's end that may be a question about the book before them
STATE_COPIES = 5  # at most on the device: before and after a pass, in two caches, and one that is being computed


class LayerState(NamedTuple):
    """What one layer carries from token to token; None: nothing yet."""

    conv: tuple[Tensor | None, ...]  # the newest inputs of each convolution, [1, channels, width]
    recurrent: tuple[Tensor | None, ...]

    def tensors(self) -> Iterator[Tensor]:
        """All that there are."""
        yield from (part for part in (*self.conv, *self.recurrent) if part is not None)

    def to(self, device: torch.device) -> "LayerState":
        """The same numbers on a device."""
        conv, recurrent = (
            tuple(part if part is None else part.to(device) for part in parts) for parts in (self.conv, self.recurrent)
        )
        return LayerState(conv, recurrent)


States = Mapping[int, LayerState]  # by layer
Inputs = Mapping[int, Tensor]  # by layer: what its recurrent part was given, [1, T, hidden]


class Point(NamedTuple):
    """The states after `length` tokens: those after `start`, and the inputs of the tokens between."""

    start: int
    states: States
    inputs: Inputs
    length: int

    def first(self, length: int) -> "Point":
        """The point at an earlier length, from `start` on."""
        inputs = {layer: rows[:, : length - self.start] for layer, rows in self.inputs.items()}
        return Point(self.start, self.states, inputs if length > self.start else {}, length)

    def to(self, device: torch.device) -> "Point":
        """The same point on a device."""
        states = {layer: state.to(device) for layer, state in self.states.items()}
        return self._replace(states=states, inputs={layer: rows.to(device) for layer, rows in self.inputs.items()})


NOTHING = Point(0, {}, {}, 0)


class RunningState:
    """The states of one conversation, as one cache has seen it. Of a model without recurrent layers there are none."""

    def __init__(self, attending: Sequence[int]) -> None:
        """`attending`: of a model with recurrent layers, the numbers of those that attend."""
        self.slots = {layer: slot for slot, layer in enumerate(attending)}
        self._now, self._before = NOTHING, NOTHING  # at this length; the newest pass, as far as it was not forgotten
        self._passed: tuple[States, Inputs, States] | None = None  # of a pass that is not committed
        self._marks = Marks[Point]()  # in host memory

    @property
    def length(self) -> int:
        """Tokens that the states have seen."""
        return self._now.length

    @property
    def point(self) -> Point:
        """Where a pass begins."""
        return self._now

    @property
    def nbytes(self) -> int:
        """Bytes of the states of all layers, once."""
        return sum(part.nbytes for state in self._now.states.values() for part in state.tensors())

    def passed(self, before: States, inputs: Inputs, after: States) -> None:
        """What a pass computed: the states before its first token, the layers' inputs, the states after the last."""
        self._passed = before, inputs, after

    def commit(self, length: int) -> None:
        """Count the tokens of the newest pass; without one they stay unknown, until `adopt`."""
        if self._passed is None:
            return
        (before, inputs, after), self._passed = self._passed, None
        self._before = Point(self._now.length, before, inputs, length)
        self._now = Point(length, after, {}, length)

    def rewindable(self, length: int) -> int:
        """The largest length up to `length` that `truncate` can go back to."""
        if not self.slots:
            return length
        length = min(length, self.length)
        if length == self.length or self._replays(length):
            return length
        start = self._before.start
        return max(start if start <= length else 0, self._marks.before(length))

    def _replays(self, length: int) -> bool:
        """Whether the newest pass and its inputs give the states after `length` tokens."""
        newest = self._before
        return newest.start == length or (newest.start < length <= newest.length and bool(newest.inputs))

    def truncate(self, length: int) -> None:
        """Go back to a length that `rewindable` returned; a length beyond the present one changes nothing."""
        self._passed = None
        if length < self.length:
            self._now = self._at(length)
            self._before = self._now
        self._marks.truncate(length)

    def _at(self, length: int) -> Point:
        if self._replays(length):
            return self._before.first(length)
        assert length == 0 or length in self._marks, f"the states after {length} tokens are not known"
        return self._marks.get(length, NOTHING)

    def remember(self) -> None:
        """Keep the states of this length, so that a later rewind finds them again. Cost: a copy to host memory."""
        if self.slots:
            self._marks.keep(self.length, self._now.to(torch.device("cpu")), MOST_STATE_MARKS)

    def adopt(self, point: Point) -> None:
        """Continue from a point of another cache of the same model."""
        self._now = self._before = point
        self._passed = None


def running_state(cache: object) -> RunningState | None:
    """The running states of a cache, where its model has any."""
    state = getattr(cache, "state", None)
    return state if isinstance(state, RunningState) and state.slots else None
