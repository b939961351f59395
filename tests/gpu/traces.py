"""Where the time of a piece of work goes: on the device and its link by torch's profiler, on the host by Python's."""

import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

ARRIVING, MOST = "Memcpy HtoD", 15
Span = tuple[float, float]  # microseconds


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def traced(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """One call of some work: how busy device and copy engine are, the longest gaps, what costs the host most."""
    wait(device)
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as seen:
        started = time.perf_counter()
        work()
        wait(device)
        seconds = time.perf_counter() - started
    own = sorted(seen.key_averages(), key=lambda row: -row.self_cpu_time_total)[:MOST]
    host = [{"op": row.key, "self ms": row.self_cpu_time_total / 1e3, "calls": row.count} for row in own]
    there = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    timed = [(event.name, (event.time_range.start, event.time_range.end)) for event in there]
    return {"seconds, profiled": seconds, **busy(timed), "host": host}


def busy(timed: Sequence[tuple[str, Span]]) -> dict[str, Any]:
    """Shares of the time from the first to the last event of a device, and its longest gaps, in ms."""
    if not timed:
        return {}
    everything = joined([span for _, span in timed])
    arriving = joined([span for name, span in timed if name.startswith(ARRIVING)])
    computing = joined([span for name, span in timed if not name.startswith("Memcpy")])
    whole = max(everything[-1][1] - everything[0][0], 1e-9)
    taken = Counter[str]()
    for name, (start, stop) in timed:
        taken[name[:80]] += stop - start  # type: ignore[assignment]  # microseconds, not counts
    return {
        "device seconds": whole / 1e6,
        "device events": len(timed),
        "copies to the device, share": length(arriving) / whole,
        "computing, share": length(computing) / whole,
        "nothing at all, share": 1 - length(everything) / whole,
        "longest gaps between copies, ms": gaps(arriving, everything[0][0]),
        "longest gaps of everything, ms": gaps(everything, everything[0][0]),
        "device": [{"op": name, "ms": us / 1e3} for name, us in taken.most_common(MOST)],
    }


def joined(spans: Sequence[Span]) -> list[Span]:
    """The same time in spans that do not meet, in order."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def length(spans: Sequence[Span]) -> float:
    """All of them together."""
    return sum(stop - start for start, stop in spans)


def gaps(spans: Sequence[Span], origin: float) -> list[dict[str, float]]:
    """The longest times between spans, and when they begin."""
    between = sorted(((b[0] - a[1], a[1] - origin) for a, b in pairwise(spans)), reverse=True)
    return [{"ms": us / 1e3, "at": at / 1e3} for us, at in between[:5]]


def host_time(work: Callable[[], object]) -> list[dict[str, Any]]:
    """The Python functions with the most time of their own in some work; profiling makes each call slower."""
    profiler = cProfile.Profile()
    profiler.runcall(work)
    rows: Any = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    longest = sorted(rows.items(), key=lambda row: -row[1][2])[:MOST]
    return [
        {"at": f"{'/'.join(Path(file).parts[-2:])}:{line} {name}", "calls": calls, "self ms": 1e3 * own}
        for (file, line, name), (_, calls, own, _, _) in longest
    ]
