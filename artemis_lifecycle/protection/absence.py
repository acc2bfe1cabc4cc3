"""Checks that a table is no longer in its catalog under any name.

A table that was renamed or registered again has the same uuid and the same files. Deleting them as a dropped table's
files would destroy an existing table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from artemis_lifecycle.catalogs.identifier import CatalogEntry
from artemis_lifecycle.errors import NewerFormat, NoSuchTable, Refused, StalePlan, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import described, read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.scans import ScanRecord
from artemis_lifecycle.protection.future import later_files, may_be_of
from artemis_lifecycle.protection.ownership import spelled_locations
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

_READERS = 8


class HasPointers(Protocol):
    """The tables of a catalog, by name."""

    def pointers(self) -> Mapping[str, Pointer]: ...

    def others(self) -> Sequence[CatalogEntry]: ...


def dropped_folder(root: str, table_uuid: str) -> str:
    """Return the folder with a dropped table's last metadata file and the receipt of its deletion."""
    return f"{root}/dropped/{table_uuid}"


class Missed(Protocol):
    """A dropped table: a name of a uuid, and its last metadata file."""

    @property
    def table_uuid(self) -> str: ...

    @property
    def table(self) -> str: ...

    @property
    def metadata_location(self) -> str: ...

    @property
    def missing_since(self) -> datetime | None: ...


def saved_metadata(root: str, known: Missed) -> str:
    """Return where a dropped table's last metadata file is saved: by its whole location, because a replica has the
    same uuid and the same names of files."""
    location = known.metadata_location
    digest = sha256(location.encode()).hexdigest()[:16]
    return f"{dropped_folder(root, known.table_uuid)}/{digest}/{location.rpartition('/')[2]}"


def saved_later(root: str, known: Missed) -> str:
    """Return the folder in which its later metadata files are saved before a deletion moves them into quarantine."""
    return f"{saved_metadata(root, known).rpartition('/')[0]}/later"


def is_of_this_drop(root: str, scan: ScanRecord, known: Missed) -> bool:
    """Return True if a dropped table has not been in the catalog since that scan of it, under this name."""
    if known.missing_since is None or scan.listed_at < known.missing_since or scan.table != known.table:
        return False
    return scan.metadata_location in (known.metadata_location, saved_metadata(root, known))


@dataclass(frozen=True)
class Behind:
    """What a metadata file says of its table: its uuid, its locations and its metadata log, as they are spelled
    there."""

    table_uuid: str
    locations: tuple[str, ...]
    log: tuple[str, ...]


def tables_behind(stores: Stores, locations: Collection[str]) -> dict[str, Behind | UnreadableMetadata | StorageError]:
    """Return the table of each of those metadata files, or the error of reading it."""

    def read(location: str) -> Behind | UnreadableMetadata | StorageError:
        try:
            metadata = read_table_metadata(stores, location)
            log = tuple(entry.metadata_file for entry in metadata.metadata_log)
            return Behind(metadata.table_uuid, spelled_locations(metadata), log)
        except NewerFormat as error:
            newer = described(stores, location)
            return error if newer.table_uuid is None else Behind(newer.table_uuid, newer.locations, newer.log)
        except (UnreadableMetadata, StorageError) as error:
            return error

    return dict(zip(locations, threaded(read, list(locations), _READERS), strict=True))


class Absence:
    """Searches every pointer of the catalog for the table with one uuid. Reads each metadata file once.

    `metadata` is the last known metadata of the table. `known` has known uuids by metadata file, because metadata files
    never change. `apart` are names of the same uuid that are known as tables of their own.
    """

    def __init__(
        self,
        catalog: HasPointers,
        stores: Stores,
        metadata: TableMetadata,
        table: str,
        known: Mapping[str, str] | None = None,
        apart: Collection[str] = (),
    ) -> None:
        self._catalog = catalog
        self._stores = stores
        self._table = table
        self._known = dict(known or {})
        self._apart = frozenset(apart)
        self._listed: tuple[str, Collection[str]] | None = None
        self.metadata = metadata

    def expect(self, seen: str, listed: Collection[str]) -> None:
        """From now on, `require` also raises Refused for metadata files of the table later than `seen`, except those
        `listed` (names), which its scan found and which are not from after the drop: somebody commits to it in a
        catalog that cannot be asked."""
        self._listed = seen, listed

    def require(self) -> None:
        """Raise StalePlan with the table's name if a table of the catalog has the uuid; raise UnreadableMetadata if a
        table cannot be read, because it may be the one; Refused, as `expect` says."""
        pointers = self._catalog.pointers()
        for name, each in pointers.items():
            if each.problem is not None:
                raise self._may_be(f"{name}: {each.problem}")
        unread = sorted({each.metadata_location for each in pointers.values()} - set(self._known))
        for location, found in tables_behind(self._stores, unread).items():
            if not isinstance(found, Behind):
                raise self._may_be(found.what, location) from found
            self._known[location] = found.table_uuid
        # Another object counts if its metadata file is the table's: it was registered as something else.
        others = {each.metadata_location: each.identifier for each in self._catalog.others() if each.metadata_location}
        behind = tables_behind(self._stores, set(others).difference(self._known))
        self._known |= {place: each.table_uuid if isinstance(each, Behind) else "" for place, each in behind.items()}
        named = [(name, each.metadata_location) for name, each in pointers.items()]
        for name, location in (*named, *((name, location) for location, name in others.items())):
            if self._known[location] == self.metadata.table_uuid and name not in self._apart:
                raise StalePlan(
                    f"The table that was dropped as {self._table} is in the catalog again, as {name}",
                    table=self._table,
                    untouched="all files that were not deleted before",
                    hint="nothing to do: its files belong to an existing table again",
                )
        if self._listed is not None:
            self._require_no_commit(*self._listed, [pointers[name] for name in self._apart.intersection(pointers)])

    def _may_be(self, problem: str, path: str | None = None) -> UnreadableMetadata:
        return UnreadableMetadata(
            f"A table of the catalog cannot be read, and may be the dropped one under another name: {problem}",
            table=self._table,
            path=path,
            untouched="all files that were not deleted before",
            hint="fix that table, or drop it from the catalog",
        )

    def _require_no_commit(self, seen: str, listed: Collection[str], apart: Sequence[Pointer]) -> None:
        # A second name of the uuid may write to the same folder; as a neighbor it keeps what it reads.
        logs = tables_behind(self._stores, [each.metadata_location for each in apart]).items() if apart else ()
        theirs = {path for at, each in logs for path in (at, *(each.log if isinstance(each, Behind) else ()))}
        later = later_files(self._stores, seen)
        new = [path for path in later if path.rpartition("/")[2] not in listed and path not in theirs]
        ours = [path for path in new if may_be_of(self._stores, path, self.metadata.table_uuid)]
        if ours:
            raise Refused(
                f"Metadata files of the dropped table were written after its drop, or after the scan of it, e.g. "
                f"{ours[0]}: it lives elsewhere",
                table=self._table,
                path=ours[0],
                untouched="all files that were not deleted before",
                hint="find out who commits there, and register the table here; or artemis keep-dropped "
                f"{self.metadata.table_uuid}; if it is older than the drop, scan again: artemis scan-dropped",
            )

    def pointer(self) -> Pointer:
        """Raise NoSuchTable, because the catalog has no such table."""
        raise NoSuchTable(f"Table {self.metadata.table_uuid} was dropped", table=self._table, hint="nothing")
