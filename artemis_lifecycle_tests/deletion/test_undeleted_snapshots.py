"""An undelete protects all that its snapshots need, also what its plan had left to later ones."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import append, overwrite
from artemis_lifecycle_tests.protection.test_finding_10 import create


@pytest.mark.parametrize("later", ["no-later-plan", "a-later-plan"])
def test_a_snapshot_that_was_brought_back_stays_readable_until_the_undelete_is_closed(
    make_config: MakeConfig, spark: SparkSession, later: str
) -> None:
    defaults = {**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}}
    with open_lifecycle(make_config(defaults=defaults, tables={"db.*": {}}), spark=spark) as lifecycle:
        folder = create(lifecycle, "db.t")
        [first] = [each.snapshot_id for each in lifecycle.snapshot_history("db.t").snapshots]
        [shared] = (folder / "data").glob("*.parquet")
        append(lifecycle, "db.t", 2)
        # The first night; what it deletes is the first snapshot alone.
        plan = lifecycle.plan_expiration("db.t")
        assert plan.expired_snapshots == (first,)
        lifecycle.commit_expiration(plan)
        assert lifecycle.delete_files(plan).failed == 0 and shared.exists()

        back = lifecycle.undelete(plan, who="ann", why="an auditor reads it")

        def rows() -> list[int]:
            found = spark.read.format("iceberg").option("versionAsOf", str(first)).load(back.metadata_location)
            return sorted(row["id"] for row in found.collect())

        assert rows() == [1] and shared.exists()
        if later == "a-later-plan":
            # The nights go on; nobody closes the undelete.
            overwrite(lifecycle, "db.t", 9)
            assert lifecycle.expire("db.t").failed == 0
            with lifecycle.operations.engine.begin() as connection:
                connection.execute(
                    text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'")
                )
            lifecycle.purge_quarantine("db.t")
        assert lifecycle.operations.quarantines.get(plan.plan_id).state == "undeleted"
        assert shared.exists()
        assert rows() == [1]


def test_what_a_later_plan_had_taken_before_waits_in_its_quarantine(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    defaults = {**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}}
    with open_lifecycle(make_config(defaults=defaults, tables={"db.*": {}}), spark=spark) as lifecycle:
        folder = create(lifecycle, "db.t")
        [shared] = (folder / "data").glob("*.parquet")
        append(lifecycle, "db.t", 2)
        first = lifecycle.plan_expiration("db.t")
        lifecycle.commit_expiration(first)
        lifecycle.delete_files(first)
        overwrite(lifecycle, "db.t", 9)
        later = lifecycle.expire("db.t").job_id
        assert not shared.exists()

        lifecycle.undelete(first, who="ann", why="an auditor reads it")

        with lifecycle.operations.engine.begin() as connection:
            connection.execute(
                text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'")
            )
        lifecycle.purge_quarantine("db.t")
        # Nothing else of the table waits for it.
        overwrite(lifecycle, "db.t", 10)
        assert lifecycle.expire("db.t").failed == 0
        assert lifecycle.undelete(later, who="ann", why="the rest of it").restored and shared.exists()
