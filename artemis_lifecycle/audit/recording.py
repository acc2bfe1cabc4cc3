"""Records lineage: who wrote each snapshot, in the ledger that outlives the snapshots."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle import escaping
from artemis_lifecycle.audit.ledger import (
    EDGE_ROWS,
    LINEAGE_LEDGER,
    ROWS,
    LedgerBatch,
    LineageRecorded,
    NoSnapshot,
    advanced,
    batch_location,
    drop_batch,
    ledger_batch,
    row_of_plan,
    seal_batch,
    sealed_rows,
    unrecorded,
)
from artemis_lifecycle.audit.schema_history import SchemaUse
from artemis_lifecycle.catalogs.results import NAMESPACE, ResultTable, Where
from artemis_lifecycle.contracts import CommitLineage, LineageRequirements
from artemis_lifecycle.errors import Busy, EnvironmentMissing, LifecycleError, StorageError
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.operations.lineage import LedgerProgress, Publication
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.session.contexts import cold_metadata
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Steps
from artemis_lifecycle.spark.sql import name as sql_name
from artemis_lifecycle.storage.frames import describe_frame, frame_batches, write_batches
from artemis_lifecycle.storage.instants import milliseconds

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run
    from openlineage.client.facet_v2 import schema_dataset

# --- open lineage -----------------------------------------------------------------------------------------------------
# Lineage as OpenLineage events: one RunEvent (COMPLETE) for each snapshot that is recorded.
# Source: OpenLineage's specification, and the classes of openlineage-python, which serialize the events.

PRODUCER = "https://pypi.org/project/artemis-lifecycle/"

EVENT_ROWS = pa.schema([("event", pa.string())])
"""Events as they are kept until they are sent: one JSON text each."""


def require_open_lineage() -> None:
    """Raise EnvironmentMissing without the extra `openlineage`."""
    try:
        import openlineage.client  # noqa: F401
    except ImportError as error:
        raise EnvironmentMissing.extra("openlineage", error) from error


def lineage_events(batch: LedgerBatch, metadata: TableMetadata, catalog: str) -> Iterator[str]:
    """Yield the events of a recorded batch, as JSON text. A commit without a snapshot, or without a time that a
    calendar has, has none. `metadata` is the table's, `catalog` the live catalog's name.

    A run's id depends only on table and snapshot, so that an event that is sent twice is the same run.
    """
    from openlineage.client.event_v2 import RunEvent, RunState
    from openlineage.client.serde import Serde

    namespace = f"iceberg://{catalog}"
    inputs: dict[int, list[Mapping[str, Any]]] = {}
    for edge in batch.edges.to_pylist():
        inputs.setdefault(edge["to_id"], []).append(edge)
    rows = (row for part in batch.rows.to_batches(max_chunksize=10_000) for row in part.to_pylist())
    for row in rows:
        if row["snapshot_id"] is None or row["committed_at"] is None:
            continue
        event = RunEvent(
            eventTime=row["committed_at"].isoformat(),
            eventType=RunState.COMPLETE,
            producer=PRODUCER,
            run=_run(row, namespace),
            job=_job(row, namespace),
            inputs=[_input(edge, namespace) for edge in inputs.get(row["snapshot_id"], ())],
            outputs=[_output(row, metadata, catalog, namespace)],
        )
        yield Serde.to_json(event)


def _run(row: Mapping[str, Any], namespace: str) -> Run:
    from openlineage.client.event_v2 import Run
    from openlineage.client.facet_v2 import parent_run

    facets: dict[str, Any] = {}
    if _is_uuid(row["dagster_run_id"]):
        facets["parent"] = parent_run.ParentRunFacet(
            run=parent_run.Run(runId=row["dagster_run_id"]),
            job=parent_run.Job(namespace="dagster", name=row["writer_id"] or "unknown"),
        )
    return Run(
        runId=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{namespace}/{row['table_uuid']}/{row['snapshot_id']}")),
        facets=facets,
    )


def _is_uuid(text: str | None) -> bool:
    try:
        return text is not None and bool(uuid.UUID(text))
    except ValueError:
        return False


def _job(row: Mapping[str, Any], namespace: str) -> Job:
    from openlineage.client.event_v2 import Job
    from openlineage.client.facet_v2 import job_type_job, source_code_location_job

    facets: dict[str, Any] = {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration="ICEBERG", jobType=(row["operation"] or "unknown").upper()
        )
    }
    commit = row["writer_commit_hash"]
    if commit:
        # Only the commit is known, not which repository has it.
        facets["sourceCodeLocation"] = source_code_location_job.SourceCodeLocationJobFacet(
            type="git", url=f"urn:git:commit:{commit}", version=commit
        )
    return Job(namespace=namespace, name=row["writer_id"] or "unknown", facets=facets)


def _input(edge: Mapping[str, Any], namespace: str) -> InputDataset:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset

    return InputDataset(
        namespace=f"iceberg://{edge['from_catalog']}" if edge["from_catalog"] else namespace,
        name=edge["from_table"],
        facets={"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(edge["from_id"]))},
    )


def _output(row: Mapping[str, Any], metadata: TableMetadata, catalog: str, namespace: str) -> OutputDataset:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import (
        dataset_version_dataset,
        datasource_dataset,
        lifecycle_state_change_dataset,
        output_statistics_output_dataset,
        schema_dataset,
    )

    summary = json.loads(row["summary"])
    facets: dict[str, Any] = {
        "dataSource": datasource_dataset.DatasourceDatasetFacet(name=catalog, uri=metadata.location),
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(row["snapshot_id"])),
    }
    schema = metadata.schemas.get(row["schema_id"] if row["schema_id"] is not None else metadata.current_schema_id)
    if schema is not None:
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=_fields(json.loads(schema)))
    change = _change(row, summary)
    if change is not None:
        facets["lifecycleStateChange"] = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
            lifecycleStateChange=lifecycle_state_change_dataset.LifecycleStateChange[change]
        )
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=row["added_records"],
        size=_count(summary.get("added-files-size")),
        fileCount=_count(summary.get("added-data-files")),
    )
    return OutputDataset(
        namespace=namespace, name=row["table_name"], facets=facets, outputFacets={"outputStatistics": statistics}
    )


def _change(row: Mapping[str, Any], summary: Mapping[str, str]) -> str | None:
    """Return the standard's name for what the commit did to the whole table; None if it added or rewrote files."""
    if row["operation"] in ("overwrite", "delete"):
        return "TRUNCATE" if summary.get("total-records") == "0" else "OVERWRITE"
    return "CREATE" if row["parent_snapshot_id"] is None and row["operation"] == "append" else None


def _fields(struct: Mapping[str, Any]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    from openlineage.client.facet_v2 import schema_dataset

    return [
        schema_dataset.SchemaDatasetFacetFields(
            name=each["name"],
            type=each["type"] if isinstance(each["type"], str) else each["type"]["type"],
            description=each.get("doc"),
            ordinal_position=place,
            fields=_fields(each["type"]) if isinstance(each["type"], dict) and each["type"]["type"] == "struct" else [],
        )
        for place, each in enumerate(struct["fields"], 1)
    ]


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


# --- lineage events ---------------------------------------------------------------------------------------------------
# Sends lineage events to a file or an HTTP address, as `lineage_events` in lifecycle.yaml says.
#
# Events are sealed and queued together with the rows of the ledger. Each is sent at least once: what a receiver does
# not take stays queued until it does.

_log = escaping.logger(__name__)

LINEAGE_EVENTS = "lineage_events"
_TOGETHER = 100
"""Events that are sent, and sent again, together."""
_REQUEST_SECONDS = 5.0
_REFUSED = frozenset({400, 413, 422})
"""Status codes that say something about the event itself."""
_MOST_SECONDS = 30.0
"""After so long a call begins no other part, and after twice as long it ends within one; the next call continues."""


@dataclass(frozen=True)
class LineageEvents:
    """Keeps events until they are sent, and sends them."""

    resources: Resources

    def seal(self, batch_id: str, batch: LedgerBatch, metadata: TableMetadata) -> list[str]:
        """Store the events of a batch. Return the ids under which to queue them; none if nothing receives events."""
        if self.resources.config.lineage_events.receiver is None:
            return []
        catalog = self.resources.config.catalogs.results
        ids = []
        for number, events in enumerate(_parts(lineage_events(batch, metadata, catalog))):
            ids.append(f"{batch_id}-{number}")
            rows = pa.RecordBatch.from_arrays([pa.array(events, pa.string())], schema=EVENT_ROWS)
            write_batches([rows], EVENT_ROWS, self._folder(ids[-1]), self.resources.live_stores)
        return ids

    def send(self) -> int:
        """Send queued events, for at most about a minute. Return how many queued parts were sent. What prevents
        that is logged, and the events stay queued: it must not fail what recorded them."""
        catalog, publications = self.resources.config.catalogs.results, self.resources.operations.publications
        receiver, sent = self.resources.config.lineage_events.receiver, 0
        if receiver is None or not _events(publications.pending(catalog)):
            return 0
        began = time.monotonic()
        try:
            with table_lock(self.resources.operations.engine, f"lineage_events:{catalog}", 0.0):
                for each in _events(publications.pending(catalog)):
                    if time.monotonic() - began > _MOST_SECONDS:
                        break
                    self._deliver(receiver, each, began + 2 * _MOST_SECONDS)
                    publications.published(each)
                    drop_batch(self.resources.live_stores, self.resources.root, each.job_id, LINEAGE_EVENTS)
                    sent += 1
        except Busy:
            pass
        except LifecycleError as error:
            _log.warning("Lineage events wait to be sent again: %s", error)
        return sent

    def _deliver(self, receiver: str, publication: Publication, until: float) -> None:
        folder, stores = self._folder(publication.job_id), self.resources.live_stores
        if describe_frame(folder, stores) is None:
            return  # A process that died after sending them had dropped them.
        events = [text for batch in frame_batches(folder, stores) for text in batch.column("event").to_pylist()]
        if "://" in receiver:
            token = self.resources.config.lineage_events.token
            for event in events:
                if time.monotonic() > until:
                    raise StorageError(
                        "lineage_events.url takes its events too slowly", hint="check the server at that address"
                    )
                _post(receiver, token, event)
        else:
            _append(Path(receiver), events)

    def _folder(self, job_id: str) -> str:
        return batch_location(self.resources.root, job_id, LINEAGE_EVENTS)


def _parts(events: Iterator[str]) -> Iterator[Sequence[str]]:
    while part := list(islice(events, _TOGETHER)):
        yield part


def _events(pending: Sequence[Publication]) -> list[Publication]:
    return [each for each in pending if each.result_table == LINEAGE_EVENTS]


def _append(path: Path, events: Sequence[str]) -> None:
    """Append lines durably. If a process died in the middle of a line, the next one begins on a new line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            torn = size > 0 and file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + "".join(f"{event}\n" for event in events).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"lineage_events.file cannot be written ({error.strerror})",
            path=str(path),
            hint="check the path in lifecycle.yaml",
        ) from error


def _post(url: str, token: str | None, event: str) -> None:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = Request(url, data=event.encode(), headers=headers, method="POST")
    try:
        with urlopen(request, timeout=_REQUEST_SECONDS):
            pass
    except (URLError, HTTPException, OSError, ValueError) as error:
        code = getattr(error, "code", None)
        if code in _REFUSED:
            # It would be refused forever, and hold up all events after it.
            _log.warning("A lineage event is lost, because the receiver refuses it (%s): %s", code, event[:500])
            return
        # The address may have a login in it.
        reason = code or type(getattr(error, "reason", error)).__name__
        raise StorageError(
            f"lineage_events.url does not take an event ({reason})", hint="check the address in lifecycle.yaml"
        ) from None


@dataclass(frozen=True)
class Recording:
    """Adds what is new of a table to the lineage ledger. Starts no Spark."""

    resources: Resources
    steps: Steps
    events: LineageEvents

    def record_lineage(self, table: str) -> LineageRecorded:
        state = self.steps.table_state(table)
        with self.steps.run(state, "lineage") as step:
            # Under the lease no other process records this table.
            state = self.steps.again(state)
            done = self.record(table, state.metadata)
            step.counts = {"snapshots_added": done.snapshots}
        return done

    def record(self, table: str, metadata: TableMetadata) -> LineageRecorded:
        """Queue the snapshots of `metadata` that the ledger lacks; the first time, also those that only the cold tier
        has. Callers hold the table's lease. Raises UnreadableMetadata, StorageError, OperationsUnavailable; nothing is
        recorded then."""
        progress = self.resources.operations.ledger_progress.of_table(metadata.table_uuid)
        batch = self.unrecorded_batch(table, metadata, progress)
        before = progress or LedgerProgress(metadata.table_uuid, metadata.metadata_location, None, 0, 0, 0, 0)
        after = advanced(before, metadata, batch)
        new = batch.rows.num_rows
        if new:
            batch_id = uuid.uuid4().hex
            self._queue(batch_id, batch, after, self.events.seal(batch_id, batch, metadata))
        return LineageRecorded(
            table=table,
            table_uuid=metadata.table_uuid,
            metadata_location=metadata.metadata_location,
            ledger=sql_name(self.resources.config.catalogs.results, NAMESPACE, LINEAGE_LEDGER.name),
            snapshots=new,
            recorded=after.recorded,
            incomplete=after.incomplete,
        )

    def unrecorded_batch(self, table: str, metadata: TableMetadata, progress: LedgerProgress | None) -> LedgerBatch:
        """Return the rows that the ledger lacks of `metadata`. Records nothing."""
        new: list[tuple[Snapshot, str]] = [
            (snapshot, metadata.metadata_location)
            for snapshot in unrecorded(metadata, progress, lambda: self.recorded_ids(metadata.table_uuid))
        ]
        if progress is None:
            cold = cold_metadata(self.resources, metadata.table_uuid)
            if cold is not None:
                archived = (each for each in cold.snapshots if metadata.snapshot(each.snapshot_id) is None)
                new = [*((each, cold.metadata_location) for each in archived), *new]
        wanted = LineageRequirements.from_config(self.resources.config.policy(table).lineage)
        return ledger_batch(table, metadata.table_uuid, new, wanted, self.uuids.get)

    def record_expiration(
        self,
        table: str,
        table_uuid: str,
        plan_id: str,
        lineage: CommitLineage,
        metadata_location: str,
        *,
        operation: NoSnapshot = "expiration",
    ) -> None:
        """Queue the row of an expiration that `metadata_location` was written by; of a handoff that wrote that file in
        the cold tier; or of an undrop (`plan_id`) that registered it. Once, however often it is called."""
        now = self.resources.clock.now()
        row = row_of_plan(table, table_uuid, plan_id, lineage, metadata_location, now, operation=operation)
        self._queue(f"{operation}-{plan_id}", LedgerBatch(row, EDGE_ROWS.empty_table()), None)

    def recorded_ids(self, table_uuid: str) -> set[int]:
        """Return the ids of the table's snapshots in the ledger, published or queued."""
        ids = self.rows(["table_uuid", "snapshot_id"], table_uuid)["snapshot_id"].to_pylist()
        return {each for each in ids if each is not None}

    def schema_uses(self, table_uuid: str) -> tuple[SchemaUse, ...]:
        """Return which schema each recorded snapshot of a table was written with, the expired ones included."""
        rows = self.rows(["table_uuid", "snapshot_id", "committed_at", "schema_id"], table_uuid)
        known = rows.filter(pc.and_(rows["schema_id"].is_valid(), rows["committed_at"].is_valid()))
        return tuple(
            SchemaUse(row["snapshot_id"], milliseconds(row["committed_at"]), row["schema_id"])
            for row in known.to_pylist()
        )

    def rows(self, columns: Sequence[str], table_uuid: str) -> pa.Table:
        """Return these columns of the ledger's rows of a table, published or queued."""
        return self.read(LINEAGE_LEDGER, columns, (Where("table_uuid", "=", table_uuid),))

    def read(self, table: ResultTable, columns: Sequence[str], where: Sequence[Where] = ()) -> pa.Table:
        """Return these columns of the rows of a result table that match all conditions, published or queued, each
        once."""
        # Rows go from the queue to the result table, so the queue is read first: none is missed in between.
        queued = self.queued(table.name)
        for condition in where:
            queued = [(batch_id, condition.matches(rows)) for batch_id, rows in queued]
        own = {batch_id for batch_id, _ in queued}
        both = [*columns, table.key] if own else columns
        stored = self.resources.results.all_rows(table.name, both, where)
        published = [] if stored is None else [stored]
        if own:
            ids = pa.array(sorted(own), pa.string())
            published = [rows.filter(pc.invert(pc.is_in(rows[table.key], value_set=ids))) for rows in published]
        fields = ROWS if table is LINEAGE_LEDGER else EDGE_ROWS
        schema = pa.schema([fields.field(name) for name in columns])
        found = [*published, *(rows for _, rows in queued)]
        return pa.concat_tables([schema.empty_table(), *(rows.select(list(columns)).cast(schema) for rows in found)])

    def queued(self, name: str) -> list[tuple[str, pa.Table]]:
        """Return the rows of a result table that are recorded and not yet published, each with its batch's id."""
        stores, root = self.resources.live_stores, self.resources.root
        pending = self.resources.operations.publications.pending(self.resources.config.catalogs.results)
        found: list[tuple[str, pa.Table]] = []
        for each in pending:
            if each.result_table != name or describe_frame(batch_location(root, each.job_id, name), stores) is None:
                continue  # Published meanwhile.
            found += [(each.job_id, rows) for rows in sealed_rows(stores, root, each.job_id, name)]
        return found

    def _queue(
        self, batch_id: str, batch: LedgerBatch, progress: LedgerProgress | None, events: Sequence[str] = ()
    ) -> None:
        seal_batch(self.resources.live_stores, self.resources.root, batch_id, batch)
        catalog = self.resources.config.catalogs.results
        self.resources.operations.publications.lineage(catalog, batch_id, progress, events)

    @cached_property
    def uuids(self) -> dict[str, str]:
        """The uuids of the live catalogs' tables that are known, by key."""
        known = map(self.resources.operations.known_tables.of_catalog, self.resources.catalogs.names)
        return {each.table: each.table_uuid for tables in known for each in tables if each.missing_since is None}
