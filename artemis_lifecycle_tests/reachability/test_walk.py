"""The walk on real tables: exact, equal wherever it runs, and closed when any file of it cannot be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexSettings, IndexView
from artemis_lifecycle.reachability.index.files import deletable, reachable
from artemis_lifecycle.reachability.index.refresh import require_present
from artemis_lifecycle.reachability.walk import indexed, reachable_files
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, Starter
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.conftest import on_executors, open_lifecycle

RULES = LocationRules()


@pytest.fixture(scope="module")
def metadata(module_config: LifecycleConfig, spark: SparkSession) -> TableMetadata:
    """Appends, merge-on-read deletes, a compaction, a branch, statistics: seven snapshots or more, of format 2."""
    name = f"{module_config.catalogs.live.name}.db.walk"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {module_config.catalogs.live.name}.db")
    spark.sql(
        f"CREATE TABLE {name} (id int, part string) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    for start in (0, 10, 20):
        spark.sql(f"INSERT INTO {name} SELECT id, 'p' || id % 2 FROM range({start}, {start + 10})")
    spark.sql(f"DELETE FROM {name} WHERE id IN (3, 14)")
    procedures = f"{module_config.catalogs.live.name}.system"
    spark.sql(f"CALL {procedures}.rewrite_data_files(table => 'db.walk', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL {procedures}.compute_table_stats(table => 'db.walk')")
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH side")
    spark.sql(f"INSERT INTO {name}.branch_side VALUES (99, 'p0')")
    with open_lifecycle(module_config, spark=spark) as lifecycle:
        return read_table_metadata(Stores(), lifecycle.snapshot_history("db.walk").metadata_location)


def _view(metadata: TableMetadata, folder: Path, spark: SparkSession | None = None) -> IndexView:
    """A fresh index; with a session, everything is read on executors."""
    with pytest.MonkeyPatch.context() as patch:
        if spark is not None:
            on_executors(patch)
        return indexed(spark, Stores(), metadata, RULES, f"file://{folder}", IndexSettings())


def _rows(rows: Rows) -> set[tuple[object, ...]]:
    return {tuple(row.values()) for row in rows.table().to_pylist()}


def _on_executors(spark: SparkSession, view: IndexView, ids: Sequence[int]) -> set[tuple[object, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        on_executors(patch)
        return _rows(reachable_files(Runner(spark), view, ids))


def _paths(table: pa.Table) -> set[str]:
    paths = table.column("path").to_pylist()
    assert len(paths) == len(set(paths))
    return set(paths)


def _files_by_spark(spark: SparkSession, table: str) -> set[str]:
    files = {row["file_path"] for row in spark.sql(f"SELECT file_path FROM {table}.all_files").collect()}
    manifests = {row["path"] for row in spark.sql(f"SELECT path FROM {table}.all_manifests").collect()}
    lists = {row["manifest_list"] for row in spark.sql(f"SELECT manifest_list FROM {table}.snapshots").collect()}
    return files | manifests | lists


def test_all_snapshots_reach_what_icebergs_own_metadata_tables_name(
    spark: SparkSession, module_config: LifecycleConfig, metadata: TableMetadata, tmp_path: Path
) -> None:
    everything = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    found = reachable(_view(metadata, tmp_path), everything)
    statistics = {file.path for file in metadata.statistics}
    assert statistics
    assert _paths(found) == _files_by_spark(spark, f"{module_config.catalogs.live.name}.db.walk") | statistics
    for row in found.to_pylist():
        assert row["size_in_bytes"] == Stores().head(row["path"]).size_in_bytes  # type: ignore[union-attr]


def test_executors_processes_beside_a_local_session_and_this_process_find_the_same(
    spark: SparkSession, metadata: TableMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    local_view, spark_view = _view(metadata, tmp_path / "here"), _view(metadata, tmp_path / "there", spark)
    monkeypatch.setattr("artemis_lifecycle.spark.runner.IN_PROCESS", Cost(1, 1, 1))
    unstarted = Starter("local[3]", lambda: pytest.fail("a local session is not started to read metadata"))
    beside_view = indexed(unstarted, Stores(), metadata, RULES, f"file://{tmp_path}/beside", IndexSettings())
    for view in (spark_view, beside_view):
        assert (view.lists_read, view.manifests_read) == (local_view.lists_read, local_view.manifests_read)
    assert spark_view.lists_read == len(ids)
    monkeypatch.undo()
    assert _rows(reachable_files(Runner(spark), local_view, ids)) == _on_executors(spark, spark_view, ids)
    for count in range(len(ids)):
        one, *others = (deletable(view, ids[:count]).sort_by("path") for view in (local_view, spark_view, beside_view))
        assert all(one.equals(other) for other in others)


def test_a_frame_of_a_damaged_index_is_read_from_the_metadata(
    spark: SparkSession, metadata: TableMetadata, tmp_path: Path
) -> None:
    ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    view = _view(metadata, tmp_path, spark)
    expected = _rows(reachable_files(Runner(spark), view, ids))
    for segment in (tmp_path / "index" / metadata.table_uuid).glob("segment-*"):
        segment.unlink()
    assert _on_executors(spark, view, ids) == expected


def test_deletable_is_what_expired_snapshots_reach_without_what_any_other_does(
    metadata: TableMetadata, tmp_path: Path
) -> None:
    ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    view = _view(metadata, tmp_path)
    for count in range(len(ids)):
        expected = _paths(reachable(view, ids[:count])) - _paths(reachable(view, ids[count:]))
        assert _paths(deletable(view, ids[:count])) == expected


@pytest.mark.parametrize("where", ["in_process", "executors"])
@pytest.mark.parametrize("victim", ["manifest_list", "manifest"])
@pytest.mark.parametrize("harm", ["missing", "cut", "emptied"])
def test_any_harm_to_a_file_of_the_walk_stops_it(
    spark: SparkSession, metadata: TableMetadata, where: str, victim: str, harm: str, tmp_path: Path
) -> None:
    session = spark if where == "executors" else None
    known = _view(metadata, tmp_path / "known", session)
    ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    (row, *_) = [row for row in reachable(known, ids[-1:]).to_pylist() if row["kind"] == victim]
    path = Path(row["path"].removeprefix("file:"))
    kept = path.read_bytes()
    try:
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes({"cut": kept[:-20], "emptied": b""}[harm])
        with pytest.raises(UnreadableMetadata) as caught:
            _view(metadata, tmp_path / "new", session)
        assert path.name in str(caught.value)
        # What the view itself opened is not looked up once more.
        require_present(known)
        # What the index knows is not opened again, and has to be there all the same before anything is deleted.
        with pytest.raises(UnreadableMetadata) as caught:
            require_present(_view(metadata, tmp_path / "known", session))
        assert path.name in str(caught.value)
    finally:
        path.write_bytes(kept)
    require_present(_view(metadata, tmp_path / "known", session))


def test_a_snapshot_that_the_metadata_does_not_have_is_an_error(metadata: TableMetadata, tmp_path: Path) -> None:
    with pytest.raises(UnreadableMetadata, match="no snapshot 42"):
        reachable(_view(metadata, tmp_path), [42])
