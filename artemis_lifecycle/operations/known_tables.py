"""The history of the live catalog: which tables it has had, and since when it no longer has them. A catalog forgets a
table with its row; this history keeps where the table's metadata was.

Two names of one uuid are two tables: each has a line of commits of its own, and reads what the other may expire. A
renamed table is the same one: the old name is gone, and the pointer of the new name continues its line.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert

from artemis_lifecycle.config.names import apart
from artemis_lifecycle.errors import NoSuchTable, PlanStateError
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision, change
from artemis_lifecycle.operations.plans import PlanStatus, plans
from artemis_lifecycle.storage.instants import milliseconds

_SEEN_EVERY = timedelta(hours=1)
"""How often a look at a whole catalog writes an unchanged table again: until then, it counts by `catalog_looks`."""


def beside_catalog(live: str) -> str:
    """Return the name under which tables of the other catalogs in the live catalog's database are known. No catalog has
    such a name."""
    return f"beside:{live}"


@dataclass(frozen=True)
class KnownTable:
    """A table that the catalog has, or no longer has (`missing_since`). `kept_*`: who decided to keep its files.
    `gone_at`: its files were deleted."""

    catalog: db.Key
    table_uuid: db.Key
    table: db.Key
    metadata_location: str
    first_seen: db.Filled
    last_seen: db.Filled
    missing_since: datetime | None
    kept_at: datetime | None
    kept_by: str | None
    kept_why: str | None
    gone_at: datetime | None

    def is_recent(self, seen: Seen) -> bool:
        """Return True if nothing changed since it was recorded, in the last hour."""
        same = self.missing_since is None and self.metadata_location == seen.metadata_location
        return same and self.last_seen > datetime.now(UTC) - _SEEN_EVERY


catalog_looks = sa.Table(
    "catalog_looks",
    db.metadata,
    sa.Column("catalog", sa.Text, primary_key=True),
    sa.Column("looked_at", db.Utc, nullable=False),
)
"""When each catalog was last looked at as a whole."""

known_tables = db.table_of(
    KnownTable,
    "known_tables",
    sa.CheckConstraint("kept_at IS NULL OR (btrim(kept_by) <> '' AND btrim(kept_why) <> '')", name="known_tables_kept"),
    sa.CheckConstraint("gone_at IS NULL OR missing_since IS NOT NULL", name="known_tables_gone"),
    sa.Index("known_tables_missing", "catalog", "missing_since"),
)


@dataclass(frozen=True)
class Seen:
    """One table as the catalog currently has it. `log` has its earlier metadata files, oldest first; None if a name
    alone is followed by another, as in a catalog whose tables have one name each. Not `is_read`: as it was known."""

    table: str
    metadata_location: str
    log: Collection[str] | None = ()
    is_read: bool = True

    def follows(self, known: KnownTable) -> int:
        """Return how closely this line continues that of a known table; 0 if it does not, as far as is known."""
        if self.log is None or known.metadata_location == self.metadata_location:
            return sys.maxsize
        return max((number for number, each in enumerate(self.log, 1) if each == known.metadata_location), default=0)

    def continues(self, known: KnownTable, *, alone: bool = False) -> bool:
        """Return False if the name of a known table now has another line of its uuid.

        A log that is cut proves nothing: a table that is `alone` with its uuid may have moved, or come back to its
        folder, and one that is still there may be of a second name in that folder.
        """
        is_there = known.missing_since is None
        folder, theirs = (each.metadata_location.rpartition("/")[0] for each in (self, known))
        return self.follows(known) > 0 or (alone and is_there) or (folder == theirs and (alone or is_there))

    def is_new_name_of(self, known: KnownTable, near: int) -> bool:
        """Return True for a known table whose name is gone, if this line continues it no less closely than any table
        that has its name (`near`); of one that was dropped before, only its own last state does."""
        close = self.follows(known)
        return near < close == sys.maxsize if known.missing_since else close >= max(near, 1)


class KnownTables(db.Part):
    def observe(
        self,
        catalog: str,
        present: Mapping[tuple[str, str], Seen],
        before: Iterable[KnownTable],
        *,
        complete: bool = True,
    ) -> list[KnownTable]:
        """Record the tables that `catalog` has, by uuid and name. Tables that it no longer has, of those known
        `before`, count as missing from now on, unless a new name continues their line.

        A table that came back is no longer missing, and earlier decisions about it are cleared. Without `complete`, no
        table becomes missing: an unreadable table may be any of them. Return the missing tables.
        """
        left = {(each.table_uuid, each.table): each for each in before}
        names: dict[str, set[str]] = defaultdict(set)
        for table_uuid, table in (*left, *present):
            names[table_uuid].add(table)
        had = {key: left.pop(key) for key in present if key in left}
        # The look before this one found them.
        look = sa.select(catalog_looks.c.looked_at).where(catalog_looks.c.catalog == catalog).scalar_subquery()
        since = {"missing_since": _NOW, "last_seen": sa.func.greatest(known_tables.c.last_seen, look)}
        with around("known_tables.observe"), self.engine.begin() as connection:
            for (table_uuid, table), seen in sorted(present.items(), key=lambda each: each[0]):
                known = had.get((table_uuid, table))
                alone = len(names[table_uuid]) == 1
                if known is None or _set_apart(connection, known, seen, since, alone=alone):
                    # It has a new name now: of those whose names are gone, the one that it continues.
                    near = max((seen.follows(each) for key, each in had.items() if key[0] == table_uuid), default=0)
                    lost = (each for key, each in left.items() if key[0] == table_uuid)
                    lost = (each for each in lost if seen.is_new_name_of(each, near))
                    former = max(lost, key=lambda each: (seen.follows(each), not each.missing_since), default=None)
                    if former is not None:
                        del left[table_uuid, former.table]
                        # A step may have recorded the new name since `before` was read.
                        there = known_tables.alias()
                        same = there.c.catalog == catalog, there.c.table_uuid == former.table_uuid
                        taken = sa.exists().where(*same, there.c.table_name == table)
                        renamed = sa.update(known_tables).where(*_same(former), ~taken).values(table_name=table)
                        connection.execute(renamed)
                    known = former
                elif known.is_recent(seen) or not seen.is_read:
                    # Most are as before: no statement for these.
                    continue
                as_read = None if known is None else known.metadata_location
                connection.execute(_seen(catalog, table_uuid, seen, as_read))
            gone = [each for each in left.values() if each.missing_since is None]
            for each in gone if complete else ():
                again = known_tables.c.metadata_location == each.metadata_location
                missing = sa.update(known_tables).where(*_same(each), again, known_tables.c.missing_since.is_(None))
                connection.execute(missing.values(**since))
        if present or gone:
            # A read-only login may ask all the same: its look is not recorded.
            with suppress(sa.exc.ProgrammingError):
                self.looked(catalog)
        return self.missing(catalog)

    def looked(self, catalog: str) -> None:
        """Record that from now on, all that lies on top of the catalog's pointers is known not to follow them."""
        with self.engine.begin() as connection:
            connection.execute(_looked(catalog))

    def names(self, catalog: str, table_uuid: str) -> dict[str, KnownTable]:
        """Return what is known of a table under each of its names."""
        return {each.table: each for each in self._all(known_tables.c.catalog == catalog, _uuid(table_uuid))}

    def saw(self, catalog: str, table_uuid: str, seen: Seen) -> None:
        """Record one table that the catalog has."""
        with self.engine.begin() as connection:
            connection.execute(_seen(catalog, table_uuid, seen))

    def of_catalog(self, catalog: str) -> list[KnownTable]:
        """Return all tables, by name."""
        return self._all(known_tables.c.catalog == catalog)

    def around(
        self, catalogs: Collection[str], configured: Collection[str]
    ) -> tuple[list[KnownTable], list[KnownTable]]:
        """Return the tables of `catalogs`, and those of all catalogs that are not `configured`: of those beside the
        live ones, and of those that the configuration named once."""
        found = self._all(known_tables.c.catalog.in_(catalogs) | known_tables.c.catalog.not_in(configured))
        others = [each for each in found if each.catalog not in configured]
        return [each for each in found if each.catalog in catalogs], others

    def of_uuid(self, table_uuid: str) -> list[KnownTable]:
        """Return every name under which a table is known, in any catalog."""
        return self._all(_uuid(table_uuid))

    def lives_on(self, table_uuid: str) -> bool:
        """Return True if a table that was dropped under one name has another, in any catalog."""
        return any(each.missing_since is None for each in self.of_uuid(table_uuid))

    def missing(self, catalog: str) -> list[KnownTable]:
        """Return the tables that the catalog no longer has, by name; including those whose files are already
        deleted."""
        return self._all(known_tables.c.catalog == catalog, known_tables.c.missing_since.is_not(None))

    def get(self, catalog: str, table_uuid: str, table: str) -> KnownTable:
        """Return what is known of a table, or of the one that it was renamed to, or moved. Raises NoSuchTable."""
        having = self._all(known_tables.c.catalog == catalog, _uuid(table_uuid))
        found = [each for each in having if each.table == table]
        found = found or [each for each in having or self.of_uuid(table_uuid) if not each.missing_since]
        if not found:
            raise NoSuchTable(
                f"Catalog {catalog} has no record of a table {table_uuid} with that name",
                table=table,
                hint="list the dropped tables: artemis dropped",
            )
        return found[0]

    def keep(self, known: KnownTable, who: str, why: str, *, quarantined: bool = False) -> KnownTable:
        """Decide to keep a dropped table's files, also if all of them are in quarantine. Raises PlanStateError if it is
        not missing, or gone."""
        kept_at = sa.func.coalesce(known_tables.c.kept_at, sa.func.clock_timestamp())
        decision = NewDecision("keep-dropped", known.table_uuid, who, why)
        return self._decide(known, decision, again=quarantined, kept_at=kept_at, kept_by=who, kept_why=why)

    def unkeep(self, known: KnownTable, who: str, *, quarantined: bool = False) -> KnownTable:
        """Let a dropped table's retention continue from when it was missed. Raises PlanStateError."""
        decision = NewDecision("unkeep-dropped", known.table_uuid, who)
        return self._decide(known, decision, again=quarantined, kept_at=None, kept_by=None, kept_why=None)

    def back(self, known: KnownTable, metadata_location: str | None = None) -> KnownTable:
        """Record that a dropped table's files will be restored to their paths, and which state of it was registered.
        Raises PlanStateError."""
        return self._decide(known, gone_at=None, metadata_location=metadata_location or known.metadata_location)

    def undrop(self, known: KnownTable, who: str, why: str) -> KnownTable:
        """Record who registered a dropped table again. Raises PlanStateError if it is not missing."""
        return self._decide(known, NewDecision("undrop", known.table_uuid, who, why or None), gone_at=None)

    def gone(self, known: KnownTable) -> KnownTable:
        """Record that a dropped table's files were deleted. Raises PlanStateError if it is not missing."""
        return self._decide(known, gone_at=sa.func.coalesce(known_tables.c.gone_at, sa.func.clock_timestamp()))

    def moved(self, known: KnownTable) -> bool:
        """Forget a dropped table, because another catalog has its line. Return False if it changed meanwhile."""
        unchanged = (
            known_tables.c.metadata_location == known.metadata_location,
            known_tables.c.missing_since.is_not(None),
        )
        undecided = known_tables.c.kept_at.is_(None), known_tables.c.gone_at.is_(None)
        forget = sa.delete(known_tables).where(*_same(known), *unchanged, *undecided)
        return db.write(self.engine, "known_tables.moved", forget) > 0

    def _decide(
        self, known: KnownTable, decision: NewDecision | None = None, *, again: bool = True, **values: object
    ) -> KnownTable:
        where = [*_same(known), known_tables.c.missing_since.is_not(None)]
        if not again:
            where.append(known_tables.c.gone_at.is_(None))
        changed = change(self.engine, "known_tables.decide", KnownTable, *where, decision=decision, **values)
        if changed is None:
            found = self.get(known.catalog, known.table_uuid, known.table)
            what = "is in the catalog" if found.missing_since is None else "is gone, and its files with it"
            raise PlanStateError(
                f"Table {known.table_uuid} {what}", table=found.table, hint="list the dropped tables: artemis dropped"
            )
        return changed

    def _all(self, *where: sa.ColumnElement[bool]) -> list[KnownTable]:
        order = (known_tables.c.table_name, known_tables.c.table_uuid)
        return list(db.records(self.engine, KnownTable, *where, order_by=order))


def _uuid(table_uuid: str) -> sa.ColumnElement[bool]:
    return known_tables.c.table_uuid == table_uuid


def _same(known: KnownTable) -> tuple[sa.ColumnElement[bool], ...]:
    columns = known_tables.c
    return columns.catalog == known.catalog, _uuid(known.table_uuid), columns.table_name == known.table


_NOW = sa.func.clock_timestamp()


def _set_apart(
    connection: sa.Connection, known: KnownTable, seen: Seen, since: Mapping[str, object], *, alone: bool
) -> bool:
    """If its name now has another line of the uuid, keep what is known of the table that had it as that of a dropped
    one, under a name that says so; if it was there before, missing `since` now. Return whether that was done."""
    if seen.continues(known, alone=alone):
        return False
    name = apart(known.table, known.missing_since or datetime.now(UTC))
    values = {"table_name": name, **({} if known.missing_since else since)}
    as_read = known_tables.c.metadata_location == known.metadata_location
    # Another look may have done it since.
    return connection.execute(sa.update(known_tables).where(*_same(known), as_read).values(values)).rowcount > 0


def _looked(catalog: str) -> Insert:
    return db.put(catalog_looks, {"catalog": catalog, "looked_at": _NOW}, ("looked_at",))


def _seen(catalog: str, table_uuid: str, seen: Seen, as_read: str | None = None) -> Insert:
    """Return the statement that records a table; if it is there, only at the pointer `as_read`, if one is given."""
    row = {"catalog": catalog, "table_uuid": table_uuid, "table_name": seen.table}
    row["metadata_location"] = seen.metadata_location
    cleared: dict[str, Any] = dict.fromkeys(("missing_since", "kept_at", "kept_by", "kept_why", "gone_at"))
    is_as_read = sa.true() if as_read is None else known_tables.c.metadata_location == as_read
    return db.put(known_tables, row, ("metadata_location",), lambda _: is_as_read, last_seen=_NOW, **cleared)


# --- table locations --------------------------------------------------------------------------------------------------
# What steps observed of a table: its locations over time, because it owns what it wrote there even after `SET
# LOCATION`; its catalog pointers, from which a catalog that was reset is recognized; and the swaps that steps
# attempted.

table_locations = sa.Table(
    "table_locations",
    db.metadata,
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("location", sa.Text, primary_key=True),
    sa.Column("first_seen", db.Utc, nullable=False, server_default=db.CLOCK),
)
seen_pointers = sa.Table(
    "seen_pointers",
    db.metadata,
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("metadata_location", sa.Text, primary_key=True),
    sa.Column("seen_at", db.Utc, nullable=False, server_default=db.CLOCK),
    # Its commits are not in the table's history; when a later pointer's metadata log was found to lack it.
    sa.Column("lost", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("lost_at", db.Utc),
)
swap_attempts = sa.Table(
    "swap_attempts",
    db.metadata,
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("base_location", sa.Text, primary_key=True),
    sa.Column("updated_ms", sa.BigInteger, primary_key=True),
    sa.Column("began_at", db.Utc, nullable=False, server_default=db.CLOCK),
)

_KEPT = timedelta(days=90)


@dataclass(frozen=True)
class Swaps:
    """What a commit calls: `begin` right before each swap, with the base's metadata location and the `last-updated-ms`
    of the metadata that would follow it (together they identify the commit in the metadata log), and `made` with the
    metadata file of the swap that succeeded."""

    begin: Callable[[str, int], None] = lambda base_location, updated_ms: None
    made: Callable[[str], None] = lambda metadata_location: None


class TableLocations(db.Part):
    def saw(
        self,
        table_uuid: str,
        locations: Iterable[str],
        pointer: str | None,
        lost: Collection[str] = (),
        *,
        left: bool = True,
    ) -> None:
        """Record the table's current locations (normal form) and, for a step, its metadata file. Known values are not
        written again. What it `lost` comes first, and its row last: with a new pointer, it no longer shows this."""
        self.lost(table_uuid, lost, left=left)
        seen = seen_pointers.c
        query = sa.union_all(
            sa.select(table_locations.c.location).where(table_locations.c.table_uuid == table_uuid),
            sa.select(seen.metadata_location).where(seen.table_uuid == table_uuid, seen.metadata_location == pointer),
        )
        known = set(db.scalars(self.engine, query))
        new = sorted(set(locations).difference(known))
        if not new and (pointer is None or pointer in known):
            return
        with around("table_locations.saw"), self.engine.begin() as connection:
            for location in new:
                connection.execute(db.new(table_locations, {"table_uuid": table_uuid, "location": location}))
            if pointer is None:
                return
            connection.execute(db.new(seen_pointers, {"table_uuid": table_uuid, "metadata_location": pointer}))
            old = ~seen_pointers.c.lost & (seen_pointers.c.seen_at < sa.func.clock_timestamp() - _KEPT)
            connection.execute(sa.delete(seen_pointers).where(seen_pointers.c.table_uuid == table_uuid, old))

    def of_table(self, table_uuid: str) -> tuple[str, ...]:
        """Return every location that the table was observed to have, oldest first."""
        query = (
            sa.select(table_locations.c.location)
            .where(table_locations.c.table_uuid == table_uuid)
            .order_by(table_locations.c.first_seen, table_locations.c.location)
        )
        return tuple(db.scalars(self.engine, query))

    def pointers(self, table_uuid: str) -> frozenset[str]:
        """Return the metadata files that were the table's pointer when a step began, in the last 90 days."""
        query = sa.select(seen_pointers.c.metadata_location).where(seen_pointers.c.table_uuid == table_uuid)
        return frozenset(db.scalars(self.engine, query))

    def lost(self, table_uuid: str, pointers: Iterable[str], *, left: bool = True) -> None:
        """Record metadata files that a table's pointer does not follow. Unless `left`, nobody saw them as its pointer:
        what their commits wrote is protected, but the table has left no line."""
        values: dict[str, Any] = {"lost": True, **({"lost_at": _NOW} if left else {})}
        rows = [{"table_uuid": table_uuid, "metadata_location": each, **values} for each in sorted(pointers)]
        if rows:
            db.write(self.engine, "table_locations.lost", db.put(seen_pointers, rows, **values))

    def left_ms(self, table_uuid: str) -> int:
        """Return when (epoch ms, by Postgres) a table was last found to have left a line; 0 for never."""
        query = sa.select(sa.func.max(seen_pointers.c.lost_at)).where(seen_pointers.c.table_uuid == table_uuid)
        (found,) = db.scalars(self.engine, query)
        return 0 if found is None else milliseconds(found)

    def lost_pointers(self, table_uuid: str) -> frozenset[str]:
        """Return what `lost` recorded of a table."""
        query = sa.select(seen_pointers.c.metadata_location).where(
            seen_pointers.c.table_uuid == table_uuid, seen_pointers.c.lost
        )
        return frozenset(db.scalars(self.engine, query))

    def all_lost_pointers(self) -> dict[str, set[str]]:
        """Return what `lost` recorded, by table-uuid."""
        lost = sa.select(seen_pointers.c.table_uuid, seen_pointers.c.metadata_location).where(seen_pointers.c.lost)
        return {uuid: set(found) for uuid, found in db.grouped(db.rows(self.engine, lost)).items()}

    def swaps(self, catalog: str, table: str, table_uuid: str) -> Swaps:
        """Return what records a commit's swaps: by `begin`, a file that a killed step left can be identified; what was
        `made` is the last that was seen of the table."""

        def begin(base_location: str, updated_ms: int) -> None:
            row = {"table_uuid": table_uuid, "base_location": base_location, "updated_ms": updated_ms}
            with around("table_locations.attempt"), self.engine.begin() as connection:
                connection.execute(db.new(swap_attempts, row))
                old = swap_attempts.c.began_at < sa.func.clock_timestamp() - _KEPT
                connection.execute(sa.delete(swap_attempts).where(swap_attempts.c.table_uuid == table_uuid, old))

        def made(metadata_location: str) -> None:
            db.write(self.engine, "table_locations.made", _seen(catalog, table_uuid, Seen(table, metadata_location)))
            self.saw(table_uuid, (), metadata_location)

        return Swaps(begin, made)

    def attempted(self, table_uuid: str, unseen_since: datetime | None = None) -> frozenset[tuple[str, int]]:
        """Return the base and `last-updated-ms` of each swap that a step attempted in the last 90 days. With
        `unseen_since`, the last look: only of those that may have been made since, by no plan that is closed."""
        tried = swap_attempts.c
        query = sa.select(tried.base_location, tried.updated_ms).where(tried.table_uuid == table_uuid)
        if unseen_since is not None:
            of = (plans.c.table_uuid, plans.c.swap_base_location, plans.c.swap_updated_ms, plans.c.status)
            closed = sa.tuple_(*of) == sa.tuple_(
                tried.table_uuid, tried.base_location, tried.updated_ms, PlanStatus.CLOSED
            )
            query = query.where(tried.began_at > unseen_since, ~sa.exists().where(closed))
        return frozenset((base, updated_ms) for base, updated_ms in db.rows(self.engine, query))


# --- settled metadata -------------------------------------------------------------------------------------------------
# Metadata files that are newer than the catalog's pointer, and for which a person confirmed the pointer.

settled_metadata = sa.Table(
    "settled_metadata",
    db.metadata,
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("metadata_location", sa.Text, primary_key=True),
    sa.Column("checksum", sa.Text, primary_key=True),
    sa.Column("settled_at", db.Utc, nullable=False, server_default=db.CLOCK),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.CheckConstraint("btrim(who) <> '' AND btrim(why) <> ''", name="settled_metadata_said"),
)


class SettledMetadata(db.Part):
    def settle(self, table_uuid: str, files: Mapping[str, str], who: str, why: str) -> None:
        """Record that these files (checksums by location) do not belong to the table's history. Existing records do not
        change."""
        rows = [
            {"table_uuid": table_uuid, "metadata_location": location, "checksum": checksum, "who": who, "why": why}
            for location, checksum in sorted(files.items())
        ]
        if rows:
            with around("settled_metadata.settle"), self.engine.begin() as connection:
                connection.execute(db.new(settled_metadata, rows))
                NewDecision("settle-metadata", table_uuid, who, why).record(connection)

    def of_table(self, table_uuid: str) -> dict[str, set[str]]:
        """Return the checksums of the settled files, by location."""
        settled = sa.select(settled_metadata.c.metadata_location, settled_metadata.c.checksum)
        files = db.rows(self.engine, settled.where(settled_metadata.c.table_uuid == table_uuid))
        return {location: set(found) for location, found in db.grouped(files).items()}
