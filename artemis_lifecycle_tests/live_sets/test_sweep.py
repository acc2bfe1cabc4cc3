"""The sweep's seams, each with a second implementation: metadata files from a dictionary, rows in a list, a walk, a
scan and a deletion that only say what they were asked. And the sweep of a plain catalog, with the real ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from typer.testing import CliRunner

from artemis_lifecycle.cli.live_sets import app as commands
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import BadInput, MissingFile, StorageError, UnreadableMetadata
from artemis_lifecycle.live_sets.sweep import compared, sweep_tables, unused_locations
from artemis_lifecycle.live_sets.tables import MergedTable, VersionMetadata, merged_tables
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.operations.live_sets import NO_SNAPSHOT, BaseLocation, LiveVersion, SweptTable
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.scan import OrphanScanResult
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
NOW = datetime(2026, 11, 25, tzinfo=UTC)


def node(updated: int, snapshots: dict[int, str], current: int | None, **more: Any) -> dict[str, Any]:
    return {
        "format-version": 2,
        "table-uuid": UUID,
        "location": "s3://b/t",
        "last-sequence-number": len(snapshots),
        "last-updated-ms": updated,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [{"schema-id": 0, "type": "struct", "fields": []}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "current-snapshot-id": -1 if current is None else current,
        "snapshots": [
            {"snapshot-id": id_, "sequence-number": n, "timestamp-ms": n, "manifest-list": path}
            for n, (id_, path) in enumerate(snapshots.items(), 1)
        ],
        "properties": {"gc.enabled": "false"},
        **more,
    }


@dataclass
class FilesInMemory:
    """Metadata files as a dictionary: the second implementation of that seam."""

    files: dict[str, dict[str, Any]]

    def __call__(self, metadata_location: str) -> VersionMetadata:
        if metadata_location not in self.files:
            raise UnreadableMetadata.missing(metadata_location)
        found = self.files[metadata_location]
        return VersionMetadata(metadata_location, found, found["table-uuid"], (found["location"],))


def version(metadata_location: str, snapshot_id: int = NO_SNAPSHOT) -> LiveVersion:
    return LiveVersion("s", "c", metadata_location, snapshot_id, "db.t", "ICEBERG_TABLE", "main")


BRANCHES = FilesInMemory(
    {
        "s3://b/t/metadata/1.json": node(1, {1: "l1", 2: "l2"}, 2),
        "s3://b/t/metadata/2.json": node(
            2,
            {1: "l1", 3: "l3"},
            3,
            **{"metadata-log": [{"metadata-file": "s3://b/t/metadata/0.json", "timestamp-ms": 0}]},
            location="s3://b/moved",
        ),
    }
)
BOTH = [version("s3://b/t/metadata/1.json", 2), version("s3://b/t/metadata/2.json", 3)]


def test_versions_of_branches_become_one_table_with_all_that_any_of_them_keeps() -> None:
    ((content_id, table),) = merged_tables(BRANCHES, BOTH, "all").values()
    found = parse_table_metadata(table.data(), "merged")
    assert content_id == "c" and [each.snapshot_id for each in found.snapshots] == [1, 2, 3]
    assert [each.metadata_file.rpartition("/")[2] for each in found.metadata_log] == ["0.json", "1.json", "2.json"]
    assert found.current_snapshot_id == 3 and found.gc_enabled and list(table.locations) == ["s3://b/t", "s3://b/moved"]
    ((_, table),) = merged_tables(BRANCHES, BOTH[::-1], "referenced").values()
    found = parse_table_metadata(table.data(), "merged")
    assert [each.snapshot_id for each in found.snapshots] == [2, 3]
    assert [each.metadata_file.rpartition("/")[2] for each in found.metadata_log] == ["1.json", "2.json"]


def test_the_order_of_versions_changes_nothing() -> None:
    tables = [merged_tables(BRANCHES, versions, "all")[UUID][1] for versions in (BOTH, BOTH[::-1])]
    assert tables[0].data() == tables[1].data()


def test_what_was_merged_before_stays_when_more_is_merged() -> None:
    first = merged_tables(BRANCHES, BOTH[:1], "all")[UUID][1]
    before = VersionMetadata("m", json.loads(first.data()), UUID, ("s3://b/t",))
    later = merged_tables(BRANCHES, BOTH[1:], "all")[UUID][1]
    later.include(before)
    assert {each["snapshot-id"] for each in json.loads(later.data())["snapshots"]} == {1, 2, 3}


@pytest.mark.parametrize(
    ("files", "versions"),
    [
        ({}, [version("gone.json", 1)]),
        ({"a": node(1, {1: "l1"}, 1)}, [version("a", 7)]),
        ({"a": node(1, {1: "l1"}, 1), "b": node(2, {1: "other"}, 1)}, [version("a", 1), version("b", 1)]),
    ],
    ids=["missing", "lacks the snapshot", "two snapshots with one id"],
)
def test_a_version_that_is_missing_or_ambiguous_stops_everything(
    files: dict[str, dict[str, Any]], versions: list[LiveVersion]
) -> None:
    with pytest.raises(UnreadableMetadata):
        merged_tables(FilesInMemory(files), versions, "all")


def test_a_table_without_snapshots_needs_only_its_metadata_file() -> None:
    table = MergedTable(UUID, "referenced")
    table.add(FilesInMemory({"a": node(1, {}, None)})("a"), [NO_SNAPSHOT])
    found = parse_table_metadata(table.data(), "merged")
    assert found.snapshots == () and [each.metadata_file for each in found.metadata_log] == ["a"]


# --- the sweep of tables, with second implementations of its seams --------------------------------------------------


@dataclass
class Asked:
    """A walk, a scan, a deletion and rows that keep what they were asked."""

    broken: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    rows: list[SweptTable] = field(default_factory=list)

    def walk(self, table: str, location: str | None = None, /) -> Listing:
        self.calls.append(("walk", table))
        if table == self.broken:
            raise StorageError("the store is down")
        return Listing(table, (table,), NOW, NOW, "nowhere", 10, 100)

    def scan(self, table: str, listing: Listing, /) -> OrphanScanResult:
        self.calls.append(("scan", listing.listing_id))

        class Found:
            scan_id = f"scan of {table}"

            class summary:  # noqa: N801
                orphan_files, orphan_bytes = 3, 30

        return cast(OrphanScanResult, Found)

    def delete(self, scan_id: str, /) -> DeletionReport:
        self.calls.append(("delete", scan_id))
        if self.broken == scan_id:
            raise MissingFile("it waits")

        class Report:
            deleted, paused = 3, None

        return cast(DeletionReport, Report)

    def swept_table(self, row: SweptTable) -> None:
        self.rows.append(row)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_table_that_cannot_be_swept_stops_no_other(threads: int) -> None:
    asked = Asked(broken="b")
    tables = [("a", "1"), ("b", "2"), ("c", "3")]
    done = sweep_tables(
        "s", tables, asked.swept_table, walk=asked.walk, scan=asked.scan, delete=asked.delete, threads=threads
    )
    assert [(each.table, each.files, each.deleted) for each in done] == [("a", 3, 3), ("b", 0, None), ("c", 3, 3)]
    assert done[1].error is not None and ("scan", "b") not in asked.calls
    assert {row.table: row.scan_id for row in asked.rows} == {"a": "scan of a", "b": None, "c": "scan of c"}


@pytest.mark.parametrize("threads", [1, 3])
def test_the_command_sweeps_as_many_tables_at_a_time_as_it_is_told(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    met, seen = threading.Barrier(3), set[str]()

    def swept(*given: Any, walk: Any, scan: Any, **settings: Any) -> Any:
        def walked(table: str, location: str | None = None) -> Any:
            with suppress(threading.BrokenBarrierError):
                met.wait(timeout=5 if settings["threads"] == 3 else 0.01)
                seen.add(table)  # Three were at work at once.
            return walk(table)

        return sweep_tables(*given, walk=walked, scan=scan, **settings)

    monkeypatch.setattr("artemis_lifecycle.walk.live_sets.sweep_tables", swept)
    config = make_config(defaults={"orphans": {"min_age": "0s", "min_age_floor": "0s", "max_share": 1}})
    names = [f"{config.catalogs.live.name}.db.t{number}" for number in range(3)]
    core_tables.sql(spark, f"CREATE NAMESPACE {config.catalogs.live.name}.db")
    for name in names:
        core_tables.sql(spark, f"CREATE TABLE {name} (n INT) USING iceberg")
    with open_lifecycle(config, spark) as lifecycle:
        monkeypatch.setattr("artemis_lifecycle.cli.command.opened", lambda *_: nullcontext(lifecycle))
        marked = lifecycle.mark(config.catalogs.live.name)
        done = CliRunner().invoke(commands, ["sweep", marked.live_set_id, "--threads", str(threads)])
    assert done.exit_code == 0, done.output
    assert len(seen) == (3 if threads == 3 else 0)


def test_a_deferred_sweep_deletes_nothing_and_a_deletion_that_waits_keeps_its_scan() -> None:
    asked = Asked(broken="scan of a")
    (table,) = sweep_tables("s", [("a", "1")], asked.swept_table, walk=asked.walk, scan=asked.scan, delete=None)
    assert table.deleted is None and ("delete", "scan of a") not in asked.calls
    (table,) = sweep_tables("s", [("a", "1")], asked.swept_table, walk=asked.walk, scan=asked.scan, delete=asked.delete)
    assert table.scan_id == "scan of a" and table.waits is not None and table.error is None


def test_a_location_is_unused_only_if_no_live_one_is_around_or_in_it() -> None:
    def seen(location: str, days: int) -> BaseLocation:
        return BaseLocation("v", "u", location, "v:t", NOW - timedelta(days=days + 1), NOW - timedelta(days=days))

    known = [
        seen("s3://b/old", 9),
        seen("s3://b/t", 9),
        seen("s3://b/t/sub", 9),
        seen("s3://b", 9),
        seen("s3://b/new", 0),
    ]
    found = unused_locations(known, ["s3://b/t"], NOW - timedelta(days=1), LocationRules({}, {}))
    assert [each.location for each in found] == ["s3://b/old"]


def test_comparing_sets_goes_through_both_in_one_pass() -> None:
    def versions(*keys: tuple[str, str, int]) -> Iterator[LiveVersion]:
        return (LiveVersion("s", *key, "db.t", "ICEBERG_TABLE", "main") for key in sorted(keys))

    one, two, three = ("a", "1", 1), ("a", "2", 2), ("b", "1", 1)
    found = compared("x", "y", versions(one, two), versions(two, three), {"b": "db.b"})
    assert (found.same_versions, found.only_before, found.only_after) == (1, 1, 1)
    assert (found.contents_gone, found.contents_new) == ((), ("db.b",))
    assert (found.versions_gone, found.versions_new) == (("1",), ("1",))


# --- a plain catalog ------------------------------------------------------------------------------------------------


def test_a_plain_catalog_has_one_reference_per_table(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(defaults={"orphans": {"min_age": "0s", "min_age_floor": "0s", "max_share": 1}})
    live = config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    for name in ("one", "two"):
        core_tables.sql(spark, f"CREATE TABLE {live}.db.{name} (n INT) USING iceberg")
        for row in range(3):
            core_tables.sql(spark, f"INSERT INTO {live}.db.{name} VALUES ({row})")
    with open_lifecycle(config, spark=spark) as lifecycle:
        marked = lifecycle.mark(live, {"db.one": 1})
        assert (marked.references, marked.contents, marked.versions, marked.commits) == (2, 2, 4, 4)
        location = lifecycle.snapshot_history("db.one").metadata_location.rpartition("/metadata/")[0]
        stray = f"{location}/data/stray.parquet"
        lifecycle.live_stores.write(stray, b"x")
        done = lifecycle.sweep(marked, deferred=False)
        assert {each.table: each.deleted for each in done.tables} == {"db.one": 1, "db.two": 0}
        assert done.live_set.state == "swept" and lifecycle.live_stores.head(stray) is None
        assert len(lifecycle.snapshot_history("db.one").snapshots) == 3, "snapshots go by expiration, not by a sweep"
        with pytest.raises(BadInput, match="neither"):
            lifecycle.mark("nonsense")
    assert spark.sql(f"SELECT * FROM {live}.db.one VERSION AS OF {first_snapshot(spark, live)}").count() == 1


def first_snapshot(spark: SparkSession, live: str) -> int:
    rows = spark.sql(f"SELECT snapshot_id FROM {live}.db.one.snapshots ORDER BY committed_at").collect()
    return int(rows[0][0])
