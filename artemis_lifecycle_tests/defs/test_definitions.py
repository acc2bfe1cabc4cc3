from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import AssetKey, Definitions, JobDefinition, in_process_executor
from dagster._config import validate_config
from dagster._core.instance.config import dagster_instance_config
from dagster._core.remote_representation.external_data import active_presets_from_job_def
from dagster._core.snap import JobSnap
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap
from dagster_aws.s3 import S3Resource
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.policies import QuietWindow
from artemis_lifecycle.defs import manual
from artemis_lifecycle.defs.build import build_definitions
from artemis_lifecycle.defs.jobs import CHANGING, for_real
from artemis_lifecycle.defs.schedules import schedules_for
from artemis_lifecycle.defs.tags import tables
from artemis_lifecycle.upkeep.score import PARTS
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import Project

DEPS = {
    "snapshot_history": {"live_table"},
    "reachable_set": {"snapshot_history"},
    "expiration_plan": {"reachable_set"},
    "cold_tier_snapshots": {"expiration_plan"},
    "expiration_commit": {"cold_tier_snapshots"},
    "physical_deletion": {"expiration_commit"},
    "object_listing": {"physical_deletion"},
    "orphan_scan": {"object_listing", "reachable_set"},
    "orphan_deletion": {"orphan_scan"},
    "lineage_ledger": {"snapshot_history"},
    "schema_history": {"snapshot_history"},
    "table_health": {"snapshot_history"},
    "compacted_manifests": {"snapshot_history"},
    "compacted_data_files": {"snapshot_history"},
}

CHECKS = {
    ("snapshot_history", "metadata_age"): False,
    ("lineage_ledger", "lineage_gate"): True,
    ("expiration_plan", "plan_keeps_every_ref"): True,
    ("expiration_plan", "plan_keeps_window_edge"): True,
    ("cold_tier_snapshots", "cold_copy_verified"): True,
    ("cold_tier_snapshots", "cold_files_are_as_recorded"): False,
    ("cold_tier_snapshots", "cold_catalog_is_guarded"): False,
    ("physical_deletion", "nothing_reachable_deleted"): False,
    ("physical_deletion", "no_plan_waits_too_long"): False,
    **{("table_health", f"health_{part}"): False for part in PARTS},
    ("table_health", "commit_cost_follows_the_change"): False,
    ("lineage_ledger", "every_snapshot_is_recorded"): False,
    ("lineage_ledger", "summaries_are_complete"): False,
    ("schema_history", "schemas_are_consistent"): False,
    ("compacted_data_files", "data_compaction_changed_nothing"): False,
    ("compacted_manifests", "manifest_compaction_changed_nothing"): False,
    ("object_listing", "listing_is_fresh"): False,
    ("object_listing", "listing_is_intact"): False,
    ("orphan_scan", "orphan_share_below_threshold"): False,
    ("orphan_scan", "in_flight_files_settle"): False,
    ("orphan_deletion", "nothing_reachable_deleted"): False,
    ("cold_tier_snapshots", "no_person_needed"): False,
    ("expiration_commit", "no_person_needed"): False,
    ("physical_deletion", "no_person_needed"): False,
    ("orphan_deletion", "no_person_needed"): False,
}


@pytest.fixture(
    scope="module",
    params=[None, S3Resource(endpoint_url="http://127.0.0.1:9", region_name="us-east-1")],
    ids=["local", "s3"],
)
def definitions(request: pytest.FixtureRequest) -> Definitions:
    """Where nothing answers: loading asks nobody."""
    return build_definitions("/nowhere/lifecycle.yaml", s3=request.param)


def test_the_graph_is_the_walk_of_the_design(definitions: Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    found = {
        key.to_user_string(): {parent.to_user_string() for parent in graph.get(key).parent_keys}
        for key in graph.materializable_asset_keys
    }
    assert found == {**DEPS, "fleet": set()}
    assert graph.get(AssetKey("fleet")).partitions_def is None


def test_every_asset_has_the_table_partitions_an_owner_a_group_kinds_and_a_description(
    definitions: Definitions,
) -> None:
    graph = definitions.resolve_asset_graph()
    for name in DEPS:
        node = graph.get(AssetKey(name))
        assert node.partitions_def == tables
        assert node.owners
        assert node.group_name != "default"
        assert node.kinds
        assert node.description


def test_every_check_is_partitioned_by_table_and_those_before_a_change_block(definitions: Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    found = {}
    for key in graph.asset_check_keys:
        spec = graph.get_check_spec(key)
        assert spec.partitions_def == tables
        found[key.asset_key.to_user_string(), key.name] = spec.blocking
    assert found == CHECKS


def test_one_process_runs_a_whole_run(definitions: Definitions) -> None:
    assert definitions.resolve_job_def("whole_walk").executor_def is in_process_executor


def test_the_whole_walk_has_every_asset_and_every_check(definitions: Definitions) -> None:
    job = definitions.resolve_job_def("whole_walk")
    selection = job.asset_layer
    assert {key.to_user_string() for key in selection.selected_asset_keys} == set(DEPS)
    assert {(key.asset_key.to_user_string(), key.name) for key in selection.asset_graph.asset_check_keys} == set(CHECKS)


def test_steps_that_change_a_table_run_dry_by_default(definitions: Definitions) -> None:
    for job, assets in CHANGING.items():
        resolved = definitions.resolve_job_def(job)
        (resource,) = [each for name, each in resolved.resource_defs.items() if name == "changes"]
        switch: Any = resource.config_schema
        assert switch.as_field().config_type.fields["dry_run"].default_value is True
        assert validate_config(resolved.run_config_schema.config_type, for_real(job)).success
        for asset in assets:
            schema: Any = resolved.get_node_named(asset).definition.config_schema
            assert schema.as_field().config_type.fields["dry_run"].default_value is None
    changing = set().union(*CHANGING.values())
    assert changing == {
        "cold_tier_snapshots",
        "expiration_commit",
        "physical_deletion",
        "orphan_deletion",
        "compacted_manifests",
        "compacted_data_files",
        "move_to_deep_archive",
        "purge_quarantine",
        "clear_dropped_tables",
        "forget_records",
        "compact_result_tables",
        "delete_old_runs",
    }


def test_every_launchpad_opens_valid_and_without_settings_of_the_installation() -> None:
    definitions = build_definitions("/nowhere/lifecycle.yaml", "lake")
    for job in definitions.resolve_all_job_defs():
        snap, presets = JobSnap.from_job_def(job), active_presets_from_job_def(job)
        schemas = snap.config_schema_snapshot
        root = schemas.get_config_snap(str(snap.mode_def_snaps[0].root_config_key))
        opens = presets[0].run_config if presets else yaml.safe_load(default_values_yaml_from_type_snap(schemas, root))
        assert validate_config(job.run_config_schema.config_type, opens).success, job.name
        assert "lake" not in str(opens) and "prefix" not in str(opens), job.name
        assert bool(presets) is (job.name in {each.name for each in manual.ALL})
        if job.name in CHANGING:
            assert opens["resources"]["changes"] == {"config": {"dry_run": True}}


@pytest.mark.parametrize("job", manual.ALL, ids=lambda each: each.name)
def test_a_launchpad_that_nobody_filled_in_does_nothing(definitions: Definitions, job: JobDefinition) -> None:
    result = definitions.resolve_job_def(job.name).execute_in_process(raise_on_error=False)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert "Still placeholders: " in str(failed.step_failure_data.user_failure_data)


def test_the_owners_are_those_of_lifecycle_yaml(tmp_path: Path) -> None:
    path = tmp_path / "lifecycle.yaml"
    path.write_text(yaml.safe_dump({"dagster": {"owners": ["team:lake"]}}))
    graph = build_definitions(path).resolve_asset_graph()
    assert {tuple(graph.get(key).owners) for key in graph.get_all_asset_keys()} == {("team:lake",)}


def test_each_compaction_is_followed_by_a_measurement_of_health(definitions: Definitions) -> None:
    for job, asset in (("data_compaction", "compacted_data_files"), ("manifest_compaction", "compacted_manifests")):
        resolved = definitions.resolve_job_def(job)
        assert {key.to_user_string() for key in resolved.asset_layer.selected_asset_keys} == {asset, "table_health"}
        first, then = (
            int(resolved.get_node_named(each).definition.tags["dagster/priority"]) for each in (asset, "table_health")
        )
        assert first > then


def test_what_changes_or_launches_is_stopped_until_a_person_starts_it(definitions: Definitions) -> None:
    repository = definitions.get_repository_def()
    assert all(schedule.default_status.value == "STOPPED" for schedule in repository.schedule_defs)
    running = {sensor.name for sensor in repository.sensor_defs if sensor.default_status.value == "RUNNING"}
    assert running == {"discovery", "lineage_watch", "stuck_runs", "thaws_under_way"}


def test_the_schedules_follow_the_window_and_its_time_zone(definitions: Definitions) -> None:
    schedules = {schedule.name: schedule for schedule in definitions.get_repository_def().schedule_defs}
    assert {name: schedule.cron_schedule for name, schedule in schedules.items()} == {
        "monthly_deep_archive": "15 3 1 * *",
        "daily_cold_scrub": "45 4,16 * * *",
        "daily_health_checks": "50 4,16 * * *",
        "daily_quarantine_purge": "35 6 * * *",
        "daily_dropped_tables": "40 7 * * *",
        "monthly_records": "20 5 2 * *",
        "daily_publication": "55 7 * * *",
        "monthly_result_tables": "25 6 2 * *",
        "monthly_old_runs": "30 7 2 * *",
        "hourly_fleet": "5 * * * *",
        "monthly_schema_record": "10 1 1 * *",
    }
    assert {schedule.execution_timezone for schedule in schedules.values()} == {"UTC"}


@given(
    start=st.integers(0, 24 * 60 - 1),
    end=st.integers(0, 24 * 60 - 1),
    timezone=st.sampled_from(["UTC", "America/Los_Angeles", "Asia/Kathmandu", "Australia/Lord_Howe"]),
)
def test_no_two_schedules_start_at_one_minute(start: int, end: int, timezone: str) -> None:
    clock = {"from": f"{start // 60:02}:{start % 60:02}", "to": f"{end // 60:02}:{end % 60:02}"}
    found = schedules_for(QuietWindow.model_validate({**clock, "timezone": timezone}))
    assert {each.execution_timezone for each in found} == {timezone}
    minutes = [str(each.cron_schedule).split()[0] for each in found]
    assert len(set(minutes)) == len(found) == 11
    (scrub,) = (each for each in found if each.name == "daily_cold_scrub")
    hours = [int(hour) for hour in str(scrub.cron_schedule).split()[1].split(",")]
    assert hours[1] - hours[0] == 12


def test_a_window_of_its_own_moves_the_schedules_of_lifecycle_yaml(tmp_path: Path) -> None:
    window = {"from": "22:00", "to": "06:00", "timezone": "America/Los_Angeles"}
    path = tmp_path / "lifecycle.yaml"
    path.write_text(yaml.safe_dump({"defaults": {"quiet_window": window}}))
    schedules = build_definitions(path).get_repository_def().schedule_defs
    crons = {schedule.name: (schedule.cron_schedule, schedule.execution_timezone) for schedule in schedules}
    assert crons["daily_dropped_tables"] == ("40 5 * * *", "America/Los_Angeles")
    assert crons["monthly_deep_archive"] == ("15 1 1 * *", "America/Los_Angeles")


@pytest.mark.slow
def test_definitions_validate_without_a_warning_of_ours(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").touch()
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path), "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dagster")), "definitions", "validate", "-w", "workspace.yaml"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "All code locations passed validation" in said
    # The command itself is superseded by `dg`, which this version of typer breaks.
    ours = [line for line in said.splitlines() if "Warning" in line and "artemis_lifecycle" in line]
    assert not ours
    assert "Specifying a partitions_def" not in said


class TestInstance:
    def test_dagster_yaml_is_understood_and_bounds_the_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ARTEMIS_DAGSTER_POSTGRES", "postgresql+psycopg2://nobody@127.0.0.1:9/dagster")
        (tmp_path / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text())
        config, _ = dagster_instance_config(str(tmp_path))
        assert config["storage"] == {"postgres": {"postgres_url": {"env": "ARTEMIS_DAGSTER_POSTGRES"}}}
        assert config["telemetry"] == {"enabled": False}
        assert config["run_monitoring"]["enabled"]
        assert config["run_monitoring"]["max_runtime_seconds"] > 0
        assert config["concurrency"]["pools"] == {"granularity": "run"}
        queue = config["concurrency"]["runs"]
        assert 0 < queue["max_concurrent_runs"] <= 10
        assert queue["tag_concurrency_limits"] == [
            {"key": "artemis/table", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
        ]
        assert config["run_retries"]["enabled"]
        assert config["run_retries"]["retry_on_asset_or_op_failure"] is False

    def test_the_workspace_names_the_definitions(self) -> None:
        workspace = yaml.safe_load((REPOSITORY / "workspace.yaml").read_text())
        assert workspace == {"load_from": [{"python_module": {"module_name": "artemis_lifecycle.definitions"}}]}


def test_delays_of_zero_are_a_warning_in_the_ui_at_each_start(
    make_project: Callable[..., Project], caplog: pytest.LogCaptureFixture
) -> None:
    project = make_project(tables={"artemis.*": {"retention": {"window": "0d"}}})
    warning = "tables.artemis.*.retention.window is 0"
    assert warning in caplog.text
    graph = project.definitions.resolve_asset_graph()
    for asset in ("expiration_commit", "physical_deletion", "orphan_deletion"):
        assert warning in graph.get(AssetKey(asset)).metadata["warnings"].value
    project.create("artemis.one", commits=1)
    run = project.run("plan", "artemis.one")
    assert any(warning in entry.user_message for entry in project.instance.all_logs(run.run_id))
