"""Listing folders: file by file, and in Arrow batches."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.storage.identity import disk_tag
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.local.paths import fail, is_text, local_path, stored
from artemis_lifecycle.storage.local.simulated_archive import ASIDE
from artemis_lifecycle.storage.types import StoredFile

_BATCH = 50_000


def with_archived(folder: str) -> Iterator[StoredFile | str]:
    """Yield the result of `_entries`, plus the archived files, as if they were still at their paths."""
    root = folder.rstrip("/") + "/"
    for entry in _entries(folder):
        if entry != f"{root}{ASIDE}/":
            yield entry
        else:
            yield from _archived_below(root)


def _archived_below(root: str) -> Iterator[StoredFile]:
    for archived in _entries(f"{root}{ASIDE}/"):
        if isinstance(archived, StoredFile):
            name = archived.path.rpartition("/")[2]
            if not os.path.lexists(local_path(root + name)):
                yield replace(archived, path=root + name)


def _entries(folder: str) -> Iterator[StoredFile | str]:
    """Yield the files of one folder and its subfolders, each with a trailing `/`. Nothing if the folder is missing."""
    root = folder.rstrip("/") + "/"
    try:
        with os.scandir(local_path(folder)) as entries:
            for entry in entries:
                if not is_text(entry.name):
                    continue  # Metadata cannot reference it: paths there are UTF-8.
                if entry.is_dir(follow_symlinks=False):
                    yield f"{root}{entry.name}/"
                    continue
                with suppress(FileNotFoundError):  # Deleted since the folder was read.
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield stored(root + entry.name, status)
    except FileNotFoundError:
        return
    except OSError as error:
        fail("A folder cannot be listed", folder, error)


def folder_batches(folder: str, below: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the files of one folder as in `with_archived`, in Arrow. Appends its subfolders to `below`."""
    root = folder.rstrip("/") + "/"
    names: list[str] = []
    archive = False
    try:
        # With the folder open, each file's status needs only its name.
        descriptor = os.open(local_path(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        fail("A folder cannot be listed", folder, error)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = entry.name
                if not (name.isascii() or is_text(name)):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    archive = archive or name == ASIDE
                    if name != ASIDE:
                        below.append(f"{root}{name}/")
                    continue
                names.append(name)
                if len(names) >= _BATCH:
                    yield _files_among(descriptor, root, names)
                    names = []
        if names:
            yield _files_among(descriptor, root, names)
    except OSError as error:
        fail("A folder cannot be listed", folder, error)
    finally:
        os.close(descriptor)
    archived = [*_archived_below(root)] if archive else []
    if archived:
        times = [microseconds(file.last_modified) for file in archived if file.last_modified is not None]
        sizes, tags = [file.size_in_bytes for file in archived], [file.tag for file in archived]
        yield _batch([file.path for file in archived], times, sizes, tags)


def _files_among(folder: int, root: str, names: Sequence[str]) -> pa.RecordBatch:
    """Return the regular files among these names of an open folder, without those that are gone. Raises OSError for one
    that cannot be checked."""

    texts = pa.array(names, pa.string())
    found = np.zeros(len(names), np.bool_)
    sizes, times, tags = (np.zeros(len(names), np.int64) for _ in range(3))
    for row, name in enumerate(names):
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                found[row], sizes[row], times[row] = True, status.st_size, status.st_mtime_ns // 1000
                tags[row] = disk_tag(status.st_dev, status.st_ino, status.st_mtime_ns)
    files = texts.filter(pa.array(found))
    return _batch(pc.binary_join_element_wise(pa.scalar(root), files, ""), times[found], sizes[found], tags[found])


def _batch(paths: Any, times: Any, sizes: Any, tags: Any) -> pa.RecordBatch:

    columns = [
        pa.array(paths, pa.string()),
        pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array(sizes, pa.int64()),
        pa.array(tags, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, ["path", "last_modified", "size_in_bytes", "tag"])
