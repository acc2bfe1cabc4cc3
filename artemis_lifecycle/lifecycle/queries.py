"""SQL with the project's own clauses: reads by tag, version and instant in any tier, and TAG SNAPSHOT."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from artemis_lifecycle.catalogs.identifier import Identifier, parse
from artemis_lifecycle.cold_tier.queries import Query, Tables, TagStatement, parse_tag, spark_tag
from artemis_lifecycle.cold_tier.queries import translate as translate_query
from artemis_lifecycle.errors import BadInput, NoSuchSnapshot
from artemis_lifecycle.expiration.tags_and_holds import max_ref_age_ms, no_such_snapshot
from artemis_lifecycle.lifecycle.reading import Reading, require_readable
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps
from artemis_lifecycle.lifecycle.tags_and_holds import Tagged, TagsAndHolds
from artemis_lifecycle.spark.java_errors import statement_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Queries:
    """Translates and runs statements."""

    resources: Resources
    steps: Steps
    reading: Reading
    tags: TagsAndHolds

    def translate(self, sql: str, *, table: str | None = None, as_of: datetime | None = None) -> Query | TagStatement:
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
                route=lambda name, asked: self.reading.route(name, asked.as_of, asked.snapshot_id, asked.tag),
            ),
            as_of,
        )

    def _tag_statement(self, statement: TagStatement, table: str | None) -> TagStatement:
        live = self.resources.config.catalogs.live.name
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
        return spark_tag(statement, found, live, age)

    def _named(self, table: str) -> str:
        """Return the spelling under which the catalog lists a table in a statement."""
        identifier = parse(table)
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
