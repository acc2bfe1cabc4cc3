"""Files on a disk that this machine mounts: paths without a scheme, and `file:` in all its forms."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.instants import is_late, of_microseconds
from artemis_lifecycle.storage.location import normalize, split
from artemis_lifecycle.storage.types import (
    CHUNK,
    NOT_TRIED,
    ArchiveState,
    Children,
    DeleteOutcome,
    Heads,
    Outcomes,
    StoredFile,
    disk_tag,
    existing,
    missing,
)

_LONGEST_PATH, _LONGEST_NAME = 4096, 1023
"""Maximum bytes of a path that Linux resolves, including its NUL, and of a name on the most generous file system."""


# --- paths ------------------------------------------------------------------------------------------------------------
# Paths for the operating system, the status of files, and errors with their paths.


def local_path(path: str) -> str:
    """Return the path for the operating system. Raises StorageError for a path on another host, or a relative one."""
    location = normalize(path)
    if location.startswith("file:///") and _is_name(location):
        return location[len("file://") :]
    raise StorageError(
        "This is not an absolute path on this machine", path=path, hint="use /folder/file or file:///folder/file"
    )


def through_link(path: str, root: str) -> bool:
    """Return True if a folder between the folder `root` and the local file `path` is a symbolic link. As in a listing,
    files behind a link belong to another owner. `root` itself may contain links. False on other stores."""
    if split(path).scheme not in ("", "file"):
        return False
    try:
        folder, top = os.path.dirname(local_path(path)), local_path(root).rstrip("/")
        return os.path.realpath(folder) != os.path.realpath(top) + folder[len(top) :]
    except (OSError, StorageError):
        return True


def status_of(path: str, where: str) -> os.stat_result | None:
    try:
        return os.stat(where)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and names_nothing(where):
            return None
        fail("A file's status cannot be read", path, error)


def names_nothing(where: str) -> bool:
    """Return True if a path that is too long for the kernel has a component that no file can have. A long path of short
    names can still exist, and can be reached folder by folder."""
    path = os.fsencode(where)
    return len(path) < _LONGEST_PATH or max(map(len, path.split(b"/"))) > _LONGEST_NAME


def no_place(path: str) -> str | None:
    """Return why a disk can have no file at `path`: object stores have names that no disk has, and `h` beside `h/i`."""
    where = local_path(path)
    if os.path.isdir(where):
        return "a folder has its name"
    above = next(each for each in Path(where).parents if os.path.lexists(each))
    if not os.path.isdir(above):
        return f"{above} is a file, not a folder"
    most = os.statvfs(above).f_namemax
    return f"a name in it has more than {most} bytes" if max(map(len, os.fsencode(where).split(b"/"))) > most else None


def stored(path: str, status: os.stat_result) -> StoredFile:
    tag = disk_tag(status.st_dev, status.st_ino, status.st_mtime_ns)
    modified = of_microseconds(status.st_mtime_ns // 1000)
    return StoredFile(path, status.st_size, modified, tag, changed=status.st_ctime_ns // 1000)


def fail(what: str, path: str, error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    raise StorageError(
        f"{what}: {reason}", path=path, untouched="the existing files", hint="fix access to that path, then rerun"
    ) from error


def _is_name(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def is_text(name: str) -> bool:
    """Return True if the name can be written in UTF-8, like all paths in metadata and frames."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- writing ----------------------------------------------------------------------------------------------------------
# Atomic file writes.

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@contextmanager
def temporary_beside(path: str) -> Iterator[tuple[Path, Path]]:
    """Yield the path, and a temporary name next to it to write to first. A killed process leaves the temporary file
    behind as an unreferenced file, which an orphan scan finds once it is old enough."""
    target = Path(local_path(path))
    # Not derived from the target's name, which may already have the maximum length.
    temporary = target.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail("A folder cannot be made", path, error)
    try:
        yield target, temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_durably(temporary: Path, chunks: Iterable[bytes]) -> None:
    with open(temporary, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def read_back(temporary: Path) -> tuple[int, str]:
    with open(temporary, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), f"sha256:{digest.hexdigest()}"


def publish_new(temporary: Path, target: Path) -> None:
    """Give the file its name. Raises FileExistsError if the name is taken, also by a concurrent writer."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # No hard links here (exFAT, some network and FUSE mounts): reserve the name with an empty file, then fill it. A
        # kill between the two leaves the empty file, which reads as damaged rather than as other content.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        os.replace(temporary, target)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # Some network mounts cannot sync folders; the file itself is already on disk.
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- deleting ---------------------------------------------------------------------------------------------------------


def delete_file(path: str) -> DeleteOutcome:
    try:
        where = local_path(path)
        if is_aside(where):
            return DeleteOutcome(path, "failed", "it is in the archive")
        os.unlink(where)
    except (FileNotFoundError, NotADirectoryError):
        return DeleteOutcome(path, "absent")
    except IsADirectoryError:
        return DeleteOutcome(path, "failed", "it is a folder")
    except StorageError as error:
        return DeleteOutcome(path, "failed", error.what)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and names_nothing(where):
            return DeleteOutcome(path, "absent")
        # macOS answers EPERM for a folder.
        return DeleteOutcome(path, "failed", error.strerror or str(error))
    return DeleteOutcome(path, "deleted")


# --- listing ----------------------------------------------------------------------------------------------------------
# Listing folders.

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
                yield replace(archived, path=root + name, archived=True)


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


# --- simulated archive ------------------------------------------------------------------------------------------------
# A simulation of S3's archive classes on the local disk, for demos and tests of the deep archive.
#
# A disk has no archive class. An archived file moves to the folder `.deep-archive` next to it. It is still listed at
# its path, but is not readable there until it is thawed. A thaw links the file back to its path at once, and records
# in `.until` how long it stays. This saves no cost and adds no safety.

ASIDE = ".deep-archive"
_UNTIL = ".until"


def link(path: str, aside: str) -> None:
    """Link the file `aside` to the name `path` as well; copy it where links are not supported."""
    try:
        os.link(aside, local_path(path))
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with temporary_beside(path) as (target, temporary), open(aside, "rb") as file:
            write_durably(temporary, iter(lambda: file.read(CHUNK), b""))
            os.replace(temporary, target)


def aside_of(where: str) -> str:
    """Return where a local path's file is stored while it is archived."""
    folder, _, name = where.rpartition("/")
    return f"{folder}/{ASIDE}/{name}"


def is_aside(where: str) -> bool:
    return os.path.isfile(aside_of(where))


def _until(where: str) -> Path:
    """Return the file that records how long the thawed copy stays."""
    folder, _, name = where.rpartition("/")
    return Path(folder, ASIDE, _UNTIL, name)


def archived_error(path: str, what: str) -> StorageError:
    return StorageError(
        f"The file is in the archive, so {what}", path=path, untouched="the file", hint="thaw it with artemis thaw"
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
        listed = self.list(prefix)
        while files := list(islice(listed, _BATCH)):
            columns = [
                pa.array([file.path for file in files], pa.string()),
                pa.array([file.identity.modified for file in files]).cast(pa.timestamp("us", "UTC")),
                pa.array([file.size_in_bytes for file in files], pa.int64()),
                pa.array([file.tag for file in files], pa.int64()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["path", "last_modified", "size_in_bytes", "tag"])

    def children(self, prefix: str, most: int | None = None) -> Children:
        entries = [*with_archived(prefix)]
        folders = sorted(entry for entry in entries if isinstance(entry, str))
        files = [entry for entry in entries if isinstance(entry, StoredFile)]
        return folders, sorted(files, key=lambda file: file.path)

    def head(self, path: str) -> StoredFile | None:
        where = local_path(path)
        status = status_of(path, where)
        # A thawed file is one more link to it.
        archived = status is None or (status.st_nlink > 1 and is_aside(where))
        status = status or status_of(path, aside_of(where))
        if status is None or stat.S_ISDIR(status.st_mode):
            return None
        return replace(stored(path, status), archived=archived) if archived else stored(path, status)

    def heads(self, paths: Sequence[str]) -> Heads:
        return [self.head(path) for path in paths]

    def exist(self, paths: pa.Array) -> NDArray[np.bool_]:
        """`Stores.exist` for local paths."""
        return np.fromiter((os.path.lexists(local_path(path)) for path in paths.to_pylist()), np.bool_, len(paths))

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
        overwrite: bool,
    ) -> None:
        if is_aside(local_path(path)):
            raise archived_error(path, "it cannot be replaced")
        with temporary_beside(path) as (target, temporary):
            try:
                write_durably(temporary, chunks)
                verify(*read_back(temporary))
                if overwrite:
                    os.replace(temporary, target)
                else:
                    publish_new(temporary, target)
                sync_folder(target.parent)
            except FileExistsError as error:
                raise existing(path) from error
            except OSError as error:
                fail("A file cannot be copied", path, error)

    def delete(self, paths: Sequence[str], *, until: float | None, etags: Mapping[int, str] = {}) -> Outcomes:
        outcomes: Outcomes = []
        for path in paths:
            outcomes.append(DeleteOutcome(path, "failed", NOT_TRIED) if is_late(until) else delete_file(path))
        return outcomes

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
        where = local_path(path)
        if is_aside(where):
            return False
        target, aside = Path(where), Path(aside_of(where))
        try:
            aside.parent.mkdir(exist_ok=True)
            os.rename(target, aside)
            sync_folder(aside.parent)
            sync_folder(target.parent)
        except FileNotFoundError as error:
            raise missing(path) from error
        except OSError as error:
            fail("A file cannot be archived", path, error)
        return True

    def thaw(self, path: str, days: int, retrieval: str) -> None:
        state = self.archive_state(path)
        if state is None:
            raise missing(path)
        until = datetime.now(UTC) + timedelta(days=days)
        if not state.archived or (state.readable_until is not None and state.readable_until >= until):
            return
        where = local_path(path)
        self.write(str(_until(where)), until.isoformat().encode(), overwrite=True, storage_class=None)
        try:
            with suppress(FileExistsError):
                link(path, aside_of(where))
            sync_folder(Path(where).parent)
        except OSError as error:
            fail("A file cannot be thawed", path, error)

    def end_thaw(self, path: str) -> None:
        where = local_path(path)
        if not is_aside(where):
            return
        try:
            for gone in (Path(where), _until(where)):
                gone.unlink(missing_ok=True)
        except OSError as error:
            fail("A thawed file cannot be removed", path, error)

    def unarchive(self, path: str) -> bool:
        where = local_path(path)
        aside = aside_of(where)
        try:
            if is_aside(where):
                # A thawed file is a link to it, and a rename over a link to the same file does nothing.
                if os.path.exists(where) and os.path.samefile(where, aside):
                    os.unlink(aside)
                else:
                    os.replace(aside, where)
            _until(where).unlink(missing_ok=True)
            sync_folder(Path(where).parent)
        except OSError as error:
            fail("A file cannot be taken out of the archive", path, error)
        return True

    def archive_state(self, path: str) -> ArchiveState | None:
        where = local_path(path)
        exists = status_of(path, where) is not None
        if not is_aside(where):
            return ArchiveState(archived=False, readable=True) if exists else None
        try:
            until = datetime.fromisoformat(_until(where).read_text())
        except (OSError, ValueError):
            until = None
        return ArchiveState(archived=True, readable=exists, readable_until=until if exists else None)
