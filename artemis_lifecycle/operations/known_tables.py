"""The history of the live catalog: which tables it has had, by uuid, and since when it no longer has them. A catalog
forgets a table with its row; this history keeps where the table's metadata was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import CheckConstraint, ColumnElement, Engine, Index, func, or_, update
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.errors import NoSuchTable, PlanStateError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision, change
from artemis_lifecycle.operations.tables import Filled, Key, one, records, table_of

_SEEN_EVERY = timedelta(hours=1)
"""How often an unchanged table is written again: the accuracy of `last_seen`."""


@dataclass(frozen=True)
class KnownTable:
    """A table that the catalog has, or no longer has (`missing_since`). `kept_*`: who decided to keep its files.
    `gone_at`: its files were deleted."""

    catalog: Key
    table_uuid: Key
    table: str
    metadata_location: str
    first_seen: Filled
    last_seen: Filled
    missing_since: datetime | None
    kept_at: datetime | None
    kept_by: str | None
    kept_why: str | None
    gone_at: datetime | None


known_tables = table_of(
    KnownTable,
    "known_tables",
    CheckConstraint("kept_at IS NULL OR (btrim(kept_by) <> '' AND btrim(kept_why) <> '')", name="known_tables_kept"),
    CheckConstraint("gone_at IS NULL OR missing_since IS NOT NULL", name="known_tables_gone"),
    Index("known_tables_missing", "catalog", "missing_since"),
)


@dataclass(frozen=True)
class Seen:
    """One table as the catalog currently has it."""

    table: str
    metadata_location: str


class KnownTables:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def observe(self, catalog: str, present: Mapping[str, Seen], *, complete: bool = True) -> list[KnownTable]:
        """Record the tables that `catalog` has, by uuid. Tables that it no longer has count as missing from now on.

        A table that came back is no longer missing, and earlier decisions about it are cleared. Without `complete`, no
        table becomes missing: an unreadable table may be any of them. Return the missing tables.
        """
        # Most are as before: no statement for these.
        recent = datetime.now(UTC) - _SEEN_EVERY
        same = {
            each.table_uuid: Seen(each.table, each.metadata_location)
            for each in self.of_catalog(catalog)
            if each.missing_since is None and each.last_seen > recent
        }
        with around("known_tables.observe"), self._engine.begin() as connection:
            for table_uuid, seen in sorted(present.items()):
                if same.get(table_uuid) != seen:
                    connection.execute(_seen(catalog, table_uuid, seen))
            if complete:
                connection.execute(
                    update(known_tables)
                    .where(
                        known_tables.c.catalog == catalog,
                        known_tables.c.missing_since.is_(None),
                        known_tables.c.table_uuid.not_in(sorted(present)),
                    )
                    .values(missing_since=func.clock_timestamp())
                )
        return self.missing(catalog)

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

    def get(self, catalog: str, table_uuid: str) -> KnownTable:
        """Raises NoSuchTable."""
        found = one(self._engine, KnownTable, *_same(catalog, table_uuid))
        if found is None:
            raise NoSuchTable(
                f"Catalog {catalog} has no record of a table {table_uuid}",
                hint="list the dropped tables: artemis dropped",
            )
        return found

    def keep(self, catalog: str, table_uuid: str, who: str, why: str) -> KnownTable:
        """Decide to keep a dropped table's files. Raises PlanStateError if it is not missing, or gone."""
        return self._decide(
            catalog, table_uuid, kept_at=func.coalesce(known_tables.c.kept_at, func.clock_timestamp()), kept_by=who,
            kept_why=why, decision=NewDecision("keep-dropped", table_uuid, who, why),
        )  # fmt: skip

    def unkeep(self, catalog: str, table_uuid: str, who: str) -> KnownTable:
        """Let a dropped table's retention continue from when it was missed. Raises PlanStateError."""
        decision = NewDecision("unkeep-dropped", table_uuid, who)
        return self._decide(catalog, table_uuid, kept_at=None, kept_by=None, kept_why=None, decision=decision)

    def back(self, catalog: str, table_uuid: str) -> KnownTable:
        """Record that a dropped table's files will be restored to their paths. Raises PlanStateError."""
        return self._decide(catalog, table_uuid, gone_at=None, again=True)

    def undrop(self, catalog: str, table_uuid: str, who: str, why: str) -> KnownTable:
        """Record who registered a dropped table again. Raises PlanStateError if it is not missing."""
        decision = NewDecision("undrop", table_uuid, who, why or None)
        return self._decide(catalog, table_uuid, gone_at=None, again=True, decision=decision)

    def gone(self, catalog: str, table_uuid: str) -> KnownTable:
        """Record that a dropped table's files were deleted. Raises PlanStateError if it is not missing."""
        return self._decide(
            catalog, table_uuid, gone_at=func.coalesce(known_tables.c.gone_at, func.clock_timestamp()), again=True
        )

    def _decide(
        self,
        catalog: str,
        table_uuid: str,
        *,
        again: bool = False,
        decision: NewDecision | None = None,
        **values: object,
    ) -> KnownTable:
        where = [*_same(catalog, table_uuid), known_tables.c.missing_since.is_not(None)]
        if not again:
            where.append(known_tables.c.gone_at.is_(None))
        changed = change(self._engine, "known_tables.decide", KnownTable, *where, decision=decision, **values)
        if changed is None:
            found = self.get(catalog, table_uuid)
            what = "is in the catalog" if found.missing_since is None else "is gone, and its files with it"
            raise PlanStateError(
                f"Table {table_uuid} {what}",
                table=found.table,
                hint="list the dropped tables: artemis dropped",
            )
        return changed

    def _all(self, *where: ColumnElement[bool]) -> list[KnownTable]:
        order = (known_tables.c.table_name, known_tables.c.table_uuid)
        return list(records(self._engine, KnownTable, *where, order_by=order))


def _same(catalog: str, table_uuid: str) -> tuple[ColumnElement[bool], ...]:
    return known_tables.c.catalog == catalog, known_tables.c.table_uuid == table_uuid


def _seen(catalog: str, table_uuid: str, seen: Seen) -> Insert:
    statement = upsert(known_tables).values(
        catalog=catalog, table_uuid=table_uuid, table_name=seen.table, metadata_location=seen.metadata_location
    )
    given = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[known_tables.c.catalog, known_tables.c.table_uuid],
        set_={
            "table_name": given.table_name,
            "metadata_location": given.metadata_location,
            "last_seen": func.clock_timestamp(),
            **dict.fromkeys(("missing_since", "kept_at", "kept_by", "kept_why", "gone_at")),
        },
        # Unchanged rows are written once an hour.
        where=or_(
            known_tables.c.table_name != given.table_name,
            known_tables.c.metadata_location != given.metadata_location,
            known_tables.c.missing_since.is_not(None),
            known_tables.c.last_seen < func.clock_timestamp() - _SEEN_EVERY,
        ),
    )
