"""Finding 3: streaming checkpoints, other table formats and staging folders below a table's location were orphans.
Names that start with `_` or `.` stay, but for the table's own partition fields; `orphans.hidden: scan` collects them.
Logs of other table formats keep more than themselves (`test_readers.py`).
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import AT_ONCE, WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import ids, make_all_old, outcomes, place, sql, stray

HIDDEN = (
    "_checkpoints/q/offsets/0",
    "_checkpoints/q/.metadata.crc",
    "_other_log/00000000000000000000.json",
    ".other/other.properties",
    "_spark_metadata/0",
    "data/_temporary/0/task/part-0.parquet",
    ".staging/x.parquet",
    "data/day=1/.staging/job-1/part-0.parquet",
    "data/deep/er/_checkpoints/state/0/1/1.delta",
    "metadata/_other_log/0.json",
    "_SUCCESS",
    "data/_SUCCESS",
    "data/_committed_1",
    "data/.part-0.parquet.inprogress",
    "data/_started=1/x.parquet",
    "data/.hidden=1/x.parquet",
    "__",
    "data/_",
)
PLAIN = (
    "data/stray.parquet",
    "data/day=_1/stray.parquet",
    "data/x_y/stray.parquet",
    "data/x._y",
    "data/name.with.dots/s.parquet",
)


def left_in(folder: Path, names: tuple[str, ...] = (*HIDDEN, *PLAIN)) -> dict[str, Path]:
    return {name: stray(folder, name) for name in names}


def found_by(lifecycle: Lifecycle, table: str) -> set[Path]:
    return {local(row["path"]) for row in lifecycle.scan_orphans(table).files().collect()}


def test_no_hidden_name_is_an_orphan_and_its_count_is_reported(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    files = left_in(place(at_once, table))

    scan = at_once.scan_orphans(table)

    assert {local(row["path"]) for row in scan.files().collect()} == {files[name] for name in PLAIN}
    size = sum(files[name].stat().st_size for name in HIDDEN)
    assert (scan.summary.files_by_reason["hidden"], scan.summary.bytes_by_reason["hidden"]) == (len(HIDDEN), size)
    at_once.delete_orphans(scan)
    assert {name for name, path in files.items() if path.exists()} == set(HIDDEN)
    verdicts = {local(row["path"]): row["verdict"] for row in scan.unreferenced().collect()}
    assert {verdicts[files[name]] for name in HIDDEN} == {"hidden"}
    for name in HIDDEN:
        explained = at_once.explain(table, f"file://{files[name]}")
        assert (explained.verdict, explained.holders) == ("kept", ("hidden",)), name
    assert ids(at_once, table) == [0, 1]


def test_with_hidden_scan_they_are_collected(make_config: MakeConfig, spark: SparkSession) -> None:
    defaults = {**WITHOUT_COLD, "orphans": {**AT_ONCE["orphans"], "hidden": "scan", "max_share": 1}}
    with open_lifecycle(make_config(defaults=defaults), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        files = left_in(place(lifecycle, table))
        scan = lifecycle.scan_orphans(table)
        assert "hidden" not in scan.summary.files_by_reason
        assert {local(row["path"]) for row in scan.files().collect()} == set(files.values())
        foreseen, done = lifecycle.delete_orphans(scan, dry_run=True), lifecycle.delete_orphans(scan)
        assert foreseen.would_delete == done.deleted + done.already_absent == len(files)
        assert not any(path.exists() for path in files.values())
        assert ids(lifecycle, table) == [0, 1]


def test_a_scan_that_collected_them_keeps_them_once_the_policy_says_so(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    defaults = {**WITHOUT_COLD, "orphans": {**AT_ONCE["orphans"], "hidden": "scan", "max_share": 1}}
    config = make_config(defaults=defaults)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        path = stray(place(lifecycle, table), "_checkpoints/q/offsets/0")
        scan = lifecycle.scan_orphans(table)
        assert scan.summary.orphan_files == 1
    kept = config.defaults.model_copy(update={"orphans": config.defaults.orphans.model_copy(update={"hidden": "keep"})})
    with open_lifecycle(config.model_copy(update={"defaults": kept}), spark=spark) as lifecycle:
        for dry_run in (True, False):
            done = lifecycle.delete_orphans(scan.scan_id, dry_run=dry_run)
            assert outcomes(done)[str(path)] == ("kept", "hidden")
        assert path.exists()


def test_a_partition_folder_that_starts_with_an_underscore_or_a_dot_is_not_hidden(at_once: Lifecycle) -> None:
    sql(at_once, "CREATE NAMESPACE {live}.db")
    sql(
        at_once,
        "CREATE TABLE {live}.db.t (id int, `_day` int, `.hour` int) USING iceberg PARTITIONED BY (`_day`, `.hour`)",
    )
    sql(at_once, "INSERT INTO {live}.db.t VALUES (1, 1, 1), (2, 2, 2)")
    sql(at_once, "ALTER TABLE {live}.db.t ADD PARTITION FIELD bucket(4, id) AS `_bucket`")
    folder = place(at_once, "db.t")
    collected = left_in(
        folder,
        (
            "data/_day=1/.hour=1/stray.parquet",
            "data/_day=9/stray.parquet",
            "data/_day=null/.hour=7/_bucket=3/stray.parquet",
        ),
    )
    kept = left_in(
        folder,
        (
            "data/_day=1/.staging/x.parquet",
            "data/_day/x.parquet",
            "data/_days=1/x.parquet",
            "data/_day=1/_SUCCESS",
            "data/_id=1/x.parquet",
            "_checkpoints/_day=1/x",
        ),
    )
    make_all_old(folder)

    assert found_by(at_once, "db.t") == set(collected.values())
    at_once.delete_orphans(at_once.scan_orphans("db.t"))
    assert all(path.exists() for path in kept.values())
    assert ids(at_once, "db.t") == [1, 2]


def test_a_tables_own_folder_may_start_with_an_underscore(at_once: Lifecycle) -> None:
    """Only what is below the location counts; also what the location's own name hides is the table's."""
    sql(at_once, "CREATE NAMESPACE {live}.db")
    home = local(str(at_once.config.catalogs.live.warehouse)) / "_landing" / ".t"
    sql(at_once, f"CREATE TABLE {{live}}.db.t (id int) USING iceberg LOCATION 'file://{home}'")
    sql(at_once, "INSERT INTO {live}.db.t VALUES (1)")
    lost, kept = stray(home), stray(home, "_checkpoints/0")
    assert found_by(at_once, "db.t") == {lost}
    assert kept.exists()


def test_hidden_folders_that_the_table_itself_reaches_are_the_tables(at_once: Lifecycle) -> None:
    """`write.data.path` names a hidden folder below the location: what is below that is not a hidden name."""
    sql(at_once, "CREATE NAMESPACE {live}.db")
    sql(at_once, "CREATE TABLE {live}.db.t (id int) USING iceberg")
    folder = place(at_once, "db.t")
    sql(at_once, f"ALTER TABLE {{live}}.db.t SET TBLPROPERTIES ('write.data.path'='file://{folder}/_data')")
    sql(at_once, "INSERT INTO {live}.db.t VALUES (1)")
    sql(at_once, "INSERT OVERWRITE {live}.db.t VALUES (2)")
    [gone, alive] = sorted((folder / "_data").rglob("*.parquet"), key=lambda path: path.stat().st_mtime)

    done = at_once.expire("db.t")

    # An expiration deletes what the table's own metadata named, whatever the name.
    assert outcomes(done)[str(gone)][0] == "deleted" and alive.exists()
    make_all_old(folder)
    at_once.delete_orphans(at_once.scan_orphans("db.t"))
    assert ids(at_once, "db.t") == [2]


def test_a_dropped_table_keeps_them_too(make_config: MakeConfig, spark: SparkSession) -> None:
    defaults = {**WITHOUT_COLD, "dropped": {"keep": "0s", "approval": "guards"}}
    with open_lifecycle(make_config(defaults=defaults, tables={"db.*": {}}), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        folder = place(lifecycle, table)
        files = left_in(folder)
        lifecycle.observe_catalog()
        make_all_old(folder)
        sql(lifecycle, f"DROP TABLE {{live}}.{table}")
        lifecycle.observe_catalog()
        scan = lifecycle.scan_dropped(table)
        assert scan.summary.files_by_reason["hidden"] == len(HIDDEN)
        lifecycle.delete_dropped(scan)
        assert {name for name, path in files.items() if path.exists()} == set(HIDDEN)
