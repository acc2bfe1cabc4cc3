"""The folders of the files that each table of a catalog reads, reduced to a few per table. With them, a deletion sees
which tables read files outside their own locations (add_files, clones), without opening every table's index.

    <root>/reached/tables.json     what is known of each table, by name, with a checksum

It is a cache of metadata files, which never change. A table's folders only grow until it is read from scratch: an extra
folder costs one check of that table, but a missing folder could cost a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import EncryptedTable, NewerFormat, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.lines import is_written_once
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.files import ReachedFiles
from artemis_lifecycle.reachability.index.files import reached_folders
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.spark.runner import Spark
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle.storage.location import ByFolder, LocationRules, normalize, parent, split
from artemis_lifecycle.storage.stores import Stores

FORMAT = 1
MOST_FOLDERS = 64
"""For a table with more folders than this, their parent folders are stored."""

_AT_ONCE = 100_000  # Folders in memory before they are reduced to a few.
_READERS = 4
_SEEN_EVERY_MS = 3_600_000
# Each deletion has its own equalities; stored folders use none.
_PLAIN = LocationRules({}, {})

_log = escaping.logger(__name__)


class Pointer(Protocol):
    """A table's catalog entry, as far as it is used here; for example a `CatalogEntry`."""

    @property
    def metadata_location(self) -> str: ...

    @property
    def previous_metadata_location(self) -> str | None: ...

    @property
    def problem(self) -> str | None:
        """Why the catalog cannot load the table; then `metadata_location` says nothing of its current state."""


@dataclass(frozen=True)
class Reached:
    """Folders that cover everything that any snapshot of a metadata file reaches. `read` names what of the index's
    segments was read for it. `seen_ms` is when it was last known to be the current one, at most an hour ago while it
    stays that."""

    table_uuid: str
    metadata_location: str
    folders: tuple[str, ...]
    read: tuple[str, ...]
    seen_ms: int = 0


def covering(folders: Iterable[str], most: int = MOST_FOLDERS) -> tuple[str, ...]:
    """Return at most `most` folders (one per store, if there are more stores) that contain or equal all of `folders`.

    They are cut at the greatest depth at which there are few enough, so that the partitions of one place become that
    place, and a distant place stays separate.
    """
    parts = {_components(folder) for folder in folders}
    depth = max((len(part) for part in parts), default=0)
    while len(parts) > most and depth > 1:
        depth -= 1
        parts = {part[:depth] for part in parts}
    return tuple(sorted("/".join(part) for part in parts))


def _components(folder: str) -> tuple[str, ...]:
    # Scheme and authority are one component: nothing is above them.
    place = split(folder)
    first = folder[: len(folder) - len(place.path)]
    rest = place.path.strip("/")
    return (first, *rest.split("/")) if rest else (first,)


class ReachedFolders:
    """What is known of the tables of one catalog. `rules_of` returns a table's own rules, by name, because its index
    uses them. `files` can access `root` if `stores`, which access the tables, cannot."""

    def __init__(
        self,
        spark: Spark | None,
        stores: Stores,
        root: str,
        rules_of: Callable[[str], LocationRules],
        files: Stores | None = None,
        newer: Callable[[str], ReachedFiles] | None = None,
    ) -> None:
        self._spark = spark
        self._stores = stores
        self._files = stores if files is None else files
        self._root = root
        self._rules_of = rules_of
        self._path = f"{root}/reached/tables.json"
        self._known: dict[str, Reached] | None = None
        self._failed: dict[str, str] = {}
        self._newer = newer
        self.moved: Mapping[str, tuple[str, ...]] = {}
        """The quarantine folders that have files of dropped tables."""
        self._problems: dict[str, str] = {}
        self._formats: dict[str, list[str]] = {}

    def refresh(
        self,
        tables: Mapping[str, Pointer],
        unchanged: Collection[str] | None = None,
        lists: Mapping[str, str] | None = None,
        now_ms: int = 0,
    ) -> dict[str, str]:
        """Update what is known of `tables` to their pointers. Return the error of each table that cannot be read; what
        was known of it stays. Skips tables whose pointer has not moved, even if they were unreadable. What is known of
        the tables in `unchanged` stays, and all others are removed; without it, all stays. `lists` are sealed lists of
        files by a unique name, each read once. `now_ms` is a time before `tables` were read from the catalog."""
        known, lists = self._load(), {} if lists is None else lists
        current = {name for name in tables if self._is_at(name, tables[name].metadata_location)}
        moved = {
            name: pointer
            for name, pointer in tables.items()
            if name not in current
            and (pointer.metadata_location != self._failed.get(name) or not is_written_once(pointer.metadata_location))
        }
        unread = {name: location for name, location in lists.items() if name not in known}
        stale = {name for name in current if now_ms - known[name].seen_ms >= _SEEN_EVERY_MS}
        # Nothing is unknown of a table whose pointer was set back to a readable file.
        problems = {
            name: each for name, each in self._problems.items() if name in {*tables, *lists}.difference(current)
        }
        if not moved and not unread and not stale and problems == self._problems:
            return {}
        with ThreadPoolExecutor(max_workers=_READERS) as readers:
            read = dict(zip(moved, readers.map(lambda item: self._read(*item), moved.items()), strict=True))
            read |= zip(unread, readers.map(self._read_list, unread.values()), strict=True)
        failed = {name: problem for name, (_, problem) in read.items() if problem is not None}
        self._failed |= {name: moved[name].metadata_location for name in failed if name in moved}
        found = {name: each for name, (each, _) in read.items() if each is not None} | {
            name: known[name] for name in stale
        }
        gone = set(known).difference(tables, known if unchanged is None else unchanged, lists)
        known |= {name: replace(each, seen_ms=now_ms) for name, each in found.items()}
        for name in gone:
            del known[name]
        before, self._problems = self._problems, {n: each for n, each in problems.items() if n not in read} | failed
        if gone or found or before != self._problems:
            self._store(known)
        return failed

    def problems(self) -> Mapping[str, str]:
        """Return why the current pointers of tables could not be read, as of the last `refresh` by any process."""
        self._load()
        return self._problems

    def formats(self) -> Mapping[str, Sequence[str]]:
        """Return the folders of each table in which deletions found the log of another table format."""
        self._load()
        return self._formats

    def saw_formats(self, table: str, folders: Iterable[str]) -> None:
        """Record such folders."""
        known, before = self._load(), self._formats.get(table, [])
        if not set(folders).issubset(before):
            self._formats[table] = sorted({*folders, *before})
            self._store(known)

    def seen_ms(self, table: str) -> int:
        """Return when the last readable pointer of a known table was last the current one, in epoch milliseconds."""
        return self._load()[table].seen_ms

    def _is_at(self, table: str, metadata_location: str) -> bool:
        known = self._load().get(table)
        return known is not None and known.metadata_location == metadata_location and is_written_once(metadata_location)

    def of(self, table: str) -> tuple[str, ...]:
        """Return the folders of a known table; nothing for an unknown one."""
        known = self.last(table)
        return () if known is None else known.folders

    def last(self, table: str) -> Reached | None:
        """Return a table as it was last read."""
        return self._load().get(table)

    def knows(self, table: str, pointer: Pointer | None) -> bool:
        """Return True if the table was readable, now or earlier. A pointer without a predecessor, or in another folder,
        may belong to another table that took the name."""
        known = self._load().get(table)
        if known is None or pointer is None or pointer.problem is not None:
            return known is not None
        if pointer.metadata_location == known.metadata_location:
            return True
        beside = parent(pointer.metadata_location) == parent(known.metadata_location)
        return beside and pointer.previous_metadata_location is not None

    def _read(self, name: str, pointer: Pointer) -> tuple[Reached | None, str | None]:
        """Return what a table reaches, or why that is unknown: its previous metadata file does not show what was added
        since."""
        if pointer.problem is not None:
            return None, pointer.problem
        try:
            try:
                metadata = read_table_metadata(self._stores, pointer.metadata_location)
            except NewerFormat:
                if self._newer is None:
                    raise
                files = self._newer(pointer.metadata_location)
                return self._covered(files.metadata, files.folders(), ()), None
            stores = self._stores.with_moved(self.moved.get(name, ()))
            view = indexed(self._spark, stores, metadata, self._rules_of(name), self._root, files=self._files)
            before = self._before(metadata)
            fresh, names = reached_folders(view, () if before is None else before.read)
            return self._covered(metadata, (folder for part in fresh for folder in part), names), None
        except (UnreadableMetadata, EncryptedTable, StorageError) as error:
            return None, error.what

    def _read_list(self, location: str) -> tuple[Reached | None, str | None]:
        """Return the folders of a sealed list's paths, or why it cannot be read."""
        found: set[str] = set()
        try:
            for batch in frame_batches(location, self._files):
                paths = batch.column("path")
                firsts = paths.take(ByFolder.of(paths).starts)
                found |= {normalize(path, _PLAIN).rpartition("/")[0] for path in firsts.to_pylist()}
        except StorageError as error:
            return None, error.what
        return Reached("", location, covering(found), ()), None

    def _covered(self, metadata: TableMetadata, folders: Iterable[str], read: tuple[str, ...]) -> Reached:
        """Return what a table reaches: these folders, and those that it is known to have reached."""
        before, found = self._before(metadata), set[str]()
        for folder in folders:
            found.add(normalize(f"{folder}/x", _PLAIN).rpartition("/")[0])
            if len(found) > _AT_ONCE:
                found = set(covering(found))
        every = found | set(before.folders if before is not None else ())
        return Reached(metadata.table_uuid, metadata.metadata_location, covering(every), read)

    def _before(self, metadata: TableMetadata) -> Reached | None:
        # By its uuid, because it may have been renamed or dropped.
        return next((each for each in self._load().values() if each.table_uuid == metadata.table_uuid), None)

    # --- storing ----------------------------------------------------------------------------------------------------

    def _load(self) -> dict[str, Reached]:
        if self._known is None:
            self._known = self._stored()
        return self._known

    def _stored(self) -> dict[str, Reached]:
        try:
            if self._files.head(self._path) is None:
                return {}
            stored = json.loads(self._files.read(self._path))
            content = stored["tables"]
            if stored["format"] != FORMAT or stored["sha256"] != _checksum(content):
                raise ValueError("its checksum does not match")
            self._problems = dict(stored.get("problems", {}))
            self._formats = dict(stored.get("formats", {}))
            return {
                name: Reached(
                    each["table_uuid"],
                    each["metadata_location"] if "read" in each else "",
                    tuple(each["folders"]),
                    # Once called `segments`, by names that also stood for segments of which only a part was read.
                    tuple(each.get("read", ())),
                    int(each.get("seen_ms", 0)),
                )
                for name, each in content.items()
            }
        except (StorageError, ValueError, KeyError, TypeError) as error:
            _log.warning("The folders that tables read are determined again: %s: %s", self._path, error)
            return {}

    def _store(self, known: Mapping[str, Reached]) -> None:
        content = {name: asdict(each) for name, each in sorted(known.items())}
        beside = {"problems": self._problems, "formats": self._formats}
        data = json.dumps({"format": FORMAT, "sha256": _checksum(content), "tables": content, **beside})
        try:
            # Of two concurrent writers, the last one wins: missing entries are read again.
            self._files.write(self._path, data.encode(), overwrite=True)
        except StorageError as error:
            _log.info("The folders that tables read were not stored: %s", error.what)


def _checksum(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
