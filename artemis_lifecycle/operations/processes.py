"""Marks of processes, by which another process on the same machine knows for certain that they are over.

A mark names the running kernel, the namespaces in which its numbers count, and each process by number and start. It
says "over" or "not known"; on "not known" (another machine, another container, no /proc) the caller waits as before.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = ("pid", "time")  # Process numbers count in the one, their start times in the other.
_ENDED = ("Z", "X")


def mark(pids: Iterable[int]) -> str | None:
    """The mark of these living processes, as text; None where the system does not tell who they are."""
    here = _here()
    started = {pid: _start(pid) for pid in pids}
    if here is None or not started or None in started.values():
        return None
    return json.dumps({"kernel": here, "processes": sorted(started.items())})


def is_over(written: str | None) -> bool:
    """Whether every process of the mark has ended, for certain. False also means unknown."""
    if written is None:
        return False
    content = json.loads(written)
    return content["kernel"] == _here() and all(_ended(pid, start) for pid, start in content["processes"])


def _here() -> list[str] | None:
    """Where process numbers mean the same as here; None on systems that do not tell."""
    try:
        boot = _BOOT.read_text().strip()
        # The host's name as well: machines woken from one memory image share a boot id.
        return [socket.gethostname(), boot, *(os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES)]
    except OSError:
        return None


def _ended(pid: int, start: int) -> bool:
    try:
        os.kill(pid, 0)  # Sends nothing. It sees processes of other users too, which /proc may hide.
    except ProcessLookupError:
        return True
    except OSError:
        pass
    stat = _stat(pid)
    if stat is None:
        return False
    state, threads, started = stat
    # Ended and not yet asked about by its parent; a leader that ended before its threads has some.
    return started != start or (state in _ENDED and threads <= 1)


def _start(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None else stat[2]


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, threads and start (in ticks since boot) of proc(5)'s stat; None where it cannot be read."""
    try:
        # The second field is the command in brackets, which may hold anything.
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return rest[0], int(rest[17]), int(rest[19])
