"""Restoring: an expired snapshot's rows come back on a branch, from cold storage alone, verified; nothing of it is
taken for an orphan or deleted with the old files; a killed restore goes on; what is damaged in cold is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cold_tier.restore import RESTORED_SNAPSHOT
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.errors import BadInput, NoSuchSnapshot, RestoreFailed
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.world import Print, fingerprint
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed, killed_at, lapse
from artemis_lifecycle_tests.policies import AT_ONCE


@dataclass
class Past:
    """A table whose older snapshots are expired, and what each snapshot read before."""

    lifecycle: Lifecycle
    prints: Mapping[int, Print]
    plan: ExpirationPlan

    @property
    def ids(self) -> tuple[int, ...]:
        return self.plan.expired_snapshots

    def now_reads(self, snapshot_id: int) -> Print:
        return _print(self.lifecycle, snapshot_id)

    def branch_reads(self, branch: str) -> Print:
        table = f"{self.lifecycle.config.catalogs.live.name}.db.t"
        return fingerprint(self.lifecycle.spark.sql(f"SELECT * FROM {table} VERSION AS OF '{branch}'"))

    def metadata_location(self) -> str:
        return self.lifecycle.snapshot_history("db.t").metadata_location

    def cold_file(self, snapshot_id: int) -> Path:
        """A data file of a cold snapshot."""
        cold = self.lifecycle.config.catalogs.cold.name
        rows = self.lifecycle.spark.sql(
            f"SELECT file_path FROM {cold}.db.t.files VERSION AS OF {snapshot_id}"
        ).collect()
        return Path(rows[0]["file_path"].removeprefix("file:"))


def _print(lifecycle: Lifecycle, snapshot_id: int) -> Print:
    table = f"{lifecycle.config.catalogs.live.name}.db.t"
    return fingerprint(lifecycle.spark.read.option("versionAsOf", snapshot_id).table(table))


@pytest.fixture(scope="module")
def past(module_configs: MakeConfig, spark: SparkSession) -> Past:
    """One for all tests of this module: each leaves branches of its own, and nothing that the next could trip over."""
    lifecycle = Lifecycle.open(module_configs(defaults=AT_ONCE, tables={"db.*": {}}), spark=spark)
    live = lifecycle.config.catalogs.live.name
    table = f"{live}.db.t"
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    core_tables.sql(
        spark,
        f"CREATE TABLE {table} (id int, part string) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')",
    )
    spark.sql(f"INSERT INTO {table} SELECT id, 'p' || id % 2 FROM range(0, 8)")
    spark.sql(f"DELETE FROM {table} WHERE id IN (3, 6)")
    spark.sql(f"INSERT INTO {table} SELECT id, 'p' || id % 2 FROM range(8, 12)")
    core_tables.sql(spark, f"INSERT OVERWRITE {table} VALUES (99, 'p0')")
    ids = [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history("db.t").snapshots]
    prints = {snapshot_id: _print(lifecycle, snapshot_id) for snapshot_id in ids}
    plan = lifecycle.plan_expiration("db.t")
    assert plan.expired_snapshots == tuple(ids[:-1])
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    return Past(lifecycle, prints, plan)


def test_a_restored_snapshot_outlives_the_deletion_of_its_old_files(past: Past) -> None:
    """Restored between the metadata commit and the deletion, when the journal names the files of old."""
    lifecycle, source = past.lifecycle, past.ids[2]
    done = lifecycle.restore("db.t", source, "incident", why="they asked", who="ann", ticket="INC-7")
    assert done.snapshot_id not in past.prints
    assert done.copied_files > 3
    assert done.rewritten_files > 0
    assert past.now_reads(done.snapshot_id) == past.branch_reads("incident") == past.prints[source]

    doomed = {row["path"] for row in past.plan.files().collect()}
    report = lifecycle.delete_files(past.plan)
    assert report.deleted == len(doomed) and report.kept == 0
    assert past.branch_reads("incident") == past.prints[source]
    assert lifecycle.scan_orphans("db.t").summary.orphan_files == 0
    assert lifecycle.plan_expiration("db.t").expired_snapshots == ()

    history = lifecycle.snapshot_history("db.t")
    new = next(snapshot for snapshot in history.snapshots if snapshot.snapshot_id == done.snapshot_id)
    assert new.parent_snapshot_id is None
    assert new.summary.get(RESTORED_SNAPSHOT) == str(source)
    required = LineageRequirements.from_config(lifecycle.config.policy("db.t").lineage)
    summary = {**new.summary.properties, "operation": "overwrite"}
    assert [problem for problem in lineage_problems(summary, required) if "commit_hash" not in problem] == []
    assert summary["trigger.ticket"] == "INC-7"
    record = lifecycle.restores("db.t")[0]
    assert (record.who, record.why, record.snapshot_id) == ("ann", "they asked", done.snapshot_id)
    assert record.finished_at is not None
    assert lifecycle.operations.heartbeats.live() == []
    # Nobody's business but the branch's: main, and what reads it, is as it was.
    current = history.current_snapshot_id
    assert current is not None
    assert past.now_reads(current) == past.prints[current]

    # Let go, its files are deleted like any others; the cold tier has them still.
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(f"ALTER TABLE {live}.db.t DROP BRANCH incident")
    report = lifecycle.expire("db.t")
    assert report.deleted >= done.copied_files
    assert fingerprint(lifecycle.read("db.t", snapshot_id=source)) == past.prints[source]


def test_killed_at_every_point_a_restore_goes_on_to_one_snapshot(past: Past) -> None:
    lifecycle, source = past.lifecycle, past.ids[1]
    before, known = past.metadata_location(), {s.snapshot_id for s in lifecycle.snapshot_history("db.t").snapshots}
    died: set[str] = set()
    seen: dict[str, int] = {}

    def die(name: str) -> None:
        # The batches of one restore reach the same points: each time counts.
        seen[name] = seen.get(name, 0) + 1
        point = f"{name} {seen[name]}"
        if point not in died:
            died.add(point)
            raise Killed(point)

    while True:
        seen.clear()
        try:
            with crash_points.installed(die):
                done = lifecycle.restore("db.t", source, "killed")
            break
        except Killed:
            committed = any(point.startswith("catalog.commit:after") for point in died)
        assert committed or past.metadata_location() == before
        lapse(lifecycle, "leases")
    assert {point.rpartition(" ")[0] for point in died} >= {
        "restores.begin:after",
        "heartbeats.enter:after",
        "handoff.seal:after",
        "handoff.batch:before",
        "handoff.batch:after",
        "catalog.commit:before",
        "catalog.commit:after",
        "restores.record:before",
    }
    history = lifecycle.snapshot_history("db.t")
    assert [s.snapshot_id for s in history.snapshots if s.snapshot_id not in known] == [done.snapshot_id]
    assert past.branch_reads("killed") == past.prints[source]
    mine = [record for record in lifecycle.restores("db.t") if record.branch == "killed"]
    assert len([record for record in mine if record.abandoned_at is None]) == 1
    assert lifecycle.scan_orphans("db.t").summary.orphan_files == 0


def _die_after_the_first_batch(past: Past, source: int, branch: str) -> list[str]:
    """The files that a restore copied before it was killed."""

    def die(name: str) -> None:
        if name == "handoff.batch:after":
            raise Killed(name)

    with crash_points.installed(die), pytest.raises(Killed):
        past.lifecycle.restore("db.t", source, branch)
    folder = Path(past.lifecycle.restores("db.t")[0].folder.removeprefix("file:"))
    copied = [str(path) for path in folder.rglob("*") if path.is_file()]
    assert copied
    return copied


def test_copies_of_a_killed_restore_are_not_orphans_while_it_may_resume(past: Past) -> None:
    copied = _die_after_the_first_batch(past, past.ids[2], "goes on")
    scan = past.lifecycle.scan_orphans("db.t")
    assert scan.skipped_in_flight == len(copied)
    past.lifecycle.delete_orphans(scan)
    assert all(Path(path).exists() for path in copied)
    done = past.lifecycle.restore("db.t", past.ids[2], "goes on")
    assert past.lifecycle.restores("db.t")[0].restore_id == done.restore_id
    assert past.branch_reads("goes on") == past.prints[past.ids[2]]


def test_a_restore_whose_copies_may_be_gone_begins_anew(past: Past) -> None:
    """Days after the kill its copies were nobody's, and the orphan job took them: the record of them counts no more."""
    lifecycle = past.lifecycle
    copied = _die_after_the_first_batch(past, past.ids[2], "anew")
    lapse(lifecycle, "heartbeats")
    lifecycle.delete_orphans(lifecycle.scan_orphans("db.t"))
    assert not any(Path(path).exists() for path in copied)
    done = lifecycle.restore("db.t", past.ids[2], "anew")
    newest, first = lifecycle.restores("db.t")[:2]
    assert newest.restore_id == done.restore_id
    assert first.abandoned_at is not None
    assert past.branch_reads("anew") == past.prints[past.ids[2]]


@pytest.mark.parametrize("damage", ["other bytes", "shorter", "gone"])
def test_damage_in_the_cold_tier_stops_a_restore(past: Past, damage: str) -> None:
    source = past.ids[1]
    path = past.cold_file(source)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:-1] + (b"" if damage == "shorter" else bytes([whole[-1] ^ 1])))
    before = past.metadata_location()
    with pytest.raises(RestoreFailed, match="gone from the cold tier, or damaged"):
        past.lifecycle.restore("db.t", source, damage)
    assert past.metadata_location() == before
    # It stops nobody's deletions.
    assert past.lifecycle.operations.heartbeats.live(None) == []
    path.write_bytes(whole)
    past.lifecycle.restore("db.t", source, damage)
    assert past.branch_reads(damage) == past.prints[source]


def test_what_cannot_be_restored_is_refused_before_anything_is_copied(past: Past) -> None:
    lifecycle = past.lifecycle
    live = lifecycle.config.catalogs.live.name
    current = lifecycle.snapshot_history("db.t").current_snapshot_id
    assert current is not None
    lifecycle.spark.sql(f"ALTER TABLE {live}.db.t CREATE BRANCH taken")
    lifecycle.tag("db.t", "a tag", current)
    before, restores = past.metadata_location(), lifecycle.restores("db.t")
    for branch in ("main", " ", "taken", "a tag"):
        with pytest.raises(BadInput):
            lifecycle.restore("db.t", past.ids[0], branch)
    with pytest.raises(NoSuchSnapshot):
        lifecycle.restore("db.t", 42, "back")
    assert lifecycle.restores("db.t") == restores
    assert past.metadata_location() == before

    # What the live table still has needs no copy.
    done = lifecycle.restore("db.t", current, "same")
    assert (done.snapshot_id, done.copied_files) == (current, 0)
    assert lifecycle.snapshot_history("db.t").refs["same"].snapshot_id == current
    assert lifecycle.restore("db.t", current, "same").metadata_location == done.metadata_location


def test_a_restore_that_is_done_is_reported_whatever_its_branch_and_its_record_are(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People work on the branch: a store that does not answer for a moment takes nothing from it."""
    lifecycle, source = past.lifecycle, past.ids[1]
    done = lifecycle.restore("db.t", source, "evidence", why="the court keeps it")

    def refused(*_: object) -> None:
        raise RestoreFailed("The restored branch cannot be read")

    monkeypatch.setattr("artemis_lifecycle.cold_tier.restore._read_back", refused)
    assert lifecycle.restore("db.t", source, "evidence").snapshot_id == done.snapshot_id
    # As an operations database from a backup.
    monkeypatch.setattr(lifecycle.operations.restores, "of_table", lambda table_uuid: [])
    assert lifecycle.restore("db.t", source, "evidence").snapshot_id == done.snapshot_id
    assert past.branch_reads("evidence") == past.prints[source]


def test_a_restore_that_died_before_its_check_read_takes_back_a_branch_that_cannot_be_read(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle, source = past.lifecycle, past.ids[1]
    with killed_at("catalog.commit:after"):
        lifecycle.restore("db.t", source, "unread")
    lapse(lifecycle, "leases")

    def refused(*_: object) -> None:
        raise RestoreFailed("The restored branch cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr("artemis_lifecycle.cold_tier.restore._read_back", refused)
        with pytest.raises(RestoreFailed, match="cannot be read"):
            lifecycle.restore("db.t", source, "unread")
    assert "unread" not in lifecycle.snapshot_history("db.t").refs
