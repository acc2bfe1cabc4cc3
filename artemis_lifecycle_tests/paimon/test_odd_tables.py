"""Tables as other clocks, engines and people leave them: odd partitions, wrong times, stale hints, renamed tables, and
a rollback to a snapshot that has expired."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.errors import Held, MissingFile, NoSuchTable, StalePlan, UnreadableMetadata
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.paimon import ours
from artemis_lifecycle_tests.paimon.bundle import COLUMNS, Table, create
from artemis_lifecycle_tests.paimon.plants import age

OPTIONS = {
    "bucket": "1",
    "write-only": "true",
    "snapshot.num-retained.min": "1",
    "snapshot.num-retained.max": "1",
    "snapshot.time-retained": "1 ms",
}
A_DAY_AGO = datetime.now(UTC) - timedelta(days=1)
PARTITIONS = (
    *(
        ("STRING", value)
        for value in ("\u00a0", "\u2007", "\x85", "\u3000", "\x1c", "a%b", "%41", "a/b=c", " x ", "ü😀")
    ),
    ("TIMESTAMP(3)", "0999-01-01 00:00:00"),
    ("TIMESTAMP(6)", "0999-01-01 00:00:00.123456"),
    ("DATE", "0001-01-01"),
)


def rewritten(calls: Any, warehouse: Path, partition: str = "a", **given: Any) -> Table:
    """A table whose one row is rewritten by three commits, so that only the last files live."""
    table = create(calls, warehouse, **{"keyed": True, "options": OPTIONS, **given})
    for number in range(3):
        table.write([(1, partition, f"v{number}")], compact="fully")
    return table


@pytest.mark.parametrize("legacy", [pytest.param("true", marks=pytest.mark.nightly), "false"])
@pytest.mark.parametrize(("kind", "value"), PARTITIONS, ids=lambda each: ascii(each))
def test_the_folders_of_odd_partitions(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path, kind: str, value: str, legacy: str
) -> None:
    columns = (COLUMNS[0], ("p", f"{kind} NOT NULL"), COLUMNS[2])
    options = {**OPTIONS, "partition.legacy-name": legacy}
    table = rewritten(calls, tmp_path / "lake", value, columns=columns, partitioned=True, options=options)
    theirs = table.copy(tmp_path / "theirs")
    theirs.expire(retain_max=1, retain_min=1, max_deletes=10)

    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        ours.expire(lifecycle, table)
        age(table)
        ours.remove_orphans(lifecycle, table, older_than=A_DAY_AGO)

    assert table.listing() == theirs.listing()
    assert table.read() == theirs.read()


def test_a_file_that_is_not_where_the_table_says_stops_the_scan_whatever_the_writers_clock(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    table = rewritten(calls, tmp_path / "lake", partitioned=True)
    for number in table.snapshots():
        table.place(number, datetime.now(UTC) + timedelta(days=2))
    (table.folder / "p=a").rename(table.folder / "p=b")
    age(table)
    before = table.listing()

    with (
        ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle,
        pytest.raises(MissingFile),
    ):
        ours.remove_orphans(lifecycle, table, older_than=A_DAY_AGO)

    assert table.listing() == before


@pytest.mark.parametrize("milliseconds", [10**15, 2**63 - 1, -(10**15)])
def test_times_that_no_calendar_has(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path, milliseconds: int
) -> None:
    table = rewritten(calls, tmp_path / "lake")
    for number in table.snapshots():
        file = table.snapshot_file(number)
        file.write_text(json.dumps({**json.loads(file.read_text()), "timeMillis": milliseconds}))
    data = next(table.folder.glob("bucket-0/*.parquet"))
    age(table)
    rows = table.read()

    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        lifecycle.explain(ours.name(table), f"file://{data}")
        ours.expire(lifecycle, table)
        ours.remove_orphans(lifecycle, table, older_than=A_DAY_AGO)

    assert table.read() == rows and len(table.snapshots()) == 1


def test_a_stale_hint_is_removed_before_the_snapshot_that_it_names(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    table = rewritten(calls, tmp_path / "lake")
    rows, latest = table.read(), table.snapshots()[-1]
    hint = table.folder / "snapshot" / "LATEST"
    hint.write_text("2")

    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        # Written after the last commit, as by a rollback.
        with pytest.raises(StalePlan, match="LATEST"):
            ours.expire(lifecycle, table)
        assert table.snapshots()[0] == 1
        before = table.snapshot_file(latest).stat().st_mtime - 1
        os.utime(hint, (before, before))
        ours.expire(lifecycle, table)

    assert table.snapshots() == [latest] and table.read() == rows


def test_a_hold_stays_when_the_table_is_renamed(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    table = rewritten(calls, tmp_path / "lake")
    snapshots = table.snapshots()

    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        lifecycle.hold(ours.name(table), "auditor", "case 7", snapshot_ids=(1,))
        renamed = Table(calls, table.folder.rename(table.folder.with_name("renamed")))
        ours.expire(lifecycle, renamed)
        assert renamed.snapshots() == snapshots
        # Another table gets the name, and has no hold.
        another = rewritten(calls, tmp_path / "lake")
        ours.expire(lifecycle, another)
        assert len(another.snapshots()) == 1


@pytest.mark.parametrize("producer", ["input", "full-compaction"])
def test_a_rollback_to_an_expired_snapshot_leaves_a_table_that_expires(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path, producer: str
) -> None:
    table = rewritten(calls, tmp_path / "lake", options={**OPTIONS, "changelog-producer": producer})
    table.tag("second", 2)

    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        ours.expire(lifecycle, table)
        ours.procedures(lifecycle, table).rollback_to(ours.name(table), tag="second")
        table.delete_tag("second")
        latest = table.write([(1, "a", "after")], compact="fully")
        ours.expire(lifecycle, table)
        assert table.snapshots() == [latest] and table.read() == [(1, "a", "after")]
        # Of any other snapshot, the list is lost.
        table.write([(1, "a", "more")], compact="fully")
        later = [json.loads(table.snapshot_file(each).read_text()) for each in table.snapshots()[1:]]
        (lost,) = [each["changelogManifestList"] for each in later if each.get("changelogManifestList")]
        (table.folder / "manifest" / lost).unlink()
        with pytest.raises(UnreadableMetadata):
            ours.expire(lifecycle, table)


def test_undelete_brings_files_back_and_no_scan_takes_them(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    table = rewritten(calls, tmp_path / "lake")
    before, files = table.contents(), table.files()
    config = ours.configured(
        make_config,
        table.warehouse,
        defaults={"deletion": {"grace": "0s", "mode": "quarantine"}},
        quarantine={"root": f"file://{tmp_path}/quarantine"},
    )

    with ours.opened(config, spark) as lifecycle:
        plan = lifecycle.plan_expiration(ours.name(table))
        lifecycle.commit_expiration(plan)
        assert lifecycle.delete_files(plan).deleted
        lifecycle.undelete(plan.plan_id, who="an operator", why="too much")
        age(table)
        ours.remove_orphans(lifecycle, table, older_than=A_DAY_AGO)

    for name, content in files.items():
        if name.startswith("snapshot/snapshot-"):
            Stores().write(f"file://{table.folder / name}", content, overwrite=True)
    assert table.contents() == before


def test_a_database_that_is_not_there_is_no_empty_one(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    table = rewritten(calls, tmp_path / "lake")
    with (
        ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle,
        pytest.raises(NoSuchTable, match="no database"),
    ):
        ours.procedures(lifecycle, table).remove_orphan_files("lake:typo.*")


def test_a_hold_on_the_whole_table_stops_its_orphans_when_it_is_renamed(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    table = rewritten(calls, tmp_path / "lake")
    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        lifecycle.hold(ours.name(table), "auditor", "case 8")
        renamed = Table(calls, table.folder.rename(table.folder.with_name("renamed")))
        orphan = renamed.folder / "bucket-0" / "data-00000000-0000-0000-0000-000000000000-0.parquet"
        orphan.write_bytes(b"left behind")
        age(renamed)
        with pytest.raises(Held, match="case 8"):
            ours.remove_orphans(lifecycle, renamed, older_than=A_DAY_AGO)
    assert orphan.exists()


def test_an_asynchronous_expiration_deletes_nothing_yet_and_says_when_and_how(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    options = {**OPTIONS, "snapshot.expire.execution-mode": "async"}
    table = rewritten(calls, tmp_path / "lake", options=options)
    files, rows, snapshots = set(table.folder.glob("bucket-0/*")), table.read(), table.snapshots()
    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        done = ours.procedures(lifecycle, table).expire_snapshots(ours.name(table))
        [warning] = [each for each in done.warnings if "execution-mode is async" in each]
        assert done.due_at is not None and f"{done.due_at:%Y-%m-%d %H:%M} UTC" in warning
        assert f"artemis delete {done.plan_id}" in warning and done.deleted_snapshots_count == len(snapshots) - 1
        assert set(table.folder.glob("bucket-0/*")) == files
        assert lifecycle.delete_files(done.plan_id).deleted > 0
    assert set(table.folder.glob("bucket-0/*")) < files and table.read() == rows
