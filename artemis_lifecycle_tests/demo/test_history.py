"""The history is a real one: Spark's commits, at their simulated times, with debris that no snapshot has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import Lineage
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.stores import Stores, StoreSettings
from artemis_lifecycle_tests.defs.conftest import no_checksum_files
from examples.mission import history as written
from examples.mission.history import TableHistory, commit_in_flight, write_histories
from examples.mission.proofs import fingerprint
from examples.mission.schedule import ARCHIVE, REGISTRY, TABLES, TELEMETRY, Action, Event, events

STORES = Stores(StoreSettings())
NOW = datetime.now(UTC)


def _few(table: str, now: datetime) -> tuple[Event, ...]:
    """Each kind of event once, and ingests before it to work on."""
    seen: Counter[Action] = Counter()
    kept = []
    for event in events(table, now):
        seen[event.action] += 1
        # Before the deletes and compactions are two ingests; without them there would be nothing to do.
        if seen[event.action] <= (3 if event.action is Action.APPEND else 1):
            kept.append(event)
    return tuple(kept)


@pytest.fixture(scope="module")
def histories(module_config: LifecycleConfig, spark: SparkSession) -> Iterator[dict[str, TableHistory]]:
    # Writing them turns the session's checksum files off.
    with pytest.MonkeyPatch.context() as patch, no_checksum_files(spark):
        patch.setattr(written, "events", _few)
        yield {history.table: history for history in write_histories(spark, module_config, NOW)}


def _metadata(config: LifecycleConfig, table: str) -> TableMetadata:
    reader = CatalogReader(config.catalogs.live)
    try:
        return read_table_metadata(STORES, reader.entry(table).metadata_location)
    finally:
        reader.close()


def test_commits_have_the_times_of_their_events(
    module_config: LifecycleConfig, histories: dict[str, TableHistory]
) -> None:
    for table in TABLES:
        metadata = _metadata(module_config, table)
        planned = [event.at.timestamp() * 1000 for event in _few(table, NOW)]
        times = [snapshot.timestamp_ms for snapshot in metadata.snapshots]
        assert len(times) == histories[table].commits > 3
        assert all(earlier < later for earlier, later in pairwise(times))
        for time in times:
            assert any(0 <= time - at < 60_000 for at in planned), table
        log = [entry.timestamp_ms for entry in metadata.snapshot_log]
        assert log == sorted(log)
        # A rollback has an entry of its own, and a branch's commits have none.
        assert len(set(log) & set(times)) > 3
        assert metadata.last_updated_ms < NOW.timestamp() * 1000
        assert [entry.timestamp_ms for entry in metadata.metadata_log] == sorted(
            entry.timestamp_ms for entry in metadata.metadata_log
        )


def test_files_are_as_old_as_the_commits_that_wrote_them(
    module_config: LifecycleConfig, histories: dict[str, TableHistory]
) -> None:
    for table in TABLES:
        metadata = _metadata(module_config, table)
        for snapshot in metadata.snapshots:
            assert snapshot.manifest_list is not None
            stored = STORES.head(snapshot.manifest_list)
            assert stored is not None
            assert stored.last_modified is not None
            assert abs(stored.last_modified.timestamp() * 1000 - snapshot.timestamp_ms) < 60_000
        for entry in metadata.metadata_log:
            stored = STORES.head(entry.metadata_file)
            assert stored is not None
            assert stored.last_modified is not None
            assert abs(stored.last_modified.timestamp() * 1000 - entry.timestamp_ms) < 2


def test_debris_is_old_and_in_no_snapshot(
    module_config: LifecycleConfig, spark: SparkSession, histories: dict[str, TableHistory]
) -> None:
    catalog = module_config.catalogs.live.name
    origins = {debris.origin: debris for history in histories.values() for debris in history.debris}
    assert set(origins) == {
        Action.CRASHED_WRITER,
        Action.LOST_COMMIT,
        Action.INTERRUPTED_COMPACTION,
        Action.YOUNG_FILE,
    }
    for origin, debris in origins.items():
        known = {row[0] for row in spark.table(f"{catalog}.{debris.table}.all_files").select("file_path").collect()}
        known |= {row[0] for row in spark.table(f"{catalog}.{debris.table}.all_manifests").select("path").collect()}
        assert debris.paths
        for path in debris.paths:
            stored = STORES.head(path)
            assert stored is not None
            assert stored.last_modified is not None
            assert (NOW - stored.last_modified > timedelta(days=7)) == (origin is not Action.YOUNG_FILE)
            assert path not in known
    # What the second attempt committed is not debris: the data of the first.
    assert not any(path.endswith(".parquet") for path in origins[Action.LOST_COMMIT].paths)
    assert any(path.endswith(".metadata.json") for path in origins[Action.LOST_COMMIT].paths)
    assert any(path.endswith(".parquet") for path in origins[Action.INTERRUPTED_COMPACTION].paths)
    assert any(path.endswith(".avro") for path in origins[Action.INTERRUPTED_COMPACTION].paths)


def test_every_commit_meets_the_lineage_requirements(
    module_config: LifecycleConfig, histories: dict[str, TableHistory]
) -> None:
    requirements = LineageRequirements.from_config(Lineage())
    for table in histories:
        for snapshot in _metadata(module_config, table).snapshots:
            summary = {**snapshot.summary.properties, "operation": snapshot.summary.operation or ""}
            assert lineage_problems(summary, requirements) == (), (table, snapshot)


def test_the_tables_have_what_the_walk_must_bear(
    module_config: LifecycleConfig, spark: SparkSession, histories: dict[str, TableHistory]
) -> None:
    registry, telemetry, archive = (_metadata(module_config, table) for table in (REGISTRY, TELEMETRY, ARCHIVE))
    assert (registry.format_version, telemetry.format_version, archive.format_version) == (2, 3, 2)
    assert len(registry.schemas) == 2
    assert "reprocessing" in registry.refs
    assert registry.refs["reprocessing"].is_branch
    assert registry.statistics
    catalog = module_config.catalogs.live.name
    formats = spark.table(f"{catalog}.{TELEMETRY}.all_delete_files").select("file_format").distinct().collect()
    assert [row[0] for row in formats] == ["PUFFIN"]
    assert spark.table(f"{catalog}.{REGISTRY}.all_delete_files").count() > 0
    operations = {snapshot.summary.operation for snapshot in archive.snapshots}
    assert {"append", "overwrite"} <= operations


def test_the_writer_in_flight_commits_later(
    module_config: LifecycleConfig, spark: SparkSession, histories: dict[str, TableHistory]
) -> None:
    writer = histories[TELEMETRY].in_flight
    assert writer is not None
    assert all(path.startswith(writer.prefix) for path in writer.paths)
    catalog = module_config.catalogs.live.name
    table = f"{catalog}.{TELEMETRY}"
    before = fingerprint(spark.table(table))
    expected = fingerprint(writer.expected)
    snapshot_id = commit_in_flight(spark, catalog, writer)
    metadata = _metadata(module_config, TELEMETRY)
    assert metadata.current_snapshot_id == snapshot_id
    after = fingerprint(spark.table(table))
    assert after.rows == before.rows + expected.rows
    assert expected.rows > 0
