"""Every object of every catalog is a reader: views, functions, tables of other formats, tables of a version that this
release does not know. What they need stays, and what is unknown counts as needed."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle import format_versions
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.doctor.services import readers
from artemis_lifecycle.errors import LifecycleError, NewerFormat, StaleMetadata, UnreadableMetadata
from artemis_lifecycle.operations.database import connected
from artemis_lifecycle.operations.known_tables import beside_catalog
from artemis_lifecycle.protection import future
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.cold_tier.test_put_back import put_back
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import set_ages
from artemis_lifecycle_tests.guardian import GUARDIAN, on_disk
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.databases import Databases
from artemis_lifecycle_tests.protection.foreign import (
    append,
    expire_in_metadata,
    files_below,
    ids,
    make_all_old,
    outcomes,
    overwrite,
    place,
    set_pointer,
    sql,
    stray,
    take_up,
    to_version_5,
    warehouse,
)
from artemis_lifecycle_tests.protection.test_finding_10 import create, drop, is_over


@pytest.fixture
def lifecycle(all_of_db: Lifecycle) -> Lifecycle:
    return all_of_db


def create_view(lifecycle: Lifecycle, name: str, location: Path | None = None) -> None:
    at = "" if location is None else f"TBLPROPERTIES ('location'='file://{location}')"
    sql(lifecycle, f"CREATE OR REPLACE VIEW {{live}}.db.{name} {at} AS SELECT 1 AS one")


def row_of(lifecycle: Lifecycle, name: str) -> tuple[str, str]:
    """The type and the pointer of any object."""
    with lifecycle.operations.engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT iceberg_type, metadata_location FROM iceberg_tables "
                "WHERE catalog_name = :catalog AND table_name = :name"
            ),
            {"catalog": lifecycle.config.catalogs.live.name, "name": name},
        ).one()
    return found[0], found[1]


def set_row(lifecycle: Lifecycle, name: str, **columns: str | None) -> None:
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(
                f"UPDATE iceberg_tables SET {', '.join(f'{each} = :{each}' for each in columns)} "
                "WHERE catalog_name = :catalog AND table_name = :name"
            ),
            {"catalog": lifecycle.config.catalogs.live.name, "name": name, **columns},
        )


def collect(lifecycle: Lifecycle, table: str) -> None:
    make_all_old(warehouse(lifecycle, "live"))
    lifecycle.delete_orphans(lifecycle.scan_orphans(table))


def versions(lifecycle: Lifecycle, view: str) -> set[Path]:
    """A view's metadata files, all of its versions."""
    return set(on_disk(row_of(lifecycle, view)[1]).parent.glob("*.metadata.json"))


@pytest.mark.parametrize("where", ["inside", "at the table", "in its metadata folder"])
def test_a_view_at_or_inside_a_table_outlives_an_orphan_scan(lifecycle: Lifecycle, where: str) -> None:
    table = create(lifecycle, "db.t")
    at = {"inside": table / "data" / "v", "at the table": table, "in its metadata folder": table / "metadata"}[where]
    for _ in range(2):
        create_view(lifecycle, "v", at)
    kept, lost = versions(lifecycle, "v"), stray(table)
    # The folder has the table's files, too, where the two share it.
    assert len(kept) >= 2

    collect(lifecycle, "db.t")

    assert all(path.exists() for path in kept) and not lost.exists()
    assert sql(lifecycle, "SELECT * FROM {live}.db.v")[0]["one"] == 1


@pytest.mark.parametrize("kind", ["VIEW", None, "view", "MVIEW"])
def test_a_view_that_replaced_a_table_outlives_the_tables_files(lifecycle: Lifecycle, kind: str | None) -> None:
    table = create(lifecycle, "db.t")
    data = set((table / "data").glob("*.parquet"))
    uuid = drop(lifecycle, "db.t")
    create_view(lifecycle, "t", table)
    set_row(lifecycle, "t", iceberg_type=kind)
    kept = on_disk(row_of(lifecycle, "t")[1])
    make_all_old(warehouse(lifecycle, "live"))
    lifecycle.observe_catalog()
    is_over(lifecycle, uuid)

    if kind is not None:
        scan = lifecycle.scan_dropped(uuid)
        lifecycle.approve(scan.scan_id, who="ann", why="nobody needs it")
        lifecycle.delete_dropped(scan)
        assert not any(path.exists() for path in data)
    assert kept.exists()


def test_a_view_that_no_catalog_lists_keeps_its_folder(lifecycle: Lifecycle) -> None:
    table = create(lifecycle, "db.t")
    create_view(lifecycle, "v", table / "data" / "v")
    [kept] = versions(lifecycle, "v")
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = 'v'"))
    lost = stray(table)
    collect(lifecycle, "db.t")
    assert kept.exists() and not lost.exists()


def test_a_table_registered_as_another_kind_of_object_is_a_reader(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (place(lifecycle, "db.owner") / "data").glob("*.parquet")
    take_up(lifecycle, "db.reader", shared.parent)
    set_row(lifecycle, "reader", iceberg_type="table")
    overwrite(lifecycle, "db.owner", 2)

    done = lifecycle.expire("db.owner")

    live = lifecycle.config.catalogs.live.name
    assert outcomes(done)[str(shared)] == ("kept", f"reachable from table {live}:db.reader") and shared.exists()


def test_a_dropped_table_that_is_registered_as_another_kind_of_object_is_not_missing(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.t")
    lifecycle.observe_catalog()
    set_row(lifecycle, "t", iceberg_type="table")
    lifecycle.observe_catalog()
    assert lifecycle.dropped_tables() == []


# --- tables of a version that this release does not know --------------------------------------------------------------


def upgrade(lifecycle: Lifecycle, table: str) -> None:
    sql(lifecycle, f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('format-version'='4')")


@pytest.fixture
def newest() -> int:
    """The newest format version that this release reads: here, one that is older than Iceberg's."""
    return 3


@pytest.fixture
def shared(lifecycle: Lifecycle, newest: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of db.owner that db.reader took up as a table of version 4, after it was seen as one of version 2. Of the
    owner, only an expired snapshot has it."""
    monkeypatch.setattr(format_versions, "NEWEST", newest)
    create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    lifecycle.scan_orphans("db.owner")
    upgrade(lifecycle, "db.reader")
    [shared] = (place(lifecycle, "db.owner") / "data").glob("*.parquet")
    take_up(lifecycle, "db.reader", shared.parent)
    overwrite(lifecycle, "db.owner", 2)
    return shared


def as_hadoop(lifecycle: Lifecycle, table: str) -> None:
    """Register the table as `v1.metadata.json`, as a table that is known by its path is; in place of what is there."""
    now = on_disk(row_of(lifecycle, table.removeprefix("db."))[1])
    made = now.with_name("v1.metadata.json")
    now.with_name("v1.new").write_bytes(now.read_bytes())
    now.with_name("v1.new").replace(made)
    set_pointer(lifecycle, table, f"file://{made}")


@pytest.mark.parametrize("anew", [False, True], ids=["written in place", "made again"])
def test_a_reader_under_the_path_of_an_earlier_metadata_file_keeps_what_it_took_up(
    make_config: MakeConfig, spark: SparkSession, anew: bool
) -> None:
    """A path is not a file: a name without a UUID may be another table's by now, or another state of it."""
    config = make_config(defaults=AT_ONCE, tables={"db.owner": {}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        create(lifecycle, "db.owner")
        create(lifecycle, "db.reader")
        as_hadoop(lifecycle, "db.reader")
        overwrite(lifecycle, "db.owner", 2)
        lifecycle.expire("db.owner")
        overwrite(lifecycle, "db.owner", 3)
        newest = max(
            (place(lifecycle, "db.owner") / "data").glob("*.parquet"), key=lambda each: each.stat().st_mtime_ns
        )
        if anew:
            drop(lifecycle, "db.reader")
            create(lifecycle, "db.reader")
        take_up(lifecycle, "db.reader", newest.parent, newest.name)
        as_hadoop(lifecycle, "db.reader")
        overwrite(lifecycle, "db.owner", 4)
    with open_lifecycle(config, spark=spark) as next_night, suppress(LifecycleError):
        next_night.expire("db.owner")
    assert newest.exists()


def test_a_team_s_table_with_the_name_of_a_result_table_is_a_reader_like_any_other(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    with open_lifecycle(make_config(defaults=AT_ONCE, tables={"db.owner": {}}), spark=spark) as lifecycle:
        create(lifecycle, "db.owner")
        sql(lifecycle, "CREATE NAMESPACE IF NOT EXISTS {live}.lifecycle")
        create(lifecycle, "lifecycle.deletions")
        [shared] = (place(lifecycle, "db.owner") / "data").glob("*.parquet")
        take_up(lifecycle, "lifecycle.deletions", shared.parent)
        overwrite(lifecycle, "db.owner", 2)
        lifecycle.expire("db.owner")
        assert shared.exists()
        assert lifecycle.compact_result_tables().expired_snapshots == {}


def test_the_maintenance_of_result_tables_deletes_no_file_and_heeds_holds_and_pauses(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    with open_lifecycle(make_config(defaults=AT_ONCE, tables={"db.*": {}}), spark=spark) as lifecycle:
        create(lifecycle, "db.copy")
        for number in range(3):
            create(lifecycle, f"db.t{number}")
            overwrite(lifecycle, f"db.t{number}", 2)
            lifecycle.expire(f"db.t{number}")
            lifecycle.publish_results()
        table = "lifecycle.deletions"
        files = set((place(lifecycle, table) / "data").rglob("*.parquet"))
        snapshots = lifecycle.snapshot_history(table).snapshots
        set_ages(lifecycle, table, [timedelta(days=90 - number) for number in range(len(snapshots))])
        for stop, end in (
            (lambda: lifecycle.hold(table, "ann", "case").hold_id, lambda hold: lifecycle.release(hold, who="ann")),
            (lambda: lifecycle.pause(who="ann", why="case"), lambda _: lifecycle.resume(who="ann")),
        ):
            stopped = stop()
            assert table not in lifecycle.compact_result_tables().expired_snapshots
            end(stopped)
        assert lifecycle.compact_result_tables().expired_snapshots[table] >= len(snapshots)
        assert files <= set((place(lifecycle, table) / "data").rglob("*.parquet"))


def iceberg_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no such encoding")

    monkeypatch.setattr("artemis_lifecycle.reachability.newer._read", fails)


@pytest.mark.parametrize("newest", [3, 4], ids=["by Iceberg", "by this release"])
def test_a_table_of_version_4_keeps_what_it_reads_and_stops_nobody(lifecycle: Lifecycle, shared: Path) -> None:
    append(lifecycle, "db.owner", 3)
    overwrite(lifecycle, "db.owner", 4)
    done = lifecycle.expire("db.owner")
    assert outcomes(done)[str(shared)] == ("kept", "reachable from db.reader")
    assert done.deleted >= 4 and done.pending == 0
    lost = stray(place(lifecycle, "db.owner"))
    lifecycle.delete_orphans(lifecycle.scan_orphans("db.owner"))
    assert not lost.exists() and ids(lifecycle, "db.reader") == [1, 1]
    uuid = drop(lifecycle, "db.owner")
    is_over(lifecycle, uuid)
    scan = lifecycle.scan_dropped(uuid)
    lifecycle.approve(scan.scan_id, who="ann", why="nobody needs it")
    lifecycle.delete_dropped(scan)
    assert ids(lifecycle, "db.reader") == [1, 1]


def test_what_was_live_since_an_unreadable_table_was_last_read_waits(
    lifecycle: Lifecycle, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg_cannot_read(monkeypatch)
    lost = stray(place(lifecycle, "db.owner"))
    done = lifecycle.expire("db.owner")
    assert outcomes(done)[str(shared)] == ("kept", "unread_reader") and done.pending
    # No snapshot ever had it.
    lifecycle.delete_orphans(lifecycle.scan_orphans("db.owner"))
    assert not lost.exists() and ids(lifecycle, "db.reader") == [1, 1]

    monkeypatch.undo()
    assert outcomes(lifecycle.delete_files(done.job_id))[str(shared)] == ("kept", "reachable from db.reader")


@pytest.mark.no_guardian(reason="what a person releases is lost to that reader")
def test_a_person_releases_what_waits_for_an_unreadable_table(
    lifecycle: Lifecycle, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg_cannot_read(monkeypatch)
    monkeypatch.setattr(Catalog, "is_isolated", lambda self, table: table == "db.reader")
    done = lifecycle.expire("db.owner")
    assert outcomes(done)[str(shared)][0] == "deleted"


def test_an_unreadable_table_whose_pointer_did_not_move_counts_with_its_last_look(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (place(lifecycle, "db.owner") / "data").glob("*.parquet")
    take_up(lifecycle, "db.reader", shared.parent)
    append(lifecycle, "db.owner", 2)
    lifecycle.scan_orphans("db.owner")
    overwrite(lifecycle, "db.owner", 3)
    metadata = on_disk(row_of(lifecycle, "reader")[1])
    aside = metadata.rename(metadata.with_name("aside"))
    GUARDIAN.damaged.add(str(metadata))
    with pytest.raises(UnreadableMetadata, match=r"db\.reader"):
        lifecycle.expire("db.owner")
    aside.rename(metadata)
    assert ids(lifecycle, "db.reader") == [1, 1]


def test_a_file_that_a_table_of_an_unreleased_version_took_up_waits(lifecycle: Lifecycle, shared: Path) -> None:
    to_version_5(lifecycle, "db.reader")
    done = lifecycle.expire("db.owner")
    assert outcomes(done)[str(shared)] == ("kept", "unread_reader") and shared.exists()


def test_the_error_of_a_newer_version_says_so(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.t")
    to_version_5(lifecycle, "db.t")
    with pytest.raises(NewerFormat, match="format version 5, newer than this release") as raised:
        lifecycle.plan_expiration("db.t")
    assert "restore the file" not in str(raised.value)
    lifecycle.observe_catalog()
    assert lifecycle.dropped_tables() == []


@pytest.mark.parametrize("location", [None, "file:{}", "file://{}", "elsewhere"])
@pytest.mark.parametrize("version", [4, 5])
def test_files_of_a_table_inside_that_no_catalog_names_and_nobody_reads_stay(
    lifecycle: Lifecycle, version: int, location: str | None
) -> None:
    table = create(lifecycle, "db.t")
    inner = table / "data" / "inner"
    sql(lifecycle, f"CREATE TABLE {{live}}.db.inner (id int) USING iceberg LOCATION 'file://{inner}'")
    append(lifecycle, "db.inner", 1)
    metadata = on_disk(row_of(lifecycle, "inner")[1])
    sql(lifecycle, "DROP TABLE {live}.db.inner")
    said = {"format-version": version, "location": location and location.format(inner), "root-manifests": []}
    for path in metadata.parent.glob("*.metadata.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    kept, lost = files_below(inner), stray(table)
    collect(lifecycle, "db.t")
    assert kept <= files_below(inner) and not lost.exists()


# --- two formats in one folder ----------------------------------------------------------------------------------------


def delta_commit(folder: Path, number: int, *actions: dict[str, Any]) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{number:020}.json").write_text("\n".join(map(json.dumps, actions)))


def test_what_a_delta_log_names_stays_and_the_rest_goes(lifecycle: Lifecycle) -> None:
    table = create(lifecycle, "db.t")
    [live] = (table / "data").glob("*.parquet")
    named = [stray(table, name) for name in ("data/a b.parquet", "delta/removed.parquet", "data/cdc.parquet")]
    absolute, lost = stray(table, "x/absolute.parquet"), stray(table, "data/lost.parquet")
    delta_commit(table, 0, {"protocol": {"minReaderVersion": 1}}, {"add": {"path": "data/a%20b.parquet"}})
    delta_commit(table, 1, {"remove": {"path": "delta/removed.parquet"}}, {"cdc": {"path": "data/cdc.parquet"}})
    delta_commit(table, 2, {"add": {"path": f"file://{absolute}"}}, {"add": {"path": f"data/{live.name}"}})
    collect(lifecycle, "db.t")
    assert all(path.exists() for path in (*named, absolute)) and not lost.exists()
    overwrite(lifecycle, "db.t", 2)
    assert outcomes(lifecycle.expire("db.t"))[str(live)] == ("kept", "other_table")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("how", ["expire", "orphans", "dropped"])
@pytest.mark.parametrize("log", ["below", "checkpoint", "later checkpoint"])
def test_what_a_log_names_stays_whichever_deletion_comes_and_whenever_it_is_written(
    lifecycle: Lifecycle, log: str, how: str, moment: str
) -> None:
    table = create(lifecycle, "db.t")
    for number in (2, 3):
        append(lifecycle, "db.t", number)
    files = sorted((table / "data").glob("*.parquet"))
    if how == "orphans":
        files = [stray(table, f"data/{number}.parquet") for number in range(3)]
    dots, absolute, other = files

    def write_log() -> None:
        folder, up = (table / "delta", "../") if log == "below" else (table, "")
        named = [f"{up}data/{dots.name}", f"file:{absolute}"]
        delta_commit(folder, 0, *({"add": {"path": path}} for path in named))
        if log != "below":
            (folder / "_delta_log" / f"{10 * (log != 'checkpoint'):020}.checkpoint.parquet").write_bytes(b"PAR1")

    if moment == "before":
        write_log()
    done: DeletionReport
    if how == "expire":
        overwrite(lifecycle, "db.t", 4)
        plan = lifecycle.plan_expiration("db.t")
        lifecycle.commit_expiration(plan)
    elif how == "orphans":
        make_all_old(table)
        scan = lifecycle.scan_orphans("db.t")
    else:
        is_over(lifecycle, drop(lifecycle, "db.t"))
        scan = lifecycle.scan_dropped("db.t")
        lifecycle.approve(scan, who="me", why="test")
    if moment == "after":
        write_log()
    if how == "expire":
        done = lifecycle.delete_files(plan)
    else:
        done = (lifecycle.delete_orphans if how == "orphans" else lifecycle.delete_dropped)(scan)
    assert dots.exists() and absolute.exists() and other.exists() == (log == "later checkpoint")
    assert done.deleted or log == "later checkpoint"


def test_folders_of_partitions_are_not_asked_and_others_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, stores = set[str](), Stores()
    monkeypatch.setattr(future, "_has_files", lambda stores, folder: bool(asked.add(folder)))
    for name in ("data", "day=1", "0101", "_delta_log", *(f"x{number:03}" for number in range(200))):
        (tmp_path / name).mkdir()
    assert future.claims(stores, [f"{tmp_path}/data"], [str(tmp_path)]) == {}
    below = {folder.removeprefix(f"{tmp_path}/").partition("/")[0] for folder in asked}
    assert below == {"data", *(f"x{number:03}" for number in range(99))}


def test_what_a_log_names_is_found_by_its_folders_dots(tmp_path: Path) -> None:
    """As Hadoop's `Path` reads it in every store; in S3 a path with dots is another one."""
    action = json.dumps({"add": {"path": "../data/./a%20b.parquet"}})
    assert "s3://b/t/data/a b.parquet" in set(future._files("s3://b/t/delta", action))
    away = json.dumps({"remove": {"path": "s3a://b/t/delta/../x.parquet"}})
    assert set(future._files("s3://b/t/delta", away)) == {"s3a://b/t/delta/../x.parquet", "s3a://b/t/x.parquet"}


@pytest.mark.parametrize(
    "later",
    [
        "00000000000000000010.checkpoint.parquet",
        "00000000000000000010.checkpoint.0000000001.0000000002.parquet",
        "00000000000000000010.crc",
        ".00000000000000000002.json.crc",
        "_last_checkpoint",
    ],
)
@pytest.mark.parametrize("is_there", [False, True], ids=["its commits are gone", "its commits are there"])
def test_a_log_that_knows_of_a_later_commit_is_not_whole(tmp_path: Path, later: str, is_there: bool) -> None:
    for number in range(11 if is_there else 2):
        delta_commit(tmp_path, number, {"add": {"path": f"{number}.parquet"}})
    (tmp_path / "_delta_log" / later).write_text('{"version": 10}')
    named = future.claims(Stores(), [str(tmp_path)])[str(tmp_path)]
    assert (named is not None) == is_there
    if named is not None:
        assert len({Path(each).name for each in named}) == 11


@pytest.mark.parametrize(
    "doubt",
    ["a commit is missing", "an action is unknown", "a vector", "not JSON", "Hudi", "snapshot", "schema", "inside"],
)
def test_a_log_with_any_doubt_keeps_its_whole_folder(lifecycle: Lifecycle, doubt: str) -> None:
    table = create(lifecycle, "db.t")
    folder = table / "data" / "delta" if doubt == "inside" else table
    kept = stray(folder, "data/part-0.parquet")
    add = {"add": {"path": "other.parquet"}}
    if doubt == "Hudi":
        stray(table, ".hoodie/hoodie.properties")
    elif doubt in ("snapshot", "schema"):
        stray(table, f"{doubt}/{doubt}-7")  # Paimon's
    else:
        delta_commit(folder, 1 if doubt in ("a commit is missing", "inside") else 0, add)
    if doubt == "an action is unknown":
        delta_commit(folder, 1, {"sidecar": {"path": "x"}})
    if doubt == "a vector":
        delta_commit(folder, 1, {"add": {"path": "y.parquet", "deletionVector": {"storageType": "u"}}})
    if doubt == "not JSON":
        (folder / "_delta_log" / f"{1:020}.json").write_text('{"add": {"pa')
    collect(lifecycle, "db.t")
    assert kept.exists()


def test_a_log_around_a_table_keeps_the_folder(lifecycle: Lifecycle) -> None:
    table = create(lifecycle, "db.t")
    kept = stray(table)
    delta_commit(table.parent, 3, {"add": {"path": "t/data/stray.parquet"}})
    collect(lifecycle, "db.t")
    assert kept.exists()


@pytest.mark.parametrize("apart", [False, True], ids=["one database", "two databases"])
def test_a_table_that_no_handoff_put_into_the_cold_catalog_is_a_reader(
    lifecycle: Lifecycle, databases: Databases, apart: bool
) -> None:
    create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (place(lifecycle, "db.owner") / "data").glob("*.parquet")
    take_up(lifecycle, "db.reader", shared.parent)
    config, metadata_location = lifecycle.config, row_of(lifecycle, "reader")[1]
    cold, name = config.catalogs.cold, f"{config.catalogs.cold.name}:db.reader"
    set_row(lifecycle, "reader", catalog_name=cold.name)
    if apart:
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :cold"), {"cold": cold.name})
        uri, name = databases.make(), f"{cold.name}+{name}"
        others = config.catalogs.model_copy(update={"cold": cold.model_copy(update={"uri": uri})})
        config = config.model_copy(update={"catalogs": others})
        with connected(uri) as engine:
            ensure_tables(engine)
        CatalogReader(config.catalogs.cold).register(parse("db.reader"), metadata_location, ())
    with open_lifecycle(config, spark=lifecycle.spark) as opened:
        overwrite(opened, "db.owner", 2)
        assert outcomes(opened.expire("db.owner"))[str(shared)] == ("kept", f"reachable from {name}")


# --- what a person does about them ------------------------------------------------------------------------------------


def test_doctor_and_fleet_list_all_unreadable_tables_and_other_formats_at_once(lifecycle: Lifecycle) -> None:
    for name in ("t", "bad", "odd", "worse"):
        create(lifecycle, f"db.{name}")
    set_row(lifecycle, "odd", table_name="x[y]")
    for name in ("bad", "x[y]", "worse"):
        metadata = on_disk(row_of(lifecycle, name)[1])
        GUARDIAN.damaged.add(str(metadata))
        metadata.write_text("{")
        metadata.with_name(f".{metadata.name}.crc").unlink()
    delta_commit(place(lifecycle, "db.t"), 0, {"add": {"path": "data/x.parquet"}})
    before = lifecycle.fleet().sentences
    with pytest.raises(UnreadableMetadata, match="artemis doctor lists all such tables"):
        lifecycle.scan_orphans("db.t")
    [check] = readers(lifecycle.config, lifecycle.config.catalogs.live)
    assert check.status == "failed" and all(f"db.{name} (" in check.detail for name in ("bad", "x[y]", "worse"))
    assert check.fix.endswith('isolated: ["db.bad", "db.worse", "db.x[y]"]')
    assert [each for each in lifecycle.fleet().sentences if each in before] == list(before)
    assert any("db.worse (" in each and 'catalogs.live.isolated: ["db.bad"' in each for each in before)

    live = lifecycle.config.catalogs.live.model_copy(update={"isolated": ("db.bad", "db.worse", "db.x[y]")})
    config = lifecycle.config.model_copy(
        update={"catalogs": lifecycle.config.catalogs.model_copy(update={"live": live})}
    )
    with open_lifecycle(config, spark=lifecycle.spark) as released:
        released.scan_orphans("db.t")
        [check] = readers(config, config.catalogs.live)
        assert check.status == "warning" and str(place(lifecycle, "db.t")) in check.detail
        assert any("another table format" in each for each in released.fleet().sentences)


def test_a_view_inside_a_table_outlives_a_sweep(lifecycle: Lifecycle) -> None:
    table = create(lifecycle, "db.t")
    create_view(lifecycle, "v", table / "data" / "v")
    [kept], lost = versions(lifecycle, "v"), stray(table)
    make_all_old(warehouse(lifecycle, "live"))
    lifecycle.sweep(lifecycle.mark(lifecycle.config.catalogs.live.name, None).live_set_id, deferred=False)
    assert kept.exists() and not lost.exists()


def test_a_view_inside_a_cold_table_is_not_reported_as_unknown(make_config: MakeConfig, spark: SparkSession) -> None:
    with open_lifecycle(make_config(defaults=AT_ONCE), spark=spark) as lifecycle:
        create(lifecycle, "db.t")
        overwrite(lifecycle, "db.t", 2)
        lifecycle.expire("db.t")
        cold = warehouse(lifecycle, "cold") / "db" / "t"
        create_view(lifecycle, "v", cold / "v")
        create_view(lifecycle, "w", cold / "w")
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = 'w'"))
        lost = stray(cold)
        make_all_old(cold)
        assert [row["path"] for row in lifecycle.scan_cold("db.t").files().collect()] == [f"file://{lost}"]


def test_a_view_whose_place_has_the_tables_uuid_in_its_name_is_not_taken_for_the_table(lifecycle: Lifecycle) -> None:
    table = create(lifecycle, "db.t")
    create_view(lifecycle, "v", table / lifecycle.snapshot_history("db.t").table_uuid)
    [kept] = versions(lifecycle, "v")
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = 'v'"))
    collect(lifecycle, "db.t")
    assert kept.exists()


@pytest.mark.parametrize("is_known", [True, False])
def test_commits_of_a_newer_version_that_a_restored_catalog_lost_are_no_orphans(
    lifecycle: Lifecycle, is_known: bool
) -> None:
    table = create(lifecycle, "db.t")
    before = row_of(lifecycle, "t")[1]
    upgrade(lifecycle, "db.t")
    append(lifecycle, "db.t", 2)
    newest = row_of(lifecycle, "t")[1]
    if not is_known:
        newest = to_version_5(lifecycle, "db.t")
    files = set((table / "data").glob("*.parquet"))
    set_row(lifecycle, "t", metadata_location=before)
    with pytest.raises(StaleMetadata, match=r"metadata files of the table are newer"):
        collect(lifecycle, "db.t")
    assert all(path.exists() for path in (*files, on_disk(newest)))


def test_a_table_of_another_format_reads_every_file_in_its_location(
    lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(lifecycle, "db.t")
    kept, lost = [*(table / "data").glob("*.parquet"), stray(table, "data/by-hive.parquet")], stray(table, "x.parquet")
    # What Hive or Glue list beside Iceberg's tables, for example what `migrate` left behind.
    other = CatalogEntry("live", parse("db.raw"), "", None, "EXTERNAL_TABLE", f"file://{table}/data")
    monkeypatch.setattr(CatalogReader, "others", lambda self: [other])
    overwrite(lifecycle, "db.t", 2)
    lifecycle.expire("db.t")
    collect(lifecycle, "db.t")
    assert all(path.exists() for path in kept) and not lost.exists()


def test_a_table_dropped_from_the_same_place_before_anybody_looked_keeps_its_files(lifecycle: Lifecycle) -> None:
    folder = create(lifecycle, "db.k")
    append(lifecycle, "db.k", 2)
    of_lost = {path for path in folder.rglob("*") if path.is_file()}
    sql(lifecycle, "DROP TABLE {live}.db.k")
    assert create(lifecycle, "db.k") == folder
    orphan = stray(folder)
    collect(lifecycle, "db.k")
    assert not orphan.exists()
    assert {path for path in of_lost if not path.exists()} == set()


def test_a_dropped_table_that_nobody_can_read_keeps_its_whole_place(lifecycle: Lifecycle) -> None:
    folder = create(lifecycle, "db.k")
    (lost, *_) = on_disk(row_of(lifecycle, "k")[1]).parent.glob("snap-*.avro")
    sql(lifecycle, "DROP TABLE {live}.db.k")
    create(lifecycle, "db.k")
    lost.unlink()
    files = [*(folder / "data").iterdir(), stray(folder)]
    collect(lifecycle, "db.k")
    assert all(path.exists() for path in files)


def test_a_table_dropped_after_commits_that_nobody_saw_keeps_what_they_took_up(lifecycle: Lifecycle) -> None:
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    lifecycle.observe_catalog()
    take_up(lifecycle, "db.reader", owner / "data")
    taken = set((owner / "data").glob("*.parquet"))
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    overwrite(lifecycle, "db.owner", 2)
    lifecycle.expire("db.owner")
    assert taken and all(path.exists() for path in taken)


@pytest.mark.parametrize("lost", ["a manifest", "the manifest list of an old snapshot"])
def test_what_a_dropped_table_read_waits_while_a_part_of_it_cannot_be_read(lifecycle: Lifecycle, lost: str) -> None:
    owner = create(lifecycle, "db.owner")
    reader = create(lifecycle, "db.reader")
    files = set((reader / "metadata").glob("*.avro"))
    [part] = [path for path in files if path.name.startswith("snap-") is ("list" in lost)]
    take_up(lifecycle, "db.reader", owner / "data")
    shared = set((owner / "data").glob("*.parquet"))
    lifecycle.observe_catalog()
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    whole = part.read_bytes()
    part.unlink()
    overwrite(lifecycle, "db.owner", 2)
    with pytest.raises(UnreadableMetadata, match="may read from it, and cannot be read"):
        lifecycle.expire("db.owner")
    part.write_bytes(whole)
    lifecycle.expire("db.owner")
    assert all(path.exists() for path in shared)
    # What nobody can bring back stops nobody.
    for path in (reader / "metadata").glob("snap-*.avro"):
        path.unlink()
    overwrite(lifecycle, "db.owner", 3)
    assert lifecycle.expire("db.owner").deleted


def test_a_commit_on_top_of_a_registered_copy_counts_though_its_number_begins_anew(lifecycle: Lifecycle) -> None:
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    append(lifecycle, "db.reader", 2)
    lifecycle.observe_catalog()
    seen = on_disk(row_of(lifecycle, "reader")[1])
    copy = seen.with_name("restored.metadata.json")
    copy.write_bytes(seen.read_bytes())
    set_row(lifecycle, "reader", metadata_location=f"file://{copy}")
    sql(lifecycle, "REFRESH TABLE {live}.db.reader")
    take_up(lifecycle, "db.reader", owner / "data")
    assert on_disk(row_of(lifecycle, "reader")[1]).name.startswith("00000-")
    shared = set((owner / "data").glob("*.parquet"))
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    overwrite(lifecycle, "db.owner", 2)
    lifecycle.expire("db.owner")
    assert all(path.exists() for path in shared)


def test_what_a_dropped_table_read_waits_while_its_last_commit_is_damaged(lifecycle: Lifecycle) -> None:
    owner = create(lifecycle, "db.owner")
    reader = create(lifecycle, "db.reader")
    lifecycle.observe_catalog()
    take_up(lifecycle, "db.reader", owner / "data")
    shared = set((owner / "data").glob("*.parquet"))
    newest = max((reader / "metadata").glob("*.metadata.json"), key=lambda path: path.name)
    whole = newest.read_bytes()
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    newest.write_bytes(whole[:100])
    overwrite(lifecycle, "db.owner", 2)
    with pytest.raises(UnreadableMetadata, match=rf"it was dropped, and its later metadata file .*{newest.name}"):
        lifecycle.expire("db.owner")
    newest.write_bytes(whole)
    lifecycle.expire("db.owner")
    assert shared and all(path.exists() for path in shared)


@pytest.mark.parametrize("whose", ["reader", "owner"])
def test_what_a_commit_took_up_that_a_restored_catalog_lost_stays(lifecycle: Lifecycle, whose: str) -> None:
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    overwrite(lifecycle, "db.owner", 2)
    table = f"db.{whose}"
    plan = lifecycle.plan_expiration("db.owner")
    lifecycle.commit_expiration(plan)
    backup = lifecycle.resources.live_catalog.entry(table).metadata_location
    taken_up = time.time()
    take_up(lifecycle, table, shared.parent)
    newest = on_disk(lifecycle.resources.live_catalog.entry(table).metadata_location)
    lifecycle.observe_catalog()
    put_back(lifecycle, table, backup)
    manifest = next(path for path in newest.parent.glob("*-m0.avro") if path.stat().st_mtime >= taken_up)
    for part in (newest, manifest):
        whole = part.read_bytes()
        part.write_bytes(whole[:100])
        with pytest.raises(UnreadableMetadata, match=r"A commit that a catalog lost, .*settle-metadata its table"):
            lifecycle.delete_files(plan)
        part.write_bytes(whole)
    lifecycle.delete_files(plan)
    assert shared.exists()
    overwrite(lifecycle, "db.owner", 3)
    lifecycle.expire("db.owner")
    assert shared.exists()


def test_a_writer_of_a_table_that_has_a_dropped_ones_name_keeps_its_files(lifecycle: Lifecycle) -> None:
    table = create(lifecycle, "db.t")
    uuid = drop(lifecycle, "db.t")
    kept = stray(table, "data/in-flight.parquet")
    make_all_old(warehouse(lifecycle, "live"))
    # Of a table that was made anew and dropped again, all between two looks.
    lifecycle.operations.heartbeats.beat(str(uuid4()), "db.t", "writer", None, timedelta(hours=1))
    lifecycle.observe_catalog()
    is_over(lifecycle, uuid)
    scan = lifecycle.scan_dropped(uuid)
    lifecycle.approve(scan.scan_id, who="ann", why="nobody needs it")
    with suppress(LifecycleError):
        lifecycle.delete_dropped(scan)
    assert kept.exists()


@pytest.mark.parametrize("whose", ["reader", "owner"])
def test_a_lost_commit_counts_beyond_the_metadata_log_and_whatever_the_writers_clocks_say(
    lifecycle: Lifecycle, whose: str
) -> None:
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    table = f"db.{whose}"
    sql(lifecycle, f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='3')")
    backup = lifecycle.resources.live_catalog.entry(table).metadata_location
    ahead = json.loads(on_disk(backup).read_text())
    ahead["last-updated-ms"] += 30_000
    on_disk(backup).write_text(json.dumps(ahead))
    on_disk(backup).with_name(f".{on_disk(backup).name}.crc").unlink()
    if whose == "owner":
        overwrite(lifecycle, table, 2)
    take_up(lifecycle, table, shared.parent)
    lifecycle.observe_catalog()
    put_back(lifecycle, table, backup)
    overwrite(lifecycle, "db.owner", 3)
    lifecycle.observe_catalog()
    for number in range(5):
        overwrite(lifecycle, table, number)
    lifecycle.expire("db.owner")
    assert shared.exists()
    with pytest.raises(StaleMetadata):
        lifecycle.scan_orphans(table)


def test_a_step_that_read_the_table_before_another_one_takes_no_commit_for_lost(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.t")
    lifecycle.observe_catalog()
    before = lifecycle.steps.table_state("db.t")
    append(lifecycle, "db.t", 2)
    lifecycle.observe_catalog()
    lifecycle.steps.saw(before)
    assert not lifecycle.operations.table_locations.lost_pointers(before.metadata.table_uuid)


def test_the_same_pointer_in_another_spelling_is_no_lost_commit(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.t")
    lifecycle.observe_catalog()
    seen = row_of(lifecycle, "t")[1]
    path = on_disk(seen)
    other = f"file:{path}" if seen.startswith("file:///") else f"file://{path}"
    set_row(lifecycle, "t", metadata_location=other)
    lifecycle.observe_catalog()
    lifecycle.plan_expiration("db.t")
    table_uuid = lifecycle.steps.table_state("db.t").metadata.table_uuid
    assert not lifecycle.operations.table_locations.lost_pointers(table_uuid)


def test_a_tag_that_a_restored_catalog_lost_keeps_its_snapshots_files(lifecycle: Lifecycle) -> None:
    table = create(lifecycle, "db.t")
    [tagged] = (table / "data").glob("*.parquet")
    overwrite(lifecycle, "db.t", 2)
    backup = lifecycle.resources.live_catalog.entry("db.t").metadata_location
    lifecycle.tag("db.t", "audit", lifecycle.snapshot_history("db.t").snapshots[0].snapshot_id)
    put_back(lifecycle, "db.t", backup)
    overwrite(lifecycle, "db.t", 3)
    lifecycle.expire("db.t")
    assert tagged.exists()
    with pytest.raises(StaleMetadata):
        lifecycle.scan_orphans("db.t")


# --- readers that were dropped ----------------------------------------------------------------------------------------


def register(lifecycle: Lifecycle, name: str, location: str) -> None:
    sql(lifecycle, f"CALL {{live}}.system.register_table(table => 'db.{name}', metadata_file => '{location}')")


@pytest.mark.parametrize("deletes", [False, True], ids=["kept", "deleted"])
def test_a_table_dropped_after_more_unseen_commits_than_its_log_is_long_keeps_what_they_took_up(
    lifecycle: Lifecycle, deletes: bool
) -> None:
    """`deletes`: its writers delete metadata files that leave the log, the last seen one too. It was not purged."""
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    sql(
        lifecycle,
        "ALTER TABLE {live}.db.reader SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1', "
        f"'write.metadata.delete-after-commit.enabled'='{str(deletes).lower()}')",
    )
    lifecycle.observe_catalog()
    shared = set((owner / "data").glob("*.parquet"))
    for number in range(3):
        append(lifecycle, "db.reader", number)
    take_up(lifecycle, "db.reader", owner / "data")
    append(lifecycle, "db.reader", 9)
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    lifecycle.observe_catalog()
    overwrite(lifecycle, "db.owner", 2)
    lifecycle.expire("db.owner")
    assert shared and all(path.exists() for path in shared)
    assert [each.state for each in lifecycle.dropped_tables()] == ["waiting"]


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "unseen"])
def test_a_second_name_of_a_uuid_that_was_dropped_keeps_what_its_last_state_reads(
    lifecycle: Lifecycle, is_seen: bool
) -> None:
    table = create(lifecycle, "db.t")
    register(lifecycle, "two", row_of(lifecycle, "t")[1])
    lifecycle.observe_catalog()
    other = table.parent / "elsewhere"
    sql(lifecycle, f"ALTER TABLE {{live}}.db.two SET LOCATION 'file://{other}'")
    append(lifecycle, "db.two", 2)
    if is_seen:
        lifecycle.observe_catalog()
    shared, last = set((table / "data").glob("*.parquet")), row_of(lifecycle, "two")[1]
    sql(lifecycle, "DROP TABLE {live}.db.two")
    of_second = {path for path in other.rglob("*") if path.is_file()}
    overwrite(lifecycle, "db.t", 3)
    lifecycle.expire("db.t")
    create(lifecycle, "db.new", other)
    collect(lifecycle, "db.new")
    assert shared and all(path.exists() for path in shared | of_second)
    [lost] = lifecycle.dropped_tables()
    assert lost.table == "db.two"
    lifecycle.undrop("db.two")
    if is_seen:
        assert (row_of(lifecycle, "two")[1], ids(lifecycle, "db.two"), ids(lifecycle, "db.t")) == (last, [1, 2], [3])
    else:
        # Where nobody saw that it moved, its last state is the last seen one; never one of the other name's.
        assert (ids(lifecycle, "db.two"), ids(lifecycle, "db.t")) == ([1], [3])
    # Its time is over: what only it reads goes, and what the first name has in the same place stays.
    uuid = drop(lifecycle, "db.two")
    assert uuid == lifecycle.steps.table_uuid("db.t")
    is_over(lifecycle, uuid)
    make_all_old(warehouse(lifecycle, "live"))
    scan = lifecycle.scan_dropped("db.two")
    lifecycle.approve(scan.scan_id, who="ann", why="nobody needs it")
    lifecycle.delete_dropped(scan)
    assert [each.state for each in lifecycle.dropped_tables()] == ["gone"]
    assert (ids(lifecycle, "db.t"), ids(lifecycle, "db.new")) == ([3], [1])


def test_a_second_name_that_is_renamed_stays_one_table(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.t")
    register(lifecycle, "two", row_of(lifecycle, "t")[1])
    lifecycle.observe_catalog()
    append(lifecycle, "db.two", 2)
    sql(lifecycle, "ALTER TABLE {live}.db.two RENAME TO db.three")
    # By a step, before any look.
    lifecycle.scan_orphans("db.three")
    append(lifecycle, "db.three", 3)
    lifecycle.observe_catalog()
    known = lifecycle.operations.known_tables.of_catalog(lifecycle.config.catalogs.live.name)
    assert sorted(each.table for each in known) == ["db.t", "db.three"] and lifecycle.dropped_tables() == []


@pytest.mark.parametrize("how", ["reads", "same place"])
def test_a_dropped_table_of_another_catalog_of_the_database_keeps_its_files_for_its_time(
    lifecycle: Lifecycle, how: str
) -> None:
    owner = create(lifecycle, "db.owner")
    own = set() if how == "reads" else set(owner.rglob("*"))
    reader = create(lifecycle, "db.reader", owner if how == "same place" else None)
    take_up(lifecycle, "db.reader", owner / "data") if how == "reads" else append(lifecycle, "db.reader", 2)
    of_reader = {path for path in (reader / "metadata").iterdir() if path.is_file()} - own
    taken = set((owner / "data").glob("*.parquet")) - own
    with lifecycle.operations.engine.begin() as connection:
        move = text("UPDATE iceberg_tables SET catalog_name = 'sibling' WHERE table_name = 'reader'")
        connection.execute(move)
    lifecycle.observe_catalog()
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = 'sibling'"))
    overwrite(lifecycle, "db.owner", 2)
    lifecycle.expire("db.owner")
    collect(lifecycle, "db.owner")
    assert all(path.exists() for path in taken | of_reader) and lifecycle.dropped_tables() == []
    if how == "reads":
        is_over(lifecycle, next(iter(beside(lifecycle))))
        append(lifecycle, "db.owner", 3)
        overwrite(lifecycle, "db.owner", 4)
        assert lifecycle.expire("db.owner").deleted > 0


def _taken_up(lifecycle: Lifecycle) -> tuple[set[Path], str]:
    """A reader of another table's files, its state before, and the files."""
    owner, _ = create(lifecycle, "db.owner"), create(lifecycle, "db.reader")
    before = lifecycle.snapshot_history("db.reader").metadata_location
    taken = set((owner / "data").glob("*.parquet"))
    take_up(lifecycle, "db.reader", owner / "data")
    return taken, before


def _execute(lifecycle: Lifecycle, statement: str, **values: str) -> None:
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text(statement), values)


def test_readers_of_a_catalog_that_the_configuration_no_longer_names_count_for_their_time(lifecycle: Lifecycle) -> None:
    taken, _ = _taken_up(lifecycle)
    lifecycle.observe_catalog()
    uuid = lifecycle.steps.table_uuid("db.reader")
    hold = lifecycle.hold("db.reader", "legal", "case 1")
    _execute(lifecycle, "UPDATE lifecycle.known_tables SET catalog = 'once' WHERE table_name = 'db.reader'")
    _execute(lifecycle, "DELETE FROM iceberg_tables WHERE table_name = 'reader'")
    overwrite(lifecycle, "db.owner", 2)
    lifecycle.expire("db.owner")
    assert all(path.exists() for path in taken)

    old = "UPDATE lifecycle.known_tables SET last_seen = now() - interval '100 days' WHERE table_uuid = :uuid"
    _execute(lifecycle, old, uuid=uuid)
    collect(lifecycle, "db.owner")
    assert all(path.exists() for path in taken)
    lifecycle.release(hold.hold_id)
    overwrite(lifecycle, "db.owner", 3)
    lifecycle.expire("db.owner")
    collect(lifecycle, "db.owner")
    assert not any(path.exists() for path in taken)


def test_a_hold_on_a_snapshot_that_another_tool_expired_keeps_the_table(lifecycle: Lifecycle) -> None:
    """Later snapshots share its files, and nothing tells which."""
    create(lifecycle, "db.t")
    append(lifecycle, "db.t", 2)
    second = lifecycle.snapshot_history("db.t").snapshots[-1].snapshot_id
    append(lifecycle, "db.t", 3)
    hold = lifecycle.hold("db.t", "court", "case 1", snapshot_ids=[second])
    expire_in_metadata(lifecycle, "db.t", [second])
    overwrite(lifecycle, "db.t", 4)
    assert lifecycle.plan_expiration("db.t").expired_snapshots == ()
    lifecycle.release(hold.hold_id)
    assert len(lifecycle.plan_expiration("db.t").expired_snapshots) == 2


def test_a_commit_that_another_catalog_of_the_database_lost_counts(lifecycle: Lifecycle) -> None:
    taken, before = _taken_up(lifecycle)
    _execute(lifecycle, "UPDATE iceberg_tables SET catalog_name = 'sibling' WHERE table_name = 'reader'")
    lifecycle.observe_catalog()
    _execute(
        lifecycle, "UPDATE iceberg_tables SET metadata_location = :before WHERE table_name = 'reader'", before=before
    )
    overwrite(lifecycle, "db.owner", 2)
    lifecycle.expire("db.owner")
    collect(lifecycle, "db.owner")
    assert all(path.exists() for path in taken)
    _execute(lifecycle, "DELETE FROM iceberg_tables WHERE catalog_name = 'sibling'")


def beside(lifecycle: Lifecycle) -> set[str]:
    known = lifecycle.operations.known_tables.of_catalog(beside_catalog(lifecycle.config.catalogs.live.name))
    return {each.table_uuid for each in known}


@pytest.mark.parametrize("can_read", [True, False], ids=["by Iceberg", "by nobody"])
def test_a_table_of_a_newer_version_that_a_view_replaced_before_any_look_keeps_what_it_took_up(
    lifecycle: Lifecycle, shared: Path, monkeypatch: pytest.MonkeyPatch, can_read: bool
) -> None:
    lost = stray(place(lifecycle, "db.owner"))
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    create_view(lifecycle, "reader")
    if not can_read:
        iceberg_cannot_read(monkeypatch)
    with ExitStack() if can_read else pytest.raises(UnreadableMetadata, match="last state cannot be read"):
        lifecycle.expire("db.owner")
    with ExitStack() if can_read else pytest.raises(UnreadableMetadata):
        lifecycle.delete_orphans(lifecycle.scan_orphans("db.owner"))
    assert shared.exists() and lost.exists() is not can_read
