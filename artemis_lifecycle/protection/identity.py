"""Physical identity: whether two folders of this machine are the same. A symbolic link, a bind mount, a second mount of
one export, or a case-insensitive disk gives one folder several names, but a location compares only names.

On S3, the configured equalities serve this purpose (`orphans.equal_authorities`). Access points and replicated buckets
cannot be detected.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.local.store import local_path
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize, overlap
from artemis_lifecycle.storage.stores import is_local

FolderKey = tuple[int, int]
"""Device and inode. The device is 0 for file systems without a block device: a network file system that is mounted
twice may have two numbers. For them, only the inode decides, which can only keep more files."""


class Folders:
    """Identities of local folders, each read once by this object: create a new object for each decision.

    A folder that does not exist, or is on another store, has no identity. Raises StorageError if it cannot be
    determined.
    """

    def __init__(self, rules: LocationRules) -> None:
        self._rules = rules
        self._found: dict[str, os.stat_result | None] = {}
        self._above: dict[str, tuple[os.stat_result, ...]] = {}

    def key(self, folder: str) -> FolderKey | None:
        """Return the identity of a folder, with all links followed."""
        return _key(self._stat(folder))

    def are_one(self, one: str, other: str) -> bool:
        """Return True if two existing folders are certainly the same: same device, same inode."""
        first, second = self._stat(one), self._stat(other)
        return first is not None and second is not None and os.path.samestat(first, second)

    def above(self, folder: str) -> frozenset[FolderKey | None]:
        """Return the identities of a folder and all its parents, by its real path."""
        return frozenset(map(_key, self._ancestors(folder)))

    def _ancestors(self, folder: str) -> tuple[os.stat_result, ...]:
        if folder not in self._above:
            found: list[os.stat_result] = []
            path = self._local(folder)
            real = None if path is None else os.path.realpath(path)
            while real is not None:
                status = self._read(real, folder)
                if status is not None:
                    found.append(status)
                real = None if real == os.path.dirname(real) else os.path.dirname(real)
            self._above[folder] = tuple(found)
        return self._above[folder]

    def leads_into(self, folder: str, root: str) -> bool:
        """Return True if files of `folder` are certainly below `root`: no link on the way leads out of it, whatever the
        names are."""
        if self._local(folder) is None or self._local(root) is None:
            return is_under(f"{folder}/x", root, self._rules)
        top = self._stat(root)
        return top is not None and any(os.path.samestat(top, each) for each in self._ancestors(folder))

    def is_in(self, folder: str, root: str) -> bool:
        """Return True if files of `folder` are below `root`, by name or by identity."""
        if is_under(f"{folder}/x", root, self._rules):
            return True
        key = self.key(root)
        return key is not None and key in self.above(folder)

    def overlap(self, one: str, other: str) -> bool:
        """Return True if two folders are equal or nested, by name or by identity."""
        if overlap(one, other, self._rules):
            return True
        first, second = self.key(one), self.key(other)
        return (first is not None and first in self.above(other)) or (second is not None and second in self.above(one))

    def links(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield the symbolic links in a folder: the location of each, and its target path."""
        path = self._local(folder)
        if path is None:
            return
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        yield f"{folder}/{entry.name}", os.path.realpath(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _unidentified(folder, error) from error

    def _stat(self, folder: str) -> os.stat_result | None:
        if folder not in self._found:
            self._found[folder] = self._read(self._local(folder), folder)
        return self._found[folder]

    def _local(self, folder: str) -> str | None:
        if not is_local(folder) and not is_local(normalize(folder, self._rules)):
            return None
        try:
            return local_path(normalize(folder, self._rules))
        except StorageError:
            return None  # On another host, or not a path.

    def _read(self, path: str | None, folder: str) -> os.stat_result | None:
        if path is None:
            return None
        try:
            return os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unidentified(folder, error) from error


def _key(found: os.stat_result | None) -> FolderKey | None:
    return None if found is None else (found.st_dev if os.major(found.st_dev) else 0, found.st_ino)


def _unidentified(folder: str, error: OSError) -> StorageError:
    return StorageError(
        f"The identity of this folder cannot be determined: {error.strerror or error}",
        path=folder,
        untouched="all files that were not deleted before",
        hint="fix access to the folder, then rerun",
    )


class Aliases:
    """Other names of folders, among the `known` ones, and of files to which links there point (`links`: list each known
    folder for links)."""

    def __init__(self, folders: Folders, known: Iterable[str], *, links: bool = False) -> None:
        self._folders = folders
        self._known = tuple(dict.fromkeys(known))
        self._links = links

    @cached_property
    def _by_key(self) -> dict[FolderKey, list[str]]:
        found: dict[FolderKey, list[str]] = {}
        for folder in self._known:
            key = self._folders.key(folder)
            if key is not None:
                found.setdefault(key, []).append(folder)
        return found

    @cached_property
    def _by_target(self) -> dict[FolderKey, dict[str, list[str]]]:
        found: dict[FolderKey, dict[str, list[str]]] = {}
        for folder in self._known if self._links else ():
            for link, target in self._folders.links(folder):
                key = self._folders.key(os.path.dirname(target))
                if key is not None:
                    found.setdefault(key, {}).setdefault(os.path.basename(target), []).append(link)
        return found

    def linked(self, folder: str) -> Mapping[str, list[str]]:
        """Return the names of files in `folder` to which links point, with the locations of the links."""
        key = self._folders.key(folder) if self._by_target else None
        return {} if key is None else self._by_target.get(key, {})

    def of(self, folder: str) -> list[tuple[str, bool]]:
        """Return other known names of `folder`. True: they are the same folder. False: they may be, so each file must
        be compared (`may_be_same_file`)."""
        key = self._folders.key(folder)
        if key is None:
            return []
        return [(other, self._folders.are_one(folder, other)) for other in self._by_key.get(key, ()) if other != folder]


def may_be_same_file(one: str, other: str) -> bool:
    """Return True if two local paths look like the same file on two mounts: inode and size are equal."""
    try:
        first, second = os.stat(local_path(one)), os.stat(local_path(other))
    except (OSError, StorageError):
        return False
    return (first.st_ino, first.st_size) == (second.st_ino, second.st_size)
