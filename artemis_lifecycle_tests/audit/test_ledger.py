"""The ledger has one row for every snapshot that a table ever had, and keeps it when the snapshot expires."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.audit.ledger import advanced, ledger_batch, unrecorded
from artemis_lifecycle.audit.recording import Recording
from artemis_lifecycle.code_version import package_version
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import Lineage
from artemis_lifecycle.contracts import LineageRequirements
from artemis_lifecycle.metadata.types import Snapshot, SnapshotSummary, TableMetadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.lineage import LedgerProgress
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed, killed_at, lapse

KEYS = {
    "writer.id": "ingest-1",
    "writer.host": "here",
    "writer.commit_hash": "a1b2c3d4",
    "writer.invocation_id": "run-1",
    "input.row_count": "1",
    "input.bytes_compressed": "10",
    "input.snapshot_ids": '{"ns.source": [7], "other:ns.far": ["8"]}',
    "trigger.type": "manual",
    "trigger.operator": "j.smith",
}


@pytest.fixture
def config(make_config: MakeConfig) -> LifecycleConfig:
    return make_config(defaults={"cold_tier": {"enabled": False}})


@pytest.fixture
def live(lifecycle: Lifecycle, spark: SparkSession) -> str:
    name = lifecycle.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {name}.ns")
    for table in ("source", "t"):
        spark.sql(f"CREATE TABLE {name}.ns.{table} (a int) USING iceberg")
    writer = spark.createDataFrame([(1,)], "a int").writeTo(f"{name}.ns.t")
    for key, value in KEYS.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
    spark.sql(f"INSERT INTO {name}.ns.t VALUES (2)")
    lifecycle.observe_catalog()
    return name


def _ids(lifecycle: Lifecycle) -> Counter[int | None]:
    name = lifecycle.config.catalogs.live.name
    ledger = lifecycle.spark.table(f"{name}.lifecycle.lineage_ledger")
    return Counter(row[0] for row in ledger.select("snapshot_id").collect())


def test_each_snapshot_is_recorded_once_with_its_inputs_and_outlives_its_expiration(
    lifecycle: Lifecycle, spark: SparkSession, live: str
) -> None:
    first = lifecycle.record_lineage("ns.t")
    assert (first.snapshots, first.recorded, first.incomplete) == (2, 2, 1)
    again = lifecycle.record_lineage("ns.t")
    assert (again.snapshots, again.recorded, again.incomplete) == (0, 2, 1)

    spark.sql(f"INSERT INTO {live}.ns.t VALUES (3)")
    gone = [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history("ns.t").snapshots]
    spark.sql(f"INSERT INTO {live}.ns.t VALUES (4)")
    plan = lifecycle.plan_expiration("ns.t", older_than=datetime.now(UTC), retain_last=1)
    assert set(plan.expired_snapshots) == set(gone)
    # Nobody recorded the last two. The commit does, before the snapshots leave, from whatever program it is called.
    lifecycle.commit_expiration(plan)
    kept = lifecycle.snapshot_history("ns.t").snapshots[0].snapshot_id
    assert lifecycle.record_lineage("ns.t").snapshots == 0
    assert _ids(lifecycle) == Counter([*gone, kept, None])

    rows = {row["snapshot_id"]: row for row in spark.table(f"{live}.lifecycle.lineage_ledger").collect()}
    written, expiration = rows[gone[0]], rows[None]
    assert (written["writer_id"], written["trigger_operator"], written["input_row_count"]) == ("ingest-1", "j.smith", 1)
    assert written["problems"] is None and "writer.id" in rows[gone[1]]["problems"]
    assert (expiration["operation"], expiration["plan_id"]) == ("expiration", plan.plan_id)
    assert expiration["writer_id"] == "artemis-lifecycle/expiration"
    edges = spark.table(f"{live}.lifecycle.lineage_edges").orderBy("from_id").collect()
    source = lifecycle.steps.table_uuid("ns.source")
    assert [(e["from_catalog"], e["from_table"], e["from_uuid"], e["from_id"], e["to_id"]) for e in edges] == [
        (None, "ns.source", source, 7, gone[0]),
        ("other", "ns.far", None, 8, gone[0]),
    ]
    versions = lifecycle.schema_history("ns.t").versions
    assert [version.snapshots for version in versions] == [4]


def test_what_a_dagster_run_commits_leads_to_that_run(
    config: LifecycleConfig, lifecycle: Lifecycle, spark: SparkSession, live: str
) -> None:
    with Lifecycle.open(config, spark=spark, run_id="run-of-dagster") as run:
        run.commit_expiration(run.plan_expiration("ns.t", older_than=datetime.now(UTC), retain_last=1))
        run.publish_results()
    ledger = spark.table(f"{live}.lifecycle.lineage_ledger").where("operation = 'expiration'")
    (row,) = ledger.select("dagster_run_id", "code_version", "writer_invocation_id", "trigger_type").collect()
    assert tuple(row) == ("run-of-dagster", package_version(), "run-of-dagster", "schedule")


@pytest.mark.parametrize(
    "point",
    ["publications.lineage:before", "publications.lineage:after", "commit:swapped", "publications.published:before"],
)
def test_a_death_on_the_way_leaves_each_row_once(
    lifecycle: Lifecycle, spark: SparkSession, live: str, point: str
) -> None:
    plan = lifecycle.plan_expiration("ns.t", older_than=datetime.now(UTC), retain_last=1)
    all_ids = [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history("ns.t").snapshots]

    def work() -> None:
        lifecycle.commit_expiration(plan)
        lifecycle.publish_results()

    def die(reached: str) -> None:
        if reached == point:
            raise Killed(point)

    with crash_points.installed(die), pytest.raises(Killed):
        work()
    lapse(lifecycle, "leases")
    work()
    assert _ids(lifecycle) == Counter([*all_ids, None])


def test_an_expiration_whose_worker_died_is_recorded_by_the_planner(
    lifecycle: Lifecycle, spark: SparkSession, live: str
) -> None:
    plan = lifecycle.plan_expiration("ns.t", older_than=datetime.now(UTC), retain_last=1)

    with killed_at("commit:swapped"):
        lifecycle.commit_expiration(plan)
    lapse(lifecycle, "leases")
    swapped = lifecycle.snapshot_history("ns.t").metadata_location
    spark.sql(f"INSERT INTO {live}.ns.t VALUES (9)")
    # The planner sees it first; then the commit is repeated.
    for _ in range(2):
        lifecycle.plan_expiration("ns.t")
        lifecycle.commit_expiration(plan)
        lifecycle.publish_results()
    rows = spark.table(f"{live}.lifecycle.lineage_ledger").where("operation = 'expiration'")
    found = rows.select("plan_id", "metadata_location", "writer_id").collect()
    assert [tuple(row) for row in found] == [(plan.plan_id, swapped, "artemis-lifecycle/expiration")]


def test_a_table_whose_recording_begins_late_is_filled_from_cold_metadata(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lifecycle.open(make_config(), spark=spark) as lifecycle:
        name = lifecycle.config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {name}.ns")
        spark.sql(f"CREATE TABLE {name}.ns.t (a int) USING iceberg")
        for number in range(3):
            rows = spark.createDataFrame([(number,)], "a int").writeTo(f"{name}.ns.t")
            rows.option("snapshot-property.writer.id", f"w{number}").append()
        snapshots = lifecycle.snapshot_history("ns.t").snapshots
        plan = lifecycle.plan_expiration("ns.t", older_than=datetime.now(UTC), retain_last=1)
        lifecycle.hand_off(plan)
        # As a deployment that had the cold tier before the ledger.
        monkeypatch.setattr(Recording, "record", lambda *_, **__: None)
        lifecycle.commit_expiration(plan)
        monkeypatch.undo()
        recorded = lifecycle.record_lineage("ns.t")
        assert (recorded.snapshots, lifecycle.record_lineage("ns.t").snapshots) == (3, 0)
        lifecycle.publish_results()
        rows = {row["snapshot_id"]: row for row in spark.table(f"{name}.lifecycle.lineage_ledger").collect()}
        for number, snapshot in enumerate(snapshots):
            row = rows[snapshot.snapshot_id]
            assert (row["writer_id"], row["operation"]) == (f"w{number}", "append")
            assert ("/cold/" in row["metadata_location"]) is (snapshot.snapshot_id in plan.expired_snapshots)


_snapshot_lists = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12)


@given(_snapshot_lists, st.integers(0, 12), st.integers(0, 12), st.sampled_from([1, 2, 3]))
def test_whatever_expires_between_two_recordings_every_snapshot_is_recorded_once(
    shape: list[tuple[bool, bool]], recorded_after: int, seed: int, version: int
) -> None:
    """`shape`: whether each snapshot has a parent, and whether it expires before the second recording."""
    snapshots = [
        Snapshot(
            snapshot_id=(number * 7919 + seed) % 10_007 + 1,
            parent_snapshot_id=number if has_parent else None,
            sequence_number=0 if version == 1 else number + 1,
            timestamp_ms=number,
            manifest_list=None,
            summary=SnapshotSummary("append", {}),
        )
        for number, (has_parent, _) in enumerate(shape)
    ]
    metadata = _metadata(version)
    requirements = LineageRequirements.from_config(Lineage())
    ledger: list[int] = []
    progress: LedgerProgress | None = None
    for present in (
        snapshots[:recorded_after],
        [snapshot for snapshot, (_, expires) in zip(snapshots, shape, strict=True) if not expires],
        snapshots[:1],
        snapshots,
    ):
        now, known = replace(metadata, snapshots=tuple(present)), set(ledger)
        new = [(each, "m") for each in unrecorded(now, progress, lambda known=known: known)]
        batch = ledger_batch("ns.t", "uuid", new, requirements, {}.get)
        progress = advanced(progress or LedgerProgress("uuid", "m", None, 0, 0, 0, 0), now, batch)
        ledger += batch.rows["snapshot_id"].to_pylist()
    assert sorted(ledger) == sorted(each.snapshot_id for each in snapshots)
    assert progress is not None and progress.recorded == len(ledger)


def _metadata(version: int) -> TableMetadata:
    return TableMetadata(
        metadata_location="m", location="l", table_uuid="uuid", format_version=version, last_updated_ms=0,
        last_sequence_number=0, current_snapshot_id=None, snapshots=(), refs={}, snapshot_log=(), metadata_log=(),
        statistics=(), properties={}, current_schema_id=0, schemas={}, default_spec_id=0, partition_specs={},
    )  # fmt: skip


def test_numbers_and_times_that_no_column_holds_are_null() -> None:
    summary = SnapshotSummary("append", {"input.row_count": str(2**70), "input.snapshot_ids": "[1"})
    odd = Snapshot(1, None, 1, 2**60, None, summary=summary)
    batch = ledger_batch("ns.t", "uuid", [(odd, "m")], LineageRequirements.from_config(Lineage()), {}.get)
    (row,) = batch.rows.to_pylist()
    assert row["committed_at"] is None and row["input_row_count"] is None and row["problems"]
    assert batch.edges.num_rows == 0 and batch.incomplete == 1
