"""A Windows job around a process: the system enforces its limits and ends it with this one. Elsewhere does nothing.

See "JOBOBJECT_EXTENDED_LIMIT_INFORMATION" in Microsoft's documentation of job objects.
"""

import subprocess
import sys

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    EXTENDED_LIMITS = 9  # class of the information
    PROCESS_TIME, PROCESS_MEMORY, KILL_ON_CLOSE = 0x2, 0x100, 0x2000
    MAY_JOIN = 0x100 | 0x1  # rights to join a job: PROCESS_SET_QUOTA, PROCESS_TERMINATE
    TICKS_PER_SECOND = 10_000_000  # of 100 ns

    class BasicLimits(ctypes.Structure):
        """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

        _fields_ = (
            ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
            ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        )

    class ExtendedLimits(ctypes.Structure):
        """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

        _fields_ = (
            ("BasicLimitInformation", BasicLimits),
            ("IoInfo", ctypes.c_ulonglong * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        )

    def confine(process: "subprocess.Popen[bytes]", memory_bytes: int, cpu_seconds: int) -> int | None:
        """Put a new process, and everything it starts, into a job; None: no job could be made.

        That is no error, because the watch of `process.py` enforces the limits too.
        """
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = wintypes.HANDLE
        kernel.CreateJobObjectW.argtypes = (ctypes.c_void_p, wintypes.LPCWSTR)
        kernel.SetInformationJobObject.argtypes = (wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD)
        kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
        job = kernel.CreateJobObjectW(None, None)
        if not job:
            return None
        limits = ExtendedLimits()
        limits.BasicLimitInformation.LimitFlags = PROCESS_TIME | PROCESS_MEMORY | KILL_ON_CLOSE
        limits.BasicLimitInformation.PerProcessUserTimeLimit = cpu_seconds * TICKS_PER_SECOND
        limits.ProcessMemoryLimit = memory_bytes
        kernel.SetInformationJobObject(job, EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits))
        kernel.OpenProcess.restype = wintypes.HANDLE
        kernel.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
        opened = kernel.OpenProcess(MAY_JOIN, False, process.pid)
        if opened:
            kernel.AssignProcessToJobObject(job, opened)
            release(opened)
        return int(job)

    def release(job: int | None) -> None:
        """Close a handle; processes in a job without a handle are ended."""
        if job is not None:
            kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
            kernel.CloseHandle(job)

else:

    def confine(process: "subprocess.Popen[bytes]", memory_bytes: int, cpu_seconds: int) -> int | None:
        """There are no jobs here."""
        return None

    def release(job: int | None) -> None:
        """There are no jobs here."""
