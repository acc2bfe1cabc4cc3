"""A copy that cold has lost is never trusted: the store is asked before the last live copy may go, and a lost copy is
made again from live, or nothing is committed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import HandoffFailed
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.session.contexts import cold_copies
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.world import tree
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.past_the_guard import past_the_guard
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import files_below, make_history, rows, warehouse

KINDS = {"data", "position_deletes", "manifest", "manifest_list"}


@pytest.fixture
def walking(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with open_lifecycle(make_config(defaults=AT_ONCE), spark=spark) as opened:
        yield opened


def with_deletes(lifecycle: Lifecycle) -> list[int]:
    """Snapshots of db.t, of which the first three share files, one of them with position deletes."""
    live = lifecycle.config.catalogs.live.name
    core_tables.sql(lifecycle.spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.db")
    core_tables.sql(
        lifecycle.spark,
        f"CREATE TABLE {live}.db.t (id int, part int) USING iceberg TBLPROPERTIES ('format-version'='2', "
        "'write.delete.mode'='merge-on-read', 'write.delete.granularity'='partition')",
    )
    lifecycle.spark.sql(f"INSERT INTO {live}.db.t SELECT /*+ COALESCE(1) */ CAST(id AS int), 0 FROM range(6)")
    lifecycle.spark.sql(f"DELETE FROM {live}.db.t WHERE id = 3")
    core_tables.sql(lifecycle.spark, f"INSERT INTO {live}.db.t VALUES (7, 1)")
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {live}.db.t VALUES (8, 2)")
    return [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history("db.t").snapshots]


def shared_after_the_first_night(lifecycle: Lifecycle, ids: list[int]) -> ExpirationPlan:
    """The first snapshot is archived and gone; the plan of the second night is of all others but the last."""
    hold = lifecycle.hold("db.t", "ann", "still in use", ids[1:])
    lifecycle.expire("db.t")
    lifecycle.release(hold.hold_id)
    return lifecycle.plan_expiration("db.t")


def copies_of(lifecycle: Lifecycle, plan: ExpirationPlan) -> dict[Path, str]:
    """The cold copies of the plan's files, with their kinds."""
    copies = cold_copies(lifecycle.resources, plan.table, plan.table_uuid)
    assert copies is not None
    kinds = {row["path"]: row["kind"] for row in plan.files().collect()}
    return {
        Path(copy.destination.removeprefix("file://")): kinds[path]
        for path, (copy,) in copies.recorded(list(kinds)).items()
    }


def expect_all_read(lifecycle: Lifecycle, read: dict[int, list[tuple[int, int]]]) -> None:
    assert {each: rows(lifecycle, "db.t", each) for each in read} == read


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_the_night_that_expires_the_last_live_snapshot_does_not_trust_the_ledger(walking: Lifecycle) -> None:
    ids = make_history(walking)
    read = {each: rows(walking, "db.t", each) for each in ids}
    plan = shared_after_the_first_night(walking, ids)
    shared = [path for path, kind in copies_of(walking, plan).items() if path.exists() and kind == "data"]
    assert shared
    for path in shared:
        path.unlink()

    done = walking.hand_off(plan)

    assert done.repaired_files == len(shared)
    walking.commit_expiration(plan)
    walking.delete_files(plan)
    expect_all_read(walking, read)


@pytest.mark.parametrize("harm", [Path.unlink, cut])
def test_every_kind_of_copy_that_is_lost_after_the_handoff_is_made_again_before_the_commit(
    walking: Lifecycle, harm: Callable[[Path], object]
) -> None:
    ids = with_deletes(walking)
    read = {each: rows(walking, "db.t", each) for each in ids}
    plan = walking.plan_expiration("db.t")
    walking.hand_off(plan)
    before = tree(warehouse(walking, "cold"))
    copies = copies_of(walking, plan)
    assert set(copies.values()) == KINDS
    for path in copies:
        harm(path)

    assert walking.commit_expiration(plan, dry_run=True).absent_copies == len(copies)
    assert walking.commit_expiration(plan).absent_copies == len(copies)

    assert tree(warehouse(walking, "cold")) == before
    walking.delete_files(plan)
    expect_all_read(walking, read)


def test_nothing_is_committed_while_a_lost_copy_cannot_be_made_again(walking: Lifecycle) -> None:
    ids = make_history(walking)
    plan = walking.plan_expiration("db.t")
    walking.hand_off(plan)
    [lost, *_] = [path for path, kind in copies_of(walking, plan).items() if kind == "data"]
    lost.unlink()
    live = warehouse(walking, "live") / lost.relative_to(warehouse(walking, "cold"))
    kept = live.read_bytes()
    live.write_bytes(kept[:-1])
    before = files_below(warehouse(walking, "live"))

    with pytest.raises(HandoffFailed, match="cannot be made again"):
        walking.commit_expiration(plan)

    assert walking.plans("db.t")[0].status is PlanStatus.HANDED_OFF
    assert [each.snapshot_id for each in walking.snapshot_history("db.t").snapshots] == ids
    assert files_below(warehouse(walking, "live")) == before
    live.write_bytes(kept)
    assert walking.commit_expiration(plan).absent_copies == 1


def test_handing_off_again_repairs_until_the_files_are_deleted(walking: Lifecycle) -> None:
    ids = make_history(walking)
    read = {each: rows(walking, "db.t", each) for each in ids}
    plan = walking.plan_expiration("db.t")
    walking.hand_off(plan)
    copies = list(copies_of(walking, plan))
    for path in copies[:2]:
        path.unlink()
    assert walking.hand_off(plan).repaired_files == 2
    walking.commit_expiration(plan)
    for path in copies[1:4]:
        path.unlink()
    assert walking.hand_off(plan).repaired_files == 3
    assert walking.hand_off(plan).repaired_files == 0
    walking.delete_files(plan)
    expect_all_read(walking, read)


def test_without_the_ledger_the_cold_table_has_what_was_archived(walking: Lifecycle) -> None:
    ids = with_deletes(walking)
    read = {each: rows(walking, "db.t", each) for each in ids}
    plan = walking.plan_expiration("db.t")
    walking.hand_off(plan)
    copies = copies_of(walking, plan)
    shutil.rmtree(Path(walking.root.removeprefix("file://")) / "cold" / plan.table_uuid / "copies")
    assert copies_of(walking, plan) == copies
    before = tree(warehouse(walking, "cold"))
    for path in copies:
        path.unlink()

    walking.commit_expiration(plan)

    assert tree(warehouse(walking, "cold")) == before
    walking.delete_files(plan)
    expect_all_read(walking, read)


def test_a_cold_catalog_that_lost_its_row_stops_the_commit(walking: Lifecycle) -> None:
    make_history(walking)
    plan = walking.plan_expiration("db.t")
    walking.hand_off(plan)
    from sqlalchemy import text

    with walking.operations.engine.begin() as connection, past_the_guard(connection.exec_driver_sql):
        connection.execute(
            text("DELETE FROM iceberg_tables WHERE catalog_name = :name"),
            {"name": walking.config.catalogs.cold.name},
        )
    with pytest.raises(HandoffFailed, match="no longer have all its snapshots"):
        walking.commit_expiration(plan)
    walking.hand_off(plan)
    assert walking.commit_expiration(plan).attempts == 1


def test_a_copy_that_is_only_another_name_of_the_live_file_is_absent(walking: Lifecycle) -> None:
    make_history(walking)
    plan = walking.plan_expiration("db.t")
    walking.hand_off(plan)
    [path, *_] = [path for path, kind in copies_of(walking, plan).items() if kind == "data"]
    path.unlink()
    path.symlink_to(warehouse(walking, "live") / path.relative_to(warehouse(walking, "cold")))
    with pytest.raises(HandoffFailed, match="the file itself"):
        walking.commit_expiration(plan)


def test_files_of_snapshots_that_are_not_archived_have_no_promised_copy(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    defaults = AT_ONCE | {"cold_tier": {"archive": "yearly"}}
    with open_lifecycle(make_config(defaults=defaults), spark=spark) as lifecycle:
        make_history(lifecycle)
        plan = lifecycle.plan_expiration("db.t")
        done = lifecycle.hand_off(plan)
        assert (len(done.archived), len(done.thinned)) == (0, 3)
        assert lifecycle.commit_expiration(plan).absent_copies == 0


def test_a_copy_that_is_lost_in_the_grace_keeps_its_live_file_until_it_is_made_again(walking: Lifecycle) -> None:
    ids = make_history(walking)
    plan = shared_after_the_first_night(walking, ids)
    walking.hand_off(plan)
    walking.commit_expiration(plan)
    copies = cold_copies(walking.resources, plan.table, plan.table_uuid)
    assert copies is not None
    paths = [row["path"] for row in plan.files().collect()]
    lost = copies.recorded(paths)[paths[0]][-1]
    Path(lost.destination.removeprefix("file://")).unlink()

    foreseen = walking.delete_files(plan, dry_run=True)
    report = walking.delete_files(plan)

    assert (foreseen.would_delete, foreseen.kept) == (len(paths) - 1, 1)
    assert (report.deleted, report.kept, report.pending) == (len(paths) - 1, 1, 1)
    assert "copy_missing" in (report.paused or "")
    assert Path(paths[0].removeprefix("file:").replace("///", "/")).exists()
    assert walking.plans("db.t")[0].status is PlanStatus.DELETING
    walking.hand_off(plan)
    assert walking.delete_files(plan).deleted == len(paths)
    assert walking.plans("db.t")[0].status is PlanStatus.DONE


def test_what_a_closed_plan_left_is_not_an_orphan_while_its_archived_copy_is_lost(walking: Lifecycle) -> None:
    ids = make_history(walking)
    plan = shared_after_the_first_night(walking, ids)
    walking.hand_off(plan)
    walking.commit_expiration(plan)
    walking.close_plan(plan, who="ann", why="it was interrupted for good")
    copies = cold_copies(walking.resources, plan.table, plan.table_uuid)
    assert copies is not None
    paths = [row["path"] for row in plan.files().collect()]
    lost = copies.recorded(paths)[paths[0]][-1]
    Path(lost.destination.removeprefix("file://")).unlink()
    for path in warehouse(walking, "live").rglob("*"):
        os.utime(path, (1, 1))
    scan = walking.scan_orphans("db.t")
    assert scan.summary.orphan_files >= len(paths)

    foreseen = walking.delete_orphans(scan, dry_run=True)
    report = walking.delete_orphans(scan)

    kept = {row["path"]: row["reason"] for row in report.files().collect() if row["outcome"] == "kept"}
    assert set(kept.values()) == {"copy_missing"} and len(kept) == foreseen.kept == 1
    assert Path(paths[0].removeprefix("file:").replace("///", "/")).exists()
    assert report.deleted == foreseen.would_delete >= len(paths) - 1
