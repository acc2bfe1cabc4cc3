"""Whose file is it. Belongs here: a table's own locations, and the other tables of the catalog that share or nest them.

Two tables that shared or nested a location deleted each other's files (iceberg 4265, 12278; nessie 12363).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.errors import GarbageCollectionDisabled, NoSuchTable, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.reached import Pointer as Pointer
from artemis_lifecycle.reachability.reached import ReachedFolders
from artemis_lifecycle.storage.local import through_link
from artemis_lifecycle.storage.location import LocationRules, ambiguity, is_under, normalise, overlap, parent
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

LOCATION_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Table properties that move files out of the table's location (Iceberg's TableProperties)."""

METADATA_PROPERTY = "write.metadata.path"

_READERS = 8
_QUICK = 1.0
"""Seconds. A look around that takes no longer is made before every piece of a deletion; of others, one in ten of its
lengths."""

# Hadoop's local file system writes `.<name>.crc` beside every file.
_SIDECAR = re.compile(r"/\.([^/]+)\.crc\Z")

_log = logging.getLogger(__name__)


class TablesOfCatalog(Protocol):
    """What this room asks of a catalog; `catalogs.live.CatalogReader` is one."""

    def tables(self) -> list[str]: ...

    def entry(self, table: str) -> Pointer: ...

    def pointers(self) -> Mapping[str, Pointer]: ...


def own_locations(metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """The locations (normal form, none inside another) whose files a table may call its own.

    The root of a file system or of a bucket owns nothing: everything would be the table's.
    """
    roots = {normalise(metadata.location, rules)}
    roots |= {normalise(metadata.properties[key], rules) for key in LOCATION_PROPERTIES if metadata.properties.get(key)}
    return outermost(_trimmed(root) for root in roots)


def require_collectable(metadata: TableMetadata, table: str) -> None:
    """Raise GarbageCollectionDisabled where the table says `gc.enabled=false`: none of its files may be deleted."""
    if not metadata.gc_enabled:
        raise GarbageCollectionDisabled(
            "The table says gc.enabled=false: other tables may own its files",
            table=table,
            path=metadata.metadata_location,
            untouched="all files that were not deleted before",
            do="set gc.enabled=true if no other table shares its files, then run this again",
        )


def metadata_locations(metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Where the table's writers put metadata files, manifest lists and manifests."""
    named = metadata.properties.get(METADATA_PROPERTY)
    roots = {normalise(f"{metadata.location.rstrip('/')}/metadata", rules)}
    if named:
        roots.add(_trimmed(normalise(named, rules)))
    return outermost(roots)


def subject(path: str) -> str:
    """The file that a path is about: for Hadoop's local checksum file `.<name>.crc`, the file beside it.

    The two live and go together: a checksum file that outlives its file makes Hadoop refuse another of that name.
    """
    return _SIDECAR.sub(r"/\1", path) if path.endswith(".crc") else path


def subject_array(paths: pa.Array) -> pa.Array:
    """`subject` of an Arrow array of strings."""
    import pyarrow.compute as pc

    if not pc.any(pc.ends_with(paths, ".crc")).as_py():
        return paths
    return pc.replace_substring_regex(paths, r"/\.([^/]+)\.crc\z", r"/\1")


def subject_column(path: Column) -> Column:
    """`subject` as a Spark column expression."""
    from pyspark.sql import functions as F

    return F.regexp_replace(path, r"/\.([^/]+)\.crc\z", "/$1")


def sidecar_array(paths: pa.Array) -> pa.Array:
    """Where Hadoop's local file system keeps the checksums of files."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(paths, r"/([^/]*)\z", r"/.\1.crc")


def outermost(roots: Iterable[str]) -> tuple[str, ...]:
    """Those of `roots` that lie in no other of them, file system and bucket roots left out."""
    usable = sorted({root for root in roots if not is_root(root)}, key=len)
    kept: list[str] = []
    for root in usable:
        if not any(is_under(root, other) for other in kept):
            kept.append(root)
    return tuple(kept)


def is_root(location: str) -> bool:
    """Whether a location is a whole file system or bucket."""
    return not location.partition("://")[2].partition("/")[2].strip("/")


def owned(
    path: str, roots: Sequence[str], rules: LocationRules, links: dict[tuple[str, str], bool] | None = None
) -> bool:
    """Whether a file is below one of `roots` and its path spells its way there plainly.

    A path with `.` or `..` in it, one that ends in a slash, one that leads through a symbolic link or one that engines
    read differently is nobody's: what a delete would hit is not what the text says. `links` remembers, for the length
    of one look, which folders are reached through a link: most files of a look share theirs.
    """
    segments = path.split("/")
    if segments[-1] == "" or any(segment in (".", "..") for segment in segments) or ambiguity(path, rules) is not None:
        return False
    known: dict[tuple[str, str], bool] = {} if links is None else links
    folder = path.rpartition("/")[0]
    for root in roots:
        if not is_under(path, root, rules):
            continue
        if (folder, root) not in known:
            known[folder, root] = through_link(path, root)
        if not known[folder, root]:
            return True
    return False


def overlapping(ours: Sequence[str], theirs: Sequence[str], rules: LocationRules) -> bool:
    """Whether any location of one side equals, holds or lies in one of the other."""
    return any(overlap(a, b, rules) for a in ours for b in theirs)


@dataclass(frozen=True)
class Neighbour:
    """Another table of the catalog, by what its metadata says of locations.

    When its metadata cannot be read, `problem` says why and `locations` are guessed from where its metadata file is.
    """

    table: str
    table_uuid: str | None
    metadata_location: str
    locations: tuple[str, ...]
    problem: str | None = None


def nested_locations(others: Iterable[Neighbour], ours: Sequence[str], rules: LocationRules) -> tuple[str, ...]:
    """The locations of other tables that equal one of `ours` or lie inside it."""
    return tuple(
        theirs
        for other in others
        for theirs in other.locations
        if any(theirs == own or is_under(theirs, own, rules) for own in ours)
    )


class Neighbours:
    """The other tables of one catalog: those whose locations touch a table's, and those that read from there wherever
    they are themselves (add_files, clones).

    `overlapping` finds new names at each call; `look_around` where all others read, which takes longer. `table` None is
    nobody's name: every table of the catalog is another one.
    """

    def __init__(
        self,
        catalog: TablesOfCatalog,
        stores: Stores,
        rules: LocationRules,
        table: str | None,
        reached: ReachedFolders | None = None,
    ) -> None:
        self._catalog = catalog
        self._stores = stores
        self._rules = rules
        self._table = table
        self._reached = reached
        self._known: dict[str, Neighbour | None] = {}
        self._looked_at: Mapping[str, str] = {}
        self._rested_until = float("-inf")

    def overlapping(self, locations: Sequence[str]) -> tuple[Neighbour, ...]:
        """Tables whose locations touch `locations`, readable or not, and tables that read there, by name. A table is
        read once in the life of this object, and again when `look_around` saw it change."""
        names = [name for name in self._catalog.tables() if name != self._table]
        unseen = [name for name in names if name not in self._known]
        if unseen:
            with ThreadPoolExecutor(max_workers=_READERS) as readers:
                self._known.update(zip(unseen, readers.map(self._read, unseen), strict=True))
        found = (other for name in sorted(names) if (other := self._known[name]) is not None)
        return tuple(other for other in found if self._touches(other, locations))

    def look_around(self) -> None:
        """Find out where all other tables of the catalog read, as of their pointers now; reads what they have committed
        since the last time. A table that cannot be read counts with what was last known of it.

        Where a catalog needs its time for that, looking takes a tenth of the time at most: calls in between do nothing.
        """
        began = time.monotonic()
        if self._reached is None or began < self._rested_until:
            return
        there = self._catalog.pointers()
        pointers = {
            name: pointer
            for name, pointer in there.items()
            # Our own results are no clones of anybody's.
            if name != self._table and not name.startswith(f"{NAMESPACE}.")
        }
        for name, problem in self._reached.look(pointers, there).items():
            _log.warning("Where %s reads is not known as of now: %s", name, problem)
        now = {name: pointer.metadata_location for name, pointer in pointers.items()}
        # Their locations may have changed too.
        moved = [name for name, place in now.items() if self._looked_at.get(name, place) != place]
        with ThreadPoolExecutor(max_workers=_READERS) as readers:
            self._known.update(zip(moved, readers.map(self._read, moved), strict=True))
        self._looked_at = now
        took = time.monotonic() - began
        self._rested_until = began + (10 * took if took > _QUICK else 0)

    def entry(self, table: str) -> Pointer:
        """The catalog's own entry of a neighbour, read now."""
        return self._catalog.entry(table)

    def _touches(self, other: Neighbour, locations: Sequence[str]) -> bool:
        if not other.metadata_location:
            return True
        reads = () if self._reached is None else self._reached.of(other.table)
        return overlapping(locations, (*other.locations, *reads), self._rules)

    def _read(self, name: str) -> Neighbour | None:
        try:
            entry = self._catalog.entry(name)
        except NoSuchTable as error:
            if name not in self._catalog.tables():
                return None  # Dropped between the two questions: it has no entry that a reader could follow.
            # Where it reads is not known, so it may read anywhere.
            return Neighbour(name, None, "", (), f"the catalog lists it, and cannot load it: {error.what}")
        try:
            metadata = read_table_metadata(self._stores, entry.metadata_location)
        except (UnreadableMetadata, StorageError) as error:
            return Neighbour(name, None, entry.metadata_location, self._guess(entry.metadata_location), str(error))
        return Neighbour(name, metadata.table_uuid, entry.metadata_location, own_locations(metadata, self._rules))

    def _guess(self, metadata_location: str) -> tuple[str, ...]:
        folder = parent(normalise(metadata_location, self._rules))
        # <table>/metadata/<file>: by the layout that every writer uses unless it is told otherwise.
        return outermost((folder, parent(folder)) if folder.endswith("/metadata") else (folder,))


def _trimmed(location: str) -> str:
    return location.rstrip("/") if not is_root(location) else location
