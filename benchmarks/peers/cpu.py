"""CPU time of another process, to the nanosecond."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["cpu_ns", "family"]

_LIBC: Final = ctypes.CDLL(None)


def cpu_ns(*pids: int) -> int:
    """Return the CPU time that these processes have used, all threads together, nanoseconds.

    The clock is POSIX's ``clock_getcpuclockid``; ``/proc/PID/stat`` counts in hundredths of a
    second, of which a batch of calls through a gateway takes a few.

    Raises:
        ProcessLookupError: One of them is not there.
    """
    return sum(_one(pid) for pid in pids)


def _one(pid: int) -> int:
    clock = ctypes.c_int()
    if number := _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(number, os.strerror(number), str(pid))
    return time.clock_gettime_ns(clock.value)


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = (task / "children").read_text(encoding="ascii")
        found += [one for child in children.split() for one in family(int(child))]
    return found
