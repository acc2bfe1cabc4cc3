"""Tables of other formats in a table's folders: Delta's `_delta_log` and Hudi's `.hoodie` name files that no Iceberg
metadata names. Where there is any doubt about a log, its whole folder is somebody's."""

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
_COMMIT = re.compile(r"\d{20}\.json\Z")
_SAYS_NO_MORE = re.compile(r"_last_checkpoint\Z|\d{20}\.checkpoint(\.[\w.-]+)?\.parquet\Z|.*\.crc\Z")
"""What a log has besides its commits: while every commit is there, it names no other files."""
_NAMES_NONE = ("metaData", "protocol", "txn", "commitInfo", "domainMetadata")
_PARTITION = re.compile(r"[01]+\Z|.*=")
"""Folders of a partition, or of Iceberg's object storage layout: no table begins below one."""
_READERS = 8


def possible_roots(folders: Iterable[str], own: Sequence[str], around: Sequence[str], rules: LocationRules) -> set[str]:
    """Return the folders in which a log would concern files of `folders`: these and those above them, inside the
    table's `own` locations, and above these inside `around`."""
    found: set[str] = set()
    for folder in (*own, *folders):
        root = max((each for each in own if folder.startswith(f"{each}/")), key=len, default=folder)
        below = folder[len(root) :].split("/")
        is_log = [part in (DELTA_LOG, _HUDI) for part in below]
        ends = is_log if any(is_log) else [_PARTITION.match(part) is not None for part in below]
        place = root + "/".join(below[: ends.index(True)] if any(ends) else below)
        while place not in found and not is_root(place):
            if not any(is_under(f"{place}/x", each, rules) for each in (*own, *around)):
                break
            found.add(place)
            place = parent(place)
    return found


def claims(stores: Stores, roots: Iterable[str]) -> dict[str, frozenset[str] | None]:
    """Return the paths that the log in each of these folders names; None if the whole folder is claimed. Folders
    without a log are left out. Raises StorageError."""
    ordered = sorted(roots)
    has_log = threaded(lambda root: any(_has_files(stores, f"{root}/{log}") for log in (DELTA_LOG, _HUDI)), ordered, 8)
    return {root: _named(stores, root) for root, has in zip(ordered, has_log, strict=True) if has}


def _has_files(stores: Stores, folder: str) -> bool:
    return next(iter(stores.list(folder)), None) is not None


def _named(stores: Stores, root: str) -> frozenset[str] | None:
    folders, files = stores.children(f"{root}/{DELTA_LOG}")
    names = sorted(file.path.rpartition("/")[2] for file in files)
    commits = [name for name in names if _COMMIT.match(name)]
    others = [name for name in names if not _COMMIT.match(name) and not _SAYS_NO_MORE.match(name)]
    if folders or others or [int(name[:20]) for name in commits] != [*range(len(commits))] or not commits:
        return None
    if _has_files(stores, f"{root}/{_HUDI}"):
        return None
    try:
        read = threaded(lambda name: stores.read(f"{root}/{DELTA_LOG}/{name}").decode(), commits, _READERS)
        return frozenset(
            path for text in read for line in text.splitlines() if line.strip() for path in _files(root, line)
        )
    except (StorageError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _files(root: str, line: str) -> Iterator[str]:
    """Yield the locations that one action names. Raises ValueError for what is not known to name none."""
    for kind, said in json.loads(line).items():
        if kind in ("add", "remove", "cdc") and said.get("deletionVector") is None:
            # Paths are percent-encoded, and relative to the table's folder or absolute.
            for path in {said["path"], unquote(said["path"])}:
                yield path if split(path).scheme or path.startswith("/") else f"{root}/{path}"
        elif kind not in _NAMES_NONE:
            raise ValueError(kind)
