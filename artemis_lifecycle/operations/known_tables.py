"""The history of the live catalog: which tables it has had, and since when it no longer has them. A catalog forgets a
table with its row; this history keeps where the table's metadata was.

Two names of one uuid are two tables: each has a line of commits of its own, and reads what the other may expire. A
renamed table is the same one: the old name is gone, and the pointer of the new name continues its line.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import CheckConstraint, ColumnElement, Engine, Index, func, or_, update
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.errors import NoSuchTable, PlanStateError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision, change
from artemis_lifecycle.operations.tables import Filled, Key, records, table_of

_SEEN_EVERY = timedelta(hours=1)
"""How often an unchanged table is written again: the accuracy of `last_seen`."""


def beside_catalog(live: str) -> str:
    """Return the name under which tables of the other catalogs in the live catalog's database are known. No catalog has
    such a name."""
    return f"beside:{live}"


@dataclass(frozen=True)
class KnownTable:
    """A table that the catalog has, or no longer has (`missing_since`). `kept_*`: who decided to keep its files.
    `gone_at`: its files were deleted."""

    catalog: Key
    table_uuid: Key
    table: Key
    metadata_location: str
    first_seen: Filled
    last_seen: Filled
    missing_since: datetime | None
    kept_at: datetime | None
    kept_by: str | None
    kept_why: str | None
    gone_at: datetime | None

    def is_at(self, seen: Seen) -> bool:
        """Return True if nothing changed."""
        return self.missing_since is None and self.metadata_location == seen.metadata_location


known_tables = table_of(
    KnownTable,
    "known_tables",
    CheckConstraint("kept_at IS NULL OR (btrim(kept_by) <> '' AND btrim(kept_why) <> '')", name="known_tables_kept"),
    CheckConstraint("gone_at IS NULL OR missing_since IS NOT NULL", name="known_tables_gone"),
    Index("known_tables_missing", "catalog", "missing_since"),
)


@dataclass(frozen=True)
class Seen:
    """One table as the catalog currently has it. `log` has its earlier metadata files, oldest first; None if a name
    alone is followed by another, as in a catalog whose tables have one name each."""

    table: str
    metadata_location: str
    log: Collection[str] | None = ()

    def follows(self, known: KnownTable) -> int:
        """Return how closely this line continues that of a known table; 0 if it does not, as far as is known."""
        if self.log is None or known.metadata_location == self.metadata_location:
            return sys.maxsize
        return max((number for number, each in enumerate(self.log, 1) if each == known.metadata_location), default=0)


class KnownTables:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def observe(
        self, catalog: str, present: Mapping[tuple[str, str], Seen], *, complete: bool = True
    ) -> list[KnownTable]:
        """Record the tables that `catalog` has, by uuid and name. Tables that it no longer has count as missing from
        now on, unless a new name continues their line.

        A table that came back is no longer missing, and earlier decisions about it are cleared. Without `complete`, no
        table becomes missing: an unreadable table may be any of them. Return the missing tables.
        """
        recent = datetime.now(UTC) - _SEEN_EVERY
        left = {(each.table_uuid, each.table): each for each in self.of_catalog(catalog)}
        before = {key: left.pop(key) for key in present if key in left}
        with around("known_tables.observe"), self._engine.begin() as connection:
            for (table_uuid, table), seen in sorted(present.items(), key=lambda each: each[0]):
                known = before.get((table_uuid, table))
                if known is None:
                    former = _former(seen, (each for each in left.values() if each.table_uuid == table_uuid))
                    if former is not None:
                        del left[table_uuid, former.table]
                        renamed = update(known_tables).where(*_same(former)).values(table_name=table)
                        connection.execute(renamed)
                elif known.is_at(seen) and known.last_seen > recent:
                    # Most are as before: no statement for these.
                    continue
                connection.execute(_seen(catalog, table_uuid, seen))
            gone = [each for each in left.values() if each.missing_since is None]
            for each in gone if complete else ():
                again = known_tables.c.metadata_location == each.metadata_location
                missing = update(known_tables).where(*_same(each), again, known_tables.c.missing_since.is_(None))
                connection.execute(missing.values(missing_since=func.clock_timestamp()))
        return self.missing(catalog)

    def has_other_name(self, catalog: str, table_uuid: str, table: str) -> bool:
        """Return True if a table is known, but not under this name."""
        names = [each.table for each in self._all(known_tables.c.catalog == catalog, _uuid(table_uuid))]
        return bool(names) and table not in names

    def saw(self, catalog: str, table_uuid: str, seen: Seen) -> None:
        """Record one table that the catalog has."""
        with self._engine.begin() as connection:
            connection.execute(_seen(catalog, table_uuid, seen))

    def of_catalog(self, catalog: str) -> list[KnownTable]:
        """Return all tables, by name."""
        return self._all(known_tables.c.catalog == catalog)

    def missing(self, catalog: str) -> list[KnownTable]:
        """Return the tables that the catalog no longer has, by name; including those whose files are already
        deleted."""
        return self._all(known_tables.c.catalog == catalog, known_tables.c.missing_since.is_not(None))

    def get(self, catalog: str, table_uuid: str, table: str) -> KnownTable:
        """Return what is known of a table, or of the one that it was renamed to. Raises NoSuchTable."""
        having = self._all(known_tables.c.catalog == catalog, _uuid(table_uuid))
        found = [each for each in having if each.table == table] or [each for each in having if not each.missing_since]
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
        kept_at = func.coalesce(known_tables.c.kept_at, func.clock_timestamp())
        decision = NewDecision("keep-dropped", known.table_uuid, who, why)
        return self._decide(known, decision, again=quarantined, kept_at=kept_at, kept_by=who, kept_why=why)

    def unkeep(self, known: KnownTable, who: str, *, quarantined: bool = False) -> KnownTable:
        """Let a dropped table's retention continue from when it was missed. Raises PlanStateError."""
        decision = NewDecision("unkeep-dropped", known.table_uuid, who)
        return self._decide(known, decision, again=quarantined, kept_at=None, kept_by=None, kept_why=None)

    def back(self, known: KnownTable) -> KnownTable:
        """Record that a dropped table's files will be restored to their paths. Raises PlanStateError."""
        return self._decide(known, gone_at=None)

    def undrop(self, known: KnownTable, who: str, why: str) -> KnownTable:
        """Record who registered a dropped table again. Raises PlanStateError if it is not missing."""
        return self._decide(known, NewDecision("undrop", known.table_uuid, who, why or None), gone_at=None)

    def gone(self, known: KnownTable) -> KnownTable:
        """Record that a dropped table's files were deleted. Raises PlanStateError if it is not missing."""
        return self._decide(known, gone_at=func.coalesce(known_tables.c.gone_at, func.clock_timestamp()))

    def _decide(
        self, known: KnownTable, decision: NewDecision | None = None, *, again: bool = True, **values: object
    ) -> KnownTable:
        where = [*_same(known), known_tables.c.missing_since.is_not(None)]
        if not again:
            where.append(known_tables.c.gone_at.is_(None))
        changed = change(self._engine, "known_tables.decide", KnownTable, *where, decision=decision, **values)
        if changed is None:
            found = self.get(known.catalog, known.table_uuid, known.table)
            what = "is in the catalog" if found.missing_since is None else "is gone, and its files with it"
            raise PlanStateError(
                f"Table {known.table_uuid} {what}",
                table=found.table,
                hint="list the dropped tables: artemis dropped",
            )
        return changed

    def _all(self, *where: ColumnElement[bool]) -> list[KnownTable]:
        order = (known_tables.c.table_name, known_tables.c.table_uuid)
        return list(records(self._engine, KnownTable, *where, order_by=order))


def _former(seen: Seen, lost: Iterable[KnownTable]) -> KnownTable | None:
    """Return the table that has a new name now: of those whose names are gone, the one that it continues."""
    return max((each for each in lost if seen.follows(each)), key=seen.follows, default=None)


def _uuid(table_uuid: str) -> ColumnElement[bool]:
    return known_tables.c.table_uuid == table_uuid


def _same(known: KnownTable) -> tuple[ColumnElement[bool], ...]:
    columns = known_tables.c
    return columns.catalog == known.catalog, _uuid(known.table_uuid), columns.table_name == known.table


def _seen(catalog: str, table_uuid: str, seen: Seen) -> Insert:
    statement = upsert(known_tables).values(
        catalog=catalog, table_uuid=table_uuid, table_name=seen.table, metadata_location=seen.metadata_location
    )
    given = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[known_tables.c.catalog, known_tables.c.table_uuid, known_tables.c.table_name],
        set_={
            "metadata_location": given.metadata_location,
            "last_seen": func.clock_timestamp(),
            **dict.fromkeys(("missing_since", "kept_at", "kept_by", "kept_why", "gone_at")),
        },
        # Unchanged rows are written once an hour.
        where=or_(
            known_tables.c.metadata_location != given.metadata_location,
            known_tables.c.missing_since.is_not(None),
            known_tables.c.last_seen < func.clock_timestamp() - _SEEN_EVERY,
        ),
    )
