"""Compactions of real tables: the worst partitions first, in what order of rows, and what becomes of deletes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.commits.actions import jvm_table
from artemis_lifecycle.config.policies import Lineage
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.errors import BadInput, NoSuchTable, Refused
from artemis_lifecycle.upkeep.compaction import CompactionPace, PartitionFilters
from artemis_lifecycle.upkeep.health import partitions_with_work
from artemis_lifecycle.upkeep.maintenance import window_opening
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.upkeep.equality_deletes import delete_by_equality

REQUIREMENTS = LineageRequirements.from_config(Lineage())


class Stage:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle, self.spark = lifecycle, lifecycle.spark
        self.live = lifecycle.config.catalogs.live.name

    def create(self, name: str, columns: str, more: str = "", **properties: str) -> str:
        known = {"format-version": "2", "write.distribution-mode": "none", "commit.manifest-merge.enabled": "false"}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in (known | properties).items())
        self.sql(f"CREATE TABLE {{live}}.ns.{name} ({columns}) USING iceberg {more} TBLPROPERTIES ({listed})")
        return f"ns.{name}"

    def sql(self, text: str) -> Any:
        return self.spark.sql(text.format(live=self.live))

    def rows(self, table: str, at: str = "") -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.sql(f"SELECT * FROM {{live}}.{table} {at}").collect()), key=repr)

    def files(self, table: str, where: str = "true") -> int:
        return int(self.sql(f"SELECT count(*) FROM {{live}}.{table}.files WHERE {where}").first()[0])

    def loaded(self, table: str) -> Any:
        return jvm_table(self.spark, self.live, table)

    def unfit_lineage(self, table: str) -> list[object]:
        """What our own commits lack."""
        metadata = self.lifecycle.steps.table_state(table).metadata
        ours = [each for each in metadata.snapshots if "artemis" in (each.summary.properties.get("writer.id") or "")]
        assert ours
        return [
            problem
            for each in ours
            for problem in lineage_problems(
                {**each.summary.properties, "operation": each.summary.operation or ""}, REQUIREMENTS
            )
        ]


@pytest.fixture(scope="module")
def stage(module_configs: MakeConfig, spark: SparkSession) -> Iterator[Stage]:
    config = module_configs(
        tables={
            "ns.budget*": {"compaction": {"max_run_bytes": 1, "min_rewritable_share": 0.01}},
            "ns.large*": {"compaction": {"batch_bytes": 9000}},
            "ns.upserted_*": {"compaction": {"min_delete_file_ratio": 0.2}},
            "ns.analyzed": {"compaction": {"statistics_after": 0.2}},
        }
    )
    with open_lifecycle(config, spark=spark) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {config.catalogs.live.name}.ns")
        yield Stage(lifecycle)


def test_each_partitions_filter_selects_its_files(stage: Stage) -> None:
    """Of the current spec exactly its files; files of an earlier spec may come along, and none is missing."""
    table = stage.create(
        "filtered",
        "a bigint, s string, at timestamp, d date, price decimal(9, 2)",
        "PARTITIONED BY (s, days(at), truncate(2, a), bucket(4, a), d)",
    )
    values = (
        "SELECT id, if(id % 3 = 0, null, concat('it''s/', id % 3)), timestamp_seconds(1704067200 + 40000 * (id % 3)), "
        "if(id % 2 = 0, null, date'1969-12-31'), cast(id as decimal(9, 2)) FROM range({start}, {end}, 1, 1)"
    )
    for _ in range(5):
        stage.sql(f"INSERT INTO {{live}}.{table} {values.format(start=0, end=6)}")
    before = _planned(stage, table)
    assert all(exact == found for exact, found in before.values()) and len(before) == 6
    stage.sql(f"ALTER TABLE {{live}}.{table} DROP PARTITION FIELD s")
    stage.sql(f"ALTER TABLE {{live}}.{table} DROP PARTITION FIELD bucket(4, a)")
    for _ in range(5):
        stage.sql(f"INSERT INTO {{live}}.{table} {values.format(start=0, end=6)}")
    after = _planned(stage, table)
    assert len(after) > len(before) and all(exact <= found for exact, found in after.values())
    dry = stage.lifecycle.compact_data_files(table, dry_run=True)
    rows = stage.rows(table)
    done = stage.lifecycle.compact_data_files(table)
    assert (dry.partitions, dry.planned_files) == (done.partitions, done.rewritten_files) and done.left_partitions == 0
    assert stage.rows(table) == rows and stage.unfit_lineage(table) == []
    assert done.before is not None and done.after is not None
    assert done.before.data_files == 60 and done.after.data_files < 13
    assert done.after.reading_seconds < done.before.reading_seconds
    # Decimals have no literal: their partitions come last, without a filter.
    stage.sql(f"ALTER TABLE {{live}}.{table} ADD PARTITION FIELD price")
    for _ in range(5):
        stage.sql(f"INSERT INTO {{live}}.{table} {values.format(start=0, end=2)}")
    stage.sql(f"INSERT INTO {{live}}.{table} {values.format(start=0, end=2)}")
    metadata = stage.lifecycle.steps.table_state(table).metadata
    work = partitions_with_work(stage.spark, stage.lifecycle.resources.live_stores, metadata)
    filters = PartitionFilters(stage.spark._jvm, stage.loaded(table))
    assert filters.of(work.column("partition").to_pylist()) is None
    rows = stage.rows(table)
    # Without a filter Iceberg chooses which of the table's small files fill a commit, those of earlier specs among
    # them: it may take several runs, and they end.
    planned = stage.lifecycle.compact_data_files(table, dry_run=True).planned_files
    assert planned >= 12
    for _ in range(6):
        if planned:
            assert stage.lifecycle.compact_data_files(table).rewritten_files
            planned = stage.lifecycle.compact_data_files(table, dry_run=True).planned_files
    assert planned == 0
    assert stage.rows(table) == rows


def test_where_compacts_the_partitions_that_may_match(stage: Stage) -> None:
    """Only these, also where the whole table's health asks for nothing, and by each type of partition value."""
    columns = "a bigint, s string, d date, f double, p decimal(9, 2)"
    values = (
        "SELECT id, concat('ü', id), add_months(date'2026-01-15', cast(id as int)), id / 2, cast(id as decimal(9, 2)) "
        "FROM range(0, 4, 1, 1)"
    )
    table = stage.create("where", columns, "PARTITIONED BY (s, months(d), f, p)")
    plain = stage.create("plain", columns, "PARTITIONED BY (s, months(d))")
    for each in [table, plain] * 6:
        stage.sql(f"INSERT INTO {{live}}.{each} {values}")
    for where, partitions in (
        ("s = 'ü1'", 1),
        ("d >= '2026-03-01'", 2),
        ("f < 0.5", 1),
        ("p in (1.00, 3.00)", 2),
        ("a = 1", 4),
        ("s = 'none'", 0),
        ("not s = 'ü0'", 3),
    ):
        dry = stage.lifecycle.compact_data_files(table, where=where, dry_run=True)
        assert (dry.partitions, dry.planned_files) == (partitions, 6 * partitions), where
    with pytest.raises(BadInput, match="nothing"):
        stage.lifecycle.compact_data_files(table, where="nothing = 1")
    # Iceberg has no filter for a decimal: without one, partitions that nobody asked for would be rewritten.
    left = stage.lifecycle.compact_data_files(table, where="s = 'ü1'")
    assert (left.rewritten_files, left.left_partitions, left.snapshot_id) == (0, 1, None) and left.stopped is not None
    rows = stage.rows(plain)
    done = stage.lifecycle.compact_data_files(plain, where="s = 'ü1' or d = '2026-04-20'")
    assert (done.rewritten_files, done.added_files, done.stopped) == (12, 2, None) and stage.rows(plain) == rows
    assert [stage.files(plain, f"partition.s = 'ü{number}'") for number in range(4)] == [6, 1, 6, 1]
    assert stage.unfit_lineage(plain) == []


def _planned(stage: Stage, table: str) -> dict[str, tuple[set[str], set[str]]]:
    """The files of each partition as Iceberg's metadata table has them, and as a scan with our filter plans."""
    loaded = stage.loaded(table)
    filters = PartitionFilters(stage.spark._jvm, loaded)
    own: dict[tuple[int, str], set[str]] = {}
    for row in stage.sql(f"SELECT spec_id, partition, file_path FROM {{live}}.{table}.files").collect():
        own.setdefault((row.spec_id, repr(row.partition)), set()).add(row.file_path)
    metadata = stage.lifecycle.steps.table_state(table).metadata
    work = partitions_with_work(stage.spark, stage.lifecycle.resources.live_stores, metadata)
    found = {}
    for partition in work.column("partition").to_pylist():
        expression = filters.of([partition])
        assert expression is not None
        tasks, planned = loaded.newScan().filter(expression).planFiles().iterator(), set()
        while tasks.hasNext():
            planned.add(tasks.next().file().location())
        spec_id = int(json.loads(partition)[0])
        (exact,) = [files for (spec, _), files in own.items() if spec == spec_id and files & planned]
        found[partition] = (exact, planned)
    assert len({frozenset(exact) for exact, _ in found.values()}) == len(found)
    return found


def test_a_run_takes_the_worst_partition_first_and_the_next_one_goes_on(stage: Stage) -> None:
    table = stage.create("budget", "a int, part string, pad string", "PARTITIONED BY (part)")
    for part, width in (("wide", 400), ("tiny", 1), ("middle", 60)):
        for number in range(6):
            stage.sql(
                f"INSERT INTO {{live}}.{table} SELECT cast(id as int), '{part}', "
                f"substring(repeat(sha2(string(id * {number + 1}), 512), 8), 1, {width}) FROM range(0, 50, 1, 1)"
            )
    rows, order = stage.rows(table), []
    while True:
        dry = stage.lifecycle.compact_data_files(table, dry_run=True)
        if not dry.needed:
            break
        done = stage.lifecycle.compact_data_files(table)
        assert (done.planned_files, done.left_partitions) == (dry.planned_files, dry.left_partitions)
        assert done.rewritten_files == 6 and (done.stopped is not None) == (len(order) < 2)
        compacted = {
            part for part in ("wide", "tiny", "middle") if stage.files(table, f"partition.part = '{part}'") == 1
        }
        order += compacted - set(order)
    assert order == ["tiny", "middle", "wide"]
    assert stage.rows(table) == rows and stage.unfit_lineage(table) == []


def test_a_large_partition_is_rewritten_in_several_commits(stage: Stage) -> None:
    table = stage.create("large", "a int", **{"write.target-file-size-bytes": "4000"})
    for number in range(24):
        span = f"{number * 90}, {number * 90 + 90}"
        stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int) FROM range({span}, 1, 1)")
    done = stage.lifecycle.compact_data_files(table)
    assert done.batches > 1 and 24 <= done.rewritten_files <= 24 + done.batches
    assert done.after is not None and done.after.data_files <= 2 * done.batches
    assert len(stage.rows(table)) == 24 * 90


def test_a_partition_without_a_filter_takes_no_more_than_its_own_share(stage: Stage) -> None:
    """Its rewrite is one of the whole table: what the run's bytes leave out waits all the same."""
    table = stage.create("budget_priced", "a int, price decimal(9, 2)", "PARTITIONED BY (price)")
    for number in range(15):
        stage.sql(f"INSERT INTO {{live}}.{table} VALUES ({number}, cast({number % 3} AS decimal(9, 2)))")
    rows = stage.rows(table)
    done = stage.lifecycle.compact_data_files(table)
    assert (done.partitions, done.left_partitions, done.rewritten_files) == (3, 2, 5)
    assert stage.rows(table) == rows


def test_a_run_does_not_wait_after_its_last_batch(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without deletes to rewrite, nothing follows: it would keep the lease for the next run's pace."""
    table = stage.create("ended", "a int")
    for number in range(6):
        stage.sql(f"INSERT INTO {{live}}.{table} VALUES ({number})")
    waits: list[float] = []
    monkeypatch.setattr(CompactionPace, "wait", lambda pace, stop: waits.append(pace.measured))
    assert stage.lifecycle.compact_data_files(table).rewritten_files == 6
    assert waits == [0.0]


def test_a_large_partition_stops_between_its_commits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    table = stage.create("large_stopped", "a int", **{"write.target-file-size-bytes": "4000"})
    for number in range(24):
        span = f"{number * 90}, {number * 90 + 90}"
        stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int) FROM range({span}, 1, 1)")
    asked = itertools.count()
    monkeypatch.setattr(
        "artemis_lifecycle.upkeep.maintenance.window_opening",
        lambda *_: lambda: "it is late" if next(asked) else None,
    )
    done = stage.lifecycle.compact_data_files(table)
    assert (done.stopped, done.left_partitions, done.batches) == ("it is late", 1, 1)
    assert len(stage.rows(table)) == 24 * 90


def test_a_column_renamed_between_batches_does_not_end_the_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    table = stage.create("renamed", "a int, part string", "PARTITIONED BY (part)")
    for number in range(10):
        stage.sql(f"INSERT INTO {{live}}.{table} VALUES ({number}, 'p''{number % 2}')")
    rows, asked = stage.rows(table), itertools.count()

    def rename() -> None:
        if next(asked) == 1:
            stage.sql(f"ALTER TABLE {{live}}.{table} RENAME COLUMN part TO region")

    monkeypatch.setattr("artemis_lifecycle.upkeep.compaction._PER_FILTER", 1)
    monkeypatch.setattr("artemis_lifecycle.upkeep.maintenance.window_opening", lambda *_: rename)
    done = stage.lifecycle.compact_data_files(table)
    assert (done.rewritten_files, done.left_partitions) == (10, 0)
    assert stage.rows(table) == rows


def test_a_table_made_anew_between_batches_is_left_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    table = stage.create("anew", "a int, part int", "PARTITIONED BY (part)")
    for number in range(10):
        stage.sql(f"INSERT INTO {{live}}.{table} VALUES ({number}, {number % 2})")
    asked = itertools.count()

    def make_anew() -> None:
        if next(asked) == 1:
            stage.sql(f"DROP TABLE {{live}}.{table}")
            stage.create("anew", "a int, part int", "PARTITIONED BY (part)")
            for number in range(10):
                stage.sql(f"INSERT INTO {{live}}.{table} VALUES ({-number}, {number % 2})")

    monkeypatch.setattr("artemis_lifecycle.upkeep.compaction._PER_FILTER", 1)
    monkeypatch.setattr("artemis_lifecycle.upkeep.maintenance.window_opening", lambda *_: make_anew)
    with pytest.raises(NoSuchTable, match="belongs to another table"):
        stage.lifecycle.compact_data_files(table)
    assert stage.rows(table) == sorted(((-each, each % 2) for each in range(10)), key=repr)
    assert stage.files(table) == 10


def test_a_table_with_a_sort_order_is_sorted(stage: Stage) -> None:
    table = stage.create("sorted", "a int")
    stage.sql(f"ALTER TABLE {{live}}.{table} WRITE ORDERED BY a DESC")
    for number in range(6):
        stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id * 7 + {number} as int) FROM range(0, 40, 1, 1)")
    assert stage.lifecycle.compact_data_files(table).rewritten_files == 6
    (path,) = [row[0] for row in stage.sql(f"SELECT file_path FROM {{live}}.{table}.files").collect()]
    found = pq.read_table(path.removeprefix("file:")).column("a").to_pylist()
    assert found == sorted(found, reverse=True) and len(found) == 240


@pytest.mark.parametrize("by", ["PARTITIONED BY (part)", ""])
def test_equality_deletes_go_into_the_files(stage: Stage, by: str) -> None:
    table = stage.create(f"upserted_{bool(by):d}", "a int, part string", by)
    for number in range(3):
        span = f"{number * 9}, {number * 9 + 9}"
        stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int), 'x' FROM range({span}, 1, 1)")
    for values in ([3, 10], [4]):
        delete_by_equality(stage.spark, stage.loaded(table), "a", values, "part=x" if by else None)
    # A row that came back after its delete, as in an upsert, stays.
    stage.sql(f"INSERT INTO {{live}}.{table} VALUES (3, 'x')")
    rows = stage.rows(table)
    assert len(rows) == 27 - 3 + 1 and stage.files(table, "content = 2") == 2
    dry = stage.lifecycle.compact_data_files(table, dry_run=True)
    done = stage.lifecycle.compact_data_files(table)
    assert dry.planned_files == 4 and done.rewritten_files >= 3
    assert stage.rows(table) == rows and stage.unfit_lineage(table) == []
    assert done.after is not None and done.after.delete_files == 0, done
    assert not stage.lifecycle.compact_data_files(table).needed
    # As the last commit, the delete has the sequence number that the new file gets.
    delete_by_equality(stage.spark, stage.loaded(table), "a", [5], "part=x" if by else None)
    rows = stage.rows(table)
    again = stage.lifecycle.compact_data_files(table)
    assert again.rewritten_files == 1 and stage.rows(table) == rows and len(rows) == 24
    assert again.after is not None and again.after.delete_files == 0


@pytest.mark.parametrize("is_upsert", [False, True])
def test_a_delete_over_all_partitions_still_counts(stage: Stage, is_upsert: bool) -> None:
    """A delete by equality in an unpartitioned spec is about the files of every other spec, too."""
    table = stage.create(f"upserted_evolved_{is_upsert:d}", "a int, part string", "PARTITIONED BY (part)")
    for number in range(3):
        span = f"{number * 9}, {number * 9 + 9}"
        stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int), 'x' FROM range({span}, 1, 1)")
    stage.sql(f"ALTER TABLE {{live}}.{table} DROP PARTITION FIELD part")
    delete_by_equality(stage.spark, stage.loaded(table), "a", [3, 10])
    if is_upsert:
        stage.sql(f"INSERT INTO {{live}}.{table} VALUES (3, 'x')")
    rows = stage.rows(table)
    assert len(rows) == 25 + is_upsert
    assert stage.lifecycle.compact_data_files(table).needed
    assert stage.rows(table) == rows


def test_manifests_are_clustered_so_that_planning_reads_fewer(stage: Stage) -> None:
    """Large manifests of all partitions: few enough, and none can be skipped."""
    table = stage.create(
        "clustered", "a bigint, day int", "PARTITIONED BY (day)", **{"commit.manifest.target-size-bytes": "9000"}
    )
    for number in range(16):
        span = f"{number * 16}, {number * 16 + 16}"
        stage.sql(f"INSERT INTO {{live}}.{table} SELECT id, cast(id % 16 as int) FROM range({span}, 1, 1)")
    health = stage.lifecycle.table_health(table)
    assert health.manifests <= 2 * health.fewest_manifests and health.mixed_manifests == 16
    before = stage.lifecycle.plan_query(table, "day = 5")
    rows = stage.rows(table)
    done = stage.lifecycle.compact_manifests(table)
    after = stage.lifecycle.plan_query(table, "day = 5")
    assert done.needed and done.rewritten_manifests == 16
    assert before.manifests_selected == 16 and after.manifests_selected <= 3 < after.manifests_total
    assert after.files_selected == before.files_selected == 16
    assert stage.rows(table) == rows and stage.unfit_lineage(table) == []
    assert not stage.lifecycle.compact_manifests(table).needed


def test_statistics_follow_the_rows(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    table = stage.create("analyzed", "a int")
    stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int) FROM range(0, 100, 1, 1)")
    assert stage.lifecycle.compact_data_files(table, dry_run=True).statistics_file is None
    with monkeypatch.context() as patch:
        patch.setattr("artemis_lifecycle.upkeep.maintenance.window_opening", lambda *_: lambda: "it is late")
        late = stage.lifecycle.compact_data_files(table)
    assert (late.needed, late.stopped, late.statistics_file) == (True, "it is late", None)
    done = stage.lifecycle.compact_data_files(table)
    assert done.statistics_file is not None and done.snapshot_id is None
    assert any(row.path == done.statistics_file for row in stage.lifecycle.reachable_set(table).files().collect())
    stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int) FROM range(100, 110, 1, 1)")
    assert not stage.lifecycle.compact_data_files(table).needed
    stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int) FROM range(200, 230, 1, 1)")
    again = stage.lifecycle.compact_data_files(table)
    assert again.needed and again.statistics_file not in (None, done.statistics_file)
    assert stage.lifecycle.table_health(table).unanalyzed_records == 0


def test_tags_and_the_cold_tier_answer_as_before(module_configs: MakeConfig, spark: SparkSession) -> None:
    """A tag in the live table, and an expired snapshot in the cold tier: a compaction, and the deletion of what it
    replaced, change no row of either."""
    config = module_configs(tables={"ns.*": {"retention": {"window": "1ms"}, "deletion": {"grace": "0s"}}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {config.catalogs.live.name}.ns")
        stage = Stage(lifecycle)
        table = stage.create("aged", "a int", **{"write.delete.mode": "merge-on-read"})
        for number in range(6):
            span = f"{number * 9}, {number * 9 + 9}"
            stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int) FROM range({span}, 1, 1)")
        history = lifecycle.snapshot_history(table).snapshots
        old, tagged = history[2], history[4].snapshot_id
        lifecycle.tag(table, "audited", tagged)
        rows = {each: stage.rows(table, f"VERSION AS OF {each}") for each in (old.snapshot_id, tagged)}
        stage.sql(f"DELETE FROM {{live}}.{table} WHERE a IN (1, 20, 50)")

        first = lifecycle.plan_expiration(table)
        assert old.snapshot_id in first.expired_snapshots and tagged not in first.expired_snapshots
        lifecycle.hand_off(first)
        lifecycle.commit_expiration(first)
        current = stage.rows(table)
        done = lifecycle.compact_data_files(table)
        assert done.rewritten_files == 6 and done.after is not None and done.after.delete_files == 0
        lifecycle.delete_files(first)
        # What the compaction replaced expires as well.
        second = lifecycle.plan_expiration(table)
        lifecycle.hand_off(second)
        lifecycle.commit_expiration(second)
        lifecycle.delete_files(second)

        def read(**at: Any) -> list[tuple[Any, ...]]:
            return sorted(map(tuple, lifecycle.read(table, **at).collect()), key=repr)

        as_of = datetime.fromtimestamp(old.timestamp_ms / 1000, tz=UTC)
        assert lifecycle.route(table, as_of=as_of).tier == "cold"
        assert read(as_of=as_of) == read(snapshot_id=old.snapshot_id) == rows[old.snapshot_id]
        assert read(tag="audited") == rows[tagged] and lifecycle.route(table, tag="audited").tier == "live"
        assert stage.rows(table) == current


def test_a_compaction_that_began_by_day_ends_when_the_quiet_window_opens(
    module_configs: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = module_configs(tables={"ns.*": {}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {config.catalogs.live.name}.ns")
        stage = Stage(lifecycle)
        table = stage.create("parted", "a int, part int", "PARTITIONED BY (part)")
        for _ in range(5):
            stage.sql(f"INSERT INTO {{live}}.{table} SELECT cast(id as int), id % 2 FROM range(0, 8, 1, 1)")
        rows, ticks = stage.rows(table), itertools.count()
        quiet, at = config.policy(table).quiet_window, datetime.now(UTC).replace(hour=23, minute=0)
        monkeypatch.setattr("artemis_lifecycle.upkeep.compaction._PER_FILTER", 1)
        # Once when it begins, once before the first batch; then it is one o'clock.
        stop = window_opening(quiet, lambda: at + timedelta(hours=2 * (next(ticks) > 1)))
        monkeypatch.setattr("artemis_lifecycle.upkeep.maintenance.window_opening", lambda *_: stop)
        done = lifecycle.compact_data_files(table)
        assert (done.partitions, done.left_partitions, done.rewritten_files) == (2, 1, 5)
        assert done.stopped == "the quiet window (00:00 to 08:00 UTC) opened"
        assert lifecycle.compact_data_files(table).rewritten_files == 0, "one o'clock is still not its time"
        monkeypatch.undo()
        assert lifecycle.compact_data_files(table).rewritten_files == 5
        assert stage.rows(table) == rows
        # Work that began inside of the window, by a person, goes on.
        assert window_opening(quiet, lambda: at + timedelta(hours=2))() is None


def test_files_with_more_rows_than_the_metadata_records_are_refused(stage: Stage, tmp_path: Path) -> None:
    """A job has written files of the same size again at the paths of committed ones."""
    table = stage.create("rewritten", "a int")

    def parquet(number: int, rows: int, pad: int) -> bytes:
        schema = pa.schema([("a", pa.int32())], metadata={"pad": "x" * pad})
        pq.write_table(pa.table({"a": [number] * rows}, schema), tmp_path / "file", store_schema=False)
        return (tmp_path / "file").read_bytes()

    staged = [tmp_path / "staged" / f"{number}.parquet" for number in range(6)]
    staged[0].parent.mkdir()
    for number, path in enumerate(staged):
        path.write_bytes(parquet(number, 1, 100))
    stage.sql(f"CALL {{live}}.system.add_files(table => '{table}', source_table => '`parquet`.`{staged[0].parent}`')")
    for number, path in enumerate(staged):
        more = len(parquet(number, 2, 100)) - path.stat().st_size
        path.write_bytes(parquet(number, 2, 100 - more))
    with pytest.raises(Refused, match=r"other rows than the metadata records .*12 added records > 6 replaced"):
        stage.lifecycle.compact_data_files(table)
    assert stage.files(table) == 6
