"""What a person launches from the UI, on a real table and a real instance."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import DagsterInvalidConfigError, ExecuteInProcessResult

from artemis_lifecycle.contracts import CommitLineage, InputSnapshot
from artemis_lifecycle_tests.defs.conftest import TABLE, Project, said
from artemis_lifecycle_tests.deletion.world import local

POLICY = {TABLE: {"retention": {"window": "1ms"}, "deletion": {"grace": "0ms", "max_files": 1}}}
WHO = {"who": "Ada", "why": "case 8"}


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    project = make_project(tables=POLICY)
    project.create(TABLE, commits=3)
    return project


def launch(project: Project, name: str, **config: Any) -> ExecuteInProcessResult:
    return project.definitions.resolve_job_def(name).execute_in_process(
        instance=project.instance, run_config={"ops": {f"{name}_step": {"config": config}}}, raise_on_error=False
    )


def failure(result: ExecuteInProcessResult) -> str:
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    data = failed.step_failure_data.user_failure_data
    assert data is not None
    return data.description or ""


def test_a_table_is_paused_held_planned_closed_and_explained_from_the_ui(project: Project) -> None:
    with project.lifecycle() as lifecycle:
        assert launch(project, "pause", table=TABLE, **WHO).success
        assert [(each.table, each.who) for each in lifecycle.pauses()] == [(TABLE, "Ada")]
        assert launch(project, "resume", table=TABLE, **WHO).success
        assert lifecycle.pauses() == []

        history = lifecycle.snapshot_history(TABLE)
        first = history.snapshots[0].snapshot_id
        assert launch(project, "hold", table=TABLE, owner="legal", reason="case 8", snapshot_ids=[str(first)]).success
        (held,) = lifecycle.holds(TABLE)
        assert held.snapshot_ids == (first,)
        assert launch(project, "release", hold=held.hold_id, **WHO).success
        assert lifecycle.holds(TABLE) == []

        plan = project.run("plan", TABLE)
        plan_id = said(plan, "expiration_plan")["plan_id"]
        approved = launch(project, "approve", plan=plan_id, what="large", **WHO)
        (output,) = (event for event in approved.all_events if event.is_successful_output)
        shown = output.step_output_data.metadata
        assert shown.keys() == {"summary", "result", "seconds"}
        assert str(shown["result"].value).startswith(f"Ada approved {plan_id} of {TABLE} (large: may exceed max_files")
        assert lifecycle.plans(TABLE)[0].approved_by == "Ada"
        path = lifecycle.plan(plan_id).files().first()["path"]
        explained = launch(project, "explain", table=TABLE, path=path)
        assert explained.success
        assert launch(project, "close", plan=plan_id, **WHO).success
        assert lifecycle.plans(TABLE)[0].status == "closed"


def test_bad_input_is_refused_before_anything_is_touched(project: Project) -> None:
    assert "The table is missing" in failure(launch(project, "pause", **WHO))
    assert "exclude each other" in failure(launch(project, "pause", table=TABLE, all_tables=True, **WHO))
    assert "no time zone" in failure(
        launch(project, "hold", table=TABLE, owner="a", reason="b", until="2027-01-31T00:00:00")
    )
    assert "not a snapshot id" in failure(
        launch(project, "restore", table=TABLE, snapshot_id="latest", branch="back", **WHO)
    )
    assert "no plan" in failure(launch(project, "close", plan="nobody-made-this", **WHO)).lower()
    with pytest.raises(DagsterInvalidConfigError):
        launch(project, "close", plan="p")
    with project.lifecycle() as lifecycle:
        assert (lifecycle.pauses(), lifecycle.holds(TABLE)) == ([], [])


def test_an_expired_snapshot_is_restored_from_the_ui(project: Project) -> None:
    with project.lifecycle() as lifecycle:
        plan = lifecycle.plan_expiration(TABLE)
        lifecycle.approve(plan, **WHO)
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        expired = plan.expired_snapshots[0]
        rows = lifecycle.read(TABLE, snapshot_id=expired).collect()
        result = launch(project, "restore", table=TABLE, snapshot_id=str(expired), branch="back", ticket="T-8", **WHO)
        (output,) = (event for event in result.all_events if event.is_successful_output)
        shown = output.step_output_data.metadata
        live = lifecycle.snapshot_history(TABLE)
        assert str(shown["snapshot_id"].value) == str(live.refs["back"].snapshot_id)
        name = f"{project.config.catalogs.live.name}.{TABLE}"
        assert rows and project.spark.sql(f"SELECT * FROM {name} VERSION AS OF 'back'").collect() == rows
        (commit,) = (each for each in live.snapshots if each.snapshot_id == live.refs["back"].snapshot_id)
        assert {"Ada", "T-8"} <= set(commit.summary.whole().values())


def test_quarantined_files_come_back_from_the_ui(make_project: Callable[..., Project]) -> None:
    policy = {"retention": {"window": "1ms"}, "deletion": {"grace": "0ms", "mode": "quarantine"}}
    project = make_project(tables={TABLE: policy})
    project.create(TABLE, commits=3)
    for number in range(2):
        project.spark.sql(f"DELETE FROM {project.config.catalogs.live.name}.{TABLE} WHERE id = {number}")
    with project.lifecycle() as lifecycle:
        plan = lifecycle.plan_expiration(TABLE)
        paths = [row["path"] for row in plan.files().collect()]
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        assert lifecycle.delete_files(plan).deleted == len(paths) > 0
        stores = lifecycle.live_stores
        assert not any(stores.heads(paths))
        result = launch(project, "undelete", plan=plan.plan_id, **WHO)
        (output,) = (event for event in result.all_events if event.is_successful_output)
        assert output.step_output_data.metadata["restored"].value == len(paths)
        assert all(stores.heads(paths))


def test_a_dropped_table_comes_back_from_the_ui(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={TABLE: {}})
    project.create(TABLE, commits=2)
    with project.lifecycle() as lifecycle:
        lifecycle.observe_catalog()
        project.spark.sql(f"DROP TABLE {project.config.catalogs.live.name}.{TABLE}")
        again = f"{TABLE.rpartition('.')[0]}.again"
        result = launch(project, "undrop", table=TABLE, as_name=again, **WHO)
        (output,) = (event for event in result.all_events if event.is_successful_output)
        assert output.step_output_data.metadata["table"].value == again
        assert lifecycle.tables() == [again]
        assert [each.who for each in lifecycle.decisions() if each.kind == "undrop"] == ["Ada"]


def test_a_scan_from_the_launchpad_takes_its_listing_and_its_age(
    make_project: Callable[..., Project], tmp_path: Path
) -> None:
    orphans = {"min_age": "3d", "min_age_floor": "1h", "max_share": 1}
    project = make_project(tables={TABLE: {"orphans": orphans}})
    project.create(TABLE, commits=1)
    with project.lifecycle() as lifecycle:
        data = f"{lifecycle.snapshot_history(TABLE).metadata_location.rpartition('/metadata/')[0]}/data"
        names = ("left-a.parquet", "left-b.parquet")
        for name in names:
            lifecycle.live_stores.write(f"{data}/{name}", b"left behind")
    now = datetime.now(UTC)
    for name in names:
        ago = (now - timedelta(days=2)).timestamp()
        os.utime(local(f"{data}/{name}"), (ago, ago))

    def scanned(**config: Any) -> ExecuteInProcessResult:
        return project.definitions.resolve_job_def("orphans").execute_in_process(
            instance=project.instance,
            partition_key=TABLE,
            run_config={"ops": {"orphan_scan": {"config": config}}} if config else None,
            raise_on_error=False,
        )

    def found(**config: Any) -> int:
        return int(said(scanned(**config), "orphan_scan")["orphans"])

    day_ago = (now - timedelta(days=1)).isoformat()
    listed = pa.table(
        {"path": [f"{data}/{names[0]}"], "last_modified": [now - timedelta(days=2)], "size_in_bytes": [11]}
    )
    pq.write_table(listed, tmp_path / "listing.parquet")
    given = {"listing": f"file://{tmp_path}/listing.parquet", "listed_at": (now - timedelta(minutes=1)).isoformat()}
    assert found(older_than=day_ago, **given) == 1, "only what the listing names"
    assert found(older_than=day_ago) == 2
    assert found(older_than=(now - timedelta(days=4)).isoformat()) == 0
    assert "no time zone" in failure(scanned(older_than="2026-01-01T00:00:00"))
    assert "exclude each other" in failure(scanned(inventory="s3://bucket/manifest.json", **given))


def test_a_plan_from_the_launchpad_keeps_to_what_it_is_given(project: Project) -> None:
    def planned(**config: Any) -> ExecuteInProcessResult:
        return project.definitions.resolve_job_def("plan").execute_in_process(
            instance=project.instance,
            partition_key=TABLE,
            run_config={"ops": {"expiration_plan": {"config": config}}},
            raise_on_error=False,
        )

    def expired(**config: Any) -> int:
        return int(said(planned(**config), "expiration_plan")["snapshots_expired"])

    assert expired(retain_last=3) == 0
    assert expired(older_than="2001-01-01T00:00:00Z") == 0
    with project.lifecycle() as lifecycle:
        first = lifecycle.snapshot_history(TABLE).snapshots[0].snapshot_id
    assert "inside the window" in failure(planned(older_than="2001-01-01T00:00:00Z", snapshot_ids=[str(first)]))
    assert expired(retain_last=3, snapshot_ids=[str(first)]) == 1
    assert "no time zone" in failure(planned(older_than="2001-01-01T00:00:00"))
    assert expired() == 2


def test_the_audit_questions_are_answered_with_a_table_and_a_picture_in_the_ui(project: Project) -> None:
    def page(name: str, **config: Any) -> dict[str, Any]:
        result = launch(project, name, table=TABLE, **config)
        (output,) = (event for event in result.all_events if event.is_successful_output)
        return {key: value.value for key, value in output.step_output_data.metadata.items()}

    with project.lifecycle() as lifecycle:
        frame = lifecycle.read(TABLE)
        first, second = (each.snapshot_id for each in lifecycle.snapshot_history(TABLE).snapshots[:2])
        replay = CommitLineage("replay", "ops-3", "a1b2c3d", "run-1", "schedule")
        replay = replay.reading(InputSnapshot(second), rows=1, size_in_bytes=9)
        read = lifecycle.append(TABLE, frame.limit(1), replay).snapshot_id
        when = page("ingested")
        assert (when["snapshot_id"], when["writer_id"], when["commit_hash"]) == (str(read), "replay", "a1b2c3d")
        assert when["data_files"].records[0].data["path"].endswith(".parquet")
        down = page("downstream", snapshot_id=str(first))
        exact = page("downstream", snapshot_id=str(first), states=False)
        assert (down["snapshots"], down["left_out"]) == (1, 0), "the second snapshot contains the first"
        assert (exact["snapshots"], exact["left_out"]) == (0, 1)
        assert [each.data["by snapshot"] for each in down["edges"].records] == [str(read)]
        up = page("upstream", snapshot_id=str(read))
        for shown in (down, up):
            picture = re.fullmatch(r"!\[.*\]\(data:image/svg\+xml;base64,(.*)\)", shown["graph"])
            assert picture is not None
            drawn = ElementTree.fromstring(base64.b64decode(picture[1]))
            texts = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")}
            assert {str(second) if shown is up else str(first), str(read)} <= texts
    assert "not a snapshot id" in failure(launch(project, "upstream", table=TABLE, snapshot_id="x"))


def test_an_incident_report_is_stored_and_shown_from_the_ui(project: Project) -> None:
    with project.lifecycle() as lifecycle:
        first = lifecycle.snapshot_history(TABLE).snapshots[0].snapshot_id
        result = launch(project, "incident", table=TABLE, snapshot_id=str(first))
        (output,) = (event for event in result.all_events if event.is_successful_output)
        shown = {key: value.value for key, value in output.step_output_data.metadata.items()}
        assert f"# Snapshot {first} of" in shown["report"]
        page = lifecycle.live_stores.read(shown["html"]).decode()
        assert "<svg" in page and str(first) in page
    assert "not a snapshot id" in failure(launch(project, "incident", table=TABLE, snapshot_id="x"))
