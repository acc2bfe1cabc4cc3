"""`plan_query` and `artemis plan-query` on real tables with real files: row groups, deletes, advice, damage."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.commits.actions import jvm_table
from artemis_lifecycle.errors import BadInput, UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import read_manifest
from artemis_lifecycle.metadata.values import partition_ranges
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.planning.iceberg_planner import IcebergPlanner

PREDICATES = {
    "id >= 150 and id < 160": "and GT_EQ id 1 x9600000000000000 LT id 1 xa000000000000000",
    "name like 'n17%'": "STARTS_WITH name 1 x" + b"n17".hex(),
    "name not like 'n%'": "NOT_STARTS_WITH name 1 x" + b"n".hex(),
    "note is null": "IS_NULL note 0",
    "note is not null": "NOT_NULL note 0",
    "value > 180.0": "GT value 1 x0000000000806640",
    "value is nan": "IS_NAN value 0",
    "id in (5, 199)": "IN id 2 x0500000000000000 xc700000000000000",
    "id != 5": "NOT_EQ id 1 x0500000000000000",
    "price < 3.00": "LT price 1 x012c",
    "place.city like 'c17%'": "STARTS_WITH place.city 1 x" + b"c17".hex(),
    "place.inner.most.x < 20": "LT place.inner.most.x 1 x14000000",
    "place.inner.most.x is null": "IS_NULL place.inner.most.x 0",
    "place is null": "IS_NULL place 0",
    "place is not null": "NOT_NULL place 0",
    "tags is null": "IS_NULL tags 0",
    "tags is not null": "NOT_NULL tags 0",
    "at >= '2024-01-03T00:00:00+00:00'": "GT_EQ at 1 x00e0cf4bff0d0600",
}
DEFAULTED = {
    "= 7": "EQ {} 1 x0700000000000000",
    "= 8": "EQ {} 1 x0800000000000000",
    "!= 7": "NOT_EQ {} 1 x0700000000000000",
    "in (1, 8)": "IN {} 2 x0100000000000000 x0800000000000000",
    "is null": "IS_NULL {} 0",
    "is not null": "NOT_NULL {} 0",
}


@pytest.fixture
def table(lifecycle: Lifecycle) -> str:
    """10 files of 20 rows in two days, with several row groups each."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.ns")
    spark.sql(
        f"""CREATE TABLE {live}.ns.t (id bigint, name string, note string, value double, price decimal(9, 2),
            at timestamp, pad string, place struct<city string, `inner.most` struct<x int>>, tags array<string>,
            spot struct<y int> NOT NULL, day date) USING iceberg PARTITIONED BY (day)
            TBLPROPERTIES ('format-version' = '2', 'write.parquet.row-group-size-bytes' = '1024',
            'write.parquet.page-size-bytes' = '256', 'write.parquet.row-group-check-min-record-count' = '10',
            'write.parquet.row-group-check-max-record-count' = '10', 'write.delete.mode' = 'merge-on-read',
            'commit.manifest-merge.enabled' = 'false', 'write.distribution-mode' = 'none')"""
    )
    for start in range(0, 200, 20):
        spark.sql(
            f"""INSERT INTO {live}.ns.t SELECT id, concat('n', id), if(id < 100, null, 'x'),
                if(id = 3, double('NaN'), double(id)), cast(id / 10 as decimal(9, 2)),
                timestamp_seconds(1704067200 + id * 3600), sha2(string(id), 512),
                if(id > 150, null, named_struct('city', concat('c', id), 'inner.most', named_struct('x', int(id)))),
                if(id < 50, null, array('a', 'b')), named_struct('y', int(id)),
                date_add(date'2024-01-01', cast(id / 100 as int))
                FROM range({start}, {start + 20}, 1, 1)"""
        )
    return "ns.t"


def test_row_groups_are_those_of_icebergs_filter(lifecycle: Lifecycle, table: str) -> None:
    planner = IcebergPlanner(lifecycle.spark)
    loaded = jvm_table(lifecycle.spark, lifecycle.config.catalogs.live.name, table)
    pruned = 0
    for text, words in PREDICATES.items():
        plan = lifecycle.plan_query(table, text, footers=100)
        expression = planner.call("expression", loaded.schema(), words)
        expected = [
            planner.call("rowGroups", loaded, expression, path) for path in plan.to_arrow().column("path").to_pylist()
        ]
        assert plan.footers_read == plan.files_selected and not plan.footers_skipped
        assert plan.row_groups_total == sum(map(len, expected)), text
        assert plan.row_groups_selected == sum(each.count("1") for each in expected), text
        pruned += plan.row_groups_total - plan.row_groups_selected
        assert plan.files_selected == len(planner.plan(loaded, words).files), text
    assert pruned > 0
    few = lifecycle.plan_query(table, "true", footers=2)
    assert few.footers_read == 2 and few.footers_skipped == {"beyond the limit": few.files_selected - 2}

    require_defaults_read(lifecycle, planner, table)


def require_defaults_read(lifecycle: Lifecycle, planner: IcebergPlanner, table: str) -> None:
    """Files without a column have its default, except in a struct that is null."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    jvm: Any = spark._jvm
    spark.sql(f"ALTER TABLE {live}.{table} SET TBLPROPERTIES ('format-version' = '3')")
    loaded = jvm_table(spark, live, table)
    kind = jvm.org.apache.iceberg.types.Types.LongType.get()
    update = loaded.updateSchema()
    for parent in (None, "place", "spot"):
        update.addColumn(parent, "added", kind, "", jvm.org.apache.iceberg.expressions.Expressions.lit(7))
    update.commit()
    for name in ("added", "place.added", "spot.added"):
        for condition, words in DEFAULTED.items():
            text = f"{name} {condition}"
            plan = lifecycle.plan_query(table, text, footers=100)
            expression = planner.call("expression", loaded.schema(), words.format(name))
            paths = plan.to_arrow().column("path").to_pylist()
            expected = [planner.call("rowGroups", loaded, expression, path) for path in paths]
            assert plan.row_groups_selected == sum(each.count("1") for each in expected), text
    assert lifecycle.plan_query(table, "place.added is null", footers=100).row_groups_selected
    assert not spark.table(f"{live}.{table}").where("place.added is null").isEmpty()


def test_a_plan_says_what_maintenance_would_spare_and_maintenance_spares_it(lifecycle: Lifecycle, table: str) -> None:
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    spark.sql(f"DELETE FROM {live}.{table} WHERE id % 7 = 0")
    before = lifecycle.plan_query(table, "day = '2024-01-01'")
    by_kind = {each.kind: each for each in before.advice}
    assert set(by_kind) == {"deletes", "data files", "manifests"}
    assert [each.seconds_saved for each in before.advice] == sorted(
        (each.seconds_saved for each in before.advice), reverse=True
    )
    assert by_kind["data files"].now == before.files_selected == 5
    assert by_kind["deletes"].now == before.delete_opens >= 5 and sum(before.delete_files.values()) >= 1

    lifecycle.compact_data_files(table)
    spark.sql(
        f"CALL {live}.system.rewrite_data_files(table => '{table}', options => map('delete-file-threshold', '1', "
        "'rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    )
    spark.sql(f"CALL {live}.system.rewrite_manifests('{table}')")
    after = lifecycle.plan_query(table, "day = '2024-01-01'")
    assert after.files_selected == by_kind["data files"].then
    assert after.delete_opens == by_kind["deletes"].then == 0
    assert after.manifests_selected - after.delete_manifests_selected <= by_kind["manifests"].then
    assert after.files().count() == after.files_selected


def test_the_command_prints_a_plan_and_its_picture_without_spark(
    lifecycle: Lifecycle, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from artemis_lifecycle.cli import command, tables

    def given(*_: object) -> Lifecycle:
        return lifecycle

    def refused(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    class Opened:
        def __enter__(self) -> Lifecycle:
            return lifecycle

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(command, "opened", lambda *_: Opened())
    monkeypatch.setattr(type(lifecycle.resources), "spark", property(refused))
    picture = tmp_path / "plan.svg"
    done = CliRunner().invoke(
        tables.app, ["plan-query", table, "id = 150", "--json", "--files", "--footers", "9", "--plot", str(picture)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["files_selected"] == len(found["files"]) == 1 and found["manifests_total"] == 10
    assert picture.read_text().lstrip().startswith("<?xml")
    done = CliRunner().invoke(tables.app, ["plan-query", table, "day = '2024-01-02'", "--files"])
    assert done.exit_code == 0 and "2 data files" in done.output


def test_a_bad_predicate_is_refused_before_anything_is_read_and_a_cut_manifest_stops_the_plan(
    lifecycle: Lifecycle, table: str
) -> None:
    entry = lifecycle.resources.live_catalog.entry(table)
    metadata = lifecycle.steps.table_state(table).metadata
    assert metadata.current_snapshot is not None and entry
    manifests = manifests_of(lifecycle.live_stores, metadata.current_snapshot).entries
    files = read_manifest(lifecycle.live_stores, manifests[0])
    assert [each.kind for each in files] == ["data"] and files[0].value_counts[1] == 20
    assert [each.name for each in partition_ranges(metadata, manifests[0])] == ["day"]
    path = manifests[-1].manifest_path.removeprefix("file:")
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(BadInput):
        lifecycle.plan_query(table, "nothing = 1")
    with pytest.raises(UnreadableMetadata):
        lifecycle.plan_query(table, "id = 1")
