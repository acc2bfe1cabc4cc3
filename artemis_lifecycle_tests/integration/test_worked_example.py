"""The mission's worked example: twelve files are appended to a table of a hundred manifests, and a query is planned in
three passes before and after. `worked_example.json` states what must come out.

The table is a real one, which pyiceberg writes. The append is pyiceberg's fast append, and `compare_and_swap` makes its
metadata file current; Iceberg in Spark, pyiceberg and this project read it, and both engines commit after it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.update import update_table_metadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, NestedField, StringType

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import ingest_catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, CommitConflict, LineageRejected
from artemis_lifecycle.metadata import (
    EntryStatus,
    Snapshot,
    TableMetadata,
    column_statistics,
    manifests_of,
    partition_ranges,
    read_manifest,
    read_table_metadata,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE, QUERY = "ops.telemetry", "mission_id = 'apollo-7' and panel_voltage > 28.5"
GOLDEN = Path(__file__).with_name("worked_example.json")
_SCHEMA = Schema(
    NestedField(1, "mission_id", StringType(), required=False),
    NestedField(2, "panel_voltage", DoubleType(), required=False),
)
_SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "mission_id"))
_PROPERTIES = {"write.parquet.row-group-limit": "10", "commit.manifest-merge.enabled": "false"}
_ROWS = 40
_APOLLO = {20: 24.0, 50: 28.5, 80: 30.0}
"""The manifests with apollo-7, and the highest voltage in each."""


def _readings(mission: str, highest: float) -> pa.Table:
    """40 readings that rise in steps of a tenth of a volt: four row groups."""
    voltages = [highest - (_ROWS - 1 - row) / 10 for row in range(_ROWS)]
    return pa.table({"mission_id": [mission] * _ROWS, "panel_voltage": voltages})


@pytest.fixture
def catalog(lifecycle: Lifecycle) -> Iterator[Catalog]:
    catalog = ingest_catalog(lifecycle.config.catalogs.live)
    catalog.create_namespace("ops")
    yield catalog
    catalog.close()


def _hashes(folder: str) -> dict[str, str]:
    files = (path for path in Path(folder.removeprefix("file://")).rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _metadata(lifecycle: Lifecycle) -> TableMetadata:
    return read_table_metadata(lifecycle.live_stores, lifecycle.get_current(TABLE).metadata_location)


def _passes(lifecycle: Lifecycle) -> dict[str, list[int]]:
    plan = lifecycle.plan_query(TABLE, QUERY, footers=100)
    return {each.name: [each.total, each.selected] for each in plan.passes}


def _level(lifecycle: Lifecycle, metadata: TableMetadata) -> dict[str, Any]:
    """The catalog's row, the snapshot and its list, by the example's names: S, ML and M with their numbers."""
    snapshot = _snapshot(metadata)
    assert snapshot.parent_snapshot_id is not None
    parent = metadata.snapshot(snapshot.parent_snapshot_id)
    assert parent is not None
    entries = sorted(manifests_of(lifecycle.live_stores, snapshot).entries, key=lambda each: each.sequence_number)
    return {
        "snapshot": f"S{snapshot.sequence_number}",
        "parent": f"S{parent.sequence_number}",
        "manifest_list": f"ML{snapshot.sequence_number}",
        "schema_id": snapshot.schema_id,
        # The first snapshot, S1, is of an empty commit.
        "manifests": [
            f"M{entry.sequence_number - 1}" for entry in sorted(entries, key=lambda each: each.sequence_number)
        ],
        "files": sum(entry.live_files_count or 0 for entry in entries),
    }


def test_one_commit_four_levels(lifecycle: Lifecycle, catalog: Catalog) -> None:
    golden = json.loads(GOLDEN.read_text())
    stores, spark, live = lifecycle.live_stores, lifecycle.spark, lifecycle.config.catalogs.live.name
    table = catalog.create_table(TABLE, _SCHEMA, partition_spec=_SPEC, properties=_PROPERTIES)
    table.append(_readings("none", 20.0).slice(0, 0))
    for number in range(1, 101):
        mission = "apollo-7" if number in _APOLLO else f"artemis-{number:03d}"
        table.append(_readings(mission, _APOLLO.get(number, 30.0)))
    base = _metadata(lifecycle)
    assert _level(lifecycle, base) == golden["before"]
    assert _passes(lifecycle) == golden["query"]["before"]

    # Twelve data files, a manifest, a manifest list, a metadata file with the snapshot. Nothing refers to them yet.
    missions = ["apollo-7", *(f"artemis-2{number:02d}" for number in range(11))]
    rows, before = spark.table(f"{live}.{TABLE}").count(), _hashes(table.location())
    written = _staged(table, pa.concat_tables([_readings(mission, 31.0) for mission in missions]))
    after = _hashes(table.location())
    assert {path: after[path] for path in before} == before
    new = list(after.keys() - before.keys())
    assert sorted(Path(path).suffix for path in new) == [".avro"] * 2 + [".json"] + [".parquet"] * 12
    assert _metadata(lifecycle) == base and _passes(lifecycle) == golden["query"]["before"]

    # One swap of the pointer; of two with one expectation, one succeeds.
    rival = _staged(table, _readings("apollo-7", 31.0))
    row = lifecycle.compare_and_swap(TABLE, base.metadata_location, written)
    assert (row.metadata_location, row.previous_metadata_location) == (written, base.metadata_location)
    assert lifecycle.get_current(TABLE) == row
    with pytest.raises(CommitConflict, match="not at"):
        lifecycle.compare_and_swap(TABLE, base.metadata_location, rival)
    for back in (rival, base.metadata_location):
        with pytest.raises(BadInput, match="does not follow"):
            lifecycle.compare_and_swap(TABLE, written, back)
    assert lifecycle.get_current(TABLE) == row

    metadata = _metadata(lifecycle)
    assert _level(lifecycle, metadata) == golden["after"]
    listed, reused = (set(manifests_of(stores, _snapshot(each)).entries) for each in (metadata, base))
    (added,) = listed - reused
    entries = read_manifest(stores, added)
    (ranged,) = partition_ranges(metadata, added)
    voltage = column_statistics(metadata, entries[0])[1]
    assert {
        "name": f"M{added.sequence_number - 1}",
        "entries": len(entries),
        "statuses": sorted({EntryStatus(entry.status).name for entry in entries}),
        "counts": [added.added_files_count, added.existing_files_count, added.deleted_files_count],
        "partition": [ranged.name, ranged.transform, ranged.contains_null, ranged.lower, ranged.upper],
        "column": [voltage.name, voltage.type, voltage.value_count, voltage.null_count, voltage.lower, voltage.upper],
    } == golden["new_manifest"]
    assert len(listed & reused) == golden["reused_manifests"] == 100
    summary = _snapshot(metadata).summary.whole()
    assert {key: summary[key] for key in golden["summary"]} == golden["summary"]
    assert _passes(lifecycle) == golden["query"]["after"]

    # Every reader sees the old snapshot and the new one, and commits after it.
    parent = _snapshot(metadata).parent_snapshot_id
    assert parent is not None
    assert spark.table(f"{live}.{TABLE}").count() == rows + 12 * _ROWS
    assert spark.sql(f"SELECT * FROM {live}.{TABLE} VERSION AS OF {parent}").count() == rows
    found = spark.sql(f"SELECT count(*) FROM {live}.{TABLE} WHERE {QUERY}").collect()[0][0]
    table.refresh()
    assert table.scan(row_filter=QUERY).to_arrow().num_rows == found > 0
    assert table.scan(snapshot_id=parent).count() == rows
    table.append(_readings("artemis-300", 31.0))
    spark.sql(f"INSERT INTO {live}.{TABLE} VALUES ('artemis-301', 1.0)")
    assert spark.table(f"{live}.{TABLE}").count() == rows + 13 * _ROWS + 1
    assert len(manifests_of(stores, _snapshot(_metadata(lifecycle))).entries) == 103


def test_spark_pyiceberg_and_the_swap_lose_no_update_of_each_other(lifecycle: Lifecycle, catalog: Catalog) -> None:
    """They commit to one table at once. Every commit that was reported is in the history, once, and nothing else."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    patient = {**_PROPERTIES, "commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "1"}
    table = catalog.create_table(TABLE, _SCHEMA, partition_spec=_SPEC, properties=patient)
    table.append(_readings("apollo-7", 30.0))
    committed: list[str] = []

    def by_swap() -> None:
        for number in range(10):
            done = False
            while not done:
                own = catalog.load_table(TABLE)
                written = _staged(own, _readings("artemis-3", 30.0), **{"writer-id": f"swap-{number}"})
                with suppress(CommitConflict):
                    lifecycle.compare_and_swap(TABLE, own.metadata_location, written)
                    committed.append(f"swap-{number}")
                    done = True

    def by_pyiceberg() -> None:
        for number in range(10):
            with suppress(CommitFailedException):
                own = catalog.load_table(TABLE)
                own.append(_readings("artemis-1", 30.0), snapshot_properties={"writer-id": f"pyiceberg-{number}"})
                committed.append(f"pyiceberg-{number}")

    def by_spark() -> None:
        for number in range(5):
            writer = spark.sql("SELECT 'artemis-2' AS mission_id, 1.0D AS panel_voltage").writeTo(f"{live}.{TABLE}")
            writer.option("snapshot-property.writer-id", f"spark-{number}").append()
            committed.append(f"spark-{number}")

    with ThreadPoolExecutor(3) as pool:
        for writer in [pool.submit(each) for each in (by_swap, by_pyiceberg, by_spark)]:
            writer.result()
    metadata = _metadata(lifecycle)
    found, at = [], metadata.current_snapshot
    while at is not None and at.parent_snapshot_id is not None:
        found.append(at.summary.properties["writer-id"])
        at = metadata.snapshot(at.parent_snapshot_id)
    assert sorted(found) == sorted(committed) and len(found) >= 15
    assert _snapshot(metadata).summary.total_data_files == len(found) + 1
    assert metadata.last_sequence_number == len(metadata.snapshots) == len(found) + 1


def _snapshot(metadata: TableMetadata) -> Snapshot:
    assert metadata.current_snapshot is not None
    return metadata.current_snapshot


def _staged(table: Table, rows: pa.Table, **summary: str) -> str:
    """Write everything of a fast append but the catalog's pointer. Return the location of its metadata file."""
    change = table.transaction()
    change.append(rows, snapshot_properties=summary)
    metadata = update_table_metadata(table.metadata, change._updates, metadata_location=table.metadata_location)
    location = f"{table.location()}/metadata/{uuid.uuid4()}.metadata.json"
    ToOutputFile.table_metadata(metadata, table.io.new_output(location))
    return location


def test_a_swap_passes_the_lineage_gate_by_the_summaries_of_its_new_snapshots(
    make_config: Callable[..., LifecycleConfig], spark: SparkSession
) -> None:
    config = make_config(tables={TABLE: {"lineage": {"mode": "reject", "required": ["writer-id"]}}})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        lifecycle.enable_gate()
        catalog = ingest_catalog(config.catalogs.live)
        catalog.create_namespace("ops")
        table = catalog.create_table(TABLE, _SCHEMA, partition_spec=_SPEC)
        row, rows = lifecycle.get_current(TABLE), _readings("apollo-7", 30.0)
        with pytest.raises(LineageRejected, match="writer-id"):
            lifecycle.compare_and_swap(TABLE, row.metadata_location, _staged(table, rows))
        assert lifecycle.get_current(TABLE) == row
        stated = _staged(table, rows, **{"writer-id": "telemetry"})
        swapped = lifecycle.compare_and_swap(TABLE, row.metadata_location, stated)
        assert lifecycle.get_current(TABLE) == swapped != row
        catalog.close()
        assert [attempt.refused for attempt in lifecycle.gate_attempts(TABLE)] == [True]
        lifecycle.disable_gate()
