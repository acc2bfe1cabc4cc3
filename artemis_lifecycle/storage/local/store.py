"""Files on a disk that this machine mounts: paths without a scheme, and `file:` in all its forms."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.instants import elapsed, microseconds
from artemis_lifecycle.storage.local import simulated_archive
from artemis_lifecycle.storage.local.folders import OpenFolder, not_tried
from artemis_lifecycle.storage.local.listing import folder_batches, with_archived
from artemis_lifecycle.storage.local.paths import fail, local_path, status_of, stored
from artemis_lifecycle.storage.local.simulated_archive import archived_error, aside_of, is_aside
from artemis_lifecycle.storage.local.writing import (
    NO_LINKS,
    publish_new,
    read_back,
    sync_folder,
    temporary_beside,
    write_durably,
)
from artemis_lifecycle.storage.types import (
    ArchiveState,
    Children,
    Heads,
    Outcomes,
    StoredFile,
    existing,
    missing,
)


def _at_once_opened(path: str, flags: int) -> int:
    """Open without blocking: for a pipe, opening would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


class LocalStore:
    """A listing neither follows nor shows symbolic links: the target belongs to another owner, and deleting the link
    would remove live files from their path. Reading through a link works."""

    def list(self, prefix: str) -> Iterator[StoredFile]:
        folders = [prefix]
        while folders:
            # In disk order, as a stream: a folder may have more files than fit into memory.
            for entry in with_archived(folders.pop()):
                if isinstance(entry, StoredFile):
                    yield entry
                else:
                    folders.append(entry)

    def batches(self, prefix: str) -> Iterator[pa.RecordBatch]:
        folders = [prefix]
        while folders:
            below: list[str] = []
            yield from folder_batches(folders.pop(), below)
            folders += below

    def children(self, prefix: str) -> Children:
        entries = [*with_archived(prefix)]
        folders = sorted(entry for entry in entries if isinstance(entry, str))
        files = [entry for entry in entries if isinstance(entry, StoredFile)]
        return folders, sorted(files, key=lambda file: file.path)

    def head(self, path: str) -> StoredFile | None:
        where = local_path(path)
        status = status_of(path, where) or status_of(path, aside_of(where))
        return None if status is None or stat.S_ISDIR(status.st_mode) else stored(path, status)

    def heads(self, paths: Sequence[str]) -> Heads:
        with OpenFolder() as folder:
            return [folder.head(path) or self.head(path) for path in paths]

    def exist(self, paths: pa.Array) -> NDArray[np.bool_]:
        """`Stores.exist` for local paths."""
        with OpenFolder() as folder:
            return np.fromiter(map(folder.has, paths.to_pylist()), np.bool_, len(paths))

    def open(self, path: str) -> BinaryIO:
        try:
            file = open(local_path(path), "rb", opener=_at_once_opened)  # noqa: SIM115  (the caller closes it)
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_aside(local_path(path)):
                raise archived_error(path, "it cannot be read") from error
            raise missing(path) from error
        except OSError as error:
            fail("A file cannot be opened", path, error)
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        raise StorageError("It is a device or a pipe, not a file", path=path, untouched="it", hint="remove it")

    def read(self, path: str, limits: ReadLimits) -> bytes:
        with self.open(path) as file:
            try:
                limits.require(os.fstat(file.fileno()).st_size, path)
                return file.read()
            except OSError as error:
                fail("A file cannot be read", path, error)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with self.open(path) as file:
            try:
                file.seek(offset)
                return file.read(length)
            except OSError as error:
                fail("A file cannot be read", path, error)

    def write(self, path: str, data: bytes, *, overwrite: bool, storage_class: str | None) -> StoredFile:
        if is_aside(local_path(path)):
            raise archived_error(path, "it cannot be replaced") if overwrite else existing(path)
        with temporary_beside(path) as (target, temporary):
            try:
                write_durably(temporary, (data,))
                if overwrite:
                    os.replace(temporary, target)
                else:
                    publish_new(temporary, target)
                sync_folder(target.parent)
                return stored(path, os.stat(target))
            except FileExistsError as error:
                raise existing(path) from error
            except OSError as error:
                fail("A file cannot be written", path, error)

    def put_stream(
        self,
        path: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        storage_class: str | None,
        verify: Callable[[int, str], None],
    ) -> None:
        if is_aside(local_path(path)):
            raise archived_error(path, "it cannot be replaced")
        with temporary_beside(path) as (target, temporary):
            try:
                write_durably(temporary, chunks)
                verify(*read_back(temporary))
                os.replace(temporary, target)
                sync_folder(target.parent)
            except OSError as error:
                fail("A file cannot be copied", path, error)

    def delete(self, paths: Sequence[str], *, until: float | None) -> Outcomes:
        outcomes: Outcomes = []
        with OpenFolder() as folder:
            for path in paths:
                over = until is not None and elapsed() >= until
                outcomes.append(not_tried(path) if over else folder.delete(path))
        return outcomes

    def touch(self, path: str, last_modified: datetime) -> None:
        since = microseconds(last_modified) * 1000
        try:
            os.utime(local_path(path), ns=(since, since))
        except FileNotFoundError as error:
            raise missing(path) from error
        except OSError as error:
            fail("A file's time cannot be set", path, error)

    def remove_empty(self, folder: str, below: str) -> int:
        """Remove `folder` and its parents up to `below` (which stays) while they are empty. Return how many were
        removed. Leaves folders that are not empty or do not exist."""
        where, top = Path(local_path(folder)), Path(local_path(below))
        removed = 0
        while top in where.parents and ".." not in where.parts:
            try:
                # It removes only empty folders.
                where.rmdir()
            except OSError:
                break
            removed += 1
            where = where.parent
        return removed

    def second_name(self, path: str, other: str) -> bool:
        """Hard-link the file at `path` to the name `other`. Return False if the disk does not support it, or another
        file has the name."""
        target = Path(local_path(other))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(local_path(path), target)
            except FileExistsError:
                return os.path.samefile(local_path(path), target)
            sync_folder(target.parent)
        except OSError as error:
            if self.head(path) is None:
                raise missing(path) from error
            if error.errno in {*NO_LINKS, errno.EXDEV}:
                return False
            fail("A file cannot be linked", path, error)
        return True

    # --- archive classes, which a disk only simulates

    def archive(self, path: str, storage_class: str) -> bool:
        return simulated_archive.archive(path)

    def thaw(self, path: str, days: int, retrieval: str) -> None:
        simulated_archive.thaw(path, days, self.write)

    def end_thaw(self, path: str) -> None:
        simulated_archive.end_thaw(path)

    def archive_state(self, path: str) -> ArchiveState | None:
        return simulated_archive.archive_state(path)
