"""The retention of the journal: old records are deleted, what they did can still be explained, open work continues."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import NoSuchPlan, Paused, PlanStateError
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.scans import ScanState
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
    "check_results": ("evaluated_at",),
}


def _age(lifecycle: Lifecycle, days: int, ends: Mapping[str, tuple[str, ...]] = ENDS) -> None:
    """Set every record back by so many days."""
    with lifecycle.operations.engine.begin() as connection:
        for table, columns in ends.items():
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
        lifecycle.operations.check_results.note(table, "object_listing", "listing_is_fresh", "fresh", is_red=False)
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
        assert (
            foreseen.counts["check_results"] == 1
            and foreseen.counts["steps"] > 0
            and foreseen.counts["leases"] > 0
            and foreseen.files > 3
        )
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


LISTINGS_AND_JOBS = {"records.forget_job:before", "records.forget_listing:after", "records.forget:after"}


def _killed_everywhere(lifecycle: Lifecycle, expected: set[str] = LISTINGS_AND_JOBS) -> None:
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
    assert expected <= died


def _newest_tokens(lifecycle: Lifecycle) -> dict[str, int]:
    with lifecycle.operations.engine.connect() as connection:
        rows = connection.execute(text("SELECT table_uuid, max(token) FROM lifecycle.leases GROUP BY table_uuid"))
        return {row[0]: row[1] for row in rows}


FRAMES = {
    **ENDS,
    "plans": ("sealed_at", "done_at", "closed_at"),
    "scans": ("created_at",),
    "restores": ("started_at", "finished_at"),
}


def test_frames_leave_when_nothing_reads_them_and_what_was_done_is_still_known(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    policy = {**AT_ONCE, "deletion": {"grace": "0s"}}
    with Lifecycle.open(make_config(defaults=policy), spark=spark) as lifecycle:
        table, again = make_table(lifecycle, "framed", 4), make_table(lifecycle, "again", 4)
        superseded = lifecycle.plan_expiration(table, retain_last=3)
        plan = lifecycle.plan_expiration(table)
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        report = lifecycle.delete_files(plan)
        expired = plan.expired_snapshots[0]
        rows = lifecycle.read(table, snapshot_id=expired).collect()
        restored = lifecycle.restore(table, expired, "back", why="case 1")
        newest = lifecycle.plan_expiration(table)
        unapproved, approved, late, last = (lifecycle.scan_orphans(table) for _ in range(4))
        lifecycle.approve(approved.scan_id, who="ada", why="checked")
        # On another table, an old superseded plan becomes open again, and a handed-off one waits.
        reopened = lifecycle.plan_expiration(again, retain_last=3)
        lost = lifecycle.plan_expiration(again, retain_last=2)
        waiting = lifecycle.plan_expiration(again)
        lifecycle.hand_off(waiting)
        lifecycle.scan_cold(again)
        report_path = local(f"{lifecycle.root}/incidents/1-a.html")
        report_path.parent.mkdir()
        report_path.write_text("old")
        lifecycle.publish_results()

        before = {*_files(lifecycle, "plans"), *_files(lifecycle, "scans"), *_files(lifecycle, "handoffs")}
        lifecycle.forget_records()
        assert before == {*_files(lifecycle, "plans"), *_files(lifecycle, "scans"), *_files(lifecycle, "handoffs")}
        _age(lifecycle, 440, FRAMES)
        for path in (report_path, *_files(lifecycle, "cold-scans")):
            os.utime(path, (0, 0))
        young = report_path.with_name("2-b.html")
        young.write_text("young")
        foreseen = lifecycle.forget_records(dry_run=True).counts
        assert foreseen["scans"] >= 2 and foreseen["restores"] >= 1 and foreseen["incidents"] == 1
        _killed_everywhere(lifecycle, {"records.begin_forgetting:after", "records.forgotten:before"})

        def tree() -> set[str]:
            names = ("plans", "scans", "handoffs", "restores", "incidents", "cold-scans")
            return {str(path) for name in names for path in _files(lifecycle, name)}

        assert lifecycle.forget_records(dry_run=True).files == 0

        kept = {f"{local(each.files_location)}/_sealed.json" for each in (newest, waiting, approved, last)}
        assert kept <= tree()
        assert _names(lifecycle, plan) == {"plan.json"}
        assert {path.name for path in _files(lifecycle, f"handoffs/{plan.plan_id}")} == {"outcome.json"}
        assert _files(lifecycle, f"handoffs/{waiting.plan_id}") > set()
        assert _files(lifecycle, "incidents") == {young} and not _files(lifecycle, "cold-scans")
        for gone in (superseded, reopened, lost):
            assert not _names(lifecycle, gone)
            with pytest.raises(NoSuchPlan, match=r"records\.keep"):
                lifecycle.plan(gone.plan_id)
        for scan in (unapproved, late):
            assert not _files(lifecycle, f"scans/{scan.scan_id}")
            assert lifecycle.scan(scan.scan_id).summary == scan.summary
            with pytest.raises(PlanStateError, match=r"records\.keep"):
                lifecycle.approve(scan.scan_id, who="ada", why="late")
            with pytest.raises(PlanStateError, match=r"records\.keep"):
                lifecycle.delete_orphans(scan.scan_id)
        # What was done can still be asked, read and repeated.
        assert lifecycle.plan(plan.plan_id).expired_snapshots == plan.expired_snapshots
        assert lifecycle.delete_files(plan.plan_id).deleted == report.deleted
        assert lifecycle.receipt(plan.plan_id).outcomes["deleted"]["files"] == report.deleted
        assert lifecycle.hand_off(plan.plan_id).cold_metadata_location is not None
        assert lifecycle.read(table, snapshot_id=expired).collect() == rows
        assert lifecycle.restore(table, expired, "back", why="case 1").snapshot_id == restored.snapshot_id
        assert lifecycle.scan_cold(again).unknown_files == 0
        # The same content gets another id, and the waiting plan goes on.
        lifecycle.commit_expiration(waiting.plan_id)
        assert lifecycle.delete_files(waiting.plan_id).failed == 0
        assert lifecycle.delete_orphans(approved).failed == 0


def test_frames_stay_if_what_they_are_for_is_needed_again(make_config: MakeConfig, spark: SparkSession) -> None:
    """Each fact is changed after the listing, at the last moment before the first frame goes."""
    with Lifecycle.open(make_config(defaults=POLICY), spark=spark) as lifecycle:
        table = make_table(lifecycle, "again", 4)
        old, other = (lifecycle.plan_expiration(table, retain_last=kept) for kept in (3, 2))
        lifecycle.plan_expiration(table)
        approved, deleting, _ = (lifecycle.scan_orphans(table) for _ in range(3))
        lifecycle.publish_results()
        _age(lifecycle, 440, FRAMES)
        changed: list[str] = []

        def change(point: str) -> None:
            if point == "records.begin_forgetting:before" and not changed:
                changed.append(point)
                lifecycle.approve(approved.scan_id, who="ada", why="checked")
                assert lifecycle.plan_expiration(table, retain_last=3).plan_id == old.plan_id
                lifecycle.operations.scans.mark(deleting.scan_id, {ScanState.OPEN}, ScanState.DELETING)

        with crash_points.installed(change):
            lifecycle.forget_records()
        states = [lifecycle.operations.scans.get(each.scan_id) for each in (approved, deleting)]
        assert changed and [each.forgetting_at for each in states] == [None, None]
        assert not _names(lifecycle, other)
        assert lifecycle.plan(old.plan_id).files().count() == old.summary.files
        assert lifecycle.delete_orphans(approved).failed == lifecycle.delete_orphans(deleting).failed == 0
        # One that was forgotten is never open again: the same content has another id.
        assert lifecycle.plan_expiration(table, retain_last=2).plan_id == f"{other.plan_id}-1"


def _names(lifecycle: Lifecycle, plan: ExpirationPlan) -> set[str]:
    folder = local(plan.files_location.removesuffix("/files"))
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_what_processes_left_that_died_before_their_record_leaves_too(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lifecycle.open(make_config(defaults=POLICY), spark=spark) as lifecycle:
        table = make_table(lifecycle, "killed", 4)
        kept_plan, kept_scan = lifecycle.plan_expiration(table, retain_last=2), lifecycle.scan_orphans(table)
        named = _files(lifecycle, "plans") | _files(lifecycle, "scans") | _files(lifecycle, "listings")

        def killed(*arguments: Any, **named: Any) -> None:
            raise Killed("before the record")

        for records, method, step in (
            (lifecycle.operations.plans, "seal", lambda: lifecycle.plan_expiration(table)),
            (lifecycle.operations.scans, "store_listing", lambda: lifecycle.list_objects(table)),
            (lifecycle.operations.scans, "store", lambda: lifecycle.scan_orphans(table)),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(records, method, killed)
                with pytest.raises(Killed):
                    step()
        left = (_files(lifecycle, "plans") | _files(lifecycle, "scans") | _files(lifecycle, "listings")) - named
        recorded = {row["path"] for row in kept_plan.files().collect()}
        # The listing of the killed scan has its record.
        listing = lifecycle.latest_listing(table)
        assert listing is not None
        left -= _files(lifecycle, f"listings/{listing.listing_id}")
        assert {path.relative_to(local(lifecycle.root)).parts[0] for path in left} == {"plans", "scans", "listings"}
        lifecycle.forget_records()
        assert all(path.exists() for path in left), "they may be a process's that still works"

        for path in _files(lifecycle, "."):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 401 * 86_400))
        another = local(lifecycle.root) / "deployment" / "another.json"
        another.write_text('{"newest_lease": 1}')
        assert lifecycle.forget_records(dry_run=True).counts["unnamed"] == 0, "they may be the other deployment's"
        another.unlink()
        foreseen, done = lifecycle.forget_records(dry_run=True), lifecycle.forget_records()

        assert (foreseen.counts["unnamed"], foreseen.counts["indexes"]) == (3, 1)
        assert (done.counts["unnamed"], done.counts["indexes"]) == (3, 1)
        assert not any(path.exists() for path in left) and all(path.exists() for path in named)
        assert {row["path"] for row in lifecycle.plan(kept_plan.plan_id).files().collect()} == recorded
        assert lifecycle.scan(kept_scan.scan_id).summary == kept_scan.summary
        # The index is built again, and finds the same.
        again = lifecycle.plan_expiration(table, retain_last=2)
        assert {row["path"] for row in again.files().collect()} == recorded
