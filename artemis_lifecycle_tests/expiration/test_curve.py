"""The retention curve counts what a plan under that window would leave, and what each ref alone keeps."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.expiration.curve import axis_of_time, new_figure
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.reachability.index import ManifestIndex
from artemis_lifecycle.reachability.index.files import deletable, reachable
from artemis_lifecycle.reachability.index.refresh import refresh
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle

DAY = 86_400_000
ROUND_MS = (0, 60_000, 300_000, 900_000, 3_600_000, 3 * 3_600_000)
START = 1_700_000_000_000


def history(days: int) -> bytes:
    """A metadata file with one commit a day; it names lists that nobody has to read."""
    snapshots = [
        {
            "snapshot-id": day + 1,
            "parent-snapshot-id": day or None,
            "sequence-number": day + 1,
            "timestamp-ms": START + day * DAY,
            "manifest-list": f"s3://b/t/metadata/snap-{day + 1}.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
        for day in range(days)
    ]
    return json.dumps(
        {
            "format-version": 2,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "s3://b/t",
            "last-sequence-number": days,
            "last-updated-ms": START + days * DAY,
            "last-column-id": 1,
            "current-schema-id": 0,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": days,
            "refs": {"main": {"snapshot-id": days, "type": "branch"}},
            "snapshots": snapshots,
            "snapshot-log": [{"snapshot-id": day + 1, "timestamp-ms": START + day * DAY} for day in range(days)],
            "metadata-log": [],
        }
    ).encode()


def test_each_point_is_what_that_window_would_leave(make_config: MakeConfig, spark: SparkSession) -> None:
    config: LifecycleConfig = make_config(tables={"db.curve": {"retention": {"window": "0s"}}})
    name = f"{config.catalogs.live.name}.db.curve"
    core_tables.sql(spark, f"CREATE NAMESPACE {config.catalogs.live.name}.db")
    core_tables.sql(spark, f"CREATE TABLE {name} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    for number in range(3):
        core_tables.sql(spark, f"INSERT INTO {name} VALUES ({number})")
    spark.sql(f"ALTER TABLE {name} CREATE TAG first AS OF VERSION {_ids(spark, name)[0]}")
    core_tables.sql(spark, f"INSERT OVERWRITE {name} VALUES (9)")
    core_tables.sql(spark, f"INSERT OVERWRITE {name} VALUES (10)")
    with open_lifecycle(config, spark=spark) as lifecycle:
        curve = lifecycle.retention_curve("db.curve", windows=[timedelta(days=1)])
        shortest, longest = curve.points
        assert (shortest.window_ms, shortest.is_policy, longest.window_ms) == (0, True, DAY)
        metadata = read_table_metadata(lifecycle.live_stores, curve.metadata_location)
        index = ManifestIndex.open(
            lifecycle.live_stores, f"{lifecycle.root}/again", metadata.table_uuid, lifecycle.rules("db.curve")
        )
        view = refresh(index, metadata)
        ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
        assert (longest.snapshots, shortest.snapshots) == (5, 2)
        for point, kept in ((longest, ids), (shortest, [ids[0], ids[-1]])):
            reached = reachable(view, kept)
            assert point.files == reached.num_rows
            assert point.size_in_bytes == pc.sum(reached.column("size_in_bytes")).as_py()
        (cost,) = curve.refs
        freed = deletable(view, ids[:-1]).num_rows - deletable(view, ids[1:-1]).num_rows
        assert (cost.ref, cost.type, cost.snapshot_id, cost.snapshots, cost.files) == ("first", "tag", ids[0], 1, freed)
        assert freed > 0
        round_ones = lifecycle.retention_curve("db.curve").points
        assert [each.window_ms for each in round_ones] == [*ROUND_MS[: len(round_ones)]]
        assert len(round_ones) > 1 and round_ones[-1].snapshots == 5
    assert list(curve.to_pandas()["files"]) == [shortest.files, longest.files]
    assert curve.plot().startswith(b"\x89PNG")
    assert b"<svg" in curve.plot("svg")


def _ids(spark: SparkSession, name: str) -> list[int]:
    return [row[0] for row in spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").collect()]


def test_an_axis_of_one_instant_is_a_day_and_not_four_years() -> None:
    panel, at = new_figure(4, 3).subplots(), datetime(2026, 1, 31, 12, tzinfo=UTC)
    panel.plot([at], [80])
    axis_of_time(panel, [at])
    assert panel.get_xlim()[1] - panel.get_xlim()[0] == 1
