"""Paimon's procedures on real tables: the same snapshots and files as Paimon's own leave on a copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import BadInput, GraceNotOver, Held, OtherDeployment, StalePlan, UnreadableMetadata
from artemis_lifecycle.expiration.plan import ExpirationPlan, Wanted
from artemis_lifecycle.formats.paimon.procedures import PaimonProcedures
from artemis_lifecycle.metadata.types import SnapshotHistory
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.paimon.bundle import Table, create, paimon
from artemis_lifecycle_tests.protection.databases import Databases

NAME = "lake:db.t"
RECEIPTS = "metadata/artemis-receipts/"


@pytest.fixture(scope="module")
def calls(spark: SparkSession) -> Any:
    return paimon(spark)


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession, tmp_path: Path) -> Iterator[Lifecycle]:
    config = make_config(
        catalogs={
            "others": {"lake": {"type": "paimon", "warehouse": str(tmp_path / "lake"), "expire": {"limit": "coded"}}}
        }
    )
    with Lifecycle.open(config, spark=spark) as lifecycle:
        yield lifecycle


@pytest.fixture
def procedures(opened: Lifecycle) -> PaimonProcedures:
    return opened.paimon(NAME)


def left(table: Table) -> list[str]:
    return [path for path in table.listing() if not path.startswith(RECEIPTS) and not path.endswith(".crc")]


def same(ours: Table, theirs: Table) -> None:
    assert ours.snapshots() == theirs.snapshots()
    assert ours.tags() == theirs.tags()
    assert left(ours) == left(theirs)


def lively(calls: Any, warehouse: Path, **kwargs: Any) -> Table:
    table = create(
        calls, warehouse, keyed=True, partitioned=True, options={"write-only": "true", "bucket": "1", **kwargs}
    )
    for number in range(6):
        table.write([(number, "a", "x"), (number + 1, "b", "y")], compact="fully" if number % 3 == 2 else "never")
    return table


def test_expires_what_paimon_expires(calls: Any, procedures: PaimonProcedures, tmp_path: Path) -> None:
    table = lively(calls, tmp_path / "lake")
    table.tag("kept", 2)
    theirs = table.copy(tmp_path / "copy")
    before = table.contents()
    done = procedures.expire_snapshots(NAME, retain_max=2, retain_min=1)
    assert done.deleted_snapshots_count == theirs.expire(retain_max=2, retain_min=1) > 0
    same(table, theirs)
    after = table.contents()
    assert after == {name: before[name] for name in after}


def plan_files(plan: ExpirationPlan) -> set[str]:
    return {row["path"] for row in plan.files().collect()}


def test_walks_as_every_table(calls: Any, opened: Lifecycle, tmp_path: Path) -> None:
    table = lively(calls, tmp_path / "lake", **{"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"})
    orphan = table.folder / "p=a" / "bucket-0" / "data-of-a-crashed-writer-0.parquet"
    orphan.write_bytes(b"half")
    long_ago = (datetime.now(UTC) - timedelta(days=30)).timestamp()
    os.utime(orphan, (long_ago, long_ago))
    assert opened.tables() == [NAME]
    history = opened.snapshot_history(NAME)
    assert [each.snapshot_id for each in history.snapshots] == table.snapshots()

    plan = opened.plan_expiration(NAME)
    doomed = sorted(plan_files(plan))
    assert doomed and list(plan.expired_snapshots) == table.snapshots()[:-2]
    kept = {row["path"] for row in opened.reachable_set(NAME).files().collect()}
    assert kept and not kept.intersection(doomed)
    assert opened.explain(NAME, doomed[0]).verdict == "planned"
    assert opened.explain(NAME, sorted(kept)[0]).verdict in ("kept", "planned")
    before = table.listing()
    assert opened.commit_expiration(plan, dry_run=True).snapshots_removed == len(plan.expired_snapshots)
    assert table.listing() == before

    opened.commit_expiration(plan)
    assert table.snapshots() == history_ids(history)[-2:]
    with pytest.raises(GraceNotOver):
        opened.delete_files(plan)
    assert all(Path(path).exists() for path in doomed)
    scan = opened.scan_orphans(NAME)
    assert [row["path"] for row in scan.files().collect()] == [str(orphan)]
    assert opened.delete_orphans(scan).deleted == 1
    assert not orphan.exists() and opened.explain(NAME, str(orphan)).verdict == "deleted"


def history_ids(history: SnapshotHistory) -> list[int]:
    return [each.snapshot_id for each in history.snapshots]


def test_a_tag_made_after_the_commit_keeps_its_files(
    calls: Any, opened: Lifecycle, procedures: PaimonProcedures, tmp_path: Path
) -> None:
    table = lively(calls, tmp_path / "lake")
    second = table.snapshot_file(2).read_bytes()
    rows = table.read(scan_snapshot_id=2)
    plan = procedures.tables.plan_expiration(NAME, Wanted(None, datetime.now(UTC), 1))
    procedures.tables.commit_expiration(plan, dry_run=False, grace=timedelta(0))
    assert table.snapshots() == [plan_last(table)]
    # A client that still had the snapshot in its cache makes the tag.
    (table.folder / "tag").mkdir(exist_ok=True)
    (table.folder / "tag" / "tag-late").write_bytes(second)
    report = opened.delete_files(plan)
    assert report.kept > 0 and report.deleted > 0
    assert table.read(scan_tag_name="late") == rows


def plan_last(table: Table) -> int:
    return table.snapshots()[-1]


def test_a_rollback_behind_the_plan_stops_the_commit(calls: Any, procedures: PaimonProcedures, tmp_path: Path) -> None:
    table = lively(calls, tmp_path / "lake")
    plan = procedures.tables.plan_expiration(NAME, Wanted(None, datetime.now(UTC), 2))
    table.rollback_to(2)
    before = table.contents()
    with pytest.raises(StalePlan):
        procedures.tables.commit_expiration(plan, dry_run=False)
    assert table.snapshots() == [1, 2] and table.contents() == before


def test_a_rollback_during_the_commit_gets_its_snapshot_back(
    calls: Any, procedures: PaimonProcedures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lively(calls, tmp_path / "lake")
    plan = procedures.tables.plan_expiration(NAME, Wanted(None, datetime.now(UTC), 2))
    before = table.read(scan_snapshot_id=1)
    delete = Stores.delete

    def roll_back_first(stores: Stores, paths: list[str], **kwargs: Any) -> Any:
        if any(path.endswith("/snapshot-1") for path in paths):
            # The last moment: after every check, before the removal.
            table.rollback_to(1)
        return delete(stores, paths, **kwargs)

    monkeypatch.setattr(Stores, "delete", roll_back_first)
    with pytest.raises(StalePlan):
        procedures.tables.commit_expiration(plan, dry_run=False)
    assert table.snapshots() == [1] and table.read() == before


def test_a_consumer_that_goes_back_stops_the_commit(calls: Any, procedures: PaimonProcedures, tmp_path: Path) -> None:
    table = lively(calls, tmp_path / "lake")
    plan = procedures.tables.plan_expiration(NAME, Wanted(None, datetime.now(UTC), 2))
    table.consume("reader", 2)
    with pytest.raises(StalePlan, match="reader"):
        procedures.tables.commit_expiration(plan, dry_run=False)
    assert table.snapshots()[0] == 1


@pytest.mark.parametrize("prefix", ["manifest-list-", "manifest-", "index-manifest-"])
@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_stops_if_a_file_of_the_table_is_not_whole(
    calls: Any, procedures: PaimonProcedures, tmp_path: Path, prefix: str, harm: str
) -> None:
    table = lively(calls, tmp_path / "lake", bucket="-1")
    names = sorted(path.name for path in (table.folder / "manifest").glob(f"{prefix}*"))
    victim = (
        table.folder
        / "manifest"
        / next(name for name in names if prefix != "manifest-" or not name.startswith("manifest-list-"))
    )
    if harm == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-7])
    before = table.listing()
    for call in (
        lambda: procedures.expire_snapshots(NAME, retain_max=1, retain_min=1),
        lambda: procedures.remove_orphan_files(NAME),
        lambda: procedures.expire_tags(NAME, older_than=datetime.now(UTC)),
    ):
        with pytest.raises(UnreadableMetadata):
            call()
    assert left(table) == [path for path in before if not path.startswith(RECEIPTS)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"retain_min": 0},
        {"retain_min": 3, "retain_max": 2},
        {"max_deletes": 0},
        {"options": "snapshot.time-retained=x"},
    ],
)
def test_refuses_options_before_it_touches_anything(
    calls: Any, procedures: PaimonProcedures, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    table = lively(calls, tmp_path / "lake")
    before = table.listing()
    with pytest.raises(BadInput):
        procedures.expire_snapshots(NAME, **arguments)
    assert table.listing() == before


def test_async_leaves_the_files_to_the_journal(
    calls: Any, opened: Lifecycle, procedures: PaimonProcedures, tmp_path: Path
) -> None:
    table = lively(calls, tmp_path / "lake")
    done = procedures.expire_snapshots(NAME, retain_max=1, retain_min=1, options="snapshot.expire.execution-mode=async")
    assert done.deletion is None and done.due_at is not None and done.files > 0
    assert table.snapshots() == [plan_last(table)]
    data = [path for path in table.listing() if path.endswith(".parquet")]
    assert len(data) > len(table.read()) // 2 and opened.operations.plans.get(done.plan_id).status == "committed"


def test_names_writers_that_expire_by_themselves(calls: Any, procedures: PaimonProcedures, tmp_path: Path) -> None:
    table = lively(calls, tmp_path / "lake", **{"write-only": "false"})
    done = procedures.expire_snapshots(NAME, dry_run=True)
    assert len(done.warnings) == 1 and "write-only=true" in done.warnings[0]
    table.alter({"write-only": "true"})
    assert procedures.expire_snapshots(NAME, dry_run=True).warnings == ()


@pytest.mark.parametrize("clean", ["true", "false"])
def test_cleans_empty_folders_if_the_table_says_so(
    calls: Any, procedures: PaimonProcedures, tmp_path: Path, clean: str
) -> None:
    options = {"write-only": "true", "bucket": "1", "snapshot.clean-empty-directories": clean}
    table = create(calls, tmp_path / "lake", partitioned=True, options={**options, "bucket-key": "k"})
    table.write([(1, "a", "x"), (2, "b", "y")])
    table.truncate({"p": "a"})
    theirs = table.copy(tmp_path / "copy")
    theirs.expire(retain_max=1, retain_min=1)
    procedures.expire_snapshots(NAME, retain_max=1, retain_min=1)
    same(table, theirs)
    assert [each for each in table.folders() if not each.startswith("metadata")] == theirs.folders()


@pytest.mark.parametrize("point", ["paimon.remove_snapshot:before", "commit:swapped", "deletion.delete_files:after"])
def test_a_killed_call_is_continued(calls: Any, procedures: PaimonProcedures, tmp_path: Path, point: str) -> None:
    table = lively(calls, tmp_path / "lake")
    theirs = table.copy(tmp_path / "copy")
    theirs.expire(retain_max=2, retain_min=1)
    reached = 0

    def die(name: str) -> None:
        nonlocal reached
        reached += name == point
        if name == point and reached == (3 if point.startswith("paimon") else 1):
            raise Killed

    with pytest.raises(Killed), crash_points.installed(die):
        procedures.expire_snapshots(NAME, retain_max=2, retain_min=1)
    procedures.expire_snapshots(NAME, retain_max=2, retain_min=1)
    same(table, theirs)


class Killed(BaseException):
    pass


def test_a_tag_of_an_expired_snapshot_brings_it_back(calls: Any, procedures: PaimonProcedures, tmp_path: Path) -> None:
    table = lively(calls, tmp_path / "lake")
    table.tag("first", 1)
    rows = table.read(scan_tag_name="first")
    procedures.expire_snapshots(NAME, retain_max=1, retain_min=1)
    theirs = table.copy(tmp_path / "copy")
    theirs.rollback_to("first")
    before = table.listing()
    would = procedures.rollback_to(NAME, tag="first", dry_run=True)
    assert table.listing() == before
    assert would.current_snapshot_id == 1 and would.snapshots == (would.previous_snapshot_id,)
    procedures.rollback_to(NAME, tag="first")
    same(table, theirs)
    assert table.read() == rows


def test_a_branch_keeps_its_files_when_the_tag_that_it_came_from_is_gone(
    calls: Any, procedures: PaimonProcedures, tmp_path: Path
) -> None:
    table = lively(calls, tmp_path / "lake")
    table.tag("origin", 2)
    table.create_branch("fork", "origin")
    table.write([(100, "a", "fork")], branch="fork")
    table.delete_tag("origin")
    before = {number: table.read("fork", scan_snapshot_id=number) for number in table.snapshots("fork")}
    assert procedures.expire_snapshots(NAME, retain_max=1, retain_min=1).deleted_snapshots_count > 0
    assert len(before) > 1
    assert before == {number: table.read("fork", scan_snapshot_id=number) for number in table.snapshots("fork")}


def test_a_hold_keeps_its_snapshot_and_every_later_one(
    calls: Any, opened: Lifecycle, procedures: PaimonProcedures, tmp_path: Path
) -> None:
    table = lively(calls, tmp_path / "lake")
    table.tag("old", 1)
    opened.hold(NAME, "auditor", "case 7", snapshot_ids=(3,))
    assert procedures.expire_snapshots(NAME, retain_max=1, retain_min=1).deleted_snapshots_count == 2
    assert table.snapshots()[0] == 3
    opened.hold(NAME, "auditor", "case 8", snapshot_ids=(1,))
    assert procedures.expire_tags(NAME, older_than=datetime.now(UTC) + timedelta(days=1)).expired_tags == ()
    with pytest.raises(Held):
        procedures.rollback_to(NAME, tag="old")


def test_another_deployment_of_a_warehouse_is_refused_before_it_plans_commits_deletes_or_rolls_back(
    calls: Any, make_config: MakeConfig, opened: Lifecycle, databases: Databases, spark: SparkSession, tmp_path: Path
) -> None:
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}
    table = lively(calls, tmp_path / "lake", **options)
    other = {"type": "paimon", "warehouse": f"file://{tmp_path}/lake/", "expire": {"limit": "coded"}}
    operations = {"uri": databases.make(), "root": f"file://{tmp_path}/other"}
    config = make_config(catalogs={"others": {"theirs": other}}, operations=operations)
    name = "theirs:db.t"
    with Lifecycle.open(config, spark=spark) as second:
        opened.hold(NAME, "legal", "case")
        before = table.listing()
        steps = {
            "plan": lambda: second.plan_expiration(name),
            "expire": lambda: second.paimon(name).expire_snapshots(name, retain_max=1, retain_min=1),
            "roll back": lambda: second.paimon(name).rollback_to(name, snapshot_id=2),
            "scan": lambda: second.scan_orphans(name),
            "orphans": lambda: second.paimon(name).remove_orphan_files(name),
            "hold": lambda: second.hold(name, "me", "mine"),
        }
        for step in steps.values():
            with pytest.raises(OtherDeployment, match="theirs belongs to another deployment"):
                step()
        assert table.listing() == before
        (record,) = (tmp_path / "lake/.artemis-lifecycle").glob("*.json")
        assert second.tables() == [name] and record.name == "lake.json"
        second.take_over(who="ada", why="moved")
        plan = second.plan_expiration(name)
        with pytest.raises(OtherDeployment, match="ada"):
            opened.plan_expiration(NAME)
        opened.take_over(who="ann", why="back")
        with pytest.raises(OtherDeployment, match="ann"):
            second.commit_expiration(plan)
        assert table.snapshots() == list(range(table.snapshots()[0], table.snapshots()[-1] + 1))


def test_expires_files_in_external_paths(calls: Any, procedures: PaimonProcedures, tmp_path: Path) -> None:
    external = tmp_path / "external"
    options = {"data-file.external-paths": f"file://{external}", "data-file.external-paths.strategy": "round-robin"}
    table = lively(calls, tmp_path / "lake", **options)
    rows = table.read()
    files = set(external.rglob("*.parquet"))
    done = procedures.expire_snapshots(NAME, retain_max=1, retain_min=1)
    left_there = set(external.rglob("*.parquet"))
    assert done.deletion is not None and done.deletion.kept == 0
    assert left_there < files and table.read() == rows
    # What no other table of the warehouse has, and no reader of this one misses, is what Paimon keeps too.
    assert {str(path) for path in left_there} >= {path for path in live_paths(procedures) if "/external/" in path}


def live_paths(procedures: PaimonProcedures) -> set[str]:
    found = procedures.tables.reachable_set(NAME, None)
    return {row["path"].removeprefix("file:").replace("//", "/") for row in found.files().collect()}
