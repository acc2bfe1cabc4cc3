"""The jobs, run on real tables: what they show, what they change, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from dagster import AssetCheckKey, AssetKey, ExecuteInProcessResult, instance_for_test
from sqlalchemy import text

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs.common import FOR_REAL, NO_PERSON_NEEDED
from artemis_lifecycle.defs.run import Walk, WalkEvent, materialize_walk, walk_event
from artemis_lifecycle.defs.tags import OUTCOME_TAG, WAITS_FOR_TAG
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.deaths import Killed
from artemis_lifecycle_tests.defs.conftest import OTHER, TABLE, Project, no_checksum_files, said, with_tables, written
from artemis_lifecycle_tests.defs.test_definitions import CHECKS, DEPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = {
    "artemis.*": {
        "retention": {"window": "1ms"},
        "deletion": {"grace": "0ms"},
        "orphans": {"min_age": "0ms", "min_age_floor": "0ms", "max_share": 1},
        # The tests' own writers say nothing.
        "lineage": {"required": [], "overwrite": {"needs": []}},
    }
}
"""Whatever is not current has expired, and what nothing reaches is old enough."""

LOST = "cold_files_are_as_recorded"


def failures(result: ExecuteInProcessResult) -> dict[str, str]:
    return {
        event.step_key or "": event.step_failure_data.user_failure_data.description or ""
        for event in result.all_events
        if event.is_step_failure and event.step_failure_data.user_failure_data
    }


def checks(result: ExecuteInProcessResult) -> dict[tuple[str, str], bool]:
    return {
        (check.asset_key.to_user_string(), check.check_name): check.passed
        for check in result.get_asset_check_evaluations()
    }


class Walked:
    """One table before, after a dry walk, and after a real one."""

    def __init__(self, project: Project) -> None:
        project.create(TABLE, commits=3)
        live = project.config.catalogs.live.name
        project.spark.sql(f"INSERT OVERWRITE {live}.{TABLE} VALUES (9, 'the last pass')")
        self.project = project
        self.before = self.history()
        self.dry = project.run("whole_walk", TABLE)
        logs = project.instance.all_logs(self.dry.run_id)
        self.events = [event for entry in logs if (event := walk_event(TABLE, entry)) is not None]
        self.between = self.history()
        self.files = self.stored()
        self.real = project.run("whole_walk", TABLE, dry_run=False)

    def history(self) -> tuple[str, int]:
        with self.project.lifecycle() as lifecycle:
            found = lifecycle.snapshot_history(TABLE)
        return found.metadata_location, len(found.snapshots)

    def stored(self) -> set[Path]:
        root = Path((self.project.config.catalogs.live.warehouse or "").removeprefix("file://"))
        return {path for path in (root / "artemis" / "passes").rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def walked(
    module_config: LifecycleConfig, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Walked]:
    config = with_tables(module_config, AT_ONCE)
    with instance_for_test() as instance, no_checksum_files(spark):
        yield Walked(Project(config, written(config, tmp_path_factory.mktemp("walk")), instance, spark))


def test_a_dry_walk_materialises_every_asset_and_changes_nothing(walked: Walked) -> None:
    assert not failures(walked.dry)
    assert walked.dry.success
    assert {event.asset for event in walked.events if event.what == "materialised"} == set(DEPS)
    assert walked.between == walked.before
    assert said(walked.dry, "expiration_commit")["dry_run"]
    assert said(walked.dry, "cold_tier_snapshots")["would_copy_bytes"] > 0
    assert "files_copied" not in said(walked.dry, "cold_tier_snapshots")
    assert said(walked.dry, "physical_deletion")["would_delete"] > 0
    for name in ("expiration_commit", "physical_deletion", "orphan_deletion", "compacted_data_files"):
        done = {"snapshots_expired", "files_deleted", "files_rewritten", "attempts"} & said(walked.dry, name).keys()
        assert not done, name
        (materialization,) = walked.dry.asset_materializations_for_node(name)
        assert materialization.tags[OUTCOME_TAG] == said(walked.dry, name)["outcome"] == "dry_run"


def test_the_run_follows_the_walk_and_measures_health_after_the_compactions(walked: Walked) -> None:
    order = [event.asset for event in walked.events if event.what == "materialised"]
    assert order[:9] == [
        "snapshot_history",
        "reachable_set",
        "expiration_plan",
        "cold_tier_snapshots",
        "expiration_commit",
        "physical_deletion",
        "object_listing",
        "orphan_scan",
        "orphan_deletion",
    ]
    assert set(order[9:11]) == {"compacted_manifests", "compacted_data_files"}
    assert set(order[11:]) == {"lineage_ledger", "schema_history", "table_health"}


def test_figures_are_shown_in_place_and_as_people_read_them(walked: Walked) -> None:
    health = said(walked.real, "table_health")
    figures = {record.data["figure"]: record.data["value"] for record in health["figures"].records}
    assert len(figures) >= 25 and figures["manifests"] == str(health["manifests"])
    assert 0 < health["score"] <= 100 and len(health["parts"].records) == 8 and health["recent_commits"].records
    assert all(str(health[name]).startswith("![") for name in ("scores", "commit_costs"))
    assert re.fullmatch(r"\d+\.\d s|(\d+ days?, )?\d+:\d\d:\d\d", str(figures["oldest_snapshot_age"]))
    # Without a price table there is no column of prices.
    assert [column.name for column in health["held_by_tier"].schema.columns][-1] == "bytes"
    assert any("the policy" in record.data["window"] for record in health["held_by_window"].records)
    plan = said(walked.real, "expiration_plan")
    assert next(iter(plan)) == "summary" and re.search(r"; bytes: [\d.]+ kB; .*seconds: [\d.]+ s", plan["summary"])
    assert said(walked.dry, "expiration_commit")["next"] == FOR_REAL
    assert "next" not in said(walked.real, "expiration_commit")


def test_a_real_walk_expires_hands_off_commits_and_deletes_in_one_run(walked: Walked) -> None:
    assert not failures(walked.real)
    assert walked.real.success
    plan, cold = said(walked.real, "expiration_plan"), said(walked.real, "cold_tier_snapshots")
    commit, deletion = said(walked.real, "expiration_commit"), said(walked.real, "physical_deletion")
    assert plan["snapshots_expired"] == commit["snapshots_expired"] == cold["snapshots"] == 3
    assert plan["snapshots_kept"] == 1
    assert commit["attempts"] == 1
    assert deletion["files_deleted"] == plan["files"] > 0
    assert deletion["bytes_deleted"] == plan["bytes"]
    assert walked.history()[1] == 1
    assert len(walked.files - walked.stored()) >= plan["files"]


def test_every_check_is_green_after_both(walked: Walked) -> None:
    for result in (walked.dry, walked.real):
        assert checks(result) == dict.fromkeys(CHECKS, True)


def test_the_cold_entry_names_catalog_table_snapshots_and_their_range_of_time(walked: Walked) -> None:
    cold = said(walked.real, "cold_tier_snapshots")
    assert cold["cold_catalog"] == walked.project.config.catalogs.cold.name
    rows = walked.project.spark.table(f"{cold['cold_catalog']}.{cold['cold_table']}.snapshots").count()
    assert rows == cold["snapshots"]
    assert cold["oldest_snapshot"] < cold["newest_snapshot"]
    assert cold["files_copied"] > 0
    assert cold["bytes_copied"] > 0


def test_numbers_are_numbers_under_keys_that_stay(walked: Walked) -> None:
    stable = {
        "snapshot_history": {"snapshots", "refs", "seconds"},
        "reachable_set": {"snapshots_kept", "files", "bytes", "seconds"},
        "expiration_plan": {"snapshots_kept", "snapshots_expired", "refs_expired", "files", "bytes", "seconds"},
        "cold_tier_snapshots": {"snapshots", "files_copied", "bytes_copied", "files_verified", "seconds"},
        "expiration_commit": {"snapshots_expired", "attempts", "seconds"},
        "physical_deletion": {"files_deleted", "bytes_deleted", "files_kept", "files_failed", "seconds"},
        "object_listing": {"files", "bytes", "seconds"},
        "orphan_scan": {"orphans", "bytes", "skipped_in_flight", "orphan_share", "seconds"},
        "orphan_deletion": {"files_deleted", "bytes_deleted", "files_kept", "files_failed", "seconds"},
        "lineage_ledger": {"snapshots", "seconds"},
        "schema_history": {"schemas", "seconds"},
        "table_health": {"files", "bytes", "small_files", "manifests", "seconds"},
        "compacted_manifests": {"manifests_rewritten", "seconds"},
        "compacted_data_files": {"files_rewritten", "bytes_rewritten", "seconds"},
    }
    assert set(stable) == set(DEPS)
    for asset, keys in stable.items():
        shown = said(walked.real, asset)
        assert {key for key in keys if isinstance(shown.get(key), int | float)} == keys, asset


def test_a_walk_again_finds_nothing_left_to_do(walked: Walked) -> None:
    before = walked.history()
    again = walked.project.run("whole_walk", TABLE, dry_run=False)
    assert again.success
    assert said(again, "expiration_plan")["snapshots_expired"] == 0
    assert said(again, "expiration_commit")["attempts"] == 0
    assert said(again, "physical_deletion")["files_deleted"] == 0
    assert walked.history()[1] == before[1]


def test_a_red_table_stays_red_when_another_turns_green(make_project: Callable[..., Project]) -> None:
    project = make_project(tables=AT_ONCE)
    with no_checksum_files(project.spark):
        project.create(TABLE, OTHER, commits=1)
    root = Path((project.config.catalogs.live.warehouse or "").removeprefix("file://"))
    for number in range(20):
        (root / "artemis" / "passes" / "data" / f"litter-{number}.parquet").write_bytes(b"nobody's")
    red, green = project.run("orphans", TABLE), project.run("orphans", OTHER)
    key = AssetCheckKey(AssetKey("orphan_scan"), "orphan_share_below_threshold")
    assert checks(red)["orphan_scan", key.name] is False
    assert checks(green)["orphan_scan", key.name] is True
    states = project.instance.event_log_storage.get_asset_check_partition_info([key])
    by_table = {state.partition_key: state.latest_execution_status.value for state in states}
    assert by_table == {TABLE: "FAILED", OTHER: "SUCCEEDED"}


def test_the_next_walk_finishes_the_orphan_deletion_that_was_interrupted(make_project: Callable[..., Project]) -> None:
    project = make_project(tables=AT_ONCE)
    with no_checksum_files(project.spark):
        project.create(TABLE, commits=2)
    root = Path((project.config.catalogs.live.warehouse or "").removeprefix("file://"))
    litter = root / "artemis" / "passes" / "data" / "litter.parquet"
    litter.write_bytes(b"nobody's")

    def die(point: str) -> None:
        if point == "deletion.delete_files:before":
            raise Killed

    with project.lifecycle() as lifecycle:
        scan = lifecycle.scan_orphans(TABLE)
        with pytest.raises(Killed), crash_points.installed(die):
            lifecycle.delete_orphans(scan)
        assert litter.exists()
        assert project.run("orphans", TABLE, dry_run=False).success
        assert not litter.exists()
        assert lifecycle.interrupted_scans(TABLE) == []


def test_an_approved_scan_is_deleted_by_the_next_run(make_project: Callable[..., Project]) -> None:
    few = {"artemis.*": {**AT_ONCE["artemis.*"], "orphans": {**AT_ONCE["artemis.*"]["orphans"], "max_share": 0.01}}}
    project = make_project(tables=few)
    with no_checksum_files(project.spark):
        project.create(TABLE, commits=2)
    root = Path((project.config.catalogs.live.warehouse or "").removeprefix("file://"))
    litter = root / "artemis" / "passes" / "data" / "litter.parquet"
    litter.write_bytes(b"nobody's")
    waiting = project.run("orphans", TABLE, dry_run=False)
    assert waiting.success
    assert said(waiting, "orphan_deletion")["waits_for"] == "ApprovalNeeded"
    assert checks(waiting)["orphan_deletion", NO_PERSON_NEEDED] is False
    run = project.instance.get_run_by_id(waiting.run_id)
    assert run is not None and run.tags[WAITS_FOR_TAG] == "ApprovalNeeded"
    with project.lifecycle() as lifecycle:
        scan = lifecycle.latest_scan(TABLE)
        assert scan is not None
        lifecycle.approve(scan, who="ada", why="one file of nobody")
    done = project.run("orphans", TABLE, dry_run=False)
    assert not failures(done)
    assert checks(done)["orphan_deletion", NO_PERSON_NEEDED] is True
    assert said(done, "orphan_deletion")["scan_id"] == scan.scan_id
    assert not litter.exists()


def test_a_refused_plan_does_not_hold_the_next_one_back(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={"artemis.*": {**AT_ONCE["artemis.*"], "cold_tier": {"enabled": False}}})
    with project.lifecycle() as lifecycle:
        project.create(TABLE, commits=2)
        plans = []
        for number in (2, 3):
            plans.append(lifecycle.plan_expiration(TABLE))
            lifecycle.commit_expiration(plans[-1])
            project.append(TABLE, number)
        lifecycle.operations.verdicts.add(plans[0].plan_id, "plan_keeps_every_ref", "a tag holds it", passed=False)
        done = project.run("deletion", TABLE, dry_run=False)
        assert not failures(done)
        assert said(done, "physical_deletion")["plans"] == 1
        # What is left waits for a person, and says so.
        assert said(done, "physical_deletion")["outcome"] == "waiting"
        assert checks(done)["physical_deletion", NO_PERSON_NEEDED] is False
        run = project.instance.get_run_by_id(done.run_id)
        assert run is not None and run.tags[WAITS_FOR_TAG] == "CheckFailed"
        states = {record.plan_id: record.status for record in lifecycle.plans(TABLE)}
        assert [states[plan.plan_id] for plan in plans] == ["committed", "done"]
        # With nothing else to delete, the refusal is the outcome.
        assert "a tag holds it" in failures(project.run("deletion", TABLE, dry_run=False))["physical_deletion"]


def test_a_commit_records_the_lineage_of_what_leaves_or_does_not_happen(make_project: Callable[..., Project]) -> None:
    project = make_project(tables=AT_ONCE)
    project.create(TABLE, commits=2)
    live, spark = project.config.catalogs.live.name, project.spark
    with project.lifecycle() as lifecycle:
        plan = lifecycle.plan_expiration(TABLE)
        lifecycle.hand_off(plan)
        before = lifecycle.snapshot_history(TABLE).metadata_location
        # Nothing can be recorded: a file is where the folder of recorded rows would be.
        recorded = Path(lifecycle.resources.root.removeprefix("file://")) / "lineage"
        aside = recorded.rename(recorded.with_name("aside"))
        recorded.write_bytes(b"")
        assert "expiration_commit" in failures(project.run("commit", TABLE, dry_run=False))
        assert lifecycle.snapshot_history(TABLE).metadata_location == before
        recorded.unlink()
        aside.rename(recorded)
        assert not failures(project.run("commit", TABLE, dry_run=False))
        assert lifecycle.snapshot_history(TABLE).metadata_location != before
    rows = spark.table(f"{live}.lifecycle.lineage_ledger").select("snapshot_id").collect()
    assert {row.snapshot_id for row in rows} >= set(plan.expired_snapshots)


class TestChecksSeeWhatTheyClaim:
    def test_a_tag_set_after_the_plan_on_a_snapshot_that_it_removes(self, make_project: Callable[..., Project]) -> None:
        project = make_project(tables=AT_ONCE)
        project.create(TABLE, commits=2)
        assert project.run("plan", TABLE).success
        assert project.check("expiration_plan", "plan_keeps_every_ref", TABLE).passed
        with project.lifecycle() as lifecycle:
            plan = lifecycle.uncommitted_plan(TABLE)
        assert plan is not None
        live = project.config.catalogs.live.name
        project.spark.sql(f"ALTER TABLE {live}.{TABLE} CREATE TAG late AS OF VERSION {plan.expired_snapshots[0]}")
        red = project.check("expiration_plan", "plan_keeps_every_ref", TABLE)
        assert not red.passed
        assert "tag late" in str(red.metadata["offenders"].value)
        handoff = project.run("handoff", TABLE, dry_run=False)
        assert "plan_keeps_every_ref" in failures(handoff)["cold_tier_snapshots"]

    @pytest.mark.nightly
    def test_a_cold_copy_that_rots(self, make_project: Callable[..., Project]) -> None:
        project = make_project(tables=AT_ONCE)
        project.create(TABLE, commits=2)
        assert project.run("plan", TABLE).success
        assert project.run("handoff", TABLE, dry_run=False).success
        assert project.check("cold_tier_snapshots", "cold_copy_verified", TABLE).passed
        cold = Path((project.config.catalogs.cold.warehouse or "").removeprefix("file://"))
        victim = next(path for path in sorted(cold.rglob("*.parquet")) if not path.name.startswith("."))
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 0xFF
        victim.write_bytes(bytes(data))
        red = project.check("cold_tier_snapshots", "cold_copy_verified", TABLE)
        assert not red.passed
        assert victim.name in str(red.metadata["offenders"].value)

    def test_a_cold_file_that_a_scrub_finds_lost(self, make_project: Callable[..., Project]) -> None:
        at_once = {name: policy | {"cold_tier": {"scrub_every": "1d"}} for name, policy in AT_ONCE.items()}
        project = make_project(tables=at_once)
        project.create(TABLE, commits=2)
        # Nothing is in cold yet, and that is not a failure.
        assert project.run("cold_scrub", TABLE).success
        with project.lifecycle() as lifecycle:
            lifecycle.hand_off(lifecycle.plan_expiration(TABLE))
        cold = Path((project.config.catalogs.cold.warehouse or "").removeprefix("file://"))
        [list_file, *_] = sorted(cold.rglob("snap-*.avro"))
        live = Path((project.config.catalogs.live.warehouse or "").removeprefix("file://"))
        [source] = live.rglob(list_file.name)
        good = list_file.read_bytes()
        list_file.unlink()
        kept = source.read_bytes()
        source.unlink()

        assert project.run("cold_scrub", TABLE).success

        (key,) = [each for each in project.definitions.resolve_asset_graph().asset_check_keys if each.name == LOST]
        summary = project.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
        assert summary.status.value == "FAILED"
        red = project.check("cold_tier_snapshots", LOST, TABLE)
        assert not red.passed
        assert list_file.name in str(red.metadata["offenders"].value)
        source.write_bytes(kept)
        assert project.run("cold_scrub", TABLE).success
        assert list_file.read_bytes() == good
        assert project.check("cold_tier_snapshots", LOST, TABLE).passed

    def test_a_reachable_file_that_is_gone(self, make_project: Callable[..., Project]) -> None:
        project = make_project(tables={"artemis.*": {}})
        project.create(TABLE, commits=1)
        root = Path((project.config.catalogs.live.warehouse or "").removeprefix("file://"))
        victim = next((root / "artemis" / "passes" / "data").rglob("*.parquet"))
        victim.unlink()
        red = project.check("physical_deletion", "nothing_reachable_deleted", TABLE)
        assert not red.passed
        assert red.metadata["files_absent"].value == 1
        with project.lifecycle() as lifecycle:
            (pause,) = lifecycle.pauses()
        assert (pause.table, pause.who) == (TABLE, "artemis-lifecycle") and "1 reachable files are gone" in pause.why
        # A person who resumed it is not overruled by a check that finds the same again while the pause stands.
        assert not project.check("physical_deletion", "nothing_reachable_deleted", TABLE).passed
        assert victim.name in str(red.metadata["offenders"].value)


class TestRefusals:
    def test_a_taken_lease_ends_green_at_once_and_says_what_it_waits_for(self, project: Project) -> None:
        project.create(TABLE, commits=1)
        with project.lifecycle() as lifecycle:
            uuid = lifecycle.snapshot_history(TABLE).table_uuid
            with lifecycle.operations.leases.hold(uuid, step="deletion", owner="somebody", table=TABLE):
                result = project.run("plan", TABLE)
        assert result.success
        found = said(result, "expiration_plan")
        assert (found["outcome"], found["waits_for"]) == ("waiting", "LeaseTaken")
        assert "try again later" in found["why"] and TABLE in found["why"]
        assert "files" not in found
        assert not [event for event in result.all_events if event.is_step_up_for_retry]

    def test_a_hold_and_a_pause_end_green_and_a_hold_asks_for_a_person(self, project: Project) -> None:
        project.create(TABLE, commits=3)
        with project.lifecycle() as lifecycle:
            plan = lifecycle.plan_expiration(TABLE, older_than=datetime.now(UTC), retain_last=1)
            lifecycle.hand_off(plan)
            lifecycle.commit_expiration(plan)
            hold = lifecycle.hold(TABLE, owner="legal", reason="case 7")
            with lifecycle.operations.engine.begin() as connection:
                connection.execute(text("UPDATE lifecycle.plans SET due_at = clock_timestamp()"))
            held = project.run("deletion", TABLE, dry_run=False)
            assert held.success and checks(held)["physical_deletion", NO_PERSON_NEEDED] is False
            assert said(held, "physical_deletion")["waits_for"] == "Held"
            lifecycle.release(hold.hold_id)
            lifecycle.pause(TABLE, who="ada", why="an incident")
            paused = project.run("deletion", TABLE, dry_run=False)
            assert paused.success and said(paused, "physical_deletion")["waits_for"] == "Paused"

    def test_a_backfill_leaves_a_table_alone_that_no_entry_governs(self, make_project: Callable[..., Project]) -> None:
        project = make_project(tables={"elsewhere.*": {}})
        project.create(TABLE, commits=1)
        left = project.run("plan", TABLE, tags={"dagster/backfill": "all"})
        assert left.success and said(left, "expiration_plan")["outcome"] == "not_governed"
        # A person who names the table means it.
        assert said(project.run("plan", TABLE), "expiration_plan")["outcome"] == "done"

    def test_a_table_that_is_gone_says_so(self, project: Project) -> None:
        project.instance.add_dynamic_partitions("table", ["artemis.dropped"])
        result = project.run("observe", "artemis.dropped")
        assert "artemis.dropped" in failures(result)["snapshot_history"]

    def test_a_commit_without_a_plan_says_what_to_do_first(self, project: Project) -> None:
        project.create(TABLE, commits=1)
        result = project.run("commit", TABLE)
        assert "expiration_plan" in failures(result)["expiration_commit"]


def test_materialize_walk_reports_progress_and_one_failing_table_stops_no_other(
    make_project: Callable[..., Project],
) -> None:
    project = make_project(tables=AT_ONCE)
    project.create(TABLE, commits=1)
    heard: list[WalkEvent] = []
    gone, walk = materialize_walk(
        ["artemis.gone", TABLE],
        config_path=project.path,
        dry_run=True,
        instance=project.instance,
        spark=project.spark,
        job="observe",
        on_event=heard.append,
    )
    assert not gone.succeeded
    assert any("artemis.gone" in failure for failure in gone.failures)
    assert walk.succeeded
    assert not walk.failed_checks
    assert walk.metadata("snapshot_history")["snapshots"] == 1
    assert [event for event in heard if event.table == TABLE] == list(walk.events)
    assert {event.asset for event in walk.events if event.what == "materialised"} == {
        "snapshot_history",
        "lineage_ledger",
        "schema_history",
        "table_health",
    }
    assert all(event.seconds is not None for event in walk.events if event.what == "materialised")
    # The UI's timeline shows the runs of code locations of the workspace.
    (entry,) = yaml.safe_load((REPOSITORY / "workspace.yaml").read_text())["load_from"]
    for run_id in (walk.run_id, gone.run_id):
        run = project.instance.get_run_by_id(run_id)
        assert run is not None and run.is_finished and run.remote_job_origin is not None
        assert run.remote_job_origin.location_name == entry["python_module"]["module_name"]
        assert run.tags["dagster/partition"] and run.remote_job_origin.repository_origin.repository_name


@pytest.mark.nightly
def test_the_nightly_walk_does_every_due_step_of_a_table_in_one_run(make_project: Callable[..., Project]) -> None:
    project = make_project(tables=AT_ONCE)
    with no_checksum_files(project.spark):
        project.create(TABLE, commits=3)

    def walk(*, dry_run: bool = False) -> Walk:
        (walk,) = materialize_walk(
            [TABLE],
            config_path=project.path,
            dry_run=dry_run,
            instance=project.instance,
            spark=project.spark,
            job="nightly_walk",
        )
        assert walk.succeeded and not walk.failures
        return walk

    dry = walk(dry_run=True)
    assert dry.metadata("expiration_commit")["outcome"] == "dry_run"
    with project.lifecycle() as lifecycle:
        assert len(lifecycle.snapshot_history(TABLE).snapshots) == 3
    first = walk()
    with project.lifecycle() as lifecycle:
        assert len(lifecycle.snapshot_history(TABLE).snapshots) == 1
        assert lifecycle.plans(TABLE)[0].status == "done"
    assert first.metadata("physical_deletion")["files_deleted"] > 0
    assert first.metadata("orphan_deletion")["outcome"] == "done"
    # Nothing is due any more, not even a scan.
    with project.lifecycle() as lifecycle:
        lifecycle.scan_orphans(TABLE)
    again = walk()
    assert again.metadata("expiration_plan")["snapshots_expired"] == 0
    assert again.metadata("object_listing")["outcome"] == again.metadata("orphan_scan")["outcome"] == "not_due"
