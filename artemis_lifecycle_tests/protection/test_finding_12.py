"""Finding 12: two catalogs in one `iceberg_tables` with the same warehouse. The tables of every catalog in the database
are neighbors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.siblings import CatalogsOfDatabase
from artemis_lifecycle.errors import LocationConflict, NoSuchTable, StalePlan, UnreadableMetadata
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import AND_ARCHIVED
from artemis_lifecycle_tests.simulated_time import set_modified

OLD = timedelta(days=30)
NOW = {**AND_ARCHIVED, "lineage": {"mode": "report"}, "dropped": {"keep": "0s", "approval": "guards"}}


@pytest.fixture
def pair(make_config: MakeConfig, spark: SparkSession) -> Iterator[tuple[Lifecycle, Lifecycle]]:
    """`live` and `dev`: two catalogs in one database, with one warehouse."""
    live = make_config(defaults=NOW, tables={"*": {}})
    dev = make_config(defaults=NOW, catalogs={"live": {"warehouse": live.catalogs.live.warehouse}})
    with ExitStack() as stack:
        yield (
            stack.enter_context(open_lifecycle(live, spark=spark)),
            stack.enter_context(open_lifecycle(dev, spark=spark)),
        )


def _age(lifecycle: Lifecycle) -> set[str]:
    """Make every file of the warehouse old; returns their paths."""
    warehouse = str(lifecycle.config.catalogs.live.warehouse)
    files = {file.path for file in lifecycle.live_stores.list(f"{warehouse}/")}
    for path in files:
        set_modified(path, lifecycle.operations.clock.now() - OLD)
    return files


def _rows(lifecycle: Lifecycle, table: str) -> int:
    return lifecycle.spark.table(f"{lifecycle.config.catalogs.live.name}.{table}").count()


def test_an_orphan_scan_takes_no_file_of_a_table_of_the_same_name_in_another_catalog(
    pair: tuple[Lifecycle, Lifecycle],
) -> None:
    live, dev = pair
    table = make_table(live, "t", 2)
    assert make_table(dev, "t", 3) == table
    before = _age(live)
    scan = live.scan_orphans(table)
    live.delete_orphans(scan)
    assert {file.path for file in live.live_stores.list(f"{live.config.catalogs.live.warehouse}/")} >= before
    assert (_rows(live, table), _rows(dev, table)) == (2, 3)


def test_an_expiration_takes_no_file_that_a_table_of_another_catalog_reads(pair: tuple[Lifecycle, Lifecycle]) -> None:
    live, dev = pair
    table = make_table(live, "t", 2)
    make_table(dev, "reader", 1)
    first = live.spark.sql(f"SELECT file_path FROM {live.config.catalogs.live.name}.db.t.files").first()
    assert first is not None
    jvm = live.spark._jvm
    assert jvm is not None
    utilities = jvm.org.apache.iceberg.spark.Spark3Util
    session = live.spark._jsparkSession
    tables = [
        utilities.loadIcebergTable(session, f"{each.config.catalogs.live.name}.db.{name}")
        for each, name in ((live, "t"), (dev, "reader"))
    ]
    file = tables[0].currentSnapshot().addedDataFiles(tables[0].io()).iterator().next()
    tables[1].newAppend().appendFile(file).commit()
    core_tables.sql(live.spark, f"INSERT OVERWRITE {live.config.catalogs.live.name}.db.t VALUES (9)")
    report = live.expire(table)
    assert report.kept >= 1
    assert live.live_stores.head(str(file.location())) is not None
    dev.spark.sql(f"REFRESH TABLE {dev.config.catalogs.live.name}.db.reader")
    assert _rows(dev, "db.reader") == 2


def test_a_table_dropped_and_registered_in_another_catalog_keeps_its_files(pair: tuple[Lifecycle, Lifecycle]) -> None:
    live, dev = pair
    table = make_table(live, "t", 2)
    pointer = live.snapshot_history(table).metadata_location
    make_table(dev, "other", 1)
    live.observe_catalog()
    dev.spark.sql(
        f"CALL {dev.config.catalogs.live.name}.system.register_table(table => 'db.moved', metadata_file => '{pointer}')"
    )
    live.spark.sql(f"DROP TABLE {live.config.catalogs.live.name}.db.t")
    _age(live)
    with pytest.raises(StalePlan, match=f"{dev.config.catalogs.live.name}:db.moved"):
        live.scan_dropped(table)
    assert [each.problem for each in live.clear_dropped() if each.dropped.table == table] != [None]
    assert _rows(dev, "db.moved") == 2


def test_a_table_of_another_catalog_that_cannot_be_read_stops_the_scan_beside_it(
    pair: tuple[Lifecycle, Lifecycle],
) -> None:
    live, dev = pair
    table = make_table(live, "t", 2)
    make_table(dev, "t", 1)
    Path(dev.snapshot_history(table).metadata_location.removeprefix("file:")).unlink()
    _age(live)
    with pytest.raises(UnreadableMetadata, match=f"{dev.config.catalogs.live.name}:db.t"):
        live.scan_orphans(table)


def test_the_cold_catalog_beside_the_live_one_is_not_a_neighbor(pair: tuple[Lifecycle, Lifecycle]) -> None:
    live, dev = pair
    make_table(live, "t", 2)
    make_table(dev, "t", 1)
    live.expire("db.t")
    cold = live.config.catalogs.cold.name
    assert live.resources.cold_catalog.tables()
    assert not [name for name in live.resources.readers_of("db.t").tables() if name.startswith(f"{cold}:")]
    assert [name for name in dev.resources.readers_of("db.t").tables() if name.startswith(f"{cold}:")], (
        "another deployment's cold tier is"
    )


def test_names_with_separators_in_them_are_found_by_what_the_row_says(pair: tuple[Lifecycle, Lifecycle]) -> None:
    live, dev = pair
    make_table(dev, "t", 1)
    name = dev.config.catalogs.live.name
    location = dev.snapshot_history("db.t").metadata_location
    with live.operations.engine.begin() as connection:
        for namespace, table in (("a:b", "c.d"), ("e", "f:g"), ("views", "v")):
            connection.execute(
                text("INSERT INTO iceberg_tables VALUES (:catalog, :namespace, :table, :location, NULL, :type)"),
                {
                    "catalog": name,
                    "namespace": namespace,
                    "table": table,
                    "location": location,
                    "type": "VIEW" if table == "v" else "TABLE",
                },
            )
    around = CatalogsOfDatabase(live.resources.live_catalog, (live.config.catalogs.cold.name,))
    expected = {f"{name}:a:b.c.d", f"{name}:db.t", f"{name}:e.f:g"}
    assert {each for each in around.tables() if each.startswith(name)} >= expected
    assert f"{name}:views.v" not in around.tables()
    for each in expected:
        assert around.entry(each).metadata_location == location == around.pointers()[each].metadata_location
    with pytest.raises(NoSuchTable):
        around.entry(f"{name}:db.none")


def test_a_live_table_whose_name_is_that_of_another_catalogs_table_is_an_error_and_hides_none(
    pair: tuple[Lifecycle, Lifecycle],
) -> None:
    live, dev = pair
    make_table(dev, "t", 1)
    with live.operations.engine.begin() as connection:
        connection.execute(
            text("INSERT INTO iceberg_tables VALUES (:catalog, :namespace, 't', 'file:/x', NULL, 'TABLE')"),
            {"catalog": live.config.catalogs.live.name, "namespace": f"{dev.config.catalogs.live.name}:db"},
        )
    for ask in (live.resources.readers_of("db.t").tables, live.resources.readers_of("db.t").pointers):
        with pytest.raises(LocationConflict):
            ask()
