"""When a schema was first used is known after the snapshots that used it have expired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from artemis_lifecycle.api import Lifecycle


def test_first_and_last_use_survive_expiry(lifecycle: Lifecycle) -> None:
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE {live}.db")
    spark.sql(f"CREATE TABLE {live}.db.t (id int) USING iceberg")
    spark.sql(f"INSERT INTO {live}.db.t VALUES (1)")
    spark.sql(f"INSERT INTO {live}.db.t VALUES (2)")
    spark.sql(f"ALTER TABLE {live}.db.t ADD COLUMN note string")
    spark.sql(f"INSERT INTO {live}.db.t VALUES (3, 'new')")
    before = lifecycle.schema_history("db.t")
    assert [version.snapshots for version in before.versions] == [2, 1]
    # Nobody recorded anything, and asking made no table.
    assert [name for name in lifecycle.resources.live_catalog.tables() if name.startswith("lifecycle.")] == []

    lifecycle.record_lineage("db.t")
    assert lifecycle.schema_history("db.t") == before
    later = datetime.now(UTC) + timedelta(days=60)
    plan = lifecycle.plan_expiration("db.t", now=later)
    assert len(plan.expired_snapshots) == 2
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    assert len(lifecycle.snapshot_history("db.t").snapshots) == 1
    assert lifecycle.schema_history("db.t").versions == before.versions

    # Another table's rows in the same ledger are not this one's.
    spark.sql(f"CREATE TABLE {live}.db.u (id int) USING iceberg")
    assert [version.snapshots for version in lifecycle.schema_history("db.u").versions] == [0]
