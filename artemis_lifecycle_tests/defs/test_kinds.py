"""Tables of every kind are partitions of the same graph, and the same driver leads each through its steps."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from typer.testing import CliRunner

from artemis_lifecycle.cli import app
from artemis_lifecycle.defs import sensors
from artemis_lifecycle.defs.run import Walk, materialize_walk
from artemis_lifecycle.defs.sensors import step_requests
from artemis_lifecycle.defs.tags import ASSETS_OF
from artemis_lifecycle.errors import OperationsUnavailable
from artemis_lifecycle.session import live_catalogs
from artemis_lifecycle_tests.defs.conftest import TABLE, Project
from artemis_lifecycle_tests.defs.test_sensors import tick
from artemis_lifecycle_tests.nessie import server
from artemis_lifecycle_tests.nessie.world import World
from artemis_lifecycle_tests.paimon.bundle import Table, create, paimon
from artemis_lifecycle_tests.policies import AT_ONCE

ALWAYS: dict[str, Any] = {
    "quiet_window": {"from": "00:00", "to": "00:00"},
    "deletion": {"grace": "0s"},
    "orphans": {"min_age": "0s", "min_age_floor": "0s", "max_share": 1},
}


@pytest.fixture(scope="module")
def nessie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Nessie]:
    with server.running(None, tmp_path_factory.mktemp("nessie")) as running:
        yield running


# The tests share a database. Records are by the names of tables, and marks by the names of catalogs.
VERSIONS, BRANCHES = "versions", "branches"


@pytest.fixture(params=[VERSIONS])
def project(
    request: pytest.FixtureRequest, make_project: Callable[..., Project], nessie: server.Nessie, tmp_path: Path
) -> Project:
    others = {
        "lake": {"type": "paimon", "warehouse": f"file://{tmp_path}/lake", "expire": {"limit": "coded"}},
        request.param: {"type": "nessie", "uri": nessie.api, "warehouse": f"file://{tmp_path}/nessie"},
    }
    return make_project(
        catalogs={"others": others},
        defaults={"orphans": {"min_age_floor": "0s"}},
        tables={"artemis.*": AT_ONCE, "lake:*": ALWAYS, f"{request.param}:*": ALWAYS},
    )


def make_passes(project: Project, warehouse: Path, name: str) -> Table:
    """A Paimon table with six snapshots, of which five are past its retention, and an old file of no snapshot."""
    options = {"write-only": "true", "bucket": "1", "snapshot.num-retained.min": "1", "snapshot.time-retained": "1 ms"}
    table = create(paimon(project.spark), warehouse, name, keyed=True, options=options)
    for number in range(6):
        table.write([(number, "a", "x")], compact="fully" if number == 4 else "never")
    orphan = table.folder / "bucket-0" / "data-00000000-0000-0000-0000-000000000000-0.parquet"
    orphan.write_bytes(b"left behind")
    for path in table.folder.rglob("*"):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 3 * 86_400))
    return table


def make_launches(project: Project, nessie: server.Nessie, name: str) -> World:
    """A Nessie table, and the files of a commit on a branch that was deleted."""
    catalog = next(name for name, each in project.config.catalogs.others.items() if each.type == "nessie")
    world = World(nessie.api, catalog, project.config, project.spark)
    world.reset()
    world.table(name, rows=2)
    world.create("abandoned")
    world.insert(name, 7, "abandoned")
    world.delete("abandoned")
    return world


def test_one_walk_materializes_each_kind_by_what_it_has(
    project: Project, nessie: server.Nessie, tmp_path: Path
) -> None:
    passes, launches = (
        make_passes(project, tmp_path / "lake", "db.passes"),
        make_launches(project, nessie, "db.launches"),
    )
    project.create(TABLE, commits=2)
    read, rows, files = passes.read(), launches.rows("db.launches"), launches.files()
    walks = materialize_walk(
        [TABLE, "lake:db.passes", "versions:db.launches"],
        config_path=project.path,
        dry_run=False,
        instance=project.instance,
        spark=project.spark,
    )
    assert [walk.failures for walk in walks] == [(), (), ()]
    for walk, kind in zip(walks, ("iceberg", "paimon", "nessie"), strict=True):
        outcomes = _outcomes(walk)
        assert {name for name, outcome in outcomes.items() if outcome != "not_applicable"} == ASSETS_OF[kind]
        assert {walk.metadata(name)["kind"] for name in outcomes} == {kind}
        # Most files of the small Nessie table are those of a deleted branch.
        assert walk.failed_checks == (("orphan_share_below_threshold",) if kind == "nessie" else ())
        judged = {event.check for event in walk.events if event.check is not None and event.passed is not None}
        missing = [event for event in walk.events if event.check is not None and event.passed is None]
        assert {"listing_is_fresh", "listing_is_intact", "orphan_share_below_threshold"} <= judged
        assert all(event.message.startswith("Does not apply: ") for event in missing)
        assert (kind == "iceberg") == ("cold_copy_verified" in judged)
    by_kind = dict(zip(("paimon", "nessie"), walks[1:], strict=True))
    assert by_kind["paimon"].metadata("expiration_commit")["snapshots_expired"] > 0
    assert by_kind["paimon"].metadata("physical_deletion")["files_deleted"] > 0
    assert by_kind["paimon"].metadata("orphan_deletion")["files_deleted"] == 1
    assert by_kind["nessie"].metadata("orphan_deletion")["files_deleted"] > 0
    assert passes.read() == read and launches.rows("db.launches") == rows
    assert {file for file in launches.files() if "artemis-receipts" not in file} < files


def _outcomes(walk: Walk) -> dict[str, object]:
    return {event.asset: event.metadata["outcome"] for event in walk.events if event.what == "materialised"}


@pytest.mark.parametrize("project", [BRANCHES], indirect=True)
def test_the_driver_leads_each_kind_to_its_end_and_asks_for_nothing_twice(
    project: Project, nessie: server.Nessie, tmp_path: Path
) -> None:
    in_paimon, in_nessie = "lake:db.orbits", f"{BRANCHES}:db.sites"
    passes = make_passes(project, tmp_path / "lake", "db.orbits")
    make_launches(project, nessie, "db.sites")
    request = next(iter(tick(project, sensors.discovery).dynamic_partitions_requests or ()))
    assert set(request.partition_keys) == {in_paimon, in_nessie}
    project.instance.add_dynamic_partitions("table", list(request.partition_keys))
    asked: dict[str, list[str]] = {in_paimon: [], in_nessie: []}
    for _ in range(12):
        with project.lifecycle() as lifecycle:
            now = lifecycle.operations.clock.now()
            # Every step of the window is open, and the window is that of the records.
            late = now.replace(hour=23, minute=59, second=0, microsecond=0)
            requests = step_requests(lifecycle, project.instance, late)
        if not isinstance(requests, list):
            break
        for each in requests:
            assert each.job_name is not None and each.partition_key is not None
            asked[each.partition_key].append(each.job_name)
            job = project.definitions.resolve_job_def(each.job_name)
            done = job.execute_in_process(
                instance=project.instance,
                partition_key=each.partition_key,
                run_config=each.run_config,
                tags=each.tags,
                raise_on_error=False,
            )
            assert done.success, each
    assert asked == {in_paimon: ["plan", "commit", "deletion", "orphans"], in_nessie: ["orphans"]}
    assert passes.snapshots() == [passes.snapshots()[-1]] and not list(passes.folder.glob("bucket-0/data-0000*"))


def test_a_catalog_that_does_not_answer_keeps_its_partitions_and_stops_no_other(
    make_project: Callable[..., Project], instance: DagsterInstance, tmp_path: Path
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    others = {
        "versions": {"type": "nessie", "uri": f"http://127.0.0.1:{port}/api/v2", "warehouse": f"{tmp_path}/versions"}
    }
    project = make_project(catalogs={"others": others}, tables={"artemis.*": {}, "versions:*": ALWAYS})
    project.register(TABLE)
    instance.add_dynamic_partitions("table", ["artemis.gone", "versions:db.sites"])
    (request,) = tick(project, sensors.discovery).dynamic_partitions_requests or ()
    assert list(request.partition_keys) == ["artemis.gone"]
    listed = CliRunner().invoke(app, ["tables", "--json", "--config", str(project.path)])
    assert json.loads(listed.stdout) == {TABLE: "artemis.*"} and "versions" in listed.stderr
    assert listed.exit_code == OperationsUnavailable.exit_code
    with project.lifecycle() as lifecycle:
        assert [row.table for row in lifecycle.fleet().tables] == [TABLE]
        tomorrow = lifecycle.operations.clock.now() + timedelta(days=1)
        assert not any(
            each.partition_key == "versions:db.sites"
            for each in step_requests(lifecycle, instance, tomorrow.replace(hour=1))
            if not isinstance(each, str)
        )


def test_a_catalog_that_hangs_keeps_its_partitions_and_holds_up_no_other(
    make_project: Callable[..., Project], instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_catalogs, "ANSWERS_WITHIN", 0.5)
    with socket.socket() as listener:
        # It accepts connections, and says nothing.
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}/api/v2"
        others = {"versions": {"type": "nessie", "uri": uri, "warehouse": f"{tmp_path}/versions"}}
        project = make_project(catalogs={"others": others}, tables={"artemis.*": {}, "versions:*": ALWAYS})
        project.register(TABLE, partition=False)
        instance.add_dynamic_partitions("table", ["versions:db.sites"])
        (request,) = tick(project, sensors.discovery).dynamic_partitions_requests or ()
        assert list(request.partition_keys) == [TABLE]
        with project.lifecycle() as lifecycle:
            found, errors = lifecycle.answering_tables()
    assert found == [TABLE] and "does not answer within" in str(errors["versions"])
