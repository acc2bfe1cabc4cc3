"""Ways to die by SIGKILL in the middle of a step of the walk.

A death is one line of text, which a walker takes as an argument:

    <asset> point <name> <n>        at the n-th crash point of that name (1 is the first) that the asset reaches
    <asset> after <seconds>         that long after the asset began
    <asset> file <pattern> <n>      when the n-th new file whose path matches the pattern has appeared
    <asset> gone <pattern> <n>      when this process has deleted the n-th file whose path matches the pattern

and, in front of it, who dies: `all` (this process, its JVM, Spark's Python workers) or `python` (this process alone:
the JVM has to notice by itself).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil


def kill_all(pid: int) -> None:
    """SIGKILL to a process and all that descend from it. They are stopped first, so that none sees another die."""
    process = psutil.Process(pid)
    family = process.children(recursive=True)
    if pid != os.getpid():
        family.append(process)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for member in family:
            try:
                member.send_signal(number)
            except psutil.NoSuchProcess:
                continue


@dataclass
class Death:
    """When and how this process dies. `note` is written, and on the disk, before; `folder` is watched for files."""

    text: str
    note: Path
    folder: Path
    _asset: str | None = None
    _seen: int = 0
    _there: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.who, self.asset, self.how, *self.rest = self.text.split()

    def began(self, asset: str) -> None:
        """The walk has begun this asset, and has left the one before."""
        self._asset = asset
        if asset != self.asset:
            return
        if self.how == "after":
            threading.Timer(float(self.rest[0]), self._die, [f"{self.rest[0]} s after its beginning"]).start()
        elif self.how == "gone":
            self._count_deletions()
        elif self.how == "file":
            self._there = self._files()
            threading.Thread(target=self._watch, daemon=True).start()

    def reached(self, point: str) -> None:
        """A crash point is reached."""
        if self.how == "point" and self._asset == self.asset and point == self.rest[0]:
            self._seen += 1
            if self._seen == int(self.rest[1]):
                self._die(point)

    def _watch(self) -> None:
        pattern, wanted = self.rest[0], int(self.rest[1])
        while self._asset == self.asset:
            found = [path for path in self._files() - self._there if fnmatch(path, pattern)]
            if len(found) >= wanted:
                self._die(f"{len(found)} of {pattern} there")
            time.sleep(0.002)

    def _count_deletions(self) -> None:
        # By the system call that the local store makes: a watcher of the folder would see the last when all are gone.
        pattern, wanted = self.rest[0], int(self.rest[1])
        unlink = os.unlink

        def counted(path: Any, *, dir_fd: int | None = None) -> None:
            # The store deletes by names in an open folder, and the pattern is one of whole paths.
            folder = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            unlink(path, dir_fd=dir_fd)
            gone = os.path.join(folder, path)
            # Removing the temporary file of a write is not a deletion.
            if self._asset == self.asset and fnmatch(gone, pattern) and not gone.endswith(".tmp"):
                self._seen += 1
                if self._seen == wanted:
                    self._die(f"{wanted} of {pattern} gone, {os.path.basename(gone)} last")

        os.unlink = counted

    def _files(self) -> set[str]:
        found: set[str] = set()
        for folder, _, names in os.walk(self.folder):
            found.update(f"{folder}/{name}" for name in names)
        return found

    def _die(self, where: str) -> None:
        if self._asset != self.asset:
            return
        with self.note.open("w") as note:
            note.write(where)
            note.flush()
            os.fsync(note.fileno())
        if self.who == "all":
            kill_all(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
