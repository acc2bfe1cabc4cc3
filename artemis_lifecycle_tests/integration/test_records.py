"""The retention of the journal: old records are deleted, what they did can still be explained, open work continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.errors import Paused
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import AT_ONCE

POLICY: dict[str, Any] = {**AT_ONCE, "cold_tier": {"enabled": False}, "deletion": {"grace": "0s"}}
QUARANTINED: dict[str, Any] = {"deletion": {"grace": "0s", "mode": "quarantine"}}
ENDS = {
    "jobs": ("started_at", "finished_at"),
    "steps": ("started_at", "finished_at"),
    "leases": ("acquired_at", "released_at", "expires_at"),
    "listings": ("started_at", "finished_at"),
    "batches": ("updated_at",),
}


def _age(lifecycle: Lifecycle, days: int) -> None:
    """Set every record back by so many days."""
    with lifecycle.operations.engine.begin() as connection:
        for table, columns in ENDS.items():
            values = ", ".join(f"{column} = {column} - make_interval(days => {days})" for column in columns)
            connection.execute(text(f"UPDATE lifecycle.{table} SET {values}"))


def _rows(lifecycle: Lifecycle, table: str) -> int:
    with lifecycle.operations.engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM lifecycle.{table}")).scalar_one())


def _files(lifecycle: Lifecycle, folder: str) -> set[Path]:
    return {path for path in local(f"{lifecycle.root}/{folder}").rglob("*") if path.is_file()}


def test_what_is_long_over_is_forgotten_and_still_known(make_config: MakeConfig, spark: SparkSession) -> None:
    with Lifecycle.open(make_config(defaults=POLICY, tables={"db.aside": QUARANTINED}), spark=spark) as lifecycle:
        table, aside = make_table(lifecycle, "old", 4), make_table(lifecycle, "aside", 3)
        plan = lifecycle.plan_expiration(table)
        lifecycle.commit_expiration(plan)
        report = lifecycle.delete_files(plan)
        gone = next(row["path"] for row in report.files().where("outcome = 'deleted'").collect())
        quarantined = lifecycle.expire(aside)
        lifecycle.list_objects(table)
        lifecycle.list_objects(table)
        explained = lifecycle.explain(table, gone)
        assert explained.verdict == "deleted"
        # A deletion that was begun, and not finished, is older than all of them.
        waiting = lifecycle.plan_expiration(make_table(lifecycle, "waiting", 3))
        lifecycle.commit_expiration(waiting)
        with pytest.raises(Killed), crash_points.installed(_at("journal.start_batch:after")):
            lifecycle.delete_files(waiting)

        young = lifecycle.forget_records()
        lifecycle.publish_results()
        assert set(young.counts.values()) == {0} and young.files == 0
        _age(lifecycle, 35)
        assert lifecycle.forget_records(dry_run=True).counts["listings"] == 1
        _age(lifecycle, 400)
        tokens = _newest_tokens(lifecycle)
        foreseen = lifecycle.forget_records(dry_run=True)
        assert (foreseen.counts["jobs"], foreseen.counts["listings"]) == (1, 1)
        assert foreseen.counts["steps"] > 0 and foreseen.counts["leases"] > 0 and foreseen.files > 3
        before = {name: _rows(lifecycle, name) for name in ENDS}
        lifecycle.pause(who="ada", why="not now")
        with pytest.raises(Paused):
            lifecycle.forget_records()
        lifecycle.resume(who="ada")
        assert {name: _rows(lifecycle, name) for name in ENDS} == before

        _killed_everywhere(lifecycle)
        done = lifecycle.forget_records()

        assert set(done.counts.values()) == {0}
        assert not _files(lifecycle, f"deletions/{plan.plan_id}")
        assert _files(lifecycle, f"deletions/{quarantined.job_id}") and _files(
            lifecycle, f"deletions/{waiting.plan_id}"
        )
        assert _rows(lifecycle, "listings") == 1 and _rows(lifecycle, "jobs") == before["jobs"]
        assert _newest_tokens(lifecycle) == tokens
        # What it did is still on record: in its row, its receipt, and the table for people.
        again = lifecycle.delete_files(plan.plan_id)
        for name in ("deleted", "already_absent", "kept", "failed", "bytes", "pending"):
            assert getattr(again, name) == getattr(report, name), name
        assert lifecycle.receipt(plan.plan_id).outcomes["deleted"]["files"] == report.deleted
        assert lifecycle.explain(table, gone) == explained
        # What was under way goes on, and what is in quarantine comes back.
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text("UPDATE lifecycle.leases SET expires_at = clock_timestamp() - interval '1 s'"))
        assert lifecycle.delete_files(waiting).failed == 0
        assert lifecycle.undelete(quarantined.job_id, who="bob", why="needed").restored == quarantined.deleted
        assert lifecycle.latest_listing(table) is not None


def _at(point: str) -> Any:
    def die(name: str) -> None:
        if name == point:
            raise Killed(name)

    return die


def _killed_everywhere(lifecycle: Lifecycle) -> None:
    died: set[str] = set()
    while True:
        before = len(died)

        def die(name: str) -> None:
            if name not in died:
                died.add(name)
                raise Killed(name)

        try:
            with crash_points.installed(die):
                lifecycle.forget_records()
        except Killed:
            pass
        if len(died) == before:
            break
    assert {"records.forget_job:before", "records.forget_listing:after", "records.forget:after"} <= died


def _newest_tokens(lifecycle: Lifecycle) -> dict[str, int]:
    with lifecycle.operations.engine.connect() as connection:
        rows = connection.execute(text("SELECT table_uuid, max(token) FROM lifecycle.leases GROUP BY table_uuid"))
        return {row[0]: row[1] for row in rows}
