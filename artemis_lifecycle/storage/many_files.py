"""Status and deletion of many local files, with compiled loops in a few threads. Belongs here: opening their folders
and dividing the work. Does not belong here: files for which a call fails (`local`).

Savings for 100,000 files on 2 cores: checks take 0.08 s instead of 0.42 s, deletions 0.37 s instead of 0.91 s, a
listing 0.22 s instead of 0.30 s.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.storage.identity import disk_tag
from artemis_lifecycle.storage.location_hash import text_buffers
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import FileStatuses

_OPEN = 128
"""Maximum number of folders that are open at the same time."""

_SLICE = 500
"""Minimum number of files that a thread takes at a time."""

_THREADS_PER_CORE = 2

DELETED, REFUSED, NOT_TRIED = 1, 0, -1
"""Results of `unlink` per row. REFUSED has no reason; the file may already have been gone."""


COMPILED_FROM = 256
"""Number of files from which a call uses compiled loops in threads: numba takes half a second to load."""


def worth_compiling(paths: pa.Array) -> bool:
    """Return True if the batch is large enough for the compiled loops, and this machine can run them."""
    return len(paths) >= COMPILED_FROM and usable()


@cache
def usable() -> bool:
    """Return True if this machine supports the system calls of the compiled loops, and has file names in UTF-8 like
    metadata."""
    if sys.platform != "linux" or sys.maxsize <= 2**32 or sys.byteorder != "little":
        return False
    libc = ctypes.CDLL(None)
    return all(hasattr(libc, name) for name in ("statx", "faccessat", "unlinkat", "clock_gettime")) and (
        sys.getfilesystemencoding().lower() in ("utf-8", "utf8")
    )


@dataclass(frozen=True)
class ByFolder:
    """Paths in their buffers, and where the name of each begins: -1 if folder and name cannot be separated
    (`location.folder_and_name`). `starts` are the rows at which the folder changes. `cut` are those with `?` or `#` in
    their names."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    names: NDArray[np.int64]
    starts: NDArray[np.int64]
    cut: NDArray[np.bool_]

    @classmethod
    def of(cls, paths: pa.Array) -> Self:
        """From an Arrow array of strings without nulls."""
        return cls.at(*text_buffers(paths))

    @classmethod
    def at(cls, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> Self:
        """From consecutive UTF-8 texts: `offsets` has one more entry than there are texts."""

        from artemis_lifecycle.storage.folder_kernels import by_folder

        rows = len(offsets) - 1
        names, first, cut = np.empty(rows, np.int64), np.empty(rows, np.bool_), np.empty(rows, np.bool_)
        by_folder(data, offsets, names, first, cut)
        return cls(data, offsets, names, np.flatnonzero(first), cut)

    def folder(self, row: int) -> str | None:
        """Return the folder of a path without its trailing slash. None if it cannot be separated."""
        name = int(self.names[row])
        return None if name < 0 else self.data[int(self.offsets[row]) : name - 1].tobytes().decode()


def statuses(paths: pa.Array, opened: Callable[[str], int | None]) -> FileStatuses:
    """Return which of the paths are regular files, with their identities. A path for which the call fails counts as not
    found. `opened` returns a folder's descriptor, or None if the loops should skip it."""

    from artemis_lifecycle.storage import disk_kernels

    found, values = np.zeros(len(paths), np.int8), np.zeros((len(paths), disk_kernels.VALUES), np.int64)

    def work(files: ByFolder, folders: NDArray[np.int64], low: int, high: int) -> None:
        disk_kernels.stat(
            files.data, files.names, files.offsets[1:], folders, low, high, disk_kernels.FOLLOW, found, values
        )

    _through(paths, opened, work)
    return _statuses_of(found, values)


def statuses_in(folder: int, names: pa.Array) -> FileStatuses:
    """`statuses` of names in the open folder of this descriptor, without following symbolic links."""

    from artemis_lifecycle.storage import disk_kernels

    offsets, data = text_buffers(names)
    found, folders = np.zeros(len(names), np.int8), np.full(len(names), folder, np.int64)
    values = np.zeros((len(names), disk_kernels.VALUES), np.int64)

    def work(low: int, high: int) -> None:
        disk_kernels.stat(data, offsets[:-1], offsets[1:], folders, low, high, disk_kernels.NO_FOLLOW, found, values)

    _sliced(0, len(names), work)
    return _statuses_of(found, values)


def _statuses_of(found: NDArray[np.int8], values: NDArray[np.int64]) -> FileStatuses:
    sizes, nanoseconds, inodes, devices = (np.ascontiguousarray(column) for column in values.T)
    tags = disk_tag(*(each.view(np.uint64) for each in (devices, inodes, nanoseconds)))
    return FileStatuses(found == 1, sizes, nanoseconds // 1000, tags)


def exist(paths: pa.Array, opened: Callable[[str], int | None]) -> NDArray[np.int8]:
    """Return 1 if something exists at a path, 0 if nothing does, -1 if the loop could not ask."""

    from artemis_lifecycle.storage import disk_kernels

    found = np.full(len(paths), -1, np.int8)

    def work(files: ByFolder, folders: NDArray[np.int64], low: int, high: int) -> None:
        disk_kernels.exist(files.data, files.names, files.offsets[1:], folders, low, high, found)

    _through(paths, opened, work)
    return found


def unlink(paths: pa.Array, opened: Callable[[str], int | None], until: float) -> NDArray[np.int8]:
    """Return DELETED, REFUSED or NOT_TRIED for each path. No path is tried once `instants.elapsed` is `until`."""

    from artemis_lifecycle.storage import disk_kernels

    done = np.full(len(paths), NOT_TRIED, np.int8)

    def work(files: ByFolder, folders: NDArray[np.int64], low: int, high: int) -> None:
        disk_kernels.unlink(files.data, files.names, files.offsets[1:], folders, low, high, until, done)

    _through(paths, opened, work)
    return done


def _through(
    paths: pa.Array,
    opened: Callable[[str], int | None],
    work: Callable[[ByFolder, NDArray[np.int64], int, int], None],
) -> None:
    """Process all rows in slices, with the descriptors of their folders (-1: none)."""

    files = ByFolder.of(paths)
    folders = np.full(len(paths), -1, np.int64)
    for rows in _windows(files.starts, len(paths)):
        descriptors: list[int] = []
        at_work: set[tuple[int, int]] = set()

        def noted(low: int, high: int, at_work: set[tuple[int, int]] = at_work) -> None:
            at_work.add((low, high))
            try:
                work(files, folders, low, high)
            finally:
                at_work.discard((low, high))

        try:
            for low, high in pairwise(rows):
                folder = files.folder(low)
                descriptor = None if folder is None else opened(folder)
                if descriptor is not None:
                    descriptors.append(descriptor)
                    folders[low:high] = descriptor
            _sliced(rows[0], rows[-1], noted)
        finally:
            # An interrupt may arrive while loops still run. If their folder were closed, its descriptor could be reused
            # for the next folder. Such folders stay open.
            if not at_work:
                for descriptor in descriptors:
                    os.close(descriptor)


def _sliced(low: int, high: int, work: Callable[[int, int], None]) -> None:
    """Process the rows from `low` to `high` in a few threads."""
    threads = len(os.sched_getaffinity(0)) * _THREADS_PER_CORE
    size = max(_SLICE, -(-(high - low) // threads))
    slices = [(start, min(start + size, high)) for start in range(low, high, size)]
    for _ in threaded(lambda piece: work(*piece), slices, threads):
        pass


def _windows(starts: NDArray[np.int64], rows: int) -> Iterator[list[int]]:
    """Yield the first rows of as many folders as may be open at once, and the row after the last of them."""
    for first in range(0, len(starts), _OPEN):
        behind = int(starts[first + _OPEN]) if first + _OPEN < len(starts) else rows
        yield [*starts[first : first + _OPEN].tolist(), behind]
