"""A CUDA device that is not there: torch's own Python code for CUDA on top, the processor's arithmetic below.

What a first GPU finds wrong is seldom arithmetic. It is an index given where a device was wanted, a tensor that was
left on the processor, an operation that exists for one of both only, a wait inside of a recording, a number that a
recording has frozen. All that can be seen here:

- `torch.cuda` runs as it is installed, with the checks of arguments that are written in Python. Only what lies below,
  the functions of `torch._C`, is a stub, which checks its arguments' types as the real one does.
- Tensors "on the device" (`DeviceTensor`) hold ordinary ones. Every operation checks that all of its tensors lie on
  one device, but for those that CUDA allows elsewhere, and refuses what CUDA has no kernel for.
- A recording (`CUDAGraph`) keeps the operations and their tensors, and a replay does them again on what these tensors
  hold then. So what Python computed while recording is frozen, as it is on a GPU.

It says nothing about streams that race, about speed, or about kernels. For builds of torch without CUDA.
"""

import ctypes
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

import core.engine  # before there are stubs: torch's compiler looks for some of them when it is imported
from core.ops.streams import PinnedArray
from tests.core.order import Order

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
TOTAL_BYTES, FREE_BYTES = 24 << 30, 23 << 30
ELSEWHERE = {aten.copy_, aten._to_copy, aten._copy_from, aten._local_scalar_dense}  # tensors of several devices
# A CUDA tensor may be indexed by numbers that lie in host memory: torch brings them over, and waits for that
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
WAITING = {aten._local_scalar_dense, aten.nonzero, aten.equal, aten.masked_select, aten.bincount, aten.is_nonzero}
BOUND = 1 << 16  # streams and events are numbered from here

_gpu: "PretendedGpu | None" = None


class Recorded(NamedTuple):
    """An operation as it was called."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


class DeviceTensor(Tensor):
    """A tensor that says it lies on cuda:0; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "DeviceTensor":
        with torch.inference_mode(False):  # a view of a normal tensor must be one; what is held says what is not
            made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=CUDA,
            )
        made.held = held
        if _gpu is not None and _gpu.memory.hold(held) and _gpu.order and _gpu.recording is None:
            _gpu.order.made(_gpu.stream, held)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, object]) -> "DeviceTensor":
        return memo.setdefault(id(self), DeviceTensor(self.held.clone()))

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        waited("tolist")
        return self.held.tolist()

    def numpy(self, **_: object) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def record_stream(self, stream: Any) -> None:
        assert isinstance(stream, torch.cuda.Stream), f"record_stream of {type(stream).__name__}"
        if _gpu is not None and _gpu.order:
            _gpu.order.share(self.held, stream.stream_id)

    def pin_memory(self, *_: object) -> Tensor:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")


class DeviceGenerator(torch._C.Generator):
    """`torch.Generator` of either device; draws what the processor's draws."""

    _where: torch.device

    def __new__(cls, device: Any = "cpu") -> "DeviceGenerator":
        made = super().__new__(cls, "cpu")
        wanted = torch.device(device)
        made._where = CUDA if wanted.type == "cuda" else wanted
        return made

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        return self._where


def waited(what: str, known: Any = None) -> None:
    """The processor waits for the device here, for all that the current stream has done unless something is `known`."""
    assert _gpu is not None, "the pretended device has gone"
    _gpu.waits, _gpu.passed = _gpu.waits + 1, _gpu.made
    _gpu.on_wait(what)
    if _gpu.order:
        _gpu.order.learn(_gpu.order.host, _gpu.order.now(_gpu.stream) if known is None else known)
    if _gpu.recording is not None:
        _gpu.spoilt = True
        raise torch.AcceleratorError(f"CUDA error: operation not permitted when stream is capturing ({what})")
    if _gpu.sync_mode == 1:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=3)


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, checked as CUDA would."""
    packet, name = func.overloadpacket, func.__name__
    flat = list(leaves((args, kwargs)))
    here = any(isinstance(x, DeviceTensor) for x in flat)
    wanted = kwargs.get("device")
    target = torch.device(wanted).type if wanted is not None else "cuda" if here else "cpu"
    if not here and target != "cuda":  # also the meta device, where transformers makes its modules
        touched(func, args, kwargs, on_host=True)
        return func(*args, **kwargs)
    assert _gpu is not None, "the pretended device has gone"
    if here:
        check_devices(func, packet, args, flat)
        if "_for_cpu" in name or str(func).startswith("mkldnn"):
            raise NotImplementedError(f"Could not run '{func}' with arguments from the 'CUDA' backend.")
    if packet in WAITING and here:
        waited(str(func))
    if packet in (aten._to_copy, aten.copy_):
        between(packet, args, kwargs, target)
    touched(func, args, kwargs, on_host=False)
    inner = dict(kwargs)
    if wanted is not None:
        inner["device"] = CPU if target == "cuda" else wanted
        inner.pop("pin_memory", None)
    replaced = REPLACED.get(packet)
    plain = mapped(held_of, args)
    out = (replaced or func)(*plain, **mapped(held_of, inner))
    given = {id(held_of(x)): x for x in flat if isinstance(x, Tensor)}

    def seen(x: Any) -> Any:  # an argument that was written to is returned itself
        if id(x) in given:
            return given[id(x)]
        return DeviceTensor(x) if target == "cuda" and type(x) is Tensor else x

    out = mapped(seen, out)
    if _gpu.recording is not None:
        _gpu.recording.append(Recorded(replaced or func, args, inner, out))
    return out


def touched(func: Any, args: Any, kwargs: dict[str, Any], *, on_host: bool) -> None:
    """Tell who reads and writes an operation's tensors on the device and in pinned memory."""
    if _gpu is None or _gpu.order is None or _gpu.recording is not None or func.is_view:
        return
    agent: object = _gpu.order.host if on_host else _gpu.stream
    given = {x.name: x for x in func._schema.arguments}
    for argument, value in (*zip(func._schema.arguments, args, strict=False), *((given[n], kwargs[n]) for n in kwargs)):
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for x in leaves(value):
            if isinstance(x, DeviceTensor):
                _gpu.order.touch(agent, x.held, writes=writes)
            elif isinstance(x, Tensor) and _gpu.is_pinned(x):
                pointer = x.untyped_storage().data_ptr()  # torch's own pinned memory waits for copies by itself
                gone = partial(_gpu.unpinned, pointer) if pointer in _gpu.locked else _gpu.order.forget
                _gpu.order.follow(x.untyped_storage(), gone)
                _gpu.order.touch(agent, x, writes=writes)


def leaves(x: Any) -> Iterator[Any]:
    """What lists, tuples and dictionaries hold, in order; torch's own trees are slower than all else here."""
    if isinstance(x, list | tuple):
        for part in x:
            yield from leaves(part)
    elif isinstance(x, dict):
        yield from leaves(list(x.values()))
    else:
        yield x


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """The same lists, tuples and dictionaries of what `function` makes of their leaves."""
    if isinstance(x, list | tuple):
        return type(x)([mapped(function, part) for part in x])
    if isinstance(x, dict):
        return {name: mapped(function, part) for name, part in x.items()}
    return function(x)


def held_of(x: Any) -> Any:
    return x.held if isinstance(x, DeviceTensor) else x


def check_devices(func: Any, packet: Any, args: Any, flat: list[Any]) -> None:
    """All tensors on the device, but for single numbers."""
    if packet in ELSEWHERE:
        return
    if packet in INDEXING:
        assert isinstance(args[0], DeviceTensor), f"{func} of a tensor in host memory by numbers on the device"
        numbers = [x for x in leaves(args[1]) if isinstance(x, Tensor)]
        if not all(isinstance(x, DeviceTensor) for x in numbers):
            waited(f"{func} by numbers in host memory")
        if any(x.dtype == torch.bool for x in numbers):
            waited(f"{func} by a mask, which has to be counted")
        flat = [args[0], *args[2:3]]
    strange = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, DeviceTensor) and x.dim() > 0]
    if strange:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({func} "
            f"with {tuple(strange[0].shape)} in host memory)"
        )


def between(packet: Any, args: Any, kwargs: dict[str, Any], target: str) -> None:
    """A copy between host and device waits, unless it is asked not to and the host's side is pinned."""
    into, source = (target, args[0]) if packet is aten._to_copy else (args[0], args[1])
    there = into if isinstance(into, str) else into.device.type
    if there == source.device.type:
        return
    assert _gpu is not None
    hosts = [x for x in (into, source) if isinstance(x, Tensor) and not isinstance(x, DeviceTensor)]
    asked = kwargs.get("non_blocking", False) or (packet is aten.copy_ and len(args) > 2 and args[2])
    if not (asked and hosts and all(_gpu.is_pinned(x) for x in hosts)):
        waited(f"a copy from {source.device.type} to {there}")


# -------------------- operations that CUDA has and the processor has not


def flash(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *_: object, scale: float
) -> tuple[Any, ...]:
    assert q.dtype in (torch.float16, torch.bfloat16), f"FlashAttention only supports fp16 and bf16, not {q.dtype}"
    assert q.dtype == k.dtype == v.dtype, f"{q.dtype}, {k.dtype}, {v.dtype}"
    assert q.shape[-1] % 8 == 0 and q.shape[-1] <= 256, f"head_dim {q.shape[-1]}"
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "contiguous in the last dimension"
    assert q.shape[1] == k.shape[1] and k.shape[2] > 0, f"{q.shape}, {k.shape}"
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, scale=scale)
    none = torch.empty(0)
    return out, lse.float(), none, none, q.shape[2], k.shape[2], none, none, none


def efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: None,
    wants_lse: bool,
    dropout: float = 0,
    causal: bool = False,
    *,
    scale: float,
) -> tuple[Tensor, ...]:
    assert bias is None and wants_lse and q.dtype == k.dtype == v.dtype, f"{q.dtype}, {k.dtype}, {v.dtype}"
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, scale=scale)
    padded = torch.full((*lse.shape[:2], -(-q.shape[2] // 32) * 32), float("nan"))
    padded[..., : q.shape[2]] = lse
    return out, padded, torch.empty(0), torch.empty(0)


def tile_inputs(inner: int) -> Tensor:
    """Input of each half byte, lowest first, of the words of four threads, [4, inner / 2, 8]."""
    thread, word, half = torch.arange(4)[:, None, None], torch.arange(inner // 2)[:, None], torch.arange(8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])[half]  # of two tiles' values
    return 32 * word + 16 * (order // 4) + 2 * thread + torch.tensor([0, 1, 8, 9])[order % 4]


def int4pack(pairs: Tensor, inner: int) -> Tensor:
    outputs, half = pairs.shape
    assert pairs.dtype == torch.uint8 and pairs.is_contiguous() and inner in (2, 4, 8), "as the kernel takes it"
    assert outputs % 8 == 0 and half * 2 % (16 * inner) == 0, f"{tuple(pairs.shape)} and {inner} inner tiles"
    tiles = torch.stack((pairs >> 4, pairs & 15), -1).reshape(outputs // 8, 8, -1, 16 * inner).transpose(1, 2)
    halves = tiles[..., tile_inputs(inner)].flatten(2, 3).long()  # [O / 8, I / 16 inner, 32, inner / 2, 8]
    return (halves << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)


def int4pack_mm(x: Tensor, packed: Tensor, group: int, scales: Tensor) -> Tensor:
    assert x.dtype == scales.dtype == torch.bfloat16 and x.is_contiguous() and scales.is_contiguous(), "bfloat16"
    assert group in (32, 64, 128, 256) and scales.dim() == 3 and scales.shape[0] == x.shape[1] // group, f"{group}"
    assert packed.dtype == torch.int32 and packed.dim() == 4 and scales.shape[1] == packed.shape[0] * 8
    halves = (packed[..., None] >> torch.arange(0, 32, 4) & 15).unflatten(2, (8, 4))  # [.., 8, 4, inner / 2, 8]
    tiles = torch.empty(*halves.shape[:3], 32 * packed.shape[3])
    tiles[..., tile_inputs(2 * packed.shape[3])] = halves.float() - 8
    levels = tiles.transpose(1, 2).reshape(-1, x.shape[1])  # [O, I]
    scale, offset = scales.float().permute(2, 1, 0).repeat_interleave(group, 2)
    return (x.float() @ (levels * scale + offset).T).to(torch.bfloat16)


def mm_as(x: Tensor, y: Tensor, out_dtype: torch.dtype) -> Tensor:
    assert x.dim() == y.dim() and x.dtype == y.dtype, f"{x.shape}, {y.shape}, {x.dtype}, {y.dtype}"
    assert out_dtype == torch.float32 and x.dtype in (torch.float16, torch.bfloat16), f"{x.dtype} to {out_dtype}"
    return x.float() @ y.float()


REPLACED: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention: flash,
    aten._scaled_dot_product_efficient_attention: efficient,
    aten._convert_weight_to_int4pack: int4pack,
    aten.mm: lambda x, y, *out_dtype: mm_as(x, y, *out_dtype) if out_dtype else aten.mm(x, y),
    aten.bmm: lambda x, y, *out_dtype: mm_as(x, y, *out_dtype) if out_dtype else aten.bmm(x, y),
    aten._weight_int4pack_mm: int4pack_mm,
}


class OnDevice(TorchDispatchMode):
    """Catches what makes tensors on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._can_decompose():  # in inference mode they come whole
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return run(func, args, kwargs or {})


# -------------------- below torch.cuda


class Memory:
    """Counts the bytes of every storage from its first tensor to its last, as an allocator without gaps would."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self.used_bytes = self.peak_bytes = 0

    def hold(self, tensor: Tensor, size_bytes: int | None = None) -> bool:
        """A tensor lies here; what shares its storage counts once. Returns whether the storage is new.

        Args:
            size_bytes: what of it lies here; None: all.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return False
        self._sizes[key] = storage.nbytes() if size_bytes is None else size_bytes
        self.used_bytes += self._sizes[key]
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        weakref.finalize(storage, self._gone, key).atexit = False
        return True

    def _gone(self, key: int) -> None:
        self.used_bytes -= self._sizes.pop(key)
        if _gpu is not None and _gpu.order:
            _gpu.order.freed(key)

    def reset_peak(self) -> None:
        """The peak is what is used now."""
        self.peak_bytes = self.used_bytes


class PretendedGpu:
    """What the stubs know."""

    def __init__(self, order: Order | None = None) -> None:
        self.memory, self.order = Memory(), order
        self.recording: list[Recorded] | None = None
        self.spoilt = False  # the recording
        self.pools, self.capture_error_mode = Pools(), ""  # of the newest recording
        self.replays = self.waits = 0
        self.on_wait: Callable[[str], object] = lambda what: None  # told of each wait
        self.sync_mode = 0
        self.streams = [0, 0, 1]  # as torch has it: stream, device, type
        self.made = self.passed = BOUND  # streams, events and marks are numbered; the newest mark known to be passed
        self.fraction = 1.0
        self.registered: dict[int, int] = {}  # pinned memory
        self.locked: set[int] = set()  # of it, what the program has pinned in place

    @property
    def used_bytes(self) -> int:
        """Of all tensors on the device."""
        gc.collect()
        return self.memory.used_bytes

    @property
    def stream(self) -> int:
        """The current one; 0 computes."""
        return self.streams[0]

    def unpinned(self, pointer: int, key: int) -> None:
        """Memory goes that was pinned in place."""
        if self.order is not None:
            self.order.freed(key)
            if pointer in self.locked:
                self.order.faults.append("pinned memory was given back and never unpinned")

    def is_pinned(self, x: Tensor) -> bool:
        at = x.untyped_storage().data_ptr()
        return any(start <= at < start + size for start, size in self.registered.items())

    def number(self) -> int:
        self.made += 1
        return self.made


def checked(value: object, kind: type, what: str) -> Any:
    """As the C functions do, which take nothing that is not exactly meant."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{what}: {kind.__name__} expected, got {type(value).__name__} {value!r}")
    return value


def index_of(device: object, what: str) -> int:
    number: int = checked(device, int, what)
    if number != 0:
        raise RuntimeError(f"{what}: invalid device ordinal {number}")
    return number


class Properties(NamedTuple):
    """Of the device."""

    name: str = "Pretended GPU"
    total_memory: int = TOTAL_BYTES
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 4
    uuid: str = "GPU-00000000"


class Cudart:
    """The runtime library."""

    class cudaError(int):
        """As the binding names it."""

    def __init__(self, gpu: PretendedGpu) -> None:
        self._gpu, self.refuses = gpu, False

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> Any:
        for value in (pointer, size, flags):
            checked(value, int, "cudaHostRegister")
        if self.refuses:
            return self.cudaError(2)
        self._gpu.registered[pointer] = size
        self._gpu.locked.add(pointer)
        return self.cudaError(0)

    def cudaHostUnregister(self, pointer: int) -> Any:
        self._gpu.locked.discard(pointer)
        return self.cudaError(0 if self._gpu.registered.pop(checked(pointer, int, "pointer"), None) else 1)

    def cudaGetErrorString(self, error: Any) -> str:
        assert isinstance(error, self.cudaError), "cudaGetErrorString takes a cudaError"
        return "out of memory"

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        index_of(device, "cudaMemGetInfo")
        return FREE_BYTES, TOTAL_BYTES


def stream_new(cls: Any, priority: int = 0, **known: int) -> Any:
    if strange := known.keys() - {"stream_id", "device_index", "device_type"}:
        raise TypeError(f"Stream() got an unexpected keyword argument {strange.pop()!r}")
    made = object.__new__(cls)
    made.stream_id = known.get("stream_id", _gpu.number() if not known and _gpu else 0)
    made.device, made.device_index, made.device_type = CUDA, 0, 1
    made.cuda_stream = made.stream_id
    return made


def event_new(cls: Any, **flags: bool) -> Any:
    made = object.__new__(cls)
    made.timed, made.recorded, made.known = flags["enable_timing"], 0, None
    return made


def event_record(self: Any, stream: Any) -> None:
    assert isinstance(stream, torch.cuda.Stream), f"record on {type(stream).__name__}"
    assert _gpu is not None, "the pretended device has gone"
    self.recorded = _gpu.number()
    if _gpu.order:
        self.known = _gpu.order.launched(stream.stream_id)


def event_wait(self: Any, stream: Any) -> None:
    checked(stream, torch.cuda.Stream, "wait")
    if _gpu is not None and _gpu.order and self.recorded:
        _gpu.order.learn(stream.stream_id, self.known)


def event_synchronize(self: Any) -> None:
    assert _gpu is not None, "the pretended device has gone"
    if self.recorded:
        before = _gpu.passed
        waited("an event", self.known)
        _gpu.passed = before
        event_passed(self)


def event_passed(self: Any) -> bool:
    assert _gpu is not None, "the pretended device has gone"
    _gpu.passed = max(_gpu.passed, self.recorded)
    return True


def event_elapsed(self: Any, other: Any) -> float:
    assert isinstance(other, torch.cuda.Event) and self.timed and other.timed, "both must measure time"
    assert self.recorded and other.recorded, "both must have been recorded"
    assert _gpu is not None and max(self.recorded, other.recorded) <= _gpu.passed, (
        "neither is known before it has passed"
    )
    return 0.1


class Pools:
    """What torch keeps of recordings, and refuses, after c10/cuda/CUDACachingAllocator.cpp."""

    def __init__(self) -> None:
        self.uses: dict[tuple[int, int], int] = {}  # graphs by pool; one without any is only waiting to be freed
        self.underway: list[tuple[int, int]] = []  # allocations go to these
        self.pinned: set[tuple[int, int]] = set()  # a tensor lives there
        self.ends_late = False  # it is not told that a recording was spoilt (mended in pytorch 180395)

    def begin(self, pool: tuple[int, int]) -> None:
        if self.uses.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.uses[pool] = self.uses.get(pool, 0) + 1
        self.underway.append(pool)

    def end(self, device: int, pool: tuple[int, int]) -> None:
        if index_of(device, "endAllocateToPool") or pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release(self, device: int, pool: tuple[int, int]) -> None:
        assert index_of(device, "releasePool") == 0 < self.uses[pool], "released more often than held"
        self.uses[pool] -= 1

    def empty_cache(self) -> None:
        if self.underway:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.uses = {pool: uses for pool, uses in self.uses.items() if uses or pool in self.pinned}


def capture_begin(self: Any, pool: Any = None, capture_error_mode: str = "global") -> None:
    assert _gpu is not None and _gpu.recording is None, "a recording is running"
    assert capture_error_mode in ("global", "thread_local", "relaxed"), capture_error_mode
    assert _gpu.stream != 0, "CUDA graphs must be captured on a non-default stream"
    self.own, self.began_on, self.steps = pool or (0, _gpu.number()), _gpu.stream, None
    _gpu.pools.begin(self.own)
    _gpu.recording, _gpu.spoilt, _gpu.capture_error_mode = [], False, capture_error_mode


def capture_end(self: Any) -> None:
    assert _gpu is not None and _gpu.stream == self.began_on, "Capture must end on the same stream it began on."
    steps, _gpu.recording = _gpu.recording, None
    if steps is None:
        raise RuntimeError("CUDA error: the stream is not capturing")
    if not (_gpu.spoilt and _gpu.pools.ends_late):
        _gpu.pools.end(0, self.own)
    if _gpu.spoilt:
        raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")
    self.steps = steps


def pool_of(self: Any) -> Any:
    if self.steps is None:
        raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
    return self.own


def reset(self: Any) -> None:
    if getattr(self, "steps", None) is not None and _gpu is not None:
        self.steps = None
        _gpu.pools.release(0, self.own)


def replay(self: Any) -> None:
    """Do what was recorded, with what the tensors hold now; results go where they went."""
    assert _gpu is not None and self.steps is not None, "nothing was recorded"
    _gpu.replays += 1
    with torch.inference_mode():
        for step in self.steps:
            repeat(step)


def repeat(step: Recorded) -> None:
    """One operation again; what is new goes where it went."""
    out = step.func(*mapped(held_of, step.args), **mapped(held_of, step.kwargs))
    for kept, new in zip(leaves(step.out), leaves(out), strict=True):
        if isinstance(kept, DeviceTensor) and kept.held.numel() and kept.held.data_ptr() != new.data_ptr():
            kept.held.copy_(new)


def stats_of(gpu: PretendedGpu) -> dict[str, Any]:
    used = gpu.used_bytes
    return {"allocated_bytes": {"all": {"current": used, "peak": gpu.memory.peak_bytes, "allocated": used, "freed": 0}}}


@contextmanager
def guarded() -> Iterator[None]:
    """Let torch's C++ switch to a CUDA device. It looks for a guard by type of device; the meta device's does nothing.

    Builds for processors have none for CUDA, and Python has no way to register one.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 21).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14  # numbers of device types
    assert guards[cuda] is None and guards[meta] is not None, "torch keeps its guards in another way"
    guards[cuda] = guards[meta]
    try:
        yield
    finally:
        guards[cuda] = None


@contextmanager
def pretended_gpu(order: Order | None = None) -> Iterator[PretendedGpu]:
    """Inside, this machine has one GPU; `order` notices races between its streams and the host."""
    global _gpu
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        pytest.skip("torch was built with CUDA: its own functions would be hidden")
    gpu, C = PretendedGpu(order), torch._C
    cudart = Cudart(gpu)

    def keep(name: str, *values: object, kinds: tuple[type, ...]) -> None:
        """What a function of these types of arguments sets."""
        checks = [checked(value, kind, name) for value, kind in zip(values, kinds, strict=True)]
        setattr(gpu, name, checks if len(checks) > 1 else checks[0])

    def set_fraction(fraction: float, device: int) -> None:
        keep("fraction", fraction, kinds=(float,))
        index_of(device, "_cuda_setMemoryFraction")

    def synchronize() -> None:
        if gpu.recording is not None:
            waited("synchronize")
        gpu.passed = gpu.made
        if gpu.order:
            gpu.order.wait_for_all()

    functions: dict[str, Callable[..., Any]] = {
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_getArchFlags": lambda: "sm_80 sm_90",
        "_cuda_setDevice": lambda device: index_of(device, "_cuda_setDevice"),
        "_cuda_getCurrentStream": lambda device: [gpu.streams, index_of(device, "_cuda_getCurrentStream")][0],
        "_cuda_getDefaultStream": lambda device: [index_of(device, "_cuda_getDefaultStream"), 0, 1],
        "_cuda_setStream": lambda *, stream_id, device_index, device_type: keep(
            "streams", stream_id, device_index, device_type, kinds=(int, int, int)
        ),
        "_cuda_synchronize": synchronize,
        "_cuda_emptyCache": gpu.pools.empty_cache,
        "_cuda_endAllocateToPool": gpu.pools.end,
        "_cuda_releasePool": gpu.pools.release,
        "_is_flash_attention_available": lambda: True,
        "_host_emptyCache": lambda: None,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_memoryStats": lambda device: stats_of(gpu),
        "_cuda_resetPeakMemoryStats": lambda device: gpu.memory.reset_peak(),
        "_cuda_sleep": lambda cycles: checked(cycles, int, "_cuda_sleep"),
        "_cuda_set_sync_debug_mode": lambda mode: keep("sync_mode", mode, kinds=(int,)),
    }
    bases: dict[Any, dict[str, Any]] = {
        C._CudaStreamBase: {
            "__new__": stream_new,
            "__init__": lambda self, *_, **__: None,
            "__eq__": lambda self, other: self.stream_id == other.stream_id,
            "synchronize": lambda self: waited("a stream", gpu.order and gpu.order.now(self.stream_id)),
            "query": lambda self: True,
        },
        C._CudaEventBase: {
            "__new__": event_new,
            "__init__": lambda self, *_, **__: None,
            "record": event_record,
            "wait": event_wait,
            "synchronize": event_synchronize,
            "query": event_passed,
            "elapsed_time": event_elapsed,
        },
        C._CUDAGraph: {
            "__new__": lambda cls, keep_graph=False: object.__new__(cls),
            "__init__": lambda self, *_, **__: None,
            "capture_begin": capture_begin,
            "capture_end": capture_end,
            "replay": replay,
            "reset": reset,
            "pool": pool_of,
        },
    }
    _device_constructors()  # kept by torch from its first use on: it must be of the functions that are there now
    empty, tensor, as_tensor, rand, to = torch.empty, torch.tensor, torch.as_tensor, torch.rand, Tensor.to

    def to_there(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        def numbered(x: Any) -> Any:  # this build cannot ask which device is the current one
            return CUDA if isinstance(x, str | torch.device) and torch.device(x).type == "cuda" else x

        moved: Tensor = to(self, *map(numbered, args), **{name: numbered(x) for name, x in kwargs.items()})
        return moved

    def tensor_there(values: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        made = tensor(values, **kwargs)  # this build could not even ask for another device
        return made if device is None else made.to(device)

    def pinned_empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        made = empty(*args, **kwargs)
        if pin_memory:
            assert made.device.type == "cpu", "Only dense CPU tensors can be pinned"
            in_pinned_pages(made)
        return made

    def array_there(array: Any, **kwargs: Any) -> Tensor:
        """Pinned memory is an array of the GPU, too, which takes no room there."""
        if not isinstance(array, PinnedArray):
            return as_tensor(array, **kwargs)
        told, held = array.__cuda_array_interface__, array.rows
        assert told["data"] == (held.data_ptr(), False) and told["shape"] == held.shape and told["typestr"] == "|u1"
        assert held.data_ptr() in gpu.registered, "The specified pointer resides on host memory and is not registered"
        gpu.memory.hold(held, 0)
        return DeviceTensor(held)

    def rand_there(*sizes: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        wanted = torch.device(kwargs.get("device") or "cpu").type
        if generator is not None and generator.device.type != wanted:
            raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{generator.device.type}'")
        return rand(*sizes, generator=generator, **kwargs)

    def pinned_copy(self: Tensor, *_: object) -> Tensor:
        return in_pinned_pages(self if gpu.is_pinned(self) else self.clone())

    def in_pinned_pages(made: Tensor) -> Tensor:
        storage = made.untyped_storage()
        if gpu.registered.setdefault(storage.data_ptr(), storage.nbytes()):  # until it goes
            weakref.finalize(storage, gpu.registered.pop, storage.data_ptr(), None).atexit = False
        return made

    with pytest.MonkeyPatch.context() as patch:
        for name, function in functions.items():
            patch.setattr(C, name, function, raising=False)
        for base, members in bases.items():
            for name, member in members.items():
                patch.setattr(base, name, staticmethod(member) if name == "__new__" else member, raising=False)
        patch.setattr(torch.cuda.CUDAGraph, "__del__", reset, raising=False)
        for size in ("LINK_BYTES", "SHARING_BYTES"):  # of what is timed, which tells nothing here
            patch.setattr(f"core.planning.measured.{size}", 1 << 12)
        patch.setattr(torch.backends.cuda, "is_built", lambda: True)
        patch.setattr(torch.cuda, "_initialized", True)
        patch.setattr(torch.cuda, "_cudart", cudart)
        patch.setattr(torch.cuda, "_exchange_device", lambda device: 0)
        patch.setattr(torch.cuda, "_maybe_exchange_device", lambda device: 0)
        patch.setattr(torch.cuda, "_get_device_properties", lambda device: Properties(), raising=False)
        patch.setattr(torch.cuda, "_cached_device_count", 1)
        patch.setattr(torch.cuda, "default_generators", (DeviceGenerator(CUDA),))
        # Else a module's parameter would take over the numbers of another one, which a held tensor has none of
        patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
        patch.setattr(torch.cuda.graphs, "_graph_pool_handle", lambda: (0, gpu.number()))
        patch.setattr(torch, "Generator", DeviceGenerator)
        patch.setattr(core.generation.decode_loop, "Generator", DeviceGenerator)
        patch.setattr(torch, "empty", pinned_empty)
        patch.setattr(torch, "tensor", tensor_there)
        patch.setattr(torch, "as_tensor", array_there)
        patch.setattr(Tensor, "to", to_there)
        patch.setattr(torch, "rand", rand_there)
        patch.setattr(Tensor, "pin_memory", pinned_copy)
        _gpu = gpu
        try:
            with guarded(), OnDevice():
                yield gpu
        finally:
            gc.collect()  # what is pinned is given back while there is somebody to give it back to
            _gpu = None
