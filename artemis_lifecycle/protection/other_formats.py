"""Tables of other formats in a table's folders: Delta's `_delta_log` and Hudi's `.hoodie` name files that no Iceberg
metadata names. Belongs here: finding such logs, and the files that a Delta log names. Does not belong here: hidden
names (`places.py`), which keep the log itself from orphan scans.

Where there is any doubt about a log, its whole folder is somebody's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.protection.ownership import is_root
from artemis_lifecycle.storage.location import LocationRules, is_under, parent, split
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

DELTA_LOG = "_delta_log"
_HUDI = ".hoodie"
_COMMIT = re.compile(r"(\d{20})\.json\Z")
_SAYS_NO_MORE = re.compile(r"_last_checkpoint\Z|\d{20}\.checkpoint(\.[\w.-]+)?\.parquet\Z|.*\.crc\Z")
"""What a log has besides its commits: while every commit is there, it names no other files."""

_NAMES_FILES = frozenset({"add", "remove", "cdc"})
_NAMES_NONE = frozenset({"metaData", "protocol", "txn", "commitInfo", "domainMetadata"})
_PARTITION = re.compile(r"[01]+\Z|.*=")
"""Folders of a partition, or of Iceberg's object storage layout: no table begins below one."""

_READERS = 8


def possible_roots(folders: Iterable[str], own: Sequence[str], around: Sequence[str], rules: LocationRules) -> set[str]:
    """Return the folders in which a log would concern files of `folders`: those themselves and the ones above them,
    inside the table's `own` locations, and above these inside `around`."""
    found: set[str] = set()
    for folder in (*own, *folders):
        root = max((each for each in own if folder.startswith(f"{each}/")), key=len, default=folder)
        below = folder[len(root) :].split("/")
        is_log = [part in (DELTA_LOG, _HUDI) for part in below]
        ends = is_log if any(is_log) else [_PARTITION.match(part) is not None for part in below]
        place = root + "/".join(below[: ends.index(True)] if any(ends) else below)
        while place not in found and not is_root(place):
            if not any(is_under(f"{place}/x", root, rules) for root in (*own, *around)):
                break
            found.add(place)
            place = parent(place)
    return found


class OtherFormats:
    """The logs in some folders. A commit of a log never changes, and is read once by this object."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._named: dict[str, frozenset[str] | None] = {}

    def claims(self, roots: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """Return the paths that the log in each of these folders names; None if the whole folder is claimed. Folders
        without a log are left out. Raises StorageError."""
        ordered = sorted(roots)
        found = zip(ordered, threaded(self._claim, ordered, _READERS), strict=True)
        return {root: named for root, (has_log, named) in found if has_log}

    def _claim(self, root: str) -> tuple[bool, frozenset[str] | None]:
        delta = f"{root}/{DELTA_LOG}"
        if next(iter(self._stores.list(f"{root}/{_HUDI}")), None) is not None:
            return True, None
        if next(iter(self._stores.list(delta)), None) is None:
            return False, None
        folders, files = self._stores.children(delta)
        names = [file.path.rpartition("/")[2] for file in files]
        commits = sorted(name for name in names if _COMMIT.match(name))
        complete = [int(name[:20]) for name in commits] == list(range(len(commits))) and len(commits) > 0
        if folders or not complete or not all(_COMMIT.match(name) or _SAYS_NO_MORE.match(name) for name in names):
            return True, None
        read = [self._commit(root, f"{delta}/{name}") for name in commits]
        return True, None if None in read else frozenset().union(*(each for each in read if each is not None))

    def _commit(self, root: str, path: str) -> frozenset[str] | None:
        if path not in self._named:
            try:
                lines = self._stores.read(path).decode().splitlines()
                self._named[path] = frozenset(each for line in lines if line.strip() for each in _files(root, line))
            except (StorageError, ValueError, TypeError, KeyError, AttributeError):
                return None
        return self._named[path]


def _files(root: str, line: str) -> Iterator[str]:
    """Yield the locations that one action names. Raises ValueError for what is not known to name none."""
    for kind, said in json.loads(line).items():
        if kind in _NAMES_NONE:
            continue
        if kind not in _NAMES_FILES or said.get("deletionVector") is not None:
            raise ValueError(kind)
        # Paths are percent-encoded, and relative to the table's folder or absolute.
        for spelled in {said["path"], unquote(said["path"])}:
            yield spelled if split(spelled).scheme or spelled.startswith("/") else f"{root}/{spelled}"
