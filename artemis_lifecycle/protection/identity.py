"""Physical identity: whether two folders of this machine are one. A symbolic link, a bind mount, a second mount of one
export and a disk that ignores case give one folder several names, and a location compares only names.

On S3 the configured equalities stand for it (`orphans.equal_authorities`); access points and replicated buckets cannot
be told apart from here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.local import local_path
from artemis_lifecycle.storage.location import LocationRules, is_under, normalise, overlap
from artemis_lifecycle.storage.stores import is_local

FolderKey = tuple[int, int]
"""Device and inode."""


class Folders:
    """Identities of local folders, each read once in the life of this object: make a new one for each decision.

    A folder that does not exist, or is on another store, has none. Raises StorageError where it cannot be told.
    """

    def __init__(self, rules: LocationRules) -> None:
        self._rules = rules
        self._keys: dict[str, FolderKey | None] = {}
        self._above: dict[str, frozenset[FolderKey]] = {}

    def key(self, folder: str) -> FolderKey | None:
        """Device and inode of a folder, behind all links."""
        if folder not in self._keys:
            self._keys[folder] = self._read(self._local(folder), folder)
        return self._keys[folder]

    def above(self, folder: str) -> frozenset[FolderKey]:
        """The identities of a folder and of all folders around it, by its real path."""
        if folder not in self._above:
            found: set[FolderKey] = set()
            path = self._local(folder)
            real = None if path is None else os.path.realpath(path)
            while real is not None:
                key = self._read(real, folder)
                if key is not None:
                    found.add(key)
                real = None if real == os.path.dirname(real) else os.path.dirname(real)
            self._above[folder] = frozenset(found)
        return self._above[folder]

    def is_in(self, folder: str, root: str) -> bool:
        """Whether files of `folder` are below `root`, by name or by what the names stand for."""
        if is_under(f"{folder}/x", root, self._rules):
            return True
        key = self.key(root)
        return key is not None and key in self.above(folder)

    def overlap(self, one: str, other: str) -> bool:
        """Whether two folders are equal or nested, by name or by what the names stand for."""
        if overlap(one, other, self._rules):
            return True
        first, second = self.key(one), self.key(other)
        return (first is not None and first in self.above(other)) or (second is not None and second in self.above(one))

    def _local(self, folder: str) -> str | None:
        if not is_local(folder) and not is_local(normalise(folder, self._rules)):
            return None
        try:
            return local_path(normalise(folder, self._rules))
        except StorageError:
            return None  # On another host, or no path at all.

    def _read(self, path: str | None, folder: str) -> FolderKey | None:
        if path is None:
            return None
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(
                f"Whether this folder is another one under a second name cannot be told: {error.strerror or error}",
                path=folder,
                untouched="all files that were not deleted before",
                do="fix access to the folder, then rerun",
            ) from error
        return found.st_dev, found.st_ino


class Aliases:
    """Other names of folders: `known` are the folders that reachable files are recorded in."""

    def __init__(self, folders: Folders, known: Iterable[str]) -> None:
        self._folders = folders
        self._known = tuple(dict.fromkeys(known))

    @cached_property
    def _by_key(self) -> dict[FolderKey, list[str]]:
        found: dict[FolderKey, list[str]] = {}
        for folder in self._known:
            key = self._folders.key(folder)
            if key is not None:
                found.setdefault(key, []).append(folder)
        return found

    @cached_property
    def _by_inode(self) -> dict[int, list[str]]:
        # A second mount of one export may have a device number of its own; its inodes are the same.
        found: dict[int, list[str]] = {}
        for (_, inode), folders in self._by_key.items():
            found.setdefault(inode, []).extend(folders)
        return found

    def of(self, folder: str) -> list[tuple[str, bool]]:
        """Other known names of `folder`. True: the names stand for one folder; False: only the inode is the same, so
        that each file must be compared (`same_file`)."""
        key = self._folders.key(folder)
        if key is None:
            return []
        return [(other, self._folders.key(other) == key) for other in self._by_inode.get(key[1], ()) if other != folder]


def same_file(one: str, other: str) -> bool:
    """Whether two local paths look like one file on two mounts: inode and size are equal."""
    try:
        first, second = os.stat(local_path(one)), os.stat(local_path(other))
    except (OSError, StorageError):
        return False
    return (first.st_ino, first.st_size) == (second.st_ino, second.st_size)
