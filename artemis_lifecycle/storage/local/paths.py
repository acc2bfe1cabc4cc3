"""Paths for the operating system, the status of files, and errors with their paths."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.identity import disk_tag
from artemis_lifecycle.storage.instants import of_microseconds
from artemis_lifecycle.storage.location import normalize, split
from artemis_lifecycle.storage.types import StoredFile

_LONGEST_PATH, _LONGEST_NAME = 4096, 1023
"""Maximum bytes of a path that Linux resolves, including its NUL, and of a name on the most generous file system."""


def local_path(path: str) -> str:
    """Return the path for the operating system. Raises StorageError for a path on another host, or a relative one."""
    parts = split(normalize(path))
    if parts.scheme == "file" and parts.authority == "" and parts.path and _is_name(parts.path):
        return parts.path
    raise StorageError(
        "This is not an absolute path on this machine",
        path=path,
        hint="use /folder/file or file:///folder/file",
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


def stored(path: str, status: os.stat_result) -> StoredFile:
    tag = disk_tag(status.st_dev, status.st_ino, status.st_mtime_ns)
    modified = of_microseconds(status.st_mtime_ns // 1000)
    return StoredFile(path, status.st_size, modified, tag, changed=status.st_ctime_ns // 1000)


def fail(what: str, path: str, error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    raise StorageError(
        f"{what}: {reason}",
        path=path,
        untouched="the existing files",
        hint="fix access to that path, then rerun",
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
