"""Old runs leave Dagster's storage with their events; what asset pages show stays, and so do other teams' runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster import AssetKey, MaterializeResult, RunsFilter, StaticPartitionsDefinition, asset, materialize

from artemis_lifecycle.defs.tags import PARTITIONS_NAME
from artemis_lifecycle_tests.defs.conftest import TABLE

if TYPE_CHECKING:
    from artemis_lifecycle_tests.defs.conftest import Project


@asset(partitions_def=StaticPartitionsDefinition(["a"]))
def theirs() -> MaterializeResult:  # type: ignore[type-arg]
    """Another team's asset on the same instance."""
    return MaterializeResult()


def run_ids(project: Project) -> set[str]:
    return {run.run_id for run in project.instance.get_runs(RunsFilter())}


def test_what_is_old_goes_and_the_newest_of_each_partition_stays(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={"artemis.*": {}}, records={"runs": timedelta(0)})
    project.register(TABLE, "artemis.other")
    first = project.run("schema_record", TABLE)
    other = project.run("schema_record", "artemis.other")
    newest = project.run("schema_record", TABLE)
    # As a click on "Materialize" or a backfill does.
    implicit = project.definitions.resolve_implicit_global_asset_job_def()
    clicked = [
        implicit.execute_in_process(
            instance=project.instance, partition_key=TABLE, asset_selection=[AssetKey("snapshot_history")]
        )
        for _ in range(2)
    ]
    project.instance.add_dynamic_partitions(PARTITIONS_NAME, ["artemis.gone"])
    failed = project.run("schema_record", "artemis.gone")
    strangers = [materialize([theirs], instance=project.instance, partition_key="a") for _ in range(2)]
    assert first.success and newest.success and not failed.success
    before = run_ids(project)
    job = project.definitions.resolve_job_def("old_runs")
    dry = job.execute_in_process(instance=project.instance)
    assert run_ids(project) == {*before, dry.run_id}

    done = job.execute_in_process(
        instance=project.instance, run_config={"ops": {"delete_old_runs": {"config": {"dry_run": False}}}}
    )

    kept = {"other": other, "newest": newest, "clicked": clicked[1], "theirs": strangers[1], "done": done}
    gone = {"first": first, "clicked before": clicked[0], "failed": failed, "dry": dry}
    stored = run_ids(project)
    assert {name for name, each in kept.items() if each.run_id not in stored} == set()
    assert {name for name, each in gone.items() if each.run_id in stored} == set()
    assert strangers[0].run_id in stored
    assert not project.instance.all_logs(first.run_id)
    for name, expected in (("schema_history", newest), ("snapshot_history", clicked[1])):
        event = project.instance.get_latest_materialization_event(AssetKey(name))
        assert event is not None and event.run_id == expected.run_id
    assert project.instance.get_materialized_partitions(AssetKey("schema_history")) == {TABLE, "artemis.other"}


def test_a_run_within_the_retention_stays(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={"artemis.*": {}}, records={"runs": timedelta(days=1)})
    project.register(TABLE)
    twice = {project.run("schema_record", TABLE).run_id for _ in range(2)}
    done = project.definitions.resolve_job_def("old_runs").execute_in_process(
        instance=project.instance, run_config={"ops": {"delete_old_runs": {"config": {"dry_run": False}}}}
    )
    assert done.success and run_ids(project) == {*twice, done.run_id}
