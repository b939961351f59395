"""Keeps a process from what no parser needs: `python -m app.documents.sandbox` tells what is left open here.

On Linux it may read Python, the system's libraries and one file, write nothing, and reach nobody: Landlock and a
seccomp filter of the kernel see to it. See "landlock" and "seccomp" in the kernel's documentation.
"""

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system", "/sys/fs/cgroup",
    "/dev/null", "/dev/random", "/dev/urandom",
)  # fmt: skip
EXECUTE, READ_FILE, READ_DIR = 1, 4, 8  # rights of Landlock
NUM_RIGHTS = (0, 13, 14, 15, 15, 16)  # that it knows, by its version; the newest from the last one on
TCP, SCOPES, TCP_SINCE, SCOPES_SINCE = 3, 3, 4, 6  # bind and connect; abstract sockets and signals
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on every processor
VERSION, PATH_BENEATH = 1, 1  # a flag, a kind of rule
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # of prctl
# Of a processor its number, and those of the system calls socket, socketpair and io_uring_setup.
REFUSED = {"x86_64": (0xC000003E, (41, 53, 425)), "aarch64": (0xC00000B7, (198, 199, 425))}
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of a filter
OTHER_CALLS = 0x40000000  # from here on numbers of x32, another set of system calls
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the latter with EPERM


def confine(file: Path) -> list[str]:
    """Give up rights for good, and tell which the kernel leaves: "files", "network"."""
    if sys.platform != "linux":
        return ["files", "network"]
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: int | bytes | None) -> int:
        result = int(getattr(libc, name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
        if result < 0:
            raise OSError(ctypes.get_errno(), name)
        return result

    left = []
    try:
        call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        keep_files(call, file)
    except OSError:
        left.append("files")
    try:
        refuse_sockets(call)
    except OSError:
        left.append("network")
    return left


def keep_files(call: Callable[..., int], file: Path) -> None:
    """Read what is needed, and write nothing.

    Raises:
        OSError: the kernel has no Landlock.
    """
    version = call("syscall", CREATE_RULESET, None, 0, VERSION)
    handled = (1 << NUM_RIGHTS[min(version, len(NUM_RIGHTS) - 1)]) - 1
    fields = (handled, TCP, SCOPES)[: 1 + (version >= TCP_SINCE) + (version >= SCOPES_SINCE)]
    ruleset = call("syscall", CREATE_RULESET, struct.pack(f"={len(fields)}Q", *fields), 8 * len(fields), 0)

    def allow(places: Iterable[str | Path], rights: int) -> None:
        for place in places:
            with suppress(OSError):  # there is none
                opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
                most = rights if Path(place).is_dir() else rights & ~READ_DIR
                call("syscall", ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", most, opened), 0)
                os.close(opened)

    own = [place for place in sys.path if Path(place) != PROJECT]
    libraries = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    allow([*SYSTEM, sys.prefix, sys.base_prefix, *own, *libraries], EXECUTE | READ_FILE | READ_DIR)
    allow([PROJECT / "app", PROJECT / "core"], EXECUTE | READ_FILE | READ_DIR)
    allow([PROJECT], READ_DIR)  # where Python looks for those two
    allow([file], READ_FILE)
    call("syscall", RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def refuse_sockets(call: Callable[..., int]) -> None:
    """Let the kernel refuse sockets of every kind.

    Raises:
        OSError: it has no filters, or the numbers of its system calls are not known here.
    """
    machine, numbers = REFUSED.get(os.uname().machine, (0, ())) if sys.maxsize > 1 << 32 else (0, ())
    if not numbers:
        raise OSError("another processor")
    program = calls_filter(machine, numbers)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    call("prctl", SECCOMP, FILTER, struct.pack("HP", len(program), ctypes.addressof(code)), 0, 0)


def calls_filter(machine: int, numbers: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Instructions that refuse system calls: each with where to go on if it holds, where if not, and a value."""
    checks = [(AT_LEAST, OTHER_CALLS), *((EQUAL, number) for number in numbers)]
    return [
        (LOAD, 0, 0, 4),
        (EQUAL, 0, len(checks) + 2, machine),
        (LOAD, 0, 0, 0),
        *((code, len(checks) - index, 0, value) for index, (code, value) in enumerate(checks)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]


def left_open() -> list[str]:
    """What this system leaves open to parsers: "files", "network"; none if it keeps them from both."""
    told = subprocess.run([sys.executable, "-m", __name__], cwd=PROJECT, capture_output=True, text=True, check=True)
    return told.stdout.split()


if __name__ == "__main__":
    print("\n".join(confine(Path(__file__))))
