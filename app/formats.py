"""Numbers, sizes and durations as people read them. Pure functions."""

from pathlib import Path

from core.models.loading import LoadProgress

NONE_YET = "–"  # a figure that has no value yet


def count(number: int) -> str:
    """8123 -> 8,123."""
    return f"{number:,}"


def plural(number: int, noun: str, several: str = "") -> str:
    """1 page, 2 pages; `several` for irregular plurals."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {several or noun + 's'}"


def compact(number: float) -> str:
    """A count in little space: 950, 1.2k, 34k."""
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1000:.1f}k" if number < 9950 else f"{number / 1000:.0f}k"


def figure(value: float | None) -> str:
    """Three significant digits: 0.42, 4.21, 42.1, 421, 4,210."""
    if value is None:
        return NONE_YET
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(share: float | None) -> str:
    """0.934 -> 93%. 0% and 100% only for exact values."""
    if share is None:
        return NONE_YET
    if 0 < share < 0.01:
        return "<1%"
    if 0.99 < share < 1:
        return f"{min(share, 0.999):.1%}"
    return f"{share:.0%}"


def duration(seconds: float) -> str:
    """0.8 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 9.95:
        return f"{max(seconds, 0.1):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(seconds: float) -> str:
    """A difference that may be short: 0.04 s, 0.83 s, then as `duration`."""
    return f"{max(seconds, 0.01):.2f} s" if seconds < 0.95 else duration(seconds)


def about(seconds: float) -> str:
    """A time that is an estimate: a few seconds, about 40 s, about 3 min, about 2 h 10 min."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 55:
        return f"about {10 * round(seconds / 10)} s"
    minutes = max(1, round(seconds / 60))
    if minutes < 60:
        return f"about {minutes} min"
    minutes = 10 * round(minutes / 10)
    return f"about {minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def size(size_bytes: int) -> str:
    """512 MiB, 1.2 GiB."""
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{max(1, size_bytes >> 20)} MiB"


def amount(num_bytes: float) -> str:
    """Bytes with three significant digits: 310 KiB, 4.21 MiB, 1.20 GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if num_bytes >= 0.9995 * unit:
            return f"{figure(num_bytes / unit)} {name}"
    return f"{figure(num_bytes / 1024)} KiB"


def disk_size(size_bytes: int) -> str:
    """13.48 GB, as disks and the hub count."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes} bytes"


def loading(progress: LoadProgress) -> str:
    """1.20 GB of 3.09 GB · 39% · 4.1 s left; "" before anything is known."""
    if not progress.total_bytes:
        return ""
    parts = [f"{disk_size(progress.done_bytes)} of {disk_size(progress.total_bytes)}", percent(progress.share)]
    if progress.seconds_left is not None and progress.share < 1:
        parts.append(f"{duration(progress.seconds_left)} left")
    return " · ".join(parts)


def probability(value: float) -> str:
    """0.93, 1, 0, and "under 0.01" for positive values that would round to 0."""
    if value in (0, 1):
        return f"{value:.0f}"
    if value < 0.01:
        return "under 0.01"
    return "over 0.99" if value > 0.99 else f"{value:.2f}"


def with_tilde(text: str, home: Path) -> str:
    """Text with ~ for the home directory."""
    return text.replace(str(home), "~") if len(home.parts) > 1 else text
