from __future__ import annotations

import json
import socket
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckSeverity,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DeleteDynamicPartitionsRequest,
    build_sensor_context,
)
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.test_utils import create_run_for_test
from pyiceberg.catalog import load_catalog
from sqlalchemy import text

from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import MaintenanceWindow
from artemis_lifecycle.defs import sensors
from artemis_lifecycle.defs.checks import lineage_gate
from artemis_lifecycle.defs.processes import PROCESS_TAG, sign
from artemis_lifecycle.operations.leases import mark
from artemis_lifecycle_tests.contracts.test_requirements import COMPLETE
from artemis_lifecycle_tests.defs.conftest import Project, written
from artemis_lifecycle_tests.people import approve_thaw

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster import SensorDefinition, SensorExecutionData
    from pyspark.sql import SparkSession

    from artemis_lifecycle_tests.conftest import MakeConfig

ONE, TWO = "artemis.one", "artemis.two"
LINEAGE = {key: value for key, value in COMPLETE.items() if key != "operation"}


def tick(project: Project, sensor: SensorDefinition, cursor: str | None = None) -> SensorExecutionData:
    """Evaluate the sensor as the daemon does."""
    with (
        build_sensor_context(
            instance=project.instance,
            cursor=cursor,
            repository_def=project.definitions.get_repository_def(),
            resources={"lifecycle": project.resource()},
        ) as context,
        partition_loading_context(dynamic_partitions_store=project.instance),
    ):
        return sensor.evaluate_tick(context)


class TestDiscovery:
    def test_new_tables_become_partitions_and_the_projects_own_results_do_not(self, project: Project) -> None:
        project.register(ONE, "lifecycle.plan_files", "scratch.mine", partition=False)
        (request,) = list(tick(project, sensors.discovery).dynamic_partitions_requests or ())
        assert request.partitions_def_name == "table"
        assert list(request.partition_keys) == [ONE, "scratch.mine"]

    def test_a_dropped_table_retires_its_partition_when_no_run_needs_it(self, project: Project) -> None:
        project.instance.add_dynamic_partitions("table", ["artemis.gone"])
        # No table at all: the wrong catalog, perhaps. Nothing is retired.
        assert not tick(project, sensors.discovery).dynamic_partitions_requests
        project.instance.delete_dynamic_partition("table", "artemis.gone")
        project.register(ONE)
        found = tick(project, sensors.discovery)
        assert not found.dynamic_partitions_requests
        assert found.skip_message
        project.instance.add_dynamic_partitions("table", ["artemis.dropped"])
        run = DagsterRun("plan", str(uuid.uuid4()), status=DagsterRunStatus.STARTED)
        project.instance.add_run(run.with_tags({"dagster/partition": "artemis.dropped"}))
        assert not tick(project, sensors.discovery).dynamic_partitions_requests
        project.instance.report_run_failed(run)
        (request,) = tick(project, sensors.discovery).dynamic_partitions_requests or ()
        assert isinstance(request, DeleteDynamicPartitionsRequest)
        assert list(request.partition_keys) == ["artemis.dropped"]

    def test_partitions_come_before_the_reading_of_a_thousand_changed_tables(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each tick reads a bounded number of metadata files, and no table is missing before all were read."""
        monkeypatch.setattr(sensors, "OBSERVED_AT_ONCE", 1)
        monkeypatch.setattr(sensors, "OBSERVED_EVERY", timedelta(0))
        project.register(ONE, TWO, partition=False)
        first = tick(project, sensors.discovery)
        assert first.dynamic_partitions_requests and first.cursor is None
        project.instance.add_dynamic_partitions("table", [ONE, TWO])
        with project.lifecycle() as lifecycle:
            known = lifecycle.operations.known_tables
            name = project.config.catalogs.live.name
            for seen in (1, 2, 2):
                tick(project, sensors.discovery)
                assert len(known.of_catalog(name)) == seen and not known.missing(name)


class TestLineageWatch:
    def test_a_commit_without_lineage_turns_the_check_red_as_often_as_there_is_one(self, project: Project) -> None:
        project.create(ONE, TWO, commits=1)
        cursor = tick(project, sensors.lineage_watch).cursor
        for number in (1, 2):
            project.append(TWO, number)
            found = tick(project, sensors.lineage_watch, cursor)
            (request,), cursor = found.run_requests, found.cursor
            assert request.partition_key == TWO
            ran = project.definitions.resolve_job_def("lineage_check").execute_in_process(
                instance=project.instance, partition_key=TWO
            )
            (red,) = ran.get_asset_check_evaluations()
            assert (red.check_name, red.partition, red.passed) == ("lineage_gate", TWO, False)
            assert "artemis gate acknowledge" in str(red.description)
            quiet = tick(project, sensors.lineage_watch, cursor)
            assert quiet.skip_message and not quiet.run_requests
        with project.lifecycle() as lifecycle:
            lifecycle.acknowledge_lineage(TWO, who="ada", why="a test")
            assert lifecycle.check_lineage(TWO).passed

    def test_a_check_whose_run_ends_without_a_verdict_is_requested_again_at_most_twice(self, project: Project) -> None:
        project.create(ONE, commits=1)
        cursor = tick(project, sensors.lineage_watch).cursor
        project.append(ONE, 1)
        keys = []
        for _ in range(sensors.CHECKED_AT_MOST):
            found = tick(project, sensors.lineage_watch, cursor)
            (request,), cursor = found.run_requests, found.cursor
            keys.append(request.run_key)
            for status in (DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE):
                assert not tick(project, sensors.lineage_watch, cursor).run_requests, status
                # The sensor looks before the run exists, too.
                create_run_for_test(project.instance, "lineage_check", status=status, tags=request.tags)
        assert len(set(keys)) == sensors.CHECKED_AT_MOST, "Dagster would take a repeated key for the same request"
        assert not tick(project, sensors.lineage_watch, cursor).run_requests
        # A red check fails its run, too: that one has its verdict.
        project.append(ONE, 2)
        found = tick(project, sensors.lineage_watch, cursor)
        (request,) = found.run_requests
        ran = project.definitions.resolve_job_def("lineage_check").execute_in_process(
            instance=project.instance, partition_key=ONE, tags=request.tags, raise_on_error=False
        )
        assert [each.passed for each in ran.get_asset_check_evaluations()] == [False]
        assert not tick(project, sensors.lineage_watch, found.cursor).run_requests

    def test_a_table_that_has_no_partition_yet_is_requested_once_when_it_has_one(self, project: Project) -> None:
        project.create(ONE, commits=1)
        cursor = tick(project, sensors.lineage_watch).cursor
        project.create(TWO, commits=1)
        project.instance.delete_dynamic_partition("table", TWO)
        early = tick(project, sensors.lineage_watch, cursor)
        assert not early.run_requests
        project.instance.add_dynamic_partitions("table", [TWO])
        late = tick(project, sensors.lineage_watch, early.cursor)
        (request,) = late.run_requests
        assert request.partition_key == TWO
        assert not tick(project, sensors.lineage_watch, late.cursor).run_requests
        # Without the cursor, Dagster knows the request by its key.
        again = tick(project, sensors.lineage_watch).run_requests
        assert request.run_key in {each.run_key for each in again}

    def test_a_catalog_that_cannot_be_gated_is_red_and_a_broken_table_does_not_stop_the_watch(
        self, make_config: MakeConfig, instance: DagsterInstance, spark: SparkSession, tmp_path: Path
    ) -> None:
        content = make_config(tables={"artemis.*": {}}).model_dump(mode="json", by_alias=True)
        content["catalogs"]["live"] |= {"type": "in-memory", "uri": f"sqlite:///{tmp_path}/catalog.db"}
        config = LifecycleConfig.model_validate(content)
        project = Project(config, written(config, tmp_path), instance, spark)
        project.register("artemis.a_broken", ONE, TWO)
        cursor = tick(project, sensors.lineage_watch).cursor
        live = project.config.catalogs.live
        catalog = load_catalog(live.name, **pyiceberg_properties(live))
        for table in (ONE, TWO):
            lineage = LINEAGE if table == ONE else {}
            catalog.load_table(table).append(pa.table({"id": [1]}), snapshot_properties=lineage)
        broken = Path(catalog.load_table("artemis.a_broken").metadata_location.removeprefix("file://"))
        catalog.engine.dispose()  # type: ignore[attr-defined]
        for damage in (lambda: broken.write_text("{}"), broken.unlink):
            damage()
            found = tick(project, sensors.lineage_watch, cursor)
            (request,) = found.run_requests
            assert request.partition_key == TWO
        ran = project.definitions.resolve_job_def("lineage_check").execute_in_process(
            instance=project.instance, partition_key=TWO
        )
        (red,) = ran.get_asset_check_evaluations()
        assert (red.check_name, red.partition, red.passed) == ("lineage_gate", TWO, False)
        assert red.severity is AssetCheckSeverity.ERROR and [each.blocking for each in lineage_gate.check_specs] == [
            True
        ]
        assert "without a gate" in str(red.description)
        project.run("lineage_check", ONE)
        with project.lifecycle() as lifecycle:
            assert lifecycle.check_lineage(ONE).passed
            assert set(lifecycle.watch_lineage().unreadable) == {"artemis.a_broken"}


class TestNewMetadata:
    @pytest.fixture
    def project(self, make_project: Callable[..., Project]) -> Project:
        """Its window excludes nothing, so no test depends on the hour."""
        return make_project(tables={"artemis.*": {"quiet_window": {"from": "00:00", "to": "00:00"}}})

    def test_the_window_is_left_to_the_walk_and_the_change_is_observed_after_it(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.register(ONE)
        monkeypatch.setattr(MaintenanceWindow, "excludes", lambda self, now: True)
        inside = tick(project, sensors.new_metadata)
        assert not inside.run_requests
        monkeypatch.undo()
        assert tick(project, sensors.new_metadata, inside.cursor).run_requests

    @pytest.mark.nightly
    def test_who_was_not_observed_for_longest_comes_first(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.create(ONE, TWO, commits=1)
        assert project.run("observe", ONE).success
        monkeypatch.setattr(sensors, "AT_ONCE", 1)
        (first,) = tick(project, sensors.new_metadata).run_requests or ()
        assert first.partition_key == TWO
        with project.lifecycle() as lifecycle:
            (health,) = [each for name, each in lifecycle.operations.health.by_table().items() if name == ONE]
        assert (health.data_files, health.manifests) == (1, 1)

    def test_each_change_is_observed_once(self, project: Project) -> None:
        project.create(ONE, TWO, commits=0)
        first = tick(project, sensors.new_metadata)
        assert {request.partition_key for request in first.run_requests or ()} == {ONE, TWO}
        second = tick(project, sensors.new_metadata, first.cursor)
        assert not second.run_requests
        project.append(ONE, 1)
        third = tick(project, sensors.new_metadata, second.cursor)
        with project.lifecycle() as lifecycle:
            current = lifecycle.snapshot_history(ONE).metadata_location
        (seen,) = third.asset_events
        assert (seen.asset_key.path, seen.partition) == (["live_table"], ONE)
        assert seen.tags == {"dagster/data_version": current}
        assert [request.partition_key for request in third.run_requests or ()] == [ONE]
        assert {request.run_key for request in first.run_requests or ()}.isdisjoint(
            request.run_key for request in third.run_requests or ()
        )

    def test_commits_during_a_run_make_one_run_after_it(self, project: Project) -> None:
        project.register(ONE)
        run = DagsterRun("observe", str(uuid.uuid4()), status=DagsterRunStatus.STARTED, tags={"dagster/partition": ONE})
        project.instance.add_run(run)
        busy = tick(project, sensors.new_metadata)
        assert not busy.run_requests
        project.instance.report_run_failed(run)
        assert [
            request.partition_key for request in tick(project, sensors.new_metadata, busy.cursor).run_requests or ()
        ]

    def test_the_cursor_grows_only_with_existing_tables(self, project: Project) -> None:
        project.register(ONE, "scratch.ungoverned")
        stale = json.dumps({f"artemis.dropped_{number}": "0" * 16 for number in range(1000)})
        cursor = tick(project, sensors.new_metadata, stale).cursor
        assert set(json.loads(cursor or "{}")) == {ONE}

    def test_one_tick_asks_for_a_bounded_number_of_runs(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sensors, "AT_ONCE", 1)
        project.register(ONE, TWO)
        first = tick(project, sensors.new_metadata)
        second = tick(project, sensors.new_metadata, first.cursor)
        asked = [request.partition_key for found in (first, second) for request in found.run_requests or ()]
        assert sorted(map(str, asked)) == [ONE, TWO]


class TestStuckRuns:
    @pytest.mark.parametrize(
        ("status", "ends"),
        [
            (DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE),
            (DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED),
        ],
    )
    def test_a_run_whose_lease_lapsed_is_ended_at_the_second_check(
        self, project: Project, status: DagsterRunStatus, ends: DagsterRunStatus
    ) -> None:
        run = DagsterRun("commit", str(uuid.uuid4()), status=status)
        project.instance.add_run(run)
        with project.lifecycle() as lifecycle:
            leases = lifecycle.operations.leases
            with leases.hold("uuid-of-one", step="commit", owner="dagster", run_id=run.run_id):
                assert _status(project.instance, run) is status
                tick(project, sensors.stuck_runs)
                assert _status(project.instance, run) is status, "a live lease is a live run"
                with lifecycle.operations.engine.begin() as connection:
                    connection.execute(
                        text("UPDATE lifecycle.leases SET expires_at = clock_timestamp() - interval '1 s'")
                    )
                first = tick(project, sensors.stuck_runs)
                assert _status(project.instance, run) is status
                second = tick(project, sensors.stuck_runs, first.cursor)
                assert _status(project.instance, run) is ends
                assert run.run_id in (second.skip_message or "")

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nobody can tell that a process is over")
    def test_a_run_whose_process_is_over_is_ended_at_once_lease_or_not(self, project: Project) -> None:
        killed, alive, foreign = (
            DagsterRun("commit", str(uuid.uuid4()), status=DagsterRunStatus.STARTED) for _ in range(3)
        )
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        for run in (killed, alive, foreign):
            project.instance.add_run(run)
        written = mark([process.pid])
        assert written is not None
        project.instance.add_run_tags(killed.run_id, {PROCESS_TAG: written})
        sign(project.instance, alive.run_id)
        elsewhere = written.replace(socket.gethostname(), "another-host")
        project.instance.add_run_tags(foreign.run_id, {PROCESS_TAG: elsewhere})
        tick(project, sensors.stuck_runs)
        assert _status(project.instance, killed) is DagsterRunStatus.STARTED
        process.kill()
        process.wait()
        assert killed.run_id in (tick(project, sensors.stuck_runs).skip_message or "")
        assert _status(project.instance, killed) is DagsterRunStatus.FAILURE
        for run in (alive, foreign):
            assert _status(project.instance, run) is DagsterRunStatus.STARTED

    def test_a_run_that_ended_by_itself_is_left_alone(self, project: Project) -> None:
        run = DagsterRun("commit", str(uuid.uuid4()), status=DagsterRunStatus.SUCCESS)
        project.instance.add_run(run)
        assert sensors.end_stuck_runs(project.instance, [run.run_id], [run.run_id]) == ([], [])
        assert _status(project.instance, run) is DagsterRunStatus.SUCCESS


class TestMaintenanceWindow:
    @pytest.fixture(autouse=True)
    def _tables_have_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sensors, "_is_idle", lambda lifecycle, table: False)

    def test_it_asks_for_the_plan_when_the_window_is_open(self, make_project: Callable[..., Project]) -> None:
        always = {"quiet_window": {"from": "00:00", "to": "00:00"}}
        project = make_project(tables={"artemis.*": always})
        project.register(ONE)
        (request,) = tick(project, sensors.maintenance_window).run_requests or ()
        assert (request.job_name, request.partition_key) == ("plan", ONE)

    def test_it_says_why_it_asks_for_nothing(self, make_project: Callable[..., Project]) -> None:
        off = {"quiet_window": {"from": "00:00", "to": "00:00", "steps": []}}
        project = make_project(tables={"artemis.*": off})
        project.register(ONE)
        found = tick(project, sensors.maintenance_window)
        assert not found.run_requests
        assert "plan is switched off" in (found.skip_message or "")


def _status(instance: DagsterInstance, run: DagsterRun) -> DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


class TestThaws:
    def test_a_thaw_is_followed_from_its_approval_to_its_end(
        self, make_project: Callable[..., Project], spark: SparkSession
    ) -> None:
        defaults = {
            "retention": {"window": "1ms"},
            "deletion": {"grace": "0s"},
            "cold_tier": {"retain": "1ms"},
        }
        project = make_project(defaults=defaults, tables={"artemis.*": {}})
        project.create(ONE, TWO, commits=1)
        nothing = project.run("deep_archive", ONE, dry_run=False)
        assert nothing.success
        lifecycle, live = project.lifecycle(), project.config.catalogs.live.name
        for number in range(2):
            spark.sql(f"INSERT OVERWRITE {live}.{ONE} VALUES ({number}, 'instead')")
        first = lifecycle.snapshot_history(ONE).snapshots[0].snapshot_id
        lifecycle.expire(ONE)
        assert tick(project, sensors.thaws_under_way).skip_message == "no thaw is open"

        assert project.run("deep_archive", ONE).success
        assert lifecycle.route(ONE, snapshot_id=first).tier == "cold"
        assert project.run("deep_archive", ONE, dry_run=False).success
        assert lifecycle.route(ONE, snapshot_id=first).tier == "deep-archive"
        thaw = lifecycle.request_thaw(ONE, [first], case_id="C-1", requester="Ann", reason="the audit")
        assert "wait" in str(tick(project, sensors.thaws_under_way).skip_message)
        approve_thaw(lifecycle, thaw.thaw_id)
        (request,) = tick(project, sensors.thaws_under_way).run_requests or ()
        assert (request.job_name, request.partition_key) == ("thaws", ONE)
        assert project.run("thaws", ONE).success
        assert lifecycle.route(ONE, snapshot_id=first).readable_in is None
        assert not tick(project, sensors.thaws_under_way).run_requests
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text("UPDATE lifecycle.thaws SET readable_until = clock_timestamp()"))
        assert tick(project, sensors.thaws_under_way).run_requests
        assert project.run("thaws", ONE).success
        assert lifecycle.thaws(ONE) == []
        assert lifecycle.route(ONE, snapshot_id=first).readable_in is not None
