"""The checks against the thresholds of lifecycle.yaml, on real tables: each turns red when its promise is broken."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dagster import AssetCheckKey, AssetKey
from pyspark.sql.functions import lit

from artemis_lifecycle.defs.checks import DAILY
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.upkeep import health, table_checks
from artemis_lifecycle_tests.defs.conftest import OTHER, TABLE, Project

if TYPE_CHECKING:
    from dagster import AssetCheckEvaluation

QUIET: dict[str, Any] = {"lineage": {"required": []}}


def states(project: Project, name: str) -> dict[str | None, str]:
    """The state of a check by partition, as the UI shows it."""
    (key,) = [AssetCheckKey(AssetKey(on), check) for on, check in DAILY if check == name]
    found = project.instance.event_log_storage.get_asset_check_partition_info([key])
    return {each.partition_key: each.latest_execution_status.value for each in found}


def latest(project: Project, name: str) -> AssetCheckEvaluation:
    """The newest evaluation of a check."""
    (key,) = [AssetCheckKey(AssetKey(on), check) for on, check in DAILY if check == name]
    (record,) = project.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.event is not None and record.event.dagster_event is not None
    return record.event.dagster_event.asset_check_evaluation_data


def test_the_daily_job_judges_each_table_without_materializing_anything(make_project: Callable[..., Project]) -> None:
    strict = {"seconds": 0, "small_files": {"warn": 100, "error": 99}, "manifests": {"warn": 100}}
    tables = {TABLE: QUIET, OTHER: QUIET | {"checks": {"health": strict}}}
    project = make_project(tables=tables)
    project.create(TABLE, OTHER, commits=8)
    for table in (TABLE, OTHER):
        assert project.run("observe", table).success
        with project.lifecycle() as lifecycle:
            lifecycle.scan_orphans(table)
    before = project.instance.get_materialized_partitions(AssetKey("object_listing"))
    # There was neither a compaction nor a handoff. A check that judges nothing has no result to count.
    absent = {health.DATA_FILES_UNCHANGED, health.MANIFESTS_UNCHANGED, "cold_catalog_is_guarded"}
    judged = [(asset, name) for asset, name in DAILY if name not in absent]
    for table in (TABLE, OTHER):
        done = project.run("health_checks", table)
        assert done.success
        assert {each.check_name for each in done.get_asset_check_evaluations()} == {name for _, name in judged}
    assert project.instance.get_materialized_partitions(AssetKey("object_listing")) == before
    # Eight small files and manifests cost less than ten seconds: only a table that counts each second is told.
    for _, name in judged:
        expected = "FAILED" if name in ("health_small_files", "health_manifests") else "SUCCEEDED"
        assert states(project, name) == {TABLE: "SUCCEEDED", OTHER: expected}, name
    with project.lifecycle() as lifecycle:
        of_table = {each.table: each.red_checks for each in lifecycle.fleet().tables}
    assert of_table == {TABLE: (), OTHER: ("table_health: health_small_files",)}
    red, yellow = latest(project, "health_small_files"), latest(project, "health_manifests")
    assert (red.severity.value, yellow.severity.value) == ("ERROR", "WARN")
    assert f"Next: artemis compact {OTHER}" in (red.description or "")


def test_lineage_that_is_missing_or_incomplete(make_project: Callable[..., Project]) -> None:
    policy = {"checks": {"metadata_age": "0ms", "incomplete_snapshots": 0}, "lineage": {"required": ["writer.id"]}}
    project = make_project(tables={"artemis.*": policy})
    project.create(TABLE, commits=2)
    unrecorded = project.check("lineage_ledger", "every_snapshot_is_recorded", TABLE)
    assert not unrecorded.passed and unrecorded.metadata["unrecorded"].value == 2
    with project.lifecycle() as lifecycle:
        # A check reads: it makes no ledger.
        assert not lifecycle.resources.live_catalog.exists("lifecycle.lineage_ledger")
        lifecycle.record_lineage(TABLE)
    assert project.check("lineage_ledger", "every_snapshot_is_recorded", TABLE).passed
    project.append(TABLE, 3)
    late = project.check("lineage_ledger", "every_snapshot_is_recorded", TABLE)
    assert not late.passed and late.metadata["unrecorded"].value == 1
    anonymous = project.check("lineage_ledger", "summaries_are_complete", TABLE)
    assert not anonymous.passed and anonymous.severity.value == "WARN"
    assert anonymous.metadata["incomplete"].value == 3


class TestCompactions:
    @pytest.mark.nightly
    def test_a_real_one_with_deletes_keeps_rows_and_tags(self, make_project: Callable[..., Project]) -> None:
        project = make_project(tables={"artemis.*": QUIET})
        project.create(TABLE, commits=6)
        live = project.config.catalogs.live.name
        project.spark.sql(
            f"ALTER TABLE {live}.{TABLE} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read', 'format-version'='2')"
        )
        project.spark.sql(f"ALTER TABLE {live}.{TABLE} CREATE TAG kept")
        project.spark.sql(f"INSERT INTO {live}.{TABLE} SELECT id + 100, name FROM {live}.{TABLE}")
        project.spark.sql(f"DELETE FROM {live}.{TABLE} WHERE id = 103")
        done = project.run("data_compaction", TABLE, dry_run=False)
        assert done.success
        (found,) = done.get_asset_check_evaluations()
        assert found.passed and found.metadata["rows"].value == 11
        assert "all 11 rows; 1 other refs" in (found.description or "")

    def test_one_that_loses_a_row(self, make_project: Callable[..., Project]) -> None:
        project = make_project(tables={"artemis.*": QUIET})
        project.create(TABLE, commits=3)
        self._overwrite(project, 2)
        red = project.check("compacted_data_files", health.DATA_FILES_UNCHANGED, TABLE)
        assert not red.passed and red.severity.value == "ERROR"
        assert "3 rows before, and 2 after" in str(red.metadata["offenders"].value)
        # Another kind of compaction is judged by itself.
        assert project.check("compacted_manifests", health.MANIFESTS_UNCHANGED, TABLE).passed

    @pytest.mark.nightly
    def test_refs_are_those_around_the_commit_and_not_what_people_change_later(
        self, make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project = make_project(tables={"artemis.*": QUIET})
        project.create(TABLE, commits=3)
        self._overwrite(project, 3)
        live = project.config.catalogs.live.name
        project.spark.sql(f"ALTER TABLE {live}.{TABLE} CREATE TAG later")
        assert project.check("compacted_data_files", health.DATA_FILES_UNCHANGED, TABLE).passed
        # Once it is old, its rows are not counted again: snapshots never change.
        monkeypatch.setattr(table_checks, "COMPARED_FOR", timedelta(0))
        old = project.check("compacted_data_files", health.DATA_FILES_UNCHANGED, TABLE)
        assert old.passed and "rows" not in old.metadata

    def _overwrite(self, project: Project, rows: int) -> None:
        """A commit that claims to be a compaction, and leaves so many rows."""
        name = f"{project.config.catalogs.live.name}.{TABLE}"
        kept = project.spark.createDataFrame([(each, f"pass {each}") for each in range(rows)], "id bigint, name string")
        writer = kept.writeTo(name).option("snapshot-property.writer.id", "artemis-lifecycle/compaction")
        writer.overwrite(lit(True))


class TestListings:
    def test_one_that_is_old_does_not_cover_the_table_or_is_damaged(self, make_project: Callable[..., Project]) -> None:
        project = make_project(tables={"artemis.*": QUIET})
        project.create(TABLE, commits=1)
        assert not project.check("object_listing", "listing_is_fresh", TABLE).passed
        with project.lifecycle() as lifecycle:
            listing = lifecycle.list_objects(TABLE)
        assert project.check("object_listing", "listing_is_fresh", TABLE).passed
        assert project.check("object_listing", "listing_is_intact", TABLE).passed
        part = next(Path(listing.files_location.removeprefix("file://")).glob("part-*"))
        part.write_bytes(part.read_bytes()[:-1] + b"?")
        red = project.check("object_listing", "listing_is_intact", TABLE)
        assert not red.passed and red.severity.value == "ERROR"
        with project.lifecycle() as lifecycle:
            lifecycle.list_objects(TABLE, location=f"{listing.locations[0]}/data")
        partial = project.check("object_listing", "listing_is_fresh", TABLE)
        assert not partial.passed and "does not cover" in (partial.description or "")

    def test_one_older_than_the_policy_allows(self, make_project: Callable[..., Project]) -> None:
        project = make_project(tables={"artemis.*": QUIET | {"checks": {"listing_age": "0ms"}}})
        project.create(TABLE, commits=1)
        with project.lifecycle() as lifecycle:
            lifecycle.list_objects(TABLE)
        old = project.check("object_listing", "listing_is_fresh", TABLE)
        assert not old.passed and old.severity.value == "WARN"


def test_the_error_of_an_unknown_check_lists_the_checks(project: Project) -> None:
    with project.lifecycle() as lifecycle, pytest.raises(BadInput, match="no check mystery") as refused:
        lifecycle.check_table(TABLE, "mystery")
    assert "health_small_files" in (refused.value.hint or "")
