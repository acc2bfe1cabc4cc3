"""Appends and overwrites that state their lineage: validated before anything is written."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.identifier import parse_in
from artemis_lifecycle.commits.actions import jvm_table
from artemis_lifecycle.commits.gate import Gate
from artemis_lifecycle.contracts import CommitLineage
from artemis_lifecycle.contracts.summary import OPERATION, Operation
from artemis_lifecycle.errors import BadInput, CommitStateUnknown
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.spark.java_errors import java_errors, statement_errors
from artemis_lifecycle.spark.session import own_catalog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriterV2

COMMIT_ID = "lineage.commit-id"
"""The summary key by which a write finds its own snapshot."""


@dataclass(frozen=True)
class Commit:
    """What a write committed. `branch` None: the main branch."""

    table: str
    snapshot_id: int
    operation: str
    branch: str | None = None


@dataclass(frozen=True)
class Commits:
    """Writes rows to live tables."""

    resources: Resources
    gate: Gate

    def append(
        self, table: str, df: DataFrame, lineage: CommitLineage | Mapping[str, str], branch: str | None = None
    ) -> Commit:
        """Append rows to the table, or to one of its branches, in one commit whose summary has the lineage.

        `lineage` is a CommitLineage, or a mapping of the summary keys of docs/lineage.md. It is validated before
        anything is written. Raises LineageRejected, which names every problem; NoSuchTable; BadInput for rows that do
        not fit; CommitConflict, CommitStateUnknown.
        """
        return self._commit(table, df, lineage, "append", lambda writer: writer.append(), branch)

    def overwrite(
        self, table: str, df: DataFrame, lineage: CommitLineage | Mapping[str, str], where: str | Column | None = None
    ) -> Commit:
        """Replace the rows that match `where` (None: all rows) by `df`, in one commit whose summary has the lineage.

        `where` must match whole files, as in Spark's `DataFrameWriterV2.overwrite`. Validated as by `append`, as an
        `overwrite`, which lifecycle.yaml may permit to some writers and operators alone.
        """
        from pyspark.sql import functions as F

        condition = F.lit(True) if where is None else F.expr(where) if isinstance(where, str) else where
        return self._commit(table, df, lineage, "overwrite", lambda writer: writer.overwrite(condition))

    def _commit(
        self,
        table: str,
        df: DataFrame,
        lineage: CommitLineage | Mapping[str, str],
        operation: Operation,
        write: Callable[[DataFrameWriterV2], None],
        branch: str | None = None,
    ) -> Commit:
        resources = self.resources
        resources.catalogs.entry(table)
        keys = lineage.summary() if isinstance(lineage, CommitLineage) else dict(lineage)
        if OPERATION in keys:
            raise BadInput(f"Iceberg sets {OPERATION}; the lineage may not", table=table, hint=f"remove {OPERATION}")
        self.gate.require_lineage(table, {**keys, OPERATION: operation})
        keys[COMMIT_ID] = uuid.uuid4().hex
        catalog = resources.config.catalogs.of(table).name
        spark, identifier = resources.spark, parse_in(table, catalog)  # With all catalogs.
        # Not by the session's own name: whatever the session has under it.
        live = own_catalog(spark, catalog)
        name = identifier.sql(live) if branch is None else f"{identifier.sql(live)}.`branch_{branch}`"
        writer = df.writeTo(name)
        for key, value in keys.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        with java_errors(table, lambda: self._last_commit(table)), statement_errors():
            write(writer)
        return self._committed(spark, table, keys[COMMIT_ID], branch)

    def _last_commit(self, table: str) -> int:
        entry = self.resources.catalogs.entry(table)
        return read_table_metadata(self.resources.live_stores, entry.metadata_location).last_updated_ms

    def _committed(self, spark: SparkSession, table: str, commit_id: str, branch: str | None) -> Commit:
        with java_errors(table):
            found: Any = jvm_table(spark, self.resources.config.catalogs.of(table).name, table)
            snapshots = found.operations().current().snapshots()
            # The newest are last.
            for place in reversed(range(snapshots.size())):
                snapshot = snapshots.get(place)
                if snapshot.summary().get(COMMIT_ID) == commit_id:
                    return Commit(table, int(snapshot.snapshotId()), str(snapshot.operation()), branch)
        raise CommitStateUnknown(
            "The commit succeeded, but its snapshot is not in the table any more",
            table=table,
            untouched=None,
            hint=f"find out who expired the snapshot with {COMMIT_ID}={commit_id}",
        )
