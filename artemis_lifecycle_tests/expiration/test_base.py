"""A table that drops its old metadata files drops the one that a plan was made of, too, while the plan waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import MissingFile, StalePlan
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import AT_ONCE

TABLE = "db.t"


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with open_lifecycle(make_config(defaults=AT_ONCE, tables={"db.*": {}}), spark=spark) as opened:
        live = opened.config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        core_tables.sql(
            spark,
            f"CREATE TABLE {live}.{TABLE} (id int) USING iceberg TBLPROPERTIES ("
            "'write.metadata.delete-after-commit.enabled' = 'true', 'write.metadata.previous-versions-max' = '1')",
        )
        _commit(opened, 3)
        yield opened


def _commit(lifecycle: Lifecycle, number: int) -> None:
    for _ in range(number):
        core_tables.sql(lifecycle.spark, f"INSERT INTO {lifecycle.config.catalogs.live.name}.{TABLE} VALUES (1)")


def test_a_plan_outlives_its_base(lifecycle: Lifecycle) -> None:
    plan = lifecycle.plan_expiration(TABLE)
    _commit(lifecycle, 3)
    with pytest.raises(MissingFile):
        lifecycle.live_stores.read(plan.base_metadata_location)
    kept = lifecycle.steps.table_state(TABLE).metadata.current_snapshot
    assert kept is not None
    assert not lifecycle.explain_in_plan(plan, kept.manifest_list).in_plan
    done = lifecycle.hand_off(plan.plan_id)
    assert set(done.archived) == set(plan.expired_snapshots) and done.lost == ()
    lifecycle.commit_expiration(plan)
    assert lifecycle.delete_files(plan).failed == 0
    assert sorted(lifecycle.read(TABLE, snapshot_id=each).count() for each in done.archived) == [1, 2]


def test_without_its_base_it_is_stale_and_the_next_plan_is_not(lifecycle: Lifecycle) -> None:
    plan = lifecycle.plan_expiration(TABLE)
    _commit(lifecycle, 3)
    lifecycle.live_stores.delete([f"{plan.files_location.removesuffix('/files')}/base.metadata.json"])
    with pytest.raises(StalePlan, match=r"artemis plan db\.t"):
        lifecycle.hand_off(plan)
    assert lifecycle.hand_off(lifecycle.plan_expiration(TABLE)).archived
