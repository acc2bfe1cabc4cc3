"""A survey that found no other table is one, too: the first table that comes between it and the lock is a reader."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.protection.protection import Protection
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.databases import Databases, databases
from artemis_lifecycle_tests.protection.foreign import sql

__all__ = ["databases"]

LATER = datetime.now(UTC) + timedelta(days=60)


def take_up(lifecycle: Lifecycle, table: str, paths: list[str]) -> None:
    jvm: Any = lifecycle.spark._jvm
    loaded = core_tables.java_table(lifecycle.spark, f"{lifecycle.config.catalogs.live.name}.{table}")
    change = loaded.newAppend()
    for path in paths:
        size = Path(path.removeprefix("file:")).stat().st_size
        built = jvm.org.apache.iceberg.DataFiles.builder(loaded.spec()).withPath(path).withFileSizeInBytes(size)
        change = change.appendFile(built.withRecordCount(1).withFormat("parquet").build())
    change.commit()


@pytest.mark.parametrize("others", [True, False], ids=["another-table-is-there", "it-is-the-first"])
def test_a_table_that_comes_before_the_lock_is_a_reader(
    make_config: MakeConfig, spark: Any, databases: Databases, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    uri = databases.make()
    config = make_config(defaults=WITHOUT_COLD, catalogs={"live": {"uri": uri}, "cold": {"uri": uri}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        sql(lifecycle, "CREATE NAMESPACE {live}.db")
        sql(lifecycle, "CREATE TABLE {live}.db.t (id int) USING iceberg")
        if others:
            sql(lifecycle, "CREATE TABLE {live}.db.other (id int) USING iceberg")
        for number in range(3):
            sql(lifecycle, f"INSERT OVERWRITE {{live}}.db.t VALUES ({number})")
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        doomed = [row["path"] for row in plan.files().collect() if row["kind"] == "data"]
        lifecycle.commit_expiration(plan)
        calls, refresh = [0], Protection.refresh_neighbors

        def then_a_reader(self: Protection) -> None:
            refresh(self)
            calls[0] += 1
            if calls[0] == 2:  # Before the lock of the first batch, for which others may wait.
                sql(lifecycle, "CREATE TABLE {live}.db.reader (id int) USING iceberg")
                take_up(lifecycle, "db.reader", doomed)

        monkeypatch.setattr(Protection, "refresh_neighbors", then_a_reader)
        lifecycle.delete_files(plan)
        assert calls[0] >= 2
        lost = [path for path in doomed if not Path(path.removeprefix("file:")).exists()]
        assert not lost, "db.reader reads them"
