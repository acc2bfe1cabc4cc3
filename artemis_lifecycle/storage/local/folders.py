"""Deleting files and reading their status by names in an open folder."""

from __future__ import annotations

import errno
import os
import stat

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.local.paths import local_path, names_nothing, stored
from artemis_lifecycle.storage.local.simulated_archive import is_aside, may_archive
from artemis_lifecycle.storage.location import folder_and_name
from artemis_lifecycle.storage.types import NOT_TRIED, DeleteOutcome, StoredFile


class OpenFolder:
    """Deletes and checks files by name in an open folder, so that the system does not resolve the whole path for each
    file. If paths are sorted by folder, each folder is opened once."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._open: int | None = None
        self._archives = False

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def delete(self, path: str) -> DeleteOutcome:
        name = self._turn_to(path)
        if name is None or self._open is None or self._archives:
            return delete_file(path)
        try:
            os.unlink(name, dir_fd=self._open)
        except FileNotFoundError:
            return DeleteOutcome(path, "absent")
        except (OSError, ValueError):
            # The call with the full path reports the error.
            return delete_file(path)
        return DeleteOutcome(path, "deleted")

    def head(self, path: str) -> StoredFile | None:
        """Return the file's information if it is a regular file in a real folder, else None."""
        name = self._turn_to(path)
        if name is None or self._open is None:
            return None
        try:
            status = os.stat(name, dir_fd=self._open)
        except (OSError, ValueError):
            return None
        return stored(path, status) if stat.S_ISREG(status.st_mode) else None

    def has(self, path: str) -> bool:
        """Return True if anything exists there, as far as is known without an exception: for a missing file, the
        exception is the most expensive part of the check in Python."""
        name = self._turn_to(path)
        if name is None:
            return os.path.lexists(local_path(path))
        try:
            return self._open is not None and os.access(name, os.F_OK, dir_fd=self._open)
        except ValueError:
            return False

    def _turn_to(self, path: str) -> str | None:
        """Open the path's folder. Return the name in it, or None if the path is not a folder and a name."""
        parts = folder_and_name(path)
        if parts is None:
            return None
        if parts[0] != self._path:
            self._close()
            self._path = parts[0]
            where, self._open = opened_folder(parts[0])
            self._archives = self._open is not None and may_archive(where)
        return parts[1]

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open)
        self._path, self._open = None, None


def opened_folder(folder: str) -> tuple[str, int | None]:
    """Return the folder's path for the operating system, and its descriptor; None if it does not exist or is not a
    folder."""
    try:
        where = local_path(f"{folder}/x")[:-2]
        # O_PATH also works without read permission on the folder.
        flags = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
        return where, os.open(where or "/", flags)
    except (OSError, StorageError, ValueError):
        return "", None


def not_tried(path: str) -> DeleteOutcome:
    return DeleteOutcome(path, "failed", NOT_TRIED)


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
