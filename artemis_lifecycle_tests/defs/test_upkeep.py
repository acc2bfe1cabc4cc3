"""A table made unfit becomes fit again by what the sensors ask for, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from bench.upkeep import cost, make_unfit, week

if TYPE_CHECKING:
    from artemis_lifecycle_tests.defs.conftest import Project

TABLE = "artemis.unfit"


@pytest.mark.nightly
def test_a_week_of_upkeep_makes_a_table_fit(make_project: Callable[..., Project]) -> None:
    """The short form of `bench.upkeep`, which has 10,000 files."""
    project = make_project(tables={"artemis.*": {}}, defaults={"cold_tier": {"enabled": False}})
    live = project.config.catalogs.live.name
    make_unfit(project.spark, live, TABLE, files=96, commits=12, parts=4, deletes=4)
    project.instance.add_dynamic_partitions("table", [TABLE])
    with project.lifecycle() as lifecycle:
        before, rows = cost(lifecycle, project.spark, TABLE)
        score, unfit = lifecycle.health(TABLE).score, lifecycle.health(TABLE)
        ran = week(project.definitions, lifecycle, project.instance, TABLE)
        after, rows_after = cost(lifecycle, project.spark, TABLE)
        health = lifecycle.health(TABLE)
    assert rows_after == rows and rows[0] == 96 * 20 - 4 * 24
    assert all(each.succeeded for each in ran), ran
    assert unfit.data_files == 96 and unfit.delete_files >= 4 and unfit.manifests >= 12
    assert health.data_files == 4 and health.delete_files == 0
    assert before.manifests_read > 2 * after.manifests_read and before.files_read > 5 * after.files_read
    assert health.score is not None and score is not None and score < 10 < 80 < health.score, health.parts
    # Sunday is the manifests' day, whatever day it is today.
    assert {f"{each.at:%A}" for each in ran if each.job == "manifest_compaction"} <= {"Sunday"}
    assert [each.job for each in ran].count("data_compaction") <= 2
