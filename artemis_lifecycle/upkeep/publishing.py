"""Publication of plans, deletions and lineage to the result tables, outside the steps, and their maintenance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from artemis_lifecycle import escaping
from artemis_lifecycle.audit.ledger import LINEAGE_EDGES, LINEAGE_LEDGER, batch_location, drop_batch, sealed_rows
from artemis_lifecycle.audit.recording import LINEAGE_EVENTS, LineageEvents
from artemis_lifecycle.catalogs.results import (
    NAMESPACE,
    RESULT_TABLES,
    ResultRows,
    ResultTable,
    is_result_table,
    publish,
)
from artemis_lifecycle.deletion.report import DELETIONS, outcome_rows
from artemis_lifecycle.errors import Busy, LifecycleError, StorageError
from artemis_lifecycle.expiration.plan import PLAN_FILES, plan_rows
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.lineage import Publication
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.spark.java_errors import worker_errors
from artemis_lifecycle.spark.sql import name as sql_name
from artemis_lifecycle.storage.frames import describe_frame
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.upkeep.manifests import files_to_rewrite, snapshots_to_expire, would_rewrite_manifests

_log = escaping.logger(__name__)
_OF_LINEAGE = {table.name for table in (LINEAGE_LEDGER, LINEAGE_EDGES)}
_AT_ONCE = 500
"""Maximum number of jobs whose rows one commit appends."""
_KEEP = timedelta(days=30)
"""Age from which snapshots of result tables are expired."""
_MIN_INPUT_FILES = 2
"""Small files of one month that are rewritten together."""


@dataclass(frozen=True)
class ResultTablesCompacted:
    """The result of the result tables' maintenance, by table: data files rewritten, and snapshots expired. For a dry
    run, what would be rewritten and expired."""

    dry_run: bool
    rewritten_files: dict[str, int]
    expired_snapshots: dict[str, int]


@dataclass(frozen=True)
class Publishing:
    """Publishes pending rows of plans and deletions."""

    resources: Resources
    events: LineageEvents

    def publish(self) -> int:
        """Send lineage events, and publish pending rows, in one commit per result table. Return the number of plans and
        deletions; 0 while another process publishes. Raises what the catalog and the store raise; then everything stays
        pending."""
        catalog, operations = self.resources.config.catalogs.results, self.resources.operations
        self.events.send()
        if not self._pending():
            return 0
        try:
            with table_lock(operations.engine, f"publications:{catalog}", 0.0):
                pending = self._pending()[:_AT_ONCE]
                unreadable: StorageError | None = None
                for table in (PLAN_FILES, DELETIONS, LINEAGE_LEDGER, LINEAGE_EDGES):
                    mine = [each for each in pending if each.result_table == table.name]
                    if not mine:
                        continue
                    try:
                        self._append(table, mine)
                    except StorageError as error:
                        unreadable = error
                        # An unreadable one must not block the others.
                        for each in mine:
                            with suppress(StorageError):
                                self._append(table, [each])
                if unreadable is not None:
                    raise unreadable
                return len(pending)
        except Busy:
            return 0

    def _pending(self) -> list[Publication]:
        pending = self.resources.operations.publications.pending(self.resources.config.catalogs.results)
        return [each for each in pending if each.result_table != LINEAGE_EVENTS]

    def _append(self, table: ResultTable, publications: list[Publication]) -> None:
        resources = self.resources
        rows = list(self._rows(publications))
        if rows:
            with worker_errors():
                publish(resources.spark, resources.live_stores, resources.config.catalogs.results, table, rows)
        for each in publications:
            resources.operations.publications.published(each)
            if table.name in _OF_LINEAGE:
                drop_batch(resources.live_stores, resources.root, each.job_id, table.name)

    def publish_at_close(self) -> None:
        """Publish if this object requested a publication and a session is already started. Errors are logged, and the
        rows stay pending, because nothing needs them now."""
        if self.resources.started_spark() is None or not self.resources.has_operations:
            return
        if not self.resources.unchecked_operations.publications.asked:
            return
        try:
            self.publish()
        except LifecycleError as error:
            _log.warning("Result tables are not published; `artemis publish` does that: %s", error)

    def _rows(self, publications: list[Publication]) -> Iterator[ResultRows]:
        stores, operations = self.resources.live_stores, self.resources.operations
        for each in publications:
            if each.result_table == PLAN_FILES.name:
                plan = operations.plans.get(each.job_id)
                if describe_frame(plan.files_location, stores) is None:
                    continue
                tables = plan_rows(stores, plan)
            elif each.result_table in _OF_LINEAGE:
                root = self.resources.root
                if describe_frame(batch_location(root, each.job_id, each.result_table), stores) is None:
                    continue
                tables = sealed_rows(stores, root, each.job_id, each.result_table, each.recorded_at)
            else:
                job = operations.journal.job(each.job_id)
                if job is None:
                    continue
                tables = outcome_rows(stores, self.resources.root, job, each.recorded_at)
            # A process that died after its commit left rows that it did not record.
            yield ResultRows(each.job_id, each.recorded_at, tables, each.first_at)

    def compact(self, *, dry_run: bool) -> ResultTablesCompacted:
        """Rewrite small files of the result tables into large ones, and expire their old snapshots. Deletes no file:
        an orphan scan does, which asks who reads them. Leaves out a table under a hold or a pause. A dry run starts no
        Spark. Raises OtherDeployment."""
        self.resources.require_deployment(record=not dry_run)
        now = self.resources.clock.now()
        rewritten: dict[str, int] = {}
        expired: dict[str, int] = {}
        for table in sorted(RESULT_TABLES):
            if not self.resources.live_catalog.exists(table) or not self._may_compact(table):
                continue
            rewritten[table], expired[table] = self._foreseen(table, now) if dry_run else self._compacted(table, now)
        return ResultTablesCompacted(dry_run, rewritten, expired)

    def _may_compact(self, table: str) -> bool:
        """Return False for somebody else's table of the name, and for one under a hold or a pause."""
        pointer = self.resources.live_catalog.entry(table).metadata_location
        metadata = read_table_metadata(self.resources.live_stores, pointer)
        operations, table_uuid = self.resources.operations, metadata.table_uuid
        stops = operations.holds.active(table_uuid) or operations.pauses.of_table(table_uuid, table)
        return is_result_table(table, metadata.properties) and not stops

    def _foreseen(self, table: str, now: datetime) -> tuple[int, int]:
        """Return how many data files and snapshots `_compacted` would rewrite and expire."""
        stores = self.resources.live_stores
        metadata = read_table_metadata(stores, self.resources.live_catalog.entry(table).metadata_location)
        files = files_to_rewrite(stores, metadata, _MIN_INPUT_FILES)
        commits = files > 0 or would_rewrite_manifests(stores, metadata)
        # As the statement has it: in whole seconds.
        older_than = milliseconds((now - _KEEP).replace(microsecond=0))
        return files, snapshots_to_expire(metadata, older_than, milliseconds(now), after_commit=commits)

    def _compacted(self, table: str, now: datetime) -> tuple[int, int]:
        spark, catalog = self.resources.spark, self.resources.config.catalogs.results
        full = sql_name(catalog, NAMESPACE, table.removeprefix(f"{NAMESPACE}."))
        call = f"CALL {sql_name(catalog)}.system"
        with worker_errors():
            (done,) = spark.sql(
                f"{call}.rewrite_data_files(table => '{table}', "
                f"options => map('min-input-files', '{_MIN_INPUT_FILES}'))"
            ).collect()
            spark.sql(f"{call}.rewrite_manifests(table => '{table}')").collect()
            before = spark.table(f"{full}.snapshots").count()
            jvm: Any = spark._jvm
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
            found = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, full)
            found.refresh()
            older_than = milliseconds((now - _KEEP).replace(microsecond=0))
            found.expireSnapshots().expireOlderThan(older_than).retainLast(1).cleanExpiredFiles(False).commit()
            spark.catalog.refreshTable(full)
            return done["rewritten_data_files_count"], before - spark.table(f"{full}.snapshots").count()
