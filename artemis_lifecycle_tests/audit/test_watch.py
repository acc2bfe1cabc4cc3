"""The watch over lineage finds a commit whatever name and number it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import set_pointer


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    lineage = {"mode": "report", "required": ["writer.id"]}
    config = make_config(defaults={**WITHOUT_COLD, "lineage": lineage}, tables={"db.*": {}})
    with open_lifecycle(config, spark=spark) as opened:
        make_table(opened, "other", 0)
        opened.watch_lineage()
        yield opened


def _write(lifecycle: Lifecycle, table: str, **keys: str) -> None:
    live = lifecycle.config.catalogs.live.name
    writer = lifecycle.spark.sql("SELECT 1 AS id").coalesce(1).writeTo(f"{live}.{table}")
    for key, value in keys.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()


@pytest.mark.parametrize("case", ["second-name", "put-back"])
def test_a_commit_with_a_number_that_was_seen_is_found(lifecycle: Lifecycle, case: str) -> None:
    live, table = lifecycle.config.catalogs.live.name, make_table(lifecycle, "watched", 0)
    said = {"writer.id": "w"}
    _write(lifecycle, table, **said)
    early, bad = lifecycle.get_current(table).metadata_location, table
    if case == "second-name":
        bad = "db.second"
        lifecycle.spark.sql(f"CALL {live}.system.register_table(table => '{bad}', metadata_file => '{early}')")
    lifecycle.watch_lineage()
    for _ in range(4):
        _write(lifecycle, table, **said)
    assert lifecycle.watch_lineage().unmet == ()
    if case == "put-back":
        # Somebody writes to it before the next look.
        set_pointer(lifecycle, table, early)
        core_tables.sql(lifecycle.spark, f"REFRESH TABLE {live}.{table}")
    _write(lifecycle, bad)
    assert lifecycle.watch_lineage().unmet == (bad,)
    assert len(lifecycle.check_lineage(bad).unmet) == 1


def test_a_snapshot_from_before_the_watch_stays_unjudged_when_its_table_is_renamed(lifecycle: Lifecycle) -> None:
    live, table = lifecycle.config.catalogs.live.name, make_table(lifecycle, "watched", 0)
    lifecycle.watch_lineage()
    _write(lifecycle, table)
    assert lifecycle.watch_lineage().unmet == (table,)
    lifecycle.acknowledge_lineage(table, who="ada", why="known")
    lifecycle.spark.sql(f"ALTER TABLE {live}.{table} RENAME TO db.renamed")
    # Another one takes its name.
    make_table(lifecycle, "watched", 0)
    assert lifecycle.watch_lineage().unmet == ()
    _write(lifecycle, "db.renamed")
    found = lifecycle.watch_lineage()
    assert (found.unmet, list(found.open)) == (("db.renamed",), ["db.renamed"])
    assert len(lifecycle.check_lineage("db.renamed").unmet) == 1
