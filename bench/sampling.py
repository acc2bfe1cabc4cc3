"""Memory of a process and all that it started, sampled from outside while it works.

The JVM counts with its resident pages; Python processes count with their proportional share (PSS), because workers are
forks that share most pages with each other. Linux only.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_PAGE = os.sysconf("SC_PAGE_SIZE")
_REFRESH_SECONDS = 0.2


@dataclass(frozen=True)
class Sample:
    """Bytes at a monotonic instant."""

    at: float
    jvm: int
    python: int


class Sampler(threading.Thread):
    """Samples `pid` and its descendants every `interval` seconds, until `stop`."""

    def __init__(self, pid: int, interval: float = 0.04) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._pid = pid
        self._interval = interval
        self._over = threading.Event()

    def run(self) -> None:
        known: dict[int, bool] = {}
        refreshed = 0.0
        while not self._over.wait(self._interval):
            now = time.monotonic()
            if now - refreshed > _REFRESH_SECONDS:
                known, refreshed = self._processes(known), now
            jvm = python = 0
            for pid, is_jvm in known.items():
                size = _resident(pid) if is_jvm else _proportional(pid)
                jvm, python = (jvm + size, python) if is_jvm else (jvm, python + size)
            self.samples.append(Sample(now, jvm, python))

    def stop(self) -> list[Sample]:
        self._over.set()
        self.join()
        return self.samples

    def _processes(self, before: dict[int, bool]) -> dict[int, bool]:
        try:
            pids = [self._pid, *(child.pid for child in psutil.Process(self._pid).children(recursive=True))]
        except psutil.NoSuchProcess:
            return {}
        found: dict[int, bool] = {}
        for pid in pids:
            # A child is a copy of its parent until it calls exec: check again until then.
            if not before.get(pid):
                try:
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                except OSError:
                    continue
                found[pid] = name == "java"
            else:
                found[pid] = True
        return found


def processor_seconds() -> float:
    """Processor seconds of this process and all that it started, if it still lives or its parent waited for it: a busy
    machine hardly changes them."""
    total = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        except psutil.NoSuchProcess:
            continue
    return total


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
