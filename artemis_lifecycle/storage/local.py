"""Files on a disk that this machine mounts: paths without a scheme, and `file:` in each of its forms."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from artemis_lifecycle.errors import ExistingFile, MissingFile, StorageError
from artemis_lifecycle.storage import many_files
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.instants import elapsed, microseconds, of_microseconds
from artemis_lifecycle.storage.location import folder_and_name, normalise, split
from artemis_lifecycle.storage.types import (
    CHUNK,
    NOT_TRIED,
    REMOVED,
    ArchiveState,
    Children,
    DeleteOutcome,
    Heads,
    Looks,
    Outcomes,
    Removals,
    StoredFile,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_ASIDE = ".deep-archive"
"""The folder that stands for an archive class: what is in it is listed where it came from, and not readable there."""
_UNTIL = ".until"
_BATCH = 50_000
COMPILED_FROM = 256
"""Files of a call from which on it goes through compiled loops, in threads: numba takes half a second to load."""
_LONGEST_PATH, _LONGEST_NAME = 4096, 1023
"""Bytes: of a path that Linux looks at, its NUL included; and of one name, on the file system that allows most."""
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def _at_once_opened(path: str, flags: int) -> int:
    """Of a pipe, whose opening would wait for a writer, too."""
    return os.open(path, flags | os.O_NONBLOCK)


class LocalStore:
    """A listing never follows a symbolic link and never shows one: what is behind it belongs to somebody else, and
    deleting the link would take live files away from their path. Reading through a link works.
    """

    def list(self, prefix: str) -> Iterator[StoredFile]:
        folders = [prefix]
        while folders:
            # As the disk gives them: a folder may hold more files than memory does.
            for entry in _with_archived(folders.pop()):
                if isinstance(entry, StoredFile):
                    yield entry
                else:
                    folders.append(entry)

    def batches(self, prefix: str) -> Iterator[pa.RecordBatch]:
        folders = [prefix]
        while folders:
            below: list[str] = []
            yield from _batches(folders.pop(), below)
            folders += below

    def children(self, prefix: str) -> Children:
        entries = [*_with_archived(prefix)]
        folders = sorted(entry for entry in entries if isinstance(entry, str))
        files = [entry for entry in entries if isinstance(entry, StoredFile)]
        return folders, sorted(files, key=lambda file: file.path)

    def head(self, path: str) -> StoredFile | None:
        where = local_path(path)
        status = _status(path, where) or _status(path, _aside(where))
        return None if status is None or stat.S_ISDIR(status.st_mode) else _stored(path, status)

    def heads(self, paths: Sequence[str]) -> Heads:
        with _Folder() as folder:
            return [folder.head(path) or self.head(path) for path in paths]

    def looks(self, paths: pa.Array) -> Looks:
        """As `Stores.looks`, of paths on this machine."""
        if not _at_once(paths):
            return Looks.of(self.heads(paths.to_pylist()))
        import numpy as np

        answers = Looks(*many_files.looks(paths, lambda folder: _opened(folder)[1]))
        for row in np.flatnonzero(~answers.found).tolist():
            answers.put(row, self.head(paths[row].as_py()))
        return answers

    def there(self, paths: pa.Array) -> NDArray[np.bool_]:
        """As `Stores.there`."""
        import numpy as np

        found = np.full(len(paths), -1, np.int8)
        if _at_once(paths):
            found = many_files.there(paths, lambda folder: _opened(folder)[1])
        with _Folder() as folder:
            for row in np.flatnonzero(found < 0).tolist():
                found[row] = folder.has(paths[row].as_py())
        return np.asarray(found == 1)

    def open(self, path: str) -> BinaryIO:
        try:
            file = open(local_path(path), "rb", opener=_at_once_opened)  # noqa: SIM115  (the caller closes it)
        except (FileNotFoundError, NotADirectoryError) as error:
            if _is_aside(local_path(path)):
                raise _archived(path, "it cannot be read") from error
            raise missing(path) from error
        except OSError as error:
            _fail("A file cannot be opened", path, error)
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        raise StorageError("It is a device or a pipe, and no file", path=path, untouched="it", hint="remove it")

    def read(self, path: str, limits: ReadLimits) -> bytes:
        with self.open(path) as file:
            try:
                limits.require(os.fstat(file.fileno()).st_size, path)
                return file.read()
            except OSError as error:
                _fail("A file cannot be read", path, error)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with self.open(path) as file:
            try:
                file.seek(offset)
                return file.read(length)
            except OSError as error:
                _fail("A file cannot be read", path, error)

    def write(self, path: str, data: bytes, *, overwrite: bool, storage_class: str | None) -> StoredFile:
        if _is_aside(local_path(path)):
            raise _archived(path, "it cannot be replaced") if overwrite else existing(path)
        with self._temporary(path) as (target, temporary):
            try:
                _write_durably(temporary, (data,))
                if overwrite:
                    os.replace(temporary, target)
                else:
                    _publish_new(temporary, target)
                _sync_folder(target.parent)
                return _stored(path, os.stat(target))
            except FileExistsError as error:
                raise existing(path) from error
            except OSError as error:
                _fail("A file cannot be written", path, error)

    def put_stream(
        self,
        path: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        storage_class: str | None,
        verify: Callable[[int, str], None],
    ) -> None:
        if _is_aside(local_path(path)):
            raise _archived(path, "it cannot be replaced")
        with self._temporary(path) as (target, temporary):
            try:
                _write_durably(temporary, chunks)
                verify(*_read_back(temporary))
                os.replace(temporary, target)
                _sync_folder(target.parent)
            except OSError as error:
                _fail("A file cannot be copied", path, error)

    @contextmanager
    def _temporary(self, path: str) -> Iterator[tuple[Path, Path]]:
        """The path, and a name beside it to write to first; a process that is killed leaves that one behind, as an
        unreferenced file that an orphan scan finds by its age."""
        target = Path(local_path(path))
        # Not built from the target's name, which may be as long as a name can be.
        temporary = target.parent / f".{uuid.uuid4().hex}.tmp"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _fail("A folder cannot be made", path, error)
        try:
            yield target, temporary
        finally:
            with suppress(OSError):
                temporary.unlink()

    def delete(self, paths: Sequence[str], *, until: float | None) -> Outcomes:
        outcomes: Outcomes = []
        with _Folder() as folder:
            for path in paths:
                over = until is not None and elapsed() >= until
                outcomes.append(_not_tried(path) if over else folder.delete(path))
        return outcomes

    def remove(self, paths: pa.Array, *, until: float | None) -> Removals:
        """As `Stores.remove`, of paths on this machine."""
        if not _at_once(paths):
            return Removals.of(self.delete(paths.to_pylist(), until=until))
        import numpy as np

        end = float("inf") if until is None else until

        def opened(folder: str) -> int | None:
            where, descriptor = _opened(folder)
            if descriptor is not None and _archives(where):
                os.close(descriptor)
                return None
            return descriptor

        done = many_files.unlink(paths, opened, end)
        removals = Removals(np.full(len(paths), REMOVED, np.int8))
        # Of what the system did not simply take away, a look at each says why.
        for row in np.flatnonzero(done != many_files.DELETED).tolist():
            path = paths[row].as_py()
            tried = done[row] != many_files.NOT_TRIED and elapsed() < end
            removals.put(row, _delete(path) if tried else _not_tried(path))
        return removals

    def touch(self, path: str, last_modified: datetime) -> None:
        since = microseconds(last_modified) * 1000
        try:
            os.utime(local_path(path), ns=(since, since))
        except FileNotFoundError as error:
            raise missing(path) from error
        except OSError as error:
            _fail("A file's time cannot be set", path, error)

    # --- archive classes

    def archive(self, path: str, storage_class: str) -> bool:
        where = local_path(path)
        if _is_aside(where):
            return False
        target, aside = Path(where), Path(_aside(where))
        try:
            aside.parent.mkdir(exist_ok=True)
            os.rename(target, aside)
            _sync_folder(aside.parent)
            _sync_folder(target.parent)
        except FileNotFoundError as error:
            raise missing(path) from error
        except OSError as error:
            _fail("A file cannot be put aside", path, error)
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
                self._link(path, _aside(where))
            _sync_folder(Path(where).parent)
        except OSError as error:
            _fail("A file cannot be thawed", path, error)

    def remove_empty(self, folder: str, below: str) -> int:
        """Take away `folder`, and the folders around it up to `below` (which stays), as long as they are empty; how
        many went. What is not empty, or not there, is left."""
        where, top = Path(local_path(folder)), Path(local_path(below))
        removed = 0
        while top in where.parents and ".." not in where.parts:
            try:
                # It takes no folder that has anything in it.
                where.rmdir()
            except OSError:
                break
            removed += 1
            where = where.parent
        return removed

    def second_name(self, path: str, other: str) -> bool:
        """Give the file at `path` the name `other`, too; False where the disk cannot, or another file has it."""
        target = Path(local_path(other))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(local_path(path), target)
            except FileExistsError:
                return os.path.samefile(local_path(path), target)
            _sync_folder(target.parent)
        except OSError as error:
            if self.head(path) is None:
                raise missing(path) from error
            if error.errno in {*_NO_LINKS, errno.EXDEV}:
                return False
            _fail("A file cannot be linked", path, error)
        return True

    def _link(self, path: str, aside: str) -> None:
        """The file `aside` under the name `path`, too: as a copy where there are no links."""
        try:
            os.link(aside, local_path(path))
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with self._temporary(path) as (target, temporary), open(aside, "rb") as file:
                _write_durably(temporary, iter(lambda: file.read(CHUNK), b""))
                os.replace(temporary, target)

    def end_thaw(self, path: str) -> None:
        where = local_path(path)
        if not _is_aside(where):
            return
        try:
            for gone in (Path(where), _until(where)):
                gone.unlink(missing_ok=True)
        except OSError as error:
            _fail("A thawed file cannot be put away", path, error)

    def archive_state(self, path: str) -> ArchiveState | None:
        where = local_path(path)
        is_here = _status(path, where) is not None
        if not _is_aside(where):
            return ArchiveState(archived=False, readable=True) if is_here else None
        try:
            until = datetime.fromisoformat(_until(where).read_text())
        except (OSError, ValueError):
            until = None
        return ArchiveState(archived=True, readable=is_here, readable_until=until if is_here else None)


def _aside(where: str) -> str:
    """Where the file of a local path is while it is archived."""
    folder, _, name = where.rpartition("/")
    return f"{folder}/{_ASIDE}/{name}"


def _is_aside(where: str) -> bool:
    return os.path.isfile(_aside(where))


def _until(where: str) -> Path:
    """Where it is written until when the file's thawed copy stays."""
    folder, _, name = where.rpartition("/")
    return Path(folder, _ASIDE, _UNTIL, name)


def _archived(path: str, what: str) -> StorageError:
    return StorageError(
        f"The file is in the archive, so {what}",
        path=path,
        untouched="the file",
        hint="have it thawed: artemis thaw",
    )


def _status(path: str, where: str) -> os.stat_result | None:
    try:
        return os.stat(where)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and _names_nothing(where):
            return None
        _fail("A file cannot be looked at", path, error)


def _names_nothing(where: str) -> bool:
    """Whether a path that the kernel finds too long has a name in it that no file can have. A path of many short names
    may be one of a file all the same, reached folder by folder."""
    path = os.fsencode(where)
    return len(path) < _LONGEST_PATH or max(map(len, path.split(b"/"))) > _LONGEST_NAME


def _with_archived(folder: str) -> Iterator[StoredFile | str]:
    """`_entries`, and what is archived among them, as if it were still there."""
    root = folder.rstrip("/") + "/"
    for entry in _entries(folder):
        if entry != f"{root}{_ASIDE}/":
            yield entry
        else:
            yield from _archived_below(root)


def _archived_below(root: str) -> Iterator[StoredFile]:
    for archived in _entries(f"{root}{_ASIDE}/"):
        if isinstance(archived, StoredFile):
            name = archived.path.rpartition("/")[2]
            if not os.path.lexists(local_path(root + name)):
                yield replace(archived, path=root + name)


def _entries(folder: str) -> Iterator[StoredFile | str]:
    """The files of one folder, and the folders in it, each with its closing `/`; none when it is missing."""
    root = folder.rstrip("/") + "/"
    try:
        with os.scandir(local_path(folder)) as entries:
            for entry in entries:
                if not is_text(entry.name):
                    continue  # No metadata can name it: paths are UTF-8 there.
                if entry.is_dir(follow_symlinks=False):
                    yield f"{root}{entry.name}/"
                    continue
                with suppress(FileNotFoundError):  # Gone since the folder was read.
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield _stored(root + entry.name, status)
    except FileNotFoundError:
        return
    except OSError as error:
        _fail("A folder cannot be listed", folder, error)


def _batches(folder: str, below: list[str]) -> Iterator[pa.RecordBatch]:
    """The files of one folder as `_with_archived` has them, in Arrow; the folders in it are put into `below`."""
    root = folder.rstrip("/") + "/"
    names: list[str] = []
    archive = False
    try:
        # By the open folder: each look at a file then goes by its name alone.
        descriptor = os.open(local_path(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        _fail("A folder cannot be listed", folder, error)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = entry.name
                if not (name.isascii() or is_text(name)):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    archive = archive or name == _ASIDE
                    if name != _ASIDE:
                        below.append(f"{root}{name}/")
                    continue
                names.append(name)
                if len(names) >= _BATCH:
                    yield _looked_at(descriptor, root, names)
                    names = []
        if names:
            yield _looked_at(descriptor, root, names)
    except OSError as error:
        _fail("A folder cannot be listed", folder, error)
    finally:
        os.close(descriptor)
    archived = [*_archived_below(root)] if archive else []
    if archived:
        times = [microseconds(file.last_modified) for file in archived if file.last_modified is not None]
        yield _batch([file.path for file in archived], times, [file.size_in_bytes for file in archived])


def _looked_at(folder: int, root: str, names: Sequence[str]) -> pa.RecordBatch:
    """The plain files among these names of an open folder. A name that is gone by now is left out; raises OSError where
    one cannot be looked at."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.array(names, pa.string())
    found = np.zeros(len(names), np.bool_)
    sizes, times = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    if _at_once(texts):
        found, sizes, times = many_files.looks_in(folder, texts)
    for row in np.flatnonzero(~found).tolist():
        with suppress(FileNotFoundError):
            status = os.stat(names[row], dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                found[row], sizes[row], times[row] = True, status.st_size, status.st_mtime_ns // 1000
    files = texts.filter(pa.array(found))
    return _batch(pc.binary_join_element_wise(pa.scalar(root), files, ""), times[found], sizes[found])


def _batch(paths: Any, times: Any, sizes: Any) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        pa.array(paths, pa.string()),
        pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array(sizes, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, ["path", "last_modified", "size_in_bytes"])


def local_path(path: str) -> str:
    """The path for the operating system. Raises StorageError for one on another host, or a relative one."""
    parts = split(normalise(path))
    if parts.scheme == "file" and parts.authority == "" and parts.path and _is_name(parts.path):
        return parts.path
    raise StorageError(
        "This is no absolute path on this machine",
        path=path,
        hint="write it as /folder/file or file:///folder/file",
    )


def through_link(path: str, root: str) -> bool:
    """Whether a folder between the folder `root` and the local file `path` is a symbolic link: what is behind it
    belongs to somebody else, as in a listing. `root` itself may be reached through links. False on other stores."""
    if split(path).scheme not in ("", "file"):
        return False
    try:
        folder, top = os.path.dirname(local_path(path)), local_path(root).rstrip("/")
        return os.path.realpath(folder) != os.path.realpath(top) + folder[len(top) :]
    except (OSError, StorageError):
        return True


def missing(path: str) -> MissingFile:
    return MissingFile(
        "The file is absent", path=path, untouched="everything else", hint="look whether it was deleted or moved"
    )


def existing(path: str) -> ExistingFile:
    return ExistingFile(
        "The file exists already",
        path=path,
        untouched="the file that is there",
        hint="read that one, or write under another name",
    )


def _fail(what: str, path: str, error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    raise StorageError(
        f"{what}: {reason}",
        path=path,
        untouched="whatever was there",
        hint="mend access to that path and run this again",
    ) from error


def _is_name(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def is_text(name: str) -> bool:
    """Whether the name can be written in UTF-8, as all paths in metadata and in frames are."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stored(path: str, status: os.stat_result) -> StoredFile:
    return StoredFile(path, status.st_size, of_microseconds(status.st_mtime_ns // 1000))


def _write_durably(temporary: Path, chunks: Iterable[bytes]) -> None:
    with open(temporary, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _read_back(temporary: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    with open(temporary, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, f"sha256:{digest.hexdigest()}"


def _publish_new(temporary: Path, target: Path) -> None:
    """Give the file its name; FileExistsError when the name is taken, however many try at once."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # No hard links here (exFAT, some network and FUSE mounts): take the name with an empty file, then fill it. A
        # kill between the two leaves the empty one, which reads as damaged and not as something else.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        os.replace(temporary, target)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # Some network mounts cannot; the file itself is on disk by then.
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Folder:
    """Deletes and looks at files by their names in the folder that is open: the system then does not walk down the
    whole path for each. Paths that come folder by folder open each folder once."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._open: int | None = None
        self._archives = False

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def delete(self, path: str) -> DeleteOutcome:
        name = self._turn_to(path)
        if name is None or self._open is None or self._archives:
            return _delete(path)
        try:
            os.unlink(name, dir_fd=self._open)
        except FileNotFoundError:
            return DeleteOutcome(path, "absent")
        except (OSError, ValueError):
            # The whole path says what is wrong.
            return _delete(path)
        return DeleteOutcome(path, "deleted")

    def head(self, path: str) -> StoredFile | None:
        """What is there, if it is a plain file in its place; None for all else, absent ones too."""
        name = self._turn_to(path)
        if name is None or self._open is None:
            return None
        try:
            status = os.stat(name, dir_fd=self._open)
        except (OSError, ValueError):
            return None
        return _stored(path, status) if stat.S_ISREG(status.st_mode) else None

    def has(self, path: str) -> bool:
        """Whether anything is there, as far as can be told without an error: the answer to a look that finds nothing
        is the dearest part of it in Python."""
        name = self._turn_to(path)
        if name is None:
            return os.path.lexists(local_path(path))
        try:
            return self._open is not None and os.access(name, os.F_OK, dir_fd=self._open)
        except ValueError:
            return False

    def _turn_to(self, path: str) -> str | None:
        """Open the path's folder; the name in it, or None where the path is none of a folder and a name."""
        parts = folder_and_name(path)
        if parts is None:
            return None
        if parts[0] != self._path:
            self._close()
            self._path = parts[0]
            where, self._open = _opened(parts[0])
            self._archives = self._open is not None and _archives(where)
        return parts[1]

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open)
        self._path, self._open = None, None


def _opened(folder: str) -> tuple[str, int | None]:
    """The folder of a path for the operating system, and its descriptor; None where it is not there, or no folder."""
    try:
        where = local_path(f"{folder}/x")[:-2]
        # Without a right to read the folder, too: O_PATH.
        flags = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
        return where, os.open(where or "/", flags)
    except (OSError, StorageError, ValueError):
        return "", None


def _archives(where: str) -> bool:
    """Whether files of the folder may be archived."""
    return os.path.lexists(f"{where}/{_ASIDE}")


def _at_once(paths: pa.Array) -> bool:
    """Whether so many are asked for that it is worth to load the compiled loops, where there are some."""
    return len(paths) >= COMPILED_FROM and many_files.usable()


def _not_tried(path: str) -> DeleteOutcome:
    return DeleteOutcome(path, "failed", NOT_TRIED)


def _delete(path: str) -> DeleteOutcome:
    try:
        where = local_path(path)
        if _is_aside(where):
            return DeleteOutcome(path, "failed", "it is in the archive")
        os.unlink(where)
    except (FileNotFoundError, NotADirectoryError):
        return DeleteOutcome(path, "absent")
    except IsADirectoryError:
        return DeleteOutcome(path, "failed", "it is a folder")
    except StorageError as error:
        return DeleteOutcome(path, "failed", error.what)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and _names_nothing(where):
            return DeleteOutcome(path, "absent")
        # macOS answers EPERM for a folder.
        return DeleteOutcome(path, "failed", error.strerror or str(error))
    return DeleteOutcome(path, "deleted")
