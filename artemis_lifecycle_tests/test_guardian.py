"""The guardian catches each way in which a step can destroy what is read, and is silent on an ordinary walk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.guardian import GUARDIAN, LossError, on_disk
from artemis_lifecycle_tests.integration.crash_world import Disk, Saved
from artemis_lifecycle_tests.policies import AND_ARCHIVED


@pytest.fixture(scope="module")
def written(
    module_configs: MakeConfig, spark: SparkSession, postgres_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LifecycleConfig, Disk, Saved]:
    """Two tables, which are put back for each test."""
    config = module_configs(defaults=AND_ARCHIVED, tables={"db.*": {}})
    live = config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    for version in (2, 3):
        table = f"{live}.db.v{version}"
        core_tables.sql(
            spark,
            f"CREATE TABLE {table} (id int, part string) USING iceberg PARTITIONED BY (part) "
            f"TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read')",
        )
        spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, 'p ' || id % 2 FROM range(0, 8)")
        spark.sql(f"DELETE FROM {table} WHERE id IN (3, 4)")
        spark.sql(f"INSERT INTO {table} VALUES (20, 'p 0'), (21, 'p 1')")
        spark.sql(f"CALL {live}.system.compute_table_stats(table => 'db.v{version}')")
    disk = Disk(config.home, postgres_uri.replace("+psycopg2", "", 1), tmp_path_factory.mktemp("saved"))
    return config, disk, disk.save()


@pytest.fixture
def walking(written: tuple[LifecycleConfig, Disk, Saved], spark: SparkSession) -> Iterator[Lifecycle]:
    config, disk, saved = written
    disk.put_back(saved)
    with open_lifecycle(config, spark=spark) as lifecycle:
        yield lifecycle


def _place(lifecycle: Lifecycle, name: str) -> Path:
    return on_disk(str(lifecycle.config.catalogs.live.warehouse)) / "db" / name


def _files(lifecycle: Lifecycle, kind: str) -> list[str]:
    """Paths of a kind that the tables read, as Spark names them."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    if kind in ("statistics", "metadata log"):
        key, path = {
            "statistics": ("statistics", "statistics-path"),
            "metadata log": ("metadata-log", "metadata-file"),
        }[kind]
        document = json.loads(on_disk(lifecycle.snapshot_history("db.v2").metadata_location).read_text())
        return [each[path] for each in document[key]]
    table, column, name = {
        "data": ("all_data_files", "file_path", "v2"),
        "position deletes": ("all_delete_files", "file_path", "v2"),
        "deletion vectors": ("all_delete_files", "file_path", "v3"),
        "manifest": ("all_manifests", "path", "v2"),
        "manifest list": ("snapshots", "manifest_list", "v2"),
    }[kind]
    return [row[0] for row in spark.table(f"{live}.db.{name}.{table}").select(column).collect()]


@pytest.mark.parametrize(
    "kind",
    [
        "data",
        "position deletes",
        "deletion vectors",
        "manifest",
        "manifest list",
        "statistics",
        "metadata log",
    ],
)
def test_a_file_that_a_step_took_is_missed(walking: Lifecycle, kind: str) -> None:
    path = _files(walking, kind)[0]
    with GUARDIAN.step("a step that takes too much"):
        on_disk(path).unlink()
    with pytest.raises(LossError, match="is gone") as caught:
        GUARDIAN.require_no_loss()
    assert path in str(caught.value)
    # It was gone before the next step, which took nothing.
    with GUARDIAN.step("the next"):
        pass
    GUARDIAN.require_no_loss()


def test_a_manifest_that_became_unreadable_is_seen(walking: Lifecycle) -> None:
    path = _files(walking, "manifest")[0]
    with GUARDIAN.step("a step that cuts a file short"):
        on_disk(path).write_bytes(on_disk(path).read_bytes()[:20])
    with pytest.raises(LossError, match="cannot be read any more"):
        GUARDIAN.require_no_loss()


def test_a_row_that_changed_is_seen(walking: Lifecycle) -> None:
    live = walking.config.catalogs.live.name
    newest = walking.spark.sql(f"SELECT file_path FROM {live}.db.v2.files WHERE content = 0 AND record_count = 1")
    place = on_disk(newest.first()[0])
    before = pq.read_table(place)
    with GUARDIAN.step("a step that writes where it must not"):
        rows = before.set_column(0, before.schema.field(0), pa.array([99], pa.int32()))
        pq.write_table(rows, place)
    with pytest.raises(LossError, match=r"1 rows|or others"):
        GUARDIAN.require_no_loss()


def test_an_archived_file_that_a_step_took_is_missed(walking: Lifecycle) -> None:
    walking.expire("db.v2")
    cold = on_disk(str(walking.config.catalogs.cold.warehouse))
    path = next(iter(sorted(cold.rglob("*.parquet"))))
    with GUARDIAN.step("a step that takes what cold has"):
        path.unlink()
    with pytest.raises(LossError, match="is gone"):
        GUARDIAN.require_no_loss()


def test_a_snapshot_that_a_step_publishes_is_whole(walking: Lifecycle) -> None:
    """A file that was lost before the step, in a table that comes into a catalog by the step."""
    live, cold = walking.config.catalogs.live.name, walking.config.catalogs.cold.name
    location = walking.snapshot_history("db.v2").metadata_location
    on_disk(_files(walking, "data")[0]).unlink()
    with GUARDIAN.step("a handoff that trusts what it remembers"):
        walking.spark.sql(f"CREATE NAMESPACE {cold}.db")
        walking.spark.sql(f"CALL {live}.system.register_table(table => 'db.again', metadata_file => '{location}')")
    with pytest.raises(LossError, match="is gone"):
        GUARDIAN.require_no_loss()


def test_rows_that_differ_in_cold_are_seen(walking: Lifecycle) -> None:
    """The copy of an archived file has other rows than the file had."""
    cold = on_disk(str(walking.config.catalogs.cold.warehouse))
    walking.spark.sql(f"INSERT OVERWRITE {walking.config.catalogs.live.name}.db.v2 VALUES (1, 'p 0')")
    plan = walking.plan_expiration("db.v2")
    with GUARDIAN.step("a handoff whose copies are of another file"):
        walking.hand_off(plan)
        walking.commit_expiration(plan)
        for path in [each for each in cold.rglob("*.parquet") if "id" in pq.read_schema(each).names]:
            rows = pq.read_table(path)
            others = pa.array([99] * len(rows), pa.int32())
            pq.write_table(rows.set_column(0, rows.schema.field(0), others), path)
    with pytest.raises(LossError, match=r"or others|cannot be read"):
        GUARDIAN.require_no_loss()


def test_the_last_copy_of_a_lost_file_is_missed(walking: Lifecycle) -> None:
    """Cold has lost its copy before the step; the step takes the live file, which no live snapshot reads any more."""
    live, cold = (on_disk(str(each.warehouse)) for each in (walking.config.catalogs.live, walking.config.catalogs.cold))
    walking.spark.sql(f"INSERT OVERWRITE {walking.config.catalogs.live.name}.db.v2 VALUES (1, 'p 0')")
    plan = walking.plan_expiration("db.v2")
    walking.hand_off(plan)
    walking.commit_expiration(plan)
    copy = next(iter(sorted(cold.rglob("*.parquet"))))
    copy.unlink()
    with GUARDIAN.step("a deletion that trusts what it remembers"):
        (live / copy.relative_to(cold)).unlink()
    with pytest.raises(LossError, match="its last copy"):
        GUARDIAN.require_no_loss()


def test_a_snapshot_that_is_left_to_a_table_that_cannot_read_it_is_seen(walking: Lifecycle) -> None:
    cold = on_disk(str(walking.config.catalogs.cold.warehouse))
    walking.spark.sql(f"INSERT OVERWRITE {walking.config.catalogs.live.name}.db.v2 VALUES (1, 'p 0')")
    plan = walking.plan_expiration("db.v2")
    walking.hand_off(plan)
    with GUARDIAN.step("a commit that trusts what it remembers"):
        walking.commit_expiration(plan)
        next(iter(sorted(cold.rglob("*.parquet")))).unlink()
    GUARDIAN.losses = [each for each in GUARDIAN.losses if "is gone" not in each]
    with pytest.raises(LossError, match="it is left to"):
        GUARDIAN.require_no_loss()


def test_a_file_that_was_written_over_is_seen_where_spark_cannot_read_it(walking: Lifecycle) -> None:
    """pyiceberg reads it still; the checksum beside it is of what stood there."""
    path = on_disk(_files(walking, "manifest")[0])
    with GUARDIAN.step("a step that writes over a file"):
        data = path.read_bytes()
        path.write_bytes(data.replace(b"schema-id", b"schema-iD"))
    with pytest.raises(LossError, match="Spark cannot read it any more"):
        GUARDIAN.require_no_loss()


def test_the_steps_of_a_lifecycle_are_judged_from_outside(walking: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test has to ask: whatever a public step does is held against what its tables read."""
    path = _files(walking, "data")[0]
    monkeypatch.setattr(walking.operations.clock, "now", lambda: on_disk(path).unlink() or datetime.now(UTC))
    with suppress(Exception):
        walking.plan_expiration("db.v2")
    with pytest.raises(LossError, match=r"plan_expiration.*is gone"):
        GUARDIAN.require_no_loss()


@pytest.mark.no_guardian(reason="it proves that this mark turns the guardian off")
def test_a_test_may_be_left_out_with_a_reason(walking: Lifecycle) -> None:
    with GUARDIAN.step("a step that takes too much"):
        on_disk(_files(walking, "data")[0]).unlink()
    GUARDIAN.require_no_loss()


def test_an_ordinary_walk_passes_and_agrees_with_icebergs_metadata_tables(
    walking: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GUARDIAN, "_cross_checked", 1.0)
    steps, compared, checked = GUARDIAN.steps, GUARDIAN.compared, GUARDIAN.checked
    live = walking.config.catalogs.live.name
    for name in ("v2", "v3"):
        walking.spark.sql(f"INSERT OVERWRITE {live}.db.{name} VALUES (1, 'p 0')")
        expired = walking.snapshot_history(f"db.{name}").snapshots[0].snapshot_id
        assert walking.expire(f"db.{name}").deleted > 0
        (_place(walking, name) / "data" / "lost.parquet").write_bytes(b"PAR1")
        assert walking.delete_orphans(walking.scan_orphans(f"db.{name}")).deleted == 1
        walking.restore(f"db.{name}", expired, "back", why="a test")
    walking.deep_archive("db.v2")
    GUARDIAN.require_no_loss()
    assert GUARDIAN.steps - steps >= 9
    assert GUARDIAN.compared > compared
    assert GUARDIAN.checked > checked


def test_damage_by_tests_between_steps_is_not_blamed_on_a_step(walking: Lifecycle) -> None:
    shutil.rmtree(_place(walking, "v2") / "data")
    with pytest.raises(LifecycleError):
        walking.hand_off(walking.plan_expiration("db.v2"))
    GUARDIAN.require_no_loss()
