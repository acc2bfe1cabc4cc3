"""A quarantine whose disk is not mounted is not purged: an empty folder proves nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import overwrite, sql, take_up
from artemis_lifecycle_tests.protection.test_finding_10 import create


@pytest.mark.parametrize("away", [False, True], ids=["mounted", "not-mounted"])
def test_what_a_table_needs_from_quarantine_outlives_a_night_without_its_disk(
    make_config: MakeConfig, spark: SparkSession, away: bool
) -> None:
    config = make_config(
        defaults={**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}}, tables={"db.*": {}}
    )
    with open_lifecycle(config, spark=spark) as lifecycle:
        owner = create(lifecycle, "db.owner")
        create(lifecycle, "db.reader")
        [shared] = (owner / "data").glob("*.parquet")
        take_up(lifecycle, "db.reader", owner / "data")
        pointer = lifecycle.get_current("db.reader").metadata_location
        # Nobody has seen it yet: its file goes to quarantine. That is what a quarantine is for.
        sql(lifecycle, "DROP TABLE {live}.db.reader")
        overwrite(lifecycle, "db.owner", 9)
        plan_id = lifecycle.expire("db.owner").job_id
        assert not shared.exists()
        sql(lifecycle, f"CALL {{live}}.system.register_table('db.reader', '{pointer}')")
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(
                text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'")
            )
        disk = Path(str(lifecycle.config.quarantine.root).removeprefix("file://"))
        elsewhere = disk.with_name("elsewhere")
        if away:
            disk.rename(elsewhere)
            disk.mkdir()

        with suppress(LifecycleError):
            lifecycle.purge_quarantine("db.owner")

        if away:
            disk.rmdir()
            elsewhere.rename(disk)
        back = lifecycle.undelete(plan_id, who="ann", why="the reader needs it")
        assert back.restored > 0 and shared.exists()
