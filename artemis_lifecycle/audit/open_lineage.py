"""Lineage as OpenLineage events: one RunEvent (COMPLETE) for each snapshot that is recorded.

Belongs here: the events, from rows of the ledger. Does not belong here: sending (`audit/recording.py`).
Source: OpenLineage's specification, and the classes of openlineage-python, which serialize the events.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from artemis_lifecycle.audit.ledger import LedgerBatch
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.metadata.types import TableMetadata

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run
    from openlineage.client.facet_v2 import schema_dataset

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
