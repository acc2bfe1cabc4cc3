"""Folders in which root writes. Belongs here: opening one so that no other user can redirect root. Does not belong:
which folder, and what is written.

Whoever may write to a folder may put a link in it, or put another folder in its place, between a check and a write. So
each part of a path is opened from the one above it, never through a link, and everything after that goes by the
descriptor.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from artemis_lifecycle.errors import EnvironmentMissing

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Folder:
    """An open folder: its descriptor, and who beside root can change something on the way to it (root's 0: no one)."""

    descriptor: int
    other: int

    def write(self, name: str, text: str, *, owner: tuple[int, int] | None = None) -> None:
        """Put a file of mode 0600 in the place of `name`, for `owner` (user and group id)."""
        partial = f"{name}.new"
        self.unlink(partial)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)
        with os.fdopen(handle, "w") as file:
            file.write(text)
            if owner is not None:
                os.fchown(handle, *owner)
        os.replace(partial, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove the file or link of that name, if there is one."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return


@contextmanager
def open_folder(path: Path, *, make: bool = False) -> Iterator[Folder]:
    """Open a folder, which must not be a relative path; `make` it, and those above it, where they are not.

    For root every part has to be a folder (no link) that is root's, or that of one other user from some part on, and
    that not everybody may write to (unless names in it are their owners' alone, as in /tmp). Raises EnvironmentMissing
    for any other; FileNotFoundError.
    """
    others: set[int] = set()
    try:
        if os.geteuid() == 0:
            handle, others = _walk(path, make)
        else:
            if make:
                path.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EnvironmentMissing(
            f"The embedded stack's folder cannot be written: {error}",
            path=str(path),
            hint="run as the user who owns it, or name another folder in ARTEMIS_HOME",
        ) from error
    try:
        yield Folder(handle, next(iter(others), 0))
    finally:
        os.close(handle)


def _walk(path: Path, make: bool) -> tuple[int, set[int]]:
    handle, others = os.open("/", _FOLDER), set[int]()
    try:
        for number, part in enumerate(path.parts[1:], start=2):
            so_far = Path(*path.parts[:number])
            below = open_part(handle, part, so_far, make=make)
            os.close(handle)
            handle, found = below, os.fstat(below)
            others |= {found.st_uid} - {0}
            if len(others) > 1:
                raise _refused(so_far, f"belongs to user id {found.st_uid}, and what it is in to another user")
            if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
                raise _refused(so_far, "may be written to by everybody")
    except BaseException:
        os.close(handle)
        raise
    return handle, others


def open_part(parent: int, name: str, path: Path, *, make: bool = False, mode: int = 0o755) -> int:
    """The descriptor of the folder `name` in an open one; `path` is for errors. Raises EnvironmentMissing for a link,
    FileNotFoundError."""
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        raise _refused(path, "is a link, or no folder") from error
    os.mkdir(name, mode, dir_fd=parent)
    return open_part(parent, name, path)


def copy_tree(source: Path, target: int, *, without: str) -> None:
    """Copy what is in a folder, `without` the folders of that name, into an open one that is root's: readable by all,
    links as links."""
    for entry in os.scandir(source):
        if entry.name == without:
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), entry.name, dir_fd=target)
        elif entry.is_dir():
            os.mkdir(entry.name, dir_fd=target)
            below = os.open(entry.name, _FOLDER, dir_fd=target)
            try:
                os.fchmod(below, 0o755)
                copy_tree(Path(entry.path), below, without=without)
            finally:
                os.close(below)
        else:
            handle = os.open(entry.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=target)
            with os.fdopen(handle, "wb") as file, open(entry.path, "rb") as given:
                while piece := given.read(1 << 20):
                    file.write(piece)
                os.fchmod(handle, entry.stat().st_mode & 0o755 | 0o444)


def _refused(path: Path, what: str) -> EnvironmentMissing:
    return EnvironmentMissing(
        f"Root does not write there: {path} {what}, who could lead it elsewhere",
        path=str(path),
        untouched="that folder and what is in it",
        hint="run as the user whose folder it is, or name a folder of root's own in ARTEMIS_HOME",
    )
