"""Reads of a table in the tier that has the snapshot: live, cold, or the deep archive, which needs a thaw first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

from artemis_lifecycle.audit.past import Past
from artemis_lifecycle.catalogs.identifier import Identifier, parse
from artemis_lifecycle.cold_tier.cold_metadata import former_states, line_of
from artemis_lifecycle.cold_tier.cold_tables import ColdHistory
from artemis_lifecycle.cold_tier.cold_tables import cold_history as archived_history
from artemis_lifecycle.cold_tier.paths import no_cold_table, read_identity
from artemis_lifecycle.cold_tier.queries import Query, Tables, TagStatement, parse_tag, spark_tag
from artemis_lifecycle.cold_tier.queries import translate as translate_query
from artemis_lifecycle.cold_tier.reads import Route, Selector
from artemis_lifecycle.cold_tier.reads import read as read_rows
from artemis_lifecycle.cold_tier.reads import route as find_route
from artemis_lifecycle.config.schemes import S3_SCHEMES
from artemis_lifecycle.errors import BadInput, HandoffFailed, InDeepArchive, NoSuchSnapshot, UnreadableMetadata
from artemis_lifecycle.expiration.tags_and_holds import max_ref_age_ms, no_such_snapshot
from artemis_lifecycle.metadata.lines import Line
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.operations.cold_tier import ThawState
from artemis_lifecycle.session.contexts import cold_tables, require_newest_archive
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.spark.java_errors import java_errors, statement_errors
from artemis_lifecycle.storage.stores import place_of
from artemis_lifecycle.walk.tags_and_holds import Tagged, TagsAndHolds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Reading:
    """Finds the tier and the snapshot that answer a read, and reads them."""

    resources: Resources
    steps: Steps
    past: Past

    def require_own_archive(self, table: str, table_uuid: str) -> None:
        """Raise HandoffFailed if the archive of the table's uuid belongs to another table."""
        if not self.resources.config.policy(table).cold_tier.enabled:
            return
        identity = read_identity(self.resources.live_stores, self.resources.root, table_uuid)

        def archived() -> Line | None:
            cold = cold_tables(self.resources, table_uuid)
            return None if cold is None else line_of(cold.newest.metadata)

        other = self.past.other_name(table, table_uuid, None if identity is None else identity.live_table, archived)
        if other is not None:
            raise HandoffFailed(
                f"The archive of this table-uuid belongs to {other}: it is registered under two names",
                table=table,
                untouched="both tables and the cold catalog",
                hint=f"drop one of the two names; or turn {table} into a new table (CREATE TABLE … AS SELECT); or "
                "set cold_tier.enabled to false for it",
            )

    def cold_history(self, table: str) -> ColdHistory:
        """Return the table's snapshots in the cold tier, and which of them are in the deep archive. Raises NoSuchTable
        before the first handoff."""
        table_uuid = self.steps.table_uuid(table)
        cold = cold_tables(self.resources, table_uuid)
        if cold is None:
            raise no_cold_table(table)
        return archived_history(table, cold, self.resources.unchecked_operations.deep_moves.snapshots(table_uuid))

    def route(
        self, table: str, as_of: datetime | None = None, snapshot_id: int | None = None, tag: str | None = None
    ) -> Route:
        """Return the tier and the snapshot that answer, from the stored snapshot log; the live tier if both can. A tag
        stands for the snapshot to which it points, or pointed at its end; with `as_of`, for the one to which it pointed
        then.

        For a snapshot in the deep archive, the result says how long it takes until it is readable. Raises BadInput for
        two selectors, NaiveDatetime, NoSuchSnapshot if no tier has it.
        """
        live = self.steps.table_state(table).metadata
        found = self.found(table, live, Selector(as_of, snapshot_id, tag))
        return self.described(table, live.table_uuid, found)

    def found(self, table: str, live: TableMetadata, selector: Selector) -> Route:
        """Return the tier and the snapshot that answer `selector`. Raises NoSuchSnapshot."""
        cold = self.past.own_cold_tables(table, live.table_uuid)

        def current_at(at_ms: int) -> int | None:
            found = self.past.at(table, live.table_uuid, at_ms, lambda: live, lambda: cold)
            return None if found is None else found.snapshot_id

        states = partial(former_states, self.resources.live_stores, live)

        return find_route(table, live, cold, selector, states, current_at, self._is_gone)

    def _is_gone(self, snapshot: Snapshot) -> bool:
        # An expiration deletes a manifest list after all files that it leads to.
        place = snapshot.manifest_list
        return place is not None and self.resources.live_stores.head(place) is None

    def described(self, table: str, table_uuid: str, found: Route) -> Route:
        """Return `found` with the storage class and the latency of its tier. A cold snapshot may be in the archive."""
        cold_ids = [found.snapshot_id] if found.tier == "cold" and found.snapshot_id is not None else []
        if self.resources.unchecked_operations.deep_moves.snapshots(table_uuid, among=cold_ids):
            return self._route_to_archive(table_uuid, found)
        catalogs = self.resources.config.catalogs
        catalog = catalogs.of(table) if found.tier == "live" else catalogs.cold
        return replace(found, storage_class=catalog.storage_class, expected_latency=catalog.expected_latency)

    def _route_to_archive(self, table_uuid: str, found: Route) -> Route:
        archive, now = self.resources.config.deep_archive, self.resources.unchecked_operations.clock.now()
        route = replace(
            found,
            tier="deep-archive",
            storage_class=archive.storage_class,
            expected_latency=archive.expected_latency,
            readable_in=archive.expected_latency,
        )
        for thaw in self.resources.unchecked_operations.thaws.list(table_uuid):
            if found.snapshot_id not in thaw.snapshot_ids:
                continue
            said = f"{thaw.thaw_id} ({thaw.state}, case {thaw.case_id})"
            if thaw.state is ThawState.READABLE and thaw.readable_until is not None and now < thaw.readable_until:
                # Once thawed, it responds like the cold tier.
                latency = self.resources.config.catalogs.cold.expected_latency
                return replace(route, expected_latency=latency, readable_in=None, thaw=said)
            if thaw.state is ThawState.THAWING and thaw.asked_at is not None:
                left = max(timedelta(0), thaw.asked_at + archive.expected_latency - now)
                route = replace(route, readable_in=left, thaw=said)
            elif route.thaw is None:
                route = replace(route, thaw=said)
        return route

    def read(
        self, table: str, as_of: datetime | None = None, snapshot_id: int | None = None, tag: str | None = None
    ) -> DataFrame:
        """Return the table's rows now, at an instant, of a snapshot or a tag: from the live or the cold catalog
        (`route`).

        Raises InDeepArchive for a snapshot that must be thawed first, and what `route` raises.
        """
        live = self.steps.table_state(table).metadata
        found = self.described(table, live.table_uuid, self.found(table, live, Selector(as_of, snapshot_id, tag)))
        require_readable(table, found)
        snapshot = live.snapshot(found.snapshot_id) if found.tier == "live" and found.snapshot_id is not None else None
        if snapshot is not None and self._is_gone(snapshot):
            with self.steps.advised(table, live):
                raise UnreadableMetadata.missing(snapshot.manifest_list or "", table)
        catalogs = self.resources.config.catalogs
        with java_errors(table):
            if found.cold_table is None:
                return read_rows(self.resources.spark, catalogs.of(table).name, table, found)
            return read_rows(self.resources.spark, catalogs.cold.name, found.cold_table, found)


def require_readable(table: str, found: Route) -> None:
    if found.readable_in is None:
        return
    under_way = f"; {found.thaw}" if found.thaw else ""
    raise InDeepArchive(
        f"Snapshot {found.snapshot_id} is in the deep archive ({found.storage_class}), readable about "
        f"{found.hours_until_readable:.0f} hours after a thaw is approved{under_way}",
        table=table,
        hint=f"artemis thaw {quote(table)} --snapshot-id {found.snapshot_id} --case … --requester … --reason …",
    )


@dataclass(frozen=True)
class WaysOut:
    """What gives a missing metadata file back, for every step that meets one: a backup is the last way."""

    resources: Resources
    past: Past

    def tell(self, table: str, live: TableMetadata | None, error: UnreadableMetadata) -> None:
        """Raise UnreadableMetadata with the way out, if there is one; HandoffFailed if cold was put back, too."""
        if live is not None:
            # A database that was put back may have forgotten the archive, too.
            require_newest_archive(self.resources, table, live.table_uuid)
            self._refuse_named_again(table, live, error)
        # Listings and engines spell it differently, and in quarantine a file has its place by the letters.
        scheme, _, rest = (error.path or "").partition(":")
        schemes = S3_SCHEMES if scheme in S3_SCHEMES else (scheme,)
        spelled = {f"{each}:{slashes}{rest.lstrip('/')}" for each in schemes for slashes in ("/", "//", "///")}
        for record in self.resources.operations.quarantines.kept(table, None if live is None else live.table_uuid):
            if any(self.resources.live_stores.heads([place_of(record.folder, each) for each in spelled])):
                raise UnreadableMetadata(
                    f"{record.job_id} moved a metadata file that the table needs into quarantine. The catalog was "
                    "probably put back in time",
                    table=table,
                    path=error.path,
                    untouched=error.untouched,
                    hint=f"artemis undelete {record.job_id} --who … --why … moves its files back",
                ) from error

    def _refuse_named_again(self, table: str, live: TableMetadata, error: UnreadableMetadata) -> None:
        """Raise UnreadableMetadata with the way out if the table's metadata names archived snapshots whose files were
        deleted, as after its catalog was put back."""
        cold = self.past.own_cold_tables(table, live.table_uuid)
        named = [each for each in live.snapshots if each.manifest_list is not None]
        there = self.resources.live_stores.heads([each.manifest_list or "" for each in named])
        lost = [each.snapshot_id for each, found in zip(named, there, strict=True) if found is None]
        gone = [each for each in lost if cold is not None and cold.holding(each) is not None]
        if not gone:
            return
        ids, name = ", ".join(map(str, gone)), self.resources.config.catalogs.of(table).name
        to_rescue = (
            f"artemis restore {quote(table)} {live.current_snapshot_id} --branch BRANCH, make that current, and then "
        )
        raise UnreadableMetadata(
            f"The metadata names {len(gone)} snapshots whose files were deleted once they were archived: {ids}. The "
            "catalog was probably put back in time. The archive still has them, and reads and restores use it",
            table=table,
            path=error.path,
            untouched=error.untouched,
            hint="register the newest metadata file again; or "
            f"{to_rescue if live.current_snapshot_id in gone else ''}remove them from the metadata alone, without "
            f"deleting files, e.g. by pyiceberg: load_catalog({name!r}).load_table({table!r}).maintenance"
            f".expire_snapshots().by_ids([{ids}]).commit()",
        ) from error


# --- queries ----------------------------------------------------------------------------------------------------------
# SQL with the project's own clauses: reads by tag, version and instant in any tier, and TAG SNAPSHOT.


@dataclass(frozen=True)
class Queries:
    """Translates and runs statements."""

    resources: Resources
    steps: Steps
    reading: Reading
    tags: TagsAndHolds

    def translate(self, sql: str, *, table: str | None = None, as_of: datetime | None = None) -> Query | TagStatement:
        """Return what `query` would run for `sql`, as Spark SQL; changes nothing.

        In a query, names of live tables get their catalog, and `FOR TAG 'x'`, `FOR VERSION AS OF` and `FOR TIMESTAMP AS
        OF` are answered by the tier that has the snapshot (`route`). In `TAG SNAPSHOT n [OF table] AS 'x' [WITH
        RETENTION FOREVER | 90 DAYS]`, if neither the statement nor `table` has the table's name, it is the table that
        has snapshot `n`. With `as_of`, a query's tables without such a clause are read at that instant. Raises BadInput
        with the correct form; NaiveDatetime; NoSuchTable; NoSuchSnapshot.
        """
        statement = parse_tag(sql)
        if statement is not None:
            if as_of is not None:
                raise BadInput("A TAG statement has a snapshot and no instant", hint="omit as_of")
            return self._tag_statement(statement, table)
        return translate_query(
            self.resources.spark,
            sql,
            Tables(
                live=self.resources.config.catalogs.live.name,
                cold=self.resources.config.catalogs.cold.name,
                listed_as=self.resources.live_catalog.listed_as,
                named={name: partial(self._listed_in, name) for name in self.resources.config.catalogs.named},
                route=lambda name, asked: self.reading.route(name, asked.as_of, asked.snapshot_id, asked.tag),
            ),
            as_of,
        )

    def _listed_in(self, catalog: str, identifier: Identifier) -> str | None:
        return self.resources.catalogs.reader(catalog).listed_as(identifier)

    def _tag_statement(self, statement: TagStatement, table: str | None) -> TagStatement:
        named = statement.table and self._named(statement.table)
        if named and table and named != table:
            raise BadInput(
                f"The statement tags {named}, and the call names {table}",
                untouched="both tables",
                hint="use one of them",
            )
        found = named or table or self._table_of(statement.snapshot_id)
        snapshot = self.steps.table_state(found).metadata.snapshot(statement.snapshot_id)
        if snapshot is None:
            raise no_such_snapshot(found, statement.snapshot_id, "its refs")
        age = max_ref_age_ms(statement.retain, self.resources.instant("now", None), snapshot.timestamp_ms)
        return spark_tag(statement, found, self.resources.config.catalogs.of(found).name, age)

    def _named(self, table: str) -> str:
        """Return the spelling under which the catalog lists a table in a statement."""
        identifier, named = parse(table), self.resources.config.catalogs.named
        if identifier.namespace[0] in named and len(identifier.namespace) > 1:
            listed = self._listed_in(identifier.namespace[0], Identifier.of(identifier.parts[1:]))
            if listed is not None:
                return listed
        if identifier.namespace[0] == self.resources.config.catalogs.live.name and len(identifier.namespace) > 1:
            # The catalog's name may be included, as in Spark SQL.
            identifier = Identifier.of(identifier.parts[1:])
        return self.resources.live_catalog.listed_as(identifier) or str(identifier)

    def _table_of(self, snapshot_id: int) -> str:
        """Return the only live table that has the snapshot. Reads every table's metadata file."""
        having = [
            name
            for name in self.steps.tables()
            if self.steps.table_state(name).metadata.snapshot(snapshot_id) is not None
        ]
        if len(having) == 1:
            return having[0]
        if not having:
            raise NoSuchSnapshot(
                f"No live table has snapshot {snapshot_id}",
                untouched="all refs",
                hint="artemis history TABLE lists a table's snapshots",
            )
        raise BadInput(
            f"{len(having)} tables have snapshot {snapshot_id}: {', '.join(having[:5])}",
            untouched="all refs",
            hint=f"add the table: TAG SNAPSHOT {snapshot_id} OF {parse(having[0]).sql()} AS …",
        )

    def query(
        self,
        sql: str | Query | TagStatement,
        *,
        table: str | None = None,
        as_of: datetime | None = None,
        who: str | None = None,
        why: str = "",
    ) -> DataFrame | Tagged:
        """Run the translation of `sql` (or an existing translation): return the rows of a query, or the tag that was
        set.

        `who` and `why` are recorded for a tag. Raises what `translate` and `tag` raise, BadInput for a query that Spark
        refuses, InDeepArchive for one that has to wait for a thaw. Errors in single rows appear when they are
        collected.
        """
        if not isinstance(sql, str) and (table is not None or as_of is not None):
            raise BadInput(
                "A translated statement has its tables and its instants already",
                hint="pass table and as_of to translate, or pass the statement as text",
            )
        found = self.translate(sql, table=table, as_of=as_of) if isinstance(sql, str) else sql
        if isinstance(found, Query):
            for source in found.sources:
                require_readable(source.table, source)
            with statement_errors():
                return self.resources.spark.sql(found.spark_sql)
        assert found.table is not None  # translate determined it
        retain = "forever" if found.retain is None else found.retain
        return self.tags.tag(found.table, found.name, found.snapshot_id, retain, who=who, why=why)
