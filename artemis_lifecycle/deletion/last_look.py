"""The last look: what is alive again, or never was ours to delete, as of just before a batch goes.

Nothing here trusts the plan, an asset or a cached table. The catalog pointer is read for every batch. At a job's start
the job's files are held against everything that any snapshot of the current metadata reaches, hash by hash in the
manifest index; after that against what a moved pointer brought: manifest lists and manifests not seen before.

What stays open is the moment between reading the pointer and the store's delete call. A writer that commits a reference
to a doomed file inside it, without a heartbeat, a hold or a restore (which wait for the table's lock), loses that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from artemis_lifecycle.deletion.absence import Absence
from artemis_lifecycle.deletion.batches import Batches, DeletionJob, batch_paths
from artemis_lifecycle.deletion.ownership import (
    Neighbour,
    Neighbours,
    Pointer,
    TablesOfCatalog,
    metadata_locations,
    nested_locations,
    own_locations,
    owned,
    require_collectable,
    subject,
    subject_array,
)
from artemis_lifecycle.deletion.quarantine import UNDELETED, moved_files
from artemis_lifecycle.deletion.receipt import RECEIPTS
from artemis_lifecycle.errors import Busy, NoSuchTable, Refused, StalePlan, UnreadableMetadata
from artemis_lifecycle.metadata.avro import live_entries, manifests_of
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import ManifestListEntry, TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.heartbeats import Heartbeat
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.reached import ReachedFolders
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.storage.local import is_text
from artemis_lifecycle.storage.location import (
    FOLDERS_KEPT,
    LocationRules,
    folder_and_name,
    is_under,
    normalise,
)
from artemis_lifecycle.storage.location_hash import among, distinct, hash_column, hash_location
from artemis_lifecycle.storage.many_files import ByFolder
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

REACHABLE = "reachable"
"""A snapshot of the table's current metadata reaches the file. Of another table: `reachable from <table>`."""

CURRENT_METADATA = "current_metadata"
"""The file is the table's metadata file, one of its metadata log, its version hint or a registered statistics file."""

NOT_OWNED = "not_owned"
"""The file is outside the table's own locations, or its path does not spell its way plainly."""

RECEIPT = "receipt"
"""The file is a receipt of an earlier deletion, which stands by the table for auditors."""

IN_FLIGHT = "in_flight"
"""A live writer's heartbeat covers the file."""

OTHER_TABLE = "other_table"
"""The file lies in the location of another table of the catalog, or among this project's own sealed files."""

_MANIFESTS_ON_DRIVER = 200  # More new manifests than this, and everything is looked at again.
_FULL_LOOKS = 4


@dataclass(frozen=True)
class Sight:
    """Where a job looks: session and stores, Postgres, the table's entry in its catalog, the catalog's other tables.
    `reserved` are the other tiers' roots: whatever a table calls its own, nothing in there is."""

    spark: SparkSession
    stores: Stores
    operations: Operations
    current: Callable[[], Pointer]
    neighbours: Neighbours
    rules: LocationRules
    root: str
    reserved: tuple[str, ...] = ()
    dropped: Absence | None = None
    """Set where the table was dropped: then nothing of its own is reachable, and it must not be in the catalog."""

    @classmethod
    def around(
        cls,
        spark: SparkSession,
        stores: Stores,
        operations: Operations,
        current: Callable[[], Pointer],
        catalog: TablesOfCatalog,
        table: str | None,
        *,
        root: str,
        rules: LocationRules,
        reserved: Sequence[str] = (),
        rules_of: Callable[[str], LocationRules] | None = None,
        dropped: Absence | None = None,
    ) -> Self:
        """A sight in which every table of `catalog` but `table` is another one, wherever it reads. `rules_of` are the
        others' own rules, by name (None: these)."""
        reached = ReachedFolders(spark, stores, root, rules_of or (lambda _: rules))
        others = Neighbours(catalog, stores, rules, table, reached)
        return cls(spark, stores, operations, current, others, rules, root, tuple(reserved), dropped)

    @property
    def not_its_own(self) -> tuple[str, ...]:
        """Locations that no table owns: the sealed plans, the index and the ledgers, the cold tier, the quarantine."""
        return tuple(normalise(place, self.rules) for place in (self.root, *self.reserved))


def metadata_files(metadata: TableMetadata, rules: LocationRules) -> set[str]:
    """Locations of what a metadata file needs beside its snapshots: itself, its log, version hints, statistics."""
    paths = [metadata.metadata_location]
    paths += [entry.metadata_file for entry in metadata.metadata_log]
    paths += [file.path for file in metadata.statistics]
    paths += [f"{folder}/version-hint.text" for folder in metadata_locations(metadata, rules)]
    return {normalise(path, rules) for path in paths}


def present_index(sight: Sight, metadata: TableMetadata) -> IndexView:
    """The table's index as of `metadata`. Raises UnreadableMetadata when any list or manifest is not there."""
    view = indexed(sight.spark, sight.stores, metadata, sight.rules, sight.root)
    # What the index knows was not opened again; a lost manifest has to stop a deletion all the same.
    view.require_present()
    return view


def covered(heartbeats: Iterable[Heartbeat], metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """The locations that live heartbeats cover: all the table's own, or a writer's prefix and the metadata folders.

    A writer that declares where its data goes still writes manifests, lists and a metadata file where the table says.
    """
    roots: list[str] = []
    for heartbeat in heartbeats:
        if heartbeat.prefix is None:
            roots += own_locations(metadata, rules)
        else:
            roots.append(_absolute(heartbeat.prefix, metadata, rules))
            roots += metadata_locations(metadata, rules)
    return tuple(dict.fromkeys(roots))


def receipt_folders(metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Where the receipts of the table's deletions stand."""
    return tuple(f"{folder}/{RECEIPTS}" for folder in metadata_locations(metadata, rules))


@dataclass(frozen=True)
class Grounds:
    """Why a file stays by its place alone: `own` locations, those of tables `nested` in them, those `in_flight`, and
    the `receipts` of deletions."""

    own: tuple[str, ...]
    nested: tuple[str, ...]
    in_flight: tuple[str, ...]
    rules: LocationRules
    receipts: tuple[str, ...] = ()
    _links: dict[tuple[str, str], bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    _folders: dict[str, str | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def why(self, path: str) -> str | None:
        """The reason, or None when nothing about its place keeps the file."""
        parts = folder_and_name(path)
        # All that is asked below is about the folder, but for what a store may read into these two characters.
        if parts is None or "?" in parts[1] or "#" in parts[1]:
            return self._why(path)
        folder = parts[0]
        if folder not in self._folders:
            if len(self._folders) >= FOLDERS_KEPT:
                self._folders.clear()
            self._folders[folder] = self._why(path)
        return self._folders[folder]

    def of(self, paths: pa.Array) -> dict[int, str]:
        """`why` of each of many paths: the rows that stay, with the reason. Most share their folders."""
        import numpy as np

        files = ByFolder.of(paths)
        reasons: dict[int, str] = {}
        for low, high in pairwise([*files.starts.tolist(), len(paths)]):
            folder = files.folder(low)
            why = self.why(paths[low].as_py() if folder is None else f"{folder}/x")
            if why is not None:
                reasons.update(dict.fromkeys(range(low, high), why))
        for row in np.flatnonzero(files.cut).tolist():
            if (why := self.why(paths[row].as_py())) is not None:
                reasons[row] = why
        return reasons

    def _why(self, path: str) -> str | None:
        if not owned(path, self.own, self.rules, self._links):
            return NOT_OWNED
        if any(is_under(path, root, self.rules) for root in self.nested):
            return OTHER_TABLE
        if any(is_under(path, root, self.rules) for root in self.receipts):
            return RECEIPT
        return IN_FLIGHT if any(is_under(path, root, self.rules) for root in self.in_flight) else None


@dataclass(frozen=True)
class Verdicts:
    """Why files stay, by a full look and by their places: reasons with the sorted hashes of what is `reached`, and the
    locations that metadata itself needs. Picklable."""

    reached: tuple[tuple[str, NDArray[np.uint64]], ...]
    needed: frozenset[str]
    grounds: Grounds

    def why(self, path: str) -> str | None:
        """The reason, or None for a file that may go."""
        location = normalise(subject(path), self.grounds.rules)
        hashed = hash_location(location)
        reason = next((reason for reason, hashes in self.reached if _among(hashes, hashed)), None)
        if reason is None and location in self.needed:
            reason = CURRENT_METADATA
        return reason or self.grounds.why(path)


def hash_subjects(paths: pa.Array, rules: LocationRules) -> NDArray[np.uint64]:
    """The location hash of the file that each path is about (`ownership.subject`)."""
    return hash_column(subject_array(paths), rules)


def _hashes(locations: Iterable[str], rules: LocationRules) -> NDArray[np.uint64]:
    import pyarrow as pa

    # What is no text can be no path of a job either.
    texts = [location for location in locations if location.isascii() or is_text(location)]
    return distinct(hash_column(pa.array(texts, pa.string()), rules))


def _among(hashes: NDArray[np.uint64], one: int) -> bool:
    place = int(hashes.searchsorted(hashes.dtype.type(one)))
    return place < len(hashes) and int(hashes[place]) == one


class TableLook:
    """What one table reaches: everything once (by its index), then only what is new (on the driver)."""

    def __init__(
        self, sight: Sight, job: DeletionJob, table: str, table_uuid: str, current: Callable[[], Pointer]
    ) -> None:
        self._sight = sight
        self._job = job
        self._current = current
        self._seen: set[tuple[int, str | None]] = set()
        self._seen_manifests: set[str] = set()
        self._loaded: set[int] = set()
        self._new: set[str] = set()
        self._needed: set[str] = set()
        self._later: list[tuple[str, NDArray[np.uint64]]] | None = None
        self.table = table
        self.table_uuid = table_uuid
        self.metadata: TableMetadata | None = None

    @property
    def reason(self) -> str:
        return REACHABLE if self.table == self._job.table else f"{REACHABLE} from {self.table}"

    def read(self) -> TableMetadata:
        """The table's metadata by its catalog's pointer, read now.

        Raises StalePlan when the table is gone or another took its name: that does not mean that it has no files.
        """
        try:
            entry = self._current()
        except NoSuchTable as error:
            raise self._gone(f"The catalog has no table {self.table} any more") from error
        if self.metadata is not None and self.metadata.metadata_location == entry.metadata_location:
            return self.metadata
        metadata = read_table_metadata(self._sight.stores, entry.metadata_location)
        if metadata.table_uuid != self.table_uuid:
            raise self._gone(
                f"The name {self.table} now belongs to another table ({metadata.table_uuid}, not {self.table_uuid})"
            )
        return metadata

    def reached(self, metadata: TableMetadata, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these location hashes any snapshot of `metadata` reaches. Raises UnreadableMetadata."""
        return present_index(self._sight, metadata).reaches(hashes)

    def looked_at(self, metadata: TableMetadata) -> None:
        """Every snapshot of `metadata` was walked: only others are new from here on."""
        self.metadata = metadata
        self._seen = {(snapshot.snapshot_id, snapshot.manifest_list) for snapshot in metadata.snapshots}
        self._seen_manifests, self._loaded, self._new = set(), set(), set()
        self._needed = metadata_files(metadata, self._sight.rules)
        self._later = None

    def refresh(self) -> bool:
        """Read what the pointer brought since the last look; False when that is more than the driver should read.

        Raises UnreadableMetadata when any of it cannot be read: then nothing may be deleted.
        """
        metadata = self.read()
        if metadata is self.metadata:
            return True
        unread: dict[str, ManifestListEntry] = {}
        lists: set[str] = set()
        for snapshot in metadata.snapshots:
            if (snapshot.snapshot_id, snapshot.manifest_list) in self._seen:
                continue
            self._load_parent(metadata, snapshot.parent_snapshot_id)
            listed = manifests_of(self._sight.stores, snapshot)
            if listed.path is not None:
                lists.add(normalise(listed.path, self._sight.rules))
            for entry in listed.entries:
                location = normalise(entry.manifest_path, self._sight.rules)
                if location not in self._seen_manifests:
                    unread[location] = entry
            if len(unread) > _MANIFESTS_ON_DRIVER:
                return False
        found = set(unread) | lists
        for entry in unread.values():
            paths = live_entries(self._sight.stores, entry).column("file_path").to_pylist()
            found.update(normalise(path, self._sight.rules) for path in paths)
        # Only now, when all of it was read, does the new metadata count as looked at.
        self._new |= found
        self._seen_manifests |= set(unread)
        self._seen |= {(snapshot.snapshot_id, snapshot.manifest_list) for snapshot in metadata.snapshots}
        self._needed |= metadata_files(metadata, self._sight.rules)
        self._later = None
        self.metadata = metadata
        return True

    @property
    def needed(self) -> set[str]:
        """Locations of what the metadata itself needs, beside its snapshots."""
        return self._needed

    def later(self) -> Sequence[tuple[str, NDArray[np.uint64]]]:
        """Reasons with the sorted hashes of the files that stay for them: what came after the full look, and what the
        metadata itself needs."""
        if self._later is None:
            rules = self._sight.rules
            self._later = [(self.reason, _hashes(self._new, rules)), (CURRENT_METADATA, _hashes(self._needed, rules))]
        return self._later

    def _load_parent(self, metadata: TableMetadata, parent: int | None) -> None:
        # A snapshot differs from its parent by few manifests, and the parent's were walked in the full look.
        snapshot = None if parent is None else metadata.snapshot(parent)
        if snapshot is None or snapshot.snapshot_id in self._loaded:
            return
        if (snapshot.snapshot_id, snapshot.manifest_list) not in self._seen:
            return
        self._loaded.add(snapshot.snapshot_id)
        listed = manifests_of(self._sight.stores, snapshot)
        self._seen_manifests |= {normalise(entry.manifest_path, self._sight.rules) for entry in listed.entries}

    def _gone(self, what: str) -> StalePlan:
        return StalePlan(
            what,
            table=self._job.table,
            untouched="all files of the job that were not deleted before",
            do=f"find out who changed the catalog; if the table is gone for good, artemis close {self._job.job_id}",
        )


class DroppedLook(TableLook):
    """Of a table that was dropped: it reaches nothing, as long as the catalog does not have it again."""

    def __init__(self, sight: Sight, job: DeletionJob, dropped: Absence) -> None:
        super().__init__(sight, job, f"dropped table {job.table_uuid}", job.table_uuid, dropped.pointer)
        self._dropped = dropped

    def read(self) -> TableMetadata:
        """The last that is known of it. Raises StalePlan when it is in the catalog, UnreadableMetadata where that
        cannot be told."""
        self._dropped.require()
        return self._dropped.metadata

    def reached(self, metadata: TableMetadata, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        import numpy as np

        return np.zeros(len(hashes), np.bool_)

    def looked_at(self, metadata: TableMetadata) -> None:
        self.metadata = metadata

    def refresh(self) -> bool:
        self.metadata = self.read()
        return True


class LastLook:
    """The looks of one job, at its table and at the tables that share or nest its locations, or read from them."""

    def __init__(self, sight: Sight, job: DeletionJob, batches: Batches | None) -> None:
        self._sight = sight
        self._job = job
        self._batches = batches
        self._own = (
            TableLook(sight, job, job.table, job.table_uuid, sight.current)
            if sight.dropped is None
            else DroppedLook(sight, job, sight.dropped)
        )
        self._others: dict[str, TableLook] = {}
        self._nested: tuple[str, ...] = ()
        # Hashes, sorted, of what was brought back from quarantine, by the job that had moved it.
        self._undeleted: dict[str, NDArray[np.uint64]] = {}
        # Hashes, sorted, of the job's files that a table reached at the last full look, by the table's name.
        self._reached: dict[str, NDArray[np.uint64]] = {}
        self._own_roots: tuple[str, ...] = ()

    def full(self) -> None:
        """Look at everything: hold the job's batches against all that the tables reach."""
        assert self._batches is not None
        self.look_at(batch_paths(self._sight.stores, self._batches))

    def look_around(self) -> None:
        """See which tables read here from elsewhere, before the table's lock is taken: it may take its time."""
        self._sight.neighbours.look_around()
        if self._sight.dropped is not None:
            self._sight.dropped.require()

    def look_at(self, paths: Iterable[pa.Array]) -> None:
        """A full look at files that come in Arrow arrays. The driver has eight bytes for each, and no path."""
        import numpy as np

        metadata = self._own.read()
        require_collectable(metadata, self._job.table)
        rules = self._sight.rules
        self._own_roots = own_locations(metadata, rules)
        self._others = {name: self._other(other) for name, other in self._neighbours().items()}
        hashes = distinct(np.concatenate([np.empty(0, np.uint64), *(hash_subjects(array, rules) for array in paths)]))
        self._reached = {}
        for look in (self._own, *self._others.values()):
            seen = metadata if look is self._own else look.read()
            self._reached[look.table] = hashes[look.reached(seen, hashes)]
            look.looked_at(seen)

    def verdicts(self) -> Verdicts:
        """What the full look says, holds apart; for a dry run, after `look_at`."""
        looks = (self._own, *self._others.values())
        reached = tuple((look.reason, self._reached[look.table]) for look in looks)
        reached += tuple((UNDELETED, hashes) for hashes in self._brought_back())
        needed = frozenset(location for look in looks for location in look.needed)
        return Verdicts(reached, needed, self._grounds(self._heartbeats()))

    def refresh(self) -> None:
        """Look at what is new since the last look; at everything again when that is a lot, or a new neighbour came.

        Raises Busy when the table keeps changing by more than the driver reads while Spark looks at everything.
        """
        for _ in range(_FULL_LOOKS):
            if self._refreshed():
                return
            # It took its time: what came meanwhile is still to be looked at.
            self.full()
        raise Busy(
            "The table changes faster than it can be looked at",
            table=self._job.table,
            untouched="all files of the job that were not deleted before",
            do="delete again at a quieter time",
        )

    def _refreshed(self) -> bool:
        enough = False not in [look.refresh() for look in (self._own, *self._others.values())]
        assert self._own.metadata is not None
        require_collectable(self._own.metadata, self._job.table)
        self._own_roots = own_locations(self._own.metadata, self._sight.rules)
        return set(self._neighbours()) == set(self._others) and enough

    def kept(self, paths: pa.Array) -> dict[int, str]:
        """The rows among `paths` that stay, each with its reason. Reads holds and heartbeats now, then the pointers.

        Raises Refused for a hold, StalePlan for a table that is gone, UnreadableMetadata for anything unreadable.
        """
        import numpy as np

        self.require_no_hold()
        # Heartbeats before pointers: a writer that stops in between has committed, and the pointer shows it.
        heartbeats = self._heartbeats()
        self.refresh()
        grounds = self._grounds(heartbeats)
        undeleted = self._brought_back()
        looks = (self._own, *self._others.values())
        alive = [(look.reason, self._reached[look.table]) for look in looks]
        alive += [later for look in looks for later in look.later()]
        alive += [(UNDELETED, hashes) for hashes in undeleted]
        hashed = hash_subjects(paths, self._sight.rules)
        # Of several reasons the first one written here is told.
        reasons: dict[int, str] = {}
        for reason, hashes in alive:
            for row in np.flatnonzero(among(hashes, hashed)).tolist():
                reasons.setdefault(row, reason)
        return grounds.of(paths) | reasons

    def require_no_hold(self) -> None:
        """Raise Refused, naming it, when a hold covers the table or one of the job's snapshots."""
        operations = self._sight.operations
        for hold in operations.holds.active(self._job.table_uuid):
            if not hold.snapshot_ids or set(hold.snapshot_ids) & set(self._job.snapshot_ids):
                what = "the table" if not hold.snapshot_ids else "snapshots of the job"
                raise Refused(
                    f"Hold {hold.hold_id} of {hold.owner} on {what} stops deletion {self._job.job_id}: {hold.reason}",
                    table=self._job.table,
                    untouched="all files of the job that were not deleted before",
                    do=f"delete again when it is over, or artemis release {hold.hold_id}",
                )

    def _brought_back(self) -> list[NDArray[np.uint64]]:
        """What undeletes that are not closed have put back to its place, as of now."""
        import pyarrow as pa

        sight = self._sight
        records = sight.operations.quarantines.undeleted(self._job.table_uuid)
        for record in records:
            if record.job_id not in self._undeleted:
                paths = pa.array(
                    [file.path for file in moved_files(sight.stores, sight.root, record.job_id)], pa.string()
                )
                self._undeleted[record.job_id] = distinct(hash_subjects(paths, sight.rules))
        return [self._undeleted[record.job_id] for record in records]

    def _neighbours(self) -> dict[str, Neighbour]:
        found = self._sight.neighbours.overlapping(self._own_roots)
        for other in found:
            if other.problem is not None:
                raise UnreadableMetadata(
                    f"Table {other.table} shares or nests a location with this one, or reads from it, and cannot be "
                    f"read: {other.problem}",
                    table=self._job.table,
                    path=other.metadata_location,
                    untouched="all files of the job that were not deleted before",
                    do=f"mend or drop {other.table}",
                )
        # A table around this one reaches into it; one inside it, or on the same place, has files of its own there.
        self._nested = nested_locations(found, self._own_roots, self._sight.rules)
        return {other.table: other for other in found}

    def _other(self, other: Neighbour) -> TableLook:
        assert other.table_uuid is not None
        return TableLook(
            self._sight,
            self._job,
            other.table,
            other.table_uuid,
            lambda: self._sight.neighbours.entry(other.table),
        )

    def _heartbeats(self) -> Sequence[Heartbeat]:
        # What a plan names was committed and has expired: no writer can be writing it.
        return () if self._job.kind == "expiration" else self._sight.operations.heartbeats.live(None)

    def _grounds(self, heartbeats: Sequence[Heartbeat]) -> Grounds:
        roots: list[str] = []
        for look in (self._own, *self._others.values()):
            assert look.metadata is not None
            live = [heartbeat for heartbeat in heartbeats if heartbeat.table_uuid == look.table_uuid]
            roots += covered(live, look.metadata, self._sight.rules)
        nested = () if self._job.kind == "expiration" else self._nested
        # They may lie in a folder that the table calls its own.
        nested = (*nested, *self._sight.not_its_own)
        assert self._own.metadata is not None
        receipts = receipt_folders(self._own.metadata, self._sight.rules)
        return Grounds(self._own_roots, nested, tuple(roots), self._sight.rules, receipts)


def _absolute(prefix: str, metadata: TableMetadata, rules: LocationRules) -> str:
    if "://" in prefix or prefix.startswith(("/", "file:")):
        return normalise(prefix.rstrip("/"), rules)
    return normalise(f"{metadata.location.rstrip('/')}/{prefix.strip('/')}", rules)
