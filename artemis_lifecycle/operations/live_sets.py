"""Live-contents sets: which versions of which contents a mark of a whole catalog found alive, and what a sweep did with
them.

A set is written while its mark runs, and is usable only from `marked` on. Rows of one version are written once, however
many references share its commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from artemis_lifecycle.errors import PlanStateError
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.scans import ENDED, ScanState, scans

NO_SNAPSHOT = -1
"""The snapshot id of a version without snapshots."""

_ROWS = 5_000
Snapshots = Literal["all", "referenced"]


class LiveSetState(StrEnum):
    MARKING = "marking"
    MARKED = "marked"
    SWEEPING = "sweeping"
    SWEPT = "swept"
    FAILED = "failed"


USABLE = frozenset({LiveSetState.MARKED, LiveSetState.SWEEPING, LiveSetState.SWEPT})
"""States from which files may be swept: an interrupted sweep is repeated, and a set may be swept again."""


@dataclass(frozen=True)
class LiveSet:
    """One mark of a whole catalog. `snapshots` says which snapshots of a live version keep their files. `policies` are
    the rules with the instants that durations became. Counts are final from `marked` on."""

    live_set_id: db.Key
    catalog: str
    state: LiveSetState
    snapshots: Snapshots
    policies: tuple[str, ...]
    references: db.Count
    commits: db.Count
    contents: db.Count
    versions: db.Count
    created_at: db.Filled
    marked_at: datetime | None
    swept_at: datetime | None
    error: str | None


@dataclass(frozen=True)
class SetReference:
    """A reference as the mark found it."""

    live_set_id: db.Key
    name: db.Key
    kind: str
    head: str


_IdKey = Annotated[int, {"primary_key": True, "autoincrement": False}]


@dataclass(frozen=True)
class LiveVersion:
    """One live version of a content. `key` is the text of its identifier, `reference` the first reference that showed
    it. `snapshot_id` is NO_SNAPSHOT for a table without snapshots, and for a view."""

    live_set_id: db.Key
    content_id: db.Key
    metadata_location: db.Key
    snapshot_id: _IdKey
    key: str
    type: str
    reference: str


@dataclass(frozen=True)
class LiveContent:
    """A content with at least one live version. `table` is its name with the catalog's. `table_uuid` and `locations`
    are from its metadata, None and empty for a view."""

    live_set_id: db.Key
    content_id: db.Key
    table: str
    type: str
    table_uuid: str | None
    locations: tuple[str, ...]
    versions: db.Count


@dataclass(frozen=True)
class SweptTable:
    """What the sweep found for one table: the sealed scan, or the error that stopped it."""

    live_set_id: db.Key
    table_uuid: db.Key
    table: str
    scan_id: str | None
    error: str | None
    swept_at: db.FilledLater = None


@dataclass(frozen=True)
class BaseLocation:
    """A location in which a table of the catalog had files, with the first and the last mark that saw it."""

    catalog: db.Key
    table_uuid: db.Key
    location: db.Key
    table: str
    first_seen: db.Filled
    last_seen: db.Filled


def _of_set() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["live_set_id"], [f"{db.SCHEMA}.live_sets.live_set_id"], ondelete="CASCADE")


live_sets = db.table_of(LiveSet, "live_sets", sa.Index("live_sets_of_catalog", "catalog", "created_at"))
live_set_references = db.table_of(SetReference, "live_set_references", _of_set())
live_versions = db.table_of(LiveVersion, "live_versions", _of_set())
live_contents = db.table_of(LiveContent, "live_contents", _of_set())
swept_tables = db.table_of(SweptTable, "swept_tables", _of_set(), sa.Index("swept_tables_of_scan", "scan_id"))
base_locations = db.table_of(BaseLocation, "base_locations")


class LiveSets(db.Part):
    # --- mark -------------------------------------------------------------------------------------------------------

    def begin(self, live_set_id: str, catalog: str, snapshots: Snapshots, policies: Sequence[str]) -> LiveSet:
        """Store a set that is being marked."""
        values = {"live_set_id": live_set_id, "catalog": catalog, "snapshots": snapshots, "policies": list(policies)}
        with around("live_sets.begin"), self.engine.begin() as connection:
            return db.insert_record(connection, LiveSet, state=LiveSetState.MARKING, **values)

    def add_references(self, references: Sequence[SetReference]) -> None:
        self._add(live_set_references, references)

    def add_versions(self, versions: Sequence[LiveVersion]) -> None:
        """Store versions; those that the set has already stay as they are."""
        self._add(live_versions, versions)

    def add_contents(self, contents: Sequence[LiveContent]) -> None:
        self._add(live_contents, contents)

    def finish(self, live_set_id: str, *, commits: int) -> LiveSet:
        """Count what was stored, and make the set usable. Raises PlanStateError if it is no longer being marked."""

        def count(table: sa.Table) -> object:
            return (
                sa.select(sa.func.count())
                .select_from(table)
                .where(table.c.live_set_id == live_set_id)
                .scalar_subquery()
            )

        return self._change(
            live_set_id,
            {LiveSetState.MARKING},
            state=LiveSetState.MARKED,
            marked_at=sa.func.clock_timestamp(),
            commits=commits,
            references=count(live_set_references),
            versions=count(live_versions),
            contents=count(live_contents),
        )

    def fail(self, live_set_id: str, error: str) -> None:
        """Record why the set cannot be used. Nothing can be swept from it any more."""
        with around("live_sets.fail"), self.engine.begin() as connection:
            mine = live_sets.c.live_set_id == live_set_id
            db.update_record(connection, LiveSet, mine, state=LiveSetState.FAILED, error=db.storable(error))

    # --- sweep ------------------------------------------------------------------------------------------------------

    def sweeping(self, live_set_id: str) -> LiveSet:
        """Raises PlanStateError for a set that is not usable, NoSuchPlan."""
        return self._change(live_set_id, USABLE, state=LiveSetState.SWEEPING)

    def swept(self, live_set_id: str) -> LiveSet:
        """Raises PlanStateError, NoSuchPlan."""
        return self._change(
            live_set_id, {LiveSetState.SWEEPING}, state=LiveSetState.SWEPT, swept_at=sa.func.clock_timestamp()
        )

    def swept_table(self, row: SweptTable) -> None:
        """Store what the sweep found for a table; the newest result counts."""
        values = {**db.values_of(row, without=frozenset({"swept_at"})), "error": db.storable(row.error)}
        statement = db.put(swept_tables, values, values, swept_at=sa.func.clock_timestamp())
        try:
            db.write(self.engine, "live_sets.swept_table", statement)
        except IntegrityError as error:
            raise _deleted_meanwhile() from error

    def saw_locations(self, catalog: str, seen: Mapping[tuple[str, str], str]) -> None:
        """Record that tables use locations now: (table_uuid, location) with the table's name."""
        rows = [
            {"catalog": catalog, "table_uuid": table_uuid, "location": location, "table_name": table}
            for (table_uuid, location), table in sorted(seen.items())
        ]
        if rows:
            statement = db.put(base_locations, rows, ("table_name",), last_seen=sa.func.clock_timestamp())
            db.write(self.engine, "live_sets.saw_locations", statement)

    # --- reading ----------------------------------------------------------------------------------------------------

    def get(self, live_set_id: str) -> LiveSet:
        """Raises NoSuchPlan."""
        found = db.one(self.engine, LiveSet, live_sets.c.live_set_id == live_set_id)
        return db.required(found, f"No live-contents set {live_set_id} is stored", "list them: artemis live-sets list")

    def all(self, catalog: str | None = None) -> tuple[LiveSet, ...]:
        """Return the sets, newest first."""
        where = () if catalog is None else (live_sets.c.catalog == catalog,)
        return db.records(
            self.engine, LiveSet, *where, order_by=(live_sets.c.created_at.desc(), live_sets.c.live_set_id)
        )

    def newest(self, catalog: str) -> LiveSet | None:
        """Return the newest usable set of a catalog."""
        return next((each for each in self.all(catalog) if each.state in USABLE), None)

    def references(self, live_set_id: str) -> tuple[SetReference, ...]:
        mine = live_set_references.c.live_set_id == live_set_id
        return db.records(self.engine, SetReference, mine, order_by=(live_set_references.c.name,))

    def contents(self, live_set_id: str) -> tuple[LiveContent, ...]:
        mine = live_contents.c.live_set_id == live_set_id
        return db.records(
            self.engine, LiveContent, mine, order_by=(live_contents.c.table_name, live_contents.c.content_id)
        )

    @contextmanager
    def versions(self, live_set_id: str, content_ids: Collection[str] | None = None) -> Iterator[Iterator[LiveVersion]]:
        """Open the live versions of the set, or of some contents in it, content by content. Holds few of them, and a
        connection, which a reader that fails gives back at once."""
        where = [live_versions.c.live_set_id == live_set_id]
        if content_ids is not None:
            where.append(live_versions.c.content_id.in_(sorted(content_ids)))
        columns = [live_versions.c[each.name] for each in fields(LiveVersion)]
        query = sa.select(*columns).where(*where).order_by(*columns[1:4])
        with self.engine.connect() as connection:
            streamed = connection.execution_options(stream_results=True, max_row_buffer=_ROWS)
            yield (LiveVersion(*row) for row in streamed.execute(query))

    def swept_tables(self, live_set_id: str) -> tuple[SweptTable, ...]:
        mine = swept_tables.c.live_set_id == live_set_id
        return db.records(self.engine, SweptTable, mine, order_by=(swept_tables.c.table_name,))

    def set_of_scan(self, scan_id: str) -> LiveSet | None:
        """Return the set whose sweep sealed that scan."""
        query = sa.select(swept_tables.c.live_set_id).where(swept_tables.c.scan_id == scan_id)
        live_set_id = next(iter(db.scalars(self.engine, query)), None)
        return None if live_set_id is None else self.get(live_set_id)

    def locations(self, catalog: str) -> tuple[BaseLocation, ...]:
        """Return every location that a mark of the catalog saw, also those that nothing uses any more."""
        of_catalog = base_locations.c.catalog == catalog
        return db.records(
            self.engine, BaseLocation, of_catalog, order_by=(base_locations.c.table_name, base_locations.c.location)
        )

    # --- retention --------------------------------------------------------------------------------------------------

    def delete(self, live_set_id: str) -> None:
        """Delete a set with all its rows. Raises NoSuchPlan; PlanStateError while a deferred deletion still checks
        files against it."""
        self.get(live_set_id)
        with around("live_sets.delete"), self.engine.begin() as connection:
            gone = connection.execute(sa.delete(live_sets).where(live_sets.c.live_set_id == live_set_id, ~_is_needed()))
        if not gone.rowcount:
            raise PlanStateError(
                f"Live-contents set {live_set_id} is needed: a scan of its sweep is not deleted yet",
                untouched="the set",
                hint=f"artemis live-sets show {live_set_id} names the scans: delete their files first",
            )

    def old(self, cutoff: datetime) -> tuple[str, ...]:
        """Return the sets from before `cutoff` that nothing needs; the newest usable one of each catalog stays."""
        newer = live_sets.alias("newer")
        is_newest = ~sa.exists().where(
            newer.c.catalog == live_sets.c.catalog,
            newer.c.created_at > live_sets.c.created_at,
            newer.c.state.in_(sorted(USABLE)),
        )
        stays = sa.and_(live_sets.c.state.in_(sorted(USABLE)), is_newest)
        query = sa.select(live_sets.c.live_set_id).where(live_sets.c.created_at < cutoff, ~stays, ~_is_needed())
        return tuple(db.scalars(self.engine, query.order_by(live_sets.c.created_at)))

    def forget_location(self, catalog: str, table_uuid: str, location: str) -> None:
        """Forget a location whose files are deleted."""
        mine = (
            base_locations.c.catalog == catalog,
            base_locations.c.table_uuid == table_uuid,
            base_locations.c.location == location,
        )
        db.write(self.engine, "live_sets.forget_location", sa.delete(base_locations).where(*mine))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _add(self, table: sa.Table, rows: Sequence[object]) -> None:
        """Insert records that are not there yet. Raises PlanStateError if their set was deleted meanwhile."""
        try:
            self._insert(table, rows)
        except IntegrityError as error:
            raise _deleted_meanwhile() from error

    def _insert(self, table: sa.Table, rows: Sequence[object]) -> None:
        """One statement per few thousand, with an array for each column."""
        for start in range(0, len(rows), _ROWS):
            columns = _columns(rows[start : start + _ROWS])
            if any(isinstance(value, tuple) for values in columns.values() for value in values):
                # Arrays cannot be unnested to arrays.
                values = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
                with self.engine.begin() as connection:
                    connection.execute(db.new(table, values))
                continue
            kinds = {name: table.c[name].type.compile(dialect=self.engine.dialect) for name in columns}
            named = ", ".join(columns)
            arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in kinds.items())
            insertion = (
                f"INSERT INTO {db.SCHEMA}.{table.name} ({named}) SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING"
            )
            with self.engine.begin() as connection:
                connection.execute(sa.text(insertion), columns)

    def _change(self, live_set_id: str, expected: Collection[LiveSetState], **values: object) -> LiveSet:
        mine = (live_sets.c.live_set_id == live_set_id, live_sets.c.state.in_(sorted(expected)))
        with around(f"live_sets.{values['state']}"), self.engine.begin() as connection:
            changed = db.update_record(connection, LiveSet, *mine, **values)
        if changed is None:
            found = self.get(live_set_id)
            why = f" ({found.error})" if found.error else ""
            raise PlanStateError(
                f"Live-contents set {live_set_id} is {found.state}{why}, and would have to be "
                f"{' or '.join(sorted(expected))}",
                untouched="all files",
                hint=f"mark again: artemis mark {found.catalog}",
            )
        return changed


def _deleted_meanwhile() -> PlanStateError:
    return PlanStateError(
        "The live-contents set was deleted while it was written",
        untouched="all files",
        hint="mark again, and delete a set only after its mark and its sweep have ended",
    )


def _is_needed() -> sa.ColumnElement[bool]:
    """The condition that files of a scan of the set are still to be deleted: its deletion re-checks them against the
    set. A scan that nobody approved or began holds its set only until it is forgotten itself."""
    waits = sa.or_(scans.c.state == ScanState.DELETING, scans.c.approved_at.is_not(None))
    return sa.exists().where(
        swept_tables.c.live_set_id == live_sets.c.live_set_id,
        scans.c.scan_id == swept_tables.c.scan_id,
        scans.c.state.not_in(ENDED),
        scans.c.forgetting_at.is_(None),
        waits,
    )


def _columns(rows: Iterable[object]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for row in rows:
        for name, value in db.values_of(row).items():
            found.setdefault(name, []).append(db.storable(value) if isinstance(value, str) else value)
    return found
