"""The cold tables of one live table: the newest, and the closed ones of past years or months (`cold_split`). Belongs
here: finding the table that has a snapshot, with as few metadata files read as possible."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.cold_tier.cold_metadata import COMPLETE_UNTIL, Meaning, history_of, metadata_path, snapshot_ids
from artemis_lifecycle.cold_tier.cold_split import (
    CLOSED_TABLES,
    UNKNOWN_SNAPSHOT,
    ClosedTable,
    Json,
    closed_tables,
    covering,
)
from artemis_lifecycle.cold_tier.evolution import with_lists
from artemis_lifecycle.cold_tier.paths import (
    OWNER,
    PUBLISHED,
    ColdIdentity,
    by_uuid,
    claim,
    free_suffix,
    no_cold_table,
    place,
    published_path,
    read_identity,
    read_published,
    recovering,
    settle,
    written_location,
)
from artemis_lifecycle.cold_tier.transfer import HandoffContext
from artemis_lifecycle.errors import ConfigError, HandoffFailed, NoSuchTable, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata, read_table_metadata
from artemis_lifecycle.metadata.types import MAIN_BRANCH, LogEntry, MetadataLogEntry, TableMetadata
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits
from artemis_lifecycle.storage.instants import in_calendar
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown, frame_of

if TYPE_CHECKING:
    import pandas as pd


# --- cold entries -----------------------------------------------------------------------------------------------------
# The cold catalog's entries for one live table, and the table's place in the cold tier.


@dataclass(frozen=True)
class ColdEntry:
    """A cold table's catalog entry. Both values are None if the table does not exist yet."""

    location: str | None = None
    metadata: Json | None = None

    @property
    def snapshot_ids(self) -> set[int]:
        return snapshot_ids(self.metadata)

    @property
    def table_uuid(self) -> str | None:
        return None if self.metadata is None else self.metadata.get("table-uuid")


@dataclass(frozen=True)
class Behind:
    """A cold table whose entry is older than the metadata file `newest`, which a handoff published; or which is to be
    written, if the list of past periods `is_new`."""

    name: str
    current: ColdEntry
    newest: str
    metadata: Json
    is_new: bool = False


_HEAD = 4096


@dataclass(frozen=True)
class ColdEntries:
    """The cold catalog, open for one live table."""

    catalog: CatalogReader
    stores: Stores
    table: str
    table_uuid: str
    handed_off: str | None = None
    recorded: tuple[Mapping[str, str], ...] = ()

    def entry(self, name: str) -> ColdEntry:
        location = self._location(name)
        if location is None:
            return ColdEntry()
        stores = self.stores
        return ColdEntry(location, with_lists(metadata_json(stores.read(location), location, stores.limits)))

    def _location(self, name: str) -> str | None:
        try:
            return self.catalog.entry(name).metadata_location
        except NoSuchTable:
            return None

    def newest(self, identity: ColdIdentity, plan_id: str | None = None) -> ColdEntry:
        """Return the cold table that new snapshots go to. Raises HandoffFailed if the name belongs to another table,
        or if the catalog was put back: what is published then would leave out the snapshots of the newer metadata.
        The handoff `plan_id` may publish its own file again."""
        # Before the pointer: a publication in between is no step back.
        published = self._published(identity.cold_table)
        newest = self.entry(identity.cold_table)
        recorded = published | self._recorded(newest)
        if self._is_of_another(newest):
            raise HandoffFailed(
                f"The cold catalog's {identity.cold_table} has a different table-uuid, {newest.table_uuid}",
                table=self.table,
                path=newest.location,
                untouched="the cold catalog",
                hint=f"{recovering(self.table)} gives this table's archive a free name; then run the step again",
            )
        if plan_id is not None:
            recorded -= {metadata_path(identity, plan_id, newest.location, identity.cold_table)}
        for behind in self._behind(identity, identity.cold_table, newest, recorded):
            missing = len(snapshot_ids(behind.metadata) - behind.current.snapshot_ids)
            raise HandoffFailed(
                f"The cold catalog was put back in time: its {behind.name} is at {behind.current.location}, but a "
                f"handoff has since published {behind.newest} (snapshots only there: {missing})",
                table=self.table,
                path=behind.newest,
                untouched="both tiers; plans stay as they are and hold their files",
                hint=f"{recovering(self.table)} publishes the newer file again; then run the step again",
            )
        return newest

    def behind(self, identity: ColdIdentity, others: Collection[str]) -> tuple[str, list[Behind]]:
        """Return the name for the table's archive; and its cold tables whose entries are older than what handoffs
        published. A name that a catalog that was put back gave to another table, or that is one of `others`, on which
        other tables have settled, is replaced by a free one; for one of a past period, the newest table's list is
        written anew."""
        published, name = self._published(identity.cold_table), self._own_name(identity, identity.cold_table, others)
        current = self.entry(name)
        recorded = published | self._recorded(current)
        found = {each.name: each for each in self._behind(identity, name, current, recorded)}
        path, metadata = current.location, current.metadata
        if name in found:
            path, metadata = found[name].newest, found[name].metadata
        if path is None or metadata is None:
            return name, []
        closed = closed_tables(metadata.get("properties"))
        given = {each.name: self._own_name(identity, each.name, others) for each in closed}
        moved = {old: new for old, new in given.items() if new != old}
        for old, new in moved.items():
            found.pop(old, None)
            entry = self.entry(new)
            newer = self._newer(identity, entry, self._published(old))
            if newer is not None:
                found[new] = Behind(new, entry, *newer)
        if moved:
            log = [
                *(metadata.get("metadata-log") or ()),
                {"timestamp-ms": metadata["last-updated-ms"], "metadata-file": path},
            ]
            listed = json.dumps([[given[each.name], each.until_ms] for each in closed])
            anew = {
                **metadata,
                "metadata-log": log,
                "last-updated-ms": metadata["last-updated-ms"] + 1,
                "properties": {**metadata["properties"], CLOSED_TABLES: listed},
            }
            found[name] = Behind(name, current, metadata_path(identity, "recover-archive", path), anew, is_new=True)
        return name, list(found.values())

    def _own_name(self, identity: ColdIdentity, name: str, others: Collection[str]) -> str:
        def taken(other: str) -> bool:
            entry = self.entry(other)
            return other in others if entry.metadata is None else self._own(identity, entry) is None

        return str(parse(name).suffixed(free_suffix(name, identity.table_uuid, taken)))

    @staticmethod
    def _own(identity: ColdIdentity, entry: ColdEntry) -> ColdEntry | None:
        """Return the entry if it is free or of this table, all of whose cold tables have one location: no other has."""
        is_own = entry.metadata is None or entry.metadata.get("location") == identity.cold_location
        return entry if is_own else None

    def _recorded(self, newest: ColdEntry) -> set[str | None]:
        """Return what is recorded of the archive, whatever the name of its table was then, without past periods."""
        closed = {each.name for each in closed_tables((newest.metadata or {}).get("properties"))}
        found = (at for each in self.recorded for name, at in each.items() if name not in closed)
        return {self.handed_off, *found}

    def _published(self, name: str) -> set[str | None]:
        return {self.catalog.published(name), *(each.get(name) for each in self.recorded)}

    def _behind(
        self, identity: ColdIdentity, name: str, newest: ColdEntry, recorded: set[str | None]
    ) -> Iterator[Behind]:
        newer = self._newer(identity, newest, recorded, self.table_uuid)
        if newer is not None:
            yield Behind(name, newest, *newer)
        for closed in closed_tables(((newer and newer[1]) or newest.metadata or {}).get("properties")):
            location = self._location(closed.name)
            published = self._published(closed.name) - {None, location}
            if location is None and not published:
                published = self._unrecorded(identity, closed.name)
            # Its metadata can be large, and is only read if it is not the published one.
            if published:
                entry = self._own(identity, self.entry(closed.name)) or ColdEntry()
                newer = self._newer(identity, entry, published)
                if newer is not None:
                    yield Behind(closed.name, entry, *newer)

    def _unrecorded(self, identity: ColdIdentity, name: str) -> set[str | None]:
        """Return the metadata files of a closed table that no record names: its uuid is in their first bytes."""
        wanted = str(uuid.uuid5(uuid.UUID(self.table_uuid), name)).encode()
        paths = (each.path for each in self.stores.list(f"{identity.cold_location}/metadata"))
        files = (path for path in paths if path.endswith(".metadata.json"))
        return {path for path in files if wanted in self.stores.read_range(path, 0, _HEAD)}

    def _newer(
        self, identity: ColdIdentity, current: ColdEntry, recorded: set[str | None], table_uuid: str | None = None
    ) -> tuple[str, Json] | None:
        now = current.metadata or {}
        passed = {None, current.location, *(each["metadata-file"] for each in now.get("metadata-log") or ())}
        stored = [path for path in recorded - passed if path is not None and self.stores.head(path) is not None]
        read = [(path, metadata_json(self.stores.read(path), path, self.stores.limits)) for path in stored]
        ours = [
            each
            for each in read
            if each[1].get("location") == identity.cold_location and table_uuid in (None, each[1].get("table-uuid"))
        ]
        newest = max(ours, key=lambda each: each[1]["last-updated-ms"], default=None)
        since = now.get("last-updated-ms", -1)
        return newest if newest is not None and newest[1]["last-updated-ms"] > since else None

    def closed(self, identity: ColdIdentity, name: str) -> ColdEntry:
        """Return a cold table that covers a past period. Raises HandoffFailed if it is missing."""
        entry = self._own(identity, self.entry(name))
        if entry is None or entry.metadata is None:
            raise HandoffFailed(
                f"The cold catalog has no table {name} of this table, which contains its older snapshots",
                table=self.table,
                untouched="both tiers",
                hint=f"{recovering(self.table)}; then run the handoff again",
            )
        return entry

    def free_name(self, identity: ColdIdentity, label: str) -> str:
        """Return a name in the cold catalog for a closed table that no other live table uses."""
        name = parse(identity.cold_table).suffixed(f"_{label}")
        return str(name.suffixed(free_suffix(str(name), identity.table_uuid, self.catalog.exists)))

    def locations(self, name: str, newest: Json | None) -> dict[str, str]:
        """Return where the catalog has the archive `name` with the metadata `newest`, and the closed tables that it
        lists."""
        names = [name, *(each.name for each in closed_tables((newest or {}).get("properties")))]
        found = {each: self._location(each) for each in names}
        return {each: location for each, location in found.items() if location is not None}

    def is_taken(self, name: str) -> bool:
        """Return True if a name belongs to an entry of another table."""
        return self._is_of_another(self.entry(name))

    def _is_of_another(self, entry: ColdEntry) -> bool:
        return entry.metadata is not None and entry.table_uuid != self.table_uuid


@contextmanager
def open_entries(
    context: HandoffContext, table: str, table_uuid: str, identity: ColdIdentity | None = None
) -> Iterator[ColdEntries]:
    """`identity` is the table's place, if it has one."""
    with CatalogReader(context.config.catalogs.cold) as catalog:
        places = [] if identity is None else places_of_published(context, identity)
        recorded = tuple(read_published(stores, path) for stores, path in places)
        yield ColdEntries(catalog, context.cold_stores, table, table_uuid, context.handed_off, recorded)


def places_of_published(context: HandoffContext, identity: ColdIdentity) -> list[tuple[Stores, str]]:
    """Return where the newest metadata files of the table's archive are recorded: one backup of a machine may take back
    both catalogs, the operations database and its root, but not the copies."""
    ours = context.live_stores, published_path(context.root, identity.table_uuid)
    return [ours, (context.cold_stores, f"{identity.cold_location}/{PUBLISHED}")]


def cold_identity(
    context: HandoffContext, table: str, table_uuid: str, live_location: str, *, dry_run: bool = False
) -> ColdIdentity:
    """Return the table's place in the cold tier, and record it if it has none. `dry_run` records nothing. Raises
    HandoffFailed if the place is that of another deployment's table, or cannot be read."""
    catalogs = context.config.catalogs
    # Of a warehouse that is a name, only the server knows the place: the table's own stands for it.
    live_warehouse, cold_warehouse = catalogs.of(table).root or live_location, catalogs.cold.root
    if cold_warehouse is None:
        raise ConfigError("The cold catalog has no place in a store", hint="set catalogs.cold.warehouse, or its roots")
    rules = LocationRules.from_config(context.config.policy(table).orphans)

    def is_own(identity: ColdIdentity) -> bool:
        try:
            return claim(context.cold_stores, identity, dry_run=dry_run)
        except (StorageError, UnreadableMetadata) as error:
            raise HandoffFailed(
                f"Whose the table's place in the cold store is cannot be told: {error.what}",
                table=table,
                path=error.path,
                untouched="both tiers; the plan stays open and holds its files",
                hint="see that the cold store can be read and written there; then hand off again",
            ) from error

    def choose(cold_locations: list[str]) -> ColdIdentity:
        with open_entries(context, table, table_uuid) as entries:
            chosen = place(
                table=table,
                table_uuid=table_uuid,
                live_location=live_location,
                live_warehouse=live_warehouse,
                cold_warehouse=cold_warehouse,
                rules=rules,
                is_taken=entries.is_taken,
                cold_locations=cold_locations,
            )
        return chosen if is_own(chosen) else replace(chosen, cold_location=by_uuid(chosen.cold_warehouse, table_uuid))

    # Marked before it is recorded: it is looked at again until it has both.
    identity = settle(context.live_stores, context.root, table_uuid, choose, dry_run=dry_run)
    if not is_own(identity):
        raise HandoffFailed(
            f"The table's place in the cold store is another table's, as {OWNER} or the metadata there says: several "
            "deployments have this cold warehouse",
            table=table,
            path=identity.cold_location,
            untouched="both tiers; the plan stays open and holds its files",
            hint="run artemis close on the plan and turn the table into a new one (CREATE TABLE … AS SELECT), or set "
            "cold_tier.enabled to false for it",
        )
    return identity


def unrecorded_identity(context: HandoffContext, table: str, live: TableMetadata) -> ColdIdentity | None:
    """Record the place of a table whose handoffs `operations.root` has forgotten, and the cold store has not. Return
    None, and record nothing, if no handoff published anything there."""
    location = written_location(live, LocationRules.from_config(context.config.policy(table).orphans))
    there = partial(cold_identity, context, table, live.table_uuid, location)
    published = read_published(context.cold_stores, f"{there(dry_run=True).cold_location}/{PUBLISHED}")
    return there() if published else None


@dataclass(frozen=True)
class ColdTable:
    """A table of the cold catalog. `metadata` has the live table's uuid, even if the cold table's own uuid differs."""

    name: str
    metadata: TableMetadata


class ColdTables:
    """`newest`, and the closed tables that its properties list. `read` returns the location and the bytes of a closed
    table's metadata file, by name. It is called whenever a file is needed.

    Raises UnreadableMetadata for a damaged list, and for an invalid closed table.
    """

    def __init__(
        self, newest: ColdTable, read: Callable[[str], tuple[str, bytes]], limits: ReadLimits = DEFAULT_LIMITS
    ) -> None:
        self.newest = newest
        self._read = read
        self._limits = limits
        try:
            self.closed = closed_tables(newest.metadata.properties)
        except (ValueError, TypeError) as error:
            raise UnreadableMetadata(
                f"The cold table's list of closed tables cannot be read: {error}",
                path=newest.metadata.metadata_location,
                untouched="both tiers",
                hint="restore that metadata file",
            ) from error

    @classmethod
    def open(
        cls, catalog: CatalogReader, cold_stores: Stores, records: Stores, root: str, table_uuid: str
    ) -> ColdTables | None:
        """Return the tables of the live table with that uuid; None before its first handoff. `records` can access
        `root`."""
        identity = read_identity(records, root, table_uuid)
        if identity is None:
            return None
        name = identity.cold_table

        def read(closed: str) -> tuple[str, bytes]:
            try:
                location = catalog.entry(closed).metadata_location
            except NoSuchTable as error:
                raise UnreadableMetadata(
                    f"The cold catalog has no table {closed}, which {name} lists",
                    table=name,
                    untouched="both tiers",
                    hint="restore the catalog's row; the metadata file of the newest table is intact",
                ) from error
            return location, cold_stores.read(location)

        try:
            entry = catalog.entry(name)
        except NoSuchTable:
            return None
        metadata = read_table_metadata(cold_stores, entry.metadata_location)
        if metadata.table_uuid != table_uuid:
            raise _given_away(name, metadata, identity.live_table)
        return cls(ColdTable(name, metadata), read, cold_stores.limits)

    def __iter__(self) -> Iterator[ColdTable]:
        """Yield all tables, newest first."""
        yield self.newest
        for closed in reversed(self.closed):
            yield self._parsed(closed, *self._read(closed.name))

    def holding(self, snapshot_id: int) -> ColdTable | None:
        """Return the table that has a snapshot."""
        if self.newest.metadata.snapshot(snapshot_id) is not None:
            return self.newest
        found = self._naming(str(snapshot_id))
        return next((table for table in found if table.metadata.snapshot(snapshot_id) is not None), None)

    @cached_property
    def tags(self) -> tuple[Meaning, ...]:
        """Return what the live table's refs pointed to over time, as recorded by handoffs. Raises
        UnreadableMetadata."""
        return history_of(self.newest.metadata.properties)

    @property
    def tags_known_until(self) -> int:
        """Return up to which time (epoch ms) `tags` is complete."""
        return int(self.newest.metadata.properties.get(COMPLETE_UNTIL, 0))

    def tagged(self, tag: str) -> tuple[int, str] | None:
        """Return a tag's snapshot and the name of the table that has it; the newest table if two have the tag. For tags
        older than the recorded history."""
        for table in (self.newest, *self._naming(json.dumps(tag, ensure_ascii=False))):
            ref = table.metadata.refs.get(tag)
            if ref is not None and not ref.is_branch:
                return ref.snapshot_id, table.name
        return None

    def closed_log(self, at_ms: int) -> tuple[LogEntry, ...] | None:
        """Return the snapshot log of the closed table that covers an instant; None if the newest one does."""
        closed = covering(self.closed, at_ms)
        return None if closed is None else self._parsed(closed, *self._read(closed.name)).metadata.snapshot_log

    def whole(self) -> TableMetadata:
        """Return all tables as one: the newest table's metadata with the snapshots, tags, logs and statistics of all.
        Its metadata log also has every closed table's metadata files."""
        tables = [table.metadata for table in self][::-1]
        if len(tables) == 1:
            return self.newest.metadata
        logs = (table.snapshot_log for table in tables)
        ends = {LogEntry(closed.until_ms, UNKNOWN_SNAPSHOT) for closed in self.closed}
        return replace(
            self.newest.metadata,
            snapshots=tuple(
                sorted(
                    (snapshot for table in tables for snapshot in table.snapshots),
                    key=lambda each: (each.sequence_number, each.timestamp_ms, each.snapshot_id),
                )
            ),
            refs={name: ref for table in tables for name, ref in table.refs.items()},
            # A table that was closed because of its name mapping has the log of the table from which it was split.
            # Each of the others ends with an entry about no snapshot, where the next one begins.
            snapshot_log=tuple(each for each in dict.fromkeys(chain(*logs)) if each not in ends),
            statistics=tuple(file for table in tables for file in table.statistics),
            metadata_log=tuple(
                entry
                for table in tables
                for entry in (*table.metadata_log, MetadataLogEntry(table.last_updated_ms, table.metadata_location))
            ),
        )

    def _naming(self, text: str) -> Iterator[ColdTable]:
        """Yield the closed tables whose metadata file contains the text: searching a 100 MB file is much faster than
        parsing it."""
        wanted = text.encode()
        for closed in reversed(self.closed):
            location, data = self._read(closed.name)
            if wanted in data:
                yield self._parsed(closed, location, data)

    def _parsed(self, closed: ClosedTable, location: str, data: bytes) -> ColdTable:
        metadata = parse_table_metadata(data, location, self._limits)
        if metadata.location != self.newest.metadata.location:
            raise _given_away(closed.name, metadata)
        return ColdTable(closed.name, replace(metadata, table_uuid=self.newest.metadata.table_uuid))


def _given_away(name: str, found: TableMetadata, live: str = "TABLE") -> UnreadableMetadata:
    return UnreadableMetadata(
        f"The cold catalog's {name} is another table: its table-uuid is {found.table_uuid}",
        table=name,
        path=found.metadata_location,
        untouched="both tiers",
        hint=f"{recovering(live)} publishes what that name stood for, if the catalog was put back and gave it away",
    )


# --- cold side --------------------------------------------------------------------------------------------------------
# The cold catalog from protection's view: the cold tables of one live table as one table, and all others.


class ColdSide:
    """`table` is the live table. `open_tables` looks up its cold tables again; `index` covers what they reach together.

    Raises NoSuchTable if there is no cold table, and UnreadableMetadata for one that cannot be read.
    """

    def __init__(
        self,
        table: str,
        identity: ColdIdentity,
        catalog: CatalogReader,
        open_tables: Callable[[], ColdTables | None],
        index: Callable[[TableMetadata], IndexView],
    ) -> None:
        self.identity = identity
        self._table = table
        self._catalog = catalog
        self._open = open_tables
        self._index = index
        self._view: IndexView | None = None
        self._rows: dict[str, CatalogEntry | None] = {}
        self._whole: TableMetadata | None = None

    def current(self) -> TableMetadata:
        """Return all of the table's cold tables as one; the same object as long as their catalog rows do not change."""
        return self._as_of(self._catalog.pointers())

    def _as_of(self, rows: Mapping[str, CatalogEntry]) -> TableMetadata:
        if self._whole is None or any(rows.get(name) != row for name, row in self._rows.items()):
            tables = self._open()
            if tables is None:
                raise no_cold_table(self._table)
            names = [tables.newest.name, *(closed.name for closed in tables.closed)]
            self._rows, self._whole = {name: rows.get(name) for name in names}, tables.whole()
        return self._whole

    def index(self, metadata: TableMetadata) -> IndexView:
        """Return the index of everything that these tables reach, as of `metadata`."""
        if self._view is None or self._view.metadata is not metadata:
            self._view = self._index(metadata)
        return self._view

    def tables(self) -> list[str]:
        """Return the other tables of the cold catalog."""
        return list(self.pointers())

    def entry(self, table: str) -> CatalogEntry:
        return self._catalog.entry(table)

    def others(self) -> list[CatalogEntry]:
        return self._catalog.others()

    def pointers(self) -> dict[str, CatalogEntry]:
        rows = self._catalog.pointers()
        self._as_of(rows)
        return {name: row for name, row in rows.items() if name not in self._rows}


# --- history ----------------------------------------------------------------------------------------------------------
# The cold tier's snapshots of a table, and which of them are readable now. Plain values.


@dataclass(frozen=True)
class ColdSnapshot:
    """An archived snapshot. `tier` is deep-archive if one of its files must be thawed first. `tags` are the names that
    it had. `cold_table` is its table in the cold catalog. Counts are from its summary; None if the writer did not
    record them."""

    snapshot_id: int
    committed_at: datetime
    tier: Literal["cold", "deep-archive"]
    cold_table: str
    tags: tuple[str, ...]
    operation: str | None
    records: int | None
    data_files: int | None


@dataclass(frozen=True)
class ColdHistory(Shown):
    """The snapshots of the cold tables in commit order, pinned to the newest table's metadata file."""

    table: str
    metadata_location: str
    snapshots: tuple[ColdSnapshot, ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per snapshot: snapshot_id int64; committed_at datetime64[ms, UTC]; tier, cold_table, tags
        (joined by commas), operation object; records, data_files Int64 (NA if unknown)."""
        return frame_of(ColdSnapshot, self.snapshots)


def cold_history(table: str, cold: ColdTables, archived: Collection[int]) -> ColdHistory:
    """Return the history. `archived` are the snapshots in the deep archive."""
    found: list[ColdSnapshot] = []
    for each in reversed(list(cold)):
        tags: dict[int, list[str]] = {}
        named = {(name, ref.snapshot_id) for name, ref in each.metadata.refs.items() if name != MAIN_BRANCH}
        for name, snapshot_id in sorted(named | {(meaning.name, meaning.snapshot_id) for meaning in cold.tags}):
            tags.setdefault(snapshot_id, []).append(name)
        found += [
            ColdSnapshot(
                snapshot_id=snapshot.snapshot_id,
                committed_at=in_calendar(snapshot.timestamp_ms),
                tier="deep-archive" if snapshot.snapshot_id in archived else "cold",
                cold_table=each.name,
                tags=tuple(tags.get(snapshot.snapshot_id, ())),
                operation=snapshot.summary.operation,
                records=snapshot.summary.count("total-records"),
                data_files=snapshot.summary.count("total-data-files"),
            )
            for snapshot in each.metadata.snapshots
        ]
    found.sort(key=lambda each: each.committed_at)
    return ColdHistory(table, cold.newest.metadata.metadata_location, tuple(found))
