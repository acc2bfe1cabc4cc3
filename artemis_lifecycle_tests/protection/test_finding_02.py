"""Finding 2: one directory under two names. A warehouse that moved and left a symbolic link, a second mount: what a
table reaches under one name is its own under every other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.storage.local import store
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.guardian import on_disk
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    append,
    files_below,
    ids,
    ids_of_every_snapshot,
    make_all_old,
    outcomes,
    overwrite,
    place,
    sql,
    stray,
    take_up,
    warehouse,
)

Second = Callable[[Path], Path]
"""Gives a folder a second name, and returns it."""


@pytest.fixture
def linked(tmp_path: Path) -> Second:
    def link(folder: Path) -> Path:
        second = tmp_path / f"{folder.name}-also"
        second.symlink_to(folder)
        return second

    return link


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Second]:
    mounts: list[Path] = []

    def mount(folder: Path) -> Path:
        second = tmp_path / f"{folder.name}-mounted"
        second.mkdir()
        done = subprocess.run(["mount", "--bind", str(folder), str(second)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"this machine lets no test mount: {done.stderr.decode().strip()}")
        mounts.append(second)
        return second

    yield mount
    for each in mounts:
        subprocess.run(["umount", "--lazy", str(each)], check=True)


def on_a_second_device(monkeypatch: pytest.MonkeyPatch, second: Path, *more: Path) -> None:
    """A network file system that was mounted twice without a shared cache: inodes are the same, devices are not, and
    neither has a block device."""
    original, stored = os.stat, store.stored

    def on_its_device(found: os.stat_result, path: str) -> os.stat_result:
        values = list(found)
        values[2] = os.makedev(0, 91 if path.startswith(str(second)) else 90)
        return os.stat_result(
            values, {name: getattr(found, name) for name in ("st_mtime_ns", "st_atime_ns", "st_ctime_ns")}
        )

    def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
        text = "" if isinstance(path, int) else os.fsdecode(path)
        return on_its_device(original(path, *args, **options), text)

    monkeypatch.setattr("artemis_lifecycle.protection.identity.os.stat", stat)
    # Entries of a listed folder are asked for their status by the system alone.
    monkeypatch.setattr(store, "stored", lambda path, found: stored(path, on_its_device(found, str(on_disk(path)))))


@pytest.fixture(params=["link", "mount", "second device"])
def second(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Second:
    if request.param == "link":
        return request.getfixturevalue("linked")  # type: ignore[no-any-return]
    mount: Second = request.getfixturevalue("mounted")
    if request.param == "mount":
        return mount

    def mount_elsewhere(folder: Path) -> Path:
        found = mount(folder)
        on_a_second_device(monkeypatch, found)
        return found

    return mount_elsewhere


def move(lifecycle: Lifecycle, table: str, location: Path) -> None:
    sql(lifecycle, f"ALTER TABLE {{live}}.{table} SET LOCATION 'file://{location}'")


def delete_what_a_scan_finds(lifecycle: Lifecycle, table: str) -> set[str]:
    """What an orphan deletion took from the disk."""
    before = files_below(warehouse(lifecycle, "live"))
    lifecycle.delete_orphans(lifecycle.scan_orphans(table))
    return before - files_below(warehouse(lifecycle, "live"))


@pytest.fixture
def at_once(make_config: MakeConfig, spark: SparkSession, tmp_path: Path) -> Iterator[Lifecycle]:
    """A second mount is a root of its own: that it is the same place is not certain."""
    roots = [f"file://{tmp_path}/live-mounted"]
    with open_lifecycle(make_config(defaults=WITHOUT_COLD, catalogs={"live": {"roots": roots}}), spark=spark) as opened:
        yield opened


def test_files_from_before_a_moved_warehouse_are_not_orphans_but_garbage_is(at_once: Lifecycle, second: Second) -> None:
    table = make_table(at_once, "t", 3)
    lost = stray(place(at_once, table))
    also = second(warehouse(at_once, "live")) / "db" / "t"
    move(at_once, table, also)
    append(at_once, table, 3)
    also_lost = stray(also, "data/also-stray.parquet")
    make_all_old(warehouse(at_once, "live"))
    read = ids_of_every_snapshot(at_once, table)

    scan = at_once.scan_orphans(table)

    assert {Path(row["path"].removeprefix("file:")).name for row in scan.files().collect()} == {
        lost.name,
        also_lost.name,
    }
    foreseen = at_once.delete_orphans(scan, dry_run=True)
    done = at_once.delete_orphans(scan)
    assert (foreseen.would_delete, foreseen.already_absent) == (done.deleted, done.already_absent) == (2, 0)
    assert not lost.exists() and not also_lost.exists()
    assert ids_of_every_snapshot(at_once, table) == read and ids(at_once, table) == [0, 1, 2, 3]


def test_a_table_that_moved_to_the_second_name_and_back_loses_nothing(at_once: Lifecycle, second: Second) -> None:
    table = make_table(at_once, "t", 2)
    first, also = place(at_once, table), second(warehouse(at_once, "live")) / "db" / "t"
    for number, location in enumerate((also, first, also, first), start=2):
        move(at_once, table, location)
        append(at_once, table, number)
        make_all_old(warehouse(at_once, "live"))
        assert delete_what_a_scan_finds(at_once, table) == set()
    assert ids(at_once, table) == [0, 1, 2, 3, 4, 5]


def test_a_namespace_folder_that_moved_away_and_left_a_link_loses_nothing(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    config = make_config(defaults=WITHOUT_COLD, catalogs={"live": {"roots": [f"file://{away}"]}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 3)
        folder = place(lifecycle, table).parent
        folder.rename(away)
        folder.symlink_to(away)
        move(lifecycle, table, away / "t")
        append(lifecycle, table, 3)
        lost = stray(away / "t")
        make_all_old(away)
        before = files_below(away)

        lifecycle.delete_orphans(lifecycle.scan_orphans(table))

        assert before - files_below(away) == {str(lost)}
        assert ids(lifecycle, table) == [0, 1, 2, 3]


def test_a_partition_folder_that_is_a_link_to_another_one_loses_nothing(at_once: Lifecycle) -> None:
    sql(at_once, "CREATE NAMESPACE {live}.db")
    sql(at_once, "CREATE TABLE {live}.db.t (id int) USING iceberg PARTITIONED BY (id)")
    sql(at_once, "INSERT INTO {live}.db.t VALUES (1), (2)")
    data = place(at_once, "db.t") / "data"
    (data / "id=1").rename(data / "moved")
    (data / "id=1").symlink_to(data / "moved")
    make_all_old(warehouse(at_once, "live"))
    assert delete_what_a_scan_finds(at_once, "db.t") == set()
    assert ids(at_once, "db.t") == [1, 2]


def test_the_file_behind_a_link_that_the_table_names_is_not_an_orphan(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    data = place(at_once, table) / "data"
    moved = data / "moved"
    moved.mkdir()
    for number, path in enumerate(sorted(data.glob("*.parquet"))):
        # One under its name, one under another.
        target = path.rename(moved / (path.name if number else "renamed.parquet"))
        path.symlink_to(target)
        (data / f".{path.name}.crc").unlink(missing_ok=True)
    lost = stray(place(at_once, table), "data/moved/stray.parquet")
    make_all_old(warehouse(at_once, "live"))
    scan = at_once.scan_orphans(table)
    foreseen, done = at_once.delete_orphans(scan, dry_run=True), at_once.delete_orphans(scan)
    assert foreseen.would_delete == done.deleted == 1
    assert not lost.exists() and ids(at_once, table) == [0, 1]


def test_a_former_location_that_links_at_the_new_one_lead_to_loses_nothing(at_once: Lifecycle) -> None:
    """A copy of links, file by file, and metadata that was rewritten to name them."""
    table = make_table(at_once, "t", 1)
    former, now = place(at_once, table), warehouse(at_once, "live") / "now"
    move(at_once, table, now)
    (now / "data").mkdir(parents=True)
    [real] = (former / "data").glob("*.parquet")
    (now / "data" / "linked.parquet").symlink_to(real)
    overwrite(at_once, table, 5)
    take_up(at_once, table, now / "data", "linked.parquet")
    plan = at_once.plan_expiration(table)
    at_once.commit_expiration(plan)
    at_once.close_plan(plan, who="ann", why="its files are orphans now")
    make_all_old(former, now)
    at_once.delete_orphans(at_once.scan_orphans(table))
    assert real.exists() and ids(at_once, table) == [0, 5]


def test_an_expiration_keeps_the_file_that_a_snapshot_reads_under_its_second_name(
    at_once: Lifecycle, second: Second
) -> None:
    table = make_table(at_once, "t", 1)
    data = second(warehouse(at_once, "live")) / "db" / "t" / "data"
    overwrite(at_once, table, 5)
    take_up(at_once, table, data, "*.parquet")
    sql(at_once, f"DELETE FROM {{live}}.{table} WHERE id = 5")
    read = ids(at_once, table)

    plan = at_once.plan_expiration(table)
    at_once.commit_expiration(plan)
    foreseen, done = at_once.delete_files(plan, dry_run=True), at_once.delete_files(plan)

    kept = {path for path, (outcome, _) in outcomes(done).items() if outcome == "kept"}
    assert any(path.endswith(".parquet") for path in kept)
    assert {path for path, (outcome, _) in outcomes(foreseen).items() if outcome == "kept"} == kept
    assert ids(at_once, table) == read


@pytest.mark.parametrize("kind", ["orphans", "expiration"])
def test_a_commit_under_the_second_name_while_files_are_being_deleted_keeps_them(
    at_once: Lifecycle, second: Second, kind: str
) -> None:
    """It comes after all was held against what the tables reach: by the pointer alone it is seen."""
    table = make_table(at_once, "t", 1)
    folder = place(at_once, table)
    also = second(warehouse(at_once, "live")) / "db" / "t"
    [data] = (folder / "data").glob("*.parquet")
    overwrite(at_once, table, 5)
    plan = at_once.plan_expiration(table)
    at_once.commit_expiration(plan)
    scan = None
    if kind == "orphans":
        at_once.close_plan(plan, who="ann", why="its files are orphans now")
        scan = at_once.scan_orphans(table)
    committed: list[str] = []

    def commit(point: str) -> None:
        if point == "journal.start_batch:after" and not committed:
            committed.append(point)
            take_up(at_once, table, also / "data", data.name)

    with crash_points.installed(commit):
        done = at_once.delete_files(plan) if scan is None else at_once.delete_orphans(scan)

    assert committed and outcomes(done)[str(data)] == ("kept", "reachable")
    assert ids(at_once, table) == [0, 5]


def test_what_an_open_plan_names_under_one_name_is_not_an_orphan_under_the_other(
    make_config: MakeConfig, spark: SparkSession, second: Second
) -> None:
    config = make_config(defaults={**WITHOUT_COLD, "deletion": {"grace": "30d"}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        overwrite(lifecycle, table, 5)
        plan = lifecycle.plan_expiration(table)
        lifecycle.commit_expiration(plan)
        move(lifecycle, table, second(warehouse(lifecycle, "live")) / "db" / "t")
        append(lifecycle, table, 6)
        make_all_old(warehouse(lifecycle, "live"))

        assert delete_what_a_scan_finds(lifecycle, table) == set()


def test_a_neighbor_below_a_second_name_keeps_its_files(at_once: Lifecycle, second: Second) -> None:
    table = make_table(at_once, "t", 2)
    also = second(warehouse(at_once, "live")) / "db" / "t" / "data" / "inner"
    sql(at_once, f"CREATE TABLE {{live}}.db.inner (id int) USING iceberg LOCATION 'file://{also}'")
    append(at_once, "db.inner", 7)
    lost = stray(also, "data/inner-stray.parquet")
    make_all_old(warehouse(at_once, "live"))

    assert delete_what_a_scan_finds(at_once, table) == set()
    assert at_once.explain(table, f"file://{place(at_once, table)}/data/inner/data/{lost.name}").holders == (
        "other_table",
    )
    assert ids(at_once, "db.inner") == [7]


def test_a_neighbor_that_reads_under_a_second_name_keeps_what_it_reads(at_once: Lifecycle, second: Second) -> None:
    table = make_table(at_once, "t", 1)
    data = second(warehouse(at_once, "live")) / "db" / "t" / "data"
    reader = make_table(at_once, "reader", 0)
    take_up(at_once, reader, data)
    overwrite(at_once, table, 5)

    plan = at_once.plan_expiration(table)
    at_once.commit_expiration(plan)
    done = at_once.delete_files(plan)
    at_once.close_plan(plan, who="ann", why="over") if done.pending else None
    make_all_old(warehouse(at_once, "live"))
    at_once.delete_orphans(at_once.scan_orphans(table))

    assert ids(at_once, reader) == [0] and ids(at_once, table) == [5]


@pytest.mark.parametrize("tier", ["cold", "quarantine", "state"])
def test_a_location_that_links_to_another_tier_deletes_nothing_in_it(
    make_config: MakeConfig, spark: SparkSession, linked: Second, tmp_path: Path, tier: str
) -> None:
    config = make_config(
        defaults=WITHOUT_COLD,
        catalogs={"live": {"roots": [f"file://{tmp_path}"]}},
        quarantine={"root": f"file://{tmp_path}/quarantine"},
    )
    roots = {
        "cold": config.catalogs.cold.warehouse,
        "quarantine": config.quarantine.root,
        "state": config.operations.root,
    }
    folder = Path(str(roots[tier]).removeprefix("file://"))
    folder.mkdir(parents=True, exist_ok=True)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        theirs = stray(folder, "precious/data.parquet")
        also = linked(folder)
        sql(lifecycle, f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('write.data.path'='file://{also}/precious')")
        lifecycle.delete_orphans(lifecycle.scan_orphans(table))
        assert theirs.exists()
