"""Marks of processes, with which another process on the same machine can determine that they have ended.

A mark has the running kernel, the namespaces in which its numbers are valid, and each process by number and start time.
The answer is "over" or "unknown". If it is unknown (another machine, another container, no /proc), the caller waits as
before.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = ("pid", "time")  # Process numbers belong to the first, start times to the second.
_ENDED = ("Z", "X")


def mark(pids: Iterable[int]) -> str | None:
    """Return the mark of these living processes as text; None if the system cannot identify them."""
    kernel = _kernel()
    started = {pid: _start(pid) for pid in pids}
    if kernel is None or not started or None in started.values():
        return None
    return json.dumps({"kernel": kernel, "processes": sorted(started.items())})


def is_over(written: str | None) -> bool:
    """Return True if every process of the mark has certainly ended. False also means unknown."""
    if written is None:
        return False
    content = json.loads(written)
    return content["kernel"] == _kernel() and all(_ended(pid, start) for pid, start in content["processes"])


def _kernel() -> list[str] | None:
    """Return what identifies the system in which process numbers have the same meaning; None where it is unknown."""
    try:
        boot = _BOOT.read_text().strip()
        # Include the host name: machines resumed from one memory image share a boot id.
        return [socket.gethostname(), boot, *(os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES)]
    except OSError:
        return None


def _ended(pid: int, start: int) -> bool:
    try:
        os.kill(pid, 0)  # Sends nothing. It also sees processes of other users, which /proc may hide.
    except ProcessLookupError:
        return True
    except OSError:
        pass
    stat = _stat(pid)
    if stat is None:
        return False
    state, threads, started = stat
    # Ended but not yet reaped by its parent. A leader that ended before its threads still has some.
    return started != start or (state in _ENDED and threads <= 1)


def _start(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None else stat[2]


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return state, threads and start (in ticks since boot) from proc(5)'s stat; None if it cannot be read."""
    try:
        # The second field is the command in brackets, which may contain anything.
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return rest[0], int(rest[17]), int(rest[19])
