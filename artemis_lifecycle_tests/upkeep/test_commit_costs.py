"""What commits wrote is what the store got, and a cost that follows the change never looks like one that grows."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.upkeep.costs import FEWEST_COMMITS, CommitCost, CommitCosts, trend_of
from artemis_lifecycle.upkeep.health import judge_commit_costs
from artemis_lifecycle_tests import core_tables

sizes = st.lists(st.integers(0, 1_000_000), min_size=0, max_size=120)


@given(sizes, st.floats(1, 1e9), st.data())
def test_a_constant_cost_never_warns(table: list[int], cost: float, data: st.DataObject) -> None:
    """Nor does one that varies by less than the square root of two, in whatever order."""
    points = [(size, cost * data.draw(st.floats(1, 1.4))) for size in table]
    assert not trend_of("manifest list", points).grows


@pytest.mark.seconds
@given(st.integers(1, 200), st.integers(0, 100), st.floats(1, 1e6), st.data())
def test_a_cost_in_proportion_to_the_table_warns_after_enough_commits(
    first: int, more: int, per_file: float, data: st.DataObject
) -> None:
    """Enough: until the table has tripled, and at least FEWEST_COMMITS."""
    commits = max(FEWEST_COMMITS, 2 * first + 3) + more
    points = [(size, size * per_file * data.draw(st.floats(1, 1.15))) for size in range(first, first + commits)]
    found = trend_of("manifest list", data.draw(st.permutations(points)) if commits < 60 else points)
    assert found.grows and found.growth == pytest.approx(1, abs=0.3)


def test_what_is_too_little_to_notice_is_said_and_does_not_warn() -> None:
    now = datetime.now(UTC)
    # One file each time, and a list that is longer by one manifest.
    rows = tuple(CommitCost(now, n, "append", 1, n, 4_000, 1_000 * n, 1, 7_000, 3) for n in range(1, 40))
    for found, warns in ((CommitCosts("ns.t", rows, 1e9), False), (CommitCosts("ns.t", rows, 1_000), True)):
        (trend,) = [trend for trend in found.trends if trend.part == "manifest list"]
        assert trend.grows and "growth 1.0" in str(trend)
        assert judge_commit_costs(found).passed is not warns and judge_commit_costs(found).warns
        assert bool(found.warnings) is warns
    assert "compact --manifests" in judge_commit_costs(CommitCosts("ns.t", rows, 1_000)).offenders[0]


def test_each_commit_wrote_what_the_store_got(lifecycle: Lifecycle, spark: SparkSession) -> None:
    catalog = lifecycle.config.catalogs.live.name
    name = f"{catalog}.ns.t"
    core_tables.sql(spark, f"CREATE NAMESPACE {catalog}.ns")
    core_tables.sql(
        spark, f"CREATE TABLE {name} (a int) USING iceberg TBLPROPERTIES ('commit.manifest.min-count-to-merge'='3')"
    )
    location = lifecycle.snapshot_history("ns.t").metadata_location
    folder = Path(os.path.dirname(location).removeprefix("file:").replace("//", "/"))

    def files() -> dict[str, int]:
        return {each.name: each.stat().st_size for each in folder.iterdir() if not each.name.startswith(".")}

    expected = []
    seen = dict.fromkeys(files())
    statements = [
        *(f"INSERT INTO {name} VALUES ({number})" for number in range(4)),
        f"ALTER TABLE {name} SET TBLPROPERTIES ('x'='y')",
        f"DELETE FROM {name} WHERE a = 1",
        f"INSERT INTO {name} SELECT /*+ REPARTITION(3) */ id FROM range(3)",
    ]
    for statement in statements:
        spark.sql(statement)
        now = files()
        new = {name: size for name, size in now.items() if name not in seen}
        seen |= new
        lists = [size for each, size in new.items() if each.startswith("snap-")]
        manifests = [size for each, size in new.items() if "-m" in each and each.endswith(".avro")]
        (metadata,) = (size for each, size in new.items() if each.endswith(".metadata.json"))
        expected.append((metadata, sum(lists), len(manifests), sum(manifests), len(new)))
    found = lifecycle.commit_costs("ns.t")
    # The first row is that of CREATE TABLE.
    rows = found.rows[1:]
    got = [
        (row.metadata_bytes, row.manifest_list_bytes, row.manifests, row.manifest_bytes, row.requests) for row in rows
    ]
    assert got == expected
    assert [(row.operation, row.files_changed) for row in rows] == [
        *[("append", 1)] * 4, (None, 0), ("delete", 1), ("append", 3),
    ]  # fmt: skip
    # Its bytes vary with what its paths compress to.
    assert (rows[3].manifests, rows[3].total_files) == (1, 4), "the commit that merged writes the merged manifest"
    assert found.unknown == 0 and len(found.to_pandas()) == len(found.rows)
    assert found.plot("svg").lstrip().startswith(b"<?xml")
    # A metadata file that is gone is unknown, and nothing else changes.
    gone = min(folder.glob("00003-*.metadata.json"))
    gone.unlink()
    after = lifecycle.commit_costs("ns.t")
    assert after.unknown == 1 and [row.requests for row in after.rows] == [row.requests for row in found.rows]
    # Of a log that was cut, the oldest file's commit is not known; the newest two are.
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='2')")
    core_tables.sql(spark, f"INSERT INTO {name} VALUES (9)")
    cut = lifecycle.commit_costs("ns.t").rows
    assert [row.metadata_bytes is None for row in cut] == [True] * 6 + [False] * 2
    assert [row.snapshot_id is None for row in cut] == [False] * 6 + [True, False]
